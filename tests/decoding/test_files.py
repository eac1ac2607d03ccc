import io
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import NoReturn

import pytest

from mt.decoding.files import FileJob, translate_file
from mt.decoding.translator import load_translator
from mt.errors import DataError, UserError


def feed(monkeypatch: pytest.MonkeyPatch, text: bytes) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text)))


def statuses(report: Path) -> list[str]:
    return [line.split("\t")[1] for line in report.read_text(encoding="utf-8").splitlines()]


def test_stdin_to_stdout_every_line_answered_and_odd_ones_told(
    finished_run: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsysbinary: pytest.CaptureFixture[bytes],
    caplog: pytest.LogCaptureFixture,
) -> None:
    odd = "\ufeffone two\r\n\n \n".encode() + b"six \xff\n" + "a\u2028b\u0085c\x0b\rd".encode()
    feed(monkeypatch, odd)
    translate_file(finished_run, FileJob(), device="cpu")
    out, err = capsysbinary.readouterr()
    lines = out.decode("utf-8").split("\n")
    assert len(lines) == 6
    assert lines[-1] == ""
    assert [bool(line) for line in lines[:3]] == [True, False, False]
    assert b"\r" not in out
    assert "line 4: bytes that are not UTF-8 are read as U+FFFD" in caplog.messages
    assert err == b"", "no progress bar without a terminal"
    translator = load_translator(finished_run, device="cpu")
    wanted = translator.translate(["one two", "", " ", "six \ufffd", "a\u2028b\u0085c\x0b\rd"])
    assert lines[:5] == wanted


