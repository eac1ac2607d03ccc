"""What a run ran on, so that a record can be held against another."""

import importlib.metadata
import os
import platform
from pathlib import Path

import torch

from mt import __version__

PACKAGES = ("torch", "numpy", "sentencepiece", "datasets", "pyarrow", "sacrebleu", "safetensors")


def environment(device: torch.device, precision: str) -> dict[str, object]:
    """Return versions, machine and arithmetic as plain data."""
    return {
        "mt": __version__,
        "python": platform.python_version(),
        "packages": {name: importlib.metadata.version(name) for name in PACKAGES},
        "system": platform.platform(),
        "processor": processor_name(),
        "cpu_count": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "device": device_name(device),
        "precision": precision,
    }


def device_name(device: torch.device) -> str:
    """Return a device with the name of its hardware."""
    if device.type == "cuda":
        return f"cuda: {torch.cuda.get_device_name(device)}"
    return device.type


def processor_name() -> str:
    """Return the processor's name, as well as the system tells it."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()


def peak_memory_mib() -> float | None:
    """Return the largest resident set of this process so far in MiB; None where unknown."""
    try:
        import resource
    except ImportError:  # not on Windows
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (2**20 if platform.system() == "Darwin" else 2**10)
