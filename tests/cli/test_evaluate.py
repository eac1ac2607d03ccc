"""Command `mt evaluate`."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mt.evaluation.evaluate import EvaluationJob, GivenTexts
from tests.factories import Program

Recorded = Callable[..., list[Any]]
RUN, FILES = "mt.evaluation.evaluate.evaluate_run", "mt.evaluation.evaluate.evaluate_files"
PLAIN = {"split": None, "overrides": (), "device": "auto", "job": EvaluationJob()}


@pytest.fixture
def scoring(recorded: Recorded, result: Callable[..., Any]) -> Recorded:
    """Return a function that replaces another by a recorder with the result `30 ± 1`."""
    return lambda target, **attributes: recorded(target, result(**attributes))


def test_run_is_scored_with_all_options(program: Program, scoring: Recorded) -> None:
    calls = scoring(RUN)
    assert program("evaluate", "r") == (0, "30 ± 1\n", "")
    settings = ["--split", "news", "--set", "decoding.beam=2", "--device", "cpu", "--json"]
    options = ["--metric", "ter", "--metric", "chrf++", "--bootstrap", "500", "--allow", "tokens"]
    assert program("evaluate", "r", *settings, *options) == (0, "{}\n", "")
    job = EvaluationJob(("ter", "chrf++"), 500, ("tokens",))
    chosen = {"split": "news", "overrides": ["decoding.beam=2"], "device": "cpu", "job": job}
    texts = ["--sources", "s", "--references", "t", "--references", "u"]
    assert program("evaluate", "r", *texts) == (0, "30 ± 1\n", "")
    given = EvaluationJob(texts=GivenTexts(Path("s"), (Path("t"), Path("u"))))
    jobs = (PLAIN, chosen, {**PLAIN, "job": given})
    assert calls == [((Path("r"),), job) for job in jobs]


def test_files_are_scored_with_all_options(program: Program, scoring: Recorded) -> None:
    calls = scoring(FILES)
    files = ["h", "--references", "r1", "--references", "r2", "--sources", "s"]
    options = ["--target-language", "zh", "--bleu-tokenizer", "char"]
    assert program("evaluate", *files, *options) == (0, "30 ± 1\n", "")
    named = {"target_language": "zh", "tokenizer": "char", "sources": Path("s")}
    assert calls == [((Path("h"), [Path("r1"), Path("r2")]), {**named, "job": EvaluationJob()})]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("r --references s", "a run is scored on --sources and --references; give both"),
        ("r --calibrate --sources s", "a run is scored on --sources and --references; give both"),
        ("r --sources s --split x", "--split cannot be combined with --sources without --ref"),
        ("r --calibrate --metric ter", "--metric cannot be combined with --calibrate; score RUN"),
        ("r --metric-command x=y", "--metric-command x: write NAME=COMMAND"),
        ("h --target-language zh", "--target-language cannot be combined with a run; score RUN"),
        *(
            (f"text {options}", "text: a file is scored with --references and --target-language")
            for options in ("", "--references r", "--target-language zh", "--split test")
        ),
    ],
)
def test_options_that_exclude_each_other_are_one_line(
    arguments: str, message: str, refused: Callable[..., str], recipe: Path
) -> None:
    recipe.rename("text")
    assert refused("evaluate", *arguments.split()).startswith(message)
