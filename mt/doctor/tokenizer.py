"""Check of a tokenizer against the corpora of a config, for `mt data tokenizer`."""

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import numpy.typing as npt

from mt.config import Config
from mt.config.data import SplitSource
from mt.data.filters import cleaned_pairs
from mt.data.splits import open_split, open_training_corpora
from mt.data.tokenizer import Tokenizer, Vocabulary
from mt.data.tokenizer_training import provide_tokenizer, sample_lines, shown_tokens
from mt.errors import DataError
from mt.evaluation.scores import choose_tokenizer, evaluate
from mt.languages import written_without_spaces
from mt.special_ids import EOS, UNK
from mt.tables import aligned, display_width, printable

FREQUENT = 100
"""Occurrences in the training text from which on a model learns a token well."""
FREQUENT_SHARE = 0.95
"""Share of frequent tokens in a vocabulary of good size (Gowda and May 2020)."""
_MAX_PAIRS = 500_000
_BLOCK_LINES = 4096
_ADVICE_STEP = 100
_SMALLEST_SIZE = 300
_SHOWN_LOSSES = 12
_SHOWN_CHARACTERS = 60


@dataclass(frozen=True, slots=True)
class CharacterLoss:
    """A character that encoding and decoding removes or replaces."""

    character: str
    count: int
    becomes: str
    """The character alone, encoded and decoded."""
    never_written: bool
    """True if no decoded line has the character: a model cannot learn to write it."""


@dataclass(frozen=True, slots=True)
class SideReport:
    """One side of the sampled training text; end marks are not counted."""

    side: str
    language: str
    lines: int
    characters: int
    words: int | None
    """Words between spaces; None for a language written without spaces."""
    tokens: int
    unknown_tokens: int
    byte_tokens: int
    """Tokens that stand for one byte of a character outside the vocabulary."""
    changed_lines: int
    """Lines that encoding and decoding changes."""
    losses: tuple[CharacterLoss, ...]
    """The most frequent first."""


@dataclass(frozen=True, slots=True)
class VocabularyReport:
    """Use of the `joint`, `source` or `target` vocabulary by the training text."""

    name: str
    algorithm: str
    size: int
    text_tokens: int
    """Tokens other than special and byte tokens."""
    unused: tuple[str, ...]
    """Text tokens absent from the sample, in the order of the vocabulary."""
    rare: int
    """Text tokens with fewer than `FREQUENT` occurrences, extrapolated from the sample."""
    advised_size: int | None
    """A better `tokenizer.vocabulary_size`, or None."""


@dataclass(frozen=True, slots=True)
class Ceiling:
    """BLEU of a split's references, encoded and decoded: the limit of a perfect model."""

    split: str
    lines: int
    changed_lines: int
    bleu: float
    signature: str


@dataclass(frozen=True, slots=True)
class TokenizerReport:
    """Result of `mt data tokenizer`; `pairs` counts the training pairs after cleaning."""

    fingerprint: str
    pairs: int
    sampled_pairs: int
    source: SideReport
    target: SideReport
    vocabularies: tuple[VocabularyReport, ...]
    ceilings: tuple[Ceiling, ...]


@contextmanager
def configured_tokenizer(config: Config) -> Iterator[Tokenizer]:
    """Yield the tokenizer that training with a config would use, in a temporary folder.

    Raises the errors of `mt train`, those of `choose_tokenizer` before any work.
    """
    choose_tokenizer(config.data.target_language, config.evaluation.bleu_tokenizer)
    with TemporaryDirectory(prefix="mt-tokenizer-") as folder:
        yield provide_tokenizer(
            config,
            Path(folder) / "tokenizer",
            corpora=open_training_corpora(config.data),
        )


