"""Telling a translation that repeats itself: a search can fall into a loop and not come out."""

from collections.abc import Sequence

BLOCKED_NGRAM = 3
"""What has looped is decoded again with no sequence of so many pieces coming twice."""

_COPIES = 4
_FEWEST_PIECES = 8
_LONGEST_PERIOD = 50
_DISTINCT_SHARE = 1 / 3


def repeats_itself(
    translation: Sequence[int], source: Sequence[int], *, finished: bool = True
) -> bool:
    """Say whether a translation, in pieces, is a loop of the search.

    It is where a sequence of pieces comes at least four times in a row, over at least eight pieces,
    or where the length limit cut it off (it is not `finished`) and two of three pieces are
    repetitions of others. A source that repeats itself half as much excuses both.
    """
    repetition = longest_repetition(translation)
    if repetition >= _FEWEST_PIECES and repetition > 2 * longest_repetition(source):
        return True
    if finished or len(translation) < _FEWEST_PIECES:
        return False
    share = _distinct_share(translation)
    return share < _DISTINCT_SHARE and 2 * share < _distinct_share(source)


def longest_repetition(pieces: Sequence[int]) -> int:
    """Return over how many pieces one sequence comes again and again, four times at least.

    A last copy that is not complete counts with what there is of it; 0 where nothing does so.
    """
    if len(pieces) - len(set(pieces)) < _COPIES - 1:
        return 0
    longest = 0
    for period in range(1, min(len(pieces) // _COPIES, _LONGEST_PERIOD) + 1):
        equal = 0
        for piece, earlier in zip(pieces[period:], pieces, strict=False):
            equal = equal + 1 if piece == earlier else 0
            if equal >= (_COPIES - 1) * period:
                longest = max(longest, equal + period)
    return longest


def _distinct_share(pieces: Sequence[int]) -> float:
    return len(set(pieces)) / max(1, len(pieces))
