"""Commands `mt translate`, `mt score` and `mt serve`."""

import csv
import json
import math
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mt import Translator
from mt.data.glossary import as_terms
from mt.data.pairs import Checksums
from mt.data.sources import TsvPairs
from mt.decoding.text_files import FileJob
from mt.documents.document import DocumentJob
from mt.serving.requests import Access, Limits
from mt.serving.served_runs import ModelOptions
from tests.factories import Program

Recorded = Callable[..., list[Any]]
LONG = b"one two three four five six seven eight nine zero " * 48
BYTES = "bytes that are not UTF-8 are read as U+FFFD"
NASTY = (
    b"", b" \t ", "\u3000\u00a0".encode(), LONG, b"nul\0and one", b"carriage return\r", b"two\r\r",
    b"bare\rreturn", b"lone surrogate \xed\xa0\x80", b"\xff\xfe one", b"cut \xe2\x82",
    b"overlong \xc0\xaf", b"\xff", "👍🏽 👩‍👩‍👧 🇩🇪".encode(), "שלום \u202eone\u202c مرحبا".encode(),
    "a\u2028b\u2029c\u0085d\x0be".encode(),
    "</s> <s> <unk> <pad> ▁ ▁▁one <0x0A> \U000f2581".encode(), b"one ||| two",
    b"$(touch gone) `touch gone` ; touch gone", b'{"text": "\\u0000"} %s %n {0}', b"-rf --help",
    b"!" * 1000, "e\u0301".encode() * 500, b"the last",
)  # fmt: skip
READ = [line.removesuffix(b"\r").decode("utf-8", "replace") for line in NASTY]


@pytest.fixture(scope="module")
def clean(finished_run: Path) -> list[str]:
    """Return the translations of the lines by the Python API."""
    translator = Translator.load(finished_run, device="cpu")
    return translator.translate(READ)


def test_every_line_gets_one_line_in_order(
    clean: list[str], finished_run: Path, tmp_path: Path
) -> None:
    report = tmp_path / "report"
    command = [sys.executable, "-m", "mt", "translate", str(finished_run), "--report", "report"]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run(
        command, input=b"\n".join(NASTY), capture_output=True, cwd=tmp_path, env=environment
    )
    assert done.returncode == 0
    assert done.stdout.decode().split("\n") == [*clean, ""]
    assert clean[:3] == READ[:3], "white space is restored"
    assert clean[3]
    with report.open(encoding="utf-8-sig", newline="") as file:
        header, *rows = csv.reader(file, delimiter="\t")
    with report.open("w", encoding="utf-8-sig", newline="") as file:
        filled = [header, *([*row[:5], "x", row[6]] for row in rows)]
        csv.writer(file, delimiter="\t", quoting=csv.QUOTE_ALL).writerows(filled)
    pairs = [*TsvPairs(Checksums("", ""), report, (3, 5), ("en", "de")).read()]
    assert [pair.source for pair in pairs] == READ, "what a reviewer fills can be a corpus"
    assert [int(number) for number, *_ in rows] == [*range(1, len(NASTY) + 1)]
    assert [status for _, status, *_ in rows[:3]] == ["empty"] * 3
    broken = [number for number, line in enumerate(READ, start=1) if "\ufffd" in line]
    assert [int(number) for number, *_, notes in rows if BYTES in notes] == broken
    assert f"report: {BYTES} ({len(broken)})" in done.stderr.decode().splitlines()
    assert [path.name for path in tmp_path.iterdir()] == ["report"], "nothing was executed"


def test_json_and_unbuffered_translations_are_the_same(
    clean: list[str], finished_run: Path, program: Program
) -> None:
    arguments = ["translate", finished_run, "--json", "--unbuffered", "--device", "cpu"]
    status, out, _ = program(*arguments, stdin=b"\n".join(NASTY))
    assert status == 0
    records = [json.loads(line) for line in out.split("\n")[:-1]]
    assert [record["line"] for record in records] == [*range(1, len(NASTY) + 1)]
    assert [record["text"] for record in records] == clean


