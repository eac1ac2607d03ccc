"""Checkpoints: whole or absent, checked when read, nothing in them that could run code.

A checkpoint is a folder `update-000001000` with

- model.safetensors: the weights, with `training.ema_decay` their moving average;
- optimizer.safetensors: the learner's other tensors, needed only to go on training;
- state.json: where the run stands, and the scale of fp16;
- manifest.json: sizes and SHA-256 of these files, written last.

It is written under the name `.update-000001000` and counts from the moment its manifest is there:
an older checkpoint of the same update is deleted only then, and the new one takes its name.
"""

import errno
import json
import logging
import re
import shutil
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from mt.errors import RunError
from mt.files import file_sha256, naming, sync, sync_folder, write_json
from mt.model.weights import load_parameters, parameter_tensors
from mt.training.state import TrainState
from mt.training.step import Learner

MANIFEST = "manifest.json"
# Reading meets these where a file is gone, is none, or the disk cannot give it back. Others, such
# as a missing permission, say nothing of the file.
_DAMAGE = {errno.ENOENT, errno.EISDIR, errno.ENOTDIR, errno.EIO}


@dataclass(frozen=True)
class Entry:
    """What was written into a file."""

    bytes: int
    sha256: str


def write_manifest(folder: Path, names: Iterable[str]) -> None:
    """List the files `names` of a folder as they are; written last, it makes the folder whole."""
    _write(folder, {name: _entry(folder / name) for name in names})


def listed_files(folder: Path) -> dict[str, Entry]:
    """Return what a folder should hold; raise ValueError where its manifest is damaged."""
    try:
        written = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        entries = {str(name): Entry(**entry) for name, entry in written.items()}
    except (TypeError, AttributeError) as error:
        raise ValueError(str(error)) from None
    if not entries:
        raise ValueError("it lists no file")
    return entries


def damage(folder: Path) -> str | None:
    """Say which file of a folder is not as its manifest has it, and why; None if all are."""
    name = MANIFEST
    try:
        for name, entry in listed_files(folder).items():
            found = (folder / name).stat().st_size
            if found != entry.bytes:
                return f"{name}: {found:,} bytes instead of {entry.bytes:,}"
            if file_sha256(folder / name) != entry.sha256:
                return f"{name}: not what was written"
    except OSError as error:
        if error.errno not in _DAMAGE:
            raise
        return f"{name}: {'missing' if error.errno == errno.ENOENT else 'not readable'}"
    except ValueError:
        return f"{MANIFEST}: not what was written"
    return None


def leave_out(folder: Path, name: str) -> None:
    """Delete a file from a folder that stays whole without it; of a damaged one nothing."""
    try:
        entries = listed_files(folder)
    except (OSError, ValueError):
        return
    if entries.pop(name, None) is not None:
        _write(folder, entries)
    (folder / name).unlink(missing_ok=True)


def _entry(path: Path) -> Entry:
    return Entry(bytes=path.stat().st_size, sha256=file_sha256(path))


def _write(folder: Path, entries: dict[str, Entry]) -> None:
    write_json(folder / MANIFEST, {name: asdict(entry) for name, entry in entries.items()})


@dataclass(frozen=True)
class Group:
    """Tensors by name: how to take them from a learner, and how to put them back."""

    take: Callable[[Learner], dict[str, Tensor]]
    restore: Callable[[Learner, dict[str, Tensor]], None]


def kept_weights(learner: Learner) -> dict[str, Tensor]:
    """Return the weights that are validated and averaged, on the CPU."""
    averages = {name: each.cpu() for name, each in learner.average.averages().items()}
    return {**parameter_tensors(learner.model), **averages}


def other_tensors(learner: Learner) -> dict[str, Tensor]:
    """Return the tensors of all groups on the CPU, each under `<group>.<its name there>`."""
    return {
        f"{name}.{key}": tensor.detach().cpu()
        for name, group in GROUPS.items()
        for key, tensor in group.take(learner).items()
    }


def restore_other_tensors(learner: Learner, tensors: dict[str, Tensor]) -> None:
    """Put back what `other_tensors` returned; `tensors` themselves are copied."""
    for name, group in GROUPS.items():
        prefix = f"{name}."
        own = {key.removeprefix(prefix): tensors[key] for key in tensors if key.startswith(prefix)}
        group.restore(learner, own)


def _moments(learner: Learner) -> dict[str, Tensor]:
    """Return Adam's tensors as `<parameter>.<kind>`; a parameter that does not learn has none."""
    return {
        f"{name}.{kind}": tensor
        for name, parameter in learner.model.named_parameters()
        for kind, tensor in learner.optimizer.state.get(parameter, {}).items()
    }


