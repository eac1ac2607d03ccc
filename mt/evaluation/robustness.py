"""Robustness card: scores on perturbed sources, against the scores on the unchanged ones.

After Belinkov and Bisk 2018, "Synthetic and Natural Noise Both Break Neural Machine Translation".
"""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
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
from mt.evaluation.scores import Evaluation, evaluate, form_of
from mt.languages import written_without_spaces
from mt.tables import aligned

SEED = 1
"""Seed of the typos, together with the line number."""
JOINED = 4
"""Number of neighbouring lines that `long input` joins."""
UNTOUCHED = "untouched"
LONG = "long input"
COPIED = "copied text"

_LINE_CHANGES: dict[str, Callable[[str, Random], str]] = {
    "upper case": in_capitals,
    "lower case": lambda text, _: text.lower(),
    "no punctuation": without_punctuation,
    "no final mark": lambda text, _: without_final_mark(text),
    "typos": with_typos,
}
_REFERENCE_CHANGES: dict[str, Callable[[str], str]] = {
    "upper case": str.upper,
    "no final mark": without_final_mark,
}
"""Variants whose references are changed as the sources are."""


@dataclass(frozen=True, slots=True)
class Variant:
    """Test split in another form; line N of the references still answers line N."""

    name: str
    sources: tuple[str, ...]
    references: tuple[tuple[str, ...], ...]
    """One tuple for each reference set."""
    changed: int
    """Number of lines that differ from the unchanged split."""
    copied: tuple[str, ...] = ()
    """Text that was added to each line of `copied text`, on both sides."""


@dataclass(frozen=True, slots=True)
class LeftOut:
    """Variant that would test nothing."""

    name: str
    reason: str


@dataclass(frozen=True, slots=True)
class ScoredVariant:
    """Scores of a variant, and of the untouched text against the same references."""

    variant: Variant
    scores: Evaluation
    untouched: Evaluation
    """Scores of the translations of the untouched text, changed as the references are."""
    intact: float | None = None
    """For `copied text`, the share of the lines that have the added text unchanged."""

    def drops(self) -> tuple[float, float]:
        """Return how much lower BLEU and chrF2 are than for the untouched text."""
        return (
            self.untouched.bleu.value - self.scores.bleu.value,
            self.untouched.chrf.value - self.scores.chrf.value,
        )

    def as_record(self) -> dict[str, Any]:
        """Return scores, drops and line counts as plain data."""
        bleu, chrf = self.drops()
        return {
            "name": self.variant.name,
            "lines": len(self.variant.sources),
            "changed": self.variant.changed,
            "bleu": {**self.scores.bleu.as_record(), "drop": bleu},
            "chrf": {**self.scores.chrf.as_record(), "drop": chrf},
            "untouched_bleu": self.untouched.bleu.as_record(),
            "untouched_chrf": self.untouched.chrf.as_record(),
            **({} if self.intact is None else {"intact": self.intact}),
        }

    def cells(self) -> tuple[str, ...]:
        """Return the row of the card's table."""
        changed = self.variant.changed
        cells = [self.variant.name, f"{len(self.variant.sources):,}"]
        cells.append(f"{changed:,}" if changed else "-")
        for score, drop in zip(self.scores.scores(), self.drops(), strict=True):
            cells += [f"{score.value:.2f}", f"{drop:.2f}" if changed else "-"]
        return tuple(cells)


@dataclass(frozen=True, slots=True)
class RobustnessCard:
    """Scores of a split and of its variants."""

    split: str
    scored: tuple[ScoredVariant, ...]
    """The untouched text first."""
    left_out: tuple[LeftOut, ...]

    def as_text(self) -> str:
        """Return a table, the signatures and remarks."""
        head = ("source", "lines", "changed", "BLEU", "drop", "chrF2", "drop")
        table = aligned([head, *(each.cells() for each in self.scored)], right=range(1, 7))
        first = self.scored[0].scores
        signatures = aligned([(each.name, each.signature) for each in (first.bleu, first.chrf)])
        return "\n\n".join([table, signatures, "\n".join(self._remarks())])

    def as_json(self) -> str:
        """Return the card as indented JSON, with scores in full precision."""
        return json.dumps(self.as_record(), indent=2, ensure_ascii=False)

    def as_record(self) -> dict[str, Any]:
        """Return the card as plain data."""
        return {
            "split": self.split,
            "seed": SEED,
            "joined": JOINED,
            "variants": [each.as_record() for each in self.scored],
            "left_out": [asdict(each) for each in self.left_out],
        }

    def _remarks(self) -> Iterator[str]:
        yield "drop: how much lower than for the untouched text."
        yield f"{' and '.join(_REFERENCE_CHANGES)}: the references are changed as the sources are,"
        yield "and for the drop also the translations of the untouched text."
        for each in self.scored:
            if each.variant.name == LONG:
                bleu, chrf = each.untouched.bleu.value, each.untouched.chrf.value
                yield (
                    f"{LONG}: {JOINED} neighbouring lines joined, references too; translated line "
                    f"by line\nand then joined: BLEU {bleu:.2f}, chrF2 {chrf:.2f}."
                )
            if each.intact is not None:
                yield (
                    f"{COPIED}: a number, address, placeholder, emoji or run of marks added to\n"
                    f"both sides; {each.intact:.2%} of the translations have it unchanged."
                )
        for left_out in self.left_out:
            yield f"{left_out.name}: left out, {left_out.reason}."


