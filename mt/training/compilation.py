"""Compilation of the model with torch.compile: when it pays, and what is compiled."""

import os
import shutil
import sysconfig
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from mt.config import TrainingConfig
from mt.errors import UserError
from mt.model.transformer import Transformer
from mt.training.loss import ChunkLoss, chunk_loss

_LEAST_UPDATES = 5000
_LEAST_SECONDS = 3600.0
"""Updates or budget of a training that is compiled by default: it takes a minute or two."""
_LEAST_CAPABILITY = (7, 0)
"""Of a GPU that Triton compiles for."""


def is_worthwhile(training: TrainingConfig, device: torch.device) -> bool:
    """Return whether `training.compile: auto` compiles a training on this device."""
    if device.type != "cuda" or training.guided_alignment or training.recompute == "on":
        return False
    if training.max_updates is not None:
        is_long = training.max_updates >= _LEAST_UPDATES
    else:
        is_long = training.budget_seconds is None or training.budget_seconds >= _LEAST_SECONDS
    return is_long and _can_compile(device)


def _can_compile(device: torch.device) -> bool:
    """Return whether Triton compiles for a GPU, and finds a compiler and Python's header files."""
    header = Path(sysconfig.get_path("include"), "Python.h")
    has_tools = find_spec("triton") is not None and _compiler()[1] and header.exists()
    return has_tools and torch.cuda.get_device_capability(device) >= _LEAST_CAPABILITY


def _compiler() -> tuple[str, bool]:
    """Return the name of the C++ compiler, and whether it is installed."""
    name = os.environ.get("CXX", "g++")
    return name, shutil.which(name) is not None


def compile_stacks(model: Transformer, *, positions: int = 0) -> None:
    """Compile encoder and decoder at their first use in training.

    Lengths are dynamic: two compilations serve all batches of a precision with several pairs, with
    and without padding, and sequences of at most `positions` tokens. Raises UserError without a C++
    compiler.
    """
    compiler, is_installed = _compiler()
    if not is_installed:
        raise UserError(
            f"`training.compile: on` needs a C++ compiler, but `{compiler}` was not found; install "
            "it, set the variable CXX to another one, or set `training.compile: off`"
        )
    # DistributedDataParallel's graph splitter does not support dynamic shapes.
    torch._dynamo.config.optimize_ddp = False
    # With and without padding, of a single pair or several, in training and validation.
    torch._dynamo.config.recompile_limit = 16
    model.reserve_positions(positions)
    compiled = torch.compile(model.states, dynamic=True)

    def states(
        source: Tensor, target_in: Tensor, real: Tensor, *, source_tokens: int | None = None
    ) -> Tensor:
        model.reserve_positions(max(source.shape[1], target_in.shape[1]))
        return compiled(source, target_in, real, source_tokens=source_tokens)

    model.states = states  # type: ignore[method-assign]


def choose_loss(training: TrainingConfig, device: torch.device) -> ChunkLoss:
    """Return `chunk_loss`; if the stacks are compiled on a GPU, compiled for any number of rows."""
    if training.compile != "on" or device.type == "cpu":
        return chunk_loss
    compiled = torch.compile(chunk_loss)

    def loss_of(states: Tensor, matrix: Tensor, labels: Tensor, **keys: Any) -> Any:
        for each in (states, labels):
            torch._dynamo.maybe_mark_dynamic(each, 0)
        return compiled(states, matrix, labels, **keys)

    return loss_of
