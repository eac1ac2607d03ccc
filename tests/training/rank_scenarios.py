"""A program that forks the ranks of many small trainings at once and prints what became of them.

Forked, because each process of its own would spend seconds on importing torch.
"""

import json
import os
import platform
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
import torch._dynamo  # noqa: F401 - what DistributedDataParallel imports: once, not in each fork
from torch import Tensor, nn
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from mt.config import Config, ModelConfig
from mt.data.batches import split_update
from mt.data.store import Example
from mt.errors import UserError, run_reporting_errors
from mt.model.transformer import Transformer
from mt.training import distributed as heartbeat
from mt.training import distributed as meeting
from mt.training.distributed import World, accumulate, settle, world
from mt.training.loader import rank_batches
from mt.training.optimizer import choose_precision
from mt.training.setup import agree_on_config, agree_on_start
from mt.training.state import TrainState
from mt.training.step import Learner, TokenCounts, TrainingPass, train_step

Work = Callable[[World], object]
FAR_TOO_LONG_SECONDS = 60.0
AT_ONCE = 5


@dataclass
class Scenario:
    """What each rank does once all are connected."""

    work: Work
    size: int = 3
    hosts: str = "aaaa"
    absent: tuple[int, ...] = ()
    frozen: tuple[int, ...] = ()
    own_store: bool = False
    """Rank 0 keeps the store; otherwise it lives apart from the ranks, as torchrun's does."""


def note_rank(here: World) -> str:
    """Add this rank to those that have been here, and return them."""
    order = Path(os.environ["SCENARIO_FOLDER"]) / "order"
    seen = order.read_text() if order.exists() else ""
    with order.open("a") as file:
        file.write(f"{here.rank}")
    return seen


def work_in_turn(here: World) -> object:
    return here.rank0_first(lambda: note_rank(here))


def talk(here: World) -> object:
    return {
        "leads": here.is_main,
        "share": here.broadcast({"text": "größer", "number": 0.1} if here.is_main else here.rank),
        "share nothing": here.broadcast(None if here.is_main else 1),
        "largest": [here.all_reduce_max(here.rank), here.all_reduce_max(-here.rank)],
        "add_up": here.all_reduce_sum(torch.tensor([1.0, here.rank])).tolist(),
        "interface": os.environ["GLOO_SOCKET_IFNAME"],
    }


def small_model() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(40, 300), nn.Tanh(), nn.Linear(300, 7), nn.Linear(7, 1))


def rows(update: int) -> Tensor:
    return torch.randn(32, 40, generator=torch.Generator().manual_seed(update))


def learner_of(here: World) -> Learner:
    torch.manual_seed(1)
    shape: dict[str, Any] = {"d_model": 16, "d_ff": 32, "heads": 2, "dropout": 0.0}
    config = ModelConfig(**shape, encoder_layers=1, decoder_layers=1)
    model = Transformer(config, source_vocabulary=50, target_vocabulary=50)
    return Learner(
        model=model,
        training_pass=here.wrap(TrainingPass(model, label_smoothing=0.1)),
        optimizer=torch.optim.Adam(model.parameters()),
        precision=choose_precision("fp32", torch.device("cpu")),
        gradient_clip=0.0,
    )


class Pairs:
    """Thirty-two pairs of random tokens."""

    def __init__(self) -> None:
        draw = np.random.default_rng(1)
        sides = [draw.integers(4, 50, size=(2, draw.integers(2, 12))) for _ in range(32)]
        self.pairs = [Example(index, *side) for index, side in enumerate(sides)]
        self.lengths = np.array([(len(e.source), len(e.target)) for e in self.pairs], np.int32)

    def examples(self, indices: Sequence[int]) -> list[Example]:
        return [self.pairs[index] for index in indices]


