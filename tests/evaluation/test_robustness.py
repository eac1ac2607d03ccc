"""The robustness card: scores of changed sources against those of the same references."""

import hashlib
import json
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, cast

import pytest
import sacrebleu

from mt.config import DecodingConfig
from mt.config.data import TextSource
from mt.config.loading import load_config
from mt.data.pairs import SentencePair
from mt.data.sources import open_source
from mt.decoding.translator import Translation, Translator
from mt.evaluation import robustness as robustness_module
from mt.evaluation.checks import Guard, Text
from mt.evaluation.evaluate import OpenedSplit
from mt.evaluation.robustness import LeftOut, RobustnessCard, evaluate_robustness
from mt.evaluation.run_info import read_info

LINES = [
    "The old man walks his dog, slowly, along the river.",
    "Two children are playing football in the green park!",
    "A woman in a red coat, with a hat, is reading a book.",
    "People wait for the train at the station in the morning.",
    "He sings.",
]


class _Copy:
    """A model that gives every line back."""

    decoding = DecodingConfig()

    def stream(self, lines: Iterable[str]) -> Iterator[Translation]:
        for number, line in enumerate(lines, 1):
            yield Translation(number, line, line, "ok", 0.0, ())


@pytest.fixture
def card(finished_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RobustnessCard:
    """Return the card of a copying model whose references are its sources."""
    run = tmp_path / "run"
    shutil.copytree(finished_run, run, ignore=shutil.ignore_patterns("checkpoints"))
    (run / "evaluations").mkdir()
    config = load_config(run / "config.yaml")
    pairs = tuple(SentencePair(line, line) for line in LINES)
    sides = [str(tmp_path / name) for name in ("lines.en", "lines.de")]
    for side in sides:
        Path(side).write_text("".join(f"{line}\n" for line in LINES), encoding="utf-8")

    def opened(*_: Any, **__: Any) -> OpenedSplit:
        return OpenedSplit(
            name="test",
            config=config,
            data=config.data,
            source=open_source(TextSource(source=sides[0], target=sides[1]), config.data),
            pairs=pairs,
            references=(Text(sides[1], LINES),),
            inputs=(),
            translator=cast(Translator, _Copy()),
            tokenizer="13a",
            guard=Guard(),
        )

    monkeypatch.setattr(robustness_module, "open_run", opened)
    return evaluate_robustness(run)


def test_a_copying_model_loses_what_the_change_takes(card: RobustnessCard) -> None:
    """Every drop is that of the changed text itself, by sacreBLEU."""
    changed = {each.variant.name: each for each in card.scored}
    for name, made in (
        ("upper case", [line.upper() for line in LINES]),
        ("lower case", [line.lower() for line in LINES]),
        ("no punctuation", [line.translate({ord(mark): None for mark in ",.!"}) for line in LINES]),
    ):
        bleu = sacrebleu.corpus_bleu(made, [LINES]).score
        chrf = sacrebleu.corpus_chrf(made, [LINES]).score
        assert changed[name].drops() == pytest.approx((100 - bleu, 100 - chrf))
        assert changed[name].drops()[0] > 10
    assert changed["untouched"].drops() == (0.0, 0.0)
    assert changed["typos"].drops()[0] > 5


def test_long_input_is_compared_with_the_same_lines_one_by_one(card: RobustnessCard) -> None:
    """Joined lines score otherwise than single ones; a model that minds no length loses nothing."""
    long = card.scored[-1]
    assert long.variant.name == "long input"
    assert len(long.variant.references[0]) == 2
    assert long.drops() == (0.0, 0.0)
    assert long.untouched.sentences == 2


def test_the_table_has_a_row_for_each(card: RobustnessCard) -> None:
    rows = card.as_text().split("\n")
    assert rows[0].split() == ["source", "lines", "changed", "BLEU", "drop", "chrF2", "drop"]
    assert rows[1].split() == ["untouched", "5", "-", "100.00", "-", "100.00", "-"]
    assert rows[6].split() == ["long", "input", "2", "2", "100.00", "0.00", "100.00", "0.00"]
    upper = card.scored[1]
    bleu, chrf = upper.drops()
    assert rows[2].split()[2:] == [
        "5",
        "5",
        f"{100 - bleu:.2f}",
        f"{bleu:.2f}",
        f"{100 - chrf:.2f}",
        f"{chrf:.2f}",
    ]
    assert rows[8].startswith("BLEU   nrefs:1|case:mixed|eff:no|tok:13a|")


def test_the_record_names_what_was_translated(card: RobustnessCard, tmp_path: Path) -> None:
    place = tmp_path / "run" / "evaluations" / "test.robustness.json"
    record = json.loads(place.read_text(encoding="utf-8"))
    assert record.items() >= card.as_record().items()
    assert record["weights"] == json.loads((tmp_path / "run" / "model.json").read_text())["weights"]
    assert record["decoding"]["beam"] == DecodingConfig().beam
    upper = record["variants"][1]
    text = "".join(f"{line.upper()}\n" for line in LINES)
    sums = {each["path"]: each["sha256"] for each in record["inputs"]}
    for name in ("sources", "hypotheses"):  # a copy
        path = place.with_suffix("") / f"upper-case.{name}.txt"
        assert path.read_text(encoding="utf-8") == text
        assert sums[str(path)] == hashlib.sha256(text.encode()).hexdigest()
    assert upper["bleu"]["signature"].startswith("nrefs:1|case:mixed")
    assert upper["bleu"]["drop"] == card.scored[1].drops()[0]


def test_what_an_earlier_card_has_left_goes(card: RobustnessCard, tmp_path: Path) -> None:
    """A variant that is left out now has no files."""
    folder = tmp_path / "run" / "evaluations" / "test.robustness"
    assert len(list(folder.iterdir())) == 2 * len(card.scored)
    left_out = (LeftOut("typos", "for a try"),)
    forms = [each.variant for each in card.scored if each.variant.name != "typos"]
    inputs = list(robustness_module._described(folder, forms, left_out))
    assert sorted(folder.iterdir()) == sorted(Path(each.path) for each in inputs)


def test_refused_translations_are_kept_for_reading(
    finished_run: Path, tmp_path: Path, program: Any
) -> None:
    run = tmp_path / "run"
    shutil.copytree(finished_run, run, ignore=shutil.ignore_patterns("checkpoints"))
    text = "Some Words In Title Case\n" * 10
    for side in ("a", "b"):
        (tmp_path / f"own.{side}").write_text(f"{side}\n" + text, encoding="utf-8")
    texts = ["--sources", tmp_path / "own.a", "--references", tmp_path / "own.b"]
    status, _, err = program("evaluate", run, *texts, "--robustness", "--device", "cpu")
    kept = run / "evaluations" / "own.robustness" / "untouched.hypotheses.txt"
    assert (status, err.count("\n")) == (2, 1)
    assert err.startswith(f"error: {kept}: is lower-cased, ")
    assert kept.read_text(encoding="utf-8").count("\n") == 11


def test_the_card_is_no_score_of_the_run(card: RobustnessCard, tmp_path: Path) -> None:
    assert card.split == "test"
    assert read_info(tmp_path / "run").scores == ()


def test_a_real_run_is_translated_and_gives_the_untouched_score_of_an_evaluation(
    finished_run: Path, tmp_path: Path, program: Any
) -> None:
    run = tmp_path / "run"
    shutil.copytree(finished_run, run, ignore=shutil.ignore_patterns("checkpoints"))
    allow = ["--allow", "lowercased", "--allow", "tokenized", "--json", "--device", "cpu"]
    status, out, err = program("evaluate", run, "--robustness", *allow)
    assert status == 0, err
    variants = json.loads(out)["variants"]
    assert [each["name"] for each in variants] == ["untouched", "upper case", "typos", "long input"]
    status, out, _ = program("evaluate", run, *allow)
    assert json.loads(out)["bleu"]["score"] == variants[0]["bleu"]["score"]
    assert json.loads(out)["chrf"]["score"] == variants[0]["chrf"]["score"]
    assert len(read_info(run).scores) == 1


def test_the_card_of_texts_that_the_config_does_not_know(
    finished_run: Path, tmp_path: Path, program: Any
) -> None:
    """Its untouched score is the one that their passport has, which can be computed again."""
    run = tmp_path / "run"
    shutil.copytree(finished_run, run, ignore=shutil.ignore_patterns("checkpoints"))
    config = load_config(run / "config.yaml")
    assert isinstance(config.data.valid, TextSource)
    for side, path in {"a": config.data.valid.source, "b": config.data.valid.target}.items():
        lines = Path(str(path)).read_text(encoding="utf-8").splitlines(keepends=True)
        (tmp_path / f"own.{side}").write_text("".join(lines[:3]), encoding="utf-8")
    (tmp_path / "own.c").write_text("zero one\ntwo\nthree four\n", encoding="utf-8")
    texts = ["--sources", tmp_path / "own.a", "--references", tmp_path / "own.b"]
    texts += ["--references", tmp_path / "own.c"]
    wishes = ["--allow", "lowercased", "--allow", "tokenized", "--json", "--device", "cpu"]
    status, out, err = program("evaluate", run, *texts, "--robustness", *wishes)
    assert status == 0, err
    untouched = json.loads(out)["variants"][0]
    assert (json.loads(out)["split"], untouched["lines"]) == ("own", 3)
    card = json.loads((run / "evaluations" / "own.robustness.json").read_bytes())
    named = [each for each in card["inputs"] if each["role"] in {"sources", "references"}]
    assert [each["path"] for each in named] == [str(texts[1]), str(texts[3]), str(texts[5])]
    assert "nrefs:2|" in untouched["bleu"]["signature"]
    other = ["--sources", texts[1], "--references", tmp_path / "other.b"]
    (tmp_path / "other.b").write_text("another\n" * 3, encoding="utf-8")
    status, _, err = program("evaluate", run, *other, "--robustness", *wishes)
    assert status == 2
    assert "own.robustness.json: is the score of other texts; give these texts another name" in err
    status, out, err = program("evaluate", run, *texts, *wishes)
    assert status == 0, err
    assert json.loads(out)["bleu"] == {
        key: untouched["bleu"][key] for key in ("score", "signature")
    }
    passport = run / "evaluations" / "own.json"
    status, out, _ = program("evaluate", "--check", passport)
    assert status == 0, out
    (tmp_path / "own.b").write_text("another\n" * 3, encoding="utf-8")
    status, out, _ = program("evaluate", "--check", passport)
    assert status == 1
    assert "own.b" in out
