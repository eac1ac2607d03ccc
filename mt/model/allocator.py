"""Keep the C library from giving memory back to the system while a model works."""

import ctypes
import platform

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