def _restore_moments(learner: Learner, tensors: dict[str, Tensor]) -> None:
    parameters = dict(learner.model.named_parameters())
    learner.optimizer.state.clear()
    for key, tensor in tensors.items():
        name, _, kind = key.rpartition(".")
        parameter = parameters[name]
        # Adam's step counter stays on the CPU where the optimiser is not fused. A copy: a tensor
        # that was loaded is a view of its file, whose space a deletion would not make free.
        device = "cpu" if kind == "step" and parameter.device.type == "mps" else parameter.device
        learner.optimizer.state[parameter][kind] = tensor.to(device, copy=True)


GROUPS = {
    "learning": Group(
        lambda learner: learner.average.weights(),
        lambda learner, tensors: learner.average.restore(tensors),
    ),
    "adam": Group(_moments, _restore_moments),
}
"""What a learner keeps between two updates; one row for each kind of tensor.

No random state is among it: what an update draws follows from the seed and its number.
"""
MODEL = "model.safetensors"
OPTIMIZER = "optimizer.safetensors"
STATE = "state.json"
_NAME = re.compile(r"\.?update-(\d{9,})")
# Of a checkpoint besides its numbers: a tensor's entry in the header of its file, and state.json.
_BYTES_PER_TENSOR = 256
_OTHER_BYTES = 2**16
_logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Checkpoints:
    """The checkpoints of one run."""

    folder: Path

    def path(self, update: int) -> Path:
        """Return the folder of the checkpoint after `update`."""
        unnamed = self._unnamed(update)
        return unnamed if (unnamed / MANIFEST).exists() else self._named(update)

    def save(self, learner: Learner, state: TrainState) -> None:
        """Write a checkpoint under a temporary name, wait for the disk, then name it.

        Raises RunError where the file system has too little space for it, OSError where the disk
        refuses; in both cases what was there stays as it was.
        """
        files = {MODEL: kept_weights(learner), OPTIMIZER: other_tensors(learner)}
        self._make_folder()
        self._settle()
        self._require_space([tensor for tensors in files.values() for tensor in tensors.values()])
        temporary = self._unnamed(state.update)
        with naming(self._named(state.update), instead_of=temporary):
            try:
                temporary.mkdir()
                for name, tensors in files.items():
                    save_tensors(tensors, temporary / name)
                    sync(temporary / name)
                scale = learner.precision.scaler.state_dict()
                write_json(temporary / STATE, {"state": state.as_json(), "scaler": scale})
                write_manifest(temporary, [*files, STATE])
                sync_folder(self.folder)
            except BaseException:
                _discard(temporary)
                raise
            self._name(temporary)

    def updates(self) -> list[int]:
        """Return the updates that have a checkpoint, oldest first."""
        found = {int(match[1]) for match in map(_NAME.fullmatch, self._names()) if match}
        return sorted(update for update in found if self.path(update).exists())

    def resume(self, learner: Learner, among: Iterable[int] | None = None) -> TrainState | None:
        """Load the newest checkpoint that is whole into `learner`; None where there is none at all.

        `among` names the updates of those that may be; otherwise it may be any.

        Damaged ones are told; where no other is left to go on from, they are a RunError. So is one
        that another version of mt has written.
        """
        problems = []
        for update in sorted(self.updates() if among is None else among, reverse=True):
            path = self.path(update)
            _refuse_other_versions(path)
            if harm := damage(path):
                problems.append(f"{path}: the checkpoint is damaged ({harm})")
            elif OPTIMIZER in listed_files(path):
                for problem in problems:
                    _logger.warning("%s; going on from %s", problem, path)
                return _read(path, learner)
            else:
                problems.append(f"{path}: the checkpoint has no {OPTIMIZER}")
        if problems:
            raise RunError(
                f"{problems[0]}, and there is no earlier one to go on from; train a new run "
                "with --run"
            )
        return None

    def prune(self, state: TrainState) -> None:
        """Delete what is neither among the best nor the last; of the best keep only the weights."""
        best = {ranked.update for ranked in state.best}
        resumable = {*state.last, state.refuge}
        for update in self.updates():
            if update not in best and update not in resumable:
                _discard(self.path(update))
            elif update not in resumable:
                leave_out(self.path(update), OPTIMIZER)

    def weights(self, update: int) -> dict[str, Tensor]:
        """Return the weights of one checkpoint; a damaged one is a RunError."""
        weights: dict[str, Tensor] = load_file(self._whole_path(update) / MODEL)
        return weights

    def average(self, updates: list[int]) -> dict[str, Tensor]:
        """Return the mean of the weights of several checkpoints (Vaswani et al. 2017, 6.1).

        Tensor by tensor, so that it takes the memory of one model. A damaged one is a RunError.
        """
        paths = [self._whole_path(update) for update in updates]
        with ExitStack() as stack:
            files = [stack.enter_context(safe_open(path / MODEL, "pt")) for path in paths]
            names = files[0].keys()
            return {name: _mean([file.get_tensor(name) for file in files]) for name in names}

    def _whole_path(self, update: int) -> Path:
        path = self.path(update)
        if harm := damage(path):
            raise RunError(f"{path}: the checkpoint is damaged ({harm})")
        return path

    def _named(self, update: int) -> Path:
        return self.folder / f"update-{update:09d}"

    def _unnamed(self, update: int) -> Path:
        return self.folder / f".update-{update:09d}"

    def _names(self) -> list[str]:
        return [path.name for path in self.folder.glob("*")]

    def _make_folder(self) -> None:
        """Make the folder in a run that is there; one that was removed is not to come back."""
        if not self.folder.is_dir():
            self.folder.mkdir()
            sync_folder(self.folder.parent)

    def _settle(self) -> None:
        """Name the checkpoint that a killed program left whole but unnamed; delete its remains."""
        for name in self._names():
            path = self.folder / name
            if name.startswith(".") and _NAME.fullmatch(name):
                if damage(path):
                    _discard(path)
                else:
                    self._name(path)

    def _name(self, unnamed: Path) -> None:
        """Put a whole checkpoint in the place of what has its name."""
        path = unnamed.with_name(unnamed.name.removeprefix("."))
        _discard(path)
        unnamed.rename(path)
        sync_folder(self.folder)

    def _require_space(self, tensors: list[Tensor]) -> None:
        """Raise RunError where the file system is too full for a checkpoint of these tensors."""
        needed = sum(tensor.nbytes + _BYTES_PER_TENSOR for tensor in tensors) + _OTHER_BYTES
        usage = shutil.disk_usage(self.folder)
        if usage.total and usage.free < needed:  # some file systems tell no sizes at all
            raise RunError(
                f"{self.folder}: too little space on the disk: a checkpoint needs "
                f"{needed / 2**20:,.1f} MiB, {usage.free / 2**20:,.1f} MiB are free; make room and "
                "give the same command again"
            )


