"""The tokenizer doctor's report in a few lines of plain text."""

from mt.data.tokenizer_extension import shown_pieces
from mt.doctor.tokenizer_report import (
    FREQUENT,
    FREQUENT_SHARE,
    CharacterLoss,
    SideReport,
    TokenizerReport,
    VocabularyReport,
)
from mt.evaluation.columns import aligned, display_width, printable

_MOST_LOSSES = 12
_MOST_NEVER_WRITTEN = 60


def tokenizer_as_text(report: TokenizerReport) -> str:
    """Return the report for a terminal: sides, losses, vocabularies with advice, ceilings."""
    sample = "" if report.sampled_pairs == report.pairs else f"{report.sampled_pairs:,} of "
    parts = [
        f"training text: {sample}{report.pairs:,} pairs",
        _sides(report),
        *filter(None, map(_losses, (report.source, report.target))),
        *filter(None, [_never_written(report.target)]),
        _vocabularies(report),
        "\n".join(map(_advice, report.vocabularies)),
        _ceilings(report),
    ]
    return "\n\n".join(parts)


def _sides(report: TokenizerReport) -> str:
    rows = [("side", "language", "pieces/word", "pieces/character", "unknown", "bytes", "changed")]
    for side in (report.source, report.target):
        per_word = side.pieces_per_word
        rows.append(
            (
                *(side.side, side.language),
                "-" if per_word is None else f"{per_word:.2f}",
                f"{side.pieces_per_character:.3f}",
                f"{side.unknown_pieces / max(1, side.pieces):.3%}",
                f"{side.byte_pieces / max(1, side.pieces):.3%}",
                f"{side.changed_lines:,} lines",
            )
        )
    return aligned(rows, right=range(2, 7))


def _losses(side: SideReport) -> str:
    if not side.losses:
        return ""
    rows = [(f"lost, {side.side} side", "", "times", "becomes")]
    rows += [
        (_seen(loss.character), _code(loss.character), f"{loss.count:,}", _left_of(loss))
        for loss in side.losses[:_MOST_LOSSES]
    ]
    more = len(side.losses) - _MOST_LOSSES
    rest = [f"and {more:,} other characters"] if more > 0 else []
    return "\n".join([aligned(rows, right=[2]), *rest])


def _never_written(target: SideReport) -> str:
    never = [loss.character for loss in target.losses if loss.never_written]
    if not never:
        return ""
    shown = " ".join(_seen(c) or _code(c) for c in never[:_MOST_NEVER_WRITTEN])
    more = ", ..." if len(never) > _MOST_NEVER_WRITTEN else ""
    return f"{len(never):,} characters that no model with this tokenizer can write: {shown}{more}"


def _vocabularies(report: TokenizerReport) -> str:
    rows = [("vocabulary", "algorithm", "pieces", "unused", f"seen < {FREQUENT} times", "")]
    rows += [
        (
            *(found.name, found.algorithm, f"{found.size:,}", f"{len(found.unused):,}"),
            f"{found.rare:,} ({found.rare / max(1, found.text_pieces):.1%})",
            f"unused: {shown_pieces(map(printable, found.unused))}" if found.unused else "",
        )
        for found in report.vocabularies
    ]
    return aligned(rows, right=[2, 3, 4])


def _advice(found: VocabularyReport) -> str:
    share = 1 - found.rare / max(1, found.text_pieces)
    facts = f"{share:.1%} of its text pieces are seen {FREQUENT} times or more"
    rule = f"{FREQUENT_SHARE:.0%} should be (Gowda and May 2020)"
    if found.advised_size is not None:
        return (
            f"{found.name} vocabulary: {facts}, {rule}; about "
            f"`tokenizer.vocabulary_size: {found.advised_size}` would fit this corpus better"
        )
    if share < FREQUENT_SHARE:
        return f"{found.name} vocabulary: {facts}; no smaller one would hold its characters"
    return f"{found.name} vocabulary: {facts}, {rule}: its size fits this corpus"


def _ceilings(report: TokenizerReport) -> str:
    rows = [("ceiling on", "BLEU", "references changed", "signature")]
    rows += [
        (c.split, _score(c.bleu), f"{c.changed_lines:,} of {c.lines:,}", c.signature)
        for c in report.ceilings
    ]
    return aligned(rows, right=[1, 2])


def _score(bleu: float) -> str:
    """Return a score with two decimals; what is below 100 does not read 100.00."""
    return f"{bleu if bleu == 100.0 else min(bleu, 99.99):.2f}"


def _left_of(loss: CharacterLoss) -> str:
    if not loss.becomes:
        return "nothing"
    if loss.becomes == loss.character:
        return "itself where it stands alone"
    return f"{_seen(loss.becomes)} {' '.join(map(_code, loss.becomes))}".lstrip()


def _seen(text: str) -> str:
    """Return `text`, or "" where nothing of it would be seen."""
    visible = printable(text)
    return visible if visible.strip() and display_width(visible) else ""


def _code(character: str) -> str:
    return f"U+{ord(character):04X}"
