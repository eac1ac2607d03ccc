import pytest

from mt.config.data import CleaningConfig
from mt.doctor.corpus_report import as_text, make_rows
from mt.doctor.findings import CorpusReport, Finding, PairExample, SideSize, SplitReport


def _report(*findings: Finding, examples: tuple[PairExample, ...] = ()) -> CorpusReport:
    first, second = (SideSize(code, 2000, 9, 9) for code in ("en", "de"))
    split = SplitReport("test", "a and b", first, second, findings, examples)
    return CorpusReport((split,), ("<note>",), CleaningConfig(duplicates="pair"), {})


def _overlap(part: str, count: int, lines: tuple[int, ...], other: str = "train") -> Finding:
    return Finding(f"overlap_{part}", part.partition("_")[0], count, 2000, lines, other)


def _text(*findings: Finding) -> list[str]:
    return as_text(_report(*findings)).split("\n")[2:]


def test_overlaps_with_one_split_are_one_row() -> None:
    lines = _text(
        _overlap("pair", 15, (71, 169, 245)),
        _overlap("pair", 1, (250,), "valid"),
        _overlap("source", 1800, (71, 169, 245)),
        _overlap("target", 1, (71,)),
        _overlap("pair_normalized", 17, (70, 71, 169)),
        _overlap("source_normalized", 2000, (1, 2, 3), "valid"),
    )
    assert lines[:3] == [
        "         15   0.8%  pairs that are also in another split (`train`); also 1,800 source "
        "sides, 1 target side; nearly the same: 17 pairs; lines 71, 169, 245, ...",
        "          1   0.1%  pairs that are also in another split (`valid`); nearly the same: "
        "2,000 source sides; lines 1, 2, 250, ...",
        "",
    ]


def test_duplicates_are_one_row_and_other_warnings_one_row_per_side() -> None:
    markup = "tags or character references of HTML or XML"
    assert _text(
        Finding("markup", "source", 2, 2000, (5, 9)),
        Finding("markup", "target", 1, 2000, (5,)),
        Finding("duplicate_source", "source", 2, 2000, (8, 30)),
        Finding("duplicate_target", "target", 1, 2000, (12,)),
    )[:3] == [
        f"          2   0.1%  {markup}, source side; lines 5, 9",
        f"          1   0.1%  {markup}, target side; line 5",
        "          2   0.1%  repeated source sides; also 1 target side; lines 8, 12, 30",
    ]
    assert _text()[0] == "  no warnings"
    shifts = [Finding("shift", "pair", 1, 2000, (line,), "+1") for line in (100, 900)]
    assert [row.lines for row in make_rows(shifts)] == [(100,), (900,)]


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a\tb\u200bc", "a<U+0009>b<U+200B>c"),
        ("\xa0d e ", "<U+00A0>d e<U+0020>"),
        ("z" * 101, f"{'z' * 99}…"),
        ("早" * 50, "早" * 50),
    ],
)
def test_the_first_pair_is_shown_with_invisible_characters(text: str, shown: str) -> None:
    finding = Finding("overlap_pair", "pair", 1, 10, (4,), "train")
    report = _report(finding, examples=(PairExample(4, text, "ein Test"),))
    assert as_text(report).split("\n")[3:5] == [f"{'':19}{shown}", f"{'':19}ein Test"]
