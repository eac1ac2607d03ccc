"""`torchrun ... -m mt train` with several ranks, on one host and on two."""

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
from safetensors.torch import load_file
from torch import Tensor

from mt.training.checkpoint import MODEL
from mt.training.run_folder import RunFolder
from tests.factories import journal, train_with

EXACT = ("model.dropout=0.0", "training.max_updates=20")
ENDLESS = (
    "training.max_updates=1000000",
    "training.validate_every=1000000",
    "training.checkpoint_every=10",
    "training.log_every=10",
)
ONE_HOST = ("--standalone",)
PROGRAM = Path(__file__).with_name("rank_program.py")
pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc"),
    pytest.mark.timeout(300),
]


def command(
    recipe: Path, run: Path, settings: Sequence[str], *, processes: int, how: Sequence[str]
) -> list[str]:
    launcher = [sys.executable, "-m", "torch.distributed.run", *how]
    launcher += ["--nproc-per-node", str(processes), "--", str(PROGRAM), "train", str(recipe)]
    return [*launcher, "--run", str(run), *(f"--set={setting}" for setting in settings)]


def train_by(processes: int, recipe: Path, run: Path, *settings: str) -> tuple[str, str]:
    """Train to the end; return stdout and stderr."""
    with training(command(recipe, run, settings, processes=processes, how=ONE_HOST)) as launcher:
        out, err = launcher.communicate()
    assert launcher.returncode == 0, err
    return out, err


@contextmanager
def training(arguments: list[str]) -> Iterator[subprocess.Popen[str]]:
    """Start a training; kill it and its children at the end."""
    # torchrun's store looks up names: do not wait for a busy name server.
    variables = {"OMP_NUM_THREADS": "1", "RES_OPTIONS": "timeout:1 attempts:1"}
    launcher = subprocess.Popen(
        arguments,
        env={**os.environ, "PYTHONPATH": str(PROGRAM.parents[2]), **variables},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield launcher
    finally:
        for process in [*children(launcher.pid), launcher.pid]:
            if Path(f"/proc/{process}").exists():
                os.kill(process, signal.SIGKILL)
        launcher.communicate()


def children(process: int) -> list[int]:
    found = []
    for each in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = each.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[1]) == process:
            found.append(int(each.parent.name))
    return found


def rank_process(launcher: int, rank: int) -> int:
    for process in children(launcher):
        if f"RANK={rank}".encode() in Path(f"/proc/{process}/environ").read_bytes().split(b"\0"):
            return process
    raise AssertionError(f"rank {rank} is missing")


def await_true(is_so: Callable[[], bool], seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.05)


def weights(path: Path) -> dict[str, Tensor]:
    """Return the weights without the biases of keys.

    Softmax does not see them, so their gradients are rounding errors, which Adam makes as large
    as any other.
    """
    loaded: dict[str, Tensor] = load_file(path)
    return {name: each for name, each in loaded.items() if not name.endswith("key.bias")}


def farthest(one: Path, other: Path) -> float:
    """Return the largest difference between the weights of two files."""
    left, right = weights(one), weights(other)
    return max(float((left[name] - right[name]).abs().max()) for name in left | right)


