"""A passport holds until one byte of anything that it names has changed."""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from mt.errors import DataError
from mt.evaluation.evaluate import EvaluationJob, GivenTexts, evaluate_files, evaluate_run
from mt.evaluation.off_target import OffTarget
from mt.evaluation.passport import Input, default_place, read_passport, write_passport
from mt.evaluation.passport_check import check_passport
from mt.evaluation.robustness import evaluate_robustness
from mt.evaluation.run_info import read_info

RIGHT = "The cat sat on the mat.\nTwo dogs ran very fast.\nIt rains.\n"
MADE = "The cat sat on a mat.\nTwo dogs ran very fast.\nIt rains now.\n"
ALL = EvaluationJob(("chrf++", "ter"), resamples=100)


@pytest.fixture
def passport(tmp_path: Path) -> Path:
    """Return the passport of a score of files that lie in a folder with it."""
    folder = tmp_path / "scored"
    folder.mkdir()
    for name, text in (
        ("made", MADE),
        ("right", RIGHT),
        ("other", RIGHT[4:]),
        ("sources", "a\nb\nc"),
    ):
        (folder / name).write_text(text)
    path = folder / "p.json"
    job = EvaluationJob(ALL.metrics, ALL.resamples, passport=path)
    evaluate_files(
        folder / "made",
        [folder / "right", folder / "other"],
        target_language="en",
        sources=folder / "sources",
        job=job,
    )
    return path


def _turned(path: Path, position: int) -> None:
    content = bytearray(path.read_bytes())
    content[position] ^= 1
    path.write_bytes(content)


def test_a_passport_holds_where_nothing_has_changed(passport: Path) -> None:
    check = check_passport(passport)
    assert check.passed
    assert check.text == f"{passport}: 4 inputs are what they were, every score comes out again"


@pytest.mark.parametrize("name", ["made", "right", "other", "sources"])
@pytest.mark.parametrize("position", [0, 1, -1])
def test_one_changed_byte_of_a_file_is_named(name: str, position: int, passport: Path) -> None:
    _turned(passport.with_name(name), position)
    check = check_passport(passport)
    assert not check.passed
    assert check.text.startswith(f"FAIL: {passport.with_name(name)}: has changed; its SHA-256 is")
    assert check.text.count("\n") == 0


def test_every_byte_of_the_passport_counts(passport: Path) -> None:
    whole = passport.read_bytes()
    for position in range(0, len(whole), 29):
        _turned(passport, position)
        check = check_passport(passport)
        assert not check.passed
        assert str(passport) in check.text
        passport.write_bytes(whole)
    passport.write_bytes(whole + b"\n")
    assert not check_passport(passport).passed


def test_what_is_gone_is_named(passport: Path) -> None:
    passport.with_name("right").unlink()
    assert check_passport(passport).text == f"FAIL: {passport.with_name('right')}: is not there"
    passport.unlink()
    with pytest.raises(DataError, match="no such file"):
        check_passport(passport)


def test_relative_paths_go_with_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a").mkdir()
    Path("a/made").write_text(MADE)
    Path("a/right").write_text(RIGHT)
    job = EvaluationJob(passport=Path("a/p.json"))
    evaluate_files(Path("a/made"), [Path("a/right")], target_language="en", job=job)
    Path("a").rename("b")
    assert check_passport(tmp_path / "b" / "p.json").passed


