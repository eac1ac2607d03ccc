"""Published scores: compared where the protocols are one, and otherwise not, with the reason."""

import re
from pathlib import Path
from typing import Any

import pytest

from mt.config.evaluation import Protocol, Published
from mt.evaluation.scores import TOKENIZERS, Evaluation, Score, evaluate
from mt.experiments.verdict import VerdictRow, measured_protocol, standing, verdict

PLAIN = "nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:2.6.0"
TOKENIZED = f"{PLAIN.replace('13a', 'none')}|text:tokenised,lower-cased"
FAIRSEQ = {
    "scorer": "fairseq",
    "tokenizer": "already-tokenized",
    "case": "kept",
    "text": "tokenised,lower-cased",
}


def published(score: float = 41.02, **protocol: Any) -> Published:
    how = Protocol.model_validate({**FAIRSEQ, **protocol})
    return Published(split="test", system="Tiny", score=score, protocol=how, source="a paper")


@pytest.mark.parametrize(
    ("bleu", "band", "word"),
    [
        (41.53, 0.5, "above"),
        (41.524, 0.5, "within"),  # shown as 41.52
        (41.52, 0.5, "within"),
        (40.52, 0.5, "within"),
        (40.51, 0.5, "below"),
        (41.02, 0.0, "within"),
        (41.03, 0.0, "above"),
    ],
)
def test_a_score_lies_above_within_or_below_the_seed_band(
    bleu: float, band: float, word: str
) -> None:
    stands = standing(published(), Score("BLEU", bleu, TOKENIZED), seed_band=band)
    assert stands == f"{word} the seed band (± {band:.2f})"


@pytest.mark.parametrize(
    ("signature", "protocol", "why"),
    [
        (
            PLAIN,
            {},
            "`tokenizer` is `already-tokenized` there and `13a` here; "
            "`text` is `tokenised,lower-cased` there and `plain` here",
        ),
        (
            TOKENIZED,
            {"scorer": "unknown", "tokenizer": "unknown"},
            "its source does not state `scorer`, `tokenizer`",
        ),
        (
            PLAIN.replace("mixed", "lc"),
            {"tokenizer": "13a", "text": "plain"},
            "`case` is `kept` there and `folded` here",
        ),
        (
            TOKENIZED.replace("nrefs:1", "nrefs:4"),
            {},
            "`references` is `1` there and `4` here",
        ),
        (TOKENIZED, {"references": 4}, "`references` is `4` there and `1` here"),
        (f"{TOKENIZED}|forced:tokens", {}, "the score here is forced (`tokens`)"),
        (
            PLAIN,
            {"scorer": "unknown", "text": "plain"},
            "its source does not state `scorer`; "
            "`tokenizer` is `already-tokenized` there and `13a` here",
        ),
    ],
)
def test_what_differs_or_is_not_stated_cannot_be_compared(
    signature: str, protocol: dict[str, Any], why: str
) -> None:
    stands = standing(published(**protocol), Score("BLEU", 99.0, signature), seed_band=50.0)
    assert stands == f"not comparable: {why}"


@pytest.mark.parametrize("tokenizer", TOKENIZERS)
def test_the_protocol_is_read_off_a_real_signature(tokenizer: str) -> None:
    cut = [f"the dog number {number} , here , is not a cat ." for number in range(9)]
    plain = [line.replace(" ,", ",").replace(" .", ".").capitalize() for line in cut]
    for lines, form in ((plain, "plain"), (cut, "tokenised,lower-cased")):
        scored = evaluate(lines, [lines], target_language="en", tokenizer=tokenizer).bleu
        measured = measured_protocol(scored)
        assert (measured.scorer, measured.tokenizer) == ("sacrebleu", tokenizer)
        assert (measured.case, measured.text) == ("kept", form)


def test_the_verdict_ends_with_a_line_for_each_and_passes_by_its_bands_alone() -> None:
    evaluation = Evaluation(Score("BLEU", 41.2, TOKENIZED), Score("chrF2", 60.0, "nc:6"), 9, "de")
    others = published(99.0), published(41.0, scorer="unknown")
    row = VerdictRow("test", evaluation, published=others, seed_band=0.3)
    result = verdict([row], run=Path("runs/x"))
    assert result.passed
    assert result.text.split("\n")[-4:] == [
        "no band set: nothing was expected of this recipe",
        "",
        "test: Tiny 99.00, here 41.20 (tokenised,lower-cased): below the seed band (± 0.30) "
        "[a paper]",
        "test: Tiny 41.00, here 41.20 (tokenised,lower-cased): not comparable: "
        "its source does not state `scorer` [a paper]",
    ]


def test_a_signature_that_is_not_of_all_splits_names_its_own() -> None:
    chrf = Score("chrF2", 60.0, "nc:6")
    rows = [
        VerdictRow(split, Evaluation(Score("BLEU", 41.2, signature), chrf, 9, "de"))
        for split, signature in (("one", PLAIN), ("two", TOKENIZED), ("three", PLAIN))
    ]
    told = verdict(rows, run=Path("runs/x")).text.split("\n\n")[1]
    assert [re.split(" {2,}", line) for line in told.splitlines()] == [
        ["BLEU", PLAIN, "one, three"],
        ["chrF2", "nc:6", "one, two, three"],
        ["BLEU", TOKENIZED, "two"],
    ]
    alike = verdict(rows[::2], run=Path("runs/x")).text.split("\n\n")[1]
    assert alike.splitlines() == [f"BLEU   {PLAIN}", "chrF2  nc:6"]
