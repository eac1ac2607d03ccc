"""Dumped configs load back to equal ones."""

import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, reject, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from mt.config import Config
from mt.config.data import TextSource
from mt.config.loading import dump_config, load_config

SCHEMA = Config.model_json_schema(by_alias=True)
# Both are optional in the schema, but one needs the other.
SCHEMA["$defs"]["TextSource"]["required"] = ["source", "target"]
NAMES = st.from_regex(r"\A[A-Za-z0-9][A-Za-z0-9_-]{0,8}\Z").filter(
    lambda name: name not in ("train", "valid")
)
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20)
TRICKY_TEXTS = [
    "no",
    "1e-4",
    "中文 é",
    "2024-01-01",
    "null",
    "~",
    "true",
    " a  b ",
    "- a",
    "a: b",
    "#x",
    "\u2028",
    "\x85",
    "\r\n",
    "\ufeff",
    "0x1F",
]


def following(schema: dict[str, Any]) -> st.SearchStrategy[Any]:
    """Return the values that the JSON schema of a field allows, as a strategy."""
    if "$ref" in schema:
        return following(SCHEMA["$defs"][schema["$ref"].rpartition("/")[2]])
    if parts := schema.get("anyOf") or schema.get("oneOf"):
        return st.one_of([following(part) for part in parts])
    if words := schema.get("enum") or [schema[key] for key in ["const"] if key in schema]:
        return st.sampled_from(words)
    if "pattern" in schema:
        return st.from_regex(schema["pattern"].replace("$", r"\Z"))
    if schema["type"] in ("integer", "number"):
        return numbers(schema)
    if schema["type"] == "object":
        return objects(schema)
    if schema["type"] == "array":
        if sides := schema.get("prefixItems"):
            return st.tuples(*map(following, sides)).map(list)
        return st.lists(following(schema["items"]), max_size=3)
    rest = {"string": TEXTS | st.sampled_from(TRICKY_TEXTS), "boolean": st.booleans()}
    return {**rest, "null": st.none()}[schema["type"]]


def numbers(schema: dict[str, Any]) -> st.SearchStrategy[Any]:
    low = schema.get("minimum", schema.get("exclusiveMinimum", 0))
    high = schema.get("maximum", schema.get("exclusiveMaximum", 1e6))
    if schema["type"] == "number":
        return st.floats(
            low, high, exclude_min="minimum" not in schema, exclude_max="maximum" not in schema
        )
    step = schema.get("multipleOf", 1)
    last = int(high) - ("exclusiveMaximum" in schema)
    return st.integers(-(-low // step), last // step).map(lambda times: times * step)


def objects(schema: dict[str, Any]) -> st.SearchStrategy[Any]:
    if "properties" not in schema:
        values = [*schema.get("patternProperties", {}).values()]
        inner = values[0] if values else schema["additionalProperties"]
        fewest = schema.get("minProperties", 0)
        return st.dictionaries(NAMES, following(inner), min_size=fewest, max_size=2)
    known = {key: following(value) for key, value in schema["properties"].items()}
    required = {key: known.pop(key) for key in schema.get("required", ())}
    given = st.lists(st.sampled_from([*known]), max_size=2, unique=True) if known else st.just([])
    return given.flatmap(
        lambda keys: st.fixed_dictionaries({**required, **{key: known[key] for key in keys}})
    )


@settings(max_examples=40, deadline=None)
@given(following(SCHEMA))
def test_every_valid_config_survives_a_round_trip(tree: dict[str, Any]) -> None:
    try:
        config = Config.model_validate(tree)
    except ValidationError:
        reject()  # values that are valid alone may break a rule together
    with tempfile.TemporaryDirectory() as folder:
        again = written_and_read(config, Path(folder))
    assert again == config


def written_and_read(config: Config, folder: Path) -> Config:
    file = folder / "config.yaml"
    file.write_bytes(dump_config(config).encode())
    return load_config(file)


@pytest.mark.parametrize("text", TRICKY_TEXTS)
def test_text_that_resembles_another_type_survives(text: str, tmp_path: Path) -> None:
    source = {"source": text, "target": text}
    data = {"source_language": "en", "target_language": "no", "train": source, "valid": source}
    config = Config.model_validate({"data": data, "training": {"max_updates": 1}})
    assert written_and_read(config, tmp_path).data.train == TextSource(source=text, target=text)
