"""Room for a training: what is free, and what counting takes."""

import pytest
import torch

from mt.config import Config
from mt.profiling import probe as module
from mt.profiling.probe import HeaviestBatch, expected_bytes, free_memory, process_bytes
from mt.training.memory import TrainingMemory


def test_memory_of_a_cpu_is_what_the_system_leaves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "available_bytes", lambda: 7)
    assert free_memory(torch.device("cpu")) == 7
    assert free_memory(torch.device("mps")) is None


def test_the_memory_of_the_process_is_in_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "peak_memory_mib", lambda: 1.5)
    assert process_bytes() == 3 * 2**19
    monkeypatch.setattr(module, "peak_memory_mib", lambda: None)
    assert process_bytes() is None


def test_what_counting_takes_is_part_of_what_is_expected(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[object] = []
    needed = TrainingMemory(tensors=100, likely=140)
    monkeypatch.setattr(module, "process_bytes", iter([1000, 1085]).__next__)
    monkeypatch.setattr(module, "require_memory", lambda *given: asked.append(given))
    monkeypatch.setattr(module, "corpus_memory", lambda *_: ([], needed))
    config, corpus = Config.model_construct(), object()
    assert expected_bytes(config, corpus) == 140 + 85  # type: ignore[arg-type]
    assert asked == [(config, corpus)]


def test_a_batch_is_described_by_its_longest_sides() -> None:
    lengths = torch.tensor([[3, 9], [8, 2], [5, 5]]).numpy()
    assert HeaviestBatch.of(lengths) == HeaviestBatch(3, 8, 9)
