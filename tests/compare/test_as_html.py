"""The page: whole by itself, everything in it, nothing of a user's text taken for HTML."""

import re
import xml.etree.ElementTree as ElementTree
from html.parser import HTMLParser

import pytest

from mt.compare.compare import Changed, Comparison
from mt.compare.differences import Curve, Difference
from mt.compare.report import Series, as_html, line_chart
from mt.compare.significance import PairedScore
from mt.compare.slices import Slice
from mt.evaluation.scores import Interval

_INTERVAL = Interval(30.0, 1.0)
COMPARISON = Comparison(
    ("runs/<base>", "runs/better", "out.zh"),
    "test & more",
    sentences=1234,
    target_language="zh",
    test="bootstrap",
    samples=1000,
    scores=(
        (
            PairedScore("BLEU", 30.0, _INTERVAL, None, None, "sig"),
            PairedScore("BLEU", 32.5, _INTERVAL, 2.5, 0.002, "sig"),
            PairedScore("BLEU", 29.9, _INTERVAL, -0.1, 0.6, "sig|forced:13a"),
        ),
    ),
    slices=(
        Slice("length", "0 to 10 words", 40, (30.0, 31.0, 20.0), (50.0, 50.5, 40.0)),
        Slice("length", "11 to 20 words", 30, (31.0, 33.0, 62.0), (51.0, 51.5, 41.0)),
        Slice("length", "over 50 words", 29, (77.0, 99.0, 88.0), (1.0, 2.0, 3.0)),
    ),
    sliced_by="by the source",
    differences=(Difference("config", "model.dropout", ("0.1", "0.3", None)),),
    curves=(Curve(0, "bleu", ((100, 5.0), (200, 25.0))), Curve(1, "bleu", ((200, 27.0),))),
    changed=(Changed(1, 7, "<b>Hi</b>", ("你好吗",), "你好", "你们好", (20.0, 45.5)),),
)


class _Page(HTMLParser):
    """Collects what a page loads, and holds every tag against its end."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.loaded: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.loaded += [name for name, _ in attrs if name in {"src", "href", "data"}]
        if tag != "meta":
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.loaded += [name for name, _ in attrs if name in {"src", "href", "data"}]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_the_page_needs_nothing_else() -> None:
    page = as_html(COMPARISON)
    parser = _Page()
    parser.feed(page)
    assert parser.open == []
    assert parser.loaded == []
    assert not re.search(r"<script|https?:|url\(|@import", page)


def test_text_of_a_user_is_escaped() -> None:
    page = as_html(COMPARISON)
    assert "runs/&lt;base&gt; (baseline)" in page
    assert "1,234 sentences of test &amp; more" in page
    assert "<dd>&lt;b&gt;Hi&lt;/b&gt;</dd>" in page


def test_everything_is_there() -> None:
    page = as_html(COMPARISON)
    assert '<td class="number">+2.50</td><td class="number">0.0020</td><td class="better">' in page
    assert "forced:13a" in page
    assert "no significant difference" in page
    assert "model.dropout</td>" in page
    assert '<td class="value">0.1</td><td class="value">0.3</td><td class="value">-</td>' in page
    assert "你<mark>们</mark>好" in page
    assert "<dd>你好</dd>" in page
    assert "20.0 in A, 45.5 in B" in page
    assert '31.00 <small>+1.00</small></td><td class="number">20.00 <small>-10.00' in page
    few = re.search(r'<tr class="few">.*?</tr>', page)
    assert few is not None
    assert "over 50 words" in few[0]
    assert "<small>" not in few[0]  # too few sentences for a verdict


def _plots() -> dict[str, ElementTree.Element]:
    figures = re.findall(r"<figcaption>(.*?)</figcaption>(<svg.*?</svg>)", as_html(COMPARISON))
    return {caption: ElementTree.fromstring(svg) for caption, svg in figures}


def _number(element: ElementTree.Element, name: str) -> float:
    return float(element.attrib[name])


def test_the_plots_show_the_numbers() -> None:
    plots = _plots()
    assert list(plots) == ["p-values", "BLEU by length", "chrF2 by length", "BLEU on validation"]
    dots = plots["p-values"].findall("circle")
    assert [dot.findtext("title") for dot in dots] == ["p = 0.0020", "p = 0.6000"]
    limit = next(x for x in plots["p-values"].findall("line") if x.get("stroke") == "#b00020")
    assert _number(dots[0], "cx") < _number(limit, "x1") < _number(dots[1], "cx")
    bars = plots["BLEU by length"].findall("rect")
    assert len(bars) == 6  # the small slice is not drawn
    assert _number(bars[5], "height") == pytest.approx(2 * _number(bars[3], "height"), abs=0.2)
    curves = plots["BLEU on validation"].findall("polyline")
    assert [len(curve.attrib["points"].split()) for curve in curves] == [2, 1]


def test_every_plot_stays_in_its_frame() -> None:
    for plot in _plots().values():
        _, _, width, height = map(float, plot.attrib["viewBox"].split())
        places = [
            (_number(each, x), _number(each, y))
            for each in plot
            for x, y in (("x", "y"), ("cx", "cy"), ("x1", "y1"), ("x2", "y2"))
            if x in each.attrib
        ]
        assert places
        assert all(0 <= x <= width and 0 <= y <= height for x, y in places)


def test_the_axes_of_a_single_value_have_numbers_that_differ() -> None:
    plot = ElementTree.fromstring(line_chart([Series(0, ((570, 2.535),))], x_name="updates"))
    numbers = [each.text for each in plot.iter("text")]
    assert len(set(numbers)) == len(numbers) == 5