def gradient(here: World, update: range, budget: int) -> tuple[Tensor, list[int]]:
    """The gradient of some pairs, and how many target tokens each micro-batch of this rank had."""
    store: Any = Pairs()
    learner = learner_of(here)
    indices = np.array(update)
    cut = split_update(indices, store.lengths, max_tokens_per_batch=budget, ranks=here.size)
    batches = rank_batches(store, cut, here.rank)
    tokens = TokenCounts(*(int(side) for side in store.lengths[indices].sum(axis=0)))
    train_step(learner, batches, 0.0, tokens=tokens)
    found = [parameter.grad for parameter in learner.model.parameters()]
    assert all(each is not None for each in found)
    flat = torch.cat([each.flatten() for each in found if each is not None])
    return flat, [batch.target_tokens for batch in batches]


def gradients(here: World) -> object:
    """How far the gradient over the ranks is from that of one process, and who did how much."""
    report = {}
    for name, update, budget in (("all", range(32), 24), ("three", range(3), 1000)):
        found, tokens = gradient(here, update, budget)
        alone, whole = gradient(World(), update, 1000)
        assert len(whole) == 1
        report[name] = {"off": float((found - alone).abs().max()), "tokens": tokens}
        report[name] |= {"largest": float(alone.abs().max()), "of": whole[0]}
    return report


def disagree_about_weights(here: World) -> None:
    learner: Learner = learner_of(World())
    if here.rank == 1:
        with torch.no_grad():
            next(learner.model.parameters())[3, 3] += 1e-7
    corpus: Any = SimpleNamespace(tokenizer=SimpleNamespace(fingerprint="abc"), store=[0])
    agree_on_start(here, corpus, learner, TrainState())
    here.barrier()


def disagree_about_config(here: World) -> None:
    rate = 0.1 if here.rank == 1 else 0.2
    data: Any = {"source_language": "en", "target_language": "de"}
    data |= {split: {"source": "a.en", "target": "a.de"} for split in ("train", "valid")}
    config = Config.model_validate({"data": data, "training": {"learning_rate": rate}})
    agree_on_config(here, config)
    here.barrier()


def resumed(here: World) -> object:
    """Three updates in a row, and the third alone on the weights after the second."""
    folder = Path(os.environ["SCENARIO_FOLDER"])

    def train(model: nn.Module, updates: list[int]) -> list[Tensor]:
        wrapped = here.wrap(model)
        settle(wrapped, lambda: wrapped(rows(0)[:1]).sum())
        assert all(parameter.grad is None for parameter in model.parameters())
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        for update in updates:
            for part in accumulate(wrapped, [rows(update)[here.rank :: here.size]]):
                wrapped(part).square().sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            if update == 2 and here.is_main:
                torch.save(model.state_dict(), folder / "weights")
        return [parameter.detach().clone() for parameter in model.parameters()]

    whole = train(small_model(), [1, 2, 3])
    here.barrier()
    model = small_model()
    model.load_state_dict(torch.load(folder / "weights", weights_only=True))
    last = train(model, [3])
    return all(torch.equal(one, other) for one, other in zip(whole, last, strict=True))


def disagree(here: World) -> None:
    here.agree({"the seed": "1", "the version of torch": "2.8" if here.rank == 2 else "2.9"})
    here.barrier()


def die_while_others_wait(here: World) -> None:
    if here.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    here.barrier()


def die_while_others_work(here: World) -> None:
    if here.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(FAR_TOO_LONG_SECONDS)


def freeze(here: World) -> None:
    if here.rank == 1:
        os.kill(os.getpid(), signal.SIGSTOP)
    here.barrier()


def be_stopped_beside_a_dead_rank(here: World) -> None:
    """What torchrun does to the ranks beside a dead one."""
    if here.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGTERM)
    here.barrier()


def mend_it(here: World) -> None:
    if here.rank == 1:
        raise UserError("lower the rate")
    here.barrier()


def all_mend_it(here: World) -> None:
    raise UserError("lower the rate")


def defect(here: World) -> None:
    if here.rank == 1:
        raise KeyError("forgotten")
    here.barrier()


def runtime_defect(here: World) -> None:
    if here.rank == 1:
        raise RuntimeError("shapes differ")
    here.barrier()


