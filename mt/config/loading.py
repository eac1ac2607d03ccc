"""Loading, overriding and dumping of configurations, and their JSON schema.

`python -m mt.config.loading > docs/config.schema.json` writes the schema for editors.
"""

import io
import json
import logging
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import reduce
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError
from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError
from ruamel.yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode
from ruamel.yaml.representer import SafeRepresenter

from mt.config.base import Section
from mt.config.problems import (
    Document,
    Keys,
    Origin,
    Problem,
    fields,
    problems_in,
    sections_at,
)
from mt.config.root import Config
from mt.errors import ConfigError, ConfigProblemsError, did_you_mean, escape_line, name_runs
from mt.files import expand_home, read_bytes
from mt.runs import (
    CONFIG_FILE,
    ENVIRONMENT_FILE,
    EXPORT_FILE,
    JOURNAL_FILE,
    MODEL_FILE,
    TOKENIZER_FOLDER,
)

S = TypeVar("S", bound=Section)
_logger = logging.getLogger(__name__)
_BESIDE_STORED = (JOURNAL_FILE, MODEL_FILE, EXPORT_FILE, TOKENIZER_FOLDER)
"""Names beside a config that `mt` has written."""
_PRESET = ("model", "preset")
"""Key whose override replaces the section: otherwise the file's sizes would undo the preset."""
_START = "training.init_from"
"""Key whose override leaves the automatic keys of the file open."""
_PATHS = {"source", "target", "path", "init_from", "from", "adapter", "ensemble"}
"""Keys with paths of files and folders."""
_LOCATION = ("source", "target", "path", "name", "revision", "subset", "folder", "split")
"""Keys whose override clears `corpus`, which would otherwise take precedence."""
_LARGEST_CONFIG = 1 << 20
"""Bytes of the largest config that is read."""
_MOST_VALUES = 10_000
"""Keys and values of a config, with those that aliases repeat."""
_TAG = "tag:yaml.org,2002:"
_CONVERTED = {f"{_TAG}{kind}" for kind in ("int", "float", "bool", "null")}
# YAML 1.2 has no dates: ruamel's timestamps are text.
_TEXT = {f"{_TAG}{kind}" for kind in ("str", "timestamp", "merge", "value")}


def load_config(path: Path, *, overrides: Sequence[str] = (), as_recorded: bool = False) -> Config:
    """Read a YAML 1.2 file, apply `KEY=VALUE` overrides, and validate the result.

    Raises ConfigError with all problems at once, each with its line, dotted key and nearest valid
    name. Rules across fields are checked once the fields themselves are valid. The relative paths
    of a run's config are looked for in the folder of its training too, unless `as_recorded`.
    """
    if path.suffix not in {".yaml", ".yml"} and path.is_file():
        for folder in path.parents[:3]:  # of a run or an export
            stored = folder / CONFIG_FILE
            if stored.is_file() and _is_stored(stored):
                raise ConfigError(f"{path}: is a file of a run, not a config; that is {stored}")
        raise ConfigError(f"{path}: a config ends in .yaml; `mt init` writes one for a corpus")
    document = read_document(path)
    if path.name == CONFIG_FILE and _is_stored(path) and not as_recorded:
        document = replace(document, values=_with_found_paths(document.values, path.parent))
    starts = [text for key, _, text in (o.partition("=") for o in overrides) if key == _START]
    if starts and starts[-1] not in {"", "~", "null"}:
        document = _without_automatic(document, str(path))
    document = reduce(_with_override, overrides, document)
    return validate_document(Config, document, file=str(path))


def _without_automatic(document: Document, file: str) -> Document:
    """Return a document without its model and its automatic keys, whose names are logged.

    They were chosen for a new model; `--set training.init_from` continues the training of another.
    """
    values, removed = dict(document.values), list[str]()
    for name in ("tokenizer", "model", "training"):
        section: Any = Config.model_fields[name].annotation
        keys = section.model_fields if name == "model" else section.automatic_keys()
        if isinstance(given := values.get(name), dict):
            values[name] = {key: value for key, value in given.items() if key not in keys}
            removed += [
                f"`{name}.{key}`" for key in given if key in keys and given[key] is not None
            ]
    named = ", ".join(removed) or "no key"
    _logger.info("%s: chosen for a new model, and chosen again to continue one: %s", file, named)
    return replace(document, values=values)


def _is_stored(config: Path) -> bool:
    """Return True for a config that `mt` has written, by its neighbours."""
    return any((config.parent / name).exists() for name in _BESIDE_STORED)


