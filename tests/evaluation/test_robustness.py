import json
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
import sacrebleu

from mt.config import DecodingConfig
from mt.data.augmentation import without_final_mark
from mt.decoding.translator import Translation
from mt.errors import DataError
from mt.evaluation.checks import TextChecks
from mt.evaluation.evaluate import EvaluationJob, GivenTexts, evaluate_robustness, evaluate_run
from mt.evaluation.robustness import (
    LeftOut,
    RobustnessCard,
    Variant,
    joined,
    score_variants,
    variants,
)
from mt.evaluation.run_info import read_info
from mt.files import file_sha256

LINES = [
    "The old man walks his dog, slowly, along the river.",
    "Two children are playing football in the green park!",
    "A woman in a red coat, with a hat, is reading a book.",
    "People wait for the train at the station in the morning.",
    "He sings.",
]
SOURCES = ["A dog, a cat.", "Rain?", "no marks", "Straße 5!", "It ends."]
TARGETS = ["Ein Hund, eine Katze.", "Regen?", "keine Zeichen", "Weg 5!", "Es endet."]


class Copy:
    """Translator that returns every line unchanged."""

    decoding = DecodingConfig()

    def stream(self, lines: Iterable[str]) -> Iterator[Translation]:
        for number, line in enumerate(lines, 1):
            yield Translation(number, line, line, "ok", 0.0, ())