def test_options_of_translate_make_a_job(
    finished_run: Path, program: Program, recorded: Recorded
) -> None:
    calls = recorded("mt.decoding.text_files.translate_file")
    chosen = ["--set", "decoding.beam=2", "--device", "cpu"]
    for arguments, job in {
        (): FileJob(),
        ("-", "-o", "-"): FileJob(),
        ("in", "-o", "out", "--n-best", "2", *chosen): FileJob(
            Path("in"), Path("out"), form="n-best", n_best=2
        ),
        ("--json", "--report", "tsv", "--unbuffered"): FileJob(
            form="json", report=Path("tsv"), look_ahead=1
        ),
        ("--json", "--n-best", "3", "--prefixes", "p"): FileJob(
            form="json", n_best=3, prefixes=Path("p")
        ),
    }.items():
        assert program("translate", finished_run, *arguments) == (0, "", "")
        (model, given), named = calls.pop()
        is_set = "cpu" in arguments
        assert (model.path, given) == (finished_run, job)
        assert model.overrides == (["decoding.beam=2"] if is_set else ())
        assert named == {"device": "cpu" if is_set else "auto"}


def test_documents_make_a_job_of_their_own(
    finished_run: Path, program: Program, recorded: Recorded, refused: Callable[..., str]
) -> None:
    calls = recorded("mt.documents.document.translate_document")
    for arguments, job in {
        ("a.html", "-o", "b"): DocumentJob(Path("a.html"), Path("b"), "html"),
        ("--format", "po", "--fuzzy"): DocumentJob(None, None, "po", fuzzy=True),
        ("a.tsv", "--column", "2", "--report", "rows"): DocumentJob(
            Path("a.tsv"), None, "tsv", Path("rows"), "2"
        ),
    }.items():
        assert program("translate", finished_run, *arguments) == (0, "", "")
        (model, given), named = calls.pop()
        assert (model.path, given, named) == (finished_run, job, {"device": "auto"})
    for option in (["--json"], ["--n-best", "2"], ["--prefixes", "p"], ["--unbuffered"]):
        message = f"{option[0]} is for text, the format is srt; `--format text` reads lines"
        assert refused("translate", finished_run, "a.srt", *option) == message
    assert "--column is not for text" in refused("translate", finished_run, "a", "--column", "1")
    lines = recorded("mt.decoding.text_files.translate_file")
    assert program("translate", finished_run, "a.md", "--format", "text") == (0, "", "")
    assert lines.pop()[0][1] == FileJob(Path("a.md"))


@pytest.fixture
def files(tmp_path: Path, tiny_corpus: Path) -> list[str]:
    sources, targets = tmp_path / "s.txt", tmp_path / "t.txt"
    lines = (tiny_corpus / "test.en").read_text().splitlines()
    sources.write_text("".join(f"{line}\n" for line in [*lines, "", "\U0001f600 \u2028"]))
    lines = (tiny_corpus / "test.de").read_text().splitlines()
    targets.write_text("".join(f"{line}\n" for line in [*lines, "one", ""]))
    return ["--sources", str(sources), "--targets", str(targets), "--device", "cpu"]


