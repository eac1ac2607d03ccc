"""Rates of decoding: the settings of each measurement, and the engines at hand."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from bench import decoding_speed
from bench.decoding_speed import measure_decoding, measure_engines
from mt.config import DecodingConfig
from mt.decoding.torch_engine import TorchEngine
from mt.errors import UserError
from tests.factories import Program


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
    # A first batch before the clock starts, then all sentences.
    assert [n for n, _ in calls] == 2 * [2, len(sources)]
    settings = [(decoding.search, decoding.batch_size) for _, decoding in calls[::2]]
    assert settings == [("greedy", 2), ("beam", 2)]
    words = sum(len(source.split()) for source in sources) / len(sources)
    for search in speed.searches:
        assert search.words_per_second == pytest.approx(words * search.sentences_per_second)


@pytest.fixture
def run(run: Path, exported_run: Path) -> Path:
    """Return a copy of the finished run with its export."""
    shutil.copytree(exported_run, run / "ctranslate2")
    return run


def test_each_engine_at_hand_is_timed(
    run: Path, program: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    options = ("--to", "ctranslate2", "--quantization", "int8", "--force", "--device", "cpu")
    assert program("export", run, *options)[0] == 0
    speeds = measure_engines(run, overrides=["decoding.engine=torch", "decoding.beam=3"])
    engines = [(speed.engine, speed.cores) for speed in speeds]
    assert engines == [("torch", 1), ("ctranslate2", 1), ("ctranslate2 int8", 1)]
    torch, plain, small = speeds
    assert small.disk_mib < plain.disk_mib
    for speed in speeds:
        assert speed.words_per_second > speed.sentences_per_second > 0
        assert 0 < speed.load_seconds < 600
    memory = [speed.peak_memory_mib for speed in (torch, plain)]
    assert memory == [None, None] or (memory[0] or 0) > (memory[1] or 0), "it imports no torch"


def test_tables_and_json_of_an_export(
    exported_run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    arguments = ["decoding_speed.py", str(exported_run), "--set", "decoding.batch_size=2"]
    monkeypatch.setattr("sys.argv", [*arguments, "--json"])
    assert decoding_speed.main() == 0
    record = json.loads(capsys.readouterr().out)
    cases = [(search["search"], search["batch_size"]) for search in record["searches"]]
    assert cases == [("greedy", 2), ("beam", 2)]
    engines = [(engine["engine"], engine["cores"]) for engine in record["engines"]]
    assert engines == [("ctranslate2", 1), ("ctranslate2", 2)]
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setattr("sys.argv", arguments)
    assert decoding_speed.main() == 0
    head, searches, _, engines_table = capsys.readouterr().out.split("\n\n")
    assert head.startswith(f"{exported_run}: 6 sentences of test, cpu")
    assert len(searches.splitlines()) == 3
    assert engines_table.splitlines()[1].startswith("ctranslate2")


def test_a_failed_process_is_one_error(
    run: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    path = run / "config.yaml"
    path.write_text(path.read_text().replace("test.en", "gone.en"))
    with pytest.raises(UserError):
        measure_engines(run)
    assert "gone.en" in capfd.readouterr().err
