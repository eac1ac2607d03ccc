"""Which training pairs are changed or taken out before anything is learnt from them."""

from typing import Annotated, Literal

from pydantic import Field

from mt.config.base import Section

Share = Annotated[float, Field(ge=0.0, le=1.0)]


class CleaningConfig(Section):
    """What is done to the training pairs, in this order; validation and test stay as they are.

    First both texts are changed, then each pair is taken out by the first filter that objects; the
    sources of those that stay get noise.
    """

    strip_control: bool = False
    """Drop control characters but tab; one that ends a line, as U+2028 or U+0085, gives a space."""
    normalize_spaces: bool = False
    """Make white space of every kind and length one space, and drop it at both ends."""

    empty_sides: bool = False
    """Take out pairs with a side of nothing but white space; training leaves them out anyway."""
    identical_sides: bool = False
    """Take out pairs whose two sides are the same text, if it has letters."""
    min_characters: Annotated[int, Field(ge=1)] | None = None
    """Take out pairs with fewer characters than this on a side, white space around it aside."""
    max_characters: Annotated[int, Field(ge=1)] | None = None
    """Take out pairs with more characters than this on a side, white space around it aside."""
    max_length_ratio: Annotated[float, Field(ge=1)] | None = None
    """Take out pairs with a longer quotient of lengths, in letters; 2.5 takes the grossest ones."""
    wrong_script: bool = False
    """Take out pairs with less than 30% of a side's letters in the script of its language."""
    mojibake: bool = False
    """Take out pairs with U+FFFD, or with UTF-8 that was once read as Latin-1 or Windows-1252."""
    pieces: bool = False
    """Take out pairs with marks of subwords: `▁`, `@@`, `##`."""
    tokenized: bool = False
    """Take out pairs that were cut into words for a machine: `&apos;`, spaces before points."""
    control_characters: bool = False
    """Take out pairs with NUL, another control character but tab, U+2028 or U+2029."""
    markup: bool = False
    """Take out pairs with tags or character references of HTML or XML."""
    numbers: bool = False
    """Take out pairs where each side has a number in digits that the other has not."""
    language: bool = False
    """Take out pairs with a side surely in another language; needs the extra `langid`."""
    overlap: Literal["exact", "normalized"] | None = None
    """Take out pairs with a side that also stands in `valid` or a test split, on that side."""
    duplicates: Literal["pair", "source", "target"] | None = None
    """Take out all but the first of the pairs that are the same, or have this side in common."""

    noise_case: Share = 0.0
    """Put this share of the sources, from 0 to 1, into capital letters."""
    noise_punctuation: Share = 0.0
    """Take the punctuation out of this share of the sources."""
    noise_typos: Share = 0.0
    """Put typos into a word or more of this share of the sources."""
    noise_seed: Annotated[int, Field(ge=0)] = 1
    """Together with the number of its line, decides which noise a source gets."""
