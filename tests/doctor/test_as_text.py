"""Does the report say each thing once, and with its numbers?"""

from mt.doctor.findings import Finding, Histogram, Report, Side, SplitReport
from mt.doctor.report import as_text, percent, rows_of

NOTHING = Histogram((0.0, 1.0), (0,))


def _overlap(part: str, count: int, lines: tuple[int, ...], other: str = "train") -> Finding:
    return Finding(f"overlap_{part}", part.partition("_")[0], count, 2000, lines, other)


def _text(*findings: Finding) -> list[str]:
    first, second = (Side(code, 2000, 9, 9, NOTHING) for code in ("en", "de"))
    split = SplitReport("test", "a and b", first, second, NOTHING, findings, ())
    return as_text(Report((split,), (), "")).split("\n")[2:]


def test_overlaps_with_one_split_are_one_line() -> None:
    told = _text(
        _overlap("pair", 15, (71, 169, 245)),
        _overlap("pair", 1, (250,), "valid"),
        _overlap("source", 1800, (71, 169, 245)),
        _overlap("target", 1, (71,)),
        _overlap("pair_normalized", 17, (70, 71, 169)),
        _overlap("source_normalized", 2000, (1, 2, 3), "valid"),
    )
    assert told[:3] == [
        "         15   0.8%  pairs that are in another split too (`train`); also 1,800 source "
        "sides, 1 target side; with hardly different ones 17 pairs; lines 71, 169, 245, ...",
        "          1   0.1%  pairs that are in another split too (`valid`); with hardly different "
        "ones 2,000 source sides; lines 1, 2, 250, ...",
        "",
    ]


def test_duplicates_are_one_line_and_what_is_wrong_with_a_side_is_its_own() -> None:
    told = _text(
        Finding("markup", "source", 2, 2000, (5, 9)),
        Finding("markup", "target", 1, 2000, (5,)),
        Finding("duplicate_source", "source", 2, 2000, (8, 30)),
        Finding("duplicate_target", "target", 1, 2000, (12,)),
    )
    markup = "tags or character references of HTML or XML"
    assert told[:3] == [
        f"          2   0.1%  {markup}, source side; lines 5, 9",
        f"          1   0.1%  {markup}, target side; line 5",
        "          2   0.1%  source sides that were there before; also 1 target side; "
        "lines 8, 12, 30",
    ]


def test_two_slips_are_two_lines() -> None:
    slips = [Finding("shift", "pair", 1, 2000, (line,), "+1") for line in (100, 900)]
    assert [row.lines for row in rows_of(slips)] == [(100,), (900,)]


def test_a_small_share_is_not_told_as_none() -> None:
    assert [percent(share) for share in (0.0004, 0.0005, 0.1234, 1.0)] == [
        "<0.1%",
        "0.1%",
        "12.3%",
        "100.0%",
    ]
