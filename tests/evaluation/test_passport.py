import json
import os
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mt.errors import DataError, UserError
from mt.evaluation.evaluate import (
    EvaluationJob,
    GivenTexts,
    evaluate_files,
    evaluate_robustness,
    evaluate_run,
)
from mt.evaluation.passport import (
    Input,
    check_passport,
    default_place,
    read_passport,
    write_passport,
)
from mt.evaluation.run_info import read_info
from mt.evaluation.scores import OffTarget
from mt.files import file_sha256

RIGHT = "The cat sat on the mat.\nTwo dogs ran very fast.\nIt rains.\n"
MADE = "The cat sat on a mat.\nTwo dogs ran very fast.\nIt rains now.\n"
CONFIRMED = "inputs are unchanged, all scores are confirmed"
PASSPORT = Path("run/evaluations/test.json")
CARD = Path("run/evaluations/test.robustness.json")
FORMS = ("lowercased", "tokenized")


@pytest.fixture
def passport(tmp_path: Path) -> Path:
    """Return the passport of a score of files, in a folder next to theirs."""
    (tmp_path / "kept").mkdir()
    texts = {"made": MADE, "right": RIGHT, "other": RIGHT[4:], "sources": "a\nb\nc"}
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
    path = tmp_path / "kept" / "p.json"
    made, right, other, sources = (tmp_path / name for name in texts)
    job = EvaluationJob(("chrf++", "ter"), resamples=100, passport=path)
    evaluate_files(made, [right, other], target_language="en", sources=sources, job=job)
    return path


def flip(path: Path, position: int) -> bytes:
    """Change one bit of a file; return its old content."""
    before = path.read_bytes()
    content = bytearray(before)
    content[position] ^= 1
    path.write_bytes(content)
    return before


def rewrite(path: Path, **changed: Any) -> None:
    """Change a passport and seal it again."""
    record = {**(read_passport(path) or {}), **changed}
    inputs = [Input(**each) for each in record.pop("inputs")]
    del record["versions"]
    write_passport(path, record, inputs)


def test_passport_names_inputs_settings_and_versions(passport: Path) -> None:
    record = json.loads(passport.read_bytes())
    folder = passport.parent.parent
    names = {"hypotheses": ["made"], "references": ["right", "other"], "sources": ["sources"]}
    assert record["inputs"] == [
        {"role": role, "path": str(folder / name), "lines": 3, "sha256": file_sha256(folder / name)}
        for role, files in names.items()
        for name in files
    ]
    assert set(record["versions"]) == {"mt", "python", "sacrebleu"}
    settings = {"bleu_tokenizer": "13a", "metrics": ["chrf++", "ter"], "resamples": 100}
    assert record["settings"] == {**settings, "forced": ""}
    assert check_passport(passport).text == f"{passport}: 4 {CONFIRMED}"
    assert check_passport(passport).passed


@pytest.mark.parametrize("name", ["made", "right", "other", "sources"])
def test_one_changed_bit_of_a_file_is_named(name: str, passport: Path) -> None:
    path = passport.parent.parent / name
    for position in (0, -1):
        before = flip(path, position)
        check = check_passport(passport)
        assert not check.passed
        assert check.text.startswith(f"FAIL: {path}: has changed; its SHA-256 is")
        assert check.text.count("\n") == 0
        path.write_bytes(before)


def test_every_byte_of_the_passport_is_sealed(passport: Path) -> None:
    whole = passport.read_bytes()
    for position in range(0, len(whole), 97):
        flip(passport, position)
        assert check_passport(passport).text.startswith(f"FAIL: {passport}: was edited, or is not")
        passport.write_bytes(whole)
    for edited in (whole + b"\n", whole.replace(b"\n", b"\r\n")):
        passport.write_bytes(edited)
        assert not check_passport(passport).passed


def test_missing_files_and_other_formats_are_errors(passport: Path) -> None:
    right = passport.parent.parent / "right"
    right.unlink()
    assert check_passport(passport).text == f"FAIL: {right}: no such file"
    rewrite(passport, format=1)
    with pytest.raises(UserError, match="has format 1, but this version of mt reads format 2"):
        check_passport(passport)
    passport.unlink()
    with pytest.raises(DataError, match="no such file"):
        check_passport(passport)