def check_tokenizer(config: Config, tokenizer: Tokenizer) -> TokenizerReport:
    """Encode and decode the splits, and a sample of at most 500,000 training pairs.

    Raises DataError if a corpus cannot be read or cleaning removes every pair, and UserError if a
    package for BLEU is missing.
    """
    data = config.data
    splits = {"valid": data.valid, **data.tests}
    ceilings = [_ceiling(config, tokenizer, name, split) for name, split in splits.items()]
    numbers = count()
    # `zip` reads the pairs first, so their end takes no number.
    numbered = zip(cleaned_pairs(open_training_corpora(data)), numbers, strict=False)
    sample = sample_lines((pair for pair, _ in numbered), _MAX_PAIRS, seed=config.seed)
    if not sample:
        raise DataError("the cleaning leaves no pair to train on")
    pairs = next(numbers)
    sources, targets = [pair.source for pair in sample], [pair.target for pair in sample]
    source, counts = _side(sources, tokenizer.source, "source", data.source_language)
    target, target_counts = _side(targets, tokenizer.target, "target", data.target_language)
    used = [("source", tokenizer.source, counts), ("target", tokenizer.target, target_counts)]
    if tokenizer.source is tokenizer.target:
        used = [("joint", tokenizer.source, counts + target_counts)]
    vocabularies = tuple(_vocabulary(*each, scale=pairs / len(sample)) for each in used)
    return TokenizerReport(
        tokenizer.fingerprint, pairs, len(sample), source, target, vocabularies, tuple(ceilings)
    )


def _side(
    lines: Sequence[str], vocabulary: Vocabulary, name: str, language: str
) -> tuple[SideReport, npt.NDArray[np.int64]]:
    """Return the report of one side and how often each token is used [V]."""
    counts = np.zeros(len(vocabulary), np.int64)
    lost: Counter[str] = Counter()
    written: set[str] = set()
    changed_lines = 0
    for first in range(0, len(lines), _BLOCK_LINES):
        block = lines[first : first + _BLOCK_LINES]
        rows = vocabulary.encode(block)
        counts += np.bincount(np.concatenate(rows), minlength=len(vocabulary))
        for line, decoded in zip(block, map(vocabulary.decode, rows), strict=True):
            written.update(decoded)
            if decoded != line:
                changed_lines += 1
                lost.update(Counter(line) - Counter(decoded))
    counts[EOS] = 0
    is_byte = [vocabulary.processor.is_byte(number) for number in range(len(counts))]
    losses = (
        CharacterLoss(c, times, vocabulary.decode(vocabulary.encode([c])[0]), c not in written)
        for c, times in sorted(lost.items(), key=lambda item: (-item[1], item[0]))
    )
    spaced = not written_without_spaces(language)
    report = SideReport(
        side=name,
        language=language,
        lines=len(lines),
        characters=sum(map(len, lines)),
        words=sum(len(line.split()) for line in lines) if spaced else None,
        tokens=int(counts.sum()),
        unknown_tokens=int(counts[UNK]),
        byte_tokens=int(counts[is_byte].sum()),
        changed_lines=changed_lines,
        losses=tuple(losses),
    )
    return report, counts


