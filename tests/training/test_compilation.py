"""torch.compile: the same numbers, from one graph for all lengths."""

from functools import partial

import pytest
import torch
from torch import Tensor

from mt.config import ModelConfig
from mt.data.batches import Batch, collate
from mt.data.store import Example
from mt.errors import UserError
from mt.model.transformer import Transformer
from mt.special_ids import EOS
from mt.training.setup import compile_stacks
from mt.training.step import TrainingPass

SMALL = ModelConfig(d_model=16, d_ff=32, heads=2, encoder_layers=1, decoder_layers=1, dropout=0.0)


def batch(*lengths: int) -> Batch:
    rows = [torch.tensor([*range(5, 5 + length), EOS]).int().numpy() for length in lengths]
    return collate([Example(number, row, row) for number, row in enumerate(rows)])


def losses_and_gradients(switch: str) -> list[Tensor]:
    torch.manual_seed(1)
    model = Transformer(SMALL, source_vocabulary=40, target_vocabulary=40).train()
    compile_stacks(model, "on" if switch == "on" else "off")
    found = []
    for lengths in ((2, 4), (7, 3, 5), (6, 6)):
        model.zero_grad()
        loss = TrainingPass(model, 0.1)(batch(*lengths)).smoothed
        loss.backward()
        found += [
            loss.detach(),
            *(p.grad.clone() for p in model.parameters() if p.grad is not None),
        ]
    return found


def test_what_is_compiled_computes_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    graphs = []

    def counted(graph: torch.fx.GraphModule, _: list[Tensor]) -> object:
        graphs.append(graph)
        return graph.forward

    plain = losses_and_gradients("off")
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend=counted))
    torch.testing.assert_close(losses_and_gradients("on"), plain)
    assert graphs


def test_without_a_compiler_it_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(UserError, match="needs a C\\+\\+ compiler, and there is no `no-such-comp"):
        losses_and_gradients("on")


@pytest.mark.slow
@pytest.mark.filterwarnings("default")  # those of torch about itself
@pytest.mark.timeout(600)
def test_the_default_compiler_computes_the_same() -> None:
    compiled = losses_and_gradients("on")
    torch.testing.assert_close(compiled, losses_and_gradients("off"), atol=1e-5, rtol=1e-4)
