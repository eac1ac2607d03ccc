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
from mt.errors import UserError
from mt.evaluation.evaluate import evaluate_run
from mt.evaluation.passport import Input, read_passport, write_passport

WriteLines = Callable[[str, Sequence[str]], Path]
PASSPORT = "evaluations/test.json"


@pytest.fixture
def run(finished_run: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(finished_run, tmp_path / "run"))


@pytest.fixture
def evaluated(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Return the list of translated runs."""
    runs: list[Path] = []

    def record(run: Path, **options: Any) -> Any:
        runs.append(run)
        return evaluate_run(run, **options)

    monkeypatch.setattr("mt.compare.systems.evaluate_run", record)
    return runs


def _made(run: Path) -> tuple[str, ...]:
    text = (run / "evaluations/test.hypotheses.txt").read_text(encoding="utf-8")
    return tuple(text.splitlines())


def test_run_is_translated_once(run: Path, evaluated: list[Path], write_lines: WriteLines) -> None:
    files = write_lines("a.txt", ["one two"] * 6)
    common, (first, second) = read_systems([run, files], Texts())
    assert evaluated == [run]
    assert read_systems([run, files], Texts()) == (common, (first, second))
    assert evaluated == [run]
    assert first == System(str(run), _made(run), run, first.decoding)
    assert first.decoding["beam"] == 2
    assert second == System(str(files), ("one two",) * 6)
    assert (common.name, common.tokenizer, len(common.references[0])) == ("test", "13a", 6)
    assert (common.source_language, common.target_language) == ("en", "de")


@pytest.mark.parametrize("changed", ["hypotheses", "model", "passport"])
def test_changed_translations_are_made_again(
    changed: str, run: Path, evaluated: list[Path], write_lines: WriteLines
) -> None:
    files = write_lines("a.txt", ["one two"] * 6)
    before = read_systems([run, files], Texts())[1][0]
    if changed == "hypotheses":
        (run / "evaluations/test.hypotheses.txt").write_text("x\n" * 6, encoding="utf-8")
    elif changed == "model":  # another model in a copy, whose passport names the first one's files
        run = Path(shutil.copytree(run, run.with_name("copy")))
        (run / "evaluations/test.hypotheses.txt").write_text("x\n" * 6, encoding="utf-8")
    else:
        record = json.loads((run / PASSPORT).read_bytes())
        (run / PASSPORT).write_text(json.dumps(record | {"sentences": 4}), encoding="utf-8")
    evaluated.clear()
    after = read_systems([run, files], Texts())[1][0]
    assert evaluated == [run]
    assert after.translations == before.translations


def test_translations_of_other_weights_are_made_again(run: Path, evaluated: list[Path]) -> None:
    passport = run / PASSPORT
    evaluate_run(run, device="cpu")
    assert why_not_kept(run, passport) == ""
    # The passport of the copy names the files of `run`.
    copy = Path(shutil.copytree(run, run.with_name("copy")))
    described = json.loads((run / "model.json").read_bytes())
    (copy / "model.json").write_text(json.dumps(described | {"weights": "0" * 64}))
    assert why_not_kept(copy, copy / PASSPORT) == f"{copy / PASSPORT}: belongs to other weights"
    (run / "model.json").write_text(json.dumps(described | {"weights": "0" * 64}))
    assert "model.json: has changed" in why_not_kept(run, passport)


def test_allowed_reasons_of_kept_translations_must_be_allowed(run: Path) -> None:
    evaluate_run(run, device="cpu")
    record = read_passport(run / PASSPORT)
    assert record is not None
    inputs = [Input(**each) for each in record.pop("inputs")]
    forced = {**record["settings"], "forced": "tokens,lowercased"}
    del record["versions"]
    write_passport(run / PASSPORT, {**record, "settings": forced}, inputs)
    reason = f"{run / PASSPORT}: was scored with --allow tokens,lowercased"
    assert why_not_kept(run, run / PASSPORT) == reason
    assert why_not_kept(run, run / PASSPORT, allow=["tokens"]) == reason
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
    run: Path, evaluated: list[Path], tiny_corpus: Path, tmp_path: Path
) -> None:
    other = Path(shutil.copytree(run, tmp_path / "other"))
    config = (other / "config.yaml").read_text(encoding="utf-8")
    (other / "config.yaml").write_text(config.replace("/test.", "/valid."), encoding="utf-8")
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


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (Texts(), "files of translations need --references"),
        (Texts((Path("right.txt"),)), "files of translations need --target-language"),
        (Texts((Path("wrong.txt"),), None, "en"), "wrong.txt: no such file"),
    ],
)
def test_files_need_references(
    texts: Texts, message: str, write_lines: WriteLines, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(write_lines("right.txt", ["a"]).parent)
    with pytest.raises(UserError, match=message):
        read_systems([Path("right.txt"), Path("right.txt")], texts)


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
    ("texts", "message"),
    [
        (Texts((Path("x"),)), "--sources is missing: runs are compared on --sources and"),
        (Texts(sources=Path("x")), "--references is missing: runs are compared on --sources"),
        (Texts(target_language="de"), "--target-language does not go with a run"),
        (Texts(tokenizer="char"), "--bleu-tokenizer does not go with a run"),
    ],
)
def test_given_test_set_of_runs_has_sources_and_references_only(
    run: Path, texts: Texts, message: str
) -> None:
    with pytest.raises(UserError, match=message):
        read_systems([run, run], texts)