def _with_found_paths(values: dict[str, Any], run: Path) -> dict[str, Any]:
    """Return the values of a run's config with the paths that lead nowhere from this folder.

    They are relative to the folder of the training, which the run records. A run that has moved
    with its project has it above itself.
    """
    places = [*run.resolve().parents]
    with suppress(OSError, ValueError, KeyError, TypeError):
        recorded = json.loads((run / ENVIRONMENT_FILE).read_text(encoding="utf-8"))["folder"]
        places.insert(0, Path(recorded))

    def find(key: str, value: Any) -> Any:
        if isinstance(value, dict):
            return {name: find(name, item) for name, item in value.items()}
        if isinstance(value, list):
            return [find(key, item) for item in value]
        if key not in _PATHS or not isinstance(value, str) or "://" in value:
            return value
        if expand_home(value).exists():
            return value
        existing = (place / value for place in places if (place / value).exists())
        return str(next(existing, value))

    return {name: find(name, value) for name, value in values.items()}


def read_document(path: Path) -> Document:
    """Read a YAML file; raise ConfigError, with the line, unless it holds one mapping."""
    if path.is_dir():
        inside = path / CONFIG_FILE
        hint = f"; a config is in it, {inside}" if inside.is_file() else ""
        raise ConfigError(f"{path}: is a folder, a config was expected{hint}")
    try:
        text = read_bytes(path, limit=_LARGEST_CONFIG, error=ConfigError).decode("utf-8-sig")
    except FileNotFoundError:
        names = [file.name for file in path.parent.glob("*.yaml")]
        near = did_you_mean(path.name, names) or (
            "" if path.suffix else name_runs(path.parent, CONFIG_FILE)
        )
        raise ConfigError(f"{path}: no such file{near}") from None
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        raise ConfigError(f"{path}:{line}: not valid UTF-8; convert it with iconv") from None
    try:
        document = _read_yaml(text, str(path))
    except YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        place = f"{path}:{mark.line + 1}" if mark else str(path)
        raise ConfigError(f"{place}: not valid YAML: {_reason(error)}") from None
    if not isinstance(document.values, dict):
        raise ConfigError(f"{path}: the file has no keys of a config; `mt init` writes one")
    return replace(document, origins={(): Origin(0, str(path)), **document.origins})


def _reason(error: YAMLError) -> str:
    return str(getattr(error, "problem", None) or str(error).splitlines()[0])


def _read_yaml(text: str, label: str) -> Document:
    """Return the value of YAML text, with the line of each key and the problems of the values.

    Raises YAMLError for invalid YAML, and if aliases make the value too large or endless.
    """
    yaml = YAML(typ="safe", pure=True)
    origins: dict[Keys, Origin] = {}
    problems: list[Problem] = []
    values_read = 0

    def origin_of(node: Node) -> Origin:
        line = node.start_mark.line + 1
        return Origin(line, f"{label}:{line}")

    def read(node: Node, keys: Keys) -> Any:
        nonlocal values_read
        values_read += 1
        if values_read > _MOST_VALUES:
            raise YAMLError(f"more than {_MOST_VALUES:,} keys and values, aliases included")
        if isinstance(node, SequenceNode):
            return [read(item, (*keys, str(index))) for index, item in enumerate(node.value)]
        if isinstance(node, MappingNode):
            values: dict[str, Any] = {}
            for key_node, value_node in node.value:
                key = str(key_node.value)  # keys are always text
                path = (*keys, key)
                if not isinstance(key_node, ScalarNode):
                    text = "a key must be a single word"
                    problems.append(Problem(origin_of(key_node), keys, text))
                elif key in values:
                    text = f"given twice, first on line {origins[path].order}"
                    problems.append(Problem(origin_of(key_node), path, text))
                else:
                    origins[path] = origin_of(key_node)
                    values[key] = read(value_node, path)
            return values
        if node.tag in _TEXT:
            return str(node.value)
        if node.tag in _CONVERTED:
            with suppress(ValueError, KeyError):
                return yaml.constructor.construct_object(node)
        text = f"`{node.value}` does not fit the tag `{node.tag}`"
        problems.append(Problem(origin_of(node), keys, text))
        return None

    try:
        root = yaml.compose(text)
        value = None if root is None else read(root, ())
    except RecursionError:
        raise YAMLError("nested too deeply, or an alias inside its own value") from None
    return Document(value, origins, tuple(problems))


def with_values(config: Config, values: Mapping[str, Any]) -> Config:
    """Return a configuration with values at dotted keys, which are then given, validated again."""
    tree = config.model_dump(mode="json", by_alias=True, exclude_unset=True)
    for key, value in values.items():
        tree = _with_value(tree, tuple(key.split(".")), value)
    return validate_document(Config, Document(tree), file="")


def open_keys(config: Config) -> list[str]:
    """Return the dotted automatic keys that a config leaves open."""
    return [
        f"{name}.{key}"
        for name, section in config
        if isinstance(section, Section)
        for key in type(section).model_fields
        if section.is_open(key)
    ]


