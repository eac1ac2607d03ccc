"""Compilation of the model: same numbers, few graphs."""

import time
from collections.abc import Sequence
from functools import partial

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, distributed
from torch._C._distributed_c10d import HashStore

from mt.data.batches import Batch, collate
from mt.data.store import Example
from mt.errors import UserError
from mt.special_ids import EOS
from mt.training.distributed import World
from mt.training.passes import compile_stacks
from mt.training.step import TrainingPass
from tests.factories import transformer

Shape = tuple[int, int, int]
"""Sentences, source tokens and target tokens of a batch."""
USUAL: list[Shape] = [(3, 5, 7), (4, 300, 512), (2, 512, 2), (1, 9, 4), (1, 257, 511)]
SINGLE_TOKENS: list[Shape] = [(1, 1, 1), (5, 1, 9), (5, 9, 1)]


def losses_and_gradients(
    *, compiled: bool, shapes: Sequence[Shape] = USUAL, positional: str = "sinusoidal"
) -> list[Tensor]:
    model = transformer(positional=positional).train()
    if compiled:
        compile_stacks(model, positions=400)
    found = []
    for number, shape in enumerate(shapes):
        model.zero_grad()
        batch = batch_of(*shape, is_full=number % 2 == 1)
        loss = TrainingPass(model, 0.1)(batch).smoothed
        loss.backward()
        gradients = [p.grad.clone() for p in model.parameters() if p.grad is not None]
        found += [loss.detach(), *gradients]
    return found


def batch_of(sentences: int, source: int, target: int, *, is_full: bool) -> Batch:
    """Return a batch in which at most the last row has padding."""
    random = np.random.default_rng(1)

    def side(length: int, row: int) -> NDArray[np.int32]:
        shorter = length if is_full or row < sentences - 1 else (length + 1) // 2
        return np.append(random.integers(4, 20, shorter - 1), EOS).astype(np.int32)

    rows = range(sentences)
    return collate([Example(row, side(source, row), side(target, row)) for row in rows])


@pytest.fixture
def graphs(monkeypatch: pytest.MonkeyPatch) -> list[torch.fx.GraphModule]:
    """Return the list of the graphs that are compiled from now on; a graph break is an error."""
    found: list[torch.fx.GraphModule] = []

    def counted(graph: torch.fx.GraphModule, _: list[Tensor]) -> object:
        found.append(graph)
        return graph.forward

    torch.compiler.reset()
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend=counted, fullgraph=True))
    return found


@pytest.mark.slow
def test_three_graphs_serve_all_lengths(graphs: list[torch.fx.GraphModule]) -> None:
    """One for a single pair, two for several with and without padding; any number of positions."""
    plain = losses_and_gradients(compiled=False)
    torch.testing.assert_close(losses_and_gradients(compiled=True), plain, atol=1e-5, rtol=1e-4)
    assert len(graphs) == 4, "and one more after the position tables have grown"


def test_compiled_graph_is_not_split_between_ranks(graphs: list[torch.fx.GraphModule]) -> None:
    model, batch = transformer().train(), batch_of(3, 5, 7, is_full=False)
    expected = TrainingPass(model, 0.1)(batch).smoothed.detach()
    compile_stacks(model)
    distributed.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    try:
        wrapped = World(size=2).wrap(TrainingPass(model, 0.1))
        wrapped.bucket_bytes_cap = 1000  # type: ignore[assignment]
        loss = wrapped(batch).smoothed
        loss.backward()
    finally:
        # Threads of gloo end their work with the GIL, which a destructor holds while it joins them.
        time.sleep(1)
        distributed.destroy_process_group()
    assert len(graphs) == 1
    torch.testing.assert_close(loss.detach(), expected)


def test_compilation_without_a_compiler_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(UserError):
        losses_and_gradients(compiled=True)


@pytest.mark.slow
@pytest.mark.filterwarnings("default")  # torch warns about its own code
@pytest.mark.timeout(600)
def test_default_compiler_computes_the_same() -> None:
    compiled = losses_and_gradients(compiled=True)
    torch.testing.assert_close(compiled, losses_and_gradients(compiled=False), atol=1e-5, rtol=1e-4)
