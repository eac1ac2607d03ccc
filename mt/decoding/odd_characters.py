"""Characters that cannot be translated as they stand: broken ones, and unknown ones."""

import re

from mt.data.tokenizer import Tokenizer
from mt.special_ids import UNK

UNREADABLE = "\N{REPLACEMENT CHARACTER}"

_SURROGATE = re.compile("[\ud800-\udfff]")
# Python's `surrogateescape` keeps bytes that are not UTF-8 as U+DC80 to U+DCFF.
_BYTE = re.compile("[\udc80-\udcff]")
_OTHER_SURROGATE = re.compile("[\ud800-\udc7f\udd00-\udfff]")
_MOST_NAMED = 10


def mend(line: str) -> tuple[str, tuple[str, ...]]:
    """Return a line as UTF-8 can hold it, and what to tell of it.

    Lone surrogates, and bytes that were not UTF-8 (as `surrogateescape` keeps them), become U+FFFD.
    """
    if _SURROGATE.search(line) is None:
        return line, ()
    notes = []
    if _OTHER_SURROGATE.search(line):
        line = _OTHER_SURROGATE.sub(UNREADABLE, line)
        notes.append("lone surrogates are read as U+FFFD")
    if _BYTE.search(line):
        # Bytes that begin a character together become one U+FFFD, as in any UTF-8 decoder.
        line = line.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
        notes.append("bytes that are not UTF-8 are read as U+FFFD")
    return line, tuple(notes)


def unknown_characters(line: str, tokenizer: Tokenizer) -> list[str]:
    """Return the characters of a line that the source vocabulary does not have, in their order."""
    characters = list(dict.fromkeys(line))
    encoded = tokenizer.encode_source(characters)
    return [character for character, ids in zip(characters, encoded, strict=True) if UNK in ids]


def named(characters: list[str]) -> str:
    """Return characters for a message: as they are where they can be seen, and their numbers."""
    names = [
        f"`{character}` (U+{ord(character):04X})"
        if character.isprintable() and not character.isspace()
        else f"U+{ord(character):04X}"
        for character in characters[:_MOST_NAMED]
    ]
    more = len(characters) - len(names)
    return ", ".join(names) + (f" and {more} more" if more else "")
