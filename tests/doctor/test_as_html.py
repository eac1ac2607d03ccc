"""Does the page show what is in a line, also what cannot be seen?"""

from mt.doctor.findings import Example, Finding, Histogram, Report, Side, SplitReport
from mt.doctor.report import as_html


def _page(source: str, target: str, *, other: str = "") -> str:
    lengths = Histogram((0.0, 1.0), (0,))
    first, second = (Side(code, 10, 9, 9, lengths) for code in ("en", "de"))
    kind = "overlap_pair" if other else "tab"
    finding = Finding(kind, "source", 1, 10, (4,), other)
    examples = (Example(4, source, target),)
    split = SplitReport("train", "a and b", first, second, lengths, (finding,), examples)
    return as_html(Report((split,), (), ""))


def test_what_cannot_be_seen_is_told_by_its_code_point() -> None:
    page = _page("a\tb\u200bc", "\xa0d e ")
    assert "<span>a<mark>U+0009</mark>b<mark>U+200B</mark>c</span>" in page
    assert "<span><mark>U+00A0</mark>d e<mark>U+0020</mark></span>" in page


def test_text_is_escaped_and_a_long_one_is_cut_visibly() -> None:
    page = _page("<b> & `x`", "z" * 301)
    assert "<span>&lt;b&gt; &amp; `x`</span>" in page
    assert f"<span>{'z' * 300}…</span>" in page
    assert f"<span>{'z' * 300}</span>" in _page("a", "z" * 300)


def test_names_of_splits_are_set_apart() -> None:
    assert "(<code>train</code>)" in _page("a", "b", other="train")


def test_a_cut_text_that_ends_in_a_space_has_none_at_its_end() -> None:
    assert f"<span>{'z' * 299} …</span>" in _page("a", "z" * 299 + " z")
