"""Comparison of systems: the paired tests against sacreBLEU, slices, test sets and the table."""

import shutil
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF
from sacrebleu.significance import PairedTest

from mt.config import DataConfig
from mt.config.data import NO_CORPUS, TextSource
from mt.config.loading import dump_config, load_config
from mt.errors import DataError, UserError
from mt.evaluation.checks import ScoredText
from mt.evaluation.compare import (
    CompareOptions,
    PairedScore,
    System,
    compare,
    compare_systems,
    slice_by_length,
)
from mt.evaluation.evaluate import EvaluationSet, evaluate_run
from mt.evaluation.scores import MetricCommand, Resampling
from mt.files import write_text

TESTS: tuple[Resampling, ...] = ("bootstrap", "randomization")
_NAMES = ("Anna", "Bert", "Clara", "David", "Emma", "Frank", "Greta", "Hugo")
_THINGS = ("a red ball", "two old books", "the blue car", "some fresh bread", "a small dog")
REFERENCES = tuple(f"{name} has seen {thing} today." for name in _NAMES for thing in _THINGS)


def evaluation_set(references: Sequence[str] = REFERENCES, language: str = "en") -> EvaluationSet:
    tokenizer = "zh" if language == "zh" else "13a"
    right = (ScoredText("right", references),)
    return EvaluationSet("test", ScoredText("", ()), right, language, tokenizer)


def broken(lines: Sequence[str], every: int, *, start: int = 0) -> tuple[str, ...]:
    """Reverse the words of every `every`-th line."""
    return tuple(
        " ".join(line.split()[::-1]) if index % every == start else line
        for index, line in enumerate(lines)
    )


WRONG = System("wrong", broken(REFERENCES, 4))
RIGHT = System("right", REFERENCES)
OTHER = System("other", broken(REFERENCES, 4, start=1))


def scores(
    systems: Sequence[System], references: Sequence[str] = REFERENCES, **options: Any
) -> tuple[tuple[PairedScore, ...], ...]:
    return compare_systems(evaluation_set(references), systems, CompareOptions(**options)).scores


@pytest.mark.parametrize("test", TESTS)
def test_scores_intervals_and_p_values_are_those_of_sacrebleu(test: Resampling) -> None:
    systems = [(system.name, system.translations) for system in (WRONG, RIGHT, OTHER)]
    metrics = {"BLEU": BLEU(), "chrF2": CHRF()}
    kind, confidence = {"bootstrap": ("bs", -1), "randomization": ("ar", 1000)}[test]
    paired = PairedTest(systems, metrics, [REFERENCES], kind, 300, confidence)
    signatures, expected = paired()
    for row in scores([WRONG, RIGHT, OTHER], test=test, samples=300):
        assert {score.signature for score in row} == {str(signatures[row[0].metric])}
        results: list[Any] = list(expected[row[0].metric])
        assert [score.p_value for score in row] == [result.p_value for result in results]
        assert [score.value for score in row] == [result.score for result in results]
        intervals = [(score.interval.mean, score.interval.half_width) for score in row]
        assert intervals == [(result.mean, result.ci) for result in results]


@pytest.mark.parametrize("test", TESTS)
def test_better_system_is_significant(test: Resampling) -> None:
    rows = scores([WRONG, RIGHT, OTHER], test=test, samples=500, metrics=("chrf++", "ter"))
    assert [row[0].metric for row in rows] == ["BLEU", "chrF2", "chrF2++", "TER"]
    for row in rows:
        outcomes = [score.outcome for score in row]
        assert outcomes == ["baseline", "better", "no significant difference"]
        assert row[0].difference is None
        assert row[1].value == pytest.approx(0.0 if row[1].metric == "TER" else 100.0)
        assert row[1].difference == pytest.approx(row[1].value - row[0].value)
    backwards = scores([RIGHT, WRONG], test=test, samples=500, metrics=("ter",))
    assert [row[1].outcome for row in backwards] == ["worse"] * 3


def test_numbers_of_a_program_are_higher_or_lower() -> None:
    program = "import sys; print([len(line.split()[0]) for line in open(sys.argv[1])])"
    command = MetricCommand(f"first='{sys.executable}' -c '{program}' {{translations}}")
    for systems, outcome in (([WRONG, RIGHT], "lower"), ([RIGHT, WRONG], "higher")):
        row = scores(systems, samples=200, metrics=(command,))[-1]
        means = [np.mean([len(t.split()[0]) for t in system.translations]) for system in systems]
        assert [score.value for score in row] == pytest.approx(means)
        assert (row[1].metric, row[1].outcome) == ("first", outcome)
        assert row[0].signature.endswith(f"|command:{command.command}")


