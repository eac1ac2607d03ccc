"""Rules for the shape of the model, and presets."""

from collections.abc import Callable
from typing import Any, get_args

import pytest
import torch

from mt.config import Config, ModelConfig
from mt.config.loading import dump_config, with_values
from mt.config.model import PRESETS, Preset
from mt.model.transformer import Transformer
from tests.factories import RECIPE

Load = Callable[..., Config]
Refuse = Callable[..., str]


def test_head_widths_follow_from_the_model_width_unless_given() -> None:
    usual = ModelConfig()
    assert (usual.key_width, usual.value_width, usual.key_heads) == (64, 64, 8)
    given = ModelConfig(d_head=10, d_value=12, kv_heads=2)
    assert (given.key_width, given.value_width, given.key_heads) == (10, 12, 2)


PRESETS_OF_PAPERS: dict[str, tuple[float, list[Any], dict[str, Any]]] = {
    # Vaswani et al. 2017, table 3, with the 37,000 tokens of section 5.1.
    "transformer-base": (65, [512, 2048, 8, 6, 6, 0.1], {"tie_embeddings": "all"}),
    "transformer-big": (213, [1024, 4096, 16, 6, 6, 0.3], {"residual": "post"}),
    # Wu et al. 2021, "Tiny" in the table of model sizes.
    "transformer-tiny": (6.1, [128, 256, 4, 4, 4, 0.3], {"positional": "sinusoidal"}),
    "modern": (
        63,
        [512, 1368, 8, 6, 6, 0.1],
        {"positional": "rotary", "norm": "rmsnorm", "residual": "pre", "feed_forward": "swiglu"},
    ),
    # Kasai et al. 2021.
    "deep-encoder": (61, [512, 2048, 8, 12, 1, 0.1], {"residual": "deepnorm"}),
    # Bogoychev et al. 2020, with attention in place of the recurrence of their decoder.
    "student-tiny": (18.2, [256, 1536, 8, 6, 2, 0.1], {"residual": "post"}),
    "student-medium": (34.3, [384, 1536, 8, 6, 4, 0.1], {"positional": "marian"}),
    "student-base": (46.3, [512, 2048, 8, 6, 2, 0.1], {"residual": "post"}),
}
"""Millions of parameters, sizes with dropout, and choices by preset."""
SIZES = ("d_model", "d_ff", "heads", "encoder_layers", "decoder_layers", "dropout")


def test_table_of_presets_is_complete() -> None:
    assert set(get_args(Preset)) == set(PRESETS) == set(PRESETS_OF_PAPERS)


@pytest.mark.parametrize("name", PRESETS)
def test_preset_has_the_values_and_the_size_of_its_paper(name: str, load: Load) -> None:
    model = load(f"{RECIPE}model: {{preset: {name}}}\n").model
    millions, sizes, choices = PRESETS_OF_PAPERS[name]
    assert [getattr(model, key) for key in SIZES] == sizes
    assert {key: getattr(model, key) for key in choices} == choices
    assert model.preset is None
    untouched = ModelConfig.model_fields.keys() - PRESETS[name].keys()
    assert model.model_dump(include=untouched) == ModelConfig().model_dump(include=untouched)
    with torch.device("meta"):  # shapes only
        transformer = Transformer(model, source_vocabulary=37_000, target_vocabulary=37_000)
    size = sum(parameter.numel() for parameter in transformer.parameters())
    assert size == pytest.approx(1e6 * millions, rel=0.03)


def test_defaults_are_the_base_model() -> None:
    assert ModelConfig(preset="transformer-base") == ModelConfig()


@pytest.mark.parametrize("name", PRESETS)
@pytest.mark.parametrize(
    ("text", "given"),
    [("", None), ("decoding:\n", None), ("decoding: {beam: 3}\n", None)]
    + [(f"decoding: {{search: {search}}}\n", search) for search in ("greedy", "beam", "auto")],
)
def test_the_search_is_open_for_a_student_alone_unless_it_is_given(
    text: str, given: str | None, name: str, load: Load
) -> None:
    config = load(f"{RECIPE}{text}model: {{preset: {name}, heads: 4}}\n")
    usual = "auto" if name.startswith("student-") else "beam"
    assert config.decoding.search == (given or usual)
    assert with_values(config, {"decoding.beam": 4}).decoding.search == (given or usual)
    assert load(dump_config(config)) == config
    plain = load(f"{RECIPE}{text}")
    assert plain.decoding.search == (given or "beam")


@pytest.mark.parametrize("name", PRESETS)
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
        assert with_values(config, {"seed": 2}).model == model


def test_preset_override_replaces_the_section(load: Load) -> None:
    given = RECIPE + "model: {d_model: 64, heads: 2, dropout: 0.2}\n"
    model = load(given, "model.preset=transformer-big", "model.d_ff=100").model
    assert (model.d_model, model.heads, model.d_ff, model.dropout) == (1024, 16, 100, 0.3)
    modern = RECIPE + "model: {preset: modern}\n"
    changed = load(modern, "model.preset=transformer-tiny").model
    assert changed == ModelConfig(preset="transformer-tiny")
    assert load(modern, "model.preset=null").model == ModelConfig()


@pytest.mark.parametrize(
    ("written", "message"),
    [
        ("modren", f"`modren` is not one of `{'`, `'.join(PRESETS)}`; did you mean `modern`?"),
        ("5", "the number 5 is not one of `transformer-base`"),
        ("[a]", "a list is not one of `transformer-base`"),
    ],
)
def test_preset_must_be_a_known_name(written: str, message: str, refuse: Refuse) -> None:
    error = refuse(f"{RECIPE}model: {{preset: {written}}}\n")
    assert error.startswith(f"FILE:8: `model.preset`: {message}")
