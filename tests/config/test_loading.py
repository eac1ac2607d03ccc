"""Accepted YAML, overrides, dumps and the JSON schema."""

import json
import sys
from collections.abc import Callable
from operator import attrgetter
from pathlib import Path
from typing import Any

import pytest

from mt.config import Config, ModelConfig
from mt.config.data import HubSource, TextSource
from mt.config.loading import dump_config, json_schema, load_config, require_section, with_values
from mt.config.problems import all_places
from mt.errors import ConfigError
from tests.factories import RECIPE, run_process

ROOT = Path(__file__).parents[2]
Load = Callable[..., Config]
Refuse = Callable[..., str]


@pytest.mark.parametrize(
    ("added", "key", "value"),
    [
        *(
            (f"  learning_rate: {text}", "training.learning_rate", 1e-4)
            for text in ("1e-4", "1E-4", "0.0001", "1.0e-4", "100e-6", ".1e-3")
        ),
        ("  learning_rate: 2", "training.learning_rate", 2.0),
        ("  average: off", "training.average", "off"),
        ("seed: 0o17", "seed", 15),
        ("tokenizer: {from: runs/old}", "tokenizer.from_", Path("runs/old")),
        ("tokenizer: {from: 2024-01-01}", "tokenizer.from_", Path("2024-01-01")),
        ("model:\n  # heads: 4", "model", ModelConfig()),
        ("model: {heads: &n 4, encoder_layers: *n}", "model.encoder_layers", 4),
    ],
)
def test_values_take_their_declared_types(added: str, key: str, value: object, load: Load) -> None:
    found = attrgetter(key)(load(RECIPE + added))
    assert found == value
    assert type(found) is type(value)


def test_keys_and_language_codes_are_text(load: Load) -> None:
    tests = "target_language: no\n  tests: {2016: {corpus: c/t}, 2024-01-01: {corpus: c/u}}"
    data = load(RECIPE.replace("target_language: de", tests)).data
    assert data.target_language == "no"
    assert list(data.tests) == ["2016", "2024-01-01"]


def test_byte_order_mark_and_carriage_returns_are_ignored(tmp_path: Path) -> None:
    file = tmp_path / "recipe.yaml"
    file.write_bytes(b"\xef\xbb\xbf" + RECIPE.replace("\n", "\r\n").encode())
    assert load_config(file).data.train == TextSource(corpus="c/train")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"# nothing\n", "FILE: the file has no keys of a config; `mt init` writes one"),
        (b"- a\n", "FILE: the file has no keys of a config; `mt init` writes one"),
        (b"seed: 1\ndata: [\n", "FILE:3: not valid YAML: "),
        (b"seed: 1\na: b: c\n", "FILE:2: not valid YAML: mapping values are not allowed here"),
        (b"seed: 1\n---\nseed: 2\n", "FILE:2: not valid YAML: but found another document"),
        (b"seed: 1\ndata: \xff\n", "FILE:2: not valid UTF-8"),
        (b"seed: 1\ndata: \x01\n", "FILE: not valid YAML: unacceptable character #x0001"),
    ],
)
def test_invalid_yaml_is_reported_with_its_line(
    content: bytes, message: str, tmp_path: Path
) -> None:
    file = tmp_path / "recipe.yaml"
    file.write_bytes(content)
    with pytest.raises(ConfigError) as error:
        load_config(file)
    text = str(error.value).replace(str(file), "FILE")
    assert text.startswith(message)
    assert "\n" not in text


def test_missing_file_suggests_the_nearest(tmp_path: Path) -> None:
    (tmp_path / "multi30k-en-de.yaml").write_text(RECIPE)
    for path, message in {
        "multi30-en-de.yaml": "no such file; did you mean `multi30k-en-de.yaml`?",
        "multi30k-en-de": "no such file; did you mean `multi30k-en-de.yaml`?",
        "wholly-different.yaml": "no such file",
        "nowhere/a.yaml": "no such file",
        ".": "is a folder, a config was expected",
    }.items():
        with pytest.raises(ConfigError) as error:
            load_config(tmp_path / path)
        assert str(error.value) == f"{tmp_path / path}: {message}"


def test_overrides_are_yaml_and_win(load: Load) -> None:
    config = load(
        RECIPE + "model: {heads: 4}\n",
        "model.heads=2",
        "training.learning_rate=1e-4",
        "data.tests.flickr.corpus=c/flickr",
        "data.tests.news={format: tsv, path: a.tsv}",
        "training.max_updates=",
        "training.max_epochs=3",
        "seed=1",
        "seed=2",
    )
    assert (config.model.heads, config.training.learning_rate, config.seed) == (2, 1e-4, 2)
    assert config.data.tests["flickr"].model_dump()["corpus"] == "c/flickr"
    assert config.data.tests["news"].format == "tsv"
    assert config.training.max_updates is None


