"""A program that forks the ranks of many small trainings and prints how each rank ended.

Forks, because a new process would spend seconds on importing torch.
"""

import json
import os
import platform
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
import torch._dynamo  # noqa: F401 - DistributedDataParallel imports it: here once, not in each fork
from torch import Tensor, nn
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from mt.data.batches import Batch, split_update
from mt.errors import UserError, run_reporting_errors
from mt.training import distributed
from mt.training.distributed import World, connect_ranks, fix_bucket_order
from mt.training.loader import rank_batches
from mt.training.loss import LossSums
from mt.training.resources import join_measurements, measure_speed
from mt.training.setup import agree_on_config, agree_on_start
from mt.training.state import TrainState
from mt.training.step import TokenCounts, TrainingPass, train_step
from tests import factories

Work = Callable[[World], object]
LONG_SECONDS = 60.0
AT_ONCE = 7


@dataclass
class Scenario:
    """What each rank does once all are connected."""

    work: Work
    size: int = 3
    hosts: str = "aaaa"
    absent: tuple[int, ...] = ()
    frozen: tuple[int, ...] = ()
    timeout: float = LONG_SECONDS


def record_rank(here: World) -> str:
    """Append this rank to a file and return what was there before."""
    order = Path(os.environ["SCENARIO_FOLDER"]) / "order"
    before = order.read_text() if order.exists() else ""
    with order.open("a") as file:
        file.write(f"{here.rank}")
    return before


def rank0_first(here: World) -> object:
    return here.rank0_first(lambda: record_rank(here))


def collectives(here: World) -> object:
    return {
        "is_main": here.is_main,
        "broadcast": here.broadcast({"text": "größer", "number": 0.1} if here.is_main else {}),
        "max": [here.all_reduce_max(here.rank), here.all_reduce_max(-here.rank)],
        "sum": here.all_reduce_sum(torch.tensor([1.0, here.rank])).tolist(),
    }


def gradient(here: World, update: range, budget: int) -> tuple[Tensor, list[int]]:
    """Return the gradient of some pairs, and the target tokens of this rank's micro-batches."""
    learner = factories.learner(factories.transformer(vocabulary=50), clip=0.0)
    learner = replace(learner, training_pass=here.wrap(learner.training_pass))
    pairs = factories.examples(32, vocabulary=50)
    lengths = np.array([(len(each.source), len(each.target)) for each in pairs], np.int32)
    store: Any = SimpleNamespace(examples=lambda indices: [pairs[index] for index in indices])
    indices = np.array(update)
    cut = split_update([indices], lengths, max_tokens_per_batch=budget, ranks=here.size)
    batches = rank_batches(store, cut, here.rank)
    tokens = TokenCounts(*(int(side) for side in lengths[indices].sum(axis=0)))
    train_step(learner, batches, 0.0, tokens=tokens)
    found = [each.grad.flatten() for each in learner.model.parameters() if each.grad is not None]
    return torch.cat(found), [batch.target_tokens for batch in batches]


def gradients(here: World) -> object:
    """Compare the gradient over the ranks with that of one process."""
    report = {}
    for name, update, budget in (("all", range(32), 24), ("three", range(3), 1000)):
        found, tokens = gradient(here, update, budget)
        alone, whole = gradient(World(), update, 1000)
        report[name] = {"off": float((found - alone).abs().max()), "tokens": tokens}
        report[name] |= {"largest": float(alone.abs().max()), "of": sum(whole)}
    return report


def resumed(here: World) -> object:
    """Compare the third of three updates with the same update on the weights after the second."""

    def model() -> nn.Module:
        torch.manual_seed(1)
        return nn.Sequential(nn.Linear(40, 300), nn.Tanh(), nn.Linear(300, 7), nn.Linear(7, 1))

    def rows(update: int) -> Tensor:
        return torch.randn(32, 40, generator=torch.Generator().manual_seed(update))

    second: dict[str, Tensor] = {}

    def train(module: nn.Module, updates: list[int]) -> list[Tensor]:
        wrapped = here.wrap(module)
        fix_bucket_order(wrapped, lambda: wrapped(rows(0)[:1]).sum())
        assert all(parameter.grad is None for parameter in module.parameters())
        optimizer = torch.optim.SGD(module.parameters(), lr=0.01)
        for update in updates:
            wrapped(rows(update)[here.rank :: here.size]).square().sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            if update == 2:
                second.update({key: each.clone() for key, each in module.state_dict().items()})
        return [parameter.detach().clone() for parameter in module.parameters()]

    whole, again = train(model(), [1, 2, 3]), model()
    again.load_state_dict(second)
    return all(map(torch.equal, whole, train(again, [3])))


def speed(here: World) -> object:
    """Measure the speed of passes that take four milliseconds a token, beside rank 0's config."""
    config = factories.config(training={"max_updates": 1, "target_tokens_per_update": 120})
    forward = TrainingPass.forward

    def slow(training_pass: TrainingPass, batch: Batch) -> LossSums:
        time.sleep(0.004 * batch.target_tokens)
        return forward(training_pass, batch)

    TrainingPass.forward = slow  # type: ignore[assignment, method-assign]
    measured, lengths = None, np.full((60, 2), 10, np.int32)
    if here.is_main:
        measured = measure_speed(config, lengths, (50, 50), world=here, seconds=0.5)
    join_measurements(here)
    return [measured, here.broadcast(1 + here.rank)]


def different_weights(here: World) -> None:
    learner = factories.learner()
    if here.rank == 1:
        with torch.no_grad():
            next(learner.model.parameters())[3, 3] += 1e-7
    corpus: Any = SimpleNamespace(tokenizer=SimpleNamespace(fingerprint="abc"), store=[0])
    agree_on_start(here, corpus, learner, TrainState())
    here.barrier()