def test_a_score_that_does_not_come_out_again_is_told(
    passport: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import sacrebleu.metrics.ter

    monkeypatch.setattr(sacrebleu.metrics.ter.TER, "_compute_score_from_stats", _other_ter)
    check = check_passport(passport)
    assert not check.passed
    assert check.text.startswith(f"FAIL: {passport}: ter is 7.0 ± 0.0 (nrefs:2|bs:100|seed:12345|")
    assert check.text.count("\n") == 0


def _other_ter(*_: object) -> object:
    from sacrebleu.metrics.ter import TERScore

    return TERScore(7.0, 7, 100.0)


def test_what_was_forced_comes_out_again(tmp_path: Path) -> None:
    (tmp_path / "made").write_text(MADE + "One more.\n")
    (tmp_path / "right").write_text(RIGHT)
    path = tmp_path / "p.json"
    job = EvaluationJob(allow=("line-counts", "references"), passport=path)
    evaluate_files(tmp_path / "made", [tmp_path / "right"], target_language="en", job=job)
    assert json.loads(path.read_bytes())["bleu"]["signature"].endswith("|forced:line-counts")
    assert check_passport(path).passed


def test_a_run_behind_a_symbolic_link_is_checked(
    scored_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(scored_run / "run", tmp_path / "a" / "far" / "disk" / "run")
    shutil.copytree(scored_run / "corpus", tmp_path / "work" / "corpus")
    monkeypatch.chdir(tmp_path / "work")
    Path("runs").symlink_to(tmp_path / "a" / "far" / "disk")
    texts = GivenTexts(Path("corpus/valid.en"), (Path("corpus/valid.de"),))
    job = EvaluationJob(texts=texts, allow=("lowercased", "tokenized"))
    evaluate_run(Path("runs/run"), split="own", device="cpu", job=job)
    passport = Path("runs/run/evaluations/own.json")
    monkeypatch.chdir(tmp_path)
    assert check_passport("work" / passport).passed
    _turned(Path("work/corpus/valid.de"), 0)
    assert "corpus/valid.de: has changed" in check_passport("work" / passport).text


@pytest.fixture(scope="module")
def scored_run(
    finished_run: Path, tiny_corpus: Path, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """Return a scored run beside a copy of its corpus, for copying."""
    folder = tmp_path_factory.mktemp("scored")
    shutil.copytree(tiny_corpus, folder / "corpus", ignore=shutil.ignore_patterns("*.yaml"))
    shutil.copytree(finished_run, folder / "run")
    config = folder / "run" / "config.yaml"
    config.write_text(config.read_text().replace(str(tiny_corpus), "corpus"))
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        evaluate_run(Path("run"), device="cpu", job=ALL)
        allow = ("lowercased", "tokenized")
        evaluate_robustness(Path("run"), device="cpu", job=EvaluationJob(allow=allow))
    return folder


@pytest.fixture
def at_run(scored_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], str]:
    """Return a function that checks the run, of which there is a copy in the working folder."""
    shutil.copytree(scored_run, tmp_path / "copy")
    monkeypatch.chdir(tmp_path / "copy")
    return lambda: check_passport(Path("run/evaluations/test.json")).text


def test_the_passport_of_a_run_holds_wherever_the_run_lies(at_run: Callable[[], str]) -> None:
    assert "every score comes out again" in at_run()
    record = json.loads(Path("run/evaluations/test.json").read_bytes())
    assert [each["role"] for each in record["inputs"]][:4] == [
        "hypotheses",
        "sources",
        "references",
        "model",
    ]
    assert record["weights"] == record["inputs"][3]["sha256"]
    assert record["decoding"]["beam"] == 2


def test_scoring_the_translations_of_a_run_as_files_is_no_score_of_the_run(
    at_run: Callable[[], str],
) -> None:
    made = Path("run/evaluations/test.hypotheses.txt")
    job = EvaluationJob(passport=default_place(made, []))
    evaluate_files(made, [Path("corpus/test.de")], target_language="de", job=job)
    assert made.with_name("test.hypotheses.txt.passport.json").is_file()
    assert [scored.split for scored in read_info(Path("run")).scores] == ["test"]


@pytest.mark.parametrize(
    "name",
    [
        "run/evaluations/test.hypotheses.txt",
        "corpus/test.en",
        "corpus/test.de",
        "run/model.safetensors",
        "run/model.json",
        "run/config.yaml",
        "run/evaluations/test.json",
    ],
)
def test_one_changed_byte_of_what_a_run_is_made_of_is_named(
    name: str, at_run: Callable[[], str]
) -> None:
    _turned(Path(name), -2)
    told = at_run()
    assert told.startswith("FAIL: ")
    assert Path(told.removeprefix("FAIL: ").split(": ")[0]).resolve() == Path(name).resolve()
    assert told.count("\n") == 0


def test_the_tokenizer_belongs_to_the_passport_of_a_run(at_run: Callable[[], str]) -> None:
    for path in Path("run/tokenizer").iterdir():
        before = path.read_bytes()
        _turned(path, 0)
        assert path.name in at_run()
        path.write_bytes(before)


def test_a_config_that_cannot_be_read_is_named_once_with_its_change(
    at_run: Callable[[], str],
) -> None:
    Path("run/config.yaml").write_text("dta: 1\n", encoding="utf-8")
    lines = at_run().splitlines()
    assert len(lines) == 2
    assert lines[0].startswith("FAIL: run/config.yaml:1: `dta`: unknown")
    assert lines[1].startswith("FAIL: run/config.yaml: has changed; its SHA-256 is")


CARD = Path("run/evaluations/test.robustness.json")


@pytest.mark.parametrize(
    "name",
    [
        "run/evaluations/test.robustness/typos.sources.txt",
        "run/evaluations/test.robustness/long-input.hypotheses.txt",
        "corpus/test.de",
        "run/model.json",
        "run/evaluations/test.robustness.json",
    ],
)
@pytest.mark.usefixtures("at_run")
def test_one_changed_byte_of_what_a_robustness_card_is_made_of_is_named(name: str) -> None:
    assert check_passport(CARD).passed
    _turned(Path(name), -2)
    check = check_passport(CARD)
    assert not check.passed
    named = check.text.removeprefix("FAIL: ").split(": ")[0]
    assert Path(named).resolve() == Path(name).resolve()
    assert check.text.count("\n") == 0


@pytest.mark.usefixtures("at_run")
def test_a_robustness_card_is_scored_again(monkeypatch: pytest.MonkeyPatch) -> None:
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
def test_variants_that_are_made_otherwise_now_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mt.evaluation.robustness.SEED", 2)
    told = f"FAIL: {CARD}: `typos` comes out otherwise from the same sources"
    assert check_passport(CARD).text == told
    monkeypatch.setattr("mt.evaluation.robustness._LINE_CHANGES", {})
    told = f"FAIL: {CARD}: `long input` comes out otherwise from the same sources"
    assert check_passport(CARD).text == told


def _rewritten(path: Path, **changed: object) -> None:
    """Write a passport anew, sealed as if it had been written so."""
    record = read_passport(path)
    assert record is not None
    inputs = [Input(**each) for each in record.pop("inputs")]
    del record["versions"]
    write_passport(path, {**record, **changed}, inputs)


def test_all_that_a_passport_says_of_its_scores_comes_out_again(passport: Path) -> None:
    whole, record = passport.read_bytes(), read_passport(passport)
    assert record is not None
    other = {**record["bleu"], "interval": {**record["bleu"]["interval"], "half_width": 7.5}}
    for changed, told in (
        ({"sentences": 4}, "is of 4 sentences, and there are not so many"),
        ({"meteor": record["ter"]}, "meteor is no score that comes out again"),
        ({"bleu": other}, f"{other['score']} ± 7.5 ({other['signature']}) in the passport"),
    ):
        passport.write_bytes(whole)
        _rewritten(passport, **changed)
        check = check_passport(passport)
        assert not check.passed
        assert check.text.count("\n") == 0
        assert told in check.text


def _always(found: OffTarget) -> Callable[..., OffTarget]:
    return lambda *_, **__: found


def test_an_off_target_rate_is_counted_again(
    at_run: Callable[[], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = Path("run/evaluations/test.json")
    counts = {"judged": 3, "found": 1, "references_judged": 3, "references_found": 0}
    told = {"language": "de", **counts, "identifier": "py3langid 1", "rate": 1 / 3}
    _rewritten(path, off_target=told)
    now = OffTarget("de", **counts, identifier="py3langid 2")
    for counted, again in ((now, True), (replace(now, found=2), False)):
        monkeypatch.setattr("mt.evaluation.passport_check.off_target", _always(counted))
        assert check_passport(path).passed is again
    assert at_run().endswith(
        "off_target is 2 of 3 (py3langid 2) now, 1 of 3 (py3langid 1) in the passport"
    )