def test_scores_that_are_not_confirmed_are_named(passport: Path) -> None:
    whole = passport.read_bytes()
    record = json.loads(whole)
    bleu = record["bleu"]
    # Another version of sacreBLEU may confirm a score.
    signature = bleu["signature"].rpartition(":")[0] + ":1.0"
    rewrite(passport, bleu={**bleu, "signature": signature})
    assert check_passport(passport).passed
    for changed, message in (
        ({"sentences": 4}, "names 4 sentences, but a text has fewer lines"),
        ({"meteor": record["ter"]}, "meteor is missing now, "),
        ({"bleu": {**bleu, "score": 7.5}}, "in the passport"),
    ):
        passport.write_bytes(whole)
        rewrite(passport, **changed)
        check = check_passport(passport)
        assert not check.passed
        assert re.fullmatch(f"FAIL: {passport}: .*{message}.*", check.text)


def test_forced_scores_are_confirmed_and_files_are_kept(tmp_path: Path) -> None:
    made, right, place = (tmp_path / name for name in ("made", "right", "p.json"))
    made.write_text(MADE + "One more.\n")
    right.write_text(RIGHT)
    job = EvaluationJob(allow=("line-counts", "references"), passport=place)
    for _ in range(2):  # a passport may be replaced
        evaluate_files(made, [right], target_language="en", job=job)
    assert json.loads(place.read_bytes())["bleu"]["signature"].endswith("|forced:line-counts")
    assert check_passport(place).passed
    for place, message in (
        (right, "is not a passport of mt"),
        (tmp_path / "no" / "p.json", "there is no folder"),
    ):
        with pytest.raises(UserError, match=message):
            evaluate_files(made, [right], target_language="en", job=replace(job, passport=place))
    assert right.read_text() == RIGHT


def test_default_place_needs_regular_files(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "made").touch()
    os.mkfifo(tmp_path / "pipe")
    assert default_place(tmp_path / "made", []) == tmp_path / "made.passport.json"
    assert default_place(tmp_path / "made", [tmp_path / "missing"]) is None
    assert caplog.messages == []
    assert default_place(tmp_path / "made", [tmp_path / "pipe"]) is None
    assert "no passport can be written next to this file" in caplog.text


