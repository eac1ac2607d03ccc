import io
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn, cast

import pytest

from mt.decoding.engine import Hypothesis, TokenDetails, TranslatedPart
from mt.decoding.load import StoredModel
from mt.decoding.text_files import (
    FileJob,
    as_json,
    as_n_best,
    as_text,
    read_lines,
    report_row,
    stdin_lines,
    translate_file,
)
from mt.decoding.translator import RankedTranslation, Translation, Translator
from mt.errors import DataError, UserError
from tests.decoding.fakes import ExplainingFake
from tests.factories import Program, Refused


def test_stdin_to_stdout_answers_every_line_and_logs_notes(
    finished_run: Path,
    original: Translator,
    monkeypatch: pytest.MonkeyPatch,
    capsysbinary: pytest.CaptureFixture[bytes],
    caplog: pytest.LogCaptureFixture,
) -> None:
    odd = "\ufeffone two\r\n\n \n".encode() + b"six \xff\n" + "a\u2028b\u0085c\x0b\rd".encode()
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(odd)))
    translate_file(StoredModel.read(finished_run), FileJob(), device="cpu")
    out, err = capsysbinary.readouterr()
    lines = out.decode("utf-8").split("\n")
    wanted = original.translate(["one two", "", " ", "six \ufffd", "a\u2028b\u0085c\x0b\rd"])
    assert lines == [*wanted, ""]
    assert b"\r" not in out
    assert "line 4: bytes that are not UTF-8 are read as U+FFFD" in caplog.messages
    assert err == b"", "no progress bar without a terminal"


