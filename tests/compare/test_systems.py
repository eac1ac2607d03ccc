import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from mt.compare.systems import (
    EvaluationSet,
    GivenTestSet,
    System,
    check_same,
    read_systems,
)
from mt.config import DataConfig
from mt.config.data import NO_CORPUS, TextSource
from mt.config.loading import dump_config, load_config
from mt.errors import UserError
from mt.evaluation.evaluate import evaluate_run
from mt.files import write_text

WriteLines = Callable[[str, Sequence[str]], Path]


@pytest.fixture
def run(finished_run: Path, tmp_path: Path) -> Path:
    """Return a copy of a finished run."""
    ignored = shutil.ignore_patterns("checkpoints", "evaluations")
    return Path(shutil.copytree(finished_run, tmp_path / "run", ignore=ignored))


def test_run_translates_and_file_is_read(run: Path, write_lines: WriteLines) -> None:
    file = write_lines("a.txt", ["one two"] * 6)
    test_set, (first, second) = read_systems([run, file], GivenTestSet(), device="cpu")
    hypotheses = (run / "evaluations/test.hypotheses.txt").read_text(encoding="utf-8")
    assert first == System(str(run), tuple(hypotheses.splitlines()), run)
    assert second == System(str(file), ("one two",) * 6)
    assert (test_set.name, test_set.tokenizer, len(test_set.references[0])) == ("test", "13a", 6)
    assert (test_set.source_language, test_set.target_language) == ("en", "de")


def test_different_test_sets_do_not_compare(test_set: EvaluationSet) -> None:
    same = replace(test_set, name="news", target_language="en-GB")
    check_same("A", test_set, "B", same)
    turned = test_set.references[0][:4] + test_set.references[0][:3:-1]
    for other, message in (
        (
            replace(same, sources=test_set.sources[1:]),
            "the sources differ from line 1 on in `test` of A",
        ),
        (
            replace(same, references=(turned,)),
            "the references differ from line 5 on in `test` of A and `news` of B; only",
        ),
        (
            replace(same, target_language="de"),
            "the target languages differ: `en` in A, `de` in B; such scores",
        ),
        (
            replace(same, tokenizer="intl"),
            "the signatures differ: `tok:13a` in A, `tok:intl` in B; such scores",
        ),
    ):
        with pytest.raises(UserError) as caught:
            check_same("A", test_set, "B", other)
        assert str(caught.value).startswith(message)
        assert "\n" not in str(caught.value)


def test_runs_with_different_test_sets_are_errors_before_translation(
    run: Path, tmp_path: Path
) -> None:
    other = Path(shutil.copytree(run, tmp_path / "other"))
    config = (other / "config.yaml").read_text(encoding="utf-8")
    (other / "config.yaml").write_text(config.replace("/test.", "/valid."), encoding="utf-8")
    with pytest.raises(UserError, match="the sources differ"):
        read_systems([run, other], GivenTestSet())
    assert not (run / "evaluations").exists()


def test_files_are_checked(write_lines: WriteLines, test_set: EvaluationSet) -> None:
    right = write_lines("right.txt", test_set.references[0])
    copy = write_lines("copy.txt", test_set.references[0])
    lowered = write_lines("low.txt", [line.lower() for line in test_set.references[0]])
    short = write_lines("short.txt", test_set.references[0][1:])
    texts = GivenTestSet((right,), target_language="en")
    for path, message in (
        (copy, "the hypotheses are the same text as the references"),
        (lowered, "are in lower case"),
        (short, "short.txt has 39 lines, the references 1 of .* have 40"),
    ):
        with pytest.raises(UserError, match=message):
            read_systems([path, right], texts)
    allowed = ("lowercased", "references", "line-counts")
    _, (system, _) = read_systems([lowered, copy], texts, allow=allowed)
    assert system.forced == "lowercased"
    with pytest.raises(UserError, match="short.txt has 39 lines"):
        read_systems([short, copy], texts, allow=allowed)


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
    with pytest.raises(UserError, match="no splits: give --sources and --references"):
        evaluate_run(imported, device="cpu")
    for places in ([imported, run], [run, imported]):
        test_set, systems = read_systems(places, GivenTestSet(), device="cpu")
        assert [system.folder for system in systems] == places
        assert len({system.translations for system in systems}) == 1
        assert (test_set.name, test_set.target_language) == ("test", "de")


def test_runs_are_compared_on_a_given_test_set(
    run: Path, write_lines: WriteLines, tmp_path: Path
) -> None:
    other = Path(shutil.copytree(run, tmp_path / "other"))
    sources = write_lines("news.en", ["one two", "three four five"])
    first, second = (
        write_lines("news.de", ["two one", "five four three"]),
        write_lines("again.de", ["two one now", "five"]),
    )
    file = write_lines("made.txt", ["two two", "five five three"])
    texts = GivenTestSet((first, second), sources)
    test_set, systems = read_systems([run, file, other], texts)
    assert test_set == EvaluationSet(
        "news",
        ("one two", "three four five"),
        (("two one", "five four three"), ("two one now", "five")),
        "en",
        "de",
        tokenizer="13a",
    )
    assert [len(system.translations) for system in systems] == [2, 2, 2]
    assert read_systems([run, file, other], texts, split="news") == (test_set, systems)
    with pytest.raises(UserError, match=r"news\.json: is the score of other texts"):
        read_systems([run, other], GivenTestSet((second,), sources))
    short = write_lines("short.de", ["x"])
    with pytest.raises(UserError, match=r"short\.de has 1 lines, .*news\.en has 2"):
        read_systems([run, other], GivenTestSet((first, short), sources), split="new")


@pytest.mark.parametrize(
    ("of_runs", "texts", "message"),
    [
        (False, GivenTestSet(), "files of translations need --references"),
        (False, GivenTestSet((Path("right.txt"),)), "files of translations need --target-language"),
        (False, GivenTestSet((Path("wrong.txt"),), None, "en"), "wrong.txt: no such file"),
        (
            True,
            GivenTestSet((Path("x"),)),
            "--sources is missing: runs are compared on",
        ),
        (True, GivenTestSet(sources=Path("x")), "--references is missing: runs are compared on"),
        (True, GivenTestSet(target_language="de"), "--target-language does not go with a run"),
        (True, GivenTestSet(tokenizer="char"), "--bleu-tokenizer does not go with a run"),
    ],
)
def test_options_of_the_test_set_fit_the_systems(
    of_runs: bool,
    texts: GivenTestSet,
    message: str,
    finished_run: Path,
    write_lines: WriteLines,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    file = write_lines("right.txt", ["a"])
    monkeypatch.chdir(file.parent)
    with pytest.raises(UserError, match=message):
        read_systems([finished_run if of_runs else file] * 2, texts)
