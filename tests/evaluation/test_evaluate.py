import json
import logging
import shutil
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, cast

import pytest
import sacrebleu

from mt.config import Config, DataConfig, DecodingConfig
from mt.config.loading import dump_config
from mt.data.pairs import SentencePair
from mt.decoding.translator import Translation, Translator
from mt.errors import DataError, RunError, UserError
from mt.evaluation import evaluate as evaluate_module
from mt.evaluation.evaluate import (
    EvaluationJob,
    GivenTexts,
    choose_split,
    evaluate_files,
    evaluate_run,
    score_pairs,
)

SOURCES = ["one", "two", "three"]
RIGHT = ["The cat sat on the mat.", "Two dogs ran very fast.", "It rains."]
OTHER = ["A cat sat on the mat.", "Two dogs were running fast.", "It is raining."]
MADE = ["The cat sat on a mat.", "Two dogs ran very fast.", "It rains\u2028 now."]


def _write(path: Path, lines: Sequence[str], newline: str = "\n") -> Path:
    path.write_bytes("".join(line + newline for line in lines).encode())
    return path


@pytest.fixture
def made(tmp_path: Path) -> Path:
    return _write(tmp_path / "made.txt", MADE)


@pytest.fixture
def right(tmp_path: Path) -> Path:
    return _write(tmp_path / "right.txt", RIGHT)


def test_files_are_scored_as_their_lines_are(made: Path, right: Path, tmp_path: Path) -> None:
    other = _write(tmp_path / "other.txt", OTHER, newline="\r\n")
    scores = evaluate_files(made, [right, other], target_language="en")
    assert scores.bleu.value == sacrebleu.corpus_bleu(MADE, [RIGHT, OTHER]).score
    assert scores.chrf.value == sacrebleu.corpus_chrf(MADE, [RIGHT, OTHER]).score
    assert "nrefs:2" in scores.bleu.signature
    assert (scores.sentences, scores.hypotheses) == (3, str(made))
    assert scores.references == (str(right), str(other))


def test_different_line_counts_name_the_files_and_both_counts(made: Path, right: Path) -> None:
    _write(right, RIGHT[:2])
    with pytest.raises(DataError, match=r"made\.txt has 3 lines, .*right\.txt has 2"):
        evaluate_files(made, [right], target_language="en")


def test_sources_must_be_as_many(made: Path, right: Path, tmp_path: Path) -> None:
    sources = _write(tmp_path / "sources.txt", [*SOURCES, "four"])
    with pytest.raises(DataError, match=r"made\.txt has 3 lines, .*sources\.txt has 4"):
        evaluate_files(made, [right], target_language="en", sources=sources)


