"""Report of a comparison as text for a terminal and as an HTML page."""

from collections.abc import Iterator
from itertools import groupby

import wcwidth

from mt.compare.compare import MIN_SENTENCES, ChangedSentence, Comparison, split_by_difference
from mt.compare.significance import SIGNIFICANT
from mt.tables import Cell, PageSection, align_columns, make_printable, render_page

_WIDTH = 100
_LABEL = 13
_TESTS = {"bootstrap": "paired bootstrap", "randomization": "approximate randomisation"}
_SCORES_RIGHT = (2, 4, 5)


def as_text(comparison: Comparison) -> str:
    """Return the comparison, at most 100 cells wide except for names and signatures."""
    slices = _make_slice_tables(comparison)
    parts = [
        "\n".join(_describe_systems(comparison)),
        align_columns(_make_score_rows(comparison), right=_SCORES_RIGHT),
        "\n".join(_explain_scores(comparison)),
        *(align_columns(rows, right=range(1, len(rows[0]))) for rows in slices),
        "\n".join(wcwidth.wrap(_explain_slices(comparison), _WIDTH, break_on_hyphens=False)),
    ]
    for sentence in comparison.changed:
        lines = [_describe_sentence(comparison, sentence)]
        for name, text in _list_texts(comparison, sentence):
            first, *rest = wcwidth.wrap(make_printable(text), _WIDTH - _LABEL) or [""]
            lines += [f"{name:>{_LABEL - 2}}  {first}", *(" " * _LABEL + line for line in rest)]
        parts.append("\n".join(line.rstrip() for line in lines))
    return "\n\n".join(parts)


def as_html(comparison: Comparison) -> str:
    """Return a page that loads no other file; equal comparisons give equal bytes."""
    head, *scores = _make_score_rows(comparison)
    sections = [
        PageSection("", paragraphs=tuple(_describe_systems(comparison))),
        PageSection("Scores", head=head, rows=scores, right=_SCORES_RIGHT),
        PageSection("", paragraphs=tuple(_explain_scores(comparison))),
        PageSection("Slices", paragraphs=(_explain_slices(comparison),)),
    ]
    for head, *rows in _make_slice_tables(comparison):
        sections.append(PageSection("", head=head, rows=rows, right=range(1, len(head))))
    language = comparison.target_language
    for sentence in comparison.changed:
        *texts, (_, one), (letter, other) = _list_texts(comparison, sentence)
        # The words that the other translation lacks are marked.
        marked: list[tuple[str, Cell]] = [
            ("A", tuple(split_by_difference(one, other, language=language))),
            (letter, tuple(split_by_difference(other, one, language=language))),
        ]
        name = _describe_sentence(comparison, sentence)
        sections.append(PageSection(name, rows=(*texts, *marked)))
    return render_page("Comparison of translations", sections)


def _describe_systems(comparison: Comparison) -> Iterator[str]:
    for letter, name in zip(comparison.letters, comparison.systems, strict=True):
        baseline = "  (baseline)" if letter == comparison.letters[0] else ""
        yield f"{letter}  {make_printable(name)}{baseline}"
    plural = "" if comparison.sentences == 1 else "s"
    yield f"on {make_printable(comparison.test_set)}: {comparison.sentences} sentence{plural}"


def _explain_scores(comparison: Comparison) -> Iterator[str]:
    tests = sum(score.p_value is not None for row in comparison.scores for score in row)
    yield (
        f"p: {_TESTS[comparison.test]}, {comparison.samples} samples, each system against A; "
        f"a difference is significant below {SIGNIFICANT}"
    )
    yield "difference: score minus that of A, ± half of its 95 % paired bootstrap interval"
    if tests > 2:
        yield (
            f"with {tests} tests, some p-values are small by chance; divide {SIGNIFICANT} by "
            f"{tests} to be sure"
        )
    for row in comparison.scores:
        for signature in dict.fromkeys(score.signature for score in row):
            yield f"{row[0].metric}: {signature}"


def _make_score_rows(comparison: Comparison) -> list[list[str]]:
    rows = [["metric", "", "score", "95 % interval", "difference", "p", "against A"]]
    for row in comparison.scores:
        for letter, score in zip(comparison.letters, row, strict=True):
            cells = ["", "", ""]
            if score.difference is not None and score.p_value is not None:
                assert score.difference_interval, "it comes with the difference"
                half_width = score.difference_interval.half_width
                digits = 4 if score.p_value < 0.01 else 3 if score.p_value < 0.1 else 2
                cells = [f"{score.difference:+z.2f} ± {half_width:.2f}"]
                cells += [f"{score.p_value:.{digits}f}", score.outcome]
            value = f"{score.value:.2f}"
            rows.append([score.metric, letter, value, score.interval.as_text(), *cells])
    return rows


def _make_slice_tables(comparison: Comparison) -> list[list[list[str]]]:
    """Return a table for each metric by slice: scores of A, differences of the others."""
    others = [f"{letter}-A" for letter in comparison.letters[1:]]
    tables = []
    for metric, key in (("BLEU", "bleu"), ("chrF2", "chrf")):
        rows: list[list[str]] = []
        head = ["sentences", f"{metric} A", *others]
        for group, parts in groupby(comparison.slices, lambda part: part.group):
            rows.append([group, *([""] * len(head) if rows else head)])
            for part in parts:
                first, *rest = getattr(part, key)
                cells = [f"{first:.2f}", *(f"{score - first:+z.2f}" for score in rest)]
                if part.too_small:
                    cells = [f"({first:.2f})", *("(n)" for _ in rest)]
                rows.append([f"  {part.name}", str(part.sentences), *cells])
        tables.append(rows)
    return tables


def _explain_slices(comparison: Comparison) -> str:
    return f"slices {comparison.sliced_by}; (n): below {MIN_SENTENCES} sentences, no verdict"


def _describe_sentence(comparison: Comparison, sentence: ChangedSentence) -> str:
    before, after = sentence.chrf
    letter = comparison.letters[sentence.system]
    return (
        f"line {sentence.line}: chrF2 {before:.1f} in A, {after:.1f} in {letter} "
        f"({sentence.gain:+z.1f})"
    )


def _list_texts(comparison: Comparison, sentence: ChangedSentence) -> list[tuple[str, str]]:
    """Return names and texts; the last two are the translations."""
    return [
        *([("source", sentence.source)] if sentence.source else []),
        *(("reference", reference) for reference in dict.fromkeys(sentence.references)),
        ("A", sentence.baseline),
        (comparison.letters[sentence.system], sentence.translation),
    ]
