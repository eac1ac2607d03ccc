import json
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
import sacrebleu

from mt.config import DecodingConfig
from mt.decoding.translator import Translation
from mt.errors import DataError
from mt.evaluation.checks import TextChecks
from mt.evaluation.evaluate import EvaluationJob, GivenTexts, evaluate_robustness
from mt.evaluation.robustness import (
    RobustnessCard,
    ScoredVariant,
    SourceVariant,
    make_variants,
)
from mt.evaluation.run_info import read_info
from mt.files import hash_file

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
        for position, line in enumerate(lines, 1):
            yield Translation(position, line, line, "ok", 0.0, ())


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


def drops_of(variant: ScoredVariant) -> tuple[float, float]:
    """Return the drops of BLEU and chrF2."""
    record = variant.as_record()
    return record["bleu"]["drop"], record["chrf"]["drop"]


def test_drop_of_a_copying_model_is_that_of_the_perturbed_text(card: RobustnessCard) -> None:
    changed = {variant.name: variant for variant in card.scored}
    for name, changed_lines in (
        ("lower case", [line.lower() for line in LINES]),
        ("no punctuation", [line.translate({ord(mark): None for mark in ",.!"}) for line in LINES]),
    ):
        bleu = sacrebleu.corpus_bleu(changed_lines, [LINES]).score
        chrf = sacrebleu.corpus_chrf(changed_lines, [LINES]).score
        drops = drops_of(changed[name])
        assert drops == pytest.approx((100 - bleu, 100 - chrf))
        assert drops[0] > 10
    for name in ("untouched", "upper case", "no final mark", "copied text"):
        drops = drops_of(changed[name])
        assert drops == (0.0, 0.0), "the references are changed alike"
    assert (changed["copied text"].intact, changed["typos"].intact) == (1.0, None)
    assert drops_of(changed["typos"])[0] > 5
    # A copying model loses nothing on joined lines, compared with the joined single lines.
    long = changed["long input"]
    assert (long.scores.sentences, *drops_of(long)) == (2, 0.0, 0.0)


def test_record_of_a_card_names_the_kept_texts(card: RobustnessCard, run: Path) -> None:
    passport = run / "evaluations" / "copies.robustness.json"
    record = json.loads(passport.read_text(encoding="utf-8"))
    assert record.items() >= card.as_record().items()
    folder = passport.with_suffix("")
    sums = {item["path"]: item["sha256"] for item in record["inputs"]}
    for side in ("sources", "hypotheses"):
        path = folder / f"upper-case.{side}.txt"
        assert path.read_text(encoding="utf-8") == "".join(f"{line.upper()}\n" for line in LINES)
        assert sums[str(path.relative_to(passport.parent))] == hash_file(path)
    assert len(list(folder.iterdir())) == 2 * len(card.scored)
    assert read_info(run).scores == ()


def test_rejected_translations_are_kept(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def reject(*_: object, **__: object) -> None:
        raise DataError("rejected")

    for side in ("a", "b"):
        (tmp_path / f"own.{side}").write_text(f"{side} one\n{side} two\n", encoding="utf-8")
    monkeypatch.setattr(TextChecks, "check_made", reject)
    job = EvaluationJob(texts=GivenTexts(tmp_path / "own.a", (tmp_path / "own.b",)))
    path = run / "evaluations" / "own.robustness" / "untouched.hypotheses.txt"
    with pytest.raises(DataError, match="rejected"):
        evaluate_robustness(run, device="cpu", job=job)
    assert path.read_text(encoding="utf-8").count("\n") == 2


def variants_of(sources: list[str] = SOURCES, language: str = "en") -> dict[str, SourceVariant]:
    """Return the variants by name; the second reference set is marked."""
    references = [TARGETS[: len(sources)], [f"{line} 2" for line in TARGETS[: len(sources)]]]
    languages = {"source_language": language, "target_language": "de"}
    return {variant.name: variant for variant in make_variants(sources, references, **languages)}


def test_variants_change_the_sources_and_some_the_references() -> None:
    variants = variants_of()
    assert list(variants) == [
        *("untouched", "upper case", "lower case", "no punctuation", "no final mark", "typos"),
        *("no-break spaces", "long input", "copied text"),
    ]
    upper = ["A DOG, A CAT.", "RAIN?", "NO MARKS", "STRASSE 5!", "IT ENDS."]
    assert variants["upper case"].sources == upper
    assert variants["lower case"].sources[0] == "a dog, a cat."
    assert variants["no punctuation"].sources[:2] == ["A dog a cat", "Rain"]
    right = [TARGETS, [f"{line} 2" for line in TARGETS]]
    for name in ("untouched", "lower case", "no punctuation", "typos"):
        assert variants[name].references == right
    assert variants["upper case"].references[1][1] == "REGEN? 2"
    bare = variants["no final mark"]
    assert (bare.sources[1], bare.references[0][1]) == ("Rain", "Regen")
    copied = variants["copied text"]
    for text, *lines in zip(copied.copied, copied.sources, *copied.references, strict=True):
        assert len({line.startswith(f"{text} ") for line in lines}) == 1
        assert all(line.startswith(f"{text} ") or line.endswith(f" {text}") for line in lines)
    long = variants["long input"]
    assert long.sources == ["A dog, a cat. Rain? no marks Straße 5!", "It ends."]
    assert long.references == [
        ["Ein Hund, eine Katze. Regen? keine Zeichen Weg 5!", "Es endet."],
        ["Ein Hund, eine Katze. 2 Regen? 2 keine Zeichen 2 Weg 5! 2", "Es endet. 2"],
    ]


def test_typos_are_reproducible_and_depend_on_the_line() -> None:
    typos = variants_of()["typos"]
    assert typos == variants_of()["typos"]
    assert typos.sources[0] == SOURCES[0]  # all its words have three letters
    repeated = variants_of(["extraordinary circumstances"] * 5)["typos"]
    assert len(set(repeated.sources)) > 3


@pytest.mark.parametrize(
    ("sources", "language", "left_out"),
    [
        (["我爱你。", "下雨了吗？"], "zh", {"upper case", "lower case"}),
        (["a dog .", "a cat"], "en", {"lower case", "typos"}),
    ],
)
def test_variants_that_change_nothing_are_left_out(
    sources: list[str], language: str, left_out: set[str]
) -> None:
    assert not variants_of(sources, language).keys() & left_out


def test_lines_are_joined_and_raised_as_their_languages_write() -> None:
    lines = {"th": "ไป", "zh": "去。", "el": "Πάω.", "ka": "მივდივარ."}
    for language, joined, upper in [
        ("th", "ไป ไป", None),
        ("zh", "去。去。", None),
        ("el", "Πάω. Πάω.", "ΠΑΩ."),
        ("ka", "მივდივარ. მივდივარ.", None),
    ]:
        variants = {
            variant.name: variant
            for variant in make_variants(
                [lines[language]] * 2,
                [[lines[language]] * 2],
                source_language=language,
                target_language=language,
            )
        }
        assert variants["long input"].sources == variants["long input"].references[0] == [joined]
        raised = variants.get("upper case")
        assert (raised and (raised.sources[0], raised.references[0][0])) == (
            upper and (upper, upper)
        )
