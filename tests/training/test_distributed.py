"""Ranks that talk to each other, and gradients that are summed over them."""

import re
from typing import Any

import pytest
import torch
from torch import nn

from mt.errors import UserError
from mt.training.distributed import World, accumulate, settle, world

Scenarios = dict[str, dict[int, Any]]


def test_all_ranks_hear_the_same(scenarios: Scenarios) -> None:
    ranks = scenarios["talk"]
    results = [rank.result for rank in ranks.values()]
    assert [result.pop("leads") for result in results] == [True, False, False, False]
    assert results == [results[0]] * 4
    assert results[0]["share"] == {"text": "größer", "number": 0.1}
    assert results[0]["share nothing"] is None
    assert results[0]["largest"] == [3, 0]
    assert results[0]["add_up"] == [4.0, 0.0 + 1.0 + 2.0 + 3.0]


def test_the_ranks_of_each_other_host_wait_for_their_first(scenarios: Scenarios) -> None:
    """Ranks 0 and 1 are on one host, 2 and 3 on another."""
    seen = [rank.result for rank in scenarios["work in turn on two hosts"].values()]
    assert seen[0] == ""
    assert seen[2] == "0"
    assert {seen[1][:2], seen[3][:2]} == {"02"}


@pytest.mark.parametrize("update", ["all", "three"])
def test_the_gradient_is_that_of_one_process(update: str, scenarios: Scenarios) -> None:
    """Of 32 pairs in several micro-batches a rank, and of three pairs on four ranks."""
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


def test_a_resumed_training_adds_up_in_the_same_order(scenarios: Scenarios) -> None:
    assert [rank.result for rank in scenarios["resumed"].values()] == [True] * 4


def test_what_differs_between_ranks_is_named(scenarios: Scenarios) -> None:
    ranks = scenarios["disagree"]
    assert [rank.told for rank in ranks.values()] == [
        [],
        [],
        [
            "error: the version of torch differs: 2.8 on rank 2 (host a), 2.9 on rank 0; "
            "all must train with the same"
        ],
    ]


@pytest.mark.parametrize(
    ("scenario", "told"),
    [
        (
            "weights differ",
            r"error: the hash of the weights differs: \w{64} on rank 1 \(host a\), ",
        ),
        (
            "configs differ",
            r"error: `training.learning_rate` differs: 0.1 on rank 1 \(host a\), 0.2 on rank 0; ",
        ),
    ],
)
def test_ranks_that_would_not_train_the_same_are_refused(
    scenario: str, told: str, scenarios: Scenarios
) -> None:
    ranks = scenarios[scenario]
    assert [len(rank.told) for rank in ranks.values()] == [0, 1, 0]
    assert re.match(told, ranks[1].told[0])
    assert [rank.status for rank in ranks.values()] == [2, 2, 2]


def test_alone_everything_is_the_identity() -> None:
    module, tensor = nn.Linear(2, 1), torch.ones(2)
    with world("cpu") as here:
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
        assert list(accumulate(module, [1, 2, 3])) == [1, 2, 3]
        settle(module, lambda: pytest.fail("one process alone has nothing to settle"))
    assert not torch.distributed.is_initialized()


def test_every_process_has_a_gpu_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr("platform.node", lambda: "giant")
    cuda = torch.device("cuda")
    places = [World(rank, 4, rank % 2).place(cuda) for rank in range(4)]
    assert [place.index for place in places] == [0, 1, 0, 1]
    with pytest.raises(UserError, match=r"^host giant has 2 GPUs, too few for rank 2, its process"):
        World(2, 3, 2).place(cuda)
    with pytest.raises(
        UserError, match=r"device `mps`: several processes train on `cuda` or `cpu`"
    ):
        World(0, 2, 0).place(torch.device("mps"))