def test_copied_lines_are_told(
    made: Path, right: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    sources = _write(tmp_path / "sources.txt", ["one", MADE[1], "three"])
    with caplog.at_level(logging.INFO):
        evaluate_files(made, [right], target_language="en", sources=sources)
    assert f"note: {made}: 1 of 3 lines (33.3%) are identical to their source" in caplog.messages


def test_the_references_cannot_be_their_own_hypotheses(right: Path, tmp_path: Path) -> None:
    link = tmp_path / "link.txt"
    link.symlink_to(right)
    for hypotheses in (right, tmp_path / "." / "right.txt", link):
        with pytest.raises(UserError, match="hypotheses are the same text as the references"):
            evaluate_files(hypotheses, [right], target_language="en")


def test_empty_files_and_missing_files_are_errors(made: Path, right: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"made.text: no such file; did you mean `made\.txt`"):
        evaluate_files(tmp_path / "made.text", [right], target_language="en")
    for path in (made, right):
        path.write_bytes(b"")
    with pytest.raises(DataError, match=r"made\.txt: is empty"):
        evaluate_files(made, [right], target_language="en")


def test_the_language_is_looked_at_before_the_files(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="the target language is missing: BLEU counts words"):
        evaluate_files(tmp_path / "none", [tmp_path / "none"], target_language="")


class _Table:
    """Translates by a table, through the stream that the real translator gives."""

    def __init__(self, table: dict[str, str], beam: int = 5) -> None:
        self.table = table
        self.decoding = DecodingConfig(beam=beam)

    def stream(self, lines: Iterable[str]) -> Iterator[Translation]:
        for number, line in enumerate(lines, 1):
            notes = (f"{line} was split",) if len(line) > 5 else ()
            yield Translation(number, line, self.table[line], "ok", 0.0, notes)


def _translator(beam: int = 5) -> Translator:
    return cast(Translator, _Table(dict(zip(SOURCES, MADE, strict=True)), beam))


def test_validation_scores_are_those_of_the_files(made: Path, right: Path) -> None:
    pairs = [SentencePair(*both) for both in zip(SOURCES, RIGHT, strict=True)]
    live = score_pairs(_translator(), pairs, target_language="en")
    assert [translation.text for translation in live.translations] == MADE
    from_files = evaluate_files(made, [right], target_language="en")
    assert (live.evaluation.bleu, live.evaluation.chrf) == (from_files.bleu, from_files.chrf)


def _data(*tests: str, folder: Path = Path("nowhere")) -> dict[str, Any]:
    source = {"source": str(folder / "sources.txt"), "target": str(folder / "right.txt")}
    return {
        "source_language": "de",
        "target_language": "en",
        "train": source,
        "valid": source,
        "tests": dict.fromkeys(tests, source),
    }


@pytest.mark.parametrize(
    ("tests", "asked", "chosen"),
    [
        (["news", "test"], None, "test"),
        (["news"], None, "news"),
        (["news", "talks"], "talks", "talks"),
        ([], "valid", "valid"),
    ],
)
def test_the_split_is_the_one_asked_for_or_the_obvious_one(
    tests: list[str], asked: str | None, chosen: str
) -> None:
    assert choose_split(DataConfig.model_validate(_data(*tests)), asked) == chosen


@pytest.mark.parametrize(
    ("tests", "asked", "message"),
    [
        (["news", "talks"], "new", "split `new` is unknown; did you mean `news`?"),
        (["news"], "zzz", "split `zzz` is unknown; there are `valid`, `news`"),
        (["news", "talks"], None, "which split? name one with --split: `valid`, `news`, `talks`"),
        ([], None, "which split? name one with --split: `valid`"),
    ],
)
def test_a_split_that_is_not_clear_lists_the_names(
    tests: list[str], asked: str | None, message: str
) -> None:
    with pytest.raises(UserError) as error:
        choose_split(DataConfig.model_validate(_data(*tests)), asked)
    assert str(error.value) == message


@pytest.fixture
def run(tmp_path: Path, right: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a run folder whose model is a table."""
    _write(tmp_path / "sources.txt", SOURCES)
    config = Config.model_validate(
        {"data": _data("test", folder=tmp_path), "training": {"max_updates": 1}}
    )
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "config.yaml").write_text(dump_config(config), encoding="utf-8")
    described = {"format": 1, "longest_source": 9, "tokenizer": "7c", "weights": "5a"}
    (folder / "model.json").write_text(json.dumps(described))

    def load(run: Path, *, overrides: Sequence[str], device: str) -> Translator:
        assert (run, device) == (folder, "cpu")
        return _translator(beam=3 if overrides else 5)

    monkeypatch.setattr(evaluate_module, "load_translator", load)
    return folder


def test_a_run_is_scored_and_keeps_scores_and_translations(run: Path) -> None:
    scores = evaluate_run(run, overrides=["decoding.beam=3"], device="cpu")
    assert scores.bleu.value == sacrebleu.corpus_bleu(MADE, [RIGHT]).score
    hypotheses = run / "evaluations" / "test.hypotheses.txt"
    assert hypotheses.read_bytes().decode().split("\n") == [*MADE, ""]
    record = json.loads((run / "evaluations" / "test.json").read_text(encoding="utf-8"))
    assert record["bleu"] == {"score": scores.bleu.value, "signature": scores.bleu.signature}
    assert (record["split"], record["sentences"]) == ("test", 3)
    assert (record["decoding"]["beam"], record["decoding"]["search"]) == (3, "beam")
    assert (record["hypotheses"], record["weights"]) == (str(hypotheses), "5a")
    assert "right.txt" in record["references"][0]
    assert sorted(path.name for path in hypotheses.parent.iterdir()) == [
        "test.hypotheses.txt",
        "test.json",
    ]


def test_scoring_a_run_again_replaces_what_it_wrote(run: Path) -> None:
    first = evaluate_run(run, split="valid", device="cpu")
    assert evaluate_run(run, split="valid", device="cpu").bleu == first.bleu


@pytest.fixture
def news(tmp_path: Path) -> GivenTexts:
    """Return texts that the config of the run does not know."""
    (tmp_path / "mine").mkdir()
    sources = _write(tmp_path / "mine" / "news.en.txt", SOURCES[:2])
    return GivenTexts(sources, (_write(tmp_path / "mine" / "news.de.txt", OTHER[:2]),))


def test_a_run_is_scored_on_texts_that_its_config_does_not_know(
    run: Path, news: GivenTexts
) -> None:
    job = EvaluationJob(texts=news)
    scores = evaluate_run(run, device="cpu", job=job)
    assert scores.bleu.value == sacrebleu.corpus_bleu(MADE[:2], [OTHER[:2]]).score
    made = run / "evaluations" / "news.hypotheses.txt"
    assert made.read_bytes().decode().split("\n") == [*MADE[:2], ""]
    record = json.loads((run / "evaluations" / "news.json").read_bytes())
    assert (record["split"], record["sentences"]) == ("news", 2)
    paths = {each["role"]: Path(each["path"]) for each in record["inputs"]}
    assert (paths["sources"], (paths["references"],)) == (news.sources, news.references)
    assert evaluate_run(run, device="cpu", job=job).bleu == scores.bleu
    evaluate_run(run, split="more_news", device="cpu", job=job)
    assert (run / "evaluations" / "more_news.json").is_file()


def test_a_run_is_scored_on_several_references(run: Path, news: GivenTexts, tmp_path: Path) -> None:
    """As its translations are by sacreBLEU; COMET and the passport know all of them."""
    second = _write(tmp_path / "mine" / "second.de.txt", RIGHT[:2])
    both = GivenTexts(news.sources, (*news.references, second))
    job = EvaluationJob(texts=both, comet=tmp_path / "comet")
    scores = evaluate_run(run, device="cpu", job=job)
    sets = [OTHER[:2], RIGHT[:2]]
    assert scores.bleu.value == sacrebleu.corpus_bleu(MADE[:2], sets).score
    assert scores.chrf.value == sacrebleu.corpus_chrf(MADE[:2], sets).score
    assert scores.bleu.signature.startswith("nrefs:2|")
    assert scores.references == tuple(map(str, both.references))
    assert (tmp_path / "comet" / "reference-2.txt").read_text() == second.read_text()
    passport = run / "evaluations" / "news.json"
    record = json.loads(passport.read_bytes())
    named = [Path(each["path"]) for each in record["inputs"] if each["role"] == "references"]
    assert tuple(named) == both.references
    with pytest.raises(UserError, match=r"news\.json: is the score of other texts"):
        evaluate_run(run, device="cpu", job=EvaluationJob(texts=news))


def test_the_same_texts_are_scored_again_wherever_they_are(
    run: Path, news: GivenTexts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By another path, in a copy, and where a line of them was mended."""
    first = evaluate_run(run, device="cpu", job=EvaluationJob(texts=news))
    monkeypatch.chdir(tmp_path / "mine")
    relative = GivenTexts(Path("news.en.txt"), (Path("news.de.txt"),))
    assert evaluate_run(run, device="cpu", job=EvaluationJob(texts=relative)).bleu == first.bleu
    copy = GivenTexts(news.sources, (Path(shutil.copy("news.de.txt", "news.copy")),))
    assert evaluate_run(run, device="cpu", job=EvaluationJob(texts=copy)).bleu == first.bleu
    _write(Path("news.copy"), MADE[:2])
    assert evaluate_run(run, device="cpu", job=EvaluationJob(texts=copy)).bleu.value > 99


def test_no_given_file_is_written_over(run: Path, news: GivenTexts) -> None:
    """What an earlier evaluation has left can be translated, or refer, under a new name."""
    folder = run / "evaluations"
    (folder / "news.robustness").mkdir(parents=True)
    kept = news.sources.read_bytes()
    for path in (folder / "news.hypotheses.txt", folder / "news.robustness" / "typos.sources.txt"):
        path.write_bytes(kept)
        for name, texts in (
            ("as_sources", GivenTexts(path, news.references)),
            ("as_references", GivenTexts(news.sources, (*news.references, path))),
        ):
            job = EvaluationJob(texts=texts, allow=("swapped",))
            with pytest.raises(UserError, match=f"{path}: the translations would be written over"):
                evaluate_run(run, split="news", device="cpu", job=job)
            evaluate_run(run, split=f"{name}_{path.stem[:4]}", device="cpu", job=job)
            assert path.read_bytes() == kept


def test_sources_are_no_references(run: Path, news: GivenTexts) -> None:
    same = GivenTexts(news.sources, (*news.references, news.sources))
    with pytest.raises(DataError, match="the sources are the same text as the references"):
        evaluate_run(run, device="cpu", job=EvaluationJob(texts=same))
    with pytest.raises(UserError, match=r"--references .*: is named twice; each file is one set"):
        twice = GivenTexts(news.sources, news.references * 2)
        evaluate_run(run, device="cpu", job=EvaluationJob(texts=twice))
    with pytest.raises(UserError, match=r"--references .*: is named twice; each file is one set"):
        evaluate_files(news.sources, news.references * 2, target_language="en")
    with pytest.raises(DataError, match="/dev/null: is no regular file, but it has to be read"):
        pipe = GivenTexts(Path("/dev/null"), news.references)
        evaluate_run(run, device="cpu", job=EvaluationJob(texts=pipe))


def test_further_references_are_as_many_lines_before_the_work(
    run: Path, news: GivenTexts, tmp_path: Path
) -> None:
    short = _write(tmp_path / "short.txt", RIGHT[:1])
    job = EvaluationJob(texts=GivenTexts(news.sources, (*news.references, short)))
    with pytest.raises(DataError, match=r"short\.txt has 1 lines, .*news\.en\.txt has 2: line N"):
        evaluate_run(run, device="cpu", job=job)
    assert not (run / "evaluations").exists()


def test_the_score_of_other_texts_is_not_written_over(
    run: Path, news: GivenTexts, tmp_path: Path
) -> None:
    job = EvaluationJob(texts=news)
    evaluate_run(run, device="cpu", job=job)
    kept = (run / "evaluations" / "news.json").read_bytes()
    other = GivenTexts(
        _write(tmp_path / "news.en", SOURCES), (_write(tmp_path / "news.de", RIGHT),)
    )
    with pytest.raises(UserError, match=r"news\.json: is the score of other texts; give these"):
        evaluate_run(run, device="cpu", job=EvaluationJob(texts=other))
    assert (run / "evaluations" / "news.json").read_bytes() == kept
    with pytest.raises(UserError, match="split `test` is one of the run's config; give"):
        evaluate_run(run, split="test", device="cpu", job=job)
    with pytest.raises(UserError, match="split `../news`: only letters, digits"):
        evaluate_run(run, split="../news", device="cpu", job=job)
    with pytest.raises(DataError, match=r"no such file; did you mean `news\.en`"):
        texts = GivenTexts(tmp_path / "news.em", other.references)
        evaluate_run(run, split="new", device="cpu", job=EvaluationJob(texts=texts))


def test_the_files_of_a_run_score_as_the_run_did(run: Path, right: Path) -> None:
    scores = evaluate_run(run, device="cpu")
    again = evaluate_files(Path(scores.hypotheses), [right], target_language="en")
    assert (again.bleu, again.chrf) == (scores.bleu, scores.chrf)


def test_the_first_lines_with_something_to_tell_are_told(caplog: pytest.LogCaptureFixture) -> None:
    table = {f"sentence {number}": "text" for number in range(8)}
    translations = tuple(_Table({**table, "short": ""}).stream([*table, "short"]))
    evaluate_module._tell_notes(translations)
    assert caplog.messages[0] == "line 1: sentence 0 was split"
    assert len(caplog.messages) == 6
    assert caplog.messages[-1] == "and 3 more such lines of 9"


def test_what_is_no_run_is_said_to_be_none(tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"elsewhere: no such run folder"):
        evaluate_run(tmp_path / "elsewhere")


def test_an_unknown_split_is_said_before_anything_is_written(run: Path) -> None:
    with pytest.raises(UserError, match="split `tset` is unknown; did you mean `test`"):
        evaluate_run(run, split="tset", device="cpu")
    assert not (run / "evaluations").exists()


def test_a_run_that_cannot_be_written_fails_before_the_work(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_Table, "stream", None)
    (run / "evaluations").write_text("a file where a folder should be")
    with pytest.raises(FileExistsError):
        evaluate_run(run, device="cpu")
