"""Checkpoints: the identity, whole or absent, and never a neighbour's."""

import errno
import json
import os
import shutil
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from mt.config import ModelConfig
from mt.errors import RunError
from mt.model.transformer import Transformer
from mt.training.checkpoint import MANIFEST, MODEL, OPTIMIZER, STATE, Checkpoints, is_valid
from mt.training.optimizer import build_optimizer, choose_precision
from mt.training.state import Ranked, TrainState
from mt.training.step import Learner, TrainingPass

CPU = torch.device("cpu")
CONFIG = ModelConfig(d_model=8, d_ff=8, heads=2, encoder_layers=1, decoder_layers=1)
FILES = [MODEL, OPTIMIZER, STATE, MANIFEST]
CHANGES = {"mkdir", "open", "write", "serialize_file", "chmod", "fsync", "rename", "replace"}
CHANGES |= {"unlink", "rmdir"}
"""The functions of the system, and of safetensors, by which a save changes the disk."""


def learner(seed: int, precision: str = "fp32") -> Learner:
    """A model that has taken a step, so that Adam has moments."""
    torch.manual_seed(seed)
    model = Transformer(CONFIG, source_vocabulary=9, target_vocabulary=9)
    optimizer = build_optimizer(model, CPU)
    made = Learner(
        model=model,
        training_pass=TrainingPass(model, 0.1),
        optimizer=optimizer,
        precision=choose_precision(precision, CPU),
        gradient_clip=1.0,
    )
    optimizer.param_groups[0]["lr"] = 0.01
    logits = model(torch.tensor([[5, 3]]), torch.tensor([[2, 6]]))
    made.precision.backward(logits.square().sum())
    made.precision.step(model, optimizer, 1.0)
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


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_save_and_resume_is_the_identity(checkpoints: Checkpoints) -> None:
    saved = learner(1, "fp16")
    state = TrainState(update=7, epoch=2, update_in_epoch=3, best=[Ranked(5, 1.5)], last=[7])
    saved.precision.scaler.update(1234.0)
    checkpoints.save(saved, state)
    loaded = learner(2, "fp16")
    assert checkpoints.resume(loaded) == state
    assert loaded.precision.scaler.get_scale() == 1234.0
    assert len(tensors(loaded)) == 4 * len(list(loaded.model.parameters()))
    assert same(loaded, saved)


def test_what_is_resumed_forgets_the_moments_that_it_had(checkpoints: Checkpoints) -> None:
    """As when a run goes back to where it had taken no update yet."""
    fresh = learner(1)
    fresh.optimizer.state.clear()
    checkpoints.save(fresh, TrainState())
    loaded = learner(2)
    checkpoints.resume(loaded)
    assert not any(loaded.optimizer.state.values())


def test_parameters_that_do_not_learn_have_no_moments(checkpoints: Checkpoints) -> None:
    saved, loaded = learner(1), learner(2)
    del saved.optimizer.state[saved.model.target_embedding.weight]
    checkpoints.save(saved, TrainState(update=1))
    checkpoints.resume(loaded)
    assert len(tensors(loaded)) == len(tensors(saved))
    assert same(loaded, saved)


def test_nothing_to_resume_is_none(checkpoints: Checkpoints) -> None:
    assert checkpoints.resume(learner(1)) is None
    assert not checkpoints.folder.exists()


# Damage.


def emptied(path: Path) -> None:
    path.write_bytes(b"")


