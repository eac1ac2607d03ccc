"""Warnings about the pairs of a training before it starts: one pass over them, and a sample.

Calibrated to be silent on good corpora; `check_corpora` reports everything.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from zlib import crc32

from mt.config.data import HeldOutSource
from mt.data.filters import (
    TrainingCorpus,
    can_be_judged,
    identify,
    in_other_language,
    in_wrong_script,
)
from mt.data.pairs import SentencePair
from mt.data.sources import open_source
from mt.doctor.findings import KINDS, in_words
from mt.doctor.misalignment import (
    CHUNK_LINES,
    are_unrelated,
    find_shifts,
    learn_lexicon,
    spread_stretches,
)
from mt.doctor.tally import Block, read_blocks, tally_block
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
