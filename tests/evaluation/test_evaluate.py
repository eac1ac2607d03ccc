import json
import os
import re
import shutil
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, cast

import pytest
import sacrebleu
from sacrebleu.dataset import DATASETS
from sacrebleu.dataset.fake_sgml import FakeSGMLDataset

from mt.config import Config, DecodingConfig
from mt.config.loading import dump_config, load_config
from mt.decoding.translator import Translation, Translator
from mt.errors import DataError, RunError, UserError
from mt.evaluation.evaluate import (
    EvaluationJob,
    GivenTexts,
    evaluate_files,
    evaluate_run,
    name_evaluation,
)
from mt.evaluation.scores import Score
from mt.files import hash_file

SOURCES = ["one", "two", "three"]
RIGHT = ["The cat sat on the mat.", "Two dogs ran very fast.", "It rains."]
OTHER = ["A cat sat on the mat.", "Two dogs were running fast.", "It is raining."]
MADE = ["The cat sat on a mat.", "Two dogs ran very fast.", "It rains\u2028 now."]


def write(path: Path, lines: Sequence[str], newline: str = "\n") -> Path:
    path.write_bytes("".join(line + newline for line in lines).encode())
    return path


@pytest.fixture
def hypotheses(tmp_path: Path) -> Path:
    return write(tmp_path / "made.txt", MADE)


@pytest.fixture
def right(tmp_path: Path) -> Path:
    return write(tmp_path / "right.txt", RIGHT)