@pytest.fixture(scope="module")
def whole(tiny_recipe: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a run of twenty updates without dropout, by one process."""
    run = tmp_path_factory.mktemp("runs") / "whole"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MT_CACHE", str(tmp_path_factory.mktemp("cache")))
        train_with(tiny_recipe, run, *EXACT)
    return run


def test_two_ranks_train_as_one_and_one_resumes_their_run(
    whole: Path, tiny_recipe: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    out, err = train_by(2, tiny_recipe, run, *EXACT, "training.max_updates=10")
    # Only rank 0 prints.
    assert re.match(rf"{run}: valid, 7 pairs, greedy: loss [^\n]*\n", out)
    assert out.count("greedy: loss") == out.count("next: ") == 1
    assert err.count("60 pairs to train on") == err.count("update 10 of 10") == 1
    assert [(event["ranks"], event["update"]) for event in journal(run, "start")] == [(2, 0)]
    assert len(journal(run, "train")) == len(journal(run, "final")) == 1
    first, other = RunFolder(whole).checkpoints.path(10), RunFolder(run).checkpoints.path(10)
    assert farthest(first / MODEL, other / MODEL) < 1e-5
    (loss,), (alone,) = (
        [event["loss"] for event in journal(each, "validation")][:1] for each in (run, whole)
    )
    assert loss == pytest.approx(alone, abs=1e-5)
    train_with(tiny_recipe, run, *EXACT)
    assert [event["update"] for event in journal(run, "resume")] == [10]
    assert farthest(whole / MODEL, run / MODEL) < 1e-5
    sums = [[event["target_tokens"] for event in journal(each, "train")] for each in (run, whole)]
    assert sum(sums[0]) == sum(sums[1])


@pytest.mark.slow
def test_resumed_run_of_four_ranks_is_bit_for_bit_the_same(
    tiny_recipe: Path, tmp_path: Path
) -> None:
    """With dropout, and with more than two ranks: then the order of a sum matters."""
    straight, resumed = tmp_path / "straight", tmp_path / "resumed"
    train_by(4, tiny_recipe, straight, "training.max_updates=20")
    train_by(4, tiny_recipe, resumed, "training.max_updates=10")
    train_by(4, tiny_recipe, resumed, "training.max_updates=20")
    last = [RunFolder(run).checkpoints.path(20) / MODEL for run in (straight, resumed)]
    assert last[0].read_bytes() == last[1].read_bytes()


@pytest.mark.slow
def test_killed_rank_ends_the_job_and_is_named(tiny_recipe: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    with training(command(tiny_recipe, run, ENDLESS, processes=3, how=ONE_HOST)) as launcher:
        await_true(lambda: bool(RunFolder(run).checkpoints.updates()))
        killed = rank_process(launcher.pid, 1)
        os.kill(killed, signal.SIGKILL)
        _, err = launcher.communicate(timeout=90)
    assert launcher.returncode != 0
    assert len(re.findall(r"^error: rank 0 on host .*: a rank has failed", err, re.M)) == 1
    cause = err.partition("Root Cause")[2]
    assert re.search(r"rank +: 1 ", cause)
    assert f"exitcode  : -9 (pid: {killed})" in cause
    # Its newest checkpoint can be continued by another number of processes.
    done = RunFolder(run).checkpoints.updates()[-1]
    out, _ = train_by(2, tiny_recipe, run, *ENDLESS, f"training.max_updates={done + 2}")
    assert out.startswith(f"{run}: valid, 7 pairs, greedy: loss ")
    assert [event["update"] for event in journal(run, "resume")] == [done]


@pytest.mark.slow
@pytest.mark.parametrize("whom", ["torchrun", "rank 1"])
def test_signal_to_one_rank_stops_all_after_the_same_update(
    whom: str, tiny_recipe: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    with training(command(tiny_recipe, run, ENDLESS, processes=2, how=ONE_HOST)) as launcher:
        await_true(lambda: bool(RunFolder(run).checkpoints.updates()))
        told = launcher.pid if whom == "torchrun" else rank_process(launcher.pid, 1)
        os.kill(told, signal.SIGTERM)
        _, err = launcher.communicate(timeout=60)
    stopped = re.findall(
        r"^stopped after update ([\d,]+); run the same command again", err, re.MULTILINE
    )
    assert len(stopped) == 1
    assert "error:" not in err
    assert RunFolder(run).checkpoints.updates()[-1] == int(stopped[0].replace(",", ""))


def wire(host: str) -> str:
    """Return the name of a namespace's network interface."""
    return f"{host[-9:]}w"


@pytest.fixture
def two_hosts() -> Iterator[list[str]]:
    """Return the names of two network namespaces with a wire between them."""
    names = [f"mt{os.getpid()}{letter}" for letter in "ab"]
    if shutil.which("ip") is None or os.geteuid() != 0:
        pytest.skip("needs `ip` and the right to make network namespaces")
    try:
        for name in names:
            ip("netns", "add", name)
    except subprocess.CalledProcessError:
        pytest.skip("this system makes no network namespaces")
    try:
        one, other = ([wire(name), "netns", name] for name in names)
        ip("link", "add", *one, "type", "veth", "peer", *other)
        for number, name in enumerate(names, start=1):
            ip("-n", name, "address", "add", f"10.77.0.{number}/24", "dev", wire(name))
            ip("-n", name, "link", "set", wire(name), "up")
            ip("-n", name, "link", "set", "lo", "up")
        yield names
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "delete", name], check=False, capture_output=True)


def ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True)


def on_host(
    names: list[str], number: int, recipe: Path, run: Path, settings: Sequence[str]
) -> list[str]:
    """Return the command for one of two hosts, each with its own cache."""
    how = ["--nnodes", "2", "--rdzv-backend", "c10d", "--rdzv-endpoint", "10.77.0.1:29400"]
    # Both namespaces have the same host name, by which torchrun would confuse them.
    how += ["--local-addr", f"10.77.0.{number + 1}", "--rdzv-conf", f"is_host={1 - number}"]
    arguments = command(recipe, run, settings, processes=1, how=how)
    variables = [f"GLOO_SOCKET_IFNAME={wire(names[number])}", "TIMEOUT_SECONDS=20"]
    variables.append(f"MT_CACHE={run.with_name(f'cache-{number}')}")
    return ["ip", "netns", "exec", names[number], "env", *variables, *arguments]


@pytest.mark.slow
def test_two_hosts_train_as_one_process_until_their_wire_is_cut(
    two_hosts: list[str], whole: Path, tiny_recipe: Path, tmp_path: Path
) -> None:
    run, settings = tmp_path / "run", [EXACT[0], *ENDLESS, "training.keep_last=1000000"]
    first, second = (on_host(two_hosts, number, tiny_recipe, run, settings) for number in (0, 1))
    with training(first) as here, training(second) as there:
        await_true(lambda: bool(RunFolder(run).checkpoints.updates()), seconds=100)
        ranks = [*children(here.pid), *children(there.pid)]
        ip("-n", two_hosts[0], "link", "set", wire(two_hosts[0]), "down")
        await_true(lambda: not any(map(is_alive, ranks)), seconds=100)
        # The torchrun beside the store ends; the other one may wait for the store.
        _, err = here.communicate(timeout=60)
        there.kill()
        _, far_err = there.communicate()
    assert re.search(r"^error: rank 0 on host .*: a rank has failed", err, re.M)
    assert re.search(r"^error: rank 1 on host .*: a rank has failed", far_err, re.M)
    stores = [[each.name for each in tmp_path.glob(f"cache-{n}/pairs/*.arrow")] for n in (0, 1)]
    assert stores[0] == stores[1] != []
    one, other = (RunFolder(each).checkpoints.path(10) / MODEL for each in (whole, run))
    assert farthest(one, other) < 1e-5


def is_alive(process: int) -> bool:
    try:
        return "\nState:\tZ" not in Path(f"/proc/{process}/status").read_text()
    except OSError:
        return False
