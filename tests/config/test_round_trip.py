"""Dumped configs load back to equal ones."""

import math
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mt.config import Config
from mt.config.data import TextSource
from mt.config.loading import dump_config, load_config

SCHEMA = Config.model_json_schema(by_alias=True)
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
    return st.fixed_dictionaries(required, optional=known)


def with_rules(tree: dict[str, Any]) -> dict[str, Any]:
    """Repair values that are valid alone but break a rule together."""
    data = tree["data"]
    training = tree.setdefault("training", {})
    train = data["train"].get("corpora", {"": data["train"]})
    held_out = [data["valid"], *data.get("tests", {}).values()]
    for source in held_out:
        source.pop("weight", None)
    for source in (*train.values(), *held_out):
        if source.get("format", "text") == "text":
            both = (source.get("source"), source.get("target"))
            if None in both:
                source.update(corpus="c/s", source=None, target=None)
    decoding = tree.setdefault("decoding", {})
    tags = (each.get("tag") for each in (*train.values(), *held_out, decoding))
    tree.setdefault("tokenizer", {})["tags"] = [tag for tag in tags if tag]
    tree["evaluation"] = with_splits(tree.get("evaluation", {}), [*data.get("tests", {})])
    if not any(training.get(end) for end in ("max_updates", "max_epochs")):
        training["patience"] = training.get("patience") or 3
    training["max_tokens_per_batch"] = data.get("max_tokens", 256) + 7
    training.update(with_an_end(training))
    embeddings = {"source_embedding", "target_embedding", "output"}
    training["freeze"] = [part for part in training.get("freeze", ()) if part not in embeddings]
    model = tree["model"] = with_shapes(tree.get("model", {}), data.get("max_tokens", 256))
    if training.get("r_drop"):
        model["dropout"] = model.get("dropout", 0.1) or 0.2
    if model.get("tie_embeddings", "all") == "all":
        tree.setdefault("tokenizer", {})["vocabulary"] = "joint"
    if tree.get("tokenizer", {}).get("added_tokens"):
        training["init_from"] = training.get("init_from") or "runs/a"
    return tree


def with_splits(evaluation: dict[str, Any], tests: list[str]) -> dict[str, Any]:
    """Return bands and published scores for the given test splits only."""
    bands = dict(zip(tests, evaluation.get("expected", {}).values(), strict=False))
    for band in bands.values():
        band["low"], band["high"] = sorted((band["low"], band.get("high", 100.0)))
    scores = zip(tests, evaluation.get("published", []), strict=False)
    published = [{**each, "split": name} for name, each in scores]
    return {**evaluation, "expected": bands, "published": published}


def with_an_end(training: dict[str, Any]) -> dict[str, Any]:
    """Return values that satisfy the rules of decaying schedules."""
    last = training.get("warmup_updates", 4000) + 5
    rate = training.get("learning_rate", 5e-4)
    if not training.get("max_updates"):
        return {"decay_updates": last, "final_learning_rate": rate}
    return {"decay_updates": max(last, training["max_updates"]), "final_learning_rate": 0.0}


def with_shapes(model: dict[str, Any], max_tokens: int) -> dict[str, Any]:
    heads = model.get("heads", 8)
    shapes: dict[str, Any] = {"heads": heads, "d_model": 2 * heads, "max_positions": max_tokens + 3}
    if model.get("kv_heads"):
        shapes["kv_heads"] = math.gcd(model["kv_heads"], heads)
    if model.get("d_head"):
        shapes["d_head"] = 2 * model["d_head"]
    for side in ("encoder", "decoder"):
        if rates := model.get(f"{side}_dropout"):
            shapes[f"{side}_layers"] = len(rates)
        else:
            shapes[f"{side}_dropout"] = None
    shapes["relative_max_distance"] = model.get("relative_buckets", 32) // 2 + 1
    return {**model, **shapes}


@settings(max_examples=40, deadline=None)
@given(following(SCHEMA).map(with_rules))
def test_every_valid_config_survives_a_round_trip(tree: dict[str, Any]) -> None:
    config = Config.model_validate(tree)
    with tempfile.TemporaryDirectory() as folder:
        again = written_and_read(config, Path(folder))
    assert again == config
    assert dump_config(again) == dump_config(config)


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
