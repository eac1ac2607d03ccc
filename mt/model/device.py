"""Which device computes."""

import ctypes
import platform

import torch

from mt.errors import UserError, did_you_mean, listed


def select_device(name: str) -> torch.device:
    """Return the device called `name`: cuda, mps, cpu, or auto for the best that is there.

    Raises UserError where this machine has no such device; the message names those it has.
    """
    there = available_devices()
    if name == "auto":
        return torch.device(there[0])
    if name not in there:
        hint = did_you_mean(name, [*there, "auto"])
        raise UserError(f"device `{name}`: not on this machine, which has {listed(there)}{hint}")
    return torch.device(name)


def available_devices() -> list[str]:
    """Return the names of this machine's devices, the fastest first; cpu is always the last."""
    there = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    return [*(name for name, found in there.items() if found), "cpu"]


_M_TRIM_THRESHOLD = -1
_M_MMAP_MAX = -4
_LARGEST_INT = 2**31 - 1


def keep_freed_memory() -> None:
    """Let glibc keep freed memory, so that new tensors reuse pages that are mapped already.

    Large tensors are otherwise mapped and unmapped at every use, and first touching a fresh page
    is several times slower than reading it again. Elsewhere than on Linux with glibc: nothing.
    """
    if platform.system() != "Linux" or platform.libc_ver()[0] != "glibc":
        return
    libc = ctypes.CDLL(None)
    libc.mallopt(_M_MMAP_MAX, 0)
    libc.mallopt(_M_TRIM_THRESHOLD, _LARGEST_INT)
