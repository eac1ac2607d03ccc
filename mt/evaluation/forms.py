"""Comparison of the form of two texts: differences that cost a score but are no worse translation.

Each line of a text has a class for each feature, such as "in capitals". A class whose share differs
much between two sides is a difference, and so are lines that match other lines of the references.
"""

import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import compress

import numpy as np
from numpy.typing import NDArray

from mt.data.filters import looks_tokenized
from mt.languages import variants_in

Sides = Sequence[Sequence[str]]
"""Translations, then each set of references, of equal length."""
_LEAST_LINES, _LEAST_SHARE = 3, 0.4
"""Lines of a class, and difference between the shares of a class."""
_LEAST_OTHER = 0.05
"""Share of lines in other characters than their references."""
_LEAST_SHIFTED, _LEAST_GAIN, _LEAST_CERTAINTY = 5, 0.05, 6.0
"""Lines of a shift, their mean gain in similarity, and what is above it in standard errors."""


@dataclass(frozen=True, slots=True)
class Difference:
    """Difference in form between translations and references."""

    feature: str
    text: str
    """Clause with the names and the counts of both sides."""
    equalize: Callable[[Sides], Sides]
    """Removes the difference from all sides."""


def is_tokenized(lines: Sequence[str], language: str) -> bool:
    """Return True if a quarter of the different lines look tokenised, and more than one."""
    distinct = [line for line in dict.fromkeys(lines) if line.strip()]
    count = sum(looks_tokenized(line, language) for line in distinct)
    return count > 1 and count >= len(distinct) / 4


def find_differences(names: Sequence[str], texts: Sides, language: str) -> Iterator[Difference]:
    """Yield the differences in form between the two `texts`, translations and references."""
    yield from _find_shift(names, *texts)
    distinct = [[line for line in dict.fromkeys(text) if line.strip()] for text in texts]
    for feature, classify, describe, equalize in _FEATURES:
        classes = [Counter(classify(line, language) for line in lines) for lines in distinct]
        totals = [counts.total() - counts.pop(None, 0) for counts in classes]
        if min(totals) < _LEAST_LINES:
            continue
        shares = {
            (
                classes[side][key] / totals[side] - classes[1 - side][key] / totals[1 - side],
                key,
                side,
            )
            for side in (0, 1)
            for key in classes[side]
            if key and classes[side][key] >= _LEAST_LINES
        }
        share, key, side = max(shares, default=(0.0, "", 0))
        if share >= _LEAST_SHARE:
            yield Difference(
                feature if key != "lower" else "lowercased",
                f"{names[side]}: {classes[side][key]} of {totals[side]} lines {describe(key)}, of "
                f"{names[1 - side]} {classes[1 - side][key]} of {totals[1 - side]}",
                partial(_change_lines, equalize, key),
            )
    variants = [[variants_in(line, language) for line in text] for text in texts]
    pairs = [one == right or not (one and right) for one, right in zip(*variants, strict=False)]
    if pairs.count(False) >= max(_LEAST_LINES, _LEAST_OTHER * len(pairs)):
        written = Counter(variant for line in variants[0] for variant in line).most_common()
        yield Difference(
            "script",
            f"{names[0]}: {pairs.count(False)} of {len(pairs)} lines are in other characters than "
            f"those of {names[1]} ({', '.join(f'{count} {name}' for name, count in written)})",
            lambda sides: [[*compress(lines, pairs)] for lines in sides],
        )


def _change_lines(change: Callable[[str, str], str], key: str, sides: Sides) -> Sides:
    return [[change(line, key) for line in lines] for lines in sides]


