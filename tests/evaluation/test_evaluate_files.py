"""Files: what is written besides the scores, and that the scores say what they are of."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from mt.errors import DataError, UserError
from mt.evaluation.evaluate import EvaluationJob, evaluate_files
from mt.files import file_sha256

RIGHT = ["The cat sat on the mat.", "Two dogs ran very fast.", "It rains."]
MADE = ["The cat sat on a mat.", "Two dogs ran very fast.", "It rains now."]
SOURCES = ["one", "two\rhalf", "three"]


def _write(path: Path, lines: Sequence[str]) -> Path:
    path.write_bytes("".join(f"{line}\n" for line in lines).encode())
    return path


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path, Path]:
    """Return hypotheses, references and sources, as relative paths."""
    monkeypatch.chdir(tmp_path)
    made, right = _write(Path("made.txt"), MADE), _write(Path("right.txt"), RIGHT)
    return made, right, _write(Path("sources.txt"), SOURCES)


def test_comet_gets_a_file_for_each_side_and_set(files: tuple[Path, Path, Path]) -> None:
    made, right, sources = files
    job = EvaluationJob(comet=Path("comet"))
    evaluate_files(
        made,
        [right, sources],
        target_language="en",
        sources=sources,
        job=replace(job, allow=("swapped",)),
    )
    written = {path.name: path.read_bytes().decode() for path in Path("comet").iterdir()}
    assert written == {
        "hypothesis.txt": "".join(f"{line}\n" for line in MADE),
        "source.txt": "one\ntwo half\nthree\n",
        "reference.txt": "".join(f"{line}\n" for line in RIGHT),
        "reference-2.txt": "one\ntwo half\nthree\n",
    }


def test_the_files_of_comet_go_into_a_new_folder(files: tuple[Path, Path, Path]) -> None:
    made, right, sources = files
    job = EvaluationJob(comet=Path())
    with pytest.raises(UserError, match="exists already; name a new folder"):
        evaluate_files(made, [right], target_language="en", sources=sources, job=job)
    with pytest.raises(UserError, match="name them with --sources"):
        evaluate_files(made, [right], target_language="en", job=EvaluationJob(comet=Path("new")))
    assert not Path("new").exists()


def test_the_passport_names_each_file_as_it_lies_on_the_disk(
    files: tuple[Path, Path, Path],
) -> None:
    made, right, sources = files
    Path("kept").mkdir()
    passport = Path("kept/p.json")
    job = EvaluationJob(("ter",), passport=passport)
    scores = evaluate_files(made, [right], target_language="en", sources=sources, job=job)
    record = json.loads(passport.read_bytes())
    assert record["inputs"] == [
        {"role": role, "path": f"../{path}", "lines": 3, "sha256": file_sha256(path)}
        for role, path in (("hypotheses", made), ("references", right), ("sources", sources))
    ]
    assert record["ter"] == {
        "score": scores.further[0].value,
        "signature": scores.further[0].signature,
    }
    assert set(record["versions"]) == {"mt", "python", "sacrebleu"}
    assert record["settings"] == {
        "bleu_tokenizer": "13a",
        "metrics": ["ter"],
        "resamples": 0,
        "forced": "",
    }


def test_a_file_that_is_no_passport_is_not_written_over(files: tuple[Path, Path, Path]) -> None:
    made, right, _ = files
    for place, told in ((right, "is no passport of mt"), (Path("no/p.json"), "there is no folder")):
        with pytest.raises(UserError, match=told):
            evaluate_files(made, [right], target_language="en", job=EvaluationJob(passport=place))
    assert right.read_text().splitlines() == RIGHT


def test_texts_of_different_length_are_scored_as_far_as_both_go(
    files: tuple[Path, Path, Path],
) -> None:
    made, *_ = files
    short = _write(Path("short.txt"), RIGHT[:2])
    with pytest.raises(DataError, match="line-counts"):
        evaluate_files(made, [short], target_language="en")
    job = EvaluationJob(allow=("line-counts",))
    scores = evaluate_files(made, [short], target_language="en", job=job)
    cut = evaluate_files(_write(Path("cut.txt"), MADE[:2]), [short], target_language="en")
    assert (scores.bleu.value, scores.sentences) == (cut.bleu.value, 2)
    assert scores.bleu.signature == f"{cut.bleu.signature}|forced:line-counts"


@pytest.mark.parametrize(("pair", "system"), [("zh-en", "Online-W"), ("en-zh", "DLUT")])
def test_published_files_are_scored_to_every_digit(
    pair: str, system: str, corpora: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder, language = corpora / "wmt22-bleu-check", pair.split("-")[1]
    rows = [line.split("\t") for line in (folder / "scores.tsv").read_text().splitlines()]
    published = {row[2]: row[3] for row in rows if row[:2] == [pair, system]}
    made = folder / f"{pair}.hyp.{system}.{language}.gz"
    first, second = (folder / f"{pair}.ref{name}.{language}.gz" for name in "AB")
    for metric, references in (("bleu-A", [first]), ("bleu-all", [first, second])):
        scores = evaluate_files(made, references, target_language=language)
        assert repr(scores.bleu.value) == repr(float(published[metric]))
    assert not caplog.messages


def test_13a_is_refused_for_chinese_before_the_files_are_read() -> None:
    with pytest.raises(DataError, match="`13a` takes words at spaces and is not for `zh`"):
        evaluate_files(Path("none"), [Path("none")], target_language="zh", tokenizer="13a")
