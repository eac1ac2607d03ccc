import re
from pathlib import Path
from typing import Any

import pytest

from mt.config.evaluation import Band, Protocol, Published
from mt.evaluation.scores import TOKENIZERS, Evaluation, Score, evaluate
from mt.recipes.verdict import Example, VerdictRow, against_published, verdict
from mt.tables import display_width

RUN = Path("runs/x")
BLEU = "nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:2.6.0"
CHRF = "nrefs:1|case:mixed|eff:yes|nc:6|nw:0|space:no|version:2.6.0"
TOKENIZED = f"{BLEU.replace('13a', 'none')}|text:tokenised,lower-cased"
FAIRSEQ = {
    "scorer": "fairseq",
    "tokenizer": "already-tokenized",
    "case": "kept",
    "text": "tokenised,lower-cased",
}


def row(
    bleu: float = 85.0, signature: str = BLEU, *, split: str = "test", **more: Any
) -> VerdictRow:
    scores = Score("BLEU", bleu, signature), Score("chrF2", 88.125, CHRF)
    return VerdictRow(split, Evaluation(*scores, 500, "zh"), **more)


@pytest.mark.parametrize(
    ("bleu", "band", "result"),
    [
        (80.0, Band(low=80.0), "pass"),
        (90.0, Band(low=80.0, high=90.0), "pass"),
        (79.994, Band(low=80.0), "FAIL"),
        (90.01, Band(low=80.0, high=90.0), "FAIL"),
        (79.996, Band(low=80.0), "pass"),  # shown as 80.00
        (1.0, None, "no band set"),
    ],
)
def test_split_passes_inside_its_band(bleu: float, band: Band | None, result: str) -> None:
    found = verdict([row(bleu, band=band)], run=RUN)
    assert found.passed is (result != "FAIL")
    assert result in found.text.split("\n")[1]


def test_one_failure_fails_the_verdict() -> None:
    rows = [row(85.0, band=Band(low=80.0)), row(10.0, band=Band(low=20.0), split="news")]
    result = verdict(rows, run=RUN)
    assert not result.passed
    assert result.text.split("\n")[-1] == "FAIL: BLEU outside the expected band on news"
    assert verdict([], run=RUN).passed


def test_table_shows_the_score_next_to_the_nearest_copy() -> None:
    nearest = Score("BLEU", 35.1, BLEU)
    rows = [row(91.234, band=Band(low=80.0), nearest=nearest), row(7.0, split="会话")]
    lines = verdict(rows, run=RUN).text.split("\n")
    assert lines[:7] == [
        "split  expected BLEU     BLEU  result       nearest copy  chrF2  sentences",
        "test   80.00 to 100.00  91.23  pass                35.10  88.12        500",
        "会话   -                 7.00  no band set             -  88.12        500",
        "",
        f"BLEU          {BLEU}",
        f"chrF2         {CHRF}",
        f"nearest copy  {BLEU}",
    ]
    assert lines[8].startswith("nearest copy: BLEU of copying")


def test_signatures_of_some_splits_name_them() -> None:
    splits = {"one": BLEU, "two": TOKENIZED, "three": BLEU}
    rows = [row(41.2, signature, split=split) for split, signature in splits.items()]
    lines = verdict(rows, run=RUN).text.split("\n\n")[1].splitlines()
    assert [re.split(" {2,}", line) for line in lines] == [
        ["BLEU", BLEU, "one, three"],
        ["chrF2", CHRF, "one, two, three"],
        ["BLEU", TOKENIZED, "two"],
    ]


def test_verdict_has_examples_and_next_steps() -> None:
    examples = [Example(f"Line {n}.", f"第{n}行。", f"行{n}。") for n in range(9)]
    text = verdict([row()], run=Path("runs/a b"), examples=examples).text
    assert "source       Line 4.\nreference    第4行。\ntranslation  行4。\n" in text
    assert "Line 5." not in text
    assert "the model is in 'runs/a b'; to use it:\n" in text
    assert "  echo 'Line 0.' | mt translate 'runs/a b'\n" in text
    assert "  python -m mt translate 'runs/a b' input.txt" in text
    assert text.endswith("no band set: the recipe has no expected scores")


def test_only_signatures_are_wider_than_a_terminal() -> None:
    long = Example("word " * 60, "很长的句子" * 40, "bad\x1b[31m" + "x" * 150)
    rows = [row(band=Band(low=80.0), split="test_2017_mscoco", nearest=Score("BLEU", 12.0, BLEU))]
    text = verdict(rows, run=RUN, examples=[long]).text
    wide = [line for line in text.split("\n") if display_width(line) > 100]
    assert [line.split("|")[0] for line in wide] == []
    assert "\x1b" not in text
    assert "echo" not in text


@pytest.mark.parametrize("on_path", [True, False])
def test_environment_is_activated_if_mt_is_not_on_the_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, on_path: bool
) -> None:
    programs = tmp_path / ".venv" / "bin"
    programs.mkdir(parents=True)
    (programs / "activate").touch()
    (programs / "mt").touch(mode=0o755)
    monkeypatch.setattr("sys.prefix", str(tmp_path / ".venv"))
    monkeypatch.setenv("PATH", str(programs) if on_path else "/usr/bin")
    monkeypatch.chdir(tmp_path)
    assert ("\n  . .venv/bin/activate\n" in verdict([], run=RUN).text) is not on_path


def published(score: float = 41.02, **protocol: Any) -> Published:
    how = Protocol.model_validate({**FAIRSEQ, **protocol})
    return Published(split="test", system="Tiny", score=score, protocol=how, source="a paper")


@pytest.mark.parametrize(
    ("signature", "protocol", "difference"),
    [
        (TOKENIZED, {}, ""),
        (BLEU, {}, "`tokenizer` is `already-tokenized` there and `13a` here"),
        (TOKENIZED, {"tokenizer": "unknown"}, "its source does not state `tokenizer`"),
        (
            BLEU.replace("mixed", "lc"),
            {"tokenizer": "13a", "text": "plain"},
            "`case` is `kept` there and `folded` here",
        ),
        (TOKENIZED, {"text": "plain"}, "`text` is `plain` there and `tokenised,lower-cased` here"),
        (TOKENIZED, {"references": 4}, "`references` is `4` there and `1` here"),
        (f"{TOKENIZED}|forced:tokens", {}, "the score here is forced (`tokens`)"),
    ],
)
def test_published_score_is_compared_by_the_same_protocol(
    signature: str, protocol: dict[str, Any], difference: str
) -> None:
    here = Score("BLEU", 41.524, signature)
    found = against_published(published(**protocol), here, seed_band=0.3)
    outcome = f"not comparable: {difference}" if difference else "+0.50, seeds vary by ± 0.30"
    assert found == f"Tiny 41.02, here 41.52 ({outcome}) [a paper]"


@pytest.mark.parametrize("tokenizer", TOKENIZERS)
def test_protocol_is_read_from_a_real_signature(tokenizer: str) -> None:
    cut = [f"the dog number {number} , here , is not a cat ." for number in range(9)]
    plain = [line.replace(" ,", ",").replace(" .", ".").capitalize() for line in cut]
    for lines, form in ((plain, "plain"), (cut, "tokenised,lower-cased")):
        scored = evaluate(lines, [lines], target_language="en", tokenizer=tokenizer).bleu
        same = published(tokenizer=tokenizer, text=form)
        assert against_published(same, scored, seed_band=0.0).endswith("(+58.98) [a paper]")