def different_configs(here: World) -> None:
    rate = 0.1 if here.rank == 1 else 0.2
    agree_on_config(here, factories.config(training={"learning_rate": rate}).flat())
    here.barrier()


def killed(here: World) -> None:
    if here.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    here.barrier()


def killed_between_updates(here: World) -> None:
    learner = here.wrap(nn.Linear(3, 1))
    for update in range(3):
        if here.rank == 1 and update == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        learner(torch.ones(2, 3)).sum().backward()


def frozen(here: World) -> None:
    if here.rank == 1:
        os.kill(os.getpid(), signal.SIGSTOP)
    here.all_reduce_max(0)


def user_error(here: World) -> None:
    if here.rank == 1:
        raise UserError("lower the rate")
    here.barrier()


def defect(here: World) -> None:
    if here.rank == 1:
        raise RuntimeError("shapes differ")
    here.barrier()


SCENARIOS = {
    # The longest first.
    "frozen": Scenario(frozen, frozen=(1,), timeout=5.0),
    "absent": Scenario(user_error, absent=(1,), timeout=4.0),
    "killed": Scenario(killed),
    "killed between updates": Scenario(killed_between_updates),
    "user error": Scenario(user_error, size=4, hosts="aabb"),
    "defect": Scenario(defect),
    "collectives": Scenario(collectives, size=4),
    "gradients": Scenario(gradients, size=4),
    "rank0 first": Scenario(rank0_first, size=4, hosts="aabb"),
    "resumed": Scenario(resumed, size=4),
    "speed": Scenario(speed, size=4),
    "different weights": Scenario(different_weights),
    "different configs": Scenario(different_configs),
}


def run_rank(scenario: Scenario, rank: int, folder: Path) -> int:
    """Run one rank; its result and its stderr are written to files."""
    stderr = os.open(folder / f"stderr-{rank}", os.O_CREAT | os.O_WRONLY | os.O_APPEND)
    os.dup2(stderr, sys.stderr.fileno())
    hosts = scenario.hosts
    platform.node = lambda: hosts[rank]
    distributed.TIMEOUT = timedelta(seconds=scenario.timeout)
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(hosts[:rank].count(hosts[rank]))}

    def work() -> int:
        with connect_ranks("cpu") as here:
            here.barrier()  # a rank that dies while others connect is lost after TIMEOUT only
            (folder / f"result-{rank}").write_text(json.dumps(scenario.work(here)))
        return 0

    try:
        return run_reporting_errors(work)
    except SystemExit as leaving:
        return int(str(leaving.code))
    except Exception:
        traceback.print_exc()
        return 1


def run_scenario(scenario: Scenario, folder: Path) -> int:
    """Start the ranks, keep their store and wait, as torchrun does; write down how they ended."""
    os.environ |= {
        "WORLD_SIZE": str(scenario.size),
        "MASTER_ADDR": "127.0.0.1",
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "SCENARIO_FOLDER": str(folder),
    }
    reading, writing = os.pipe()
    ranks = {}
    for rank in set(range(scenario.size)) - set(scenario.absent):
        # Before there is a store, whose thread would not survive a fork.
        ranks[forked(partial(_rank_with_port, scenario, rank, folder, reading))] = rank
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    port = f"{store.port:5}".encode()
    os.write(writing, port * scenario.size)
    statuses = await_end(ranks, scenario.frozen)
    result = {rank: folder / f"result-{rank}" for rank in ranks.values()}
    report = {
        rank: {
            "status": statuses[rank],
            "stderr": (folder / f"stderr-{rank}").read_text(),
            "result": json.loads(result[rank].read_text()) if result[rank].exists() else None,
        }
        for rank in sorted(ranks.values())
    }
    (folder / "report").write_text(json.dumps(report))
    return 0


def _rank_with_port(scenario: Scenario, rank: int, folder: Path, reading: int) -> int:
    os.environ["MASTER_PORT"] = os.read(reading, 5).decode().strip()
    return run_rank(scenario, rank, folder)


def forked(work: Callable[[], int]) -> int:
    """Call `work` in a new process and return the process id."""
    process = os.fork()
    if process == 0:
        status = work()
        sys.stderr.flush()
        os._exit(status)
    return process


def await_end(ranks: dict[int, int], frozen: tuple[int, ...]) -> dict[int, int | str]:
    """Return the exit statuses of the ranks; kill those that do not end."""
    statuses: dict[int, int | str] = {}
    deadline = time.monotonic() + LONG_SECONDS
    while len(statuses) < len(ranks):
        process, status = os.waitpid(-1, os.WNOHANG)
        if process:
            statuses[ranks[process]] = os.waitstatus_to_exitcode(status)
        elif time.monotonic() > deadline or set(ranks.values()) - set(statuses) == set(frozen):
            for stuck in [each for each, rank in ranks.items() if rank not in statuses]:
                os.kill(stuck, signal.SIGKILL)
                os.waitpid(stuck, 0)
                statuses[ranks[stuck]] = "stuck"
        else:
            time.sleep(0.02)
    return statuses


def main() -> None:
    # The store looks up the names of its clients; do not wait for a busy name server.
    os.environ["RES_OPTIONS"] = "timeout:1 attempts:1"
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as name:
        folder, agents = Path(name), 0
        for scenario, described in SCENARIOS.items():
            if agents == AT_ONCE:
                os.wait()
                agents -= 1
            (folder / scenario).mkdir()
            forked(partial(run_scenario, described, folder / scenario))
            agents += 1
        for _ in range(agents):
            os.wait()
        reports = {each: json.loads((folder / each / "report").read_text()) for each in SCENARIOS}
    sys.stdout.write(json.dumps(reports))


if __name__ == "__main__":
    main()
