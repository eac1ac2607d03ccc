"""Robustness card: scores on perturbed sources, against the scores on the unchanged ones.

After Belinkov and Bisk 2018, "Synthetic and Natural Noise Both Break Neural Machine Translation".
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Any

from mt.data.augmentation import (
    copied_text,
    in_capitals,
    with_copied_text,
    with_typos,
    without_final_mark,
    without_punctuation,
)
from mt.evaluation.scores import Evaluation, count_form
from mt.languages import written_without_spaces
from mt.tables import aligned

SEED = 1
"""Seed of the typos and of the copied text, together with the line number."""
JOINED = 4
"""Number of neighbouring lines that `long input` joins."""

_LINE_CHANGES: dict[str, Callable[[str, Random], str]] = {
    "upper case": in_capitals,
    "lower case": lambda text, _: text.lower(),
    "no punctuation": without_punctuation,
    "no final mark": lambda text, _: without_final_mark(text),
    "typos": with_typos,
}
_REFERENCE_CHANGES: dict[str, Callable[[Sequence[str]], Sequence[str]]] = {
    "upper case": lambda lines: [line.upper() for line in lines],
    "no final mark": lambda lines: [without_final_mark(line) for line in lines],
}
"""Variants whose references are changed as the sources are."""


@dataclass(frozen=True, slots=True)
class SourceVariant:
    """Test split in another form; line N of the references still answers line N."""

    name: str
    sources: Sequence[str]
    references: Sequence[Sequence[str]]
    adapt: Callable[[Sequence[str]], Sequence[str]] | None = None
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
    """Return the untouched split and its variants, except those that change no line.

    `references` has one list for each set.
    """
    variants = [SourceVariant("untouched", sources, references)]
    for name, change in _LINE_CHANGES.items():
        noisy = [change(text, Random(f"{SEED} {n}")) for n, text in enumerate(sources, 1)]
        adapt = _REFERENCE_CHANGES.get(name)
        if noisy != list(sources):
            right = [adapt(lines) for lines in references] if adapt else references
            variants.append(SourceVariant(name, noisy, right, adapt))
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
    spaced = not written_without_spaces(language) or count_form(lines, language).is_tokenized
    separator = " " if spaced else ""
    starts = range(0, len(lines), JOINED)
    return [separator.join(lines[start : start + JOINED]) for start in starts]


@dataclass(frozen=True, slots=True)
class ScoredVariant:
    """Scores of a variant, and of the untouched text against the same references."""

    name: str
    scores: Evaluation
    bleu_drop: float
    """Difference from the BLEU of the translations of the untouched text, adapted."""
    chrf_drop: float
    intact: float | None = None
    """Share of the lines that have the added text unchanged."""


def score_variants(
    variants: Sequence[SourceVariant],
    translations: Sequence[Sequence[str]],
    score: Callable[[Sequence[str], Sequence[Sequence[str]]], Evaluation],
) -> list[ScoredVariant]:
    """Score the translations of each variant; the first variant is the untouched text."""
    untouched = score(translations[0], variants[0].references)
    scored = []
    for variant, lines in zip(variants, translations, strict=True):
        scores, baseline = score(lines, variant.references), untouched
        if variant.adapt:
            baseline = score(variant.adapt(translations[0]), variant.references)
        bleu = baseline.bleu.value - scores.bleu.value
        chrf = baseline.chrf.value - scores.chrf.value
        matches = [text in line for text, line in zip(variant.copied, lines, strict=False)]
        intact = sum(matches) / len(matches) if matches else None
        scored.append(ScoredVariant(variant.name, scores, bleu, chrf, intact))
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
        for row in self.scored:
            bleu, chrf = f"{row.scores.bleu.value:.2f}", f"{row.scores.chrf.value:.2f}"
            drops = f"{row.bleu_drop:.2f}", f"{row.chrf_drop:.2f}"
            rows.append((row.name, f"{row.scores.sentences:,}", bleu, drops[0], chrf, drops[1]))
        scores = self.scored[0].scores.scores()
        signatures = aligned([(score.name, score.signature) for score in scores])
        remarks = (
            "drop: how much lower than the translations of the untouched text, joined or changed\n"
            "as the references are. Variants that change no line are left out."
        )
        if (intact := self.scored[-1].intact) is not None:
            remarks += f"\n{intact:.2%} of the translations have the copied text unchanged."
        return "\n\n".join([aligned(rows, right=range(1, 6)), signatures, remarks])

    def as_record(self) -> dict[str, Any]:
        """Return the card as plain data, with scores in full precision."""
        variants = [
            {
                "name": row.name,
                "lines": row.scores.sentences,
                "bleu": {**row.scores.bleu.as_record(), "drop": row.bleu_drop},
                "chrf": {**row.scores.chrf.as_record(), "drop": row.chrf_drop},
                "intact": row.intact,
            }
            for row in self.scored
        ]
        return {"split": self.split, "variants": variants}
