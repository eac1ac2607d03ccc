"""Command `mt evaluate`."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mt.evaluation.evaluate import EvaluationJob, GivenTexts
from tests.factories import Program

Recorded = Callable[..., list[Any]]
RUN, FILES = "mt.evaluation.evaluate.evaluate_run", "mt.evaluation.evaluate.evaluate_files"
ROBUSTNESS = "mt.evaluation.evaluate.evaluate_robustness"
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
    assert calls == [((Path("r"),), PLAIN), ((Path("r"),), chosen)]


@pytest.mark.parametrize(("target", "options"), [(RUN, []), (ROBUSTNESS, ["--robustness"])])
def test_run_is_scored_on_given_texts(
    target: str, options: list[str], program: Program, scoring: Recorded
) -> None:
    texts = ["--sources", "s", "--references", "t", "--references", "u"]
    calls = scoring(target)
    assert program("evaluate", "r", *texts, *options) == (0, "30 ± 1\n", "")
    job = EvaluationJob(texts=GivenTexts(Path("s"), (Path("t"), Path("u"))))
    assert calls == [((Path("r"),), {**PLAIN, "job": job})]


def test_robustness_takes_split_and_overrides(program: Program, scoring: Recorded) -> None:
    calls = scoring(ROBUSTNESS)
    options = ["--split", "news", "--allow", "tokens", "--set", "decoding.beam=2"]
    assert program("evaluate", "r", "--robustness", *options) == (0, "30 ± 1\n", "")
    named = {"split": "news", "overrides": ["decoding.beam=2"], "device": "auto"}
    assert calls == [((Path("r"),), {**named, "job": EvaluationJob(allow=("tokens",))})]


def test_files_are_scored_with_all_options(program: Program, scoring: Recorded) -> None:
    calls = scoring(FILES)
    files = ["--hypotheses", "h", "--references", "r1", "--references", "r2", "--sources", "s"]
    options = ["--target-language", "zh", "--passport", "p", "--bleu-tokenizer", "char"]
    assert program("evaluate", *files, *options) == (0, "30 ± 1\n", "")
    named = {"target_language": "zh", "tokenizer": "char", "sources": Path("s")}
    job = EvaluationJob(passport=Path("p"))
    assert calls == [((Path("h"), [Path("r1"), Path("r2")]), {**named, "job": job})]


@pytest.mark.parametrize("form", ["text", "json"])
def test_comet_commands_keep_json_valid(form: str, program: Program, scoring: Recorded) -> None:
    scoring(RUN)
    as_json = ["--json"] if form == "json" else []
    _, out, err = program("evaluate", "r", "--write-comet", "c", *as_json)
    printed = err if as_json else out.removeprefix("30 ± 1\n")
    assert printed.splitlines()[-1] == (
        "comet-env/bin/comet-score -s c/source.txt -t c/hypothesis.txt -r c/reference.txt "
        "--model Unbabel/wmt22-comet-da"
    )
    assert (out == "{}\n") == bool(as_json)


@pytest.mark.parametrize(("passed", "status"), [(True, 0), (False, 1)])
def test_exit_status_of_check_is_the_verdict(
    passed: bool, status: int, program: Program, scoring: Recorded
) -> None:
    calls = scoring("mt.evaluation.passport.check_passport", passed=passed)
    assert program("evaluate", "--check", "p.json") == (status, "30 ± 1\n", "")
    assert calls == [((Path("p.json"),), {})]
