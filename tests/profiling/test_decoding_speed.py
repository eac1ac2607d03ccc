"""`mt bench decode`: rates, and the settings of each measurement."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from mt.config import DecodingConfig
from mt.decoding.torch_engine import TorchEngine
from mt.profiling.speed import measure_decoding


def test_each_search_is_run_with_the_batch_size_on_the_first_test_split(
    finished_run: Path, tiny_corpus: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[tuple[int, DecodingConfig]] = []
    n_best_ids = TorchEngine.n_best_ids

    def record(
        self: TorchEngine, sources: Any, decoding: DecodingConfig, n: int, **named: Any
    ) -> object:
        calls.append((len(sources), decoding))
        return n_best_ids(self, sources, decoding, n, **named)

    monkeypatch.setattr(TorchEngine, "n_best_ids", record)
    overrides = ["decoding.batch_size=2"]
    speed = measure_decoding(finished_run, overrides=overrides, device="cpu")
    sources = (tiny_corpus / "test.en").read_text().splitlines()
    assert (speed.split, speed.device, speed.threads) == ("test", "cpu", 1)
    assert speed.sentences == len(sources)
    cases = [(search.search, search.beam, search.batch_size) for search in speed.searches]
    assert cases == [("greedy", 1, 2), ("beam", 2, 2)]
    # A first batch before the clock starts, then all sentences.
    assert [n for n, _ in calls] == 2 * [2, len(sources)]
    settings = [(decoding.search, decoding.batch_size) for _, decoding in calls[::2]]
    assert settings == [("greedy", 2), ("beam", 2)]
    words = sum(len(source.split()) for source in sources) / len(sources)
    for search in speed.searches:
        assert search.words_per_second == pytest.approx(words * search.sentences_per_second)
    assert (speed.peak_memory_mib or 0) > 50


def test_a_run_without_test_splits_is_measured_on_valid(
    finished_run: Path, tiny_corpus: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    shutil.copytree(finished_run, run)
    config = (run / "config.yaml").read_text()
    begin, end = config.index("  tests:"), config.index("  max_tokens")
    (run / "config.yaml").write_text(config[:begin] + config[end:])
    speed = measure_decoding(run, overrides=["decoding.beam=3"], device="cpu")
    assert speed.split == "valid"
    cases = [(search.beam, search.batch_size) for search in speed.searches]
    assert cases == [(1, 16), (1, 64), (1, 256), (3, 16), (3, 64), (3, 256)]
    assert speed.sentences == len((tiny_corpus / "valid.en").read_text().splitlines())
