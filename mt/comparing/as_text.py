"""A comparison for a terminal: tables of at most 100 cells, examples, and what to mind."""

from collections.abc import Iterator, Sequence

from mt.comparing.changed import Changed
from mt.comparing.compare import Comparison
from mt.comparing.counts import MIN_SENTENCES, Slice
from mt.comparing.significance import SIGNIFICANT, PairedScore
from mt.evaluation.columns import aligned, display_width, printable, wrap

_WIDTH = 100
_TESTS = {"bootstrap": "paired bootstrap", "randomization": "approximate randomisation"}
_LABEL = 13


def as_text(comparison: Comparison) -> str:
    """Return everything but the curves; each signature is named once, below the scores."""
    parts = [
        _head(comparison),
        _scores(comparison),
        "\n".join(notes(comparison)),
        _slices(comparison),
        _differences(comparison),
        *(_changed(comparison, each) for each in comparison.changed),
    ]
    return "\n\n".join(part for part in parts if part)


def notes(comparison: Comparison) -> Iterator[str]:
    """Yield what is needed to read the scores right, their signatures at the end."""
    tests = sum(score.p_value is not None for row in comparison.scores for score in row)
    yield (
        f"p: {_TESTS[comparison.test]}, {comparison.samples} samples, each system against A; "
        f"below {SIGNIFICANT} a difference counts"
    )
    if tests > 2:
        yield (
            f"with {tests} tests at once some p-value is small by chance; divide {SIGNIFICANT} by "
            f"{tests} to be sure"
        )
    for row in comparison.scores:
        for signature in dict.fromkeys(score.signature for score in row):
            yield f"{row[0].metric}: {signature}"


def p_text(p_value: float) -> str:
    """Return a p-value with as many digits as tell something."""
    digits = 4 if p_value < 0.01 else 3 if p_value < 0.1 else 2
    return f"{p_value:.{digits}f}"


def _head(comparison: Comparison) -> str:
    rows = [
        f"{letter}  {_cut(name, _WIDTH - 16)}"
        for letter, name in zip(comparison.letters, comparison.systems, strict=True)
    ]
    rows[0] += "  (baseline)"
    count = f"{comparison.sentences} sentence{'' if comparison.sentences == 1 else 's'}"
    rows.append(f"on {_cut(comparison.test_set, _WIDTH - 30)}: {count}")
    return "\n".join(rows)


def _scores(comparison: Comparison) -> str:
    rows = [["metric", "", "score", "95 % interval", "difference", "p", "beside A"]]
    for row in comparison.scores:
        for letter, score in zip(comparison.letters, row, strict=True):
            rows.append([score.metric, letter, *_score_cells(score)])
    return aligned(rows, right=[2, 4, 5])


def _score_cells(score: PairedScore) -> list[str]:
    cells = [f"{score.value:.2f}", score.interval.as_text()]
    if score.difference is None or score.p_value is None:
        return [*cells, "", "", ""]
    return [*cells, f"{score.difference:+.2f}", p_text(score.p_value), score.outcome]


def _slices(comparison: Comparison) -> str:
    """Return a table of BLEU and chrF2 by slice: A's, and the differences of the others."""
    others = comparison.letters[1:]
    heads = ["A", *(f"{letter}-A" for letter in others)]
    metrics = {"BLEU": lambda part: part.bleu, "chrF2": lambda part: part.chrf}
    tables = []
    # Side by side as long as they fit.
    for names in [list(metrics)] if len(others) < 3 else [[name] for name in metrics]:
        head = [f"{name} {each}" if each == "A" else each for name in names for each in heads]
        rows = [[comparison.slices[0].group, "sentences", *head]]
        group = rows[0][0]
        for part in comparison.slices:
            if part.group != group:
                rows.append([part.group, *[""] * (len(head) + 1)])
                group = part.group
            cells = [cell for name in names for cell in _slice_cells(part, metrics[name](part))]
            rows.append([f"  {part.name}", str(part.sentences), *cells])
        tables.append(aligned(rows, right=range(1, len(head) + 2)))
    told = f"slices {comparison.sliced_by}; (n): below {MIN_SENTENCES} sentences, no verdict"
    return "\n\n".join([*tables, "\n".join(wrap(told, _WIDTH))])


def _slice_cells(part: Slice, scores: Sequence[float]) -> list[str]:
    if part.too_small:
        return [f"({scores[0]:.2f})", *("(n)" for _ in scores[1:])]
    return [f"{scores[0]:.2f}", *(f"{score - scores[0]:+.2f}" for score in scores[1:])]


def _differences(comparison: Comparison) -> str:
    """Return what is not the same in all runs; long values are cut."""
    if not comparison.differences:
        return ""
    longest = max(len(each.key) for each in comparison.differences)
    key_width = min(longest, 44)
    room = (_WIDTH - key_width - 2 - 2 * len(comparison.systems)) // len(comparison.systems)
    rows = [["what differs", *comparison.letters]]
    for each in comparison.differences:
        values = ("-" if value is None else value for value in each.values)
        rows.append([_cut(each.key, key_width), *(_cut(value, room) for value in values)])
    return aligned(rows)


def _changed(comparison: Comparison, changed: Changed) -> str:
    letter = comparison.letters[changed.system]
    before, after = changed.chrf
    head = (
        f"line {changed.line}: chrF2 {before:.1f} in A, {after:.1f} in {letter} "
        f"({changed.gain:+.1f})"
    )
    fields = [
        ("source", changed.source),
        *(("reference", reference) for reference in dict.fromkeys(changed.references)),
        ("A", changed.baseline),
        (letter, changed.translation),
    ]
    lines = [head]
    for name, text in fields[0 if changed.source else 1 :]:
        first, *rest = wrap(printable(text), _WIDTH - _LABEL)
        lines += [f"{name:>{_LABEL - 2}}  {first}", *(" " * _LABEL + line for line in rest)]
    return "\n".join(line.rstrip() for line in lines)


def _cut(text: str, width: int) -> str:
    """Return `text` on one line, its middle left out where it is too long."""
    text = printable(text)
    if display_width(text) <= width:
        return text
    half = max((width - 1) // 2, 1)
    return f"{text[:half]}…{text[-half:]}"
