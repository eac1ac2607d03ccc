"""Rules for the shape of the model, and presets."""

from collections.abc import Callable
from typing import Any, get_args

import pytest
import torch

from mt.config import Config, ModelConfig
from mt.config.loading import dump_config, override_config
from mt.config.model import PRESETS, Preset
from mt.model.transformer import Transformer
from tests.factories import RECIPE

Load = Callable[..., Config]
Refuse = Callable[..., str]
FIRST_LINE = RECIPE.count("\n") + 2
DIVIDES = (
    "`model.d_model` 512 is not a multiple of `model.heads` 6; "
    "change one, or set both `model.d_head` and `model.d_value`"
)


@pytest.mark.parametrize(
    ("keys", "line", "message"),
    [
        (
            ["positional: rotary", "d_head: 5"],
            2,
            "`model.positional: rotary` needs an even `model.d_head`, not 5",
        ),
        (
            ["d_model: 36", "positional: rotary", "heads: 4"],
            3,
            "`model.positional: rotary` needs an even `model.d_model` / `model.heads`, not 9",
        ),
        (["d_model: 512", "heads: 6"], 2, DIVIDES),
        (["heads: 6", "d_head: 64"], 2, DIVIDES),
        (
            ["kv_heads: 3", "heads: 8"],
            2,
            "`model.kv_heads` 3 does not divide `model.heads` 8: "
            "every key head serves the same number of query heads",
        ),
        (
            ["kv_heads: 16"],
            1,
            "`model.kv_heads` 16 does not divide `model.heads` 8: "
            "every key head serves the same number of query heads",
        ),
        (
            ["d_model: 25", "heads: 5"],
            1,
            "`model.positional: sinusoidal` needs an even `model.d_model`, not 25",
        ),
        (
            ["positional: learned", "max_positions: 255"],
            2,
            "`model.max_positions` 255 is below `data.max_tokens` 256: `model.positional: learned` "
            "needs a position for every token of the longest pair",
        ),
        (
            ["positional: relative_bias", "relative_buckets: 64", "relative_max_distance: 32"],
            3,
            "`model.relative_max_distance` 32 must be above half of `model.relative_buckets` 64",
        ),
        (
            ["preset: transformer-tiny", "heads: 3"],
            2,
            "`model.d_model` 128 is not a multiple of `model.heads` 3; "
            "change one, or set both `model.d_head` and `model.d_value`",
        ),
        (
            ["preset: modren"],
            1,
            f"`model.preset`: `modren` is not one of {', '.join(f'`{name}`' for name in PRESETS)}; "
            "did you mean `modern`?",
        ),
    ],
)
def test_impossible_shape_is_refused_with_its_line(
    keys: list[str], line: int, message: str, refuse: Refuse
) -> None:
    text = f"{RECIPE}model:\n" + "".join(f"  {key}\n" for key in keys)
    assert refuse(text) == f"FILE:{FIRST_LINE + line - 1}: {message}"


def test_all_impossible_values_are_reported_at_once(refuse: Refuse) -> None:
    error = refuse(RECIPE + "model: {d_model: 35, heads: 4, kv_heads: 3}")
    assert error.startswith("FILE: 3 problems\n")


@pytest.mark.parametrize(
    "keys",
    [
        {"d_model": 510, "heads": 8, "d_head": 64, "d_value": 32},
        {"d_model": 25, "heads": 5, "positional": "rotary", "d_head": 6, "d_value": 5},
        {"d_model": 25, "heads": 5, "positional": "learned"},
        {"positional": "rotary", "d_value": 5},
        {"kv_heads": 1},
        {"kv_heads": 8},
        {"positional": "learned", "max_positions": 256},
        {"max_positions": 1},
        {"relative_buckets": 64, "relative_max_distance": 33},
    ],
)
def test_possible_shape_is_accepted(keys: dict[str, Any], load: Load) -> None:
    model = load(RECIPE, *(f"model.{key}={value}" for key, value in keys.items())).model
    assert {key: getattr(model, key) for key in keys} == keys


