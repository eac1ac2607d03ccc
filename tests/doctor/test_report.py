import pytest

from mt.doctor import report as reports
from mt.doctor.findings import Example, Finding, Histogram, Report, Side, SplitReport
from mt.doctor.report import as_html, as_text, check_html_packages, percent, rows_of
from mt.errors import UserError

LENGTHS = Histogram((0.0, 1.0, 1.5, 2.0), (0, 3, 1))


def _report(*findings: Finding, examples: tuple[Example, ...] = ()) -> Report:
    first, second = (Side(code, 2000, 9, 9, LENGTHS) for code in ("en", "de"))
    split = SplitReport("test", "a and b", first, second, LENGTHS, findings, examples)
    return Report((split,), ("<note>",), "data:\n")


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


def test_each_shift_has_its_row() -> None:
    shifts = [Finding("shift", "pair", 1, 2000, (line,), "+1") for line in (100, 900)]
    assert [row.lines for row in rows_of(shifts)] == [(100,), (900,)]


def test_small_shares_are_not_rounded_to_zero() -> None:
    shares = [percent(share) for share in (0.0004, 0.0005, 0.1234, 1.0)]
    assert shares == ["<0.1%", "0.1%", "12.3%", "100.0%"]


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a\tb\u200bc", "a<mark>U+0009</mark>b<mark>U+200B</mark>c"),
        ("\xa0d e ", "<mark>U+00A0</mark>d e<mark>U+0020</mark>"),
        ("<b> & `x`", "&lt;b&gt; &amp; `x`"),
        ("z" * 301, f"{'z' * 300}…"),
        ("z" * 300, "z" * 300),
        ("z" * 299 + " z", f"{'z' * 299} …"),
    ],
)
def test_the_page_shows_text_escaped_cut_and_with_invisible_characters(
    text: str, shown: str
) -> None:
    finding = Finding("overlap_pair", "pair", 1, 10, (4,), "train")
    page = as_html(_report(finding, examples=(Example(4, text, "ein Test"),)))
    assert f"<span>4</span><span>{shown}</span><span>ein Test</span>" in page.replace("\n", "")
    assert "(<code>train</code>)" in page


def test_the_page_is_self_contained_and_deterministic() -> None:
    page = as_html(_report())
    assert page == as_html(_report())
    assert page.count("<svg") == 3
    for part in ("<?xml", "<script", "<link", " src=", "<metadata"):
        assert part not in page
    assert "<p>No warnings.</p>" in page
    assert "Note: &lt;note&gt;" in page


def test_missing_packages_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reports, "find_spec", lambda name: None if name == "jinja2" else name)
    with pytest.raises(UserError, match="--html needs jinja2: "):
        check_html_packages()