@pytest.mark.parametrize("test", TESTS)
def test_few_differing_sentences_have_no_p_value(test: Resampling) -> None:
    upper = [f"{line.upper()} " for line in REFERENCES]  # TER ignores case, and all the space
    for count, has_p in ((5, False), (6, True)):
        other = ["Nothing at all"] * count + [line.strip() for line in upper[count:]]
        rows = scores([System("a", upper), System("b", other)], test=test, metrics=("ter",))
        assert [row[1].p_value is not None for row in rows[1:]] == [has_p] * 2
        assert has_p or rows[1][1].outcome == "no significant difference"
    same = scores([WRONG, replace(WRONG, name="again")], test=test, samples=100)
    assert [(row[1].difference, row[1].p_value) for row in same] == [(0.0, None)] * 2


def test_signatures_and_table_have_form_and_allowed_reasons() -> None:
    lowered = [line.lower() for line in REFERENCES]
    systems = [replace(WRONG, name="runs/<base>"), replace(RIGHT, forced="lowercased")]
    compared = compare_systems(evaluation_set(lowered), systems, CompareOptions(samples=100))
    (base, better), _ = compared.scores
    assert base.signature.endswith("|text:lower-cased")
    assert better.signature.endswith("|text:lower-cased|forced:lowercased")
    head, table, notes = compared.as_text().split("\n\n")
    assert head.splitlines() == ["A  runs/<base>  (baseline)", "B  right", "on test: 40 sentences"]
    shown = f"BLEU B {better.value:.2f} {better.interval.as_text()} {better.difference:+.2f}"
    assert table.splitlines()[2].split() == [
        *shown.split(),
        f"{better.p_value:.4f}",
        better.outcome,
    ]
    assert notes.splitlines()[1:3] == [f"BLEU: {base.signature}", f"BLEU: {better.signature}"]


def test_slices_are_by_length_in_words_or_characters() -> None:
    lines = ["one two three four five", "a b c d e", " ".join("vwxyz" * 5), "say it now then"]
    made = [lines[0], "a b c d f", *lines[2:]]
    short, long = slice_by_length(evaluation_set(lines), [made, lines])
    assert [(part.name, part.sentences) for part in (short, long)] == [
        ("0 to 10 words", 3),
        ("21 to 30 words", 1),
    ]
    right = [lines[0], lines[1], lines[3]]
    chrf = CHRF().corpus_score([made[0], made[1], made[3]], [right]).score
    assert short.chrf == pytest.approx((chrf, 100.0))
    assert long.bleu == pytest.approx((100.0, 100.0))
    chinese = ["我们" * 8, "你好，世界！", "好。", "是" * 90]
    parts = slice_by_length(evaluation_set(chinese, "zh"), [chinese])
    names = ["0 to 15 characters", "16 to 30 characters", "over 80 characters"]
    assert [part.name for part in parts] == names


WriteLines = Callable[[str, Sequence[str]], Path]


@pytest.fixture
def write_lines(tmp_path: Path) -> WriteLines:
    def write(name: str, lines: Sequence[str]) -> Path:
        path = tmp_path / name
        path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
        return path

    return write


def test_runs_and_files_are_compared_on_each_split(
    run: Path, tmp_path: Path, write_lines: WriteLines
) -> None:
    file = write_lines("a.txt", ["one two"] * 6)
    options = CompareOptions(samples=100, device="cpu", allow=("lowercased",))
    (comparison,) = compare([run, file], options)
    assert (comparison.systems, comparison.sentences) == ((f"{run}, beam 2", str(file)), 6)
    bleu = evaluate_run(run, device="cpu").bleu
    assert comparison.scores[0][0].value == bleu.value
    other = Path(shutil.copytree(run, tmp_path / "other"))
    config = (other / "config.yaml").read_text(encoding="utf-8")
    (other / "config.yaml").write_text(config.replace("    test:\n", "    news:\n"))
    (comparison,) = compare([run, other], options)
    assert comparison.scores[0][0].value == comparison.scores[0][1].value
    (other / "config.yaml").write_text(config)
    both = compare([run, other], replace(options, splits=("test", "valid")))
    assert [(part.test_set, part.sentences) for part in both] == [("test", 6), ("valid", 7)]
    assert both[1].scores[0][0].signature.endswith("|text:lower-cased")
    with pytest.raises(UserError):
        compare([run, file], replace(options, splits=("test", "valid")))
    shutil.rmtree(run / "evaluations")
    (other / "config.yaml").write_text(config.replace("/test.", "/valid."), encoding="utf-8")
    with pytest.raises(UserError, match="differ from line 1 on"):
        compare([run, other])
    assert not (run / "evaluations").exists()