def _find_shift(
    names: Sequence[str], hypotheses: Sequence[str], references: Sequence[str]
) -> Iterator[Difference]:
    """Yield a difference if lines in a row match references before or after their own.

    For each distance, these are the lines in a row with the largest gain in similarity over their
    own references (Dice coefficient of character trigrams), if the gain is certain.
    """
    size = min(len(hypotheses), len(references))
    left, right = (
        [{text[n : n + 3] for n in range(len(text) - 2)} for text in map(str.lower, side[:size])]
        for side in (hypotheses, references)
    )

    def measure(distance: int) -> NDArray[np.float64]:
        """Return the similarity of each line to that reference, 0 past the ends."""
        similarities = np.zeros(size)
        for n in range(max(0, -distance), min(size, size - distance)):
            one, other = left[n], right[n + distance]
            similarities[n] = 2 * len(one & other) / max(1, len(one) + len(other))
        return similarities

    unshifted, shifts = measure(0), []
    for distance in (-3, -2, -1, 1, 2, 3):
        gains = measure(distance) - unshifted - _LEAST_GAIN
        sums = np.concatenate(([0.0], gains.cumsum()))
        stop = int((sums - np.minimum.accumulate(sums)).argmax())
        start = int(sums[: stop + 1].argmin())
        part = gains[start:stop]
        if len(part) >= _LEAST_SHIFTED and part.mean() >= _LEAST_CERTAINTY * max(
            float(part.std()), 0.01
        ) / np.sqrt(len(part)):
            shifts.append((float(part.sum()), distance, start, stop))
    if not shifts:
        return
    order = [*range(size)]
    for _, distance, start, stop in sorted(shifts):  # the surest last
        order[start:stop] = [min(max(0, n + distance), size - 1) for n in range(start, stop)]
    _, distance, start, stop = max(shifts)
    yield Difference(
        "shifted",
        f"{names[0]}: lines {start + 1} to {stop} match line N{distance:+d} of {names[1]}, as if a "
        "line were lost or added",
        lambda sides: [sides[0], *([lines[n] for n in order] for lines in sides[1:])],
    )


def _case_of(line: str, _: str) -> str | None:
    forms = {"upper": line.upper(), "lower": line.lower(), "title": line.title()}
    if forms["upper"] == forms["lower"]:
        return None
    return next((name for name, form in forms.items() if form == line), "")


def _character_at(end: int, line: str, _: str) -> str:
    """Return the first or last character, 0 for a digit and "" for a letter."""
    character = re.sub(r"\d", "0", line.strip()[end])
    return "" if unicodedata.category(character)[0] in "LM" else character


_MARK = r"<[^<>]*>|[\W\d_]"
"""Tag, or a character that is no letter."""
Feature = tuple[
    str, Callable[[str, str], str | None], Callable[[str], str], Callable[[str, str], str]
]
_FEATURES: tuple[Feature, ...] = (
    (
        "tokenized",
        lambda line, language: "x" if looks_tokenized(line, language) else "",
        lambda _: "look tokenised",
        lambda line, _: re.sub(r"\s*([^\w\s])\s*", r"\1", line),
    ),
    (
        "case",
        _case_of,
        {
            "upper": "are in capitals",
            "lower": "are in lower case",
            "title": "have a capital on every word",
        }.__getitem__,
        lambda line, _: line.lower(),
    ),
    (
        "normal form",
        lambda line, _: "" if unicodedata.is_normalized("NFC", line) else "x",
        lambda _: "have decomposed letters (not NFC)",
        lambda line, _: unicodedata.normalize("NFC", line),
    ),
    (
        "length",
        lambda line, _: str(len(line.strip())),
        lambda length: f"have exactly {length} characters, as if cut",
        lambda line, length: line.strip()[: int(length)],
    ),
    *(
        (
            name,
            partial(_character_at, end),
            f"{name} with `{{}}`".format,
            lambda line, _, edge=edge: re.sub(edge, "", line.strip()),
        )
        for name, end, edge in (("begin", 0, rf"^({_MARK})+"), ("end", -1, rf"({_MARK})+$"))
    ),
)
"""Features: name; class of a line in a language, None if it is not judged; the class in words; and
its removal from a line."""
