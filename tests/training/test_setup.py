"""Setup of a session: compilation, agreement of the ranks and the largest number of updates."""

from functools import partial
from pathlib import Path

import pytest
import torch
from torch import Tensor

from mt.config import TrainingConfig
from mt.config.loading import load_config
from mt.data.batches import collate
from mt.errors import RunError, UserError
from mt.training.distributed import World
from mt.training.run_folder import RunFolder
from mt.training.setup import agree_on_folder, compile_stacks, most_updates, weights_sha256
from mt.training.step import TrainingPass
from tests.factories import examples, learner, transformer


def losses_and_gradients(*, compiled: bool) -> list[Tensor]:
    model = transformer().train()
    compile_stacks(model, "on" if compiled else "off")
    found = []
    for count in (2, 3, 5):
        model.zero_grad()
        loss = TrainingPass(model, 0.1)(collate(examples(count))).smoothed
        loss.backward()
        gradients = [p.grad.clone() for p in model.parameters() if p.grad is not None]
        found += [loss.detach(), *gradients]
    return found


def test_compiled_stacks_compute_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    graphs = []

    def counted(graph: torch.fx.GraphModule, _: list[Tensor]) -> object:
        graphs.append(graph)
        return graph.forward

    plain = losses_and_gradients(compiled=False)
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend=counted))
    torch.testing.assert_close(losses_and_gradients(compiled=True), plain)
    assert graphs


def test_compilation_without_a_compiler_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(UserError, match=r"needs a C\+\+ compiler, but `no-such-compiler` was not"):
        losses_and_gradients(compiled=True)


@pytest.mark.slow
@pytest.mark.filterwarnings("default")  # torch warns about its own code
@pytest.mark.timeout(600)
def test_default_compiler_computes_the_same() -> None:
    compiled = losses_and_gradients(compiled=True)
    torch.testing.assert_close(compiled, losses_and_gradients(compiled=False), atol=1e-5, rtol=1e-4)


def test_rank_that_does_not_see_the_run_of_rank_0_is_an_error(
    tiny_recipe: Path, finished_run: Path, tmp_path: Path
) -> None:
    config = load_config(tiny_recipe)
    second = World(rank=1, size=2)
    agree_on_folder(second, config, RunFolder(finished_run))
    agree_on_folder(World(), config, RunFolder(tmp_path / "elsewhere"))
    other = load_config(tiny_recipe, overrides=["training.learning_rate=0.5"])
    for known, folder in ((config, tmp_path / "elsewhere"), (other, finished_run)):
        with pytest.raises(RunError, match=r": the run of rank 0 is not there; put the"):
            agree_on_folder(second, known, RunFolder(folder))


def test_hash_of_the_weights_covers_every_bit() -> None:
    made = learner()
    before = weights_sha256(made)
    last = [*made.model.parameters()][-1].detach().view(-1)
    value = float(last[-1])
    last[-1] = torch.nextafter(last[-1], torch.tensor(9.0))
    assert weights_sha256(made) != before
    last[-1] = value
    assert weights_sha256(made) == before


@pytest.mark.parametrize(
    ("max_updates", "max_epochs", "expected"), [(None, 3, 30), (2, 3, 2), (None, None, None)]
)
def test_most_updates_is_the_smaller_limit(
    max_updates: int | None, max_epochs: int | None, expected: int | None
) -> None:
    training = TrainingConfig(max_updates=max_updates, max_epochs=max_epochs, patience=1)
    assert most_updates(training, 10) == expected
