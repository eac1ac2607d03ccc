import json
import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mt.compare.systems import (
    EvaluationSet,
    System,
    Texts,
    check_same,
    read_systems,
    why_not_kept,
)
from mt.config import DataConfig
from mt.config.data import NO_CORPUS, TextSource
from mt.config.loading import dump_config, load_config
from mt.errors import UserError
from mt.evaluation.evaluate import evaluate_run
from mt.evaluation.passport import Input, read_passport, write_passport
from mt.files import write_text

WriteLines = Callable[[str, Sequence[str]], Path]
PASSPORT = "evaluations/test.json"


@pytest.fixture(scope="module")
def scored(finished_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a run whose translations of `test` are kept."""
    run = tmp_path_factory.mktemp("scored") / "run"
    shutil.copytree(finished_run, run, ignore=shutil.ignore_patterns("checkpoints"))
    evaluate_run(run, device="cpu")
    return run


@pytest.fixture
def run(scored: Path, tmp_path: Path) -> Path:
    """Return a copy of the scored run; its passport names the files of the original."""
    return Path(shutil.copytree(scored, tmp_path / "run"))


@pytest.fixture
def evaluated(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Return the list of translated runs."""
    runs: list[Path] = []

    def record(run: Path, **options: Any) -> Any:
        runs.append(run)
        return evaluate_run(run, **options)

    monkeypatch.setattr("mt.compare.systems.evaluate_run", record)
    return runs


def test_run_is_translated_once(run: Path, evaluated: list[Path], write_lines: WriteLines) -> None:
    files, kept = write_lines("a.txt", ["one two"] * 6), run / "evaluations/test.hypotheses.txt"
    made = tuple(kept.read_text(encoding="utf-8").splitlines())
    kept.unlink()
    common, (first, second) = read_systems([run, files], Texts())
    assert evaluated == [run]
    assert read_systems([run, files], Texts()) == (common, (first, second))
    assert evaluated == [run]
    assert first == System(str(run), made, run, first.decoding)
    assert first.decoding["beam"] == 2
    assert second == System(str(files), ("one two",) * 6)
    assert (common.name, common.tokenizer, len(common.references[0])) == ("test", "13a", 6)
    assert (common.source_language, common.target_language) == ("en", "de")


def changed_file(name: str, text: str) -> Callable[[Path], object]:
    return lambda run: (run / name).write_text(text, encoding="utf-8")


def other_weights(run: Path) -> None:
    described = json.loads((run / "model.json").read_bytes())
    (run / "model.json").write_text(json.dumps(described | {"weights": "0" * 64}))


def sealed_again(run: Path, *, model: str | None = None, forced: str = "") -> None:
    """Change the passport."""
    record = read_passport(run / PASSPORT)
    assert record is not None
    inputs = [Input(**each) for each in record.pop("inputs")]
    if model:
        inputs = [replace(each, sha256=model) if each.role == "model" else each for each in inputs]
    del record["versions"]
    settings = {**record["settings"], "forced": forced}
    write_passport(run / PASSPORT, {**record, "settings": settings}, inputs)


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (lambda run: None, ""),
        (changed_file("evaluations/test.hypotheses.txt", "x"), "hypotheses.txt: has changed"),
        (changed_file(PASSPORT, "{}"), "run: is not scored yet"),
        (lambda run: (run / PASSPORT).unlink(), "run: is not scored yet"),
        (other_weights, "test.json: belongs to other weights"),
        (lambda run: sealed_again(run, model="5a"), "in the passport 5a"),
        (
            lambda run: sealed_again(run, forced="tokens,lowercased"),
            "test.json: was scored with --allow tokens,lowercased",
        ),
    ],
)
def test_changed_translations_are_not_kept(
    damage: Callable[[Path], object], reason: str, run: Path
) -> None:
    damage(run)
    found = why_not_kept(run, run / PASSPORT, allow=["tokens"])
    assert found.endswith(reason)
    assert bool(found) == bool(reason)
    if "--allow" in reason:
        assert why_not_kept(run, run / PASSPORT, allow=["tokens", "lowercased"]) == ""


