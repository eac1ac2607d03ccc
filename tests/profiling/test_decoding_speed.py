"""`mt bench decode`: counts, and the settings of each measurement."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from mt.config import DecodingConfig
from mt.decoding.torch_engine import TorchEngine
from mt.decoding.translator import load_translator
from mt.profiling.decoding_speed import benchmark_decoding


def test_each_search_is_run_with_each_batch_size_on_the_first_test_split(
    finished_run: Path, tiny_corpus: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[tuple[int, DecodingConfig]] = []
    n_best_ids = TorchEngine.n_best_ids

    def noting(
        self: TorchEngine, sources: Any, decoding: DecodingConfig, n: int, **named: Any
    ) -> object:
        calls.append((len(sources), decoding))
        return n_best_ids(self, sources, decoding, n, **named)

    monkeypatch.setattr(TorchEngine, "n_best_ids", noting)
    result = benchmark_decoding(finished_run, batch_sizes=[2, 64], device="cpu")
    sources = (tiny_corpus / "test.en").read_text().splitlines()
    assert (result.split, result.device, result.threads) == ("test", "cpu", 1)
    found = [(each.search, each.beam, each.batch_size) for each in result.speeds]
    assert found == [("greedy", 1, 2), ("greedy", 1, 64), ("beam", 2, 2), ("beam", 2, 64)]
    # A first batch before the clock starts, then all sentences.
    assert [n for n, _ in calls] == 2 * [2, len(sources), len(sources), len(sources)]
    settings = [(decoding.search, decoding.batch_size) for _, decoding in calls[::2]]
    assert settings == [("greedy", 2), ("greedy", 64), ("beam", 2), ("beam", 64)]
    for speed in result.speeds[1::2]:
        translator = load_translator(
            finished_run, overrides=[f"decoding.search={speed.search}"], device="cpu"
        )
        ids = translator.tokenizer.encode_source(sources)
        hypotheses = translator.engine.translate_ids(ids, translator.decoding)
        assert speed.target_tokens == sum(len(each.ids) + each.finished for each in hypotheses)
        assert speed.sentences == len(sources)
        assert speed.sentences_per_second * speed.seconds == pytest.approx(len(sources))
        rate = speed.target_tokens / speed.seconds
        assert speed.target_tokens_per_second == pytest.approx(rate)


def test_a_run_without_test_splits_is_measured_on_valid(
    finished_run: Path, tiny_corpus: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    shutil.copytree(finished_run, run)
    config = (run / "config.yaml").read_text()
    begin, end = config.index("  tests:"), config.index("  max_tokens")
    (run / "config.yaml").write_text(config[:begin] + config[end:])
    result = benchmark_decoding(run, batch_sizes=[4], overrides=["decoding.beam=3"], device="cpu")
    assert result.split == "valid"
    assert [each.beam for each in result.speeds] == [1, 3]
    sources = (tiny_corpus / "valid.en").read_text().splitlines()
    assert result.speeds[0].sentences == len(sources)
