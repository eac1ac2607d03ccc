"""Full check of the corpora of a config, for `mt data check`."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from tqdm import tqdm

from mt.config import DataConfig
from mt.data.filters import in_other_language, known_languages
from mt.data.pairs import PairSource
from mt.data.sources import open_source
from mt.doctor.findings import (
    KINDS,
    MAX_LINES_SHOWN,
    Example,
    Finding,
    Report,
    SplitReport,
    advise,
    as_yaml,
)
from mt.doctor.first_look import language_warnings, sample_pairs
from mt.doctor.misalignment import (
    Lexicon,
    are_unrelated,
    find_shifts,
    learn_lexicon,
    spread_stretches,
)
from mt.doctor.tally import (
    Block,
    Map,
    Tally,
    add_up,
    crlf_lines,
    duplicates,
    overlaps,
    process_map,
    read_blocks,
    tally_block,
)
from mt.errors import DataError
from mt.languages import base_language, scripts_of

_MAX_IDENTIFIED = 100_000
"""Pairs in the sample for language identification, which is slow."""
_SAMPLED_STRETCHES = 100


@dataclass(frozen=True)
class _Split:
    name: str
    corpus: PairSource
    languages: tuple[str, str]
    tally: Tally

    def blocks(self, task: str) -> Iterator[Block]:
        """Read the corpus once more, with a progress bar."""
        size = max(self.tally.source.lines, self.tally.target.lines)
        return _with_progress(read_blocks(self.corpus), f"{self.name}: {task}", total=size)


def check_corpora(data: DataConfig, *, processes: int = 1) -> Report:
    """Read every split of a config several times and return all warnings.

    Each corpus of a mixture is a split of its own. Memory grows by about 110 bytes a pair: 32 for
    hashes, the rest while they are sorted. The report does not depend on the number of processes.
    Raises DataError if a corpus cannot be read or is empty.
    """
    training = data.train_corpora()
    sources = {**training, "valid": data.valid, **data.tests}
    opened = {name: open_source(source, data) for name, source in training.items()}
    reports: list[SplitReport] = []
    notes: list[str] = []
    for name, corpus in open_splits(data).items():
        try:
            if isinstance(corpus, HeldOutPairs):
                corpus.checksums()
            opened[name] = corpus
        except DataError as error:  # such as training sides of unequal length, checked below
            notes.append(f"{name}: was not checked: {error}")
    lexicons: dict[tuple[str, str], Lexicon] = {}
    with process_map(processes) as parallel:
        splits = [
            _tallied(name, corpus, data.of(sources[name]), parallel=parallel)
            for name, corpus in opened.items()
        ]
        for number, split in enumerate(splits):
            # Training leaves held-out pairs out.
            unlike = training if isinstance(split.corpus, HeldOutPairs) else ()
            earlier = [other for other in splits[:number] if other.name not in unlike]
            blocks = split.blocks("sampling lines")
            stretches = spread_stretches(blocks, at_least=_SAMPLED_STRETCHES)
            # The first split in two languages is a training corpus if there is one.
            if split.languages not in lexicons:
                lexicons[split.languages] = learn_lexicon(stretches)
            lexicon = lexicons[split.languages]
            findings = [
                *_out_of_step(split, stretches, lexicon, parallel=parallel),
                *_of_tally(split, earlier),
                *_other_languages(split, parallel=parallel),
            ]
            reports.append(_report(split, findings))
            sample = sample_pairs(stretches)
            notes += [f"{split.name}: {n}" for n in language_warnings(sample, split.languages)]
    train, others = reports[: len(training)], reports[len(training) :]
    overlaps = [f for each in others for f in each.findings if f.other in training]
    cleaning = as_yaml(advise(train, overlaps))
    return Report(tuple(reports), (*misaligned(train), *notes, *_skipped(splits)), cleaning)


def _tallied(name: str, corpus: PairSource, data: DataConfig, *, parallel: Map) -> _Split:
    blocks = _with_progress(read_blocks(corpus), f"{name}: counting", total=None)
    source, target = languages = data.source_language, data.target_language
    count = partial(tally_block, source_language=source, target_language=target)
    tally = add_up(parallel(count, blocks))
    if not tally.source.lines or not tally.target.lines:
        raise DataError(f"{corpus.description}: the corpus is empty")
    return _Split(name, corpus, languages, tally)


def _out_of_step(
    split: _Split, stretches: Sequence[Block], lexicon: Lexicon, *, parallel: Map
) -> Iterator[Finding]:
    lines = split.tally.source.lines, split.tally.target.lines
    longer, pairs = max(lines), min(lines)
    if longer != pairs:
        side = "source" if lines[0] > lines[1] else "target"
        yield Finding("uneven", side, longer - pairs, longer, (pairs + 1,))
    if are_unrelated(stretches, lexicon):
        yield Finding("unrelated", "pair", pairs, pairs, ())
        return
    for shift in find_shifts(split.blocks("aligning"), lexicon, parallel=parallel):
        yield Finding("shift", "pair", 1, pairs, (shift.line,), f"{shift.distance:+d}")


def _of_tally(split: _Split, others: Iterable[_Split]) -> Iterator[Finding]:
    tally = split.tally
    crlf = crlf_lines(split.corpus)
    yield Finding("crlf", "source", crlf[0], tally.source.lines, ())
    yield Finding("crlf", "target", crlf[1], tally.target.lines, ())
    yield from tally.findings
    yield from duplicates(tally)
    for other in others:
        yield from overlaps(tally, other.tally, other.name)


def _other_languages(split: _Split, *, parallel: Map) -> list[Finding]:
    """Count the lines of a fixed sample in another language; without py3langid return nothing."""
    try:
        known_languages()
    except DataError:
        return []
    pairs = min(split.tally.source.lines, split.tally.target.lines)
    sampled = min(pairs, _MAX_IDENTIFIED)
    is_sampled = np.zeros(pairs, dtype=bool)
    is_sampled[np.random.default_rng(1).choice(pairs, sampled, replace=False)] = True
    samples = (
        [pair for pair in block.numbered() if is_sampled[pair[0] - 1]]
        for block in split.blocks("identifying languages")
    )
    found = list(parallel(partial(_identify, split.languages), samples))
    findings = []
    for number, side in enumerate(("source", "target")):
        hits = tuple(line for part in found for line in part[number])
        findings.append(Finding("other_language", side, len(hits), sampled, hits[:MAX_LINES_SHOWN]))
    return findings


def _identify(
    languages: tuple[str, str], pairs: Sequence[tuple[int, str, str]]
) -> tuple[list[int], list[int]]:
    """Return the numbers of the source lines and of the target lines in another language."""
    return (
        [number for number, text, _ in pairs if in_other_language(text, languages[0])],
        [number for number, _, text in pairs if in_other_language(text, languages[1])],
    )


def _report(split: _Split, findings: Iterable[Finding]) -> SplitReport:
    warnings = [finding for finding in findings if finding.count]
    warnings.sort(key=lambda finding: [*KINDS].index(finding.kind))
    wanted = {line for finding in warnings for line in finding.lines}
    examples = [
        Example(line, source, target)
        for block in split.blocks("reading examples")
        for line, source, target in block.numbered()
        if line in wanted
    ]
    return SplitReport(
        split.name,
        split.corpus.description,
        split.tally.source.as_side(split.languages[0]),
        split.tally.target.as_side(split.languages[1]),
        split.tally.ratio_histogram(),
        tuple(warnings),
        tuple(examples),
    )


def misaligned(train: Iterable[SplitReport]) -> Iterator[str]:
    """Yield a note on each training corpus whose sides do not match, so that no count is right."""
    for split in train:
        shifts = [f.lines[0] for f in split.findings if f.kind in {"shift", "uneven"}]
        if shifts:
            yield (
                f"{split.name}: repair the sides near line {min(shifts)} and check again; until "
                "then the other counts and the cleaning come from lines that do not match"
            )


def _skipped(splits: Iterable[_Split]) -> Iterator[str]:
    """Yield the checks that were skipped, once for each language."""
    languages = dict.fromkeys(code for split in splits for code in split.languages)
    try:
        known = known_languages()
    except DataError as error:
        yield f"languages were not checked: {error}"
        known = frozenset(map(base_language, languages))
    for language in languages:
        skipped = []
        if not scripts_of(language):
            skipped.append("its script is unknown")
        if base_language(language) not in known:
            skipped.append("py3langid does not identify it")
        if skipped:
            yield f"`{language}` was not fully checked: {' and '.join(skipped)}"


def _with_progress(blocks: Iterable[Block], task: str, *, total: int | None) -> Iterator[Block]:
    with tqdm(desc=task, total=total, unit="line", leave=False, disable=None) as bar:
        for block in blocks:
            yield block
            bar.update(max(len(block.sources), len(block.targets)))
