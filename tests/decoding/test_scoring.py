from itertools import chain
from pathlib import Path

import pytest

from mt.decoding import scoring
from mt.decoding.scoring import SCORING, ForcedScore, ScoreJob, score_windows, write_scores
from mt.decoding.torch_engine import TorchEngine
from mt.decoding.translator import Translator
from mt.errors import DataError, UserError

LINES = ["one two", "three", "", "four four four four", "nine eight", "zero", "five \u2028 six"]


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    """Return a file of sources and one of targets."""
    sources, targets = tmp_path / "s", tmp_path / "t"
    sources.write_text("".join(f"{line}\n" for line in LINES), encoding="utf-8")
    targets.write_text("".join(f"{line}\n" for line in LINES[::-1]), encoding="utf-8")
    return sources, targets


def scored(run: Path, files: tuple[Path, Path]) -> list[ForcedScore]:
    translator = Translator.load(run, overrides=SCORING, device="cpu")
    return [*chain.from_iterable(score_windows(translator, *files, range(len(LINES))))]


def test_scores_of_files_are_those_of_the_engine(
    finished_run: Path, original: Translator, files: tuple[Path, Path]
) -> None:
    engine, tokenizer = original.engine, original.tokenizer
    assert isinstance(engine, TorchEngine)
    found = scored(finished_run, files)
    for source, target, score in zip(LINES, LINES[::-1], found, strict=True):
        [ids] = tokenizer.encode_target([target])
        [alone] = engine.score(tokenizer.encode_source([source]), [ids])
        assert score.log_probs == pytest.approx(alone, abs=1e-5)
        assert score.tokens == tuple(tokenizer.target.processor.id_to_piece(ids))
        assert score.tokens[-1] == "</s>"


def test_line_beyond_the_last_position_is_an_error(
    finished_run: Path, files: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scoring, "LINES_AT_ONCE", 3)
    monkeypatch.setattr(TorchEngine, "longest", 12)
    files[1].write_text("\n".join(["one", "", "two", "two three", "one " * 40, "", ""]) + "\n")
    translator = Translator.load(finished_run, overrides=SCORING, device="cpu")
    lazily = score_windows(translator, *files, range(len(LINES)))
    assert len(next(lazily)) == 3
    with pytest.raises(UserError, match=r": line 5 has \d+ tokens, at most 12 can be scored"):
        next(lazily)


def test_unequal_empty_and_special_files_are_an_error(
    tmp_path: Path, files: tuple[Path, Path]
) -> None:
    short, empty, run = tmp_path / "short", tmp_path / "empty", tmp_path / "no-run"
    short.write_text("one\ntwo\n")
    empty.write_text("")
    for sources, targets, message in (
        (files[0], short, "has 7 lines, .*short has 2"),
        (files[0], tmp_path / "x", "no such file"),
        (empty, empty, "is empty"),
        (Path("/dev/null"), short, "/dev/null: is a pipe or device"),
    ):
        with pytest.raises(DataError, match=message):
            write_scores(run, ScoreJob(sources, targets), device="cpu")


def test_scores_do_not_depend_on_mbr(
    run: Path, finished_run: Path, files: tuple[Path, Path]
) -> None:
    text = (run / "config.yaml").read_text()
    assert "mbr: null" in text
    (run / "config.yaml").write_text(text.replace("mbr: null", "mbr: chrf"))
    assert scored(run, files) == scored(finished_run, files)