def test_files_score_as_their_lines(
    hypotheses: Path, right: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    other = write(tmp_path / "other.txt", OTHER, newline="\r\n")
    scores = evaluate_files(hypotheses, [right, other], target_language="en")
    assert scores.bleu.value == sacrebleu.corpus_bleu(MADE, [RIGHT, OTHER]).score
    assert scores.chrf.value == sacrebleu.corpus_chrf(MADE, [RIGHT, OTHER]).score
    assert "nrefs:2" in scores.bleu.signature
    assert scores.sentences == 3
    assert [(item["role"], item["path"], item["sha256"]) for item in scores.inputs] == [
        ("hypotheses", str(hypotheses), hash_file(hypotheses)),
        ("references", str(right), hash_file(right)),
        ("references", str(other), hash_file(other)),
    ]
    assert {path.stem for path in tmp_path.iterdir()} == {"made", "other", "right"}
    sources = write(tmp_path / "sources.txt", ["", MADE[1], "three"])
    evaluate_files(hypotheses, [right], target_language="en", sources=sources)
    note = f"note: {hypotheses}: 1 of 2 lines (50.0%) are identical to their source"
    assert caplog.messages[-1] == note


def test_a_pipe_is_scored_without_its_hash(hypotheses: Path) -> None:
    read, write_end = os.pipe()
    os.write(write_end, "".join(f"{line}\n" for line in RIGHT).encode())
    os.close(write_end)
    scores = evaluate_files(hypotheses, [Path(f"/dev/fd/{read}")], target_language="en")
    assert [item["role"] for item in scores.inputs] == ["hypotheses"]


def test_bad_files_are_errors(hypotheses: Path, right: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"made.text: no such file; did you mean `made\.txt`"):
        evaluate_files(tmp_path / "made.text", [right], target_language="en")
    with pytest.raises(UserError):
        evaluate_files(tmp_path / "none", [tmp_path / "none"], target_language="")
    with pytest.raises(UserError):
        evaluate_files(hypotheses, [right, right], target_language="en")
    for path in (hypotheses, right):
        path.write_bytes(b"")
    with pytest.raises(DataError):
        evaluate_files(hypotheses, [right], target_language="en")


def test_texts_of_different_length_are_cut_if_allowed(hypotheses: Path, tmp_path: Path) -> None:
    short = write(tmp_path / "short.txt", RIGHT[:2])
    with pytest.raises(DataError, match=r"made\.txt has 3 lines, .*short\.txt has 2.*line-counts"):
        evaluate_files(hypotheses, [short], target_language="en")
    job = EvaluationJob(allow=("line-counts",))
    scores = evaluate_files(hypotheses, [short], target_language="en", job=job)
    cut = evaluate_files(write(tmp_path / "cut", MADE[:2]), [short], target_language="en")
    assert (scores.bleu.value, scores.sentences) == (cut.bleu.value, 2)
    assert scores.bleu.signature == f"{cut.bleu.signature}|forced:line-counts"


class Table:
    """Translator that looks lines up in a table."""

    def __init__(self, table: dict[str, str], beam: int = 5) -> None:
        self.table = table
        self.decoding = DecodingConfig(beam=beam)

    def use_terms(self, terms: tuple[object, ...]) -> None:
        assert not terms

    def stream(self, lines: Iterable[str]) -> Iterator[Translation]:
        for position, line in enumerate(lines, 1):
            notes = (f"{line} was split",) if len(line) > 5 else ()
            yield Translation(position, line, self.table[line], "ok", 0.0, notes)


def translator(beam: int = 5) -> Translator:
    return cast(Translator, Table(dict(zip(SOURCES, MADE, strict=True)), beam))


@pytest.fixture
def run(tmp_path: Path, right: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a run folder whose model is a table."""
    write(tmp_path / "sources.txt", SOURCES)
    source = {"source": str(tmp_path / "sources.txt"), "target": str(right)}
    data: dict[str, Any] = {"source_language": "de", "target_language": "en"}
    data |= {"train": source, "valid": source, "tests": {"test": source}}
    config = Config.model_validate({"data": data, "training": {"max_updates": 1}})
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "config.yaml").write_text(dump_config(config), encoding="utf-8")
    described = {"format": 1, "longest_source": 9, "tokenizer": "7c", "weights": "5a"}
    (folder / "model.json").write_text(json.dumps(described))
    (folder / "model.safetensors").touch()

    def load(run: Path, *, overrides: Sequence[str], device: str) -> Translator:
        assert (run, device) == (folder, "cpu")
        return translator(beam=3 if len(overrides) > 1 else 5)

    monkeypatch.setattr("mt.decoding.translator.Translator.load", load)
    return folder


def test_run_keeps_its_scores_and_translations(run: Path, right: Path) -> None:
    scores = evaluate_run(run, overrides=["decoding.beam=3"], device="cpu")
    assert scores.bleu.value == sacrebleu.corpus_bleu(MADE, [RIGHT]).score
    assert scores.label == "test.beam=3, 3 pairs, beam 3"
    hypotheses = run / "evaluations" / "test.beam=3.hypotheses.txt"
    assert hypotheses.read_bytes().decode().split("\n") == [*MADE, ""]
    written = (run / "evaluations" / "test.beam=3.json").read_bytes()
    record = json.loads(written)
    assert record["bleu"] == scores.bleu.as_record()
    assert record["bleu"]["brevity_penalty"] == 1.0
    assert (record["split"], record["sentences"]) == ("test", 3)
    assert (record["decoding"]["beam"], record["decoding"]["search"]) == (3, "beam")
    assert record["weights"] == "5a"
    inputs = {item["role"]: item for item in record["inputs"]}
    paths = [inputs.pop(name) for name in ("hypotheses", "sources", "references")]
    assert [Path(item["path"]).name for item in paths] == [
        f"test.{name}.txt" for name in ("beam=3.hypotheses", "sources", "references")
    ]
    assert {role: Path(item["path"]).name for role, item in inputs.items()} == {
        "model": "model.json",
        "config": "config.yaml",
    }
    assert all(item["sha256"] == hash_file(Path(item["path"])) for item in record["inputs"])
    for side in ("sources", "references"):
        kept = (hypotheses.with_name(f"test.{side}.txt")).read_text(encoding="utf-8")
        assert kept == "".join(f"{line}\n" for line in (SOURCES if side == "sources" else RIGHT))
    names = sorted(path.name for path in hypotheses.parent.iterdir())
    of_beam = ["test.beam=3.hypotheses.txt", "test.beam=3.json"]
    assert names == [*of_beam, "test.references.txt", "test.sources.txt"]
    assert evaluate_run(run, device="cpu").bleu == scores.bleu
    assert (run / "evaluations" / "test.json").is_file()
    assert (run / "evaluations" / "test.beam=3.json").read_bytes() == written
    again = evaluate_files(hypotheses, [right], target_language="en")
    assert (again.bleu, again.chrf) == (scores.bleu, scores.chrf)


def test_names_of_evaluations_are_safe_and_differ(run: Path) -> None:
    config = load_config(run / "config.yaml")
    paths = [f"['/models/{name}']" for name in ("A", "a", "a/B?", 99 * "a", 100 * "a")]
    names = [
        name_evaluation(run, "test", config, [f"decoding.ensemble={path}"], EvaluationJob())
        for path in paths
    ]
    assert len({name.casefold() for name in names}) == len(names)
    assert all(re.fullmatch(r"test\.ensemble=[a-z0-9_.,=-]{1,60}", name) for name in names)
    both = ["decoding.search=greedy", "decoding.repair=off", "decoding.beam=5"]
    for overrides in (both, both[::-1]):
        name = name_evaluation(run, "test", config, overrides, EvaluationJob())
        assert name == "test.search=greedy,repair=off"


@pytest.fixture
def news(tmp_path: Path) -> GivenTexts:
    """Return a test set that is not in the config of the run."""
    (tmp_path / "mine").mkdir()
    sources = write(tmp_path / "mine" / "news.en.txt", SOURCES[:2])
    return GivenTexts(sources, (write(tmp_path / "mine" / "news.de.txt", OTHER[:2]),))


def test_run_is_scored_on_a_given_test_set(run: Path, news: GivenTexts, tmp_path: Path) -> None:
    second = write(tmp_path / "mine" / "second.de.txt", RIGHT[:2])
    both = GivenTexts(news.sources, (*news.references, second))
    job = EvaluationJob(texts=both)
    scores = evaluate_run(run, device="cpu", job=job)
    sets = [OTHER[:2], RIGHT[:2]]
    assert scores.bleu.value == sacrebleu.corpus_bleu(MADE[:2], sets).score
    assert scores.chrf.value == sacrebleu.corpus_chrf(MADE[:2], sets).score
    assert scores.bleu.signature.startswith("nrefs:2|")
    written = run / "evaluations" / "news.hypotheses.txt"
    assert written.read_bytes().decode().split("\n") == [*MADE[:2], ""]
    record = json.loads((run / "evaluations" / "news.json").read_bytes())
    assert (record["split"], record["sentences"]) == ("news", 2)
    paths = [item["path"] for item in record["inputs"] if item["role"] == "references"]
    assert [Path(path) for path in paths] == list(both.references)
    evaluate_run(run, split="more_news", device="cpu", job=job)
    assert (run / "evaluations" / "more_news.json").is_file()


def test_run_is_scored_on_a_test_set_of_sacrebleu(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sacrebleu.dataset.base.SACREBLEU_DIR", str(tmp_path))
    two = FakeSGMLDataset("wmt99/two", [], langpairs={"de-en": ["", "", ""]})
    far = FakeSGMLDataset("wmt98", ["http://localhost:1/x.tgz"], langpairs={"de-en": ["", ""]})
    monkeypatch.setitem(DATASETS, "wmt99/two", two)
    monkeypatch.setitem(DATASETS, "wmt98", far)
    (tmp_path / "wmt99/two").mkdir(parents=True)
    for part in ("src", "ref-0", "ref-1", "docid", "genre", "origlang"):
        lines = {"ref-0": RIGHT, "ref-1": OTHER}.get(part, SOURCES)
        write(tmp_path / "wmt99/two" / f"wmt99_two.de-en.{part}", lines)
    scores = evaluate_run(run, split="sacrebleu:wmt99/two", device="cpu")
    assert scores.bleu.value == sacrebleu.corpus_bleu(MADE, [RIGHT, OTHER]).score
    assert scores.bleu.signature.startswith("nrefs:2|")
    assert scores.bleu.signature.endswith("|test:wmt99/two|lang:de-en")
    monkeypatch.setattr(Translator, "load", None)  # errors come before
    for name, reason in (
        ("wmt99/tow", "did you mean `wmt99/two`"),
        ("multi30k/2016", "no `de-en`; it has `en-fr`, `en-de`, `en-cs`"),
        ("wmt98", "cannot be read .*refused"),
        ("", "no test set ``"),
    ):
        with pytest.raises(DataError, match=reason):
            evaluate_run(run, split=f"sacrebleu:{name}", device="cpu")


def test_only_scores_of_the_same_texts_are_replaced(
    run: Path, news: GivenTexts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def scored(sources: Path, reference: Path) -> Score:
        texts = GivenTexts(sources, (reference,))
        return evaluate_run(run, device="cpu", job=EvaluationJob(texts=texts)).bleu

    monkeypatch.chdir(tmp_path / "mine")
    first = scored(news.sources, news.references[0])
    assert scored(Path("news.en.txt"), Path("news.de.txt")) == first
    copy = Path(shutil.copy("news.de.txt", "news.copy"))
    assert scored(news.sources, copy) == first
    write(copy, MADE[:2])
    with pytest.raises(UserError, match="other texts"):
        scored(news.sources, copy)
    score = run / "evaluations" / "news.json"
    content = score.read_bytes()
    with pytest.raises(UserError, match="other texts"):
        scored(write(tmp_path / "news.en", SOURCES), write(tmp_path / "n.de", RIGHT))
    assert score.read_bytes() == content
    score.write_text("{")
    with pytest.raises(UserError, match="other texts"):
        scored(news.sources, copy)


def test_given_files_are_not_replaced(run: Path, news: GivenTexts) -> None:
    folder = run / "evaluations"
    folder.mkdir(exist_ok=True)
    content = news.sources.read_bytes()
    path = folder / "news.hypotheses.txt"
    path.write_bytes(content)
    for name, texts in (
        ("as_sources", GivenTexts(path, news.references)),
        ("as_references", GivenTexts(news.sources, (*news.references, path))),
    ):
        job = EvaluationJob(texts=texts, allow=("swapped",))
        with pytest.raises(UserError):
            evaluate_run(run, split="news", device="cpu", job=job)
        evaluate_run(run, split=f"{name}_{path.stem[:4]}", device="cpu", job=job)
        assert path.read_bytes() == content


@pytest.mark.parametrize(
    ("split", "references"),
    [
        ("test", ["right.txt"]),
        ("../new", ["right.txt"]),
        ("new", ["rihgt.txt"]),
        ("new", ["right.txt", "right.txt"]),
        ("new", ["right.txt", "sources.txt"]),
        ("new", ["right.txt", "short.txt"]),
        ("new", ["/dev/null"]),
    ],
)
def test_bad_test_sets_are_errors_before_translation(
    split: str, references: list[str], run: Path, tmp_path: Path
) -> None:
    write(tmp_path / "short.txt", RIGHT[:1])
    files = tuple(tmp_path / name for name in references)
    job = EvaluationJob(texts=GivenTexts(tmp_path / "sources.txt", files))
    with pytest.raises(UserError):
        evaluate_run(run, split=split, device="cpu", job=job)
    assert not (run / "evaluations").exists()
    left = write(tmp_path / "left.txt", RIGHT)
    job = EvaluationJob(texts=GivenTexts(left, (tmp_path / "right.txt",)))
    with pytest.raises(UserError, match=f"^{left}: [^/]*{tmp_path}/right.txt;"):
        evaluate_run(run, split="new", device="cpu", job=job)


def test_bad_runs_and_splits_are_errors_before_translation(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(RunError):
        evaluate_run(tmp_path / "elsewhere")
    with pytest.raises(UserError, match="split `tset` is unknown; did you mean `test`"):
        evaluate_run(run, split="tset", device="cpu")
    assert not (run / "evaluations").exists()
    monkeypatch.setattr(Table, "stream", None)
    (run / "evaluations").write_text("a file where a folder should be")
    with pytest.raises(FileExistsError):
        evaluate_run(run, device="cpu")


def test_unfinished_run_is_scored_without_a_record(finished_run: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(finished_run, run)
    (run / "model.json").unlink()
    card = (run / "README.md").read_bytes()
    scores = evaluate_run(run, split="test", device="cpu")
    assert scores.sentences == 6
    for score in (scores.bleu, scores.chrf):
        assert score.signature.endswith("|model:checkpoint")
    assert not (run / "evaluations" / "test.json").exists()
    assert (run / "README.md").read_bytes() == card
