"""Room for a training: what is free, and what counting takes."""

import pytest
import torch

from mt.profiling import probe as module
from mt.profiling.probe import HeaviestBatch, free_memory, process_bytes


def test_memory_of_a_cpu_is_what_the_system_leaves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "available_memory", lambda: 7)
    assert free_memory(torch.device("cpu")) == 7
    assert free_memory(torch.device("mps")) is None


def test_the_memory_of_the_process_is_in_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "peak_memory_mib", lambda: 1.5)
    assert process_bytes() == 3 * 2**19
    monkeypatch.setattr(module, "peak_memory_mib", lambda: None)
    assert process_bytes() is None


def test_a_batch_is_described_by_its_longest_sides() -> None:
    lengths = torch.tensor([[3, 9], [8, 2], [5, 5]]).numpy()
    assert HeaviestBatch.of(lengths) == HeaviestBatch(3, 8, 9)
