"""What the tokenizer doctor found, as it is written and shown."""

from dataclasses import dataclass

FREQUENT = 100
"""Examples of a piece in the training text that a model needs to learn it well."""
FREQUENT_SHARE = 0.95
"""Share of the pieces that should be frequent.

Gowda and May 2020, "Finding the Optimal Vocabulary Size for Neural Machine Translation": the
largest vocabulary of which 95 % have 100 examples or more is near the best.
"""


@dataclass(frozen=True, slots=True)
class CharacterLoss:
    """A character that encoding and decoding takes away or turns into another."""

    character: str
    count: int
    """How many of the sampled text are gone."""
    becomes: str
    """What is left of it where it stands alone."""
    never_written: bool
    """Whether none is left: a model that learns from these pieces can never write it."""


@dataclass(frozen=True, slots=True)
class SideReport:
    """One side of the training text in pieces; the end mark is not counted."""

    side: str
    language: str
    lines: int
    characters: int
    words: int | None
    """By spaces; None for a language that is written without."""
    pieces: int
    unknown_pieces: int
    """How many of `pieces` are the unknown one."""
    byte_pieces: int
    """How many of `pieces` are bytes, of characters without a piece of their own."""
    changed_lines: int
    """Lines that are another text after encoding and decoding."""
    losses: tuple[CharacterLoss, ...]
    """The most frequent first."""

    @property
    def pieces_per_character(self) -> float:
        """How finely the text is cut."""
        return self.pieces / max(1, self.characters)

    @property
    def pieces_per_word(self) -> float | None:
        """How finely words are cut (fertility); None where there are no spaces."""
        return None if self.words is None else self.pieces / max(1, self.words)


@dataclass(frozen=True, slots=True)
class VocabularyReport:
    """How the training text uses one vocabulary; special and byte pieces are no text pieces."""

    name: str
    """`joint`, `source` or `target`."""
    algorithm: str
    size: int
    text_pieces: int
    unused: tuple[str, ...]
    """Text pieces that the sampled text never uses, the most frequent when trained first."""
    rare: int
    """Text pieces that the whole text has fewer than `FREQUENT` times, by the sample."""
    advised_size: int | None
    """A `tokenizer.vocabulary_size` that fits the text better; None where this one does."""


@dataclass(frozen=True, slots=True)
class Ceiling:
    """What a perfect model could reach on a split: its references, encoded and decoded."""

    split: str
    lines: int
    changed_lines: int
    bleu: float
    signature: str


@dataclass(frozen=True, slots=True)
class TokenizerReport:
    """Everything that can be told of a tokenizer and the corpora of a config."""

    fingerprint: str
    pairs: int
    """Training pairs, cleaned as the config says."""
    sampled_pairs: int
    """How many of them were encoded."""
    source: SideReport
    target: SideReport
    vocabularies: tuple[VocabularyReport, ...]
    ceilings: tuple[Ceiling, ...]
