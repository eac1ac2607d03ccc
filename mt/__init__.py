"""Machine-translation toolkit: from a parallel corpus to a model in use."""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mt.decoding.translator import Translator

__all__ = ["Translator", "__version__"]
__version__ = "0.1.0"


def __getattr__(name: str) -> object:
    """Import `Translator` on first use, which keeps `mt --help` fast."""
    if name == "Translator":
        return import_module("mt.decoding.translator").Translator
    raise AttributeError(f"module `mt` has no attribute `{name}`")