def test_file_to_file_with_a_report(
    finished_run: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    source, output, report = tmp_path / "in.txt", tmp_path / "out.txt", tmp_path / "report.tsv"
    source.write_bytes(b"one two three\n" * 3 + b"one two six\xff" * 20 + b"\n\nlast")
    output.write_text("old\n")
    report.write_text("old\n")
    translate_file(finished_run, FileJob(source, output, report=report), device="cpu")
    lines = output.read_bytes().decode("utf-8").split("\n")
    assert len(lines) == 7
    assert lines[0] == lines[1] == lines[2] != ""
    rows = [line.split("\t") for line in report.read_text(encoding="utf-8").splitlines()]
    assert [row[0] for row in rows] == ["1", "2", "3", "4", "5", "6"]
    assert "bytes that are not UTF-8 are read as U+FFFD; " in rows[3][2]
    assert rows[3][2].endswith("parts")
    assert rows[4][1:] == ["empty", ""]
    notes = "; ".join(
        message.removeprefix("line 4: ")
        for message in caplog.messages
        if message.startswith("line 4: ")
    )
    assert notes == rows[3][2]
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == ["in.txt", "out.txt", "report.tsv"]


def test_n_best_and_json_are_of_the_same_translations(finished_run: Path, tmp_path: Path) -> None:
    source, text, listed, objects = (tmp_path / name for name in ("in", "text", "list", "json"))
    source.write_text("one two three\n\nfour five\n")
    translate_file(finished_run, FileJob(source, text), device="cpu")
    n_best = FileJob(source, listed, form="n-best", n_best=2)
    translate_file(finished_run, n_best, device="cpu")
    translate_file(finished_run, FileJob(source, objects, form="json", n_best=2), device="cpu")
    best = text.read_text().split("\n")[:-1]
    rows = [line.split(" ||| ") for line in listed.read_text().split("\n")[:-1]]
    assert [row[0] for row in rows] == ["0", "0", "1", "2", "2"]
    assert [rows[0][1], rows[2][1], rows[3][1]] == best
    assert float(rows[0][2]) >= float(rows[1][2])
    records = [json.loads(line) for line in objects.read_text().splitlines()]
    assert [record["line"] for record in records] == [1, 2, 3]
    assert [record["text"] for record in records] == best
    found = [(r["line"] - 1, each["text"]) for r in records for each in r["alternatives"]]
    assert found == [(int(row[0]), row[1]) for row in rows]
    tokens = records[0]["tokens"]
    assert "".join(tokens).replace("▁", " ").strip() == best[0]


def test_a_failure_leaves_the_old_files_and_no_other(
    finished_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = FileJob(tmp_path / "in", tmp_path / "out", report=tmp_path / "report")
    for path in (job.input, job.output, job.report):
        assert path is not None
        path.write_text("old\n")
    with pytest.raises(UserError, match="greedy search finds one"):
        translate_file(
            finished_run,
            FileJob(job.input, job.output, "n-best", 2, job.report),
            overrides=["decoding.search=greedy"],
            device="cpu",
        )

    def fail(*_: object, **__: object) -> NoReturn:
        raise UserError("the model's output is not finite")

    monkeypatch.setattr("mt.decoding.torch_engine.TorchEngine.n_best_ids", fail)
    with pytest.raises(UserError, match="not finite"):
        translate_file(finished_run, job, device="cpu")
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == dict.fromkeys(
        ("in", "out", "report"), "old\n"
    )


def test_files_are_looked_at_before_the_model_loads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def too_early(*_: object, **__: object) -> NoReturn:
        raise AssertionError("the model was loaded")

    monkeypatch.setattr("mt.decoding.translator.Translator.load", too_early)
    there = tmp_path / "text.en"
    there.write_text("a\n")
    out = tmp_path / "out"

    def refused(job: FileJob) -> str:
        with pytest.raises(UserError) as caught:
            translate_file(tmp_path, job)
        return str(caught.value)

    with pytest.raises(DataError, match=r"did you mean `text.en`"):
        translate_file(tmp_path, FileJob(tmp_path / "txt.en"))
    assert "there is no folder" in refused(FileJob(there, tmp_path / "no" / "out"))
    assert "there is no folder" in refused(FileJob(there, report=tmp_path / "no" / "out"))
    assert "is a folder, a file was expected" in refused(FileJob(there, tmp_path))
    assert "text.en: is the input; the report needs" in refused(FileJob(there, report=there))
    assert "out: is the output; the report" in refused(FileJob(there, out, report=out))
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    assert "no permission to write there" in refused(FileJob(there, out))


def test_a_link_stays_a_link_and_a_device_is_written_to(finished_run: Path, tmp_path: Path) -> None:
    source, real, link = tmp_path / "in", tmp_path / "real", tmp_path / "link"
    source.write_text("one\n")
    real.write_text("old\n")
    link.symlink_to(real)
    translate_file(finished_run, FileJob(source, link), device="cpu")
    assert link.is_symlink()
    assert real.read_text() != "old\n"
    translate_file(finished_run, FileJob(source, Path(os.devnull)), device="cpu")
    assert not Path(os.devnull).is_file()


INTERACTIVE = """
import sys
sys.argv = ["mt", "translate", sys.argv[1], "--unbuffered", "--device", "cpu"]
from mt.__main__ import main
sys.exit(main())
"""


def test_unbuffered_answers_each_line_before_the_next(finished_run: Path) -> None:
    command = [sys.executable, "-c", INTERACTIVE, str(finished_run)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        for line in (b"one two\n", b"\n", b"three four\n"):
            process.stdin.write(line)
            process.stdin.flush()
            answer = process.stdout.readline()
            assert answer.endswith(b"\n")
            assert (answer == b"\n") == (line == b"\n")
        # Nobody reads any more: it ends quietly.
        process.stdout.close()
        process.stdin.write(b"five\n")
        process.stdin.close()
        assert process.wait(timeout=60) == 141


FLAT = """
import io, resource, sys
from pathlib import Path
from mt.config import DecodingConfig
from mt.decoding.engine import Engine, Hypothesis
from mt.decoding.files import read_lines
from mt.decoding.files import FileJob, write_translations
from mt.decoding.translator import Translator

class Bytes:
    def encode_source(self, lines):
        return [[*line.encode(), 3] for line in lines]
    encode_target = encode_source
    def decode_target(self, ids):
        return bytes(ids).decode()

class Backwards(Engine):
    def n_best_ids(self, sources, decoding, count, *, prefixes=()):
        found = [(*prefix, *ids[-2::-1]) for ids, prefix in zip(sources, prefixes)]
        return [[Hypothesis(ids, -1.0, -1.0, True)] for ids in found]

source, prefixes, output, report, spare = sys.argv[1:]
translator = Translator(
    Backwards(), Bytes(), DecodingConfig(), longest_source=100, target_language="en"
)
first = map(str, range(5000))  # what is imported and allocated once does not count
write_translations(translator, first, job=FileJob(), out=io.BytesIO(), report=io.BytesIO())
pages = int(Path("/proc/self/statm").read_text().split()[0])
limit = pages * resource.getpagesize() + int(spare)
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
with open(output, "wb") as out, open(report, "wb") as told:
    job = FileJob(Path(source), prefixes=Path(prefixes))
    write_translations(translator, read_lines(Path(source)), job=job, out=out, report=told)
"""


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs /proc")
@pytest.mark.parametrize("lines", [50_000, pytest.param(1_000_000, marks=pytest.mark.slow)])
def test_memory_does_not_grow_with_the_file(lines: int, tmp_path: Path) -> None:
    """Had each line left its Translation behind, 50,000 would take 40 MB."""
    source, begins, output, report = (tmp_path / name for name in ("in", "begins", "out", "report"))
    with source.open("w") as file:
        file.writelines(f"{number} eulb\n" if number % 10 else "\n" for number in range(lines))
    with begins.open("w") as file:
        file.writelines(f"{number}:\n" for number in range(lines))
    command = [sys.executable, "-c", FLAT, *map(str, (source, begins, output, report, 28 << 20))]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    with output.open() as file:
        for number, line in enumerate(file):
            assert line == (f"{number}:blue {str(number)[::-1]}\n" if number % 10 else "\n")
    assert number == lines - 1
    with report.open() as file:
        assert sum(1 for _ in file) == lines
