"""Counts over blocks of lines."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import count, islice, tee

import numpy as np
import numpy.typing as npt
from tqdm import tqdm

from mt.data.corpus_files import LineReader
from mt.data.filters import (
    PAIR_FACTOR,
    hash_text,
    in_other_language,
    in_wrong_script,
    normalized,
)
from mt.data.pairs import PairSource, TextPairs
from mt.data.tokenizer import Vocabulary
from mt.doctor.findings import CHECKS, MAX_LINES_SHOWN, Fertility, Finding, SideSize
from mt.languages import written_without_spaces

BLOCK_LINES = 4000
_MAX_IDENTIFIED = 100_000
"""Texts of a side whose language is identified, which is slow."""


@dataclass(frozen=True, slots=True)
class LineBlock:
    """Consecutive lines of both sides; the lists differ in length only past the end of a side."""

    first: int
    sources: list[str]
    targets: list[str]

    def numbered(self) -> Iterator[tuple[int, str, str]]:
        """Yield line number (from 1), source and target of each pair."""
        return zip(count(self.first + 1), self.sources, self.targets, strict=False)


def read_blocks(corpus: PairSource, task: str) -> Iterator[LineBlock]:
    """Stream a corpus, also of unequal sides, in blocks of 4,000 lines with a progress bar."""
    if isinstance(corpus, TextPairs):
        left: Iterator[str] = iter(LineReader(corpus.source, long_line=""))
        right: Iterator[str] = iter(LineReader(corpus.target, long_line=""))
    else:
        pairs, same_pairs = tee(corpus.pairs())
        left, right = (pair.source for pair in pairs), (pair.target for pair in same_pairs)
    with tqdm(desc=task, unit=" lines", unit_scale=True, leave=False, disable=None) as bar:
        for first in count(0, BLOCK_LINES):
            sources, targets = list(islice(left, BLOCK_LINES)), list(islice(right, BLOCK_LINES))
            if not sources and not targets:
                return
            yield LineBlock(first, sources, targets)
            bar.update(max(len(sources), len(targets)))


Hashes = npt.NDArray[np.uint64]


@dataclass(frozen=True, slots=True)
class SideCounts:
    """Characters and hashes of each line of one side."""

    lengths: npt.NDArray[np.int32]
    exact: Hashes
    normalized: Hashes

    def size(self, language: str, fertility: Fertility | None) -> SideSize:
        """Return the counts for a report."""
        longest, characters = int(self.lengths.max(initial=0)), int(self.lengths.sum())
        return SideSize(language, len(self.lengths), characters, longest, fertility)


@dataclass(frozen=True, slots=True)
class PairCounts:
    """Counts of both sides, and a finding for each of `CHECKS`, also with a count of 0."""

    source: SideCounts
    target: SideCounts
    findings: tuple[Finding, ...]

    @property
    def pairs(self) -> int:
        """Number of lines that have an opposite line."""
        return min(len(self.source.lengths), len(self.target.lengths))


def count_pairs(
    blocks: Iterable[LineBlock], source_language: str, target_language: str
) -> PairCounts:
    """Count the lines of consecutive blocks; they take 40 bytes a pair."""
    languages = source_language, target_language
    pairs = 0
    counts = Counter[tuple[str, str]]()
    first_lines: dict[tuple[str, str], list[int]] = {check: [] for check in CHECKS}
    none = np.empty(0, np.int32), np.empty(0, np.uint64), np.empty(0, np.uint64)
    sides = [none], [none]
    for block in blocks:
        pairs += min(len(block.sources), len(block.targets))
        for (kind, side), matches in CHECKS.items():
            if side == "pair":
                lines = [n for n, *pair in block.numbered() if matches(*pair)]
            else:
                index = ("source", "target").index(side)
                language = languages[index]
                lines = [n for n, *pair in block.numbered() if matches(pair[index], language)]
            counts[kind, side] += len(lines)
            first = first_lines[kind, side]
            first += lines[: MAX_LINES_SHOWN - len(first)]
        for parts, texts in zip(sides, (block.sources, block.targets), strict=True):
            exact = np.array([hash_text(text) for text in texts], np.uint64)
            loose = np.array([hash_text(normalized(text)) for text in texts], np.uint64)
            parts.append((np.array([*map(len, texts)], np.int32), exact, loose))
    source, target = (SideCounts(*map(np.concatenate, zip(*parts, strict=True))) for parts in sides)
    findings = (
        Finding(*check, counts[check], pairs, tuple(lines)) for check, lines in first_lines.items()
    )
    return PairCounts(source, target, tuple(findings))


def measure_fertility(lines: Sequence[str], vocabulary: Vocabulary, language: str) -> Fertility:
    """Count the tokens of some lines, and the characters that encoding and decoding loses."""
    tokens = 0
    lost: Counter[str] = Counter()
    for line, ids in zip(lines, vocabulary.encode(lines), strict=True):
        tokens += len(ids) - 1  # the end mark
        decoded = vocabulary.decode(ids)
        if decoded != line:
            lost.update(Counter(line) - Counter(decoded))
    words = None if written_without_spaces(language) else sum(len(line.split()) for line in lines)
    ranked = sorted(lost.items(), key=lambda item: (-item[1], item[0]))
    return Fertility(tokens, sum(map(len, lines)), words, tuple(ranked))


def find_duplicates(counts: PairCounts) -> list[Finding]:
    """Count the exact repetitions of pairs, and of sides in other pairs."""
    findings = []
    pairs = np.zeros(counts.pairs, dtype=bool)
    for part, hashes in _combine_sides(counts, "exact").items():
        repeated = np.ones(len(hashes), dtype=bool)
        repeated[np.unique(hashes, return_index=True)[1]] = False
        repeated[: counts.pairs] &= ~pairs
        pairs = repeated if part == "pair" else pairs
        findings.append(_make_finding(f"duplicate_{part}", part, repeated))
    return findings


def find_overlaps(counts: PairCounts, other: PairCounts, name: str) -> list[Finding]:
    """Count the pairs and sides of a split that are in the split `name`, exactly and normalized.

    Both sides are looked for on both sides. A normalized count equal to the exact one is left out.
    """
    turned = replace(other, source=other.target, target=other.source)
    findings, shared = [], dict[str, int]()
    for form, suffix in (("exact", ""), ("normalized", "_normalized")):
        there, back = _combine_sides(other, form), _combine_sides(turned, form)
        for part, hashes in _combine_sides(counts, form).items():
            common = np.isin(hashes, there[part]) | np.isin(hashes, back[part])
            if not suffix or common.sum() > shared[part]:
                kind = f"overlap_{part}{suffix}"
                findings.append(_make_finding(kind, part, common, other=name))
            shared[part] = int(common.sum())
    return findings


def _combine_sides(counts: PairCounts, form: str) -> dict[str, Hashes]:
    source, target = getattr(counts.source, form), getattr(counts.target, form)
    pairs = min(len(source), len(target))
    pair = source[:pairs] * np.uint64(PAIR_FACTOR) + target[:pairs]
    return {"pair": pair, "source": source, "target": target}


def _make_finding(kind: str, side: str, mask: npt.NDArray[np.bool_], *, other: str = "") -> Finding:
    lines = tuple((np.flatnonzero(mask)[:MAX_LINES_SHOWN] + 1).tolist())
    return Finding(kind, side, int(mask.sum()), len(mask), lines, other)


def find_other_languages(
    blocks: Iterable[LineBlock], pairs: int, languages: tuple[str, str]
) -> list[Finding]:
    """Count the lines of a fixed sample in another language, by py3langid."""
    sampled = min(pairs, _MAX_IDENTIFIED)
    is_sampled = np.zeros(pairs, dtype=bool)
    is_sampled[np.random.default_rng(1).choice(pairs, sampled, replace=False)] = True
    lines: tuple[list[int], list[int]] = [], []
    for line, *texts in (pair for block in blocks for pair in block.numbered()):
        if is_sampled[line - 1]:
            for text, language, found in zip(texts, languages, lines, strict=True):
                # A wrong script is a fault of its own.
                if not in_wrong_script(text, language) and in_other_language(text, language):
                    found.append(line)
    total = pairs if sampled < pairs else 0
    return [
        Finding(
            "other_language", side, len(hits), sampled, tuple(hits[:MAX_LINES_SHOWN]), total=total
        )
        for side, hits in zip(("source", "target"), lines, strict=True)
    ]