def test_file_to_file_with_a_report(
    finished_run: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    source, output, report = tmp_path / "in.txt", tmp_path / "out.txt", tmp_path / "report.tsv"
    source.write_bytes(b"one two three\n" * 3 + b"one two six\xff" * 20 + b"\n\nlast")
    output.write_text("old\n")
    report.write_text("old\n")
    translate_file(
        StoredModel.read(finished_run), FileJob(source, output, report=report), device="cpu"
    )
    lines = output.read_bytes().decode("utf-8").split("\n")
    assert len(lines) == 7
    assert lines[0] == lines[1] == lines[2] != ""
    header, *rows = [line.split("\t") for line in report.read_text("utf-8-sig").splitlines()]
    assert " ".join(header) == "line status confidence source translation correction notes"
    assert [row[0] for row in rows] == ["1", "2", "3", "4", "5", "6"]
    assert [row[4] for row in rows] == lines[:6]
    assert rows[3][6].startswith("bytes that are not UTF-8 are read as U+FFFD; ")
    assert "; translated in parts: " in rows[3][6]
    assert rows[4][1:] == ["empty", *[""] * 5]
    kinds = [note.partition(":")[0] for note in rows[3][6].split("; ")[:2]]
    assert {f"{report}: {kind} (1)" for kind in kinds} <= {*caplog.messages}
    assert not any(message.startswith("line ") for message in caplog.messages)
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == ["in.txt", "out.txt", "report.tsv"]


def test_prefix_file_begins_each_translation(
    finished_run: Path, original: Translator, tmp_path: Path, program: Program
) -> None:
    lines = ["one two three", "four", "five six seven eight nine"]
    prefixes = ["two", "", "one two one two"]
    text, begins, out = (tmp_path / name for name in ("text", "begins", "out"))
    text.write_text("".join(f"{line}\n" for line in lines))
    begins.write_bytes(b"\xef\xbb\xbf" + "".join(f"{line} \r\n" for line in prefixes).encode())
    arguments = ("translate", finished_run, "--prefixes", begins, "--device", "cpu")
    assert program(*arguments, text, "-o", out) == (0, "", "")
    wanted = original.translate(lines, prefixes=prefixes)
    assert out.read_text().split("\n") == [*wanted, ""]
    assert all(map(str.startswith, wanted, prefixes))
    assert wanted != original.translate(lines)
    unbuffered = program(*arguments, "--unbuffered", stdin=text.read_bytes())
    assert unbuffered == (0, out.read_text(), "")


def test_prefix_files_of_another_length_are_an_error_and_nothing_is_replaced(
    finished_run: Path, tmp_path: Path, refused: Refused
) -> None:
    contents = {"text": "one\ntwo\nthree\n", "begins": "x\n\n", "out": "old\n"}
    text, begins, out = (tmp_path / name for name in contents)
    for path in (text, begins, out):
        path.write_text(contents[path.name])
    arguments = ("translate", finished_run, "--prefixes", begins, "-o", out, "--device", "cpu")
    assert refused(*arguments, text).startswith(f"{text} has 3 lines, {begins} has 2: ")
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == contents


def test_failure_keeps_the_old_files_and_leaves_no_others(
    finished_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = FileJob(tmp_path / "in", tmp_path / "out", report=tmp_path / "report")
    for path in (job.input, job.output, job.report):
        assert path is not None
        path.write_text("one\n")
    n_best = FileJob(job.input, job.output, "n-best", 2, job.report)
    with pytest.raises(UserError):
        greedy = StoredModel.read(finished_run, ["decoding.search=greedy"])
        translate_file(greedy, n_best, device="cpu")

    def fail(*_: object, **__: object) -> NoReturn:
        raise UserError("the model's output is not finite")

    monkeypatch.setattr("mt.decoding.torch_engine.TorchEngine.n_best_ids", fail)
    with pytest.raises(UserError):
        translate_file(StoredModel.read(finished_run), job, device="cpu")
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == dict.fromkeys(
        ("in", "out", "report"), "one\n"
    )


def test_files_are_checked_before_the_model_loads(
    finished_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def too_early(*_: object, **__: object) -> NoReturn:
        raise AssertionError("the model was loaded")

    monkeypatch.setattr("mt.decoding.translator.load_engine", too_early)
    model = StoredModel.read(finished_run)
    there, out, deep = tmp_path / "text.en", tmp_path / "out", tmp_path / "no" / "out"
    there.write_text("a\n")
    for job in (FileJob(tmp_path / "txt.en"), FileJob(prefixes=tmp_path / "txt.en")):
        with pytest.raises(DataError, match=r"did you mean `text.en`"):
            translate_file(model, job)
    for job, message in (
        (FileJob(there, deep), "there is no folder"),
        (FileJob(there, report=deep), "there is no folder"),
        (FileJob(there, tmp_path), "is a folder, a file was expected"),
        (FileJob(there, there), "text.en: is named twice, and would be written over"),
        (FileJob(prefixes=there, output=there), "text.en: is named twice"),
        (FileJob(there, report=there), "text.en: is named twice, and would be written over"),
        (FileJob(there, out, report=out), "out: is named twice, and would be written over"),
    ):
        with pytest.raises(UserError, match=message):
            translate_file(model, job)
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    with pytest.raises(UserError):
        translate_file(model, FileJob(there, out))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_signal_to_end_leaves_no_temporary_file(
    number: signal.Signals, exported_run: Path, tmp_path: Path
) -> None:
    output, report = tmp_path / "out", tmp_path / "report"
    output.write_text("old\n")
    command = [sys.executable, "-m", "mt", "translate", str(exported_run), "--unbuffered"]
    command += ["-o", str(output), "--report", str(report)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, preexec_fn=lambda: signal.signal(number, signal.SIG_DFL)
    ) as process:
        assert process.stdin is not None
        process.stdin.write(b"one two\n")
        process.stdin.flush()
        while len([*tmp_path.iterdir()]) < 3:
            assert process.poll() is None
            time.sleep(0.05)
        process.send_signal(number)
        assert process.wait(timeout=60) == 128 + number
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {"out": "old\n"}


def test_links_stay_links_and_devices_are_written_to(finished_run: Path, tmp_path: Path) -> None:
    source, real, link = tmp_path / "in", tmp_path / "real", tmp_path / "link"
    source.write_text("one\n")
    real.write_text("old\n")
    link.symlink_to(real)
    translate_file(StoredModel.read(finished_run), FileJob(source, link), device="cpu")
    assert link.is_symlink()
    assert real.read_text() != "old\n"
    translate_file(StoredModel.read(finished_run), FileJob(source, Path(os.devnull)), device="cpu")
    assert not Path(os.devnull).is_file()


def test_unbuffered_answers_each_line_before_the_next(exported_run: Path) -> None:
    options = ["--unbuffered", "--device", "cpu"]
    command = [sys.executable, "-m", "mt", "translate", str(exported_run), *options]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        for line in (b"one two\n", b"\n", b"three four\n"):
            process.stdin.write(line)
            process.stdin.flush()
            answer = process.stdout.readline()
            assert answer.endswith(b"\n")
            assert (answer == b"\n") == (line == b"\n")
        # The reader leaves: the program ends quietly.
        process.stdout.close()
        process.stdin.write(b"five\n")
        process.stdin.close()
        assert process.wait(timeout=60) == 141


def test_lines_of_a_pipe_are_yielded_as_soon_as_they_are_complete(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reading, writing = os.pipe()
    with os.fdopen(reading, "rb") as stdin, os.fdopen(writing, "wb", buffering=0) as pipe:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(stdin))
        pipe.write(b"first\r\nsec")
        lines = stdin_lines()
        assert next(lines) == "first"
        pipe.write(b"ond\n")
        assert next(lines) == "second"
        pipe.close()
        assert list(lines) == []


def test_invalid_bytes_are_kept_and_the_byte_order_mark_is_dropped(tmp_path: Path) -> None:
    source = tmp_path / "in"
    source.write_bytes(b"\xef\xbb\xbfa\xff\r\n\xe2\x82\n\xef\xbb\xbfb")
    assert list(read_lines(source)) == ["a\udcff", "\udce2\udc82", "\ufeffb"]
    for encoding in ("utf-16-le", "utf-16-be"):
        source.write_bytes("\ufeff你\n".encode(encoding))
        with pytest.raises(DataError):
            next(read_lines(source))


ONE = TranslatedPart([50, 51, 3], Hypothesis((5, 6), -3.0, -0.25, finished=True), "", "")
TWO = TranslatedPart([52, 3], Hypothesis((7,), -1.0, -0.25, finished=True), "", "")
OTHER = TranslatedPart([52, 3], Hypothesis((8, 9), -4.0, -1.0, finished=True), "", "")
BEST = RankedTranslation('a ||| b\u2028"é', -0.5, (ONE, TWO))
WORSE = RankedTranslation("c", -1.25, (ONE, OTHER))
BLANK = Translation(1, " ", "", "empty", 0.0, alternatives=(RankedTranslation("", 0.0, ()),))
SPLIT = Translation(
    *(3, "x", BEST.text, "altered", -0.5, ("one", "two")),
    alternatives=(BEST, WORSE),
    sentences=("Two.", "lines\tor less"),
)


class Explaining(ExplainingFake):
    """Log-probabilities are negative ids; all tokens are aligned with the first of the source."""

    def n_best_ids(self, *_: Any, **__: Any) -> Any:
        raise NotImplementedError

    def explain(self, sources: Any, hypotheses: Any) -> list[TokenDetails]:
        assert list(zip(sources, hypotheses, strict=True)) == [
            (part.source, part.hypothesis) for part in (ONE, TWO)
        ]
        return [
            TokenDetails(
                tuple(-float(number) for number in each.ids),
                tuple((0, place) for place in range(len(each.ids))),
            )
            for each in hypotheses
        ]


def translator(engine: object = None) -> Translator:
    side = SimpleNamespace(
        processor=SimpleNamespace(id_to_piece=lambda ids: [f"▁{i}" for i in ids])
    )
    tokenizer = SimpleNamespace(source=side, target=side)
    return cast("Translator", SimpleNamespace(engine=engine, tokenizer=tokenizer))


def test_text_n_best_and_report_of_blank_and_split_lines() -> None:
    assert [*as_text([BLANK, SPLIT], translator())] == ["\n", 'a ||| b\u2028"é\n']
    assert [*as_n_best([BLANK, SPLIT], translator())] == [
        "0 |||  ||| 0.000000\n",
        '2 ||| a ||| b\u2028"é ||| -0.500000\n',
        "2 ||| c ||| -1.250000\n",
    ]
    blank, split = map(report_row, (BLANK, SPLIT))
    assert blank == ["1", "empty", "", BLANK.source, "", "", ""]
    notes = "one; two; 2 sentences: Two. | lines or less"
    assert split == ["3", "altered", "", SPLIT.source, 'a ||| b\u2028"é', "", notes]


@pytest.mark.parametrize(
    ("engine", "log_probs", "alignment"),
    [(Explaining(), [-5.0, -6.0, -7.0], [[0, 0], [0, 1], [2, 2]]), (None, None, None)],
)
def test_json_numbers_the_tokens_across_parts(
    engine: object, log_probs: list[float] | None, alignment: list[list[int]] | None
) -> None:
    empty, written = as_json([BLANK, SPLIT], translator(engine))
    assert written.count("\n") == 1
    assert "é" in written
    best: dict[str, Any] = {
        "text": BEST.text,
        "score": -0.5,
        "log_prob": -4.0,
        "tokens": ["▁5", "▁6", "▁7"],
    }
    other = {"text": "c", "score": -1.25, "log_prob": -7.0, "tokens": ["▁5", "▁6", "▁8", "▁9"]}
    assert json.loads(written) == {
        "line": 3,
        "status": "altered",
        "confidence": None,
        "notes": ["one", "two"],
        "sentences": ["Two.", "lines\tor less"],
        "terms": [],
        **best,
        "source_tokens": ["▁50", "▁51", "▁52"],
        "token_log_probs": log_probs,
        "alignment": alignment,
        "alternatives": [best, other],
    }
    record = json.loads(empty)
    assert (record["text"], record["tokens"], record["token_log_probs"]) == ("", [], [])
