"""Choice of the device, its traits, its memory allocator, and lack of its memory."""

import ctypes
import os
import platform
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import torch

from mt.errors import UserError, did_you_mean, listed

T = TypeVar("T")
R = TypeVar("R")
# Constants of glibc's malloc.h.
_M_TRIM_THRESHOLD = -1
_M_MMAP_MAX = -4
_LARGEST_INT = 2**31 - 1
_ALLOCATOR_VARIABLES = {"PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"}


@dataclass(frozen=True)
class DeviceTraits:
    """Properties of a type of device that decide how the same numbers are computed fastest."""

    has_fused_adam: bool = False
    """The fused kernel of Adam can skip a step by itself."""
    joins_products: bool = False
    """In training, one product of joined matrices is faster than one product for each."""
    vocabulary_multiple: int = 1
    """Multiple of rows for which products with the output matrix use the tensor cores well."""
    max_logits: int = 2**27
    """Largest number of logits in memory at once: the size of the caches, or half a GiB in fp32."""
    runs_out_late: bool = False
    """The heaviest batch is tried before a training, to detect a lack of memory early."""
    drops_ended_at_once: bool = False
    """Sentences leave a batch as soon as they have ended, because fewer rows take less time.

    Elsewhere a step takes nearly the same time for fewer rows, and removal copies the caches.
    """


DEVICE_TRAITS = {
    "cpu": DeviceTraits(has_fused_adam=True, max_logits=2**22, drops_ended_at_once=True),
    "cuda": DeviceTraits(
        has_fused_adam=True, joins_products=True, vocabulary_multiple=64, runs_out_late=True
    ),
}
"""Traits by type of device; other types have the defaults."""


def device_traits(device: torch.device) -> DeviceTraits:
    """Return the traits of a device."""
    return DEVICE_TRAITS.get(device.type, DeviceTraits())


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
    is_available = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    return [*(name for name, available in is_available.items() if available), "cpu"]


def is_out_of_memory(error: RuntimeError) -> bool:
    """Return whether an error of PyTorch is a lack of device memory.

    cuBLAS, cuDNN and NCCL report it by other classes than the allocator, only in the message.
    """
    text = str(error).lower()
    is_named = "out of memory" in text or "status_alloc_failed" in text
    return isinstance(error, torch.OutOfMemoryError) or is_named


def compute_in_halves(
    compute: Callable[[T], R], batch: T, halve: Callable[[T], tuple[T, T]]
) -> list[R]:
    """Return the results of `compute` for a batch, or for parts that fit the device's memory.

    `halve` raises UserError for a batch that cannot be halved.
    """
    try:
        return [compute(batch)]
    except RuntimeError as error:
        if not is_out_of_memory(error):
            raise
    # Outside the handler, because the traceback keeps tensors in memory.
    return [result for half in halve(batch) for result in compute_in_halves(compute, half, halve)]


def available_memory() -> int | None:
    """Return the bytes of memory that the system can still give; None where it is unknown."""
    try:
        lines = Path("/proc/meminfo").read_text(encoding="utf-8").splitlines()
        fields = {name: value for name, _, value in (line.partition(":") for line in lines)}
        return 1024 * int(fields["MemAvailable"].split()[0])
    except (OSError, KeyError, ValueError, IndexError):
        return None


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
