"""Every test starts from the same state, and none reaches the network or the user's folders."""

import os
import random
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

import numpy as np
import pytest
import torch

# `datasets` and the hub read these once, when they are imported; processes of tests inherit them.
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["HF_DATASETS_OFFLINE"] = "1"

_FOREIGN_VARIABLES = (
    "RANK",
    "LOCAL_RANK",
    "WORLD_SIZE",
    "MASTER_ADDR",
    "MASTER_PORT",
    "COLUMNS",
    "NO_COLOR",
    "FORCE_COLOR",
)
"""What a shell may carry that would change what a test sees."""


@pytest.fixture(autouse=True)
def _same_state(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    for name in _FOREIGN_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("MT_CACHE", str(tmp_path_factory.mktemp("cache")))


@pytest.fixture(autouse=True)
def _same_numbers() -> Iterator[None]:
    random.seed(1)
    np.random.seed(1)
    torch.manual_seed(1)
    torch.set_num_threads(1)
    torch.set_default_dtype(torch.float32)
    yield
    if torch.are_deterministic_algorithms_enabled():  # the setter is slow
        torch.use_deterministic_algorithms(False)
    torch.set_default_dtype(torch.float32)


@pytest.fixture(autouse=True)
def _no_network(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a test reach this machine alone, unless it says that it needs more."""
    if request.node.get_closest_marker("network"):
        return
    connect = socket.socket.connect

    def guarded(self: socket.socket, address: object) -> None:
        host = address[0] if isinstance(address, tuple) else "localhost"
        if host not in {"localhost", "127.0.0.1", "::1"}:
            _refuse(host)
        connect(self, address)  # type: ignore[arg-type]

    monkeypatch.setattr(socket.socket, "connect", guarded)


def _refuse(host: object) -> NoReturn:
    raise AssertionError(f"a test without the marker `network` called {host}")


@pytest.fixture
def corpora() -> Path:
    """Return the folder of the real corpora, or skip where it is not."""
    folder = Path(os.environ.get("MT_CORPORA", ""))
    if not os.environ.get("MT_CORPORA") or not folder.is_dir():
        pytest.skip("$MT_CORPORA names no folder of corpora")
    return folder