@pytest.fixture
def card(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RobustnessCard:
    """Return the card of a copying model whose references are its sources."""
    (tmp_path / "copies.en").write_text("".join(f"{line}\n" for line in LINES), encoding="utf-8")
    shutil.copy(tmp_path / "copies.en", tmp_path / "copies.de")
    monkeypatch.setattr("mt.evaluation.evaluate.load_translator", lambda *_, **__: Copy())
    monkeypatch.setattr(TextChecks, "check_direction", lambda *_, **__: None)
    texts = GivenTexts(tmp_path / "copies.en", (tmp_path / "copies.de",))
    job = EvaluationJob(texts=texts, allow=("swapped",))
    return evaluate_robustness(run, device="cpu", job=job)


def test_drop_of_a_copying_model_is_that_of_the_perturbed_text(card: RobustnessCard) -> None:
    changed = {each.variant.name: each for each in card.scored}
    for name, made in (
        ("lower case", [line.lower() for line in LINES]),
        ("no punctuation", [line.translate({ord(mark): None for mark in ",.!"}) for line in LINES]),
    ):
        bleu = sacrebleu.corpus_bleu(made, [LINES]).score
        chrf = sacrebleu.corpus_chrf(made, [LINES]).score
        assert changed[name].drops() == pytest.approx((100 - bleu, 100 - chrf))
        assert changed[name].drops()[0] > 10
    for name in ("untouched", "upper case", "no final mark", "copied text"):
        assert changed[name].drops() == (0.0, 0.0), "the references are changed alike"
    assert (changed["copied text"].intact, changed["typos"].intact) == (1.0, None)
    assert changed["typos"].drops()[0] > 5
    # A copying model loses nothing on joined lines, compared with the joined single lines.
    long = changed["long input"]
    assert (len(long.variant.references[0]), long.untouched.sentences) == (2, 2)
    assert long.drops() == (0.0, 0.0)


def test_card_as_text_has_a_row_for_each_variant(card: RobustnessCard) -> None:
    rows = card.as_text().split("\n")
    assert rows[0].split() == ["source", "lines", "changed", "BLEU", "drop", "chrF2", "drop"]
    assert rows[1].split() == ["untouched", "5", "-", "100.00", "-", "100.00", "-"]
    assert rows[7].split() == ["long", "input", "2", "2", "100.00", "0.00", "100.00", "0.00"]
    bleu, chrf = card.scored[2].drops()
    expected = (100 - bleu, bleu, 100 - chrf, chrf)
    assert rows[3].split()[2:] == ["5", "5", *(f"{number:.2f}" for number in expected)]
    assert rows[10].startswith("BLEU   nrefs:1|case:mixed|eff:no|tok:13a|")
    assert rows[-1] == "both sides; 100.00% of the translations have it unchanged."


def test_record_of_a_card_names_the_kept_texts(card: RobustnessCard, run: Path) -> None:
    place = run / "evaluations" / "copies.robustness.json"
    record = json.loads(place.read_text(encoding="utf-8"))
    assert record.items() >= json.loads(card.as_json()).items()
    assert record["weights"] == json.loads((run / "model.json").read_text())["weights"]
    sums = {each["path"]: each["sha256"] for each in record["inputs"]}
    for name in ("sources", "hypotheses"):
        path = place.with_suffix("") / f"upper-case.{name}.txt"
        assert path.read_text(encoding="utf-8") == "".join(f"{line.upper()}\n" for line in LINES)
        assert sums[str(path)] == file_sha256(path)
    assert len(list(place.with_suffix("").iterdir())) == 2 * len(card.scored)
    assert read_info(run).scores == ()


def test_card_of_a_run_has_its_score_and_removes_stale_files(run: Path) -> None:
    stale = run / "evaluations" / "test.robustness" / "lower-case.sources.txt"
    stale.parent.mkdir(parents=True)
    stale.touch()
    notes = stale.with_name("notes.txt")
    notes.write_text("mine")
    job = EvaluationJob(allow=("lowercased", "tokenized"))
    card = evaluate_robustness(run, device="cpu", job=job)
    names = [each.variant.name for each in card.scored]
    assert names == ["untouched", "upper case", "typos", "long input", "copied text"]
    assert not stale.exists()
    assert notes.read_text() == "mine"
    scores = evaluate_run(run, device="cpu", job=job)
    assert (scores.bleu, scores.chrf) == (card.scored[0].scores.bleu, card.scored[0].scores.chrf)


def test_rejected_translations_are_kept(run: Path, tmp_path: Path) -> None:
    for side in ("a", "b"):
        text = f"{side}\n" + "Some Words In Title Case\n" * 10
        (tmp_path / f"own.{side}").write_text(text, encoding="utf-8")
    job = EvaluationJob(texts=GivenTexts(tmp_path / "own.a", (tmp_path / "own.b",)))
    kept = run / "evaluations" / "own.robustness" / "untouched.hypotheses.txt"
    with pytest.raises(DataError, match=f"^{kept}: is lower-cased, "):
        evaluate_robustness(run, device="cpu", job=job)
    assert kept.read_text(encoding="utf-8").count("\n") == 11


def made(sources: list[str] = SOURCES, language: str = "en") -> tuple[Any, tuple[LeftOut, ...]]:
    """Return the variants by name, and those left out; the second reference set is marked."""
    references = [TARGETS[: len(sources)], [f"{line} 2" for line in TARGETS[: len(sources)]]]
    found, left_out = variants(sources, references, source_language=language, target_language="de")
    return {variant.name: variant for variant in found}, left_out


def test_variants_change_the_sources_and_some_the_references() -> None:
    forms: dict[str, Variant] = made()[0]
    assert list(forms) == [
        *("untouched", "upper case", "lower case", "no punctuation", "no final mark", "typos"),
        *("long input", "copied text"),
    ]
    upper = ("A DOG, A CAT.", "RAIN?", "NO MARKS", "STRASSE 5!", "IT ENDS.")
    assert forms["upper case"].sources == upper
    assert forms["lower case"].sources[0] == "a dog, a cat."
    assert forms["no punctuation"].sources[:2] == ("A dog a cat", "Rain")
    changed = {name: form.changed for name, form in forms.items() if name != "typos"}
    assert list(changed.values()) == [0, 5, 4, 4, 4, 2, 5]
    right = (tuple(TARGETS), tuple(f"{line} 2" for line in TARGETS))
    for name in ("untouched", "lower case", "no punctuation", "typos"):
        assert forms[name].references == right
    assert forms["upper case"].references[1][1] == "REGEN? 2"
    bare = forms["no final mark"]
    assert (bare.sources[1], bare.references[0][1]) == ("Rain", "Regen")
    copied = forms["copied text"]
    sides = copied.sources, *copied.references
    for text, *lines in zip(copied.copied, *sides, strict=True):
        assert len({line.startswith(f"{text} ") for line in lines}) == 1
        assert all(line.startswith(f"{text} ") or line.endswith(f" {text}") for line in lines)
    long = forms["long input"]
    assert long.sources == ("A dog, a cat. Rain? no marks Straße 5!", "It ends.")
    assert long.references == (
        ("Ein Hund, eine Katze. Regen? keine Zeichen Weg 5!", "Es endet."),
        ("Ein Hund, eine Katze. 2 Regen? 2 keine Zeichen 2 Weg 5! 2", "Es endet. 2"),
    )


def test_translations_changed_like_the_references_lose_nothing() -> None:
    forms = list(made()[0].values())
    change = {"upper case": str.upper, "no final mark": without_final_mark}
    written = [f"{line[:-4]}fine." for line in TARGETS]
    scored = score_variants(
        forms,
        [[*map(change.get(form.name, str), written)][: len(form.sources)] for form in forms],
        target_language="de",
        tokenizer="auto",
        forced="",
    )
    found = {each.variant.name: each for each in scored}
    assert [found[name].drops() for name in change] == [(0, 0), (0, 0)]
    assert found["no final mark"].scores.bleu.value != found["untouched"].scores.bleu.value


def test_typos_are_reproducible_and_depend_on_the_line() -> None:
    typos: Variant = made()[0]["typos"]
    assert typos == made()[0]["typos"]
    changed = [one != other for one, other in zip(SOURCES, typos.sources, strict=True)]
    assert changed[0] is False  # all its words have three letters
    assert typos.changed == sum(changed) >= 3
    repeated = variants(
        ["extraordinary circumstances"] * 20,
        [["x"] * 20],
        source_language="en",
        target_language="de",
    )[0]
    different = {form.name: len(set(form.sources)) for form in repeated}
    assert different["typos"] > 10


@pytest.mark.parametrize(
    ("sources", "language", "left_out"),
    [
        (
            ["我爱 NLP。", "下雨了吗？"],
            "zh",
            {
                "upper case": "the script of the sources has no capital letters",
                "lower case": "the script of the sources has no capital letters",
            },
        ),
        (
            ["a dog .", "a cat"],
            "en",
            {"lower case": "it changes no line", "typos": "it changes no line"},
        ),
        (["Rain, rain."], "en", {"long input": "there is only one line"}),
    ],
)
def test_variants_that_test_nothing_are_left_out(
    sources: list[str], language: str, left_out: dict[str, str]
) -> None:
    found = made(sources, language)[1]
    assert {each.name: each.reason for each in found} == left_out


@pytest.mark.parametrize(
    ("lines", "language", "first"),
    [
        (["a", "b", "c", "d", "e"], "en", "a b c d"),
        (["我来了。", "你呢？"], "zh", "我来了。你呢？"),
        (["我 来 了 。", "你 呢 ？", "下 雨 了 ？"], "zh", "我 来 了 。 你 呢 ？ 下 雨 了 ？"),
    ],
)
def test_lines_are_joined_as_the_language_separates_words(
    lines: list[str], language: str, first: str
) -> None:
    assert joined(lines, language)[0] == first
