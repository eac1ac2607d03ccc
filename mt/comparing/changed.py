"""The sentences that one system translates much better than another, and where the two differ."""

import difflib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from mt.comparing.counts import AllCounts
from mt.comparing.systems import EvaluationSet, System
from mt.languages import written_without_spaces


@dataclass(frozen=True, slots=True)
class Changed:
    """A sentence, and what the baseline and another system made of it."""

    system: int
    """The other one's place among the systems; the baseline is 0."""
    line: int
    """From 1."""
    source: str
    """Empty where no sources are known."""
    references: tuple[str, ...]
    baseline: str
    translation: str
    """The other system's."""
    chrf: tuple[float, float]
    """Of the baseline and of the other system, of this sentence alone."""

    @property
    def gain(self) -> float:
        """By how much the other one is better."""
        return self.chrf[1] - self.chrf[0]


def changed_most(
    common: EvaluationSet, systems: Sequence[System], counts: AllCounts, *, most: int
) -> list[Changed]:
    """Return for each system up to `most` sentences that gain most, then those that lose most."""
    found = []
    baseline = [counts.chrf[0].score([number]) for number in range(len(common.references[0]))]
    for place in range(1, len(systems)):
        scores = [counts.chrf[place].score([number]) for number in range(len(baseline))]
        gains = [other - own for own, other in zip(baseline, scores, strict=True)]
        by_gain = sorted(range(len(gains)), key=lambda number: -gains[number])
        up = [number for number in by_gain[:most] if gains[number] > 0]
        down = [number for number in by_gain[::-1][:most] if gains[number] < 0]
        found += [
            Changed(
                place,
                number + 1,
                source=common.sources[number] if common.sources else "",
                references=tuple(lines[number] for lines in common.references),
                baseline=systems[0].translations[number],
                translation=systems[place].translations[number],
                chrf=(baseline[number], scores[number]),
            )
            for number in [*up, *down]
        ]
    return found


def differing_parts(text: str, other: str, *, language: str) -> Iterator[tuple[str, bool]]:
    """Yield `text` in parts, and whether a part is not in `other`; words, or characters of zh."""
    cut = r"\s+|\w|[^\w\s]" if written_without_spaces(language) else r"\s+|\w+|[^\w\s]"
    words, its = re.findall(cut, text), re.findall(cut, other)
    matcher = difflib.SequenceMatcher(None, words, its, autojunk=False)
    for kind, start, end, _, _ in matcher.get_opcodes():
        if start < end:
            yield "".join(words[start:end]), kind != "equal"
