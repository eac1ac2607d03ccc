"""Commands divided among processes write the bytes of one process, also after a kill."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.factories import Program

ROOT = Path(__file__).parents[2]
SMALL = ("--set", "decoding.batch_size=2", "--set", "decoding.repair=off", "--device", "cpu")
"""Windows of 64 lines in `mt translate` and of 16 in `mt distill`."""
TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node")
pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc"),
    pytest.mark.timeout(300),
]


@pytest.fixture
def text(tiny_corpus: Path, tmp_path: Path) -> Path:
    """Return a file of 124 lines, some of them blank or not UTF-8."""
    lines = (tiny_corpus / "train.en").read_bytes() + b"one\xff two\n\n"
    path = tmp_path / "text.en"
    path.write_bytes(lines * 2)
    return path


def start(*command: str | Path, **variables: str) -> subprocess.Popen[str]:
    # Ranks share the cores where it is 1, and the last digits depend on the number of threads.
    fixed = {"OMP_NUM_THREADS": "1,1", "RES_OPTIONS": "timeout:1 attempts:1"}
    return subprocess.Popen(
        [*map(str, command)],
        env={**os.environ, "PYTHONPATH": str(ROOT), **fixed, **variables},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def start_mt(*arguments: str | Path, **variables: str) -> subprocess.Popen[str]:
    return start(sys.executable, "-m", "mt", *arguments, **variables)


def start_torchrun(ranks: int, *arguments: str | Path) -> subprocess.Popen[str]:
    return start(*TORCHRUN, str(ranks), "-m", "mt", *arguments)


def visible(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if not path.name.startswith("."))


def test_two_ranks_write_the_bytes_of_one_process(
    finished_run: Path, text: Path, tmp_path: Path, program: Program
) -> None:
    prefixes = tmp_path / "prefixes"
    prefixes.write_text("one\n\n" * 62)
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    call = ("translate", finished_run, text, "--json", "--prefixes", prefixes, *SMALL)
    one, two = (
        ("-o", tmp_path / n / "out", "--report", tmp_path / n / "log") for n in ("one", "two")
    )
    ranks = [
        start_mt(*call, *two, RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE="2")
        for rank in (1, 0)
    ]
    assert program(*call, *one)[:2] == (0, "")
    printed = [process.communicate(timeout=200) for process in ranks]
    assert [process.returncode for process in ranks] == [0, 0], printed
    assert [out for out, _ in printed] == ["", ""]
    assert "finished: " not in printed[0][1]
    assert printed[1][1].count("finished: ") == 1
    assert visible(tmp_path / "two") == ["log", "out", "out.shards.json"]
    for name in ("log", "out"):
        assert (tmp_path / "two" / name).read_bytes() == (tmp_path / "one" / name).read_bytes()
    lines = (tmp_path / "two" / "out").read_text().splitlines()
    numbers = [json.loads(line)["line"] for line in lines]
    assert numbers == [*range(1, 125)]


@pytest.mark.slow
@pytest.mark.parametrize("command", ["translate", "score", "distill"])
@pytest.mark.parametrize("ranks", [2, 4])
def test_torchrun_writes_the_bytes_of_one_process(
    ranks: int, command: str, finished_run: Path, text: Path, tmp_path: Path
) -> None:
    long = tmp_path / "long.en"  # several windows of `mt score`
    long.write_text((text.parent / "text.en").read_text(errors="ignore").replace("\n\n", "\n") * 50)
    options: dict[str, tuple[str | Path, ...]] = {
        "translate": (text, "--n-best", "2", "-o", "{}/out", "--report", "{}/report"),
        "score": ("--sources", long, "--targets", long, "--json", "-o", "{}/out"),
        "distill": (text, "--out", "{}", "--noise"),
    }

    def call(name: str) -> list[str]:
        (tmp_path / name).mkdir()
        words = [str(word).replace("{}", str(tmp_path / name)) for word in options[command]]
        return [command, str(finished_run), *words, *SMALL]

    alone = start_mt(*call("one"))
    printed, err = alone.communicate()
    assert alone.returncode == 0, err
    process = start_torchrun(ranks, *call("many"))
    out, errors = process.communicate()
    assert process.returncode == 0, errors
    assert out.replace("/many/", "/one/") == printed
    if command == "score":
        assert err.splitlines()[-1] in errors
    one, many = tmp_path / "one", tmp_path / "many"
    record = ["out.shards.json"] if command in {"translate", "score"} else []
    assert visible(many) == sorted(visible(one) + record)
    for name in visible(one):
        assert (many / name).read_bytes() == (one / name).read_bytes(), name


def await_progress(record: Path) -> None:
    """Wait until a part is begun and not finished."""
    deadline = time.monotonic() + 100
    while not record.exists() or not json.loads(record.read_bytes())["done"]:
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.01)


def rank_of(launcher: int, rank: int) -> int:
    """Return the process of a rank."""
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = int(path.read_text().rpartition(")")[2].split()[1])
            found = f"RANK={rank}".encode() in path.with_name("environ").read_bytes().split(b"\0")
        except OSError:
            continue
        if parent == launcher and found:
            return int(path.parent.name)
    raise AssertionError(f"rank {rank} is missing")


@pytest.mark.slow
@pytest.mark.parametrize("way", ["torchrun", "--shard"])
@pytest.mark.parametrize("parts", [2, 4])
def test_killed_part_is_continued_by_the_same_command(
    parts: int, way: str, finished_run: Path, text: Path, tmp_path: Path
) -> None:
    text.write_bytes(text.read_bytes() * 8)
    call: Sequence[str | Path] = ("translate", finished_run, text, *SMALL, "-o")
    alone = start_mt(*call, tmp_path / "one")
    assert alone.communicate() and alone.returncode == 0
    out = tmp_path / "out"
    record = tmp_path / f"out.shards.2-of-{parts}.json.part"
    if way == "torchrun":
        process = start_torchrun(parts, *call, out)
        await_progress(record)
        os.kill(rank_of(process.pid, 1), signal.SIGKILL)
        process.communicate(timeout=100)
        assert process.returncode == 1
        again = [start_torchrun(parts, *call, out)]
    else:
        shards = [f"{number}/{parts}" for number in range(1, parts + 1)]
        processes = {shard: start_mt(*call, out, "--shard", shard) for shard in shards}
        await_progress(record)
        processes[shards[1]].kill()
        for process in processes.values():
            process.communicate()
        assert not out.exists()
        again = [start_mt(*call, out, "--shard", shards[1])]
    done = json.loads(record.read_bytes())["done"]
    (_, errors), *_ = [process.communicate() for process in again]
    assert [process.returncode for process in again] == [0], errors
    assert f"{record}: resuming, {done:,} of " in errors
    assert out.read_bytes() == (tmp_path / "one").read_bytes()
