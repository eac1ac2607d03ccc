"""Checkpoints: whole or absent, checked when read, nothing in them that could run code.

A checkpoint is a folder `update-000001000` with

- model.safetensors: the weights;
- optimizer.safetensors: Adam's moments and the random generators, needed only to go on training;
- state.json: where the run stands, the scale of fp16, and the SHA-256 of the two others.
"""

import json
import logging
import re
import shutil
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor

from mt.errors import RunError
from mt.files import file_sha256, naming, sync, write_json
from mt.model.parameters import load_parameters, parameter_tensors
from mt.training.state import TrainState
from mt.training.update import Learner

MODEL = "model.safetensors"
OPTIMIZER = "optimizer.safetensors"
STATE = "state.json"
_NAME = re.compile(r"update-(\d{9,})")

_logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Checkpoints:
    """The checkpoints of one run."""

    folder: Path

    def path(self, update: int) -> Path:
        """Return the folder of the checkpoint after `update`."""
        return self.folder / f"update-{update:09d}"

    def save(self, learner: Learner, state: TrainState) -> None:
        """Write a checkpoint under a temporary name, wait for the disk, then name it."""
        path = self.path(state.update)
        temporary = path.with_name(f".{path.name}")
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir(parents=True)
        try:
            with naming(path):
                _write(temporary, learner, state)
        except BaseException:
            shutil.rmtree(temporary, ignore_errors=True)
            raise
        shutil.rmtree(path, ignore_errors=True)
        temporary.rename(path)
        sync(self.folder)

    def updates(self) -> list[int]:
        """Return the updates that have a checkpoint, oldest first."""
        names = [path.name for path in self.folder.glob("update-*") if path.is_dir()]
        return sorted(int(match[1]) for name in names if (match := _NAME.fullmatch(name)))

    def resume(self, learner: Learner) -> TrainState | None:
        """Load the newest checkpoint that is whole into `learner`; None where there is none at all.

        Damaged ones are told; where no other is left to go on from, they are a RunError.
        """
        damaged, updates = [], self.updates()
        for update in reversed(updates):
            path = self.path(update)
            if not is_whole(path):
                damaged.append(path)
            elif (path / OPTIMIZER).exists():
                for each in damaged:
                    _logger.warning("%s: the checkpoint is damaged; going on from %s", each, path)
                return _read(path, learner)
        if updates:
            what = "is damaged" if damaged else f"has no {OPTIMIZER}"
            raise RunError(
                f"{self.path(updates[-1])}: the checkpoint {what}, and there is no earlier one to "
                "go on from; train a new run with --run"
            )
        return None

    def prune(self, state: TrainState) -> None:
        """Delete what is neither among the best nor the last; of the best keep only the weights."""
        best = {ranked.update for ranked in state.best}
        for update in self.updates():
            if update not in best and update not in state.last:
                shutil.rmtree(self.path(update))
            elif update not in state.last:
                (self.path(update) / OPTIMIZER).unlink(missing_ok=True)

    def weights(self, update: int) -> dict[str, Tensor]:
        """Return the weights of one checkpoint; a damaged one is an error."""
        path = self.path(update)
        if not is_whole(path):
            raise RunError(f"{path}: the checkpoint is damaged")
        weights: dict[str, Tensor] = load_file(path / MODEL)
        return weights

    def average(self, updates: list[int]) -> dict[str, Tensor]:
        """Return the mean of the weights of several checkpoints (Vaswani et al. 2017, 6.1)."""
        mean = {name: tensor.double() for name, tensor in self.weights(updates[0]).items()}
        for update in updates[1:]:
            for name, tensor in self.weights(update).items():
                mean[name] += tensor
        return {name: (tensor / len(updates)).float() for name, tensor in mean.items()}


def is_whole(path: Path) -> bool:
    """Tell whether a checkpoint's files are those that were written."""
    try:
        sums = json.loads((path / STATE).read_text(encoding="utf-8"))["sha256"]
        return all(
            file_sha256(path / name) == sum_
            for name, sum_ in sums.items()
            if name == MODEL or (path / name).exists()
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False


def save_tensors(tensors: dict[str, Tensor], path: Path) -> None:
    """Write a safetensors file.

    Its own writer tells a full disk in words alone, and makes a file that only its owner can read.
    """
    path.write_bytes(save(tensors))


def _write(folder: Path, learner: Learner, state: TrainState) -> None:
    save_tensors(parameter_tensors(learner.model), folder / MODEL)
    save_tensors({**_moments(learner), **_generators()}, folder / OPTIMIZER)
    sums = {name: file_sha256(folder / name) for name in (MODEL, OPTIMIZER)}
    for name in sums:
        sync(folder / name)
    scaler = learner.precision.scaler.state_dict()
    write_json(folder / STATE, {"state": state.as_json(), "scaler": scaler, "sha256": sums})


def _moments(learner: Learner) -> dict[str, Tensor]:
    """Return Adam's tensors as `adam.<parameter>.<kind>`."""
    return {
        f"adam.{name}.{kind}": tensor.detach().cpu()
        for name, parameter in learner.model.named_parameters()
        for kind, tensor in learner.optimizer.state[parameter].items()
    }


def _generators() -> dict[str, Tensor]:
    """Return the states of torch's random generators, from which dropout draws."""
    states = {"random.cpu": torch.get_rng_state()}
    if torch.cuda.is_available():
        states["random.cuda"] = torch.cuda.get_rng_state()
    return states


def _read(path: Path, learner: Learner) -> TrainState:
    written = json.loads((path / STATE).read_text(encoding="utf-8"))
    try:
        weights, rest = load_file(path / MODEL), load_file(path / OPTIMIZER)
    except SafetensorError as error:
        raise RunError(f"{path}: the checkpoint is damaged ({error})") from None
    load_parameters(learner.model, weights, str(path))
    for name, parameter in learner.model.named_parameters():
        prefix = f"adam.{name}."
        learner.optimizer.state[parameter] = {
            key.removeprefix(prefix): _like_adam(tensor, key, parameter)
            for key, tensor in rest.items()
            if key.startswith(prefix) and "." not in key.removeprefix(prefix)
        }
    torch.set_rng_state(rest["random.cpu"])
    if torch.cuda.is_available() and "random.cuda" in rest:
        torch.cuda.set_rng_state(rest["random.cuda"])
    learner.precision.scaler.load_state_dict(written["scaler"])
    return TrainState.from_json(written["state"], str(path / STATE))


def _like_adam(tensor: Tensor, key: str, parameter: Tensor) -> Tensor:
    """Put a moment where Adam keeps it: its step counter stays on the CPU unless it is fused."""
    on_cpu = key.endswith(".step") and parameter.device.type == "mps"
    return tensor if on_cpu else tensor.to(parameter.device)
