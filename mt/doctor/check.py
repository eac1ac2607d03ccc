"""The corpus doctor: everything that can be told of a config's corpora before a training."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context

from tqdm import tqdm

from mt.config import DataConfig
from mt.data.pairs import PairSource
from mt.data.sources import open_source
from mt.doctor.advice import advise, as_yaml
from mt.doctor.findings import Example, Finding, Report, SplitReport, in_order
from mt.doctor.language_check import other_languages
from mt.doctor.lexicon import Lexicon, learn_lexicon
from mt.doctor.reading import Block, crlf_lines, read_blocks
from mt.doctor.repeats import duplicates, overlaps
from mt.doctor.shift import find_shifts
from mt.doctor.tally import Tally, add_up, tally_block
from mt.errors import DataError

Counting = Callable[[Iterable[Block], str, str], Iterable[Tally]]
"""Of blocks and the languages of source and target."""


@dataclass(frozen=True)
class _Split:
    name: str
    corpus: PairSource
    tally: Tally

    def blocks(self, doing: str) -> Iterator[Block]:
        """Read the corpus once more, and show how far it has got."""
        size = max(self.tally.source.lines, self.tally.target.lines)
        return _watched(read_blocks(self.corpus), f"{self.name}: {doing}", total=size)


def check_corpora(data: DataConfig, *, processes: int = 1) -> Report:
    """Read every split of a config several times and return all that is found.

    Memory grows by 32 bytes a pair. The report is the same whatever the number of processes.
    Raises `DataError` where a corpus cannot be read, or is empty.
    """
    sources = {"train": data.train, "valid": data.valid, **data.tests}
    corpora = {name: open_source(source, data) for name, source in sources.items()}
    with _counting(processes) as count:
        splits = [
            _Split(name, corpus, _tally(name, corpus, data, count=count))
            for name, corpus in corpora.items()
        ]
    lexicon = learn_lexicon(splits[0].blocks("learning words"))
    notes: list[str] = []
    reports = []
    for number, split in enumerate(splits):
        findings = [
            *_of_split(split, lexicon),
            *_languages(split, data, notes),
            *(
                finding
                for other in splits[:number]
                for finding in overlaps(split.tally, other.tally, other.name)
            ),
        ]
        reports.append(_report(split, in_order(findings), data))
    with_train = (
        finding
        for report in reports
        for finding in report.findings
        if finding.kind.startswith("overlap") and finding.other == "train"
    )
    cleaning = as_yaml(advise(reports[0].findings, with_train))
    return Report(tuple(reports), tuple(dict.fromkeys(notes)), cleaning)


@contextmanager
def _counting(processes: int) -> Iterator[Counting]:
    """Give a function that tallies blocks in order, in this process or in others."""
    if processes == 1:
        yield lambda blocks, *languages: (tally_block(block, *languages) for block in blocks)
        return
    # Started anew, not forked: a fork of a process with threads may hang.
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        yield partial(_side_by_side, pool, 2 * processes)


def _side_by_side(
    pool: ProcessPoolExecutor, most_waiting: int, blocks: Iterable[Block], *languages: str
) -> Iterator[Tally]:
    waiting: deque[Future[Tally]] = deque()
    for block in blocks:
        waiting.append(pool.submit(tally_block, block, *languages))
        if len(waiting) > most_waiting:
            yield waiting.popleft().result()
    yield from (future.result() for future in waiting)


def _tally(name: str, corpus: PairSource, data: DataConfig, *, count: Counting) -> Tally:
    blocks = _watched(read_blocks(corpus), f"{name}: counting", total=None)
    tally = add_up(count(blocks, data.source_language, data.target_language))
    if not tally.source.lines or not tally.target.lines:
        raise DataError(f"{corpus.description}: the corpus is empty")
    return tally


def _of_split(split: _Split, lexicon: Lexicon) -> Iterator[Finding]:
    tally = split.tally
    lines = tally.source.lines, tally.target.lines
    longer, least = max(lines), min(lines)
    if longer != least:
        side = "source" if lines[0] > lines[1] else "target"
        yield Finding("uneven", side, longer - least, longer, (least + 1,))
    for shift in find_shifts(split.blocks("looking for shifts"), lexicon):
        yield Finding("shift", "pair", 1, least, (shift.line,), f"{shift.distance:+d}")
    for side, size, count in zip(
        ("source", "target"), lines, crlf_lines(split.corpus), strict=True
    ):
        yield Finding("crlf", side, count, size, ())
    yield from tally.findings()
    yield from duplicates(tally)


def _languages(split: _Split, data: DataConfig, notes: list[str]) -> list[Finding]:
    languages = (data.source_language, data.target_language)
    pairs = min(split.tally.source.lines, split.tally.target.lines)
    try:
        return other_languages(split.blocks("telling languages"), pairs, languages=languages)
    except DataError as error:
        notes.append(f"languages were not looked at: {error}")
        return []


def _report(split: _Split, findings: tuple[Finding, ...], data: DataConfig) -> SplitReport:
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
        split.tally.source.as_side(data.source_language),
        split.tally.target.as_side(data.target_language),
        split.tally.ratio_histogram(),
        findings,
        tuple(examples),
    )


def _watched(blocks: Iterable[Block], doing: str, *, total: int | None) -> Iterator[Block]:
    with tqdm(desc=doing, total=total, unit="line", leave=False, disable=None) as bar:
        for block in blocks:
            yield block
            bar.update(max(len(block.sources), len(block.targets)))
