"""`mt bench decode`: the engines at hand, each in a process of its own."""

import shutil
from pathlib import Path

import pytest

from mt.errors import UserError
from mt.profiling.engine_speed import measure_engines
from tests.factories import Program


@pytest.fixture
def run(finished_run: Path, exported_run: Path, tmp_path: Path) -> Path:
    """Return a copy of the finished run with its export."""
    ignore = shutil.ignore_patterns("checkpoints", "ctranslate2")
    copy = Path(shutil.copytree(finished_run, tmp_path / "run", ignore=ignore))
    shutil.copytree(exported_run, copy / "ctranslate2")
    return copy


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
    damaged = run / "ctranslate2" / "model.bin"
    damaged.write_bytes(damaged.read_bytes()[:-1])
    assert [speed.engine for speed in measure_engines(run)] == ["torch", "ctranslate2 int8"]


def test_an_export_alone_is_timed_on_one_core_and_on_all(
    exported_run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    speeds = measure_engines(exported_run)
    assert [(speed.engine, speed.cores) for speed in speeds] == [
        ("ctranslate2", 1),
        ("ctranslate2", 2),
    ]


def test_a_failed_process_is_one_error(
    run: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    path = run / "config.yaml"
    path.write_text(path.read_text().replace("test.en", "gone.en"))
    with pytest.raises(UserError, match="the process that translates with it has failed"):
        measure_engines(run)
    assert "gone.en" in capfd.readouterr().err