def test_settings_of_one_run_are_compared_with_kept_translations(run: Path, tmp_path: Path) -> None:
    options = CompareOptions(
        samples=100, device="cpu", allow=("lowercased",), overrides=("decoding.search=greedy",)
    )
    first = compare([run], options)
    assert first[0].systems == (f"{run}, beam 2", f"{run}, greedy, decoding.search=greedy")
    records = [run / "evaluations" / f"test{name}.json" for name in ("", ".search=greedy")]
    contents = [record.read_bytes() for record in records]  # with the seconds of translation
    assert compare([run], options) == first
    assert [record.read_bytes() for record in records] == contents
    (run / "evaluations" / "test.hypotheses.txt").write_text("changed\n" * 6)
    assert compare([run], options) == first
    changed = [
        record.read_bytes() != content for record, content in zip(records, contents, strict=True)
    ]
    assert changed == [True, False]
    for paths in ([run, tmp_path], [run / "config.yaml"]):
        with pytest.raises(UserError, match="--set"):
            compare(paths, options)


def test_files_are_checked(write_lines: WriteLines) -> None:
    right = write_lines("right.txt", REFERENCES)
    copy = write_lines("copy.txt", REFERENCES)
    lowered = write_lines("low.txt", [line.lower() for line in REFERENCES])
    short = write_lines("short.txt", REFERENCES[1:])
    options = CompareOptions(references=(right,), target_language="en", samples=100)
    for path in (copy, lowered, short):
        with pytest.raises(DataError):
            compare([path, right], options)
    options = replace(options, allow=("lowercased", "references", "line-counts"))
    (comparison,) = compare([lowered, copy], options)
    assert comparison.scores[0][0].signature.endswith("|forced:lowercased")
    with pytest.raises(DataError):  # line N answers line N, whatever is allowed
        compare([short, copy], options)


def test_an_imported_run_translates_the_split_of_the_other(run: Path, tmp_path: Path) -> None:
    imported = Path(shutil.copytree(run, tmp_path / "imported"))
    config = load_config(imported / "config.yaml")
    none = TextSource(source=NO_CORPUS, target=NO_CORPUS)
    data = DataConfig(
        source_language="eng-Latn",
        target_language="deu-Latn",
        train=none,
        valid=none,
        max_tokens=64,
    )
    write_text(imported / "config.yaml", dump_config(config.changed(data=data)))
    with pytest.raises(UserError):
        evaluate_run(imported, device="cpu")
    (comparison,) = compare([imported, run], CompareOptions(samples=100, device="cpu"))
    assert (comparison.test_set, comparison.sentences) == ("test", 6)
    assert comparison.scores[0][0].value == comparison.scores[0][1].value


def test_runs_are_compared_on_given_texts(
    run: Path, write_lines: WriteLines, tmp_path: Path
) -> None:
    other = Path(shutil.copytree(run, tmp_path / "other"))
    sources = write_lines("news.en", ["one two", "three four five"])
    first = write_lines("news.de", ["two one", "five four three"])
    second = write_lines("again.de", ["two one now", "five"])
    file = write_lines("made.txt", ["two two", "five five three"])
    options = CompareOptions(references=(first, second), sources=sources, samples=100)
    (comparison,) = compare([run, file, other], options)
    assert (comparison.test_set, comparison.sentences) == ("news", 2)
    assert all("nrefs:2" in score.signature for row in comparison.scores for score in row)
    with pytest.raises(UserError, match="other texts"):
        compare([run, other], replace(options, references=(second,)))
    short = write_lines("short.de", ["x"])
    with pytest.raises(DataError):
        compare([run, other], replace(options, references=(first, short), splits=("new",)))


@pytest.mark.parametrize(
    ("of_runs", "options", "name"),
    [
        (False, {}, "--references"),
        (False, {"references": ("right.txt",)}, "--target-language"),
        (False, {"references": ("wrong.txt",), "target_language": "en"}, "wrong.txt"),
        (True, {"references": ("x",)}, "--sources"),
        (True, {"target_language": "de"}, "--target-language"),
        (True, {"tokenizer": "char"}, "--bleu-tokenizer"),
    ],
)
def test_options_of_the_test_set_fit_the_systems(
    of_runs: bool,
    options: dict[str, Any],
    name: str,
    run: Path,
    write_lines: WriteLines,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    files = [write_lines(name, ["a"]) for name in ("right.txt", "other.txt")]
    monkeypatch.chdir(files[0].parent)
    options["references"] = tuple(map(Path, options.get("references", ())))
    paths = [run, Path(shutil.copytree(run, run.with_name("second")))] if of_runs else files
    with pytest.raises(UserError) as error:
        compare(paths, CompareOptions(**options))
    assert name in str(error.value)
