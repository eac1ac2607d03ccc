"""Weights out and in again, and only where they belong."""

import pytest
import torch
from torch import nn

from mt.config import ModelConfig
from mt.errors import RunError
from mt.model.transformer import Transformer
from mt.model.weights import lay_out_for_few_rows, load_parameters, parameter_tensors

CONFIG = ModelConfig(d_model=8, d_ff=8, heads=2, encoder_layers=1, decoder_layers=1)


def build(seed: int, **changes: object) -> Transformer:
    torch.manual_seed(seed)
    config = CONFIG.model_copy(update=changes)
    return Transformer(config, source_vocabulary=9, target_vocabulary=9)


def test_out_and_in_again_is_the_identity() -> None:
    one, other = build(1), build(2)
    load_parameters(other, parameter_tensors(one), "here")
    source, target_in = torch.tensor([[5, 3]]), torch.tensor([[2, 6]])
    torch.testing.assert_close(
        one.eval()(source, target_in), other.eval()(source, target_in), atol=0, rtol=0
    )


def test_a_shared_matrix_appears_once() -> None:
    tied, free = parameter_tensors(build(1)), parameter_tensors(build(1, tie_embeddings="none"))
    assert free.keys() - tied.keys() == {"source_embedding.weight", "output.weight"}


def test_weights_of_another_model_are_refused_and_nothing_is_copied() -> None:
    tensors = parameter_tensors(build(1))
    wider = build(2, d_ff=16)
    before = {name: tensor.clone() for name, tensor in parameter_tensors(wider).items()}
    with pytest.raises(RunError, match=r"here: .*feed_forward\.inner\.\w+` is 8.* wants 16"):
        load_parameters(wider, tensors, "here")
    assert all(torch.equal(before[name], t) for name, t in parameter_tensors(wider).items())
    with pytest.raises(RunError, match=r"`decoder\.1\..*` is missing"):
        load_parameters(build(2, decoder_layers=2), tensors, "here")


def test_matrices_that_lie_otherwise_give_the_same_logits() -> None:
    model = build(1).eval()
    source, target_in = torch.tensor([[5, 6, 3]]), torch.tensor([[2, 7, 8]])
    with torch.inference_mode():
        before = model(source, target_in)
        lay_out_for_few_rows(model)
        torch.testing.assert_close(model(source, target_in), before)
    matrices = [each.weight for each in model.modules() if isinstance(each, nn.Linear)]
    turned = [matrix for matrix in matrices if matrix.T.is_contiguous()]
    assert len(turned) == len(matrices) - 1
    assert model.output.weight is model.target_embedding.weight
    assert model.output.weight.is_contiguous()
