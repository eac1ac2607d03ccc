"""Checkpoints: written as a whole, verified when read, without executable content.

A checkpoint is a folder `update-000001000` with

- model.safetensors: the weights, or with `training.ema_decay` their moving average;
- optimizer.safetensors: the other tensors of the learner, needed to resume only;
- state.json: the TrainState and the loss scale of fp16;
- manifest.json: sizes and SHA-256 of these files, written last.

It is written under the name `.update-000001000` and is valid from the moment its manifest exists.
Only then is an older checkpoint of the same update deleted, and the new one takes its name.
"""

import errno
import json
import logging
import re
import shutil
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from mt.decoding.load import read_tensors
from mt.errors import RunError
from mt.files import hash_file, name_errors, read_json, sync, sync_folder, write_json
from mt.model.weights import average_tensors, load_parameters, parameter_tensors
from mt.runs import CHECKPOINT_MANIFEST, CHECKPOINT_STATE, WEIGHTS_FILE, ListedFile, read_manifest
from mt.training.state import TrainState
from mt.training.step import Learner

MODEL, STATE, MANIFEST = WEIGHTS_FILE, CHECKPOINT_STATE, CHECKPOINT_MANIFEST
OPTIMIZER = "optimizer.safetensors"
_NAME = re.compile(r"\.?update-(\d{9,})")
_BYTES_PER_TENSOR = 256
"""Entry of a tensor in the header of its file."""
_OTHER_BYTES = 2**16
_DAMAGE = {errno.ENOENT, errno.EISDIR, errno.ENOTDIR, errno.EIO, errno.ELOOP}
"""Errors of reading that mean a damaged file; others, such as a missing permission, do not."""
_logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Checkpoints:
    """The checkpoints of one run."""

    folder: Path

    def path(self, update: int) -> Path:
        """Return the folder of the checkpoint after `update`."""
        unnamed = self._unnamed(update)
        return unnamed if (unnamed / MANIFEST).exists() else self._named(update)

    def updates(self) -> list[int]:
        """Return the updates that have a checkpoint, oldest first."""
        names = (path.name for path in self.folder.glob("*"))
        found = {int(match[1]) for match in map(_NAME.fullmatch, names) if match}
        return sorted(update for update in found if self.path(update).exists())

    def save(self, learner: Learner, state: TrainState) -> None:
        """Write a checkpoint under a temporary name, sync it, then rename it.

        Raises RunError where the file system has too little space for it and OSError where the disk
        refuses; in both cases the older checkpoints remain as they were.
        """
        # On the CPU. With a moving average, it is what is validated.
        averages = {name: mean.cpu() for name, mean in learner.average.averages().items()}
        weights = {**parameter_tensors(learner.model), **averages}
        files = {MODEL: weights, OPTIMIZER: _other_tensors(learner)}
        if not self.folder.is_dir():
            self.folder.mkdir()  # without its parents: a removed run folder must not reappear
            sync_folder(self.folder.parent)
        # A killed program may have left a valid checkpoint unnamed, and partial ones.
        for path in [*self.folder.glob(".*")]:
            if _NAME.fullmatch(path.name):
                if _damage(path):
                    _discard(path)
                else:
                    self._rename(path)
        stored = [tensor for tensors in files.values() for tensor in tensors.values()]
        needed = sum(tensor.nbytes + _BYTES_PER_TENSOR for tensor in stored) + _OTHER_BYTES
        usage = shutil.disk_usage(self.folder)
        if usage.total and usage.free < needed:  # some file systems report no sizes
            raise RunError(
                f"{self.folder}: too little space on the disk: a checkpoint needs "
                f"{needed / 2**20:,.1f} MiB, {usage.free / 2**20:,.1f} MiB are free; free some "
                "space and run the same command again"
            )
        temporary = self._unnamed(state.update)
        with name_errors(self._named(state.update), instead_of=temporary):
            try:
                temporary.mkdir()
                for name, tensors in files.items():
                    save_tensors(tensors, temporary / name)
                    sync(temporary / name)
                scale = learner.precision.scaler.state_dict()
                write_json(temporary / STATE, {"state": state.as_json(), "scaler": scale})
                written = {name: temporary / name for name in (*files, STATE)}
                entries = {
                    name: ListedFile(path.stat().st_size, hash_file(path))
                    for name, path in written.items()
                }
                _write_manifest(temporary, entries)
                sync_folder(self.folder)
            except BaseException:
                _discard(temporary)
                raise
            self._rename(temporary)

    def resume(self, learner: Learner) -> TrainState | None:
        """Load the newest valid checkpoint into `learner`; return None without checkpoints.

        Damaged checkpoints are skipped with a warning. Raises RunError where none is left, or for a
        state of another version of mt.
        """
        problems = []
        for update in reversed(self.updates()):
            path = self.path(update)
            if problem := _damage(path):
                problems.append(f"{path}: the checkpoint is damaged ({problem})")
            elif OPTIMIZER in read_manifest(path):
                for problem in problems:
                    _logger.warning("%s; resuming from %s", problem, path)
                return _load(path, learner)
            else:
                problems.append(f"{path}: the checkpoint has no {OPTIMIZER}")
        if problems:
            raise RunError(
                f"{problems[0]}, and there is no earlier one to resume from; train a new run with "
                "--run"
            )
        return None

    def prune(self, state: TrainState) -> None:
        """Delete all but the best and the last checkpoints; of the best, keep only the weights."""
        best = {ranked.update for ranked in state.best}
        resumable = set(state.last)
        for update in self.updates():
            if update not in best and update not in resumable:
                _discard(self.path(update))
            elif update not in resumable:
                try:
                    entries = read_manifest(self.path(update))
                except (OSError, RunError):  # a folder with a damaged manifest is not changed
                    continue
                if entries.pop(OPTIMIZER, None) is not None:
                    _write_manifest(self.path(update), entries)
                (self.path(update) / OPTIMIZER).unlink(missing_ok=True)

    def average(self, updates: list[int]) -> dict[str, Tensor]:
        """Return the mean of the weights of checkpoints (Vaswani et al. 2017, section 6.1).

        That of low-rank matrices has a higher rank. It is computed tensor by tensor, in the memory
        of one model. Raises RunError for a damaged checkpoint.
        """
        paths = [self.path(update) for update in updates]
        for path in paths:
            if problem := _damage(path):
                raise RunError(f"{path}: the checkpoint is damaged ({problem})")
        try:
            with ExitStack() as stack:
                files = [stack.enter_context(safe_open(path / MODEL, "pt")) for path in paths]
                names = files[0].keys()
                return {
                    name: average_tensors(name, [file.get_tensor(name) for file in files])
                    for name in names
                }
        except SafetensorError as error:
            raise RunError(f"{self.folder}: damaged weights of a checkpoint ({error})") from None

    def _named(self, update: int) -> Path:
        return self.folder / f"update-{update:09d}"

    def _unnamed(self, update: int) -> Path:
        return self.folder / f".update-{update:09d}"

    def _rename(self, unnamed: Path) -> None:
        path = unnamed.with_name(unnamed.name.removeprefix("."))
        _discard(path)
        unnamed.rename(path)
        sync_folder(self.folder)


