"""Checkpoints: valid or absent after a kill at any step, and identical when read back."""

import errno
import json
import os
import re
import shutil
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from mt.errors import RunError
from mt.files import hash_file
from mt.training.checkpoint import MANIFEST, MODEL, OPTIMIZER, STATE, Checkpoints, is_valid
from mt.training.state import Ranked, TrainState
from mt.training.step import Learner
from tests import factories
from tests.factories import contents, flip_bit

needs_fork = pytest.mark.skipif(sys.platform == "win32", reason="needs fork")
FILES = [MODEL, OPTIMIZER, STATE, MANIFEST]
CHANGES = {"mkdir", "open", "write", "serialize_file", "chmod", "fsync", "rename", "replace"}
CHANGES |= {"unlink", "rmdir"}
"""The functions of the system and of safetensors by which a save changes the disk."""


def learner(seed: int, precision: str = "fp32") -> Learner:
    """Return a learner that has taken a step, so that Adam has moments."""
    model = factories.transformer(vocabulary=9, seed=seed, d_model=8, d_ff=8)
    made = factories.learner(model, precision=precision)
    made.optimizer.param_groups[0]["lr"] = 0.01
    logits = model(torch.tensor([[5, 3]]), torch.tensor([[2, 6]]))
    made.precision.backward(logits.square().sum())
    made.precision.step(made.optimizer, torch.tensor(1.0))
    return made


def tensors(made: Learner) -> list[Tensor]:
    parameters = list(made.model.parameters())
    moments = [made.optimizer.state.get(parameter, {}) for parameter in parameters]
    return [
        *(parameter.detach().clone() for parameter in parameters),
        *(tensor for entry in moments for _, tensor in sorted(entry.items())),
    ]


def same(one: Learner, other: Learner) -> bool:
    return all(torch.equal(a, b) for a, b in zip(tensors(one), tensors(other), strict=True))


@pytest.fixture
def checkpoints(tmp_path: Path) -> Checkpoints:
    return Checkpoints(tmp_path / "run" / "checkpoints")


@pytest.fixture(autouse=True)
def _run_folder(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()


def test_resumed_checkpoint_is_what_was_saved(checkpoints: Checkpoints) -> None:
    saved = learner(1, "fp16")
    assert checkpoints.resume(saved) is None
    assert not checkpoints.folder.exists()
    state = TrainState(update=7, epoch=2, update_in_epoch=3, best=[Ranked(5, 1.5, 1.0)], last=[7])
    saved.precision.scaler.update(1234.0)
    checkpoints.save(saved, state)
    loaded = learner(2, "fp16")
    assert checkpoints.resume(loaded) == state
    assert loaded.precision.scaler.get_scale() == 1234.0
    assert len(tensors(loaded)) == 4 * len(list(loaded.model.parameters()))
    assert same(loaded, saved)


def cut_short(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-10])


def missing(path: Path) -> None:
    path.unlink()


def a_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


HARMS = [
    (cut_short, MODEL, "bytes instead of"),
    (flip_bit, MODEL, "wrong SHA-256"),
    (a_folder, OPTIMIZER, "(bytes instead of|not readable)"),
    *((missing, file, "missing") for file in FILES),
    (flip_bit, MANIFEST, ""),
]


@pytest.mark.parametrize(("harm", "file", "problem"), HARMS)
def test_damaged_checkpoint_is_reported_and_the_one_before_resumed(
    harm: Callable[[Path], None],
    file: str,
    problem: str,
    checkpoints: Checkpoints,
    caplog: pytest.LogCaptureFixture,
) -> None:
    before, resumed = learner(2), learner(9)
    checkpoints.save(before, TrainState(update=2))
    checkpoints.save(learner(3), TrainState(update=3))
    harm(checkpoints.path(3) / file)
    assert not is_valid(checkpoints.path(3))
    assert checkpoints.resume(resumed) == TrainState(update=2)
    assert same(resumed, before)
    (message,) = caplog.messages
    damaged = rf"update-000000003: the checkpoint is damaged \(.*{file}: .*{problem}"
    assert re.search(damaged, message)
    assert message.endswith(f"; resuming from {checkpoints.path(2)}")
    with pytest.raises(RunError, match=damaged):
        checkpoints.average([2, 3])


