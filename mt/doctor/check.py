"""Full check of the corpora of a config, for `mt data check`."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from zlib import crc32

import numpy as np
from tqdm import tqdm

from mt.config import DataConfig
from mt.config.data import HeldOutSource
from mt.data.filters import TrainingCorpus
from mt.data.held_out import HeldOutPairs, open_splits
from mt.data.language_id import can_be_judged, identify, in_other_language, known_languages
from mt.data.pair_checks import in_wrong_script
from mt.data.pairs import PairSource, SentencePair
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
    in_words,
)
from mt.doctor.misalignment import (
    CHUNK_LINES,
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

SAMPLED_STRETCHES = 30
"""Stretches of 100 lines to sample, or up to twice as many."""
_MAX_PAIRS = 2000
_MIN_PAIRS = 100
_MAX_IDENTIFIED = 200
_MIN_SHARES = {
    "wrong_script": 0.1,
    "mojibake": 0.1,
    "identical": 0.5,
    "tokenized": 0.5,
    "tokens": 0.5,
}
"""Share of the sample from which a kind of finding is a warning."""
_MIN_OVERLAP = 0.01
_MAJORITY = 0.5
_MAX_HASHES = 1 << 16
_MAX_WARNINGS = 5


def first_look(corpus: TrainingCorpus) -> list[str]:
    """Return at most five warnings about a corpus, the worst first, each a clause.

    Defects that the corpus's cleaning removes are left out. The result is deterministic. Raises
    DataError if a corpus cannot be read.
    """
    data = corpus.cleaning.data
    # Training leaves held-out pairs out, so that only the other splits can be in it.
    splits = {
        name: {(pair.source, pair.target) for pair in open_source(split, data).pairs()}
        for name, split in {"valid": data.valid, **data.tests}.items()
        if not isinstance(split, HeldOutSource)
    }
    sizes = {name: len(pairs) for name, pairs in splits.items()}
    repeats = _Repeats()

    def watched_blocks() -> Iterator[Block]:
        for block in read_blocks(corpus.source):
            for pairs in splits.values():
                pairs.difference_update(zip(block.sources, block.targets, strict=False))
            repeats.add(block)
            yield block

    stretches = spread_stretches(watched_blocks(), at_least=SAMPLED_STRETCHES)
    sample = list(corpus.cleaning.clean(sample_pairs(stretches)))
    warnings = list(_out_of_step(stretches))
    if len(sample) >= _MIN_PAIRS:
        languages = data.source_language, data.target_language
        warnings += _swapped_scripts(sample, languages) or [
            *_shares(sample, languages),
            *_identified_languages(sample, languages),
        ]
    if not data.cleaning.overlap:
        found = {name: size - len(splits[name]) for name, size in sizes.items()}
        warnings += [
            f"{found[name]:,} of the {size:,} pairs of `{name}` are also in it"
            for name, size in sizes.items()
            if found[name] >= _MIN_OVERLAP * size
        ]
    if not data.cleaning.duplicates and repeats.share > _MAJORITY:
        warnings.append(f"{repeats.share:.0%} of the pairs are repetitions")
    return warnings[:_MAX_WARNINGS]


def sample_pairs(stretches: Sequence[Block]) -> list[SentencePair]:
    """Return at most 2,000 pairs, evenly spread over the stretches."""
    pairs = [pair for each in stretches for pair in map(SentencePair, each.sources, each.targets)]
    return pairs[:: len(pairs) // _MAX_PAIRS + 1]


def language_warnings(pairs: Sequence[SentencePair], languages: tuple[str, str]) -> list[str]:
    """Warn if the sides are swapped or in other languages than (source, target) `languages`.

    Uses scripts if they differ, else py3langid if it is installed. Returns nothing for fewer than
    100 pairs.
    """
    if len(pairs) < _MIN_PAIRS:
        return []
    return _swapped_scripts(pairs, languages) or _identified_languages(pairs, languages)


def are_swapped(pairs: Sequence[SentencePair], languages: tuple[str, str]) -> bool:
    """Return True if the sides are in each other's language, judged as by `language_warnings`."""
    return language_warnings(pairs, languages) == [_swapped(languages)]


