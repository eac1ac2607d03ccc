"""Ranks find each other, or say who is missing."""

import os
import socket
from typing import Any

import pytest

from mt.training.distributed import Member, choose_interface

Scenarios = dict[str, dict[int, Any]]


def test_ranks_that_do_not_come_are_named(scenarios: Scenarios) -> None:
    ranks = scenarios["never comes"]
    for rank in ranks.values():
        assert rank.told == ["error: no sign of rank `1` of 3 within 0:00:03"]
        assert rank.status == 2


def test_gloo_takes_the_interface_that_leads_to_the_others(scenarios: Scenarios) -> None:
    found = {rank.result["interface"] for rank in scenarios["talk"].values()}
    names = {name for _, name in socket.if_nameindex()}
    assert len(found) == 1
    assert found <= {name for name in names if name.startswith("lo")}


def test_an_interface_that_the_user_has_named_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "mine")
    member = Member(0, "a", 1, "127.0.0.1")
    choose_interface([member], member)
    assert os.environ["GLOO_SOCKET_IFNAME"] == "mine"
