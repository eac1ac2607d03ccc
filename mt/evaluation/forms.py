"""In which form a text is: plain, tokenised, lower-cased, or cut into pieces."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from mt.data.pair_checks import holds_pieces, looks_tokenized

_MANY = 0.25
"""Of the lines of tokenised text many more look so, of plain text hardly any."""
_FEW = 0.1
_PIECES = 0.01
_LETTERS = 100
"""Plain text of so many letters has a capital, if its script has any."""
_EXPECTED = 3
"""So many capitals do not stay away by chance."""
_KEPT = 0.05


@dataclass(frozen=True, slots=True)
class Form:
    """What was counted in a text; a line that repeats counts once, since it tells nothing new."""

    lines: int
    pieces: int
    """Lines that hold the marks of subwords."""
    tokenized: int
    """Lines that look cut into words for a machine."""
    upper: int
    """Upper-case letters."""
    lower: int

    @property
    def in_pieces(self) -> bool:
        """Whether the text is cut into subwords."""
        return self.pieces > _PIECES * self.lines

    @property
    def is_tokenized(self) -> bool:
        """Whether the text is tokenised; a single line is no proof."""
        return self.tokenized > 1 and self.tokenized >= _MANY * self.lines

    @property
    def is_untokenized(self) -> bool:
        """Whether the text is surely not tokenised."""
        return self.lines > 0 and self.tokenized <= _FEW * self.lines

    @property
    def is_lowercased(self) -> bool:
        """Whether a text of some length has no capital."""
        return self.upper == 0 and self.lower >= _LETTERS

    def is_lowercased_beside(self, other: "Form") -> bool:
        """Say whether the capitals are missing that a text like `other` would have here."""
        letters = self.upper + self.lower
        expected = letters * other.upper / max(other.upper + other.lower, 1)
        return expected >= _EXPECTED and self.upper <= _KEPT * expected


def form_of(lines: Iterable[str], language: str) -> Form:
    """Return in which form the lines are; `language` is a code, such as `zh`."""
    distinct = [line for line in dict.fromkeys(lines) if line.strip()]
    return Form(
        lines=len(distinct),
        pieces=sum(map(holds_pieces, distinct)),
        tokenized=sum(looks_tokenized(line, language) for line in distinct),
        upper=sum(sum(map(str.isupper, line)) for line in distinct),
        lower=sum(sum(map(str.islower, line)) for line in distinct),
    )


def label(references: Sequence[Sequence[str]], language: str) -> str:
    """Return what a score against such references has to be called, "" for plain text.

    `tokenised`, `lower-cased`, or both with a comma: such a score compares with no score of plain
    text. The references set the protocol, so they alone are asked.
    """
    forms = [form_of(lines, language) for lines in references]
    labels = []
    if all(form.is_tokenized for form in forms):
        labels.append("tokenised")
    if all(form.is_lowercased for form in forms):
        labels.append("lower-cased")
    return ",".join(labels)
