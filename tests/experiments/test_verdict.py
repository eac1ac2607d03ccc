from pathlib import Path

import pytest

from mt.config.evaluation import Band
from mt.evaluation.scores import Evaluation, Score
from mt.experiments.verdict import Example, VerdictRow, verdict
from mt.tables import display_width

BLEU_SIGNATURE = "nrefs:1|case:mixed|eff:no|tok:zh|smooth:exp|version:2.6.0"
CHRF_SIGNATURE = "nrefs:1|case:mixed|eff:yes|nc:6|nw:0|space:no|version:2.6.0"


def _row(
    bleu: float, band: Band | None, *, split: str = "test", nearest: float | None = None
) -> VerdictRow:
    return VerdictRow(
        split=split,
        evaluation=Evaluation(
            bleu=Score("BLEU", bleu, BLEU_SIGNATURE),
            chrf=Score("chrF2", 88.125, CHRF_SIGNATURE),
            sentences=500,
            target_language="zh",
        ),
        band=band,
        nearest=None if nearest is None else Score("BLEU", nearest, BLEU_SIGNATURE),
    )


@pytest.mark.parametrize(
    ("bleu", "band", "result", "passed"),
    [
        (85.0, Band(low=80.0), "pass", True),
        (80.0, Band(low=80.0, high=90.0), "pass", True),
        (90.0, Band(low=80.0, high=90.0), "pass", True),
        (79.994, Band(low=80.0), "FAIL", False),
        (90.01, Band(low=80.0, high=90.0), "FAIL", False),
        (79.996, Band(low=80.0), "pass", True),  # it is shown as 80.00
        (1.0, None, "no band set", True),
    ],
)
def test_a_score_passes_inside_its_band(
    bleu: float, band: Band | None, result: str, passed: bool
) -> None:
    row = _row(bleu, band)
    assert (row.result, row.passed) == (result, passed)
    assert verdict([row], run=Path("runs/x")).passed is passed


def test_one_failure_fails_the_whole_and_is_named() -> None:
    rows = [_row(85.0, Band(low=80.0)), _row(10.0, Band(low=20.0), split="news")]
    result = verdict(rows, run=Path("runs/x"))
    assert not result.passed
    assert result.text.split("\n")[-1] == "FAIL: BLEU outside the expected band on news"


def test_the_table_sets_the_score_beside_the_copy() -> None:
    rows = [
        _row(91.234, Band(low=80.0), nearest=35.1),
        _row(7.0, None, split="会话"),
    ]
    lines = verdict(rows, run=Path("runs/x")).text.split("\n")
    assert lines[:7] == [
        "split  expected BLEU     BLEU  result       nearest copy  chrF2  sentences",
        "test   80.00 to 100.00  91.23  pass                35.10  88.12        500",
        "会话   -                 7.00  no band set             -  88.12        500",
        "",
        f"BLEU          {BLEU_SIGNATURE}",
        f"chrF2         {CHRF_SIGNATURE}",
        f"nearest copy  {BLEU_SIGNATURE}",
    ]
    assert "the most similar training sentence" in lines[8] + lines[9]


def test_it_ends_with_translations_to_read_and_what_to_do_next() -> None:
    examples = [Example(f"Line {n}.", f"第{n}行。", f"行{n}。") for n in range(9)]
    text = verdict([_row(85.0, None)], run=Path("runs/a b"), examples=examples).text
    assert "source       Line 4.\nreference    第4行。\ntranslation  行4。\n" in text
    assert "Line 5." not in text
    assert "the model lies in 'runs/a b'; to use it:\n" in text
    assert "  echo 'Line 0.' | mt translate 'runs/a b'\n" in text
    assert "  python -m mt translate 'runs/a b' input.txt" in text
    assert text.endswith("no band set: nothing was expected of this recipe")


def test_everything_but_a_signature_fits_a_terminal() -> None:
    long = Example("word " * 60, "很长的句子" * 40, "bad\x1b[31m" + "x" * 150)
    row = _row(85.0, Band(low=80.0), split="test_2017_mscoco", nearest=12.0)
    text = verdict([row], run=Path("runs/quickstart"), examples=[long]).text
    wide = [line for line in text.split("\n") if display_width(line) > 100]
    assert [line.split("|")[0] for line in wide] == []
    assert "\x1b" not in text
    assert "echo" not in text
    assert text.count("很长的句子") + text.count("很长") >= 40


def test_a_recipe_without_a_test_split_says_so() -> None:
    result = verdict([], run=Path("runs/x"))
    assert result.passed
    assert "no band set" in result.text


@pytest.mark.parametrize("found", [True, False])
def test_the_environment_is_named_where_a_shell_would_not_find_mt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, found: bool
) -> None:
    programs = tmp_path / ".venv" / "bin"
    programs.mkdir(parents=True)
    (programs / "activate").touch()
    (programs / "mt").touch(mode=0o755)
    monkeypatch.setattr("sys.prefix", str(tmp_path / ".venv"))
    monkeypatch.setenv("PATH", str(programs) if found else "/usr/bin")
    monkeypatch.chdir(tmp_path)
    text = verdict([], run=Path("runs/x")).text
    assert ("\n  . .venv/bin/activate\n" in text) is not found
