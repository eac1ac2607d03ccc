"""Collectives, summed gradients, and the end of a job in which one rank fails."""

import re
from datetime import timedelta
from typing import Any

import pytest
import torch
from torch import nn

from mt.errors import UserError
from mt.training.distributed import World, connect_ranks, fix_bucket_order

Scenarios = dict[str, dict[int, Any]]
FAILED = r"error: rank {} on host {}: a rank has failed or cannot be reached \(.*newest checkpoint"


def test_collectives_return_the_same_on_all_ranks(scenarios: Scenarios) -> None:
    results = [rank.result for rank in scenarios["collectives"].values()]
    assert [result.pop("is_main") for result in results] == [True, False, False, False]
    broadcast = {"text": "größer", "number": 0.1}
    assert results == 4 * [{"broadcast": broadcast, "max": [3, 0], "sum": [4.0, 6.0]}]


def test_rank0_first_then_first_rank_of_each_other_host(scenarios: Scenarios) -> None:
    """Ranks 0 and 1 are on one host, 2 and 3 on another."""
    before = [rank.result for rank in scenarios["rank0 first"].values()]
    assert before[0] == ""
    assert before[2] == "0"
    assert {before[1][:2], before[3][:2]} == {"02"}


@pytest.mark.parametrize("update", ["all", "three"])
def test_gradient_is_that_of_one_process(update: str, scenarios: Scenarios) -> None:
    """With several micro-batches on each rank, and with three pairs for four ranks."""
    results = [rank.result[update] for rank in scenarios["gradients"].values()]
    for result in results:
        assert result["off"] < 1e-6 < 1e-3 * result["largest"]
    tokens = [result["tokens"] for result in results]
    assert sum(map(sum, tokens)) == results[0]["of"]
    if update == "all":
        assert {len(each) for each in tokens} == {3}
    else:
        assert tokens[3] == [0]
        assert all(len(each) == 1 and each[0] > 0 for each in tokens[:3])


def test_resumed_training_adds_gradients_in_the_same_order(scenarios: Scenarios) -> None:
    assert [rank.result for rank in scenarios["resumed"].values()] == [True] * 4


def test_speed_is_that_of_all_ranks_together(scenarios: Scenarios) -> None:
    """One rank has at most 250 tokens a second."""
    results = [rank.result for rank in scenarios["speed"].values()]
    assert 300 < results[0][0] < 1000
    assert results[1:] == 3 * [[None, 1]]


@pytest.mark.parametrize(
    ("scenario", "message"),
    [
        ("different weights", r"the hash of the weights differs: \w{64} here, \w{64} on rank 0; "),
        ("different configs", r"`training.learning_rate` differs: 0.1 here, 0.2 on rank 0; "),
    ],
)
def test_ranks_with_different_facts_do_not_train(
    scenario: str, message: str, scenarios: Scenarios
) -> None:
    ranks = scenarios[scenario]
    assert re.match(rf"error: rank 1 on host a: {message}all ranks must ", *ranks[1].errors)
    assert [rank.status for rank in ranks.values()] == [2, 2, 2]


@pytest.mark.parametrize(
    ("scenario", "status"), [("killed", -9), ("killed between updates", -9), ("frozen", "stuck")]
)
def test_first_rank_of_a_host_reports_a_lost_rank(
    scenario: str, status: int | str, scenarios: Scenarios
) -> None:
    ranks = scenarios[scenario]
    assert [rank.status for rank in ranks.values()] == [2, status, 2]
    assert re.match(FAILED.format(0, "a"), *ranks[0].errors)
    assert ranks[1].errors == ranks[2].errors == []


def test_absent_rank_ends_the_others(scenarios: Scenarios) -> None:
    ranks = scenarios["absent"]
    assert re.match(FAILED.format(0, "a"), *ranks[0].errors)
    assert (ranks[2].status, ranks[2].errors) == (2, [])


def test_user_error_names_its_rank_and_every_host_reports(scenarios: Scenarios) -> None:
    """Ranks 0 and 1 are on one host, 2 and 3 on another."""
    ranks = scenarios["user error"]
    assert {rank.status for rank in ranks.values()} == {2}
    assert ranks[1].errors == ["error: rank 1 on host a: lower the rate"]
    reason = "ended by an error of rank 1 on host a: lower the rate"
    assert ranks[0].errors == [f"error: rank 0 on host a: {reason}"]
    assert ranks[2].errors == [f"error: rank 2 on host b: {reason}"]
    assert ranks[3].errors == []


def test_defect_keeps_its_traceback_and_ends_other_ranks(scenarios: Scenarios) -> None:
    ranks = scenarios["defect"]
    assert ranks[1].stderr.rstrip().endswith("RuntimeError: shapes differ")
    assert [rank.status for rank in ranks.values()] == [2, 1, 2]


def test_unreachable_store_is_a_user_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mt.training.distributed.TIMEOUT", timedelta(seconds=0.5))
    variables = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    unreachable = pytest.raises(UserError)
    with unreachable, connect_ranks("cpu"):
        pass
    monkeypatch.delenv("MASTER_ADDR")  # as in a job script without torchrun
    missing = pytest.raises(UserError, match="MASTER_ADDR")
    with missing, connect_ranks("cpu"):
        pass


def test_alone_every_method_is_local() -> None:
    module, tensor = nn.Linear(2, 1), torch.ones(2)
    with connect_ranks("cpu") as here:
        assert here == World(rank=0, size=1, local_rank=0)
        assert here.is_main
        assert here.wrap(module) is module
        assert here.all_reduce_sum(tensor) is tensor
        assert here.all_reduce_max(-3) == -3
        value = object()
        assert here.broadcast(value) is value
        assert here.rank0_first(lambda: 7) == 7
        here.barrier()
        here.agree({"the seed": "1"})
        assert here.place(torch.device("cuda")) == torch.device("cuda")
        fix_bucket_order(module, lambda: pytest.fail("one process alone has no buckets"))
    assert not torch.distributed.is_initialized()


def test_each_rank_of_a_host_has_its_own_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr("platform.node", lambda: "giant")
    cuda = torch.device("cuda")
    places = [World(rank, 4, rank % 2).place(cuda) for rank in range(4)]
    assert [place.index for place in places] == [0, 1, 0, 1]
    with pytest.raises(UserError):
        World(2, 3, 2).place(cuda)
    with pytest.raises(UserError):
        World(0, 2, 0).place(torch.device("mps"))
