"""A rate of dropout for each layer: where it stands, what it leaves alone, and what it does."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from mt.config import ModelConfig
from mt.config.loading import dump_config, load_config
from mt.errors import ConfigError
from mt.model.transformer import Transformer

SMALL: dict[str, Any] = {
    "d_model": 8,
    "d_ff": 8,
    "heads": 2,
    "encoder_layers": 3,
    "decoder_layers": 2,
    "dropout": 0.1,
    "feed_forward_dropout": 0.05,
}
ENCODER, DECODER = [0.2, 0.0, 0.3], [0.5, 0.4]


def model(**changes: Any) -> Transformer:
    torch.manual_seed(1)
    config = ModelConfig.model_validate({**SMALL, **changes})
    return Transformer(config, source_vocabulary=9, target_vocabulary=9)


def rates(part: nn.Module) -> dict[str, float]:
    return {name: each.p for name, each in part.named_modules() if isinstance(each, nn.Dropout)}


@pytest.mark.parametrize("residual", ["post", "pre", "sandwich", "deepnorm"])
def test_each_layer_has_its_rate(residual: str) -> None:
    built = model(residual=residual, encoder_dropout=ENCODER, decoder_dropout=DECODER)
    for stack, wanted in ((built.encoder, ENCODER), (built.decoder, DECODER)):
        for layer, rate in zip(stack, wanted, strict=True):
            around = {name: p for name, p in rates(layer).items() if "residual" in name}
            inside = {name: p for name, p in rates(layer).items() if name not in around}
            assert set(around.values()) == {rate}
            assert len(around) == (3 if stack is built.decoder else 2)
            assert inside.pop("feed_forward.dropout") == 0.05
            assert set(inside.values()) == {0.0}  # of attention weights
    assert built.dropout.p == 0.1


def test_one_stack_may_have_rates_of_its_own() -> None:
    built = model(decoder_dropout=DECODER)
    assert {rate for name, rate in rates(built.encoder).items() if "residual" in name} == {0.1}
    assert {rate for name, rate in rates(built.decoder).items() if "residual" in name} == {0.5, 0.4}


def test_the_rates_change_nothing_but_dropout() -> None:
    usual, changed = model(), model(encoder_dropout=ENCODER, decoder_dropout=DECODER)
    weights = dict(usual.named_parameters())
    assert all(torch.equal(weights[name], each) for name, each in changed.named_parameters())
    ids = torch.tensor([[5, 4, 3]])
    usual.eval(), changed.eval()
    assert torch.equal(usual(ids, ids), changed(ids, ids))


def test_a_layer_without_dropout_is_not_touched_by_that_of_the_others() -> None:
    """Of three layers the second alone drops: only from there on do two passes differ."""
    built = model(encoder_dropout=[0.0, 0.5, 0.0], dropout=0.0, feed_forward_dropout=0.0)
    passes: list[list[torch.Tensor]] = []
    for layer in built.encoder:
        layer.register_forward_hook(lambda _module, _given, made: passes[-1].append(made))
    for _ in range(2):
        passes.append([])
        built.encode(torch.tensor([[5, 4, 3]]))
    same = [torch.equal(one, other) for one, other in zip(*passes, strict=True)]
    assert same == [True, False, False]


@pytest.mark.parametrize(
    ("setting", "told"),
    [
        (
            "model.encoder_dropout=[0.1]",
            "--set model.encoder_dropout: `model.encoder_dropout` has 1 rates, "
            "`model.encoder_layers` is 6: one rate for each layer",
        ),
        (
            "model.decoder_dropout=[0.1, 0.1, 0.1, 0.1, 0.1, 1]",
            "--set model.decoder_dropout: `model.decoder_dropout.5`: 1 is out of range: "
            "must be less than 1.0",
        ),
        ("model.encoder_dropout=0.1", "--set model.encoder_dropout: expected a list, got the "),
    ],
)
def test_what_is_no_rate_for_each_layer_is_told(
    setting: str, told: str, tiny_recipe: Path, tmp_path: Path
) -> None:
    layers = ["model.encoder_layers=6", "model.decoder_layers=6"]
    with pytest.raises(ConfigError) as error:
        load_config(tiny_recipe, overrides=[*layers, setting])
    assert str(error.value).startswith(told)


def test_rates_go_with_a_preset_and_into_the_run_folder(tiny_recipe: Path, tmp_path: Path) -> None:
    given = ["model.preset=deep-encoder", "model.decoder_dropout=[0.3]"]
    config = load_config(tiny_recipe, overrides=given)
    assert (config.model.decoder_dropout, config.model.encoder_dropout) == ((0.3,), None)
    written = tmp_path / "config.yaml"
    written.write_text(dump_config(config))
    assert load_config(written) == config
    with pytest.raises(ConfigError, match="`model.encoder_dropout` has 2 rates, .* is 12: one rat"):
        load_config(tiny_recipe, overrides=[*given, "model.encoder_dropout=[0.1, 0.2]"])