def _vocabulary(
    name: str, vocabulary: Vocabulary, counts: npt.NDArray[np.int64], *, scale: float
) -> VocabularyReport:
    """Return the report of one vocabulary; `scale` is the number of pairs per sampled pair.

    The advised size has room for the frequent tokens as `FREQUENT_SHARE` of it, and for every
    single character. It is a lower estimate: without rare tokens the others are used more often.
    """
    texts = vocabulary.texts()
    unused = tuple(text for number, text in texts.items() if not counts[number])
    frequent = int(sum(counts[number] * scale >= FREQUENT for number in texts))
    advised = None
    if frequent < FREQUENT_SHARE * len(texts):
        single = sum(len(text) == 1 for text in texts.values())
        wanted = len(vocabulary) - len(texts) + max(frequent / FREQUENT_SHARE, single)
        size = max(_SMALLEST_SIZE, -int(-wanted // _ADVICE_STEP) * _ADVICE_STEP)
        advised = size if size < len(vocabulary) else None
    size, rare = len(vocabulary), len(texts) - frequent
    return VocabularyReport(name, vocabulary.algorithm, size, len(texts), unused, rare, advised)


def _ceiling(config: Config, tokenizer: Tokenizer, name: str, split: SplitSource) -> Ceiling:
    references = [pair.target for pair in open_split(config.data, name).pairs()]
    decoded = [tokenizer.decode_target(ids) for ids in tokenizer.encode_target(references)]
    bleu = evaluate(
        decoded,
        [references],
        target_language=config.data.of(split).target_language,
        tokenizer=config.evaluation.bleu_tokenizer,
    ).bleu
    changed = sum(map(str.__ne__, decoded, references))
    # For equal texts sacreBLEU returns slightly more than 100, or 0 if all are short.
    value = min(bleu.value, 100.0) if changed else 100.0
    return Ceiling(name, len(references), changed, value, bleu.signature)


def tokenizer_as_text(report: TokenizerReport) -> str:
    """Return the report for a terminal: sides, losses, vocabularies with advice, ceilings."""
    both = report.source, report.target
    sample = "" if report.sampled_pairs == report.pairs else f"{report.sampled_pairs:,} of "
    sides = [("side", "language", "tokens/word", "tokens/character", "unknown", "bytes", "changed")]
    sides += [
        (
            side.side,
            side.language,
            "-" if side.words is None else f"{side.tokens / max(1, side.words):.2f}",
            f"{side.tokens / max(1, side.characters):.3f}",
            f"{side.unknown_tokens / max(1, side.tokens):.3%}",
            f"{side.byte_tokens / max(1, side.tokens):.3%}",
            f"{side.changed_lines:,} lines",
        )
        for side in both
    ]
    tokens = [("vocabulary", "algorithm", "tokens", "unused", f"seen < {FREQUENT} times", "")]
    for each in report.vocabularies:
        rare = f"{each.rare:,} ({each.rare / max(1, each.text_tokens):.1%})"
        unused = f"unused: {shown_tokens(map(printable, each.unused))}" if each.unused else ""
        counts = f"{each.size:,}", f"{len(each.unused):,}", rare
        tokens.append((each.name, each.algorithm, *counts, unused))
    ceilings = [("ceiling on", "BLEU", "references changed", "signature")]
    for c in report.ceilings:
        # A score below 100 must not read 100.00.
        score = f"{c.bleu if c.bleu == 100.0 else min(c.bleu, 99.99):.2f}"
        ceilings.append((c.split, score, f"{c.changed_lines:,} of {c.lines:,}", c.signature))
    parts = [
        f"training text: {sample}{report.pairs:,} pairs",
        aligned(sides, right=range(2, 7)),
        *[_losses(side) for side in both if side.losses],
    ]
    if never := [loss.character for loss in report.target.losses if loss.never_written]:
        shown = " ".join(_visible(c) or _code(c) for c in never[:_SHOWN_CHARACTERS])
        more = ", ..." if len(never) > _SHOWN_CHARACTERS else ""
        what = f"{len(never):,} character{'' if len(never) == 1 else 's'}"
        parts.append(f"{what} that no model with this tokenizer can write: {shown}{more}")
    parts += [
        aligned(tokens, right=[2, 3, 4]),
        "\n".join(map(_advice, report.vocabularies)),
        aligned(ceilings, right=[1, 2]),
    ]
    return "\n\n".join(parts)


def _losses(side: SideReport) -> str:
    rows = [(f"lost, {side.side} side", "", "times", "becomes")]
    for loss in side.losses[:_SHOWN_LOSSES]:
        becomes = f"{_visible(loss.becomes)} {' '.join(map(_code, loss.becomes))}".lstrip()
        if loss.becomes == loss.character:
            becomes = "itself where it stands alone"
        shown = _visible(loss.character), _code(loss.character), f"{loss.count:,}"
        rows.append((*shown, becomes or "nothing"))
    more = len(side.losses) - _SHOWN_LOSSES
    return aligned(rows, right=[2]) + (f"\nand {more:,} other characters" if more > 0 else "")


def _advice(found: VocabularyReport) -> str:
    share = 1 - found.rare / max(1, found.text_tokens)
    verdict = "its size fits this corpus"
    if found.advised_size is not None:
        verdict = f"`tokenizer.vocabulary_size: {found.advised_size}` would fit this corpus better"
    elif share < FREQUENT_SHARE:
        verdict = "a smaller one could not hold its characters"
    return (
        f"{found.name} vocabulary: {share:.1%} of its text tokens are seen {FREQUENT} times or "
        f"more, {FREQUENT_SHARE:.0%} should be (Gowda and May 2020); {verdict}"
    )


def _visible(text: str) -> str:
    """Return `text`, or "" if all of it is invisible."""
    visible = printable(text)
    return visible if visible.strip() and display_width(visible) else ""


def _code(character: str) -> str:
    return f"U+{ord(character):04X}"
