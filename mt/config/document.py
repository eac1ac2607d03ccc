"""A configuration file as plain values, each with the line that it stands on."""

import warnings
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, ReusedAnchorWarning, YAMLError
from ruamel.yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode
from ruamel.yaml.reader import ReaderError

from mt.errors import ConfigError, did_you_mean

Keys = tuple[str, ...]
"""The way to a value: `("model", "norm")` is `model.norm`."""

_TAG = "tag:yaml.org,2002:"
_CONVERTED = {f"{_TAG}{kind}" for kind in ("int", "float", "bool", "null")}
# YAML 1.2 has no dates; what looks like one is text.
_TEXT = {f"{_TAG}{kind}" for kind in ("str", "timestamp", "merge", "value")}


@dataclass(frozen=True, slots=True, order=True)
class Origin:
    """Where a value was given: `FILE:12` or `--set model.norm`, ordered as they are read."""

    order: int
    label: str


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong with a configuration."""

    origin: Origin
    keys: Keys
    """What it is about; empty where the text says it."""
    text: str


@dataclass(frozen=True)
class Document:
    """The values of a configuration before they are checked."""

    values: dict[str, Any]
    origins: dict[Keys, Origin] = field(default_factory=dict)
    problems: tuple[Problem, ...] = ()
    """What is wrong already, such as a key given twice."""

    def origin(self, keys: Iterable[str]) -> Origin:
        """Return the origin of a value, or of the nearest section around it that has one."""
        way = tuple(keys)
        while way and way not in self.origins:
            way = way[:-1]
        return self.origins.get(way, Origin(0, ""))


def read_document(path: Path) -> Document:
    """Read a YAML file; raise ConfigError, with the line, where it is not one mapping in YAML."""
    text = _read(path)
    try:
        root = _compose(text)
    except ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise ConfigError(
            f"{path}:{line}: not valid YAML: a character that may not stand in it, "
            f"U+{ord(text[error.position]):04X}"
        ) from None
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = f"{path}:{mark.line + 1}" if mark else str(path)
        raise ConfigError(f"{place}: not valid YAML: {error.problem}") from None
    except YAMLError as error:
        raise ConfigError(f"{path}: not valid YAML: {error}") from None
    if root is None:
        raise ConfigError(f"{path}: is empty; a config needs at least `data`")
    if not isinstance(root, MappingNode):
        raise ConfigError(f"{path}: holds no keys; a config is made of lines like `seed: 1`")
    reader = _Reader(str(path))
    values = reader.mapping(root, ())
    return Document(values, {(): Origin(0, str(path)), **reader.origins}, tuple(reader.problems))


def parse_value(text: str) -> Any:
    """Return the value that a token of YAML stands for; raise ValueError where it is none."""
    reader = _Reader("value")
    try:
        node = _compose(text)
        value = None if node is None else reader.value(node, ())
    except MarkedYAMLError as error:
        raise ValueError(str(error.problem)) from None
    except YAMLError as error:
        raise ValueError(str(error).splitlines()[0]) from None
    if reader.problems:
        raise ValueError(reader.problems[0].text)
    return value


def _compose(text: str) -> Node | None:
    with warnings.catch_warnings():
        # YAML allows an anchor to be given anew.
        warnings.simplefilter("ignore", ReusedAnchorWarning)
        node: Node | None = YAML(typ="safe", pure=True).compose(text)
    return node


def _read(path: Path) -> str:
    if path.is_dir():
        raise ConfigError(f"{path}: is a folder, a config file was expected{_nearest_in(path)}")
    try:
        return path.read_bytes().decode("utf-8-sig")
    except FileNotFoundError:
        raise ConfigError(f"{path}: no such file{_nearest_file(path)}") from None
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        raise ConfigError(f"{path}:{line}: not UTF-8") from None


def _nearest_file(path: Path) -> str:
    if not path.parent.is_dir():
        return f" (nor a folder {path.parent})"
    names = [file.name for file in path.parent.iterdir() if file.is_file()]
    if f"{path.name}.yaml" in names:
        return f"; did you mean `{path.parent / path.name}.yaml`?"
    near = did_you_mean(path.name, names)
    return near.replace("`", f"`{path.parent}/", 1) if near and path.parent.name else near


def _nearest_in(folder: Path) -> str:
    files = sorted(folder.glob("*.yaml"))
    return f"; it holds `{files[0]}`" if files else ""


class _Reader:
    """Turns nodes into values, and notes where each stands and what is wrong with it."""

    def __init__(self, label: str) -> None:
        self.label = label
        self.origins: dict[Keys, Origin] = {}
        self.problems: list[Problem] = []
        self._construct = YAML(typ="safe", pure=True).constructor.construct_object
        self._open: set[int] = set()

    def value(self, node: Node, keys: Keys) -> Any:
        """Return what a node stands for."""
        if isinstance(node, ScalarNode):
            return self._scalar(node, keys)
        if id(node) in self._open:
            return self._problem(node, keys, "contains itself", self.origins.get(keys))
        self._open.add(id(node))
        value: Any = self.mapping(node, keys) if isinstance(node, MappingNode) else None
        if isinstance(node, SequenceNode):
            value = [self.value(item, (*keys, str(i))) for i, item in enumerate(node.value)]
        self._open.remove(id(node))
        return value

    def mapping(self, node: MappingNode, keys: Keys) -> dict[str, Any]:
        """Return the values of a mapping; keys are text, whatever they look like."""
        values: dict[str, Any] = {}
        for key_node, value_node in node.value:
            if not isinstance(key_node, ScalarNode):
                self._problem(key_node, keys, "a key is one word")
                continue
            way = (*keys, str(key_node.value))
            if way in self.origins and way[-1] in values:
                first = self.origins[way].order
                self._problem(key_node, way, f"given twice, first on line {first}")
                continue
            self.origins[way] = self._origin(key_node)
            values[way[-1]] = self.value(value_node, way)
        return values

    def _scalar(self, node: ScalarNode, keys: Keys) -> Any:
        text = str(node.value)
        if node.tag in _CONVERTED:
            try:
                return self._construct(node)
            except (ValueError, KeyError):
                return self._problem(node, keys, f"`{text[:40]}` is no {node.tag.split(':')[-1]}")
        if node.tag not in _TEXT:
            return self._problem(node, keys, f"the tag `{node.tag}` is not known here")
        if any("\ud800" <= character <= "\udfff" for character in text):
            return self._problem(node, keys, "holds half a character (a lone surrogate)")
        return text

    def _origin(self, node: Node) -> Origin:
        line = node.start_mark.line + 1
        return Origin(line, f"{self.label}:{line}")

    def _problem(self, node: Node, keys: Keys, text: str, at: Origin | None = None) -> None:
        origin = self._origin(node) if at is None else at
        self.problems.append(Problem(origin, keys, text))
