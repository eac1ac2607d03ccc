"""How much memory this process may still take."""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath


@dataclass(frozen=True)
class _Hierarchy:
    """Where a version of Linux's control groups tells of memory."""

    folder: str
    limit: str
    usage: str
    reclaimable: str
    """In `memory.stat`: what of the usage is files that need not be kept."""


_HIERARCHIES = {
    "": _Hierarchy("sys/fs/cgroup", "memory.max", "memory.current", "inactive_file"),
    "memory": _Hierarchy(
        "sys/fs/cgroup/memory",
        "memory.limit_in_bytes",
        "memory.usage_in_bytes",
        "total_inactive_file",
    ),
}
"""By the name that `/proc/self/cgroup` has for it: version 2, and version 1."""


def available_bytes(root: Path = Path("/")) -> int | None:
    """Return what the machine and the control groups leave; None where the system does not say.

    https://docs.kernel.org/admin-guide/cgroup-v2.html; a group has no more than those around it.
    """
    return min((*_of_the_machine(root), *_of_the_groups(root)), default=None)


def _of_the_machine(root: Path) -> Iterator[int]:
    with suppress(OSError, ValueError, KeyError):
        yield 1024 * _numbers(root / "proc/meminfo")["MemAvailable:"]


def _of_the_groups(root: Path) -> Iterator[int]:
    lines: list[str] = []
    with suppress(OSError):
        lines = (root / "proc/self/cgroup").read_text(encoding="utf-8").splitlines()
    for line in lines:
        _, names, group = [*line.split(":", 2), "", ""][:3]
        for name in {*names.split(",")} & _HIERARCHIES.keys():
            yield from _rooms(root, _HIERARCHIES[name], PurePosixPath(group.lstrip("/")))


def _rooms(root: Path, hierarchy: _Hierarchy, group: PurePosixPath) -> Iterator[int]:
    """Yield what a group and those around it may still take."""
    for each in (group, *group.parents):
        yield from _room(root / hierarchy.folder / each, hierarchy)


def _room(folder: Path, hierarchy: _Hierarchy) -> Iterator[int]:
    """Yield what a group may still take; a limit of `max` is none."""
    with suppress(OSError, ValueError):
        limit = int((folder / hierarchy.limit).read_text(encoding="utf-8"))
        usage = int((folder / hierarchy.usage).read_text(encoding="utf-8"))
        reclaimable = _numbers(folder / "memory.stat").get(hierarchy.reclaimable, 0)
        yield max(limit - usage + reclaimable, 0)


def _numbers(path: Path) -> dict[str, int]:
    """Return the first number of each line by the line's first word."""
    lines = [line.split() for line in path.read_text(encoding="utf-8").splitlines()]
    return {words[0]: int(words[1]) for words in lines if len(words) > 1}
