"""Checkpoints: the identity, whole or absent, and never a neighbour's."""

from pathlib import Path

import pytest
import torch

from mt.config import ModelConfig
from mt.errors import RunError
from mt.model.transformer import Transformer
from mt.training.checkpoint import MODEL, OPTIMIZER, STATE, Checkpoints
from mt.training.optimizer import build_optimizer
from mt.training.precision import choose_precision
from mt.training.state import Ranked, TrainState
from mt.training.update import Learner

CPU = torch.device("cpu")
CONFIG = ModelConfig(d_model=8, d_ff=8, heads=2, encoder_layers=1, decoder_layers=1)


def learner(seed: int, precision: str = "fp32") -> Learner:
    """A model that has taken a step, so that Adam has moments."""
    torch.manual_seed(seed)
    model = Transformer(CONFIG, source_vocabulary=9, target_vocabulary=9)
    optimizer = build_optimizer(model, CPU)
    made = Learner(model, optimizer, choose_precision(precision, CPU), 0.1, 1.0)
    optimizer.param_groups[0]["lr"] = 0.01
    logits = model(torch.tensor([[5, 3]]), torch.tensor([[2, 6]]))
    made.precision.backward(logits.square().sum())
    made.precision.step(model, optimizer, 1.0)
    return made


def tensors(made: Learner) -> list[torch.Tensor]:
    moments = [t for entry in made.optimizer.state.values() for _, t in sorted(entry.items())]
    return [parameter.detach().clone() for parameter in made.model.parameters()] + moments


def test_save_and_resume_is_the_identity(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path / "checkpoints")
    saved = learner(1, "fp16")
    state = TrainState(update=7, epoch=2, update_in_epoch=3, best=[Ranked(5, 1.5)], last=[7])
    saved.precision.scaler.update(1234.0)
    checkpoints.save(saved, state)
    drawn = torch.rand(3)

    loaded = learner(2, "fp16")
    assert checkpoints.resume(loaded) == state
    assert torch.equal(torch.rand(3), drawn)
    assert loaded.precision.scaler.get_scale() == 1234.0
    for one, other in zip(tensors(loaded), tensors(saved), strict=True):
        assert torch.equal(one, other)


def test_the_newest_checkpoint_that_is_whole_is_resumed(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path / "checkpoints")
    for update in (1, 2, 3):
        checkpoints.save(learner(update), TrainState(update=update))
    damaged = checkpoints.path(3) / OPTIMIZER
    damaged.write_bytes(damaged.read_bytes()[:-1] + b"\x55")
    resumed = checkpoints.resume(learner(9))
    assert resumed is not None
    assert resumed.update == 2
    (checkpoints.path(2) / STATE).write_text("{")
    resumed = checkpoints.resume(learner(9))
    assert resumed is not None
    assert resumed.update == 1
    with pytest.raises(RunError, match="update-000000002: the checkpoint is damaged"):
        checkpoints.weights(2)


def test_nothing_to_resume_is_none(tmp_path: Path) -> None:
    assert Checkpoints(tmp_path / "checkpoints").resume(learner(1)) is None


def test_a_write_that_fails_leaves_no_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoints = Checkpoints(tmp_path / "checkpoints")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("mt.training.checkpoint.write_json", full)
    with pytest.raises(OSError, match="No space"):
        checkpoints.save(learner(1), TrainState(update=1))
    assert list(checkpoints.folder.iterdir()) == []


def test_pruning_keeps_the_best_weights_and_the_last_checkpoints(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path / "checkpoints")
    for update in (1, 2, 3, 4):
        checkpoints.save(learner(update), TrainState(update=update))
    state = TrainState(update=4, best=[Ranked(2, 9.0), Ranked(4, 8.0)], last=[4])
    checkpoints.prune(state)
    assert checkpoints.updates() == [2, 4]
    assert not (checkpoints.path(2) / OPTIMIZER).exists()
    assert (checkpoints.path(4) / OPTIMIZER).exists()
    assert checkpoints.weights(2).keys() == checkpoints.weights(4).keys()


def test_the_average_is_the_mean_of_the_weights(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path / "checkpoints")
    learners = {update: learner(update) for update in (1, 2, 3)}
    for update, made in learners.items():
        checkpoints.save(made, TrainState(update=update))
    mean = checkpoints.average([1, 3])
    for name, tensor in mean.items():
        one, other = (dict(learners[u].model.named_parameters())[name] for u in (1, 3))
        torch.testing.assert_close(tensor, (one.detach() + other.detach()) / 2)
        assert tensor.dtype == torch.float32


def test_a_checkpoint_holds_tensors_and_json_alone(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path / "checkpoints")
    checkpoints.save(learner(1), TrainState(update=1))
    names = {path.name for path in checkpoints.path(1).iterdir()}
    assert names == {MODEL, OPTIMIZER, STATE}


def test_other_folders_beside_the_checkpoints_are_left_alone(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path / "checkpoints")
    checkpoints.save(learner(1), TrainState(update=1))
    copies = [checkpoints.folder / f"update-000000001{end}" for end in (".bak", "-copy")]
    for copy in copies:
        copy.mkdir()
    assert checkpoints.updates() == [1]
    checkpoints.prune(TrainState(update=2, last=[2]))
    assert all(copy.is_dir() for copy in copies)


def test_checkpoints_without_an_optimiser_never_make_the_run_begin_anew(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path / "checkpoints")
    checkpoints.save(learner(1), TrainState(update=1))
    (checkpoints.path(1) / OPTIMIZER).unlink()
    with pytest.raises(RunError, match=r"update-000000001: the checkpoint has no optimizer"):
        checkpoints.resume(learner(2))
