"""YAML documents as plain values with the line of each value."""

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.composer import Composer
from ruamel.yaml.error import YAMLError
from ruamel.yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from mt.errors import ConfigError, did_you_mean, name_runs
from mt.files import read_bytes
from mt.runs import CONFIG_FILE

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
    if path.is_dir():
        inside = path / CONFIG_FILE
        hint = f"; a config is in it, {inside}" if inside.is_file() else ""
        raise ConfigError(f"{path}: is a folder, a config was expected{hint}")
    try:
        text = read_bytes(path, limit=LARGEST_CONFIG, error=ConfigError).decode("utf-8-sig")
    except FileNotFoundError:
        names = [file.name for file in path.parent.glob("*.yaml")]
        near = did_you_mean(path.name, names) or (
            "" if path.suffix else name_runs(path.parent, CONFIG_FILE)
        )
        raise ConfigError(f"{path}: no such file{near}") from None
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        raise ConfigError(f"{path}:{line}: not valid UTF-8; convert it with iconv") from None
    reader = _Reader(str(path))
    try:
        root = _compose(text)
        values = reader.mapping(root, ()) if isinstance(root, MappingNode) else {}
    except YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        place = f"{path}:{mark.line + 1}" if mark else str(path)
        raise ConfigError(f"{place}: not valid YAML: {_reason(error)}") from None
    if not isinstance(root, MappingNode):
        raise ConfigError(f"{path}: the file has no keys; a config has lines such as `seed: 1`")
    return Document(values, {(): Origin(0, str(path)), **reader.origins}, tuple(reader.problems))


def parse_value(text: str) -> Any:
    """Return the value of a YAML fragment; raise ValueError if it is not valid."""
    reader = _Reader("value")
    try:
        node = _compose(text)
        value = None if node is None else reader.value(node, ())
    except YAMLError as error:
        raise ValueError(_reason(error)) from None
    if reader.problems:
        raise ValueError(reader.problems[0].text)
    return value


def _reason(error: YAMLError) -> str:
    return str(getattr(error, "problem", None) or str(error).splitlines()[0])


def _compose(text: str) -> Node | None:
    yaml = YAML(typ="safe", pure=True)
    yaml.Composer = _LimitedComposer
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


class _Reader:
    """Converter of YAML nodes to values, which records their origins and problems."""

    def __init__(self, label: str) -> None:
        self.label = label
        self.origins: dict[Keys, Origin] = {}
        self.problems: list[Problem] = []
        self._construct = YAML(typ="safe", pure=True).constructor.construct_object
        self._values = 0

    def value(self, node: Node, keys: Keys) -> Any:
        """Return the value of a node; raise YAMLError if aliases make it too large or endless."""
        self._values += 1
        _check_size(self._values, depth=len(keys))
        if isinstance(node, MappingNode):
            return self.mapping(node, keys)
        if isinstance(node, SequenceNode):
            return [self.value(item, (*keys, str(i))) for i, item in enumerate(node.value)]
        if node.tag in _TEXT:
            return str(node.value)
        if node.tag in _CONVERTED:
            with suppress(ValueError, KeyError):
                return self._construct(node)
        return self._problem(node, keys, f"`{node.value}` does not fit the tag `{node.tag}`")

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

    def _origin(self, node: Node) -> Origin:
        line = node.start_mark.line + 1
        return Origin(line, f"{self.label}:{line}")

    def _problem(self, node: Node, keys: Keys, text: str) -> None:
        self.problems.append(Problem(self._origin(node), keys, text))
