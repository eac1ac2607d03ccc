import random

import pytest

from mt.decoding.text import longest_repetition, repeats_itself

SOURCE = list(range(100, 110))


def by_trying_everything(tokens: list[int]) -> int:
    """Every stretch, every period: the longest that is four copies of its beginning or more."""
    return max(
        (
            end - start
            for start in range(len(tokens))
            for end in range(start + 1, len(tokens) + 1)
            for period in range(1, (end - start) // 4 + 1)
            if all(tokens[i] == tokens[i - period] for i in range(start + period, end))
        ),
        default=0,
    )


def test_the_longest_repetition_is_that_of_trying_everything() -> None:
    dice = random.Random(1)
    found = set()
    for _ in range(400):
        tokens = [dice.randrange(2) for _ in range(dice.randrange(18))]
        tokens += tokens[-3:] * dice.randrange(4)
        found.add(longest_repetition(tokens))
        assert longest_repetition(tokens) == by_trying_everything(tokens)
    assert len(found) > 8


@pytest.mark.parametrize(
    ("translation", "finished", "loops"),
    [
        ([1, 2, 3, *[7] * 7], True, False),
        ([1, 2, 3, *[7] * 8], True, True),
        ([1, *[7, 8] * 4, 2], True, True),
        ([1, *[7, 8, 9] * 3, 2], True, False),
        ([1, 2, 3, 1, 2, 3, 4, 1, 2, 3, 5, 3, 1], True, False),
        # Neither is in a row; what was cut off needs less.
        ([1, 2, 3, 1, 2, 3, 2, 1, 2, 3, 1, 3, 1], True, False),
        ([1, 2, 3, 1, 2, 3, 2, 1, 2, 3, 1, 3, 1], False, True),
        (list(range(60)), False, False),
        ([], False, False),
    ],
)
def test_what_a_loop_is(translation: list[int], finished: bool, loops: bool) -> None:
    assert repeats_itself(translation, SOURCE, finished=finished) is loops


def test_a_source_that_repeats_itself_is_an_excuse() -> None:
    laughing = [5, *[6, 7] * 4]
    assert not repeats_itself([1, *[2, 3] * 8], laughing)
    assert repeats_itself([1, *[2, 3] * 9], laughing)
    assert not repeats_itself([1, 2, 1, 3] * 3, [5, 6, 6, 6, 5, 6, 5, 5], finished=False)
