"""What a process may still take, by the machine and by the control groups around it."""

from pathlib import Path

import pytest

from mt.training.memory import available_bytes

GIB = 2**30
MEMINFO = "MemTotal:       16777216 kB\nMemFree:         1000 kB\nMemAvailable:    8388608 kB\n"


def system(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def version_2(group: str, limit: str, usage: int, inactive: int) -> dict[str, str]:
    folder = f"sys/fs/cgroup/{group}".rstrip("/")
    return {
        f"{folder}/memory.max": f"{limit}\n",
        f"{folder}/memory.current": f"{usage}\n",
        f"{folder}/memory.stat": f"anon 5\ninactive_file {inactive}\n",
    }


def version_1(group: str, limit: int, usage: int, inactive: int) -> dict[str, str]:
    folder = f"sys/fs/cgroup/memory/{group}".rstrip("/")
    return {
        f"{folder}/memory.limit_in_bytes": f"{limit}\n",
        f"{folder}/memory.usage_in_bytes": f"{usage}\n",
        f"{folder}/memory.stat": f"inactive_file 7\ntotal_inactive_file {inactive}\n",
    }


def test_without_limits_it_is_what_the_machine_has(tmp_path: Path) -> None:
    assert available_bytes(system(tmp_path, {"proc/meminfo": MEMINFO})) == 8 * GIB


@pytest.mark.parametrize(
    ("groups", "files", "left"),
    [
        # What a group may take is its limit less what it has, less files that can be dropped.
        ("0::/\n", version_2("", str(4 * GIB), 3 * GIB, GIB), 2 * GIB),
        ("0::/job/step\n", version_2("job/step", str(4 * GIB), 3 * GIB, 0), GIB),
        # The group around it has less left.
        (
            "0::/job/step\n",
            version_2("job/step", "max", 0, 0) | version_2("job", str(2 * GIB), GIB, 5),
            GIB + 5,
        ),
        # The machine has less left than the group.
        ("0::/job\n", version_2("job", str(100 * GIB), 0, 0), 8 * GIB),
        ("0::/job\n", version_2("job", "max", 0, 0), 8 * GIB),
        # A container that sees itself at the root, though its group has another name outside.
        ("4:memory:/docker/5a\n0::/\n", version_1("", 3 * GIB, GIB, 0), 2 * GIB),
        ("9:cpu,memory:/slurm/job\n0::/\n", version_1("slurm/job", 3 * GIB, 2 * GIB, 9), GIB + 9),
        # What version 1 calls no limit.
        ("4:memory:/job\n", version_1("job", 9223372036854771712, GIB, 0), 8 * GIB),
        # More than the limit is in use already.
        ("0::/job\n", version_2("job", str(GIB), 2 * GIB, 0), 0),
        ("3:cpuset:/job\n", version_1("job", GIB, 0, 0), 8 * GIB),
        ("nonsense\n", {}, 8 * GIB),
    ],
)
def test_a_control_group_leaves_less(
    groups: str, files: dict[str, str], left: int, tmp_path: Path
) -> None:
    told = {"proc/meminfo": MEMINFO, "proc/self/cgroup": groups, **files}
    assert available_bytes(system(tmp_path, told)) == left


def test_a_system_that_says_nothing_is_not_guessed_at(tmp_path: Path) -> None:
    assert available_bytes(tmp_path) is None
    assert available_bytes(system(tmp_path, {"proc/meminfo": "MemFree: many\n"})) is None


@pytest.mark.skipif(not Path("/proc/meminfo").exists(), reason="needs Linux's /proc")
def test_this_machine_says_something_sensible() -> None:
    left = available_bytes()
    assert left is not None
    assert 2**20 < left < 2**50