def test_head_widths_follow_from_the_model_width_unless_given() -> None:
    usual = ModelConfig()
    assert (usual.key_width, usual.value_width, usual.key_heads) == (64, 64, 8)
    given = ModelConfig(d_head=10, d_value=12, kv_heads=2)
    assert (given.key_width, given.value_width, given.key_heads) == (10, 12, 2)


NAMES = get_args(Preset)
PAPERS: dict[str, dict[str, Any]] = {
    # Vaswani et al. 2017, table 3: the row "base", and the changes of "big" (English-German).
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
    "transformer-big": {"d_model": 1024, "d_ff": 4096, "heads": 16, "dropout": 0.3},
    # Wu et al. 2021, "Tiny" in the table of model sizes.
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
    # Kasai et al. 2021.
    "deep-encoder": {"encoder_layers": 12, "decoder_layers": 1, "residual": "deepnorm"},
}
MILLIONS = {
    "transformer-base": 65,  # table 3, with the 37,000 tokens of section 5.1
    "transformer-big": 213,
    "transformer-tiny": 6.1,
    "modern": 63,
    "deep-encoder": 61,
}


def test_table_of_presets_is_complete() -> None:
    assert set(NAMES) == set(PRESETS) == set(PAPERS) == set(MILLIONS)


@pytest.mark.parametrize("name", NAMES)
def test_preset_has_the_values_and_the_size_of_its_paper(name: str, load: Load) -> None:
    model = load(f"{RECIPE}model: {{preset: {name}}}\n").model
    assert {key: getattr(model, key) for key in PAPERS[name]} == PAPERS[name]
    assert model.preset is None
    untouched = ModelConfig.model_fields.keys() - PRESETS[name].keys()
    assert model.model_dump(include=untouched) == ModelConfig().model_dump(include=untouched)
    with torch.device("meta"):  # shapes only
        transformer = Transformer(model, source_vocabulary=37_000, target_vocabulary=37_000)
    size = sum(parameter.numel() for parameter in transformer.parameters())
    assert size == pytest.approx(1e6 * MILLIONS[name], rel=0.03)


def test_defaults_are_the_base_model() -> None:
    assert ModelConfig(preset="transformer-base") == ModelConfig()


@pytest.mark.parametrize("name", NAMES)
def test_keys_override_a_preset_in_any_order(name: str, load: Load) -> None:
    for text in (
        f"model: {{preset: {name}, heads: 2, bias: true, residual: sandwich}}\n",
        f"model: {{heads: 2, bias: true, residual: sandwich, preset: {name}}}\n",
    ):
        config = load(RECIPE + text)
        model = config.model
        assert (model.heads, model.residual, model.bias) == (2, "sandwich", True)
        assert model.d_ff == PRESETS[name]["d_ff"]
        assert load(dump_config(config)) == config
        assert override_config(config, ["seed=2"]).model == model


def test_preset_override_replaces_the_section(load: Load) -> None:
    given = RECIPE + "model: {d_model: 64, heads: 2, dropout: 0.2}\n"
    model = load(given, "model.preset=transformer-big", "model.d_ff=100").model
    assert (model.d_model, model.heads, model.d_ff, model.dropout) == (1024, 16, 100, 0.3)
    modern = RECIPE + "model: {preset: modern}\n"
    changed = load(modern, "model.preset=transformer-tiny").model
    assert changed == ModelConfig(preset="transformer-tiny")
    assert load(modern, "model.preset=null").model == ModelConfig()


@pytest.mark.parametrize(("written", "shown"), [("5", "the number 5"), ("[a]", "a list")])
def test_preset_must_be_a_name(written: str, shown: str, refuse: Refuse) -> None:
    message = f"`model.preset`: {shown} is not one of `transformer-base`"
    assert message in refuse(f"{RECIPE}model: {{preset: {written}}}\n")
