"""Initial weights, and weights as plain tensors."""

import math

import pytest
import torch
from torch import nn

from mt.config.model import Side
from mt.errors import RunError
from mt.model.sublayers import deepnorm_constants
from mt.model.weights import lay_out_for_few_rows, load_parameters, parameter_tensors
from tests.factories import model_config, transformer

KEYS = {"d_model": 64, "d_ff": 96, "heads": 4, "kv_heads": 2, "d_head": 24}
KEYS |= {"encoder_layers": 3, "decoder_layers": 2}


@pytest.mark.parametrize("residual", ["post", "pre", "sandwich", "deepnorm"])
@pytest.mark.parametrize("side", ["encoder", "decoder"])
def test_matrices_are_drawn_by_glorots_rule_times_the_gains(residual: str, side: Side) -> None:
    """Queries, keys and values are drawn as one matrix [D 3D], except in DeepNorm."""
    gains = dict.fromkeys(("query", "key", "value"), math.sqrt(0.5))
    if residual == "deepnorm":
        beta = deepnorm_constants(model_config(**KEYS), side)[1]
        gains = {"query": 1.0, "key": 1.0, **dict.fromkeys(("value", "output"), beta)}
        gains |= dict.fromkeys(("gate", "inner", "outer"), beta)
    seen = set()
    model = transformer(**KEYS, feed_forward="swiglu", residual=residual)
    for name, module in model.get_submodule(side).named_modules():
        if not isinstance(module, nn.Linear):
            continue
        kind = name.split(".")[-1]
        bound = gains.get(kind, 1.0) * math.sqrt(6 / sum(module.weight.shape))
        assert module.weight.abs().max().item() == pytest.approx(bound, rel=0.02), name
        assert module.weight.std().item() == pytest.approx(bound / math.sqrt(3), rel=0.05), name
        assert torch.equal(module.bias, torch.zeros_like(module.bias)), name
        seen.add(kind)
    assert seen == {"query", "key", "value", "output", "gate", "inner", "outer"}


def test_loaded_parameters_give_the_same_logits() -> None:
    one, other = transformer(seed=1).eval(), transformer(seed=2).eval()
    load_parameters(other, parameter_tensors(one), "here")
    source, target_in = torch.tensor([[5, 3]]), torch.tensor([[2, 6]])
    assert torch.equal(one(source, target_in), other(source, target_in))


def test_parameters_of_another_model_are_an_error_and_nothing_is_copied() -> None:
    tensors = parameter_tensors(transformer())
    wider = transformer(d_ff=48, seed=2)
    before = {name: tensor.clone() for name, tensor in parameter_tensors(wider).items()}
    with pytest.raises(RunError, match=r"here: .*feed_forward\.inner\.\w+` is 32.* needs 48"):
        load_parameters(wider, tensors, "here")
    assert all(torch.equal(before[name], t) for name, t in parameter_tensors(wider).items())
    with pytest.raises(RunError, match=r"`decoder\.1\..*` is missing"):
        load_parameters(transformer(decoder_layers=2), tensors, "here")


def test_transposed_layout_gives_the_same_logits() -> None:
    model = transformer().eval()
    source, target_in = torch.tensor([[5, 6, 3]]), torch.tensor([[2, 7, 8]])
    with torch.inference_mode():
        before = model(source, target_in)
        lay_out_for_few_rows(model)
        torch.testing.assert_close(model(source, target_in), before)
    matrices = [each.weight for each in model.modules() if isinstance(each, nn.Linear)]
    transposed = [matrix for matrix in matrices if matrix.T.is_contiguous()]
    assert len(transposed) == len(matrices) - 1
    assert model.output.weight is model.target_embedding.weight
    assert model.output.weight.is_contiguous()