@pytest.mark.parametrize("file", [STATE, MANIFEST])
def test_every_flipped_bit_is_detected(file: str, checkpoints: Checkpoints) -> None:
    checkpoints.save(learner(1), TrainState(update=1))
    path = checkpoints.path(1) / file
    whole = path.read_bytes()
    for place in range(len(whole)):
        data = bytearray(whole)
        data[place] ^= 1 << (place % 8)
        path.write_bytes(data)
        assert not is_valid(checkpoints.path(1)), place
    path.write_bytes(whole)
    assert is_valid(checkpoints.path(1))


def test_missing_permission_is_not_damage(
    checkpoints: Checkpoints, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoints.save(learner(1), TrainState(update=1))

    def refused(path: Path) -> str:
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    monkeypatch.setattr("mt.training.checkpoint.hash_file", refused)
    with pytest.raises(PermissionError):
        checkpoints.resume(learner(2))


def dies_at(step: int, action: Callable[[], object]) -> bool:
    """Run an action in a process that dies before its change `step` of the disk.

    Return False where the action has ended before.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of forks beside threads
        child = os.fork()
    if child == 0:
        changes = iter(range(step))

        def watch(frame: object, event: str, function: Any) -> None:
            if event == "c_call" and function.__name__ in CHANGES and next(changes, None) is None:
                os._exit(9)

        sys.setprofile(watch)
        action()
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9


def copies(original: Path, place: Path) -> Iterator[Path]:
    """Yield the folder in its original state, again and again."""
    shutil.copytree(original, place / "original")
    while True:
        shutil.rmtree(original)
        shutil.copytree(place / "original", original)
        yield original


@needs_fork
def test_save_killed_at_any_step_leaves_the_old_or_the_new_checkpoint(
    checkpoints: Checkpoints, tmp_path: Path
) -> None:
    old, new, resumed = learner(1), learner(2), learner(3)
    checkpoints.save(old, TrainState(update=7, epoch=1))
    found = []
    for step, folder in enumerate(copies(checkpoints.folder, tmp_path)):
        died = dies_at(step, lambda: checkpoints.save(new, TrainState(update=7, epoch=2)))
        assert checkpoints.updates() == [7]
        state = checkpoints.resume(resumed)
        assert state in (TrainState(update=7, epoch=1), TrainState(update=7, epoch=2))
        assert same(resumed, old if state.epoch == 1 else new)
        found.append(state.epoch)
        checkpoints.save(old, TrainState(update=8))
        names = [checkpoints.path(update).name for update in (7, 8)]
        assert sorted(path.name for path in folder.iterdir()) == names
        assert is_valid(checkpoints.path(7))
        if not died:
            break
    assert len(found) > 25
    assert found == sorted(found)
    assert (found[0], found[-1]) == (1, 2)
    assert found.count(2) > 5  # some of them with a new checkpoint that has no name yet


@needs_fork
def test_pruning_killed_at_any_step_loses_nothing_that_is_kept(
    checkpoints: Checkpoints, tmp_path: Path
) -> None:
    for update in (1, 2, 3):
        checkpoints.save(learner(update), TrainState(update=update))
    state = TrainState(update=3, best=[Ranked(2, 9.0, 1.0)], last=[3])
    for step, _ in enumerate(copies(checkpoints.folder, tmp_path)):
        died = dies_at(step, lambda: checkpoints.prune(state))
        assert is_valid(checkpoints.path(2))
        assert is_valid(checkpoints.path(3))
        checkpoints.prune(state)
        assert checkpoints.updates() == [2, 3]
        assert not (checkpoints.path(2) / OPTIMIZER).exists()
        assert (checkpoints.path(3) / OPTIMIZER).exists()
        assert checkpoints.average([2]).keys() == checkpoints.average([3]).keys()
        if not died:
            break
    assert step > 5


def failing_at(step: int, patch: pytest.MonkeyPatch) -> list[str]:
    """Let the disk be full from change `step` on; return the list of attempted changes."""
    tried: list[str] = []

    def wrap(owner: Any, name: str) -> None:
        original = getattr(owner, name)

        def fail(*arguments: Any, **named: Any) -> Any:
            tried.append(name)
            if len(tried) > step and name not in {"unlink", "rmdir"}:
                raise OSError(errno.ENOSPC, "No space left on device")
            return original(*arguments, **named)

        patch.setattr(owner, name, fail)

    for name in ("mkdir", "fsync", "rename", "replace", "unlink", "rmdir"):
        wrap(os, name)
    wrap(sys.modules["mt.training.checkpoint"], "save_file")
    return tried


def test_full_disk_at_any_step_keeps_the_old_checkpoint(
    checkpoints: Checkpoints, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    checkpoints.save(learner(1), TrainState(update=7, epoch=1))
    before, found = contents(checkpoints.folder), []
    for step, _ in enumerate(copies(checkpoints.folder, tmp_path)):
        with monkeypatch.context() as patch:
            failing_at(step, patch)
            try:
                checkpoints.save(learner(2), TrainState(update=7, epoch=2))
                break
            except OSError as error:
                named = str(checkpoints.folder / "update-000000007")
                assert (error.errno, error.filename) == (errno.ENOSPC, named)
        state = checkpoints.resume(learner(3))
        assert state in (TrainState(update=7, epoch=1), TrainState(update=7, epoch=2))
        # In the last steps the new one may be valid, though the disk refused to rename it.
        assert state.epoch == 2 or contents(checkpoints.folder) == before
        found.append(state.epoch)
    assert found.count(1) > 8
    assert found == sorted(found)


def test_too_little_space_is_an_error_before_anything_is_written(
    checkpoints: Checkpoints, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoints.save(learner(1), TrainState(update=1))
    taken = sum(len(data) for data in contents(checkpoints.folder).values())
    before = contents(checkpoints.folder)
    usage = shutil.disk_usage(checkpoints.folder)
    free = [taken - 1]
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=free[0]))
    with pytest.raises(RunError) as told:
        checkpoints.save(learner(2), TrainState(update=1))
    assert str(told.value).startswith(
        f"{checkpoints.folder}: too little space on the disk: a checkpoint needs 0.1 MiB, 0.0 MiB "
        "are free; free some space and "
    )
    assert contents(checkpoints.folder) == before
    free[0] = taken + 2**17  # what is asked for is no more than that above what is needed
    checkpoints.save(learner(2), TrainState(update=2))
    unknown = usage._replace(total=0, free=0)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: unknown)
    checkpoints.save(learner(2), TrainState(update=3))
    assert checkpoints.updates() == [1, 2, 3]


def test_pruning_does_not_make_a_damaged_checkpoint_valid(checkpoints: Checkpoints) -> None:
    for update in (1, 2):
        checkpoints.save(learner(update), TrainState(update=update))
    flip_bit(checkpoints.path(1) / MODEL)
    checkpoints.prune(TrainState(update=2, best=[Ranked(1, 9.0, 1.0)], last=[2]))
    assert not is_valid(checkpoints.path(1))


def test_other_folders_are_not_touched(checkpoints: Checkpoints) -> None:
    checkpoints.save(learner(1), TrainState(update=1))
    others = [checkpoints.folder / f"update-000000001{end}" for end in (".bak", "-copy")]
    others.append(checkpoints.folder / ".update-000000001.mine")
    for other in others:
        other.mkdir()
    assert checkpoints.updates() == [1]
    checkpoints.prune(TrainState(update=2, last=[2]))
    checkpoints.save(learner(1), TrainState(update=3))
    assert checkpoints.updates() == [3]
    assert all(other.is_dir() for other in others)


def test_checkpoint_without_optimizer_cannot_be_resumed(checkpoints: Checkpoints) -> None:
    checkpoints.save(learner(1), TrainState(update=1))
    checkpoints.prune(TrainState(best=[Ranked(1, 0.0, 1.0)]))
    with pytest.raises(RunError):
        checkpoints.resume(learner(2))


@pytest.mark.parametrize(
    ("name", "tensor"),
    [
        ("adam.x.step", torch.ones(())),
        ("learning.x", torch.ones(1)),
        ("adam.{}.exp_avg", torch.ones(1)),
    ],
)
def test_tensors_of_another_optimizer_are_an_error(
    name: str, tensor: Tensor, checkpoints: Checkpoints
) -> None:
    made = learner(1)
    checkpoints.save(made, TrainState(update=1))
    path = checkpoints.path(1) / OPTIMIZER
    name = name.format(next(iter(dict(made.model.named_parameters()))))
    save_file({**load_file(path), name: tensor}, path)
    manifest = json.loads(path.with_name(MANIFEST).read_text())
    manifest[OPTIMIZER] = {"bytes": path.stat().st_size, "sha256": hash_file(path)}
    path.with_name(MANIFEST).write_text(json.dumps(manifest))
    with pytest.raises(RunError, match=f"{OPTIMIZER}: does not fit the config: `{name}`"):
        checkpoints.resume(learner(2))
