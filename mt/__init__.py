"""Machine-translation toolkit: training from parallel text, evaluation, translation."""

import os
import sys
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mt.decoding.translator import Translator

__all__ = ["Translator", "__version__"]
__version__ = "0.1.0"

if sys.platform == "linux" and "OMP_WAIT_POLICY" not in os.environ:
    # By default, waiting threads of libgomp spin so long that one other busy program slows all
    # threads down. libgomp reads the variable when torch is imported.
    os.environ.setdefault("GOMP_SPINCOUNT", "1000")


def __getattr__(name: str) -> object:
    """Import `Translator` on first use, which keeps `mt --help` fast."""
    if name == "Translator":
        return import_module("mt.decoding.translator").Translator
    raise AttributeError(f"module `mt` has no attribute `{name}`")