def _out_of_step(stretches: Sequence[Block]) -> Iterator[str]:
    """Yield the first shift, or that the sides are unrelated; shifts between stretches are lost."""
    lexicon = learn_lexicon(stretches)
    if are_unrelated(stretches, lexicon):
        yield KINDS["unrelated"]
        return
    for shift in find_shifts(stretches, lexicon)[:1]:
        number, line = divmod(shift.line - 1, CHUNK_LINES)
        after = stretches[number].first + line + 1
        yield (
            f"the sides go out of step, at line {after:,} or before: from there on line i "
            f"translates to line i{shift.distance:+d}"
        )


def _swapped_scripts(pairs: Sequence[SentencePair], languages: tuple[str, str]) -> list[str]:
    """Warn if most sides are in the script of the other side's language only."""
    swapped = sum(
        in_wrong_script(pair.source, languages[0])
        and in_wrong_script(pair.target, languages[1])
        and not in_wrong_script(pair.source, languages[1])
        and not in_wrong_script(pair.target, languages[0])
        for pair in pairs
    )
    return [_swapped(languages)] if swapped > _MAJORITY * len(pairs) else []


def _swapped(languages: tuple[str, str]) -> str:
    source, target = languages
    return f"the sides look swapped: `{target}` on the source side, `{source}` on the target side"


def _shares(pairs: Sequence[SentencePair], languages: tuple[str, str]) -> Iterator[str]:
    """Yield the checks that match a large share of the sampled pairs."""
    block = Block(0, [pair.source for pair in pairs], [pair.target for pair in pairs])
    for finding in tally_block(block, *languages).findings:
        if finding.share >= _MIN_SHARES.get(finding.kind, 2.0):
            yield f"{finding.share:.0%} of a sample: {in_words(finding)}"


def _identified_languages(pairs: Sequence[SentencePair], languages: tuple[str, str]) -> list[str]:
    """Warn of sides in another language of the same script; without py3langid return nothing.

    Loading the identifier takes longer than everything else here.
    """
    if scripts_of(languages[0]) != scripts_of(languages[1]):
        return []
    try:
        source = _other_language([pair.source for pair in pairs], languages[0])
        target = _other_language([pair.target for pair in pairs], languages[1])
    except DataError:
        return []
    if (target, source) == tuple(map(base_language, languages)):
        return [_swapped(languages)]
    return [
        f"the {side} side seems to be in `{found}`, `data.{side}_language` is `{language}`"
        for side, found, language in zip(
            ("source", "target"), (source, target), languages, strict=True
        )
        if found
    ]


def _other_language(texts: Sequence[str], language: str) -> str | None:
    """Return the language of most texts, or None if it may be `language`."""
    judged = [text for text in texts if can_be_judged(text, language)][:_MAX_IDENTIFIED]
    others = [text for text in judged if in_other_language(text, language)]
    if len(judged) < _MIN_PAIRS or len(others) <= _MAJORITY * len(judged):
        return None
    return Counter(identify(text).language for text in others).most_common(1)[0][0]


class _Repeats:
    """Counter of repeated pairs in bounded memory: it samples by hash, all copies or none."""

    def __init__(self) -> None:
        self._counts: Counter[int] = Counter()
        self._every = 1

    @property
    def share(self) -> float:
        """Share of the pairs that have occurred before."""
        return 1 - len(self._counts) / max(1, self._counts.total())

    def add(self, block: Block) -> None:
        pairs = zip(block.sources, block.targets, strict=False)
        codes = (crc32(f"{s}\n{t}".encode("utf-8", "surrogatepass")) for s, t in pairs)
        self._counts.update([code for code in codes if not code % self._every])
        while len(self._counts) > _MAX_HASHES:
            self._every *= 2
            kept = ((c, n) for c, n in self._counts.items() if not c % self._every)
            self._counts = Counter(dict(kept))


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