def lose_the_store(here: World) -> None:
    if here.rank == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(FAR_TOO_LONG_SECONDS)


SCENARIOS = {
    # The longest first.
    "dies while others wait": Scenario(die_while_others_wait),
    "dies while others work": Scenario(die_while_others_work),
    "freezes": Scenario(freeze, frozen=(1,)),
    "has a runtime defect": Scenario(runtime_defect),
    "never comes": Scenario(mend_it, absent=(1,)),
    "talk": Scenario(talk, size=4),
    "gradients": Scenario(gradients, size=4),
    "work in turn on two hosts": Scenario(work_in_turn, size=4, hosts="aabb"),
    "resumed": Scenario(resumed, size=4),
    "disagree": Scenario(disagree),
    "weights differ": Scenario(disagree_about_weights),
    "configs differ": Scenario(disagree_about_config),
    "stopped beside a dead rank": Scenario(be_stopped_beside_a_dead_rank),
    "has a user's error": Scenario(mend_it),
    "has a user's error, two hosts": Scenario(mend_it, size=4, hosts="aabb"),
    "all have a user's error": Scenario(all_mend_it),
    "has a defect": Scenario(defect),
    "the store goes": Scenario(lose_the_store, own_store=True),
}


def run_rank(scenario: Scenario, rank: int, folder: Path) -> int:
    """Be one rank; what it returns is written to its file, what it says on stderr to another."""
    stderr = os.open(folder / f"stderr-{rank}", os.O_CREAT | os.O_WRONLY | os.O_APPEND)
    os.dup2(stderr, sys.stderr.fileno())
    hosts = scenario.hosts
    platform.node = lambda: hosts[rank]
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(hosts[:rank].count(hosts[rank]))}

    def work() -> int:
        with world("cpu") as here:
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
    """Do as torchrun does: start the ranks, keep their store, wait; write down how they ended."""
    os.environ |= {
        "WORLD_SIZE": str(scenario.size),
        "MASTER_ADDR": "127.0.0.1",
        "TORCHELASTIC_USE_AGENT_STORE": str(not scenario.own_store),
        "SCENARIO_FOLDER": str(folder),
    }
    reading, writing = os.pipe()
    ranks = {}
    for rank in set(range(scenario.size)) - set(scenario.absent):
        # Before there is a store: its thread and a fork do not go together.
        ranks[forked(partial(_rank_with_port, scenario, rank, folder, reading))] = rank
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    port = f"{store.port:5}".encode()
    if scenario.own_store:
        del store
    os.write(writing, port * scenario.size)
    statuses = await_end(ranks, scenario.frozen)
    report = {
        rank: {
            "process": process,
            "status": statuses[rank],
            "stderr": (folder / f"stderr-{rank}").read_text(),
            "result": _result(folder / f"result-{rank}"),
        }
        for process, rank in ranks.items()
    }
    (folder / "report").write_text(json.dumps(report))
    return 0


def _rank_with_port(scenario: Scenario, rank: int, folder: Path, reading: int) -> int:
    os.environ["MASTER_PORT"] = os.read(reading, 5).decode().strip()
    return run_rank(scenario, rank, folder)


def forked(work: Callable[[], int]) -> int:
    """Do work in a process of its own and return its number."""
    process = os.fork()
    if process == 0:
        status = work()
        sys.stderr.flush()
        os._exit(status)
    return process


def await_end(ranks: dict[int, int], frozen: tuple[int, ...]) -> dict[int, int | str]:
    """Return how each rank ended; those that do not end are killed."""
    statuses: dict[int, int | str] = {}
    deadline = time.monotonic() + FAR_TOO_LONG_SECONDS / 2
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
    # The store looks up the name of whoever connects; a name server that is busy is not waited for.
    os.environ["RES_OPTIONS"] = "timeout:1 attempts:1"
    heartbeat.BEAT_SECONDS = 0.3
    meeting.MEETING_TIME = timedelta(seconds=3)
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


def _result(path: Path) -> object:
    return json.loads(path.read_text()) if path.exists() else None


if __name__ == "__main__":
    main()
