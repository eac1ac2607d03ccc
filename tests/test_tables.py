"""Aligned columns and clipped text."""

import wcwidth
from hypothesis import given
from hypothesis import strategies as st

from mt.tables import align_columns, clip, make_printable


def test_columns_start_at_the_same_cell_whatever_the_script() -> None:
    table = align_columns([("name", "n", "x"), ("早上好", "10", "y"), ("é", "5", "")], right=[1])
    assert table.split("\n") == ["name     n  x", "早上好  10  y", "é        5"]


@given(st.text(alphabet="ab 早é\u0301👨‍👩‍👧한", max_size=40), st.integers(2, 12))
def test_clipping_keeps_to_the_width_and_to_the_text(text: str, width: int) -> None:
    clipped = clip(text, width)
    assert wcwidth.width(clipped) <= width
    assert text.startswith(clipped.removesuffix("…").rstrip(" "))
    assert (clipped == text) == (wcwidth.width(text) <= width)


def test_control_characters_never_reach_the_terminal() -> None:
    assert make_printable("a\x1b[31mb\tc\u2028d\x07") == "a\ufffd[31mb c d\ufffd"