def test_score_prints_each_pair_and_its_tokens_and_the_perplexity(
    finished_run: Path, files: list[str], program: Program
) -> None:
    status, out, err = program("score", finished_run, *files)
    rows = [line.split("\t") for line in out.splitlines()]
    assert (status, len(rows)) == (0, 8)
    sums, tokens = [float(row[0]) for row in rows], [int(row[1]) for row in rows]
    for row, total, count in zip(rows, sums, tokens, strict=True):
        assert float(row[2]) == pytest.approx(total / count, abs=1e-6)
    found = re.search(r"perplexity ([\d.]+) per token, .*, (\d+) tokens .*, 8 sentences\n", err)
    assert found is not None
    assert int(found[2]) == sum(tokens)
    assert float(found[1]) == pytest.approx(math.exp(-sum(sums) / sum(tokens)), rel=1e-4)
    status, out, _ = program("score", finished_run, *files, "--json")
    records = [json.loads(line) for line in out.split("\n")[:-1]]
    for record, row in zip(records, rows, strict=True):
        assert len(record["tokens"]) == len(record["log_probs"])
        assert record["log_prob"] == pytest.approx(sum(record["log_probs"]))
        assert f"{record['log_prob']:.6f}" == row[0]
    assert records[-1]["tokens"] == ["</s>"]
    text = "".join(records[0]["tokens"]).replace("\u2581", " ")
    assert text.removesuffix("</s>").split() == Path(files[3]).read_text().split("\n")[0].split()


def test_options_of_serve_are_passed_on(
    program: Program, recorded: Recorded, tmp_path: Path
) -> None:
    calls, beam = recorded("mt.serving.server.serve_runs"), "decoding.beam=2"
    keys = tmp_path / "keys"
    keys.write_bytes(b"one\r\n\n two \n")
    assert program("serve", "r") == (0, "", "")
    address = ["--host", "::1", "--port", "0", "--device", "cpu", "--set", beam]
    limits = ["--max-sentences", "1", "--max-characters", "2"]
    origins = ["--allow-origin", "https://Example.org", "--allow-origin", "*"]
    terms = tmp_path / "terms.tsv"
    terms.write_text("cat\tKatze\n")
    named = ["--quantization", "int8", "--glossary", str(terms), "--keep", "2"]
    named += ["--memory", "old.tmx"]
    access = ["--api-key-file", str(keys), *origins, *named]
    assert program("serve", "r", *address, *limits, *access) == (0, "", "")
    given = Access((b"one", b"two"), ("https://example.org", "*"))
    defaults = {"limits": Limits(256, 20_000, 1024), "access": Access()}
    others = {"limits": Limits(1, 2, 1024), "access": given}
    overrides, given_terms = [beam, "decoding.quantization=int8"], as_terms({"cat": "Katze"})
    options = ModelOptions(overrides, "cpu", given_terms, Path("old.tmx"))
    assert calls == [
        (([Path("r")], ("127.0.0.1", 8000), ModelOptions()), {**defaults, "keep": None}),
        (([Path("r")], ("::1", 0), options), {**others, "keep": 2}),
    ]
    for option in ("--glossary", "--memory"):
        status, _, error = program("serve", "r", "s", option, str(terms))
        assert (status, error.count("\n")) == (2, 1)
        assert option in error


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("translate {run} {text} -o out --shard 0/4", "--shard 0/4: must be K/N with K from 1 to"),
        ("translate {run} -o out --shard 1/2", "stdin: `--shard` and torchrun read a part of a"),
        ("translate {run} {text} --shard 1/2", "name it with `--output`"),
        ("translate {run} {text} -o out.gz --shard 1/2", "do not compress; leave .gz out"),
        ("score {run} --sources {text} --targets {text} --shard 1/2", "name it with `--output`"),
        ("translate {run} {text} -o done --shard 1/2", "exists already and would be replaced"),
        ("translate no {text} -o out --shard 1/2", "no: no such run folder"),
    ],
)
def test_shards_are_refused_before_the_model_loads(
    arguments: str,
    message: str,
    finished_run: Path,
    tmp_path: Path,
    refused: Callable[..., str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def too_early(*_: object, **__: object) -> None:
        raise AssertionError("the model was loaded")

    monkeypatch.setattr("mt.decoding.translator.load_engine", too_early)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text").write_text("one\ntwo\n")
    (tmp_path / "done").write_text("")
    assert message in refused(*arguments.format(run=finished_run, text="text").split())
    assert {path.name for path in tmp_path.iterdir()} == {"text", "done"}