def require_section(overrides: Iterable[str], section: str) -> None:
    """Raise ConfigError unless every `KEY=VALUE` override sets a key of the named section."""
    known = list(fields(sections_at(Config, (section,))[0]))
    for override in overrides:
        key = override.partition("=")[0]
        if not key.startswith(f"{section}."):
            near = did_you_mean(key.split(".")[-1], known).replace("`", f"`{section}.", 1)
            raise ConfigError(f"--set {key}: only keys of `{section}` can be set here{near}")


def dump_config(config: Config) -> str:
    """Return a configuration, without its open keys, as YAML that loads back to an equal one."""
    tree = config.model_dump(mode="json", by_alias=True)
    for key in open_keys(config):
        section, name = key.split(".")
        del tree[section][name]
    return dump_yaml(tree)


def dump_yaml(values: Mapping[str, Any]) -> str:
    """Return plain values as YAML, a key a line."""
    yaml: Any = YAML(typ="safe", pure=True)
    yaml.Representer = _Representer
    yaml.default_flow_style = False
    yaml.allow_unicode = True
    yaml.width = 100_000
    yaml.sort_base_mapping_type_on_output = False
    text = io.StringIO()
    yaml.dump(values, text)
    return text.getvalue()


class _Representer(SafeRepresenter):
    """Representer that escapes unprintable characters: YAML reads a bare U+0085 as a space."""

    def represent_str(self, data: str) -> ScalarNode:
        style = None if data.isprintable() else '"'
        return self.represent_scalar("tag:yaml.org,2002:str", data, style=style)


_Representer.add_representer(str, _Representer.represent_str)


def validate_document(section: type[S], document: Document, *, file: str) -> S:
    """Return a document as a section; raise ConfigError with all of its problems."""
    problems = list(document.problems)
    try:
        values = section.model_validate(document.values, by_alias=True, by_name=False)
    except ValidationError as error:
        problems += problems_in(error, section, document)
    if problems:
        ordered = sorted(problems, key=lambda problem: problem.origin)
        lines = [escape_line(str(problem)) for problem in ordered]
        if len(lines) == 1:
            raise ConfigError(lines[0])
        heading = ": ".join(filter(None, [file, f"{len(lines)} problems"]))
        raise ConfigProblemsError("\n".join([heading, *lines]))
    return values


def _with_override(document: Document, override: str) -> Document:
    key, equals, text = override.partition("=")
    keys = tuple(key.split("."))
    if not equals or not all(keys):
        raise ConfigError(f"--set {override}: write it as `KEY=VALUE`, such as `model.heads=4`")
    try:
        text.encode()
        fragment = _read_yaml(text, "value")
        faults = [problem.text for problem in fragment.problems]
    except UnicodeEncodeError:
        raise ConfigError(f"--set {key}: the value is not valid UTF-8") from None
    except YAMLError as error:
        faults = [_reason(error)]
    if faults:
        raise ConfigError(f"--set {key}: `{text}` is not valid YAML: {faults[0]}")
    order = 1 + max((origin.order for origin in document.origins.values()), default=0)
    origin = Origin(order, f"--set {key}")
    values, here = document.values, document.values
    for depth, name in enumerate(keys[:-1], 1):
        here = here.get(name)
        if here is None:
            break
        if not isinstance(here, dict):
            single = ".".join(keys[:depth])
            problem = Problem(origin, keys, f"unknown; `{single}` is a single value")
            return replace(document, problems=(*document.problems, problem))
    if keys == _PRESET:
        values = {**values, "model": {}}
    values = _with_value(values, keys, fragment.values)
    if keys[0] == "data" and keys[-1] in _LOCATION and isinstance(fragment.values, str):
        source = reduce(lambda section, name: section[name], keys[:-1], values)
        if source.get("corpus") is not None:
            values = _with_value(values, (*keys[:-1], "corpus"), None)
    replaced = keys[:1] if keys == _PRESET else keys
    origins = {keys[:depth]: origin for depth in range(1, len(keys))}
    for path, earlier in document.origins.items():
        if path[: len(replaced)] != replaced:
            origins[path] = earlier
    return replace(document, values=values, origins={**origins, keys: origin})


def _with_value(tree: dict[str, Any] | None, keys: Keys, value: Any) -> dict[str, Any]:
    here = tree or {}
    if len(keys) == 1:
        return {**here, keys[0]: value}
    return {**here, keys[0]: _with_value(here.get(keys[0]), keys[1:], value)}


def json_schema() -> str:
    """Return the JSON schema (draft 2020-12) of a configuration file as text."""
    schema = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **Config.model_json_schema(by_alias=True),
    }
    return json.dumps(schema, ensure_ascii=False, indent=2) + "\n"


if __name__ == "__main__":
    sys.stdout.write(json_schema())
