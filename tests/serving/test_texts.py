"""Texts of several lines."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mt.decoding.translator import Status, Translation
from mt.serving.app import notes_of, read_text, status_of


def line(source: str, status: Status, *notes: str) -> Translation:
    return Translation(1, source, "", status, 0.0, notes)


@given(st.lists(st.sampled_from(["a", " ", "\r", "\n", "\r\n", "\u2028", "\ud800"])))
def test_the_line_ends_come_back_as_they_were(parts: list[str]) -> None:
    text = read_text("".join(parts))
    assert text.join(text.lines) == "".join(parts)
    assert not any(end in each for each in text.lines for end in "\r\n")


def test_lines_are_cut_where_the_translator_would_join_them() -> None:
    text = read_text("a\r\nb\rc\n\nd\u2028e\n")
    assert text.lines == ("a", "b", "c", "", "d\u2028e", "")
    assert text.join("uvwxyz") == "u\r\nv\rw\nx\ny\nz"


@pytest.mark.parametrize(
    ("lines", "status"),
    [
        ([("", "empty")], "empty"),
        ([("", "empty"), (" ", "empty")], "empty"),
        ([("a", "ok"), ("", "empty")], "ok"),
        ([("a", "ok"), ("b", "empty")], "empty"),
        ([("a", "split"), ("b", "repeated"), ("c", "ok")], "repeated"),
    ],
)
def test_the_status_of_a_text(lines: list[tuple[str, Status]], status: Status) -> None:
    assert status_of([line(*each) for each in lines]) == status


def test_notes_name_the_line_where_there_are_several() -> None:
    assert list(notes_of([line("a", "ok", "x", "y")])) == ["x", "y"]
    lines = [line("a", "ok"), line("b", "ok", "x")]
    assert list(notes_of(lines)) == ["line 2: x"]
