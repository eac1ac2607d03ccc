"""Target prefixes: text that the translation of a line has to begin with."""

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence, Sized
from dataclasses import dataclass
from itertools import repeat, zip_longest

from mt.data.tokenizer import Tokenizer
from mt.decoding.odd_characters import mend, named
from mt.errors import UserError
from mt.special_ids import UNK


@dataclass(frozen=True, slots=True)
class Prefix:
    """What the translation of a line has to begin with."""

    ids: tuple[int, ...] = ()
    """Its pieces; none: nothing is forced."""
    notes: tuple[str, ...] = ()
    """What a user should know of how it was read."""


NO_PREFIX = Prefix()


def with_prefixes(
    lines: Iterable[str], prefixes: Iterable[str] | None
) -> Iterator[tuple[str, str]]:
    """Pair each line with its prefix, an empty one where there are none.

    Raises UserError where there are more of one than of the other: at once where both can be
    counted, else when one of them ends.
    """
    if prefixes is None:
        return zip(lines, repeat(""), strict=False)
    if isinstance(lines, Sized) and isinstance(prefixes, Sized) and len(lines) != len(prefixes):
        raise UserError(f"{len(lines)} lines, but {len(prefixes)} prefixes: {_ONE_EACH}")
    return _paired(lines, prefixes)


def encode_prefixes(texts: Sequence[str], tokenizer: Tokenizer) -> list[Prefix]:
    """Return the target pieces of each prefix.

    A prefix is encoded as a text of its own. White space at its end is left out: the piece that
    begins the next word brings the space before it. A character that the tokenizer does not know
    cannot be generated, so a prefix ends before it.
    """
    if not any(texts):
        return [NO_PREFIX] * len(texts)
    mended = [mend(text) for text in texts]
    encoded = tokenizer.encode_target([text.rstrip() for text, _ in mended])
    return [
        _prefix(text, ids, notes, tokenizer=tokenizer)
        for (text, notes), ids in zip(mended, encoded, strict=True)
    ]


def _prefix(
    text: str, ids: Sequence[int], notes: tuple[str, ...], *, tokenizer: Tokenizer
) -> Prefix:
    notes = tuple(f"prefix: {note}" for note in notes)
    if UNK in ids:
        known = tokenizer.decode_target(ids[: ids.index(UNK)])
        unknown = _first_unknown(text.rstrip(), tokenizer)
        notes += (f"prefix: ends before {named([unknown])}, unknown to the tokenizer",)
        [ids] = tokenizer.encode_target([known.rstrip()])
    return Prefix(tuple(ids[:-1]), notes)


def _first_unknown(text: str, tokenizer: Tokenizer) -> str:
    """Return the character of `text` with which it becomes unknown to the target vocabulary.

    Its place cannot be counted in what is known: `tokenizer.normalization` may change the length.
    """

    def is_unknown(end: int) -> bool:
        return UNK in tokenizer.encode_target([text[:end]])[0]

    return text[bisect_left(range(1, len(text)), True, key=is_unknown)]


def _paired(lines: Iterable[str], prefixes: Iterable[str]) -> Iterator[tuple[str, str]]:
    for number, (line, prefix) in enumerate(zip_longest(lines, prefixes)):
        if line is None:
            raise UserError(f"{number} lines, but at least {number + 1} prefixes: {_ONE_EACH}")
        if prefix is None:
            raise UserError(f"at least {number + 1} lines, but {number} prefixes: {_ONE_EACH}")
        yield line, prefix


_ONE_EACH = "each line has one, which may be empty"
