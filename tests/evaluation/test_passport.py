import json
import os
import shutil
from pathlib import Path

import pytest

from mt.errors import DataError, UserError
from mt.evaluation.evaluate import (
    EvaluationJob,
    GivenTexts,
    evaluate_files,
    evaluate_run,
)
from mt.evaluation.passport import check_passport
from mt.evaluation.run_info import read_info
from mt.files import hash_file

RIGHT = "The cat sat on the mat.\nTwo dogs ran very fast.\nIt rains.\n"
MADE = "The cat sat on a mat.\nTwo dogs ran very fast.\nIt rains now.\n"
PASSPORT = Path("run/evaluations/test.json")
FORMS = ("lowercased", "tokenized")


@pytest.fixture
def passport(tmp_path: Path) -> Path:
    """Return the passport of a score of files."""
    texts = {"made": MADE, "right": RIGHT, "other": RIGHT[4:], "sources": "a\nb\nc"}
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
    hypotheses, right, other, sources = (tmp_path / name for name in texts)
    job = EvaluationJob(("chrf++", "ter"), resamples=100)
    for _ in range(2):  # a passport may be replaced
        evaluate_files(hypotheses, [right, other], target_language="en", sources=sources, job=job)
    return tmp_path / "made.passport.json"


def flip(path: Path, position: int) -> bytes:
    """Change one bit of a file; return its old content."""
    before = path.read_bytes()
    content = bytearray(before)
    content[position] ^= 1
    path.write_bytes(content)
    return before


def test_passport_names_inputs_settings_and_versions(passport: Path) -> None:
    record = json.loads(passport.read_bytes())
    names = {"hypotheses": ["made"], "references": ["right", "other"], "sources": ["sources"]}
    assert record["inputs"] == [
        {"role": role, "path": name, "sha256": hash_file(passport.parent / name)}
        for role, files in names.items()
        for name in files
    ]
    assert set(record["versions"]) == {"mt", "python", "sacrebleu"}
    settings = {"bleu_tokenizer": "13a", "metrics": ["chrf++", "ter"], "resamples": 100}
    assert record["settings"] == {**settings, "forced": ""}
    assert record["bleu"]["signature"].startswith("nrefs:2|")
    assert check_passport(passport) == []


@pytest.mark.parametrize("name", ["made", "right", "other", "sources"])
def test_one_changed_bit_of_a_file_is_named(name: str, passport: Path) -> None:
    path = passport.parent / name
    for position in (0, -1):
        before = flip(path, position)
        (problem,) = check_passport(passport)
        assert problem.startswith(f"{path}: has changed; its SHA-256 is")
        path.write_bytes(before)
    path.unlink()
    assert check_passport(passport) == [f"{path}: no such file"]


def test_other_files_and_formats_are_errors(passport: Path) -> None:
    record = json.loads(passport.read_bytes())
    passport.write_text(json.dumps({**record, "format": 1}))
    with pytest.raises(UserError, match="has format 1, but this version of mt reads format 3"):
        check_passport(passport)
    for text in ("{", "{}", "[]", '{"format": 3, "inputs": [1]}'):
        passport.write_text(text)
        with pytest.raises(UserError, match="is not a passport of mt"):
            check_passport(passport)
    files = passport.with_name("made"), [passport.with_name("right")]
    with pytest.raises(UserError, match="is not a passport of mt"):
        evaluate_files(*files, target_language="en")
    assert passport.read_text() == '{"format": 3, "inputs": [1]}'
    passport.unlink()
    with pytest.raises(DataError, match="no such file"):
        check_passport(passport)


def test_score_of_a_pipe_has_no_passport(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "made").write_text(MADE)
    read, write = os.pipe()
    os.write(write, RIGHT.encode())
    os.close(write)
    evaluate_files(tmp_path / "made", [Path(f"/dev/fd/{read}")], target_language="en")
    assert "no passport can be written next to this file" in caplog.text
    assert [path.name for path in tmp_path.iterdir()] == ["made"]


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
    return folder


@pytest.fixture
def at_run(scored_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Go to a copy of the scored run."""
    shutil.copytree(scored_run, tmp_path / "copy")
    monkeypatch.chdir(tmp_path / "copy")


@pytest.mark.usefixtures("at_run")
def test_passport_of_a_run_names_its_texts_model_and_decoding() -> None:
    record = json.loads(PASSPORT.read_bytes())
    roles = [item["role"] for item in record["inputs"]]
    assert roles[:4] == ["hypotheses", "sources", "references", "model"]
    assert set(roles[4:]) == {"model", "config", "tokenizer"}
    assert record["weights"] == record["inputs"][3]["sha256"]
    assert record["decoding"]["beam"] == 2
    for side, suffix in (("sources", "en"), ("references", "de")):
        written = PASSPORT.with_name(f"test.{side}.txt").read_text(encoding="utf-8")
        assert written == Path(f"corpus/test.{suffix}").read_text(encoding="utf-8")


@pytest.mark.usefixtures("at_run")
def test_passport_of_files_is_not_a_score_of_the_run() -> None:
    hypotheses = PASSPORT.with_name("test.hypotheses.txt")
    evaluate_files(hypotheses, [Path("corpus/test.de")], target_language="de")
    assert hypotheses.with_name("test.hypotheses.txt.passport.json").is_file()
    assert [scored.split for scored in read_info(Path("run")).scores] == ["test"]


@pytest.mark.usefixtures("at_run")
def test_one_changed_bit_of_a_runs_inputs_is_named() -> None:
    assert check_passport(PASSPORT) == []  # in a copy
    paths = [Path("run") / name for name in ("model.safetensors", "model.json", "config.yaml")]
    paths += [*sorted(Path("run/tokenizer").iterdir())[:1], PASSPORT.with_name("test.sources.txt")]
    paths.append(PASSPORT.with_name("test.hypotheses.txt"))
    for path in paths:
        before = flip(path, -2)
        (problem,) = check_passport(PASSPORT)
        assert Path(problem.partition(":")[0]).resolve() == path.resolve()
        path.write_bytes(before)


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
    assert check_passport(passport) == []
    flip(Path("work/corpus/valid.de"), 0)
    assert "corpus/valid.de: has changed" in check_passport(passport)[0]