def test_different_test_sets_do_not_compare(common: EvaluationSet) -> None:
    same = replace(common, name="news", target_language="en-GB")
    check_same("A", common, "B", same)
    turned = common.references[0][:4] + common.references[0][:3:-1]
    for other, message in (
        (replace(same, sources=common.sources[1:]), "the sources differ: 40 lines and 39 lines in"),
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
            check_same("A", common, "B", other)
        assert str(caught.value).startswith(message)
        assert "\n" not in str(caught.value)


def test_runs_with_different_test_sets_are_errors_before_translation(
    run: Path, evaluated: list[Path], tmp_path: Path
) -> None:
    other = Path(shutil.copytree(run, tmp_path / "other"))
    config = (other / "config.yaml").read_text(encoding="utf-8")
    (other / "config.yaml").write_text(config.replace("/test.", "/valid."), encoding="utf-8")
    (run / PASSPORT).unlink()
    with pytest.raises(UserError, match="the sources differ"):
        read_systems([run, other], Texts())
    assert evaluated == []


def test_files_are_checked(write_lines: WriteLines, common: EvaluationSet) -> None:
    right = write_lines("right.txt", common.references[0])
    copy = write_lines("copy.txt", common.references[0])
    lowered = write_lines("low.txt", [line.lower() for line in common.references[0]])
    short = write_lines("short.txt", common.references[0][1:])
    texts = Texts((right,), target_language="en")
    for place, message in (
        (copy, "the hypotheses are the same text as the references"),
        (lowered, "is lower-cased"),
        (short, "short.txt has 39 lines, the references of .* have 40"),
    ):
        with pytest.raises(UserError, match=message):
            read_systems([place, right], texts)
    allowed = ("lowercased", "references", "line-counts")
    _, (system, _) = read_systems([lowered, copy], texts, allow=allowed)
    assert system.forced == "lowercased"
    with pytest.raises(UserError, match="short.txt has 39 lines"):
        read_systems([short, copy], texts, allow=allowed)


def test_an_imported_run_translates_the_split_of_the_other(run: Path, tmp_path: Path) -> None:
    imported = Path(shutil.copytree(run, tmp_path / "imported"))
    shutil.rmtree(imported / "evaluations")
    config = load_config(imported / "config.yaml")
    none = TextSource(source=NO_CORPUS, target=NO_CORPUS)
    data = DataConfig(
        source_language="eng-Latn",
        target_language="deu-Latn",
        train=none,
        valid=none,
        max_tokens=64,
    )
    write_text(imported / "config.yaml", dump_config(config.model_copy(update={"data": data})))
    with pytest.raises(UserError, match="no splits: give --sources and --references"):
        evaluate_run(imported, device="cpu")
    for places in ([imported, run], [run, imported]):
        common, systems = read_systems(places, Texts(), device="cpu")
        assert [system.folder for system in systems] == places
        assert len({system.translations for system in systems}) == 1
        assert (common.name, common.target_language) == ("test", "de")


def test_runs_are_compared_on_a_given_test_set(
    run: Path, evaluated: list[Path], write_lines: WriteLines, tmp_path: Path
) -> None:
    other = Path(shutil.copytree(run, tmp_path / "other"))
    sources = write_lines("news.en", ["one two", "three four five"])
    first, second = (
        write_lines("news.de", ["two one", "five four three"]),
        write_lines("again.de", ["two one now", "five"]),
    )
    made = write_lines("made.txt", ["two two", "five five three"])
    texts = Texts((first, second), sources)
    common, systems = read_systems([run, made, other], texts)
    assert evaluated == [run, other]
    assert common == EvaluationSet(
        "news",
        ("one two", "three four five"),
        (("two one", "five four three"), ("two one now", "five")),
        "en",
        "de",
        tokenizer="13a",
    )
    assert [len(system.translations) for system in systems] == [2, 2, 2]
    kept = (run / "evaluations/news.hypotheses.txt").read_text(encoding="utf-8")
    assert systems[0].translations == tuple(kept.splitlines())
    assert read_systems([run, made, other], texts, split="news") == (common, systems)
    assert evaluated == [run, other]
    with pytest.raises(UserError, match=r"news\.json: is the score of other texts"):
        read_systems([run, other], Texts((second,), sources))
    short = write_lines("short.de", ["x"])
    with pytest.raises(UserError, match=r"short\.de has 1 lines, .*news\.en has 2"):
        read_systems([run, other], Texts((first, short), sources), split="new")


@pytest.mark.parametrize(
    ("of_runs", "texts", "message"),
    [
        (False, Texts(), "files of translations need --references"),
        (False, Texts((Path("right.txt"),)), "files of translations need --target-language"),
        (False, Texts((Path("wrong.txt"),), None, "en"), "wrong.txt: no such file"),
        (True, Texts((Path("x"),)), "--sources is missing: runs are compared on --sources and"),
        (True, Texts(sources=Path("x")), "--references is missing: runs are compared on --sources"),
        (True, Texts(target_language="de"), "--target-language does not go with a run"),
        (True, Texts(tokenizer="char"), "--bleu-tokenizer does not go with a run"),
    ],
)
def test_options_of_the_test_set_fit_the_systems(
    of_runs: bool,
    texts: Texts,
    message: str,
    finished_run: Path,
    write_lines: WriteLines,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    file = write_lines("right.txt", ["a"])
    monkeypatch.chdir(file.parent)
    with pytest.raises(UserError, match=message):
        read_systems([finished_run if of_runs else file] * 2, texts)
