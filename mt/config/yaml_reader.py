"""YAML documents as plain values with the line of each value."""

import warnings
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.composer import Composer
from ruamel.yaml.error import MarkedYAMLError, ReusedAnchorWarning, YAMLError
from ruamel.yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode
from ruamel.yaml.reader import ReaderError

from mt.errors import ConfigError, did_you_mean
from mt.files import read_bytes

Keys = tuple[str, ...]
"""Path of a value: `("model", "norm")` is `model.norm`."""

LARGEST_CONFIG = 1 << 20
"""Bytes of the largest config that is read."""
_MOST_VALUES, _DEEPEST = 10_000, 50
"""Limits of a config: keys and values, with those that aliases repeat, and their nesting."""
_TAG = "tag:yaml.org,2002:"
_CONVERTED = {f"{_TAG}{kind}" for kind in ("int", "float", "bool", "null")}
# YAML 1.2 has no dates: ruamel's timestamps are text.
_TEXT = {f"{_TAG}{kind}" for kind in ("str", "timestamp", "merge", "value")}


@dataclass(frozen=True, slots=True, order=True)
class Origin:
    """Place of a value, `FILE:12` or `--set model.norm`, ordered by reading order."""

    order: int
    label: str


@dataclass(frozen=True, slots=True)
class Problem:
    """A single problem of a configuration."""

    origin: Origin
    keys: Keys
    """Key of the problem; empty if the text names it."""
    text: str


@dataclass(frozen=True)
class Document:
    """Values of a configuration before validation."""

    values: dict[str, Any]
    origins: dict[Keys, Origin] = field(default_factory=dict)
    problems: tuple[Problem, ...] = ()
    """Problems found in parsing, such as a duplicate key."""

    def origin(self, keys: Iterable[str]) -> Origin:
        """Return the origin of a value, or of the nearest enclosing section that has one."""
        path = tuple(keys)
        while path and path not in self.origins:
            path = path[:-1]
        return self.origins.get(path, Origin(0, ""))


def read_document(path: Path) -> Document:
    """Read a YAML file; raise ConfigError, with the line, unless it holds one mapping."""
    text = _read(path)
    try:
        root = _compose(text)
    except ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise ConfigError(
            f"{path}:{line}: not valid YAML: the character "
            f"U+{ord(text[error.position]):04X} is not allowed"
        ) from None
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = f"{path}:{mark.line + 1}" if mark else str(path)
        raise ConfigError(f"{place}: not valid YAML: {error.problem}") from None
    except YAMLError as error:
        raise ConfigError(f"{path}: not valid YAML: {error}") from None
    if root is None:
        raise ConfigError(f"{path}: the file is empty; a config needs at least `data`")
    if not isinstance(root, MappingNode):
        raise ConfigError(f"{path}: the file has no keys; a config has lines such as `seed: 1`")
    reader = _Reader(str(path))
    try:
        values = reader.mapping(root, ())
    except YAMLError as error:
        raise ConfigError(f"{path}: {error}") from None
    return Document(values, {(): Origin(0, str(path)), **reader.origins}, tuple(reader.problems))


def parse_value(text: str) -> Any:
    """Return the value of a YAML fragment; raise ValueError if it is not valid."""
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
    yaml = YAML(typ="safe", pure=True)
    yaml.Composer = _LimitedComposer
    with warnings.catch_warnings():
        # YAML allows an anchor to be redefined.
        warnings.simplefilter("ignore", ReusedAnchorWarning)
        return yaml.compose(text)  # type: ignore[no-any-return]


class _LimitedComposer(Composer):
    """Composer that stops at the limits, before it has read the rest of the text."""

    _nodes = _depth = 0

    def compose_node(self, parent: Node | None, index: Any) -> Node | None:
        """Compose a value and those inside it."""
        self._nodes += 1
        self._depth += 1
        _check_size(self._nodes, self._depth)
        node = super().compose_node(parent, index)
        self._depth -= 1
        return node  # type: ignore[no-any-return]


def _check_size(values: int, depth: int) -> None:
    if depth > _DEEPEST:
        raise YAMLError(f"nested deeper than {_DEEPEST} levels")
    if values > _MOST_VALUES:
        raise YAMLError(f"more than {_MOST_VALUES:,} keys and values, aliases included")


def _read(path: Path) -> str:
    if path.is_dir():
        files = sorted(path.glob("*.yaml"))
        near = f"; did you mean `{files[0]}`?" if len(files) == 1 else ""
        if len(files) > 1:
            near = f"; name one of its {len(files)} configs, such as `{files[0]}`"
        raise ConfigError(f"{path}: expected a config file, found a folder{near}")
    try:
        return read_bytes(path, limit=LARGEST_CONFIG, error=ConfigError).decode("utf-8-sig")
    except FileNotFoundError:
        raise ConfigError(f"{path}: no such file{_nearest_file(path)}") from None
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        raise ConfigError(f"{path}:{line}: not valid UTF-8; convert it with iconv") from None


def _nearest_file(path: Path) -> str:
    if not path.parent.is_dir():
        return f" (and no folder {path.parent})"
    names = [file.name for file in path.parent.iterdir() if file.is_file()]
    if f"{path.name}.yaml" in names:
        return f"; did you mean `{path.parent / path.name}.yaml`?"
    near = did_you_mean(path.name, names)
    return near.replace("`", f"`{path.parent}/", 1) if near and path.parent.name else near


class _Reader:
    """Converter of YAML nodes to values, which records their origins and problems."""

    def __init__(self, label: str) -> None:
        self.label = label
        self.origins: dict[Keys, Origin] = {}
        self.problems: list[Problem] = []
        self._construct = YAML(typ="safe", pure=True).constructor.construct_object
        self._open: set[int] = set()
        self._values = 0

    def value(self, node: Node, keys: Keys) -> Any:
        """Return the value of a node; raise YAMLError for too many, such as by aliases."""
        self._values += 1
        _check_size(self._values, depth=len(keys))
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
        """Return the values of a mapping; its keys are always text."""
        values: dict[str, Any] = {}
        for key_node, value_node in node.value:
            if not isinstance(key_node, ScalarNode):
                self._problem(key_node, keys, "a key must be a single word")
                continue
            path = (*keys, str(key_node.value))
            if path in self.origins and path[-1] in values:
                first = self.origins[path].order
                self._problem(key_node, path, f"given twice, first on line {first}")
                continue
            self.origins[path] = self._origin(key_node)
            values[path[-1]] = self.value(value_node, path)
        return values

    def _scalar(self, node: ScalarNode, keys: Keys) -> Any:
        text = str(node.value)
        if node.tag in _CONVERTED:
            try:
                return self._construct(node)
            except (ValueError, KeyError):
                kind = node.tag.split(":")[-1]
                return self._problem(node, keys, f"`{text[:40]}` is not of type {kind}")
        if node.tag not in _TEXT:
            return self._problem(node, keys, f"unknown YAML tag `{node.tag}`")
        if any("\ud800" <= character <= "\udfff" for character in text):
            return self._problem(node, keys, "contains a lone surrogate, which is not valid text")
        if "\0" in text:
            return self._problem(node, keys, "contains a NUL character")
        return text

    def _origin(self, node: Node) -> Origin:
        line = node.start_mark.line + 1
        return Origin(line, f"{self.label}:{line}")

    def _problem(self, node: Node, keys: Keys, text: str, at: Origin | None = None) -> None:
        origin = self._origin(node) if at is None else at
        self.problems.append(Problem(origin, keys, text))
