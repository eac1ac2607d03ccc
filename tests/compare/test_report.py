import re
from xml.etree import ElementTree

from mt.compare.compare import ChangedSentence, Comparison, Slice
from mt.compare.report import as_html, as_text
from mt.compare.significance import PairedScore
from mt.evaluation.scores import ConfidenceInterval

INTERVAL = ConfidenceInterval(30.0, 1.0)
COMPARISON = Comparison(
    ("runs/<base>", "runs/better", "out.zh"),
    "test & more",
    sentences=1234,
    target_language="zh",
    test="bootstrap",
    samples=1000,
    scores=(
        (
            PairedScore("BLEU", 30.0, INTERVAL, "sig"),
            PairedScore("BLEU", 32.5, INTERVAL, "sig", 2.5, ConfidenceInterval(2.25, 0.75), 0.002),
            PairedScore(
                "BLEU", 29.9, INTERVAL, "sig|forced:13a", -0.1, ConfidenceInterval(-0.5, 2.0), 0.6
            ),
        ),
    ),
    slices=(
        Slice("length", "0 to 10 words", 40, (30.0, 31.0, 20.0), (50.0, 50.5, 40.0)),
        Slice("length", "over 50 words", 29, (77.0, 99.0, 88.0), (1.0, 2.0, 3.0)),
    ),
    sliced_by="by the source",
    changed=(ChangedSentence(1, 7, "<b>Hi</b>", ("你好吗",), "你好", "你们好", (20.0, 45.5)),),
)
BETTER = ["BLEU", "B", "32.50", "30.00 ± 1.00", "+2.50 ± 0.75", "0.0020", "better"]


def test_page_has_escaped_names_scores_slices_and_marked_sentences() -> None:
    page = as_html(COMPARISON)
    assert "runs/&lt;base&gt;  (baseline)" in page
    assert "on test &amp; more: 1234 sentences" in page
    cells = re.findall(r"<td[^>]*>(.*?)</td>", page)
    assert cells[7:14] == BETTER
    assert "forced:13a" in page
    small = cells.index("  over 50 words")
    assert cells[small + 1 : small + 5] == ["29", "(77.00)", "(n)", "(n)"]
    assert cells[-8:] == [
        *("source", "&lt;b&gt;Hi&lt;/b&gt;", "reference", "你好吗"),
        *("A", "你好", "B", "你<mark>们</mark>好"),
    ]


def test_page_is_self_contained() -> None:
    page = as_html(COMPARISON)
    body = ElementTree.fromstring(page[page.index("<body>") : page.index("</html>")])
    assert {name for element in body.iter() for name in element.attrib} == {"class"}
    assert not re.search(r"<script|<link|url\(|@import", page)


def test_text_has_scores_with_intervals_and_slices_with_differences() -> None:
    lines = as_text(COMPARISON).splitlines()
    assert lines[:4] == [
        "A  runs/<base>  (baseline)",
        "B  runs/better",
        "C  out.zh",
        "on test & more: 1234 sentences",
    ]
    assert re.split(" {2,}", lines[7]) == BETTER
    assert "  over 50 words         29  (77.00)    (n)     (n)" in lines
    assert "line 7: chrF2 20.0 in A, 45.5 in B (+25.5)" in lines
