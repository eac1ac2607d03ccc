"""What is alarming in pairs that are about to be trained on: one pass, and a sample of them.

Made to be silent on corpora that one can train on; `check_corpora` tells all there is.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from zlib import crc32

from mt.config.data import DataConfig
from mt.data.filters import TrainingCorpus
from mt.data.language_id import can_be_judged, identify, in_other_language
from mt.data.pair_checks import in_wrong_script
from mt.data.pairs import SentencePair
from mt.data.sources import open_source
from mt.doctor.alignment import (
    CHUNK_LINES,
    Lexicon,
    find_shifts,
    learn_lexicon,
    likeness_in_step,
    spread_stretches,
)
from mt.doctor.findings import CHECKS, Finding
from mt.doctor.report import in_words
from mt.doctor.tally import Block, read_blocks
from mt.errors import DataError
from mt.languages import base_language, scripts_of

_STRETCHES = 30
"""Stretches of 100 lines in which a shift is looked for, or up to twice as many."""
_MOST_PAIRS = 2000
_LEAST_PAIRS = 100
"""The share in fewer says little."""
_MOST_JUDGED = 200
_ALARMING = {
    "wrong_script": 0.1,
    "mojibake": 0.1,
    "identical": 0.5,
    "tokenized": 0.5,
    "tokens": 0.5,
}
"""By kind of finding, the share from which on it is told."""
_ALARMING_OVERLAP = 0.01
_MOST = 0.5
_MOST_KEPT = 1 << 16
_MOST_ALARMS = 5
UNRELATED = (
    "the lines of one side have nothing in common with those opposite, as if a side had been "
    "shuffled"
)
_LEAST_LINES_RELATED = 1000
_RELATED = 0.7
"""Of `likeness_in_step`: of 8 real corpora the least has 1.5, shuffled the most has 0.5."""


def first_look(corpus: TrainingCorpus) -> list[str]:
    """Return what is alarming in a corpus and not taken out by its cleaning, the worst first.

    At most five clauses, and the same ones in each call. Raises `DataError` where something cannot
    be read.
    """
    cleaning = corpus.cleaning.without_noise()
    data = cleaning.data
    overlaps, repeats = _Overlaps(data), _Repeats()
    blocks = repeats.watch(overlaps.watch(read_blocks(corpus.source)))
    stretches = spread_stretches(blocks, at_least=_STRETCHES)
    pairs = [pair for stretch in stretches for pair in map(SentencePair, *_sides(stretch))]
    sample = list(cleaning.clean(pairs[:: len(pairs) // _MOST_PAIRS + 1]))
    alarms = [*_shifts(stretches)]
    if len(sample) >= _LEAST_PAIRS:
        alarms += _swapped(sample, data) or [*_shares(sample, data), *_languages(sample, data)]
    if not data.cleaning.overlap:
        alarms += overlaps.alarms()
    if not data.cleaning.duplicates and repeats.share > _MOST:
        alarms.append(f"{repeats.share:.0%} of the pairs were there before")
    return alarms[:_MOST_ALARMS]


def are_unrelated(stretches: Sequence[Block], lexicon: Lexicon) -> bool:
    """Say whether no line has more to do with the one opposite than with others.

    False where that cannot be judged: of less than 1,000 lines, and where half of them or more are
    repeated near by or have no frequent word, as in a list of names.
    """
    lines = sum(len(stretch.sources) for stretch in stretches)
    different = [_without_repeats(stretch) for stretch in stretches]
    judged = sum(_lines_with_words(stretch, lexicon) for stretch in different)
    if lines < _LEAST_LINES_RELATED or judged <= lines / 2:
        return False
    return likeness_in_step(different, lexicon) < _RELATED


def swapped_or_other_languages(pairs: Sequence[SentencePair], data: DataConfig) -> list[str]:
    """Return what shows that sides are not in their languages; nothing of less than 100 pairs.

    By script where the scripts differ, else by py3langid where that is installed.
    """
    pairs = pairs[:: len(pairs) // _MOST_PAIRS + 1]
    if len(pairs) < _LEAST_PAIRS:
        return []
    return _swapped(pairs, data) or _languages(pairs, data)


def _without_repeats(block: Block) -> Block:
    """Return the pairs of which neither side was there before; one like its neighbours is like all.

    Several translations of a line often stand one after the other.
    """
    seen: tuple[set[str], set[str]] = set(), set()
    pairs = []
    for pair in zip(*_sides(block), strict=False):
        if all(text not in side for text, side in zip(pair, seen, strict=True)):
            pairs.append(pair)
        for text, side in zip(pair, seen, strict=True):
            side.add(text)
    return Block(block.first, [pair[0] for pair in pairs], [pair[1] for pair in pairs])


def _lines_with_words(block: Block, lexicon: Lexicon) -> int:
    """Count the lines that have a word of the lexicon on both sides."""
    sources, targets = lexicon.embed(block)
    return int((sources.any(axis=1) & targets.any(axis=1)).sum())


def _sides(block: Block) -> tuple[list[str], list[str]]:
    return block.sources, block.targets


def _shifts(stretches: Sequence[Block]) -> Iterator[str]:
    """Tell of the first slip, or of sides that are in step nowhere.

    Lines between two stretches have no slip that can be seen.
    """
    lexicon = learn_lexicon(stretches)
    if are_unrelated(stretches, lexicon):
        yield UNRELATED
        return
    for shift in find_shifts(stretches, lexicon)[:1]:
        number, line = divmod(shift.line - 1, CHUNK_LINES)
        after = stretches[number].first + line + 1
        yield (
            f"the sides slip apart, at line {after:,} or before: from there on line i translates "
            f"to line i{shift.distance:+d}"
        )


def _swapped(pairs: Sequence[SentencePair], data: DataConfig) -> list[str]:
    """Tell of sides that are each in the script of the other's language."""
    languages = data.source_language, data.target_language
    swapped = sum(
        in_wrong_script(pair.source, languages[0])
        and in_wrong_script(pair.target, languages[1])
        and not in_wrong_script(pair.source, languages[1])
        and not in_wrong_script(pair.target, languages[0])
        for pair in pairs
    )
    return [_told_swapped(data)] if swapped > _MOST * len(pairs) else []


