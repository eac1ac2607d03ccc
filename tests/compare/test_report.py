import re
import sys
from xml.etree import ElementTree

import pytest

from mt.compare.compare import Changed, Comparison, Slice
from mt.compare.differences import Curve, Difference
from mt.compare.report import COLOURS, as_html, as_text, require_html
from mt.compare.significance import PairedScore
from mt.errors import UserError, install_hint
from mt.evaluation.scores import Interval

INTERVAL = Interval(30.0, 1.0)
COMPARISON = Comparison(
    ("runs/<base>", "runs/better", "out.zh"),
    "test & more",
    sentences=1234,
    target_language="zh",
    test="bootstrap",
    samples=1000,
    scores=(
        (
            PairedScore("BLEU", 30.0, INTERVAL, None, None, None, "sig"),
            PairedScore("BLEU", 32.5, INTERVAL, 2.5, Interval(2.25, 0.75), 0.002, "sig"),
            PairedScore("BLEU", 29.9, INTERVAL, -0.1, Interval(-0.5, 2.0), 0.6, "sig|forced:13a"),
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


@pytest.fixture(scope="module")
def page() -> str:
    return as_html(COMPARISON)


def test_page_is_self_contained_and_deterministic(page: str) -> None:
    body = ElementTree.fromstring(page[page.index("<body>") : page.index("</html>")])
    for element in body.iter():
        for name, value in element.attrib.items():
            if name.rpartition("}")[2] in {"src", "href", "data"}:
                assert value.startswith("#")
    assert not re.search(r"<script|<link|url\((?!#)|@import|<metadata", page)
    identifiers = re.findall(r' id="([^"]+)"', page)
    assert set(identifiers) <= set(re.findall(r"#([\w-]+)", page))
    assert as_html(COMPARISON) == page


def test_page_has_escaped_names_scores_slices_differences_and_sentences(page: str) -> None:
    cells = re.findall(r"<td[^>]*>(.*?)</td>", page.replace("\n", ""))
    assert cells[7:14] == ["BLEU", "B", "32.50", "30.00 ± 1.00", "+2.50 ± 0.75", "0.0020", "better"]
    assert "runs/&lt;base&gt; (baseline)" in page
    assert "1,234 sentences of test &amp; more" in page
    assert "<dd>&lt;b&gt;Hi&lt;/b&gt;</dd>" in page
    assert '<td class="better">better</td>' in page
    assert "no significant difference" in page
    assert "forced:13a" in page
    assert cells[-4:] == ["model.dropout", "0.1", "0.3", "-"]
    assert "31.00 <small>+1.00</small>" in cells
    assert "<dd>你<mark>们</mark>好</dd>" in page
    assert "<dd>你好</dd>" in page
    few = re.search(r'<tr class="few">.*?</tr>', page, re.DOTALL)
    assert few is not None
    assert "over 50 words" in few[0]
    assert "<small>" not in few[0]


def test_charts_draw_differences_lengths_and_curves(page: str) -> None:
    figures = dict(re.findall(r"<figcaption>(.*?)</figcaption>(<svg.*?</svg>)", page, re.DOTALL))
    assert list(figures) == [
        "Difference from A, with 95 % interval",
        "BLEU by length",
        "chrF2 by length",
        "BLEU on validation",
    ]
    differences = figures["Difference from A, with 95 % interval"]
    assert "BLEU, B" in differences
    for system, half_width in ((1, 0.75), (2, 2.0)):
        line = rf'<path d="M ([\d.]+) [\d.]+ *\n?L ([\d.]+) [^"]*"[^>]*stroke: {COLOURS[system]}'
        found = re.search(line, differences)
        assert found is not None
        ends = float(found[1]), float(found[2])
        assert (ends[1] - ends[0]) / half_width == pytest.approx(scale(differences), rel=1e-3)
    bars = re.findall(rf"fill: ({'|'.join(COLOURS[:3])})", figures["BLEU by length"])
    assert sorted(bars) == sorted(COLOURS[:3] * 2)  # the small slice is not drawn


def scale(svg: str) -> float:
    """Return the width of an interval of ± 1."""
    labels = re.findall(r'x="([\d.]+)"[^>]*>([\d.]+)</text>', svg)
    places = {label: float(x) for x, label in labels}
    return 2 * (places["1"] - places["0"])


def test_text_has_scores_with_intervals_and_slices_with_differences() -> None:
    lines = as_text(COMPARISON).splitlines()
    assert lines[:4] == [
        "A  runs/<base>  (baseline)",
        "B  runs/better",
        "C  out.zh",
        "on test & more: 1234 sentences",
    ]
    assert re.split(" {2,}", lines[7]) == [
        "BLEU", "B", "32.50", "30.00 ± 1.00", "+2.50 ± 0.75", "0.0020", "better",
    ]  # fmt: skip
    assert "  over 50 words          29  (77.00)    (n)     (n)   (1.00)    (n)     (n)" in lines
    assert "line 7: chrF2 20.0 in A, 45.5 in B (+25.5)" in lines


@pytest.mark.parametrize("package", ["jinja2", "matplotlib"])
def test_missing_packages_have_an_install_hint(
    package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    require_html()
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(UserError, match=re.escape(install_hint("report"))):
        require_html()
