"""What is printed of an ablation: means, spreads and differences that can be computed by hand."""

import json
from typing import Any

import pytest

from mt.evaluation.scores import Score
from mt.experiments.ablation import AblationResults, RunResult, VariantResults

SIGNATURE = "nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:2.6.0"
HEADS = [
    *("variant", "parameters", "updates/s", "vs base"),
    *("valid loss", "vs base", "valid BLEU", "vs base"),
]
OTHER = SIGNATURE.replace("13a", "zh")


def run(
    rate: float, loss: float, valid: float, test: float, signature: str = SIGNATURE
) -> RunResult:
    return RunResult(
        parameters=1_234_567,
        updates_per_second=rate,
        valid_loss=loss,
        valid_bleu=Score("BLEU", valid, signature),
        test_bleu=Score("BLEU", test, signature),
    )


BASE = VariantResults(
    "base",
    (),
    {1: run(8.0, 2.0, 20.0, 30.0), 2: run(10.0, 2.2, 22.0, 33.0), 3: run(12, 2.1, 24, 36)},
)
ROTARY = VariantResults(
    "rotary",
    ("model.positional=rotary",),
    {1: run(9.0, 1.9, 21.0, 31.5), 2: run(9.0, 1.7, 25.0, 28)},
)
PRE = VariantResults("pre", ("model.residual=pre",), {1: None, 2: run(5.0, 2.0, 22.0, 34.0)})
GLU = VariantResults("glu", ("model.feed_forward=glu",), {1: None, 2: None})


def rows(results: AblationResults) -> list[list[str]]:
    """Return the cells of the table's lines, head and ruler too."""
    table = [line for line in results.as_text().splitlines() if line.startswith("|")]
    assert len({len(line) for line in table}) == 1, "the columns do not stand under each other"
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table]


def test_the_table() -> None:
    head, ruler, *body = rows(AblationResults((BASE, ROTARY, PRE, GLU), split="news"))
    assert head == [*HEADS, "news BLEU", "vs base", "seeds"]
    assert [set(cell) for cell in ruler] == [{"-"}, *[{"-", ":"}] * 10]
    assert body == [
        [
            *("base", "1,234,567", "10.00 ± 2.00", "-", "2.100 ± 0.100", "-"),
            *("22.00 ± 2.00", "-", "33.00 ± 3.00", "-", "3"),
        ],
        [
            *("rotary", "1,234,567", "9.00 ± 0.00", "1.00x", "1.800 ± 0.141", "-0.300"),
            *("23.00 ± 2.83", "+2.00", "29.75 ± 2.47", "-1.75", "2"),
        ],
        [
            *("pre", "1,234,567", "5.00", "0.50x", "2.000", "-0.200"),
            *("22.00", "+0.00", "34.00", "+1.00", "1, 1 diverged"),
        ],
        ["glu", *["-"] * 9, "0, 2 diverged"],
    ]


def test_what_stands_under_the_table() -> None:
    text = AblationResults((BASE, ROTARY, PRE, GLU), split="news").as_text()
    assert text.partition("\n\n")[2].splitlines() == [
        f"- BLEU: {SIGNATURE}",
        "- updates/s: in training alone, without validation and start-up; other work on the "
        "machine lowers it",
        "- each number is the mean over the seeds, ± the standard deviation of the sample; "
        "`vs base` is over the seeds that both have",
        "- one seed alone has no spread, a difference may be chance: `pre`",
    ]


def test_the_table_without_a_split_has_no_column_for_it() -> None:
    assert rows(AblationResults((BASE, ROTARY), split=None))[0] == [*HEADS, "seeds"]


def test_the_json_has_the_same_numbers_and_those_of_every_run() -> None:
    results = AblationResults((BASE, ROTARY, PRE, GLU), split="news")
    record = json.loads(results.as_json())
    assert record["split"] == "news"
    variants: dict[str, dict[str, Any]] = {each["name"]: each for each in record["variants"]}
    rotary = variants["rotary"]
    assert rotary["changes"] == ["model.positional=rotary"]
    assert rotary["parameters"] == 1_234_567
    assert rotary["valid_bleu"] == {
        "mean": 23.0,
        "deviation": pytest.approx(8**0.5),
        "to_base": 2.0,
    }
    assert rotary["updates_per_second"]["to_base"] == 1.0
    assert rotary["bleu_signatures"] == [SIGNATURE]
    assert [each["seed"] for each in rotary["runs"]] == rotary["seeds"] == [1, 2]
    bleu = {"name": "BLEU", "value": 28, "signature": SIGNATURE, "interval": None}
    assert rotary["runs"][1]["test_bleu"] == bleu
    assert variants["base"]["valid_loss"]["to_base"] is None
    assert variants["pre"]["test_bleu"] == {"mean": 34.0, "deviation": None, "to_base": 1.0}
    assert variants["pre"]["diverged_seeds"] == [1]
    assert variants["glu"]["valid_loss"] is variants["glu"]["parameters"] is None
    assert variants["glu"]["diverged_seeds"] == [1, 2]


def test_a_base_that_has_diverged_leaves_nothing_to_compare_with() -> None:
    lost = VariantResults("base", (), {1: None})
    compared = json.loads(AblationResults((lost, ROTARY), split=None).as_json())["variants"][1]
    assert compared["valid_loss"]["mean"] == pytest.approx(1.8)
    assert compared["valid_loss"]["to_base"] is None


def test_scores_of_several_signatures_are_told_apart() -> None:
    chars = VariantResults("chars", ("evaluation.bleu_tokenizer=zh",), {1: run(1, 1, 1, 1, OTHER)})
    text = AblationResults((BASE, chars, ROTARY), split="news").as_text()
    assert f"- BLEU of `base`, `rotary`: {SIGNATURE}\n" in text
    assert f"- BLEU of `chars`: {OTHER}\n" in text


def test_an_early_end_is_said() -> None:
    assert "stopped early" not in AblationResults((BASE,), split=None).as_text()
    assert "stopped early" in AblationResults((BASE,), split=None, exit_status=130).as_text()
    assert AblationResults((), split=None, exit_status=130).as_text() == "no run has ended"
