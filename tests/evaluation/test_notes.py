from mt.evaluation.evaluate import identical_to_source


def test_lines_that_were_only_copied_are_counted() -> None:
    note = identical_to_source("out.txt", ["a", "b", "", "d"], ["a", "x", "", "y"])
    assert note == "out.txt: 1 of 3 lines (33.3%) are identical to their source"