@pytest.fixture(scope="module")
def scored_run(
    finished_run: Path, tiny_corpus: Path, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """Return a folder with a scored run and its corpus, to copy."""
    folder = tmp_path_factory.mktemp("scored")
    shutil.copytree(tiny_corpus, folder / "corpus", ignore=shutil.ignore_patterns("*.yaml"))
    without = shutil.ignore_patterns("checkpoints")
    shutil.copytree(finished_run, folder / "run", ignore=without)
    config = folder / "run" / "config.yaml"
    config.write_text(config.read_text().replace(str(tiny_corpus), "corpus"))
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        evaluate_run(Path("run"), device="cpu")
        evaluate_robustness(Path("run"), device="cpu", job=EvaluationJob(allow=FORMS))
    return folder


@pytest.fixture
def at_run(scored_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Go to a copy of the scored run."""
    shutil.copytree(scored_run, tmp_path / "copy")
    monkeypatch.chdir(tmp_path / "copy")


@pytest.mark.usefixtures("at_run")
def test_passport_of_a_run_is_confirmed_in_a_copy() -> None:
    assert check_passport(PASSPORT).text.endswith(CONFIRMED)
    record = json.loads(PASSPORT.read_bytes())
    roles = [each["role"] for each in record["inputs"]]
    assert roles[:4] == ["hypotheses", "sources", "references", "model"]
    assert set(roles[4:]) == {"description", "config", "tokenizer"}
    assert record["weights"] == record["inputs"][3]["sha256"]
    assert record["decoding"]["beam"] == 2


@pytest.mark.usefixtures("at_run")
def test_passport_of_files_is_not_a_score_of_the_run() -> None:
    made = PASSPORT.with_name("test.hypotheses.txt")
    job = EvaluationJob(passport=default_place(made, []))
    evaluate_files(made, [Path("corpus/test.de")], target_language="de", job=job)
    assert made.with_name("test.hypotheses.txt.passport.json").is_file()
    assert [scored.split for scored in read_info(Path("run")).scores] == ["test"]


@pytest.mark.usefixtures("at_run")
@pytest.mark.parametrize("passport", [PASSPORT, CARD], ids=["scores", "robustness"])
def test_one_changed_bit_of_a_runs_inputs_is_named(passport: Path) -> None:
    assert check_passport(passport).passed
    paths = [
        *(Path("corpus") / name for name in ("test.en", "test.de")),
        *(Path("run") / name for name in ("model.safetensors", "model.json", "config.yaml")),
        *sorted(Path("run/tokenizer").iterdir())[:1],
        passport,
    ]
    kept = passport.with_suffix("")
    paths += sorted(kept.iterdir()) if kept.is_dir() else [Path(f"{kept}.hypotheses.txt")]
    for path in paths:
        before = flip(path, -2)
        check = check_passport(passport)
        assert not check.passed
        named = check.text.removeprefix("FAIL: ").split(": ")[0]
        assert Path(named).resolve() == path.resolve()
        assert check.text.count("\n") == 0
        path.write_bytes(before)


@pytest.mark.usefixtures("at_run")
def test_unreadable_config_is_named_with_its_change() -> None:
    Path("run/config.yaml").write_text("dta: 1\n", encoding="utf-8")
    problem, changed = check_passport(PASSPORT).text.splitlines()
    assert problem.startswith("FAIL: run/config.yaml:1: `dta`: unknown")
    assert changed.startswith("FAIL: run/config.yaml: has changed; its SHA-256 is")


@pytest.mark.usefixtures("at_run")
def test_scores_of_a_robustness_card_are_computed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    import sacrebleu.metrics.chrf

    found = sacrebleu.metrics.chrf.CHRF._compute_f_score

    def other(self: sacrebleu.metrics.chrf.CHRF, statistics: list[int]) -> float:
        return float(found(self, statistics)) / 2

    monkeypatch.setattr(sacrebleu.metrics.chrf.CHRF, "_compute_f_score", other)
    check = check_passport(CARD)
    lines = check.text.splitlines()
    assert not check.passed
    assert lines[0].startswith(f"FAIL: {CARD}: chrf of `untouched` is ")
    assert any(": untouched_chrf of `long input` is " in line for line in lines)
    assert not any("bleu" in line for line in lines)


@pytest.mark.usefixtures("at_run")
def test_off_target_rate_is_computed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    counts = {"judged": 3, "found": 1, "references_judged": 3, "references_found": 0}
    rewrite(
        PASSPORT,
        off_target={"language": "de", **counts, "identifier": "py3langid 1", "rate": 1 / 3},
    )
    now = OffTarget("de", **counts, identifier="py3langid 2")
    monkeypatch.setattr("mt.evaluation.passport.model_version", lambda: "2")
    for counted, confirmed in ((now, True), (replace(now, found=2), False)):
        monkeypatch.setattr("mt.evaluation.passport.off_target", lambda *_, c=counted, **__: c)
        assert check_passport(PASSPORT).passed is confirmed


def test_run_behind_a_symbolic_link_is_checked(
    scored_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(scored_run / "run", tmp_path / "a" / "far" / "disk" / "run")
    shutil.copytree(scored_run / "corpus", tmp_path / "work" / "corpus")
    monkeypatch.chdir(tmp_path / "work")
    Path("runs").symlink_to(tmp_path / "a" / "far" / "disk")
    texts = GivenTexts(Path("corpus/valid.en"), (Path("corpus/valid.de"),))
    job = EvaluationJob(texts=texts, allow=FORMS)
    evaluate_run(Path("runs/run"), split="own", device="cpu", job=job)
    monkeypatch.chdir(tmp_path)
    passport = Path("work/runs/run/evaluations/own.json")
    assert check_passport(passport).passed
    flip(Path("work/corpus/valid.de"), 0)
    assert "corpus/valid.de: has changed" in check_passport(passport).text
