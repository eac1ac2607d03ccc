import pytest

from mt.evaluation.notes import identical_to_source, looks_processed


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("▁The ▁cat", "pieces"),
        ("the c@@ at", "pieces"),
        ("the cat .", "tokenised"),
        ("这 只 猫 。", "tokenised"),
        ("The cat.", None),
        ("write to a@@b.example", None),
    ],
)
def test_text_that_was_processed_is_told(line: str, told: str | None) -> None:
    note = looks_processed("out.txt", [line] * 3)
    if told is None:
        assert note is None
    else:
        assert note is not None
        assert note.startswith("out.txt: 3 of 3 lines ")
        assert told in note


def test_a_few_odd_lines_are_no_reason_for_a_warning() -> None:
    assert looks_processed("x", ["Good ."] + ["Good."] * 9) is None
    assert looks_processed("x", ["Good ."] * 2 + ["Good."] * 8) is not None
    assert looks_processed("x", []) is None


def test_lines_that_were_only_copied_are_counted() -> None:
    note = identical_to_source("out.txt", ["a", "b", "", "d"], ["a", "x", "", "y"])
    assert note == "out.txt: 1 of 3 lines (33.3%) are identical to their source"
