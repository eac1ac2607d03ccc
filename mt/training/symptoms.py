"""What the translations of validation pairs look like: signs of a model that has gone wrong."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from mt.data.pairs import SentencePair
from mt.decoding.repetition import repeats_itself
from mt.decoding.translation import Translation
from mt.languages import written_without_spaces

LENGTH_GROUPS = 4
FEWEST_IN_GROUP = 20
"""BLEU of fewer sentences says nothing."""


@dataclass(frozen=True, slots=True)
class Symptoms:
    """Shares are of all translations, from 0 to 1; each beside that of the references."""

    length_ratio: float
    """Characters of the translations for one of the references."""
    copied: float
    """Are their source, where the reference is not."""
    repeated: float
    """Fell into a loop, as `mt.decoding.repetition` tells it."""
    same_beginning: float
    """Begin with the word that most of them begin with; a character where no spaces are written."""
    same_beginning_of_references: float
    bleu_by_length: tuple[float, ...]
    """BLEU of quarters of the pairs, those of the shortest sources first; none of few pairs."""

    def as_text(self) -> str:
        """Return one clause."""
        shares = {
            "copied": self.copied,
            "repeated": self.repeated,
            "same first word": self.same_beginning,
        }
        told = ", ".join(f"{name} {share:.0%}" for name, share in shares.items())
        by_length = " ".join(f"{bleu:.1f}" for bleu in self.bleu_by_length)
        of_references = f" (references {self.same_beginning_of_references:.0%})"
        return (
            f"length ratio {self.length_ratio:.2f}, {told}{of_references}"
            f"{f', BLEU by length {by_length}' if by_length else ''}"
        )


def find_symptoms(
    pairs: Sequence[SentencePair],
    translations: Sequence[Translation],
    *,
    target_language: str,
    bleu: Callable[[Sequence[str], Sequence[str]], float],
) -> Symptoms:
    """Look at the translations of the pairs' sources; `bleu` scores texts against references."""
    texts = [each.text for each in translations]
    references = [pair.target for pair in pairs]
    unspaced = written_without_spaces(target_language)
    return Symptoms(
        length_ratio=sum(map(len, texts)) / max(1, sum(map(len, references))),
        copied=_share(map(_is_copied, pairs, texts)),
        repeated=_share(map(_is_repeated, translations)),
        same_beginning=_same_beginning(texts, unspaced=unspaced),
        same_beginning_of_references=_same_beginning(references, unspaced=unspaced),
        bleu_by_length=_by_length(pairs, texts, bleu),
    )


def _share(found: "map[bool]") -> float:
    each = [*found]
    return sum(each) / max(1, len(each))


def _is_copied(pair: SentencePair, text: str) -> bool:
    source = pair.source.strip()
    return text.strip() == source != pair.target.strip() and any(map(str.isalpha, source))


def _is_repeated(translation: Translation) -> bool:
    if not translation.alternatives:
        return False
    return any(
        repeats_itself(part.hypothesis.ids, part.source[:-1], finished=part.hypothesis.finished)
        for part in translation.alternatives[0].parts
    )


def _same_beginning(texts: Sequence[str], *, unspaced: bool) -> float:
    """Return the share of the most frequent first word; blank texts have none."""
    firsts = Counter(
        text.strip()[0] if unspaced else text.split()[0] for text in texts if text.strip()
    )
    return max(firsts.values(), default=0) / max(1, len(texts))


def _by_length(
    pairs: Sequence[SentencePair],
    texts: Sequence[str],
    bleu: Callable[[Sequence[str], Sequence[str]], float],
) -> tuple[float, ...]:
    if len(pairs) < LENGTH_GROUPS * FEWEST_IN_GROUP:
        return ()
    order = sorted(range(len(pairs)), key=lambda number: len(pairs[number].source))
    edges = [len(pairs) * group // LENGTH_GROUPS for group in range(LENGTH_GROUPS + 1)]
    groups = [order[start:end] for start, end in pairwise(edges)]
    return tuple(
        bleu([texts[number] for number in group], [pairs[number].target for number in group])
        for group in groups
    )
