"""Test splits whose sources are changed on purpose, always in the same way."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random

from mt.data.source_noise import in_capitals, with_typos, without_punctuation
from mt.evaluation.forms import form_of
from mt.languages import written_without_spaces

SEED = 1
"""Together with the number of its line, decides the typos of a source."""
JOINED = 4
"""So many neighbouring lines make one long one."""
UNTOUCHED = "untouched"
LONG = "long input"


@dataclass(frozen=True, slots=True)
class Variant:
    """A test split in another form, line N of one side still the translation of line N."""

    name: str
    sources: tuple[str, ...]
    references: tuple[tuple[str, ...], ...]
    """A tuple for each set."""
    changed: int
    """Lines that are not as they were."""


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A variant that would test nothing, and why."""

    name: str
    reason: str


def _in_small_letters(text: str, _random: Random) -> str:
    return text.lower()


_LINE_CHANGES: dict[str, Callable[[str, Random], str]] = {
    "upper case": in_capitals,
    "lower case": _in_small_letters,
    "no punctuation": without_punctuation,
    "typos": with_typos,
}
"""What is done to each source by itself; `mt.data.source_noise` does it in training."""
_CASES = frozenset({"upper case", "lower case"})


def variants(
    sources: Sequence[str],
    references: Sequence[Sequence[str]],
    *,
    source_language: str,
    target_language: str,
) -> tuple[tuple[Variant, ...], tuple[LeftOut, ...]]:
    """Return the split as it is, its variants, and those that would test nothing.

    `references` holds one list for each set. Sources alone are changed, but in `long input`, where
    the references of the lines that are joined are joined too.
    """
    right = tuple(map(tuple, references))
    made, left_out = [Variant(UNTOUCHED, tuple(sources), right, changed=0)], []
    for name, change in _LINE_CHANGES.items():
        if name in _CASES and not _has_case(sources):
            left_out.append(LeftOut(name, "the script of the sources has no capital letters"))
            continue
        noisy = tuple(change(text, Random(f"{SEED} {n}")) for n, text in enumerate(sources, 1))
        changed = sum(one != other for one, other in zip(sources, noisy, strict=True))
        if changed:
            made.append(Variant(name, noisy, right, changed))
        else:
            left_out.append(LeftOut(name, "it changes no line"))
    if len(sources) > 1:
        long = joined(sources, source_language)
        right = tuple(joined(lines, target_language) for lines in references)
        made.append(Variant(LONG, long, right, changed=len(long)))
    else:
        left_out.append(LeftOut(LONG, "there is one line alone"))
    return tuple(made), tuple(left_out)


def joined(lines: Sequence[str], language: str) -> tuple[str, ...]:
    """Return each `JOINED` neighbouring lines as one; the last one may be made of fewer.

    A space stands between them where the language, or a tokenised text, has spaces between words.
    """
    spaced = not written_without_spaces(language) or form_of(lines, language).is_tokenized
    starts = range(0, len(lines), JOINED)
    return tuple((" " if spaced else "").join(lines[at : at + JOINED]) for at in starts)


def _has_case(texts: Sequence[str]) -> bool:
    """Say whether at least half of the letters can be capital or small."""
    letters = [letter for text in texts for letter in text if letter.isalpha()]
    return 2 * sum(letter.upper() != letter.lower() for letter in letters) >= max(len(letters), 1)
