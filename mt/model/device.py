"""Choice of the device, its memory allocator, and lack of its memory."""

import ctypes
import os
import platform

import torch

from mt.errors import UserError, did_you_mean, listed

# Constants of glibc's malloc.h.
_M_TRIM_THRESHOLD = -1
_M_MMAP_MAX = -4
_LARGEST_INT = 2**31 - 1
_ALLOCATOR_VARIABLES = {"PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"}


def select_device(name: str) -> torch.device:
    """Return the device `name`: cuda, mps, cpu, or auto for the fastest available.

    On cuda, attention of cuDNN is switched off for the whole process. Raises UserError where this
    machine has no such device.
    """
    available = available_devices()
    if name == "auto":
        name = available[0]
    if name not in available:
        hint = did_you_mean(name, [*available, "auto"])
        raise UserError(
            f"device `{name}`: not on this machine, which has {listed(available)}{hint}"
        )
    if name == "cuda":
        # It builds a plan for each new shape, and batches by length have new shapes all the time.
        torch.backends.cuda.enable_cudnn_sdp(False)
    return torch.device(name)


def available_devices() -> list[str]:
    """Return the names of this machine's devices, the fastest first and cpu last."""
    found = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    return [*(name for name, available in found.items() if available), "cpu"]


def is_out_of_memory(error: RuntimeError) -> bool:
    """Return whether an error of PyTorch is a lack of device memory.

    cuBLAS, cuDNN and NCCL report it by other classes than the allocator, only in the message.
    """
    text = str(error).lower()
    return (
        isinstance(error, torch.OutOfMemoryError)
        or "out of memory" in text
        or "status_alloc_failed" in text
    )


def keep_freed_memory() -> None:
    """Let glibc keep freed memory, so that new tensors reuse pages that are mapped already.

    By default large tensors are mapped and unmapped at every use, and the first write to a fresh
    page is several times slower than the next. No-op without glibc.

    On CUDA, let blocks of memory grow unless the user has set torch's variable: batches of ever
    new shapes leave gaps between fixed blocks. Call it before the first use of CUDA.
    """
    if platform.system() != "Linux" or platform.libc_ver()[0] != "glibc":
        return
    if not _ALLOCATOR_VARIABLES & os.environ.keys():
        os.environ["PYTORCH_ALLOC_CONF"] = "expandable_segments:True"
    libc = ctypes.CDLL(None)
    libc.mallopt(_M_MMAP_MAX, 0)
    libc.mallopt(_M_TRIM_THRESHOLD, _LARGEST_INT)