def is_valid(path: Path) -> bool:
    """Return True where the files of a checkpoint are as its manifest lists them."""
    return _damage(path) is None


def save_tensors(
    tensors: dict[str, Tensor], path: Path, facts: dict[str, Any] | None = None
) -> None:
    """Write a safetensors file, with facts as JSON, and with the permissions of its folder.

    The library itself makes files readable by their owner only, and reports a full disk as text.
    """
    try:
        # One entry of metadata: the library writes several in random order.
        save_file(tensors, path, {"facts": json.dumps(facts)} if facts else None)
    except SafetensorError as error:
        number = re.search(r"os error (\d+)", str(error))
        raise OSError(int(number[1]) if number else errno.EIO, str(error), str(path)) from None
    path.chmod(path.parent.stat().st_mode & 0o666)


def _other_tensors(learner: Learner) -> dict[str, Tensor]:
    """Return the weights beside a moving average and Adam's moments, on the CPU.

    The names are `learning.<parameter>` and `adam.<parameter>.<kind>`. No random state is among
    them: what an update draws follows from the seed and the update's number.
    """
    tensors = {f"learning.{name}": weight for name, weight in learner.average.weights().items()}
    for name, parameter in learner.model.named_parameters():
        for kind, tensor in learner.optimizer.state.get(parameter, {}).items():
            tensors[f"adam.{name}.{kind}"] = tensor
    return {name: tensor.detach().cpu() for name, tensor in tensors.items()}


