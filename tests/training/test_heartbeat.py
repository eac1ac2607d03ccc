"""Where one rank dies or fails, all end soon, and say whose fault it was."""

from typing import Any

import pytest

Scenarios = dict[str, dict[int, Any]]
GO_ON = "died, or cannot be reached any more; the same command goes on from the newest checkpoint"


@pytest.mark.parametrize(
    "scenario",
    ["dies while others wait", "dies while others work", "stopped beside a dead rank", "freezes"],
)
def test_each_survivor_names_the_rank_that_died(scenario: str, scenarios: Scenarios) -> None:
    first, dead, last = scenarios[scenario].values()
    assert dead.status in {-9, "stuck"}
    for survivor in (first, last):
        assert survivor.told == [f"error: rank 1 (host a, process {dead.process}): {GO_ON}"]
        assert survivor.status == 2


def test_a_rank_cut_off_from_the_store_names_the_host_of_the_store(scenarios: Scenarios) -> None:
    _, *others = scenarios["the store goes"].values()
    for rank in others:
        assert rank.told == [f"error: host a, that of rank 0 and of torchrun's store: {GO_ON}"]
        assert rank.status == 2


@pytest.mark.parametrize("scenario", ["has a user's error", "all have a user's error"])
def test_what_a_user_can_mend_is_told_once(scenario: str, scenarios: Scenarios) -> None:
    ranks = scenarios[scenario].values()
    assert [line for rank in ranks for line in rank.told] == ["error: lower the rate"]
    assert [rank.status for rank in ranks] == [2, 2, 2]


def test_on_another_host_it_is_told_once_too(scenarios: Scenarios) -> None:
    ranks = scenarios["has a user's error, two hosts"]
    away = f"error: rank 1 (host a, process {ranks[1].process}): lower the rate"
    told = {number: rank.told for number, rank in ranks.items()}
    assert told == {0: [], 1: ["error: lower the rate"], 2: [away], 3: []}
    assert {rank.status for rank in ranks.values()} == {2}


@pytest.mark.parametrize(
    ("scenario", "error"),
    [
        ("has a defect", "KeyError: 'forgotten'"),
        ("has a runtime defect", "RuntimeError: shapes differ"),
    ],
)
def test_a_defect_keeps_its_traceback_and_ends_the_others(
    scenario: str, error: str, scenarios: Scenarios
) -> None:
    ranks = scenarios[scenario]
    assert ranks[1].stderr.rstrip().endswith(error)
    assert [rank.status for rank in ranks.values()] == [2, 1, 2]
    assert [rank.told for rank in ranks.values()] == [[], [], []]
