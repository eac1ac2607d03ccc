import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from mt.data.store import Rows, concatenate

some_rows = st.lists(st.lists(st.integers(0, 99), max_size=5), max_size=8)


def listed(rows: Rows) -> list[list[int]]:
    return [rows[number].tolist() for number in range(len(rows))]


@given(some_rows)
def test_rows_are_the_lists_that_they_were(lists: list[list[int]]) -> None:
    rows = Rows.of(lists)
    assert listed(rows) == lists
    assert len(rows) == len(lists)
    assert rows.lengths.tolist() == [len(row) for row in lists]
    assert rows.values.dtype == np.int32


@given(some_rows)
def test_rows_can_be_taken_in_any_order_and_more_than_once(
    lists: list[list[int]],
) -> None:
    wanted = [number for number in (3, 0, 3, 1, 7) if number < len(lists)]
    taken = Rows.of(lists).take(np.array(wanted, np.int64))
    assert listed(taken) == [lists[number] for number in wanted]
    assert taken.values.dtype == np.int32


@given(st.lists(some_rows, max_size=3))
def test_concatenated_rows_follow_each_other(parts: list[list[list[int]]]) -> None:
    joined = concatenate([Rows.of(part) for part in parts])
    assert listed(joined) == [row for part in parts for row in part]
    assert joined.values.dtype == np.int32