def cut_short(path: Path) -> None:
    data = path.read_bytes()
    path.write_bytes(data[: len(data) * 9 // 10])


def flipped(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def longer(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b"\0")


def missing(path: Path) -> None:
    path.unlink()


def a_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


@pytest.mark.parametrize("harm", [emptied, cut_short, flipped, longer, missing, a_folder])
@pytest.mark.parametrize("file", FILES)
def test_a_damaged_checkpoint_is_told_and_the_one_before_is_resumed(
    harm: Callable[[Path], None],
    file: str,
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
    (told,) = caplog.messages
    path = checkpoints.path(3)
    assert told.startswith(f"{path}: the checkpoint is damaged ({file}: ")
    assert told.endswith(f"); resuming from {checkpoints.path(2)}")
    with pytest.raises(RunError, match=r"update-000000003: the checkpoint is damaged \("):
        checkpoints.weights(3)
    with pytest.raises(RunError, match=r"update-000000003: the checkpoint is damaged \("):
        checkpoints.average([2, 3])


@pytest.mark.parametrize(
    ("harm", "told"),
    [
        (missing, "missing"),
        (a_folder, r"([\d,]+ bytes instead of [\d,]+|not readable)"),
        (cut_short, r"[\d,]+ bytes instead of [\d,]+"),
        (flipped, "wrong SHA-256"),
    ],
)
def test_what_is_wrong_with_it_is_told(
    harm: Callable[[Path], None], told: str, checkpoints: Checkpoints
) -> None:
    checkpoints.save(learner(1), TrainState(update=1))
    harm(checkpoints.path(1) / MODEL)
    with pytest.raises(RunError, match=rf"is damaged \(model.safetensors: {told}\), and there is"):
        checkpoints.resume(learner(2))


@pytest.mark.parametrize("file", [STATE, MANIFEST])
def test_no_bit_can_turn_unseen(file: str, checkpoints: Checkpoints) -> None:
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


@pytest.mark.parametrize(
    "text", ["", "{}", "[]", "null", '{"state.json": 1}', '{"state.json": {}}']
)
def test_a_manifest_that_lists_nothing_is_damage(text: str, checkpoints: Checkpoints) -> None:
    checkpoints.save(learner(1), TrainState(update=1))
    (checkpoints.path(1) / MANIFEST).write_text(text)
    assert not is_valid(checkpoints.path(1))


def test_a_file_in_the_place_of_a_checkpoint_is_damage_and_gives_way(
    checkpoints: Checkpoints, caplog: pytest.LogCaptureFixture
) -> None:
    checkpoints.save(learner(1), TrainState(update=1))
    checkpoints.path(2).write_text("what is this?")
    assert checkpoints.resume(learner(9)) == TrainState(update=1)
    assert f"{checkpoints.path(2)}: the checkpoint is damaged" in caplog.messages[0]
    checkpoints.save(learner(2), TrainState(update=2))
    assert checkpoints.resume(learner(9)) == TrainState(update=2)


def test_what_may_not_be_read_is_not_called_damaged(
    checkpoints: Checkpoints, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoints.save(learner(1), TrainState(update=1))

    def refused(path: Path) -> str:
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    monkeypatch.setattr("mt.training.checkpoint.file_sha256", refused)
    with pytest.raises(PermissionError):
        checkpoints.resume(learner(2))


def test_with_nothing_whole_left_the_newest_is_named(checkpoints: Checkpoints) -> None:
    for update in (1, 2):
        checkpoints.save(learner(update), TrainState(update=update))
        missing(checkpoints.path(update) / STATE)
    with pytest.raises(RunError) as told:
        checkpoints.resume(learner(3))
    assert str(told.value) == (
        f"{checkpoints.path(2)}: the checkpoint is damaged (state.json: missing), and there is no "
        "earlier one to resume from; train a new run with --run"
    )


# Saving.


def dies_at(step: int, action: Callable[[], object]) -> bool:
    """Run an action in a process that dies, as by kill -9, before its change `step` of the disk.

    Tells whether it died; from some step on, it comes to its end.
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
    """Yield the folder as it was at first, again and again."""
    shutil.copytree(original, place / "original")
    while True:
        shutil.rmtree(original)
        shutil.copytree(place / "original", original)
        yield original


@pytest.mark.skipif(sys.platform == "win32", reason="needs fork")
def test_killed_at_any_step_a_save_leaves_the_old_or_the_new_one(
    checkpoints: Checkpoints, tmp_path: Path
) -> None:
    """Also where it replaces a checkpoint of the same update, the only one that there is."""
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
    assert found.count(2) > 5  # among them those whose new checkpoint had no name yet


@pytest.mark.skipif(sys.platform == "win32", reason="needs fork")
def test_killed_while_it_takes_back_a_save_that_failed_at_its_end(
    checkpoints: Checkpoints, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Half taken back, the new one must not be taken for the checkpoint of this update."""
    old = learner(1)
    checkpoints.save(old, TrainState(update=7))

    def fail(folder: Path) -> None:
        raise OSError(errno.EIO, "Input/output error")

    def save() -> None:
        with pytest.raises(OSError, match="Input/output"):
            checkpoints.save(learner(2), TrainState(update=7))

    monkeypatch.setattr("mt.training.checkpoint.sync_folder", fail)
    for step, _ in enumerate(copies(checkpoints.folder, tmp_path), 20):  # the rest is tested above
        died = dies_at(step, save)
        assert is_valid(checkpoints.path(7)), step
        if not died:
            break
    assert step > 30
    assert checkpoints.path(7).name == "update-000000007"


@pytest.mark.skipif(sys.platform == "win32", reason="needs fork")
def test_killed_at_any_step_pruning_loses_nothing_that_is_kept(
    checkpoints: Checkpoints, tmp_path: Path
) -> None:
    for update in (1, 2, 3):
        checkpoints.save(learner(update), TrainState(update=update))
    state = TrainState(update=3, best=[Ranked(2, 9.0)], last=[3])
    for step, _ in enumerate(copies(checkpoints.folder, tmp_path)):
        died = dies_at(step, lambda: checkpoints.prune(state))
        assert is_valid(checkpoints.path(2))
        assert is_valid(checkpoints.path(3))
        checkpoints.prune(state)
        assert checkpoints.updates() == [2, 3]
        assert not (checkpoints.path(2) / OPTIMIZER).exists()
        if not died:
            break
    assert step > 5


def failing_at(step: int, patch: pytest.MonkeyPatch) -> list[str]:
    """Have the disk be full from change `step` on; return the list of the changes tried."""
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


def test_a_full_disk_at_any_step_leaves_what_was_there(
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
        # Of the last steps the new one may be there, whole, though the disk refused to name it.
        assert state.epoch == 2 or contents(checkpoints.folder) == before
        found.append(state.epoch)
    assert found.count(1) > 8
    assert found == sorted(found)


def test_what_safetensors_tells_in_words_becomes_a_systems_error(
    checkpoints: Checkpoints, monkeypatch: pytest.MonkeyPatch
) -> None:
    resource = pytest.importorskip("resource")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    checkpoints.save(learner(1), TrainState(update=1))
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
    try:
        with pytest.raises(OSError, match="File too large") as told:
            checkpoints.save(learner(2), TrainState(update=2))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert told.value.errno == errno.EFBIG
    assert told.value.filename == str(checkpoints.folder / "update-000000002")
    assert checkpoints.updates() == [1]


def test_too_little_space_is_told_before_anything_is_written(
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
    assert checkpoints.updates() == [1, 2]


def test_a_file_system_that_tells_no_sizes_is_written_to(
    checkpoints: Checkpoints, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage(checkpoints.folder.parent)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(total=0, free=0))
    checkpoints.save(learner(1), TrainState(update=1))
    assert checkpoints.updates() == [1]


def test_a_run_folder_that_was_removed_does_not_come_back(checkpoints: Checkpoints) -> None:
    checkpoints.save(learner(1), TrainState(update=1))
    shutil.rmtree(checkpoints.folder.parent)
    with pytest.raises(FileNotFoundError):
        checkpoints.save(learner(1), TrainState(update=2))
    assert not checkpoints.folder.parent.exists()


def test_a_checkpoint_holds_tensors_and_json_alone(checkpoints: Checkpoints) -> None:
    checkpoints.save(learner(1), TrainState(update=1))
    assert {path.name for path in checkpoints.path(1).iterdir()} == set(FILES)


def test_files_are_as_readable_as_the_users_umask_has_it(checkpoints: Checkpoints) -> None:
    before = os.umask(0o027)
    try:
        checkpoints.save(learner(1), TrainState(update=1))
    finally:
        os.umask(before)
    modes = {path.name: path.stat().st_mode & 0o777 for path in checkpoints.path(1).iterdir()}
    assert modes == dict.fromkeys(FILES, 0o640)


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="needs Linux's /proc")
def test_a_resumed_run_holds_no_file_of_its_checkpoint(checkpoints: Checkpoints) -> None:
    """Or its space would not be free once it is deleted, and some systems would not delete it."""
    checkpoints.save(learner(1), TrainState(update=1))
    resumed = learner(2)
    checkpoints.resume(resumed)
    checkpoints.average([1])
    assert str(checkpoints.folder) not in Path("/proc/self/maps").read_text()


# What is kept.


def test_pruning_keeps_the_best_weights_and_the_last_checkpoints(checkpoints: Checkpoints) -> None:
    for update in (1, 2, 3, 4):
        checkpoints.save(learner(update), TrainState(update=update))
    state = TrainState(update=4, best=[Ranked(2, 9.0), Ranked(4, 8.0)], last=[4])
    checkpoints.prune(state)
    assert checkpoints.updates() == [2, 4]
    assert not (checkpoints.path(2) / OPTIMIZER).exists()
    assert (checkpoints.path(4) / OPTIMIZER).exists()
    assert is_valid(checkpoints.path(2))
    assert checkpoints.weights(2).keys() == checkpoints.weights(4).keys()


def test_pruning_does_not_make_a_damaged_checkpoint_whole(checkpoints: Checkpoints) -> None:
    for update in (1, 2):
        checkpoints.save(learner(update), TrainState(update=update))
    flipped(checkpoints.path(1) / MODEL)
    checkpoints.prune(TrainState(update=2, best=[Ranked(1, 9.0)], last=[2]))
    assert not is_valid(checkpoints.path(1))


def test_the_average_is_the_mean_of_the_weights(checkpoints: Checkpoints) -> None:
    learners = {update: learner(update) for update in (1, 2, 3)}
    for update, made in learners.items():
        checkpoints.save(made, TrainState(update=update))
    mean = checkpoints.average([1, 3])
    assert mean.keys() == dict(learners[1].model.named_parameters()).keys()
    for name, tensor in mean.items():
        one, other = (dict(learners[u].model.named_parameters())[name] for u in (1, 3))
        torch.testing.assert_close(tensor, (one.detach() + other.detach()) / 2)
        assert tensor.dtype == torch.float32


def test_other_folders_beside_the_checkpoints_are_left_alone(checkpoints: Checkpoints) -> None:
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


def test_checkpoints_without_an_optimiser_never_make_the_run_begin_anew(
    checkpoints: Checkpoints,
) -> None:
    checkpoints.save(learner(1), TrainState(update=1))
    checkpoints.prune(TrainState(best=[Ranked(1, 0.0)]))
    with pytest.raises(RunError, match=r"update-000000001: the checkpoint has no optimizer"):
        checkpoints.resume(learner(2))
