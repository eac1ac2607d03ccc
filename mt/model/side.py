"""The two stacks of the model, by name."""

from typing import Literal

Side = Literal["encoder", "decoder"]