def is_whole(path: Path) -> bool:
    """Tell whether a checkpoint's files are those that were written."""
    return damage(path) is None


def save_tensors(tensors: dict[str, Tensor], path: Path) -> None:
    """Write a safetensors file, as readable to others as the folder that it lies in.

    The library takes no memory for it, but tells what the disk refuses in words alone, and its
    files can be read by their owner alone.
    """
    try:
        save_file(tensors, path)
    except SafetensorError as error:
        number = re.search(r"os error (\d+)", str(error))
        raise OSError(int(number[1]) if number else errno.EIO, str(error), str(path)) from None
    path.chmod(path.parent.stat().st_mode & 0o666)


def _discard(path: Path) -> None:
    """Delete a checkpoint, beginning with what makes it one.

    What cannot be deleted yet, as on a network file system a file that somebody reads, is left for
    the next time.
    """
    if path.is_dir() and not path.is_symlink():
        (path / MANIFEST).unlink(missing_ok=True)
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def _refuse_other_versions(path: Path) -> None:
    """Raise RunError for a checkpoint from before there were manifests."""
    try:
        state = json.loads((path / STATE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return
    if isinstance(state, dict) and "sha256" in state and not (path / MANIFEST).exists():
        raise RunError(
            f"{path}: the checkpoint was written by another version of mt; go on with that one, or "
            "train a new run with --run"
        )


def _mean(tensors: list[Tensor]) -> Tensor:
    total = torch.zeros_like(tensors[0], dtype=torch.float64)
    for tensor in tensors:
        total += tensor
    return (total / len(tensors)).float()


def _read(path: Path, learner: Learner) -> TrainState:
    written = json.loads((path / STATE).read_text(encoding="utf-8"))
    state = TrainState.from_json(written["state"], str(path / STATE))
    load_parameters(learner.model, load_file(path / MODEL), str(path))
    restore_other_tensors(learner, load_file(path / OPTIMIZER))
    learner.precision.scaler.load_state_dict(written["scaler"])
    return state
