"""Aligned columns and wrapped text."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mt.tables import align_columns, make_printable, measure_width, wrap


def test_width_is_counted_in_terminal_cells() -> None:
    widths = {"": 0, "abc": 3, "早上好。": 8, "한국어": 6, "é": 1}
    widths |= {"ﾊﾛｰ": 3, "Ａ": 2}  # half-width and full-width
    widths |= {"e\u0301": 1, "a\u200bb": 2}  # combining and zero-width characters
    assert {text: measure_width(text) for text in widths} == widths


def test_columns_start_at_the_same_cell_whatever_the_script() -> None:
    table = align_columns([("name", "n", "x"), ("早上好", "10", "y"), ("é", "5", "")], right=[1])
    assert table.split("\n") == ["name     n  x", "早上好  10  y", "é        5"]


@pytest.mark.parametrize(
    ("text", "width", "lines"),
    [
        ("", 4, [""]),
        ("one two", 7, ["one two"]),
        ("one two three", 8, ["one two", "three"]),
        ("one two", 3, ["one", "two"]),
        ("abcdefgh", 3, ["abc", "def", "gh"]),
        ("今天天气很好", 5, ["今天", "天气", "很好"]),
        ("a   b", 2, ["a", "b"]),
        ("a bc def", 4, ["a bc", "def"]),
        ("abc de ", 4, ["abc", "de "]),
    ],
)
def test_long_text_is_cut_at_a_space_or_else_anywhere(
    text: str, width: int, lines: list[str]
) -> None:
    assert wrap(text, width) == lines


@given(st.text(alphabet="ab 早é\u0301", max_size=40), st.integers(2, 12))
def test_wrapping_loses_nothing_but_spaces_and_keeps_to_the_width(text: str, width: int) -> None:
    lines = wrap(text, width)
    assert "".join(lines).replace(" ", "") == text.replace(" ", "")
    assert all(measure_width(line) <= width for line in lines)


def test_control_characters_never_reach_the_terminal() -> None:
    assert make_printable("a\x1b[31mb\tc\u2028d\x07") == "a\ufffd[31mb c d\ufffd"
