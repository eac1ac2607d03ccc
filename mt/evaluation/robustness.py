"""Robustness card: scores on perturbed sources, after Belinkov and Bisk 2018 (ICLR)."""

import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Any

from mt.data.augmentation import (
    copied_text,
    with_copied_text,
    with_typos,
    without_final_mark,
    without_punctuation,
)
from mt.evaluation.forms import is_tokenized
from mt.evaluation.scores import Evaluation
from mt.languages import in_upper_case, joiner_of
from mt.tables import align_columns

SEED, JOINED = 1, 4
"""Seed of each line, with its number; neighbouring lines that `long input` joins."""

Change = Callable[[str, Random], str]
Adaptation = Callable[[Sequence[str]], Sequence[str]]
_LINE_CHANGES: dict[str, tuple[Change, Adaptation | None]] = {
    "lower case": (lambda text, _: text.lower(), None),
    "no punctuation": (without_punctuation, None),
    "no final mark": (
        lambda text, _: without_final_mark(text),
        lambda lines: [without_final_mark(line) for line in lines],
    ),
    "typos": (with_typos, None),
    "no-break spaces": (lambda text, _: text.replace(" ", "\N{NO-BREAK SPACE}"), None),
    "decomposed": (lambda text, _: unicodedata.normalize("NFD", text), None),
}
"""Change of the sources, and of the references and of translations of the untouched text."""


@dataclass(frozen=True, slots=True)
class SourceVariant:
    """Test split in another form; line N of the references still answers line N."""

    name: str
    sources: Sequence[str]
    references: Sequence[Sequence[str]]
    adapt: Adaptation | None = None
    """Change of translations of the untouched text for a comparison with these references."""
    copied: Sequence[str] = ()
    """Text that was added to each line on both sides."""


def make_variants(
    sources: Sequence[str],
    references: Sequence[Sequence[str]],
    *,
    source_language: str,
    target_language: str,
) -> list[SourceVariant]:
    """Return the untouched split and its variants, except those that change no line."""
    variants = [SourceVariant("untouched", sources, references)]
    upper, upper_right = (
        partial(in_upper_case, language=language) for language in (source_language, target_language)
    )
    in_capitals: tuple[Change, Adaptation] = (
        lambda text, _: upper(text),
        lambda lines: [*map(upper_right, lines)],
    )
    for name, (change, adapt) in {"upper case": in_capitals, **_LINE_CHANGES}.items():
        noisy = [change(text, Random(f"{SEED} {n}")) for n, text in enumerate(sources, 1)]
        if noisy != list(sources):
            adapted = [adapt(lines) for lines in references] if adapt else references
            variants.append(SourceVariant(name, noisy, adapted, adapt))
    join = partial(join_lines, language=target_language)
    long = join_lines(sources, source_language)
    variants.append(SourceVariant("long input", long, [join(lines) for lines in references], join))
    added = [copied_text(Random(f"{SEED} {n}")) for n in range(1, len(sources) + 1)]
    noisy, *right = [list(map(with_copied_text, lines, added)) for lines in (sources, *references)]
    return [*variants, SourceVariant("copied text", noisy, right, copied=added)]


def join_lines(lines: Sequence[str], language: str) -> list[str]:
    """Join each `JOINED` neighbouring lines; the last line may have fewer.

    The separator is a space, or nothing for untokenised text in a language without spaces.
    """
    separator = joiner_of(language)
    if not separator and is_tokenized(lines, language):
        separator = " "
    return [separator.join(lines[i : i + JOINED]) for i in range(0, len(lines), JOINED)]


@dataclass(frozen=True, slots=True)
class ScoredVariant:
    """Scores of a variant, and of the untouched text against the same references."""

    name: str
    scores: Evaluation
    baseline: Evaluation
    """Scores of the translations of the untouched text, adapted."""
    intact: float | None = None
    """Share of the lines that have the added text unchanged."""

    def as_record(self) -> dict[str, Any]:
        """Return the scores and their drops as plain data."""
        record: dict[str, Any] = {"name": self.name, "lines": self.scores.sentences}
        for key in ("bleu", "chrf"):
            score, before = getattr(self.scores, key), getattr(self.baseline, key)
            record[key] = {**score.as_record(), "drop": before.value - score.value}
        return record | {"intact": self.intact}


def score_variants(
    variants: Sequence[SourceVariant],
    translations: Sequence[Sequence[str]],
    score: Callable[[Sequence[str], Sequence[Sequence[str]]], Evaluation],
) -> list[ScoredVariant]:
    """Score the translations of each variant; the first variant is the untouched text."""
    untouched = score(translations[0], variants[0].references)
    scored = []
    for variant, lines in zip(variants, translations, strict=True):
        adapted = variant.adapt and variant.adapt(translations[0])
        baseline = score(adapted, variant.references) if adapted else untouched
        matches = [text in line for text, line in zip(variant.copied, lines, strict=False)]
        intact = sum(matches) / len(matches) if matches else None
        scores = score(lines, variant.references)
        scored.append(ScoredVariant(variant.name, scores, baseline, intact))
    return scored


@dataclass(frozen=True, slots=True)
class RobustnessCard:
    """Scores of a split and of its variants."""

    split: str
    scored: Sequence[ScoredVariant]
    """The untouched text first."""

    def as_text(self) -> str:
        """Return a table, the signatures and remarks."""
        rows = [("source", "lines", "BLEU", "drop", "chrF2", "drop")]
        for record in self.as_record()["variants"]:
            scores = [record["bleu"], record["chrf"]]
            cells = [f"{score[key]:z.2f}" for score in scores for key in ("score", "drop")]
            rows.append((record["name"], f"{record['lines']:,}", *cells))
        untouched = self.scored[0].scores.scores()
        signatures = align_columns([(score.name, score.signature) for score in untouched])
        remarks = (
            "drop: how much lower than the translations of the untouched text, joined or changed\n"
            "as the references are. Variants that change no line are left out."
        )
        if (intact := self.scored[-1].intact) is not None:
            remarks += f"\n{intact:.2%} of the translations have the copied text unchanged."
        return "\n\n".join([align_columns(rows, right=range(1, 6)), signatures, remarks])

    def as_record(self) -> dict[str, Any]:
        """Return the card as plain data, with scores in full precision."""
        return {"split": self.split, "variants": [variant.as_record() for variant in self.scored]}
