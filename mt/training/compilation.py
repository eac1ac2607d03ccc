"""torch.compile around the stacks of the model."""

import os
import shutil
from typing import Literal

import torch

from mt.errors import UserError
from mt.model.transformer import Transformer


def compile_stacks(model: Transformer, switch: Literal["on", "off"]) -> None:
    """Have encoder and decoder compiled at their first use in training, if the switch is on.

    Lengths are dynamic: one compilation serves all batches of a precision. Output layer and loss
    have kernels of their own making. Raises UserError where there is no C++ compiler.
    """
    if switch == "off":
        return
    compiler = os.environ.get("CXX", "g++")
    if shutil.which(compiler) is None:
        raise UserError(
            f"`training.compile: on` needs a C++ compiler, and there is no `{compiler}`; install "
            "one, name it in the variable CXX, or leave `training.compile` off"
        )
    model.states = torch.compile(model.states, dynamic=True)  # type: ignore[method-assign]