def variants(
    sources: Sequence[str],
    references: Sequence[Sequence[str]],
    *,
    source_language: str,
    target_language: str,
) -> tuple[tuple[Variant, ...], tuple[LeftOut, ...]]:
    """Return the untouched split and its variants, and the variants that would test nothing.

    `references` has one list for each set. `long input` joins them as it joins the sources; other
    variants with changed references are named in the card.
    """
    variant = partial(variant_of, references=references, target_language=target_language)
    made, left_out = [variant(UNTOUCHED, sources)], []
    for name, change in _LINE_CHANGES.items():
        if name.endswith("case") and not _has_case(sources):
            left_out.append(LeftOut(name, "the script of the sources has no capital letters"))
            continue
        noisy = tuple(change(text, Random(f"{SEED} {n}")) for n, text in enumerate(sources, 1))
        changed = sum(one != other for one, other in zip(sources, noisy, strict=True))
        if changed:
            made.append(variant(name, noisy, changed=changed))
        else:
            left_out.append(LeftOut(name, "it changes no line"))
    if len(sources) > 1:
        long = joined(sources, source_language)
        made.append(variant(LONG, long, changed=len(long)))
    else:
        left_out.append(LeftOut(LONG, "there is only one line"))
    added = tuple(map(with_copied_text, sources, _copied_texts(len(sources))))
    made.append(variant(COPIED, added, changed=len(added)))
    return tuple(made), tuple(left_out)


def variant_of(
    name: str,
    sources: Sequence[str],
    *,
    references: Sequence[Sequence[str]],
    target_language: str,
    changed: int = 0,
) -> Variant:
    """Pair the sources of a variant with the references, changed as the variant asks for."""
    copied: tuple[str, ...] = ()
    if name == LONG:
        references = [joined(each, target_language) for each in references]
    elif name == COPIED:
        copied = _copied_texts(len(sources))
        references = [[*map(with_copied_text, each, copied)] for each in references]
    elif change := _REFERENCE_CHANGES.get(name):
        references = [[*map(change, each)] for each in references]
    return Variant(name, tuple(sources), tuple(map(tuple, references)), changed, copied)


def _copied_texts(count: int) -> tuple[str, ...]:
    """Return the text that `copied text` adds to each line."""
    return tuple(copied_text(Random(f"{SEED} {number}")) for number in range(1, count + 1))


def joined(lines: Sequence[str], language: str) -> tuple[str, ...]:
    """Join each `JOINED` neighbouring lines; the last line may have fewer.

    The separator is a space, or nothing for untokenised text in a language without spaces.
    """
    spaced = not written_without_spaces(language) or form_of(lines, language).is_tokenized
    starts = range(0, len(lines), JOINED)
    return tuple((" " if spaced else "").join(lines[at : at + JOINED]) for at in starts)


def score_variants(
    forms: Sequence[Variant],
    translations: Sequence[Sequence[str]],
    *,
    target_language: str,
    tokenizer: str,
    forced: str,
) -> tuple[ScoredVariant, ...]:
    """Score the translations of each variant; the first variant is the untouched text."""

    def score(made: Sequence[str], form: Variant) -> Evaluation:
        scores = evaluate(
            made, form.references, target_language=target_language, tokenizer=tokenizer
        )
        return scores.marked("forced", forced)

    untouched = score(translations[0], forms[0])
    scored = []
    for form, made in zip(forms, translations, strict=True):
        baseline = untouched
        if form.name == LONG:
            baseline = score(joined(translations[0], target_language), form)
        elif change := _REFERENCE_CHANGES.get(form.name):
            baseline = score([*map(change, translations[0])], form)
        arrived = [text in line for text, line in zip(form.copied, made, strict=False)]
        intact = sum(arrived) / len(arrived) if arrived else None
        scored.append(ScoredVariant(form, score(made, form), baseline, intact))
    return tuple(scored)


def _has_case(texts: Sequence[str]) -> bool:
    """Return True if at least half of the letters have an upper-case and a lower-case form."""
    letters = [letter for text in texts for letter in text if letter.isalpha()]
    return 2 * sum(letter.upper() != letter.lower() for letter in letters) >= max(len(letters), 1)