@dataclass(frozen=True)
class Written:
    """Contents of state.json."""

    state: dict[str, Any]
    scaler: dict[str, Any]


def _load(path: Path, learner: Learner) -> TrainState:
    written = read_json(path / STATE, Written)
    state = TrainState.from_json(written.state, path / STATE)
    load_parameters(learner.model, read_tensors(path / MODEL), str(path))
    learner.precision.scaler.load_state_dict(written.scaler)
    averaged = {}
    parameters = dict(learner.model.named_parameters())
    learner.optimizer.state.clear()
    for key, tensor in read_tensors(path / OPTIMIZER).items():
        group, _, name = key.partition(".")
        name, _, kind = (name, "", "") if group == "learning" else name.rpartition(".")
        parameter = parameters.get(name)
        is_whole = group == "learning" or kind.startswith("exp_avg")
        if parameter is None or (is_whole and tensor.shape != parameter.shape):
            raise RunError(f"{path / OPTIMIZER}: does not fit the config: `{key}`")
        if group == "learning":
            averaged[name] = tensor
        else:
            # An optimizer that is not fused keeps Adam's step counter on the CPU.
            on_cpu = kind == "step" and parameter.device.type == "mps"
            # A copy: a loaded tensor is a view of its file, and would keep its disk space occupied.
            learner.optimizer.state[parameter][kind] = tensor.to(
                "cpu" if on_cpu else parameter.device, copy=True
            )
    if averaged.keys() != learner.average.weights().keys():
        raise RunError(f"{path / OPTIMIZER}: does not fit the config: has other averaged weights")
    learner.average.restore(averaged)
    return state


def _write_manifest(folder: Path, files: dict[str, ListedFile]) -> None:
    write_json(folder / MANIFEST, {name: asdict(file) for name, file in files.items()})


def _damage(folder: Path) -> str | None:
    """Return the first file that differs from the manifest, and how, or None."""
    name = MANIFEST
    try:
        files = read_manifest(folder)
        for name, entry in files.items():
            found = (folder / name).stat().st_size
            if found != entry.bytes:
                return f"{name}: {found:,} bytes instead of {entry.bytes:,}"
            if hash_file(folder / name) != entry.sha256:
                return f"{name}: wrong SHA-256"
        is_whole = {MODEL, STATE} <= files.keys()
        return None if is_whole else f"{MANIFEST}: lists no {MODEL} or {STATE}"
    except OSError as error:
        if error.errno not in _DAMAGE:
            raise
        return f"{name}: {'missing' if error.errno == errno.ENOENT else 'not readable'}"
    except (RunError, ValueError):  # the second: a NUL in a name
        return f"{name}: not readable"


def _discard(path: Path) -> None:
    """Delete a checkpoint, its manifest first.

    Files that cannot be deleted yet, such as open ones on a network file system, stay for now.
    """
    if path.is_dir() and not path.is_symlink():
        (path / MANIFEST).unlink(missing_ok=True)
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