def test_overridden_file_replaces_the_corpus(load: Load, refuse: Refuse) -> None:
    both = RECIPE.replace("{corpus: c/train}", "{corpus: c/train, source: a.en, target: a.de}")
    for overrides, train in (
        (["source=b.en"], TextSource(source="b.en", target="a.de")),
        (["sha256_source=unverified"], TextSource(corpus="c/train", source="a.en", target="a.de")),
        (
            ["target=b.de", "data.train.corpus=d/train"],
            TextSource(corpus="d/train", source="a.en", target="b.de"),
        ),
    ):
        overrides[0] = f"data.train.{overrides[0]}"
        assert load(both, *overrides).data.train == train
    assert load(RECIPE, "data.train.source=null").data.train == TextSource(corpus="c/train")
    message = "`target` is missing: `source` and `target` go together"
    assert message in refuse(RECIPE, "data.train.source=b.en")


@pytest.mark.parametrize("key", ["name", "revision", "subset", "folder", "split"])
def test_overridden_dataset_replaces_the_corpus(key: str, load: Load) -> None:
    pinned = f"{{format: hub, corpus: c/train, name: o/d, revision: {'a' * 40}}}"
    hub = RECIPE.replace("{corpus: c/train}", pinned)
    kept = load(hub).data.train
    assert isinstance(kept, HubSource)
    value = "b" * 40 if key == "revision" else "other"
    train = load(hub, f"data.train.{key}={value}").data.train
    assert train == kept.model_copy(update={"corpus": None, key: value})


def test_split_named_like_a_key_replaces_no_corpus(load: Load) -> None:
    text = RECIPE.replace("training:", "  tests: {corpus: {corpus: c/a}}\ntraining:")
    tests = load(text, "data.tests.name={corpus: c/b}").data.tests
    assert tests == {"corpus": TextSource(corpus="c/a"), "name": TextSource(corpus="c/b")}


def test_loaded_config_can_be_overridden(load: Load) -> None:
    config = load(RECIPE)
    changed = with_values(config, {"decoding.beam": 2, "training.device": "cpu"})
    assert (changed.decoding.beam, changed.training.device) == (2, "cpu")
    assert with_values(changed, {"decoding.beam": 5, "training.device": "auto"}) == config
    with pytest.raises(ConfigError) as error:
        with_values(config, {"decoding.bem": 2, "decoding.beam": "x"})
    assert str(error.value).splitlines() == [
        "2 problems",
        "`decoding.beam`: expected a whole number, got `x`",
        "`decoding.bem`: unknown; did you mean `decoding.beam`?",
    ]


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("seed=1", "--set seed: only keys of `decoding` can be set here"),
        ("beam=4", "--set beam: only keys of `decoding` can be set here; did you mean `decoding."),
        ("model.beem=4", "--set model.beem: only keys of `decoding` can be set here; did you mean"),
    ],
)
def test_overrides_can_be_limited_to_a_section(override: str, message: str) -> None:
    require_section(["decoding.beam=4"], "decoding")
    with pytest.raises(ConfigError) as error:
        require_section(["decoding.beam=4", override], "decoding")
    assert str(error.value).startswith(message)


def test_dump_has_every_key_by_its_yaml_name(load: Load) -> None:
    config = load(RECIPE.replace("de\n", "no\n") + "tokenizer: {from: runs/a}\n")
    dumped = dump_config(config)
    assert dumped.startswith("seed: 1\ndata:\n  source_language: en\n  target_language: no\n")
    for line in ("  from: runs/a", "  gradient_clip: 1.0", "  max_epochs: null"):
        assert f"\n{line}\n" in dumped
    assert load(dumped) == config


RECIPES = sorted([*ROOT.glob("configs/*.yaml"), *ROOT.glob("configs/fine-tuning/*.yaml")])


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda path: path.stem)
def test_recipes_of_the_project_load(recipe: Path) -> None:
    assert load_config(recipe).data.split_names()[0] == "valid"


def test_committed_schema_is_current() -> None:
    printed = run_process(sys.executable, "-m", "mt.config.loading")
    assert (ROOT / "docs" / "config.schema.json").read_text(encoding="utf-8") == printed, (
        "run: python -m mt.config.loading > docs/config.schema.json"
    )


def test_committed_page_of_keys_is_current() -> None:
    printed = run_process(sys.executable, ROOT / "docs" / "keys.py", env={"PYTHONPATH": str(ROOT)})
    assert (ROOT / "docs" / "keys.md").read_text(encoding="utf-8") == printed, "run: make reference"


def test_schema_describes_every_key_and_rejects_others() -> None:
    schema = json.loads(json_schema())
    assert schema["required"] == ["data"]
    described: set[tuple[str, Any]] = set()
    for section in (schema, *schema["$defs"].values()):
        assert section["additionalProperties"] is False
        described |= {(key, field["description"]) for key, field in section["properties"].items()}
    for place in all_places(Config):
        assert place.field is not None
        assert (place.keys[-1], place.field.description) in described
    assert all(description.endswith(".") for _, description in described)
