"""Named shapes: their values, and what wins over them."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import pytest
import torch

from mt.config import Config, ModelConfig
from mt.config.loading import dump_config, json_schema, load_config, override_config
from mt.config.model import PRESETS, Preset
from mt.errors import ConfigError
from mt.model.transformer import Transformer

Program = Callable[..., tuple[int, str, str]]

BASE = """\
data:
  source_language: en
  target_language: de
  train: {corpus: c/train}
  valid: {corpus: c/valid}
training:
  max_updates: 100
"""
NAMES = get_args(Preset)
DEFAULTS = ModelConfig()


@pytest.fixture
def load(tmp_path: Path) -> Callable[..., Config]:
    def read(model: str, *overrides: str) -> Config:
        file = tmp_path / "recipe.yaml"
        file.write_text(BASE + model)
        return load_config(file, overrides=overrides)

    return read


PAPERS: dict[str, dict[str, Any]] = {
    # Vaswani et al. 2017, table 3: the row "base", and what "big" changes (for English-German).
    "transformer-base": {
        "d_model": 512,
        "d_ff": 2048,
        "heads": 8,
        "encoder_layers": 6,
        "decoder_layers": 6,
        "dropout": 0.1,
        "positional": "sinusoidal",
        "residual": "post",
        "feed_forward": "relu",
        "tie_embeddings": "all",
    },
    "transformer-big": {
        "d_model": 1024,
        "d_ff": 4096,
        "heads": 16,
        "encoder_layers": 6,
        "decoder_layers": 6,
        "dropout": 0.3,
    },
    # Wu et al. 2021, the "Tiny" of their table of model sizes.
    "transformer-tiny": {
        "d_model": 128,
        "d_ff": 256,
        "heads": 4,
        "encoder_layers": 4,
        "decoder_layers": 4,
        "dropout": 0.3,
    },
    "modern": {
        "positional": "rotary",
        "norm": "rmsnorm",
        "residual": "pre",
        "feed_forward": "swiglu",
        "bias": False,
    },
    # Kasai et al. 2021: 12 layers and 1.
    "deep-encoder": {"encoder_layers": 12, "decoder_layers": 1, "residual": "deepnorm"},
}


def test_all_presets_are_here() -> None:
    assert set(NAMES) == set(PRESETS) == set(PAPERS)


@pytest.mark.parametrize("name", NAMES)
def test_a_preset_has_the_values_of_its_paper(name: str, load: Callable[..., Config]) -> None:
    model = load(f"model: {{preset: {name}}}\n").model
    assert {key: getattr(model, key) for key in PAPERS[name]} == PAPERS[name]
    assert model.preset is None
    untouched = set(ModelConfig.model_fields) - set(PRESETS[name])
    assert {key: getattr(model, key) for key in untouched} == {
        key: getattr(DEFAULTS, key) for key in untouched
    }


def test_the_defaults_are_the_base_model() -> None:
    assert ModelConfig(preset="transformer-base") == DEFAULTS


def test_modern_has_the_parameters_of_base_in_its_feed_forward_layers() -> None:
    modern, base = ModelConfig(preset="modern"), DEFAULTS
    ratio = 3 * modern.d_ff / (2 * base.d_ff)
    assert ratio == pytest.approx(1.0, abs=0.003)
    assert modern.d_ff % 8 == 0


@pytest.mark.parametrize(
    ("name", "millions"),
    [
        ("transformer-base", 65),  # as in table 3, for the 37,000 tokens of section 5.1
        ("transformer-big", 213),
        ("transformer-tiny", 6.1),
        ("modern", 63),
        ("deep-encoder", 61),
    ],
)
def test_a_preset_makes_a_model_of_its_size(name: str, millions: float) -> None:
    with torch.device("meta"):  # shapes alone
        config = ModelConfig.model_validate({"preset": name})
        model = Transformer(config, source_vocabulary=37_000, target_vocabulary=37_000)
    size = sum(parameter.numel() for parameter in model.parameters())
    assert size == pytest.approx(1e6 * millions, rel=0.03)


@pytest.mark.parametrize("name", NAMES)
def test_keys_beside_it_win(name: str, load: Callable[..., Config]) -> None:
    for text in (
        f"model: {{preset: {name}, heads: 2, residual: sandwich}}\n",
        f"model: {{heads: 2, residual: sandwich, preset: {name}}}\n",
    ):
        model = load(text).model
        assert (model.heads, model.residual) == (2, "sandwich")
        assert model.d_ff == PRESETS[name]["d_ff"]


def test_a_value_that_is_the_usual_one_wins_as_any_other(load: Callable[..., Config]) -> None:
    assert load("model: {preset: modern, bias: true, norm: layernorm}\n").model.bias
    assert load("model: {preset: transformer-big, dropout: 0.1}\n").model.dropout == 0.1


def test_a_preset_from_the_command_line(load: Callable[..., Config]) -> None:
    model = load("model: {dropout: 0.2}\n", "model.preset=modern", "model.heads=4").model
    assert (model.norm, model.dropout, model.heads) == ("rmsnorm", 0.1, 4)
    assert load("", "model.preset=modern").model == ModelConfig(preset="modern")
    changed = load("model: {preset: modern}\n", "model.preset=transformer-tiny").model
    assert changed == ModelConfig(preset="transformer-tiny")
    assert load("model: {preset: modern}\n", "model.preset=null").model == DEFAULTS


def test_the_program_takes_a_preset(tiny_recipe: Path, tmp_path: Path, program: Program) -> None:
    run = tmp_path / "run"
    sizes = {"d_model": 32, "d_ff": 24, "heads": 2, "encoder_layers": 1, "decoder_layers": 1}
    settings = (
        "model.preset=modern",
        *(f"model.{key}={size}" for key, size in sizes.items()),
        "training.max_updates=1",
    )
    options = [part for setting in settings for part in ("--set", setting)]
    status, _, err = program("train", tiny_recipe, "--run", run, *options)
    assert status == 0, err
    trained = load_config(run / "config.yaml").model
    # What is set beside it wins; the rest is the preset's.
    assert (trained.d_model, trained.positional, trained.bias) == (32, "rotary", False)


@pytest.mark.parametrize(
    ("written", "near"),
    [("modren", "modern"), ("deep_encoder", "deep-encoder"), ("transformer-bg", "transformer-big")],
)
def test_a_misspelt_preset_gets_the_nearest(
    written: str, near: str, load: Callable[..., Config], tmp_path: Path, program: Program
) -> None:
    with pytest.raises(ConfigError) as error:
        load(f"model:\n  preset: {written}\n")
    listed = ", ".join(f"`{name}`" for name in NAMES)
    told = f"`model.preset`: `{written}` is none of {listed}; did you mean `{near}`?"
    message = f"{tmp_path}/recipe.yaml:9: {told}"
    assert str(error.value) == message
    outcome = program("train", tmp_path / "recipe.yaml", "--run", tmp_path / "run")
    assert outcome == (2, "", f"error: {message}\n")


@pytest.mark.parametrize(("written", "shown"), [("5", "the number 5"), ("[a]", "a list")])
def test_what_is_no_word_is_no_preset(
    written: str, shown: str, load: Callable[..., Config]
) -> None:
    with pytest.raises(ConfigError, match=f"`model.preset`: {shown} is none of `transformer-base`"):
        load(f"model: {{preset: {written}}}\n")


def test_a_key_that_does_not_fit_the_preset_is_refused_with_its_line(
    load: Callable[..., Config],
) -> None:
    with pytest.raises(ConfigError, match=r"yaml:10: `model.d_model` 128 is no multiple of `model"):
        load("model:\n  preset: transformer-tiny\n  heads: 3\n")


@pytest.mark.parametrize("name", NAMES)
def test_a_dump_is_equal_and_needs_no_preset(
    name: str, load: Callable[..., Config], tmp_path: Path
) -> None:
    config = load(f"model: {{preset: {name}, d_ff: 99}}\n")
    dumped = dump_config(config)
    assert "  preset: null\n" in dumped
    file = tmp_path / "dumped.yaml"
    file.write_text(dumped)
    assert load_config(file) == config
    assert override_config(config, ["seed=2"]).model == config.model


def test_editors_know_the_presets() -> None:
    field = json.loads(json_schema())["$defs"]["ModelConfig"]["properties"]["preset"]
    assert field["anyOf"] == [{"enum": list(NAMES), "type": "string"}, {"type": "null"}]


def test_by_set_a_preset_replaces_the_sizes_of_the_file(tmp_path: Path) -> None:
    """They would undo it, and nobody would see."""
    path = tmp_path / "a.yaml"
    path.write_text(
        "data: {source_language: en, target_language: de, train: {source: a, target: b}, "
        "valid: {source: c, target: d}}\nmodel: {d_model: 64, heads: 2, norm: rmsnorm}\n"
    )
    config = load_config(path, overrides=["model.preset=transformer-big", "model.d_ff=100"])
    assert (config.model.d_model, config.model.heads, config.model.d_ff) == (1024, 16, 100)
    assert config.model.norm == "layernorm"