def _told_swapped(data: DataConfig) -> str:
    return (
        f"the sides look swapped: `{data.target_language}` on the source side, "
        f"`{data.source_language}` on the target side"
    )


def _shares(pairs: Sequence[SentencePair], data: DataConfig) -> Iterator[str]:
    """Tell what an alarming share of the sampled pairs has."""
    for check in CHECKS:
        if check.kind not in _ALARMING:
            continue
        rows: Iterable[tuple[str, str]] = ((pair.source, pair.target) for pair in pairs)
        if check.side != "pair":
            language = getattr(data, f"{check.side}_language")
            rows = ((getattr(pair, check.side), language) for pair in pairs)
        count = sum(check.found(*row) for row in rows)
        finding = Finding(check.kind, check.side, count, len(pairs), ())
        if finding.share >= _ALARMING[check.kind]:
            yield f"{finding.share:.0%} of a sample: {in_words(finding)}"


def _languages(pairs: Sequence[SentencePair], data: DataConfig) -> list[str]:
    """Tell of sides in another language, where the scripts cannot tell; without py3langid nothing.

    Loading its model takes more time than all else here.
    """
    languages = data.source_language, data.target_language
    if scripts_of(languages[0]) != scripts_of(languages[1]):
        return []
    try:
        source = _other_language([pair.source for pair in pairs], languages[0])
        target = _other_language([pair.target for pair in pairs], languages[1])
    except DataError:
        return []
    if (target, source) == tuple(map(base_language, languages)):
        return [_told_swapped(data)]
    return [
        f"the {side} side seems to be in `{found}`, `data.{side}_language` is `{language}`"
        for side, found, language in zip(
            ("source", "target"), (source, target), languages, strict=True
        )
        if found
    ]


def _other_language(texts: Sequence[str], language: str) -> str | None:
    """Return the language that most of the texts are in, None where that may be `language`."""
    judged = [text for text in texts if can_be_judged(text, language)][:_MOST_JUDGED]
    others = [text for text in judged if in_other_language(text, language)]
    if len(judged) < _LEAST_PAIRS or len(others) <= _MOST * len(judged):
        return None
    return Counter(identify(text).language for text in others).most_common(1)[0][0]


class _Overlaps:
    """Counts which validation and test pairs are among those that pass by."""

    def __init__(self, data: DataConfig) -> None:
        self._held_out: dict[str, set[tuple[str, str]]] = {}
        self._found: Counter[str] = Counter()
        self._sizes: dict[str, int] = {}
        for name in data.split_names():
            split = data.split(name)
            assert split is not None, "the name is one of `split_names`"
            pairs = open_source(split, data).pairs()
            self._held_out[name] = {(pair.source, pair.target) for pair in pairs}
            self._sizes[name] = len(self._held_out[name])

    def watch(self, blocks: Iterable[Block]) -> Iterator[Block]:
        for block in blocks:
            for name, pairs in self._held_out.items():
                found = pairs.intersection(zip(*_sides(block), strict=False))
                pairs -= found  # each counts once
                self._found[name] += len(found)
            yield block

    def alarms(self) -> list[str]:
        return [
            f"{self._found[name]:,} of the {size:,} pairs of `{name}` are in it too"
            for name, size in self._sizes.items()
            if self._found[name] >= _ALARMING_OVERLAP * size
        ]


class _Repeats:
    """Counts how often each pair passes by, of a sample that is drawn by what the pairs are.

    So all copies of a pair are in it, or none, and memory has a bound.
    """

    def __init__(self) -> None:
        self._times: Counter[int] = Counter()
        self._every = 1

    @property
    def share(self) -> float:
        """Which part of the pairs was there before."""
        return 1 - len(self._times) / max(1, self._times.total())

    def watch(self, blocks: Iterable[Block]) -> Iterator[Block]:
        for block in blocks:
            codes = (
                crc32(f"{source}\n{target}".encode("utf-8", "surrogatepass"))
                for source, target in zip(*_sides(block), strict=False)
            )
            self._times.update([code for code in codes if not code % self._every])
            while len(self._times) > _MOST_KEPT:
                self._every *= 2
                kept = ((c, n) for c, n in self._times.items() if not c % self._every)
                self._times = Counter(dict(kept))
            yield block
