"""The corpus doctor: everything that can be told of a config's corpora before a training."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from tqdm import tqdm

from mt.config import DataConfig
from mt.config.data import Source
from mt.data.language_id import in_other_language, known_languages
from mt.data.pairs import PairSource
from mt.data.sources import open_source
from mt.doctor.alignment import Lexicon, find_shifts, learn_lexicon
from mt.doctor.findings import (
    MOST_LINES_TOLD,
    Example,
    Finding,
    Report,
    SplitReport,
    advise,
    as_yaml,
    in_order,
)
from mt.doctor.tally import (
    Block,
    Spread,
    Tally,
    add_up,
    crlf_lines,
    duplicates,
    here,
    overlaps,
    read_blocks,
    spread_over,
    tally_block,
)
from mt.errors import DataError
from mt.languages import base_language, scripts_of

MOST_PAIRS = 100_000
"""An identifier takes some time for each line; a share is known well enough from so many."""
_SEED = 1


@dataclass(frozen=True, slots=True)
class _Chosen:
    """The lines of a block that are looked at, with their numbers from 1."""

    numbers: list[int]
    sources: list[str]
    targets: list[str]


def other_languages(
    blocks: Iterable[Block], pairs: int, *, languages: tuple[str, str], spread: Spread = here
) -> list[Finding]:
    """Return how many lines of a sample are surely in another language, for either side.

    The sample is the same in each call; `DataError` where py3langid is not installed.
    """
    known_languages()  # raises here, not in another process
    chosen = _sample(pairs)
    found: tuple[list[int], list[int]] = ([], [])
    samples = (_within(chosen, block) for block in blocks)
    for hits in spread(partial(_judge, languages), samples):
        for all_hits, more in zip(found, hits, strict=True):
            all_hits += more
    return [
        Finding("other_language", side, len(hits), len(chosen), tuple(hits[:MOST_LINES_TOLD]))
        for side, hits in zip(("source", "target"), found, strict=True)
    ]


def _judge(languages: tuple[str, str], sample: _Chosen) -> tuple[list[int], list[int]]:
    sides = (sample.sources, sample.targets)
    source, target = (
        [n for n, text in zip(sample.numbers, texts, strict=True) if in_other_language(text, code)]
        for texts, code in zip(sides, languages, strict=True)
    )
    return source, target


def _sample(pairs: int) -> "np.ndarray[tuple[int], np.dtype[np.int64]]":
    """Return the numbers of the pairs that are looked at, from 0, in order."""
    if pairs <= MOST_PAIRS:
        return np.arange(pairs)
    generator = np.random.default_rng(_SEED)
    return np.sort(generator.choice(pairs, MOST_PAIRS, replace=False))


def _within(chosen: "np.ndarray[tuple[int], np.dtype[np.int64]]", block: Block) -> _Chosen:
    end = block.first + len(block.sources)
    first, last = np.searchsorted(chosen, (block.first, end))
    places = (chosen[first:last] - block.first).tolist()
    return _Chosen(
        [block.first + place + 1 for place in places],
        [block.sources[place] for place in places],
        [block.targets[place] for place in places],
    )


@dataclass(frozen=True)
class _Split:
    name: str
    corpus: PairSource
    languages: tuple[str, str]
    tally: Tally

    def blocks(self, doing: str) -> Iterator[Block]:
        """Read the corpus once more, and show how far it has got."""
        size = max(self.tally.source.lines, self.tally.target.lines)
        return _watched(read_blocks(self.corpus), f"{self.name}: {doing}", total=size)


def check_corpora(data: DataConfig, *, processes: int = 1) -> Report:
    """Read every split of a config several times and return all that is found.

    Each corpus of a mixture is a split of its own. Memory grows by about 110 bytes a pair: 32 for
    hashes, the rest while they are sorted. The report is the same whatever the number of
    processes. Raises `DataError` where a corpus cannot be read, or is empty.
    """
    training = data.train_corpora()
    sources = {**training, "valid": data.valid, **data.tests}
    opened = [(name, source, open_source(source, data)) for name, source in sources.items()]
    with spread_over(processes) as spread:
        splits = [
            _Split(name, corpus, languages, _tally(name, corpus, languages, spread=spread))
            for name, source, corpus in opened
            for languages in [_languages_of(source, data)]
        ]
        lexicons = _Lexicons({})
        reports = [
            _report(split, _findings(split, splits[:number], lexicons.of(split), spread=spread))
            for number, split in enumerate(splits)
        ]
    with_training = [
        finding
        for report in reports[len(training) :]
        for finding in report.findings
        if finding.kind.startswith("overlap") and finding.other in training
    ]
    cleaning = as_yaml(advise(reports[: len(training)], with_training))
    notes = (*_slips(reports[: len(training)]), *_notes(splits))
    return Report(tuple(reports), notes, cleaning)


def _languages_of(source: Source, data: DataConfig) -> tuple[str, str]:
    own = data.of(source)
    return own.source_language, own.target_language


@dataclass(frozen=True)
class _Lexicons:
    """The lexicon of each two languages, from the first split in them, which is a training one.

    A test in languages that are not trained on teaches its own.
    """

    known: dict[tuple[str, str], Lexicon]

    def of(self, split: _Split) -> Lexicon:
        if split.languages not in self.known:
            self.known[split.languages] = learn_lexicon(split.blocks("learning words"))
        return self.known[split.languages]


def _tally(name: str, corpus: PairSource, languages: tuple[str, str], *, spread: Spread) -> Tally:
    blocks = _watched(read_blocks(corpus), f"{name}: counting", total=None)
    source, target = languages
    count = partial(tally_block, source_language=source, target_language=target)
    tally = add_up(spread(count, blocks))
    if not tally.source.lines or not tally.target.lines:
        raise DataError(f"{corpus.description}: the corpus is empty")
    return tally


def _findings(
    split: _Split, others: Sequence[_Split], lexicon: Lexicon, *, spread: Spread
) -> tuple[Finding, ...]:
    with_others = (overlaps(split.tally, other.tally, other.name) for other in others)
    findings = [
        *_of_split(split, lexicon, spread),
        *_in_other_languages(split, spread),
        *(finding for found in with_others for finding in found),
    ]
    return in_order(findings)


def _of_split(split: _Split, lexicon: Lexicon, spread: Spread) -> Iterator[Finding]:
    tally = split.tally
    lines = tally.source.lines, tally.target.lines
    longer, least = max(lines), min(lines)
    if longer != least:
        side = "source" if lines[0] > lines[1] else "target"
        yield Finding("uneven", side, longer - least, longer, (least + 1,))
    for shift in find_shifts(split.blocks("looking for shifts"), lexicon, spread=spread):
        yield Finding("shift", "pair", 1, least, (shift.line,), f"{shift.distance:+d}")
    for side, size, count in zip(
        ("source", "target"), lines, crlf_lines(split.corpus), strict=True
    ):
        yield Finding("crlf", side, count, size, ())
    yield from tally.findings()
    yield from duplicates(tally)


def _in_other_languages(split: _Split, spread: Spread) -> list[Finding]:
    pairs = min(split.tally.source.lines, split.tally.target.lines)
    blocks = split.blocks("telling languages")
    try:
        return other_languages(blocks, pairs, languages=split.languages, spread=spread)
    except DataError:  # no identifier, of which there is a note
        return []


def _slips(train: Iterable[SplitReport]) -> Iterator[str]:
    """Tell which training pairs have to be mended before anything else told of them is right."""
    for split in train:
        slips = [f.lines[0] for f in split.findings if f.kind in {"shift", "uneven"}]
        if slips:
            yield (
                f"{split.name}: mend the slip near line {min(slips)} first, and check again: the "
                "other counts, and the cleaning, are of lines that do not belong together"
            )


def _notes(splits: Iterable[_Split]) -> Iterator[str]:
    """Tell what was not looked at, once for each language."""
    languages = dict.fromkeys(code for split in splits for code in split.languages)
    try:
        known = known_languages()
    except DataError as error:
        yield f"languages were not looked at: {error}"
        known = frozenset(map(base_language, languages))
    for language in languages:
        missing = []
        if not scripts_of(language):
            missing.append("in which script it is written")
        if base_language(language) not in known:
            missing.append("how to tell it from other languages")
        if missing:
            yield f"`{language}` was not looked at in full: not known is {' and '.join(missing)}"


def _report(split: _Split, findings: tuple[Finding, ...]) -> SplitReport:
    wanted = {line for finding in findings for line in finding.lines}
    examples = [
        Example(line + 1, block.sources[line - block.first], block.targets[line - block.first])
        for block in split.blocks("reading examples")
        for line in range(block.first, block.first + min(len(block.sources), len(block.targets)))
        if line + 1 in wanted
    ]
    return SplitReport(
        split.name,
        split.corpus.description,
        split.tally.source.as_side(split.languages[0]),
        split.tally.target.as_side(split.languages[1]),
        split.tally.ratio_histogram(),
        findings,
        tuple(examples),
    )


def _watched(blocks: Iterable[Block], doing: str, *, total: int | None) -> Iterator[Block]:
    with tqdm(desc=doing, total=total, unit="line", leave=False, disable=None) as bar:
        for block in blocks:
            yield block
            bar.update(max(len(block.sources), len(block.targets)))
