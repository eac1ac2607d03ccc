"""Checks of corpora: a quick one at the start of training, and the full one of `mt data check`.

The quick check takes one pass and a sample, and is calibrated to be silent on good corpora; the
full check reads the corpora several times and reports everything.
"""

from array import array
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice
from zlib import crc32

import numpy as np

from mt.config import DataConfig
from mt.config.data import CleaningConfig, HeldOutSource
from mt.data.filters import (
    NO_LANGUAGE,
    Cleaning,
    can_be_judged,
    has_empty_side,
    identify,
    in_other_language,
    in_wrong_script,
    is_blank,
    is_metadata,
    known_languages,
    weighted_length,
)
from mt.data.pairs import EvenSample, SentencePair
from mt.data.splits import open_splits, open_training_corpora
from mt.data.tokenizer import Tokenizer
from mt.doctor.findings import (
    CLEANING,
    FILTERS,
    KINDS,
    MAX_LINES_SHOWN,
    RARE,
    REPAIRS,
    CorpusReport,
    Finding,
    PairExample,
    SplitReport,
    advise,
    describe,
)
from mt.doctor.misalignment import (
    CHUNK_LINES,
    WordVectors,
    are_unrelated,
    find_shifts,
    learn_word_vectors,
    spread_stretches,
)
from mt.doctor.tally import (
    LineBlock,
    PairCounts,
    count_pairs,
    find_duplicates,
    find_other_languages,
    find_overlaps,
    measure_fertility,
    read_blocks,
)
from mt.errors import DataError
from mt.languages import base_language, scripts_of, variants_in

_QUICK_STRETCHES, _STRETCHES = 30, 100
"""Stretches of 100 lines to sample in the quick and in the full check, or up to twice as many."""
_MAX_PAIRS = 2000
_MIN_PAIRS = 100
_MAX_JOINED = 20
_QUICK_IDENTIFIED = 200
"""Texts of a side whose language is identified, which is slow."""
_MIN_SHARES = {
    "wrong_script": 0.1,
    "mojibake": 0.1,
    "identical": 0.5,
    "tokenized": 0.5,
    "tokens": 0.5,
    "two_scripts": 0.0,
}
"""Share of the sample from which a kind of finding is a warning of the quick check."""
_MIN_LETTERS = 100
"""Least number of letters from which the language of a side is identified."""
_MIN_OVERLAP = 0.01
_RARER_SCRIPT = 0.05
_MAJORITY, _MOST = 0.5, 0.9
_FEWEST_TEXTS = 10
_SHOWN = 30
_MAX_WARNINGS = 5
_SWAPPED = "the sides look swapped: `{1}` on the source side, `{0}` on the target side"


class CorpusWatch:
    """Quick check of a training corpus while it is read: a sample, and counts of all pairs."""

    def __init__(self, splits: Mapping[str, Iterable[SentencePair]], cleaning: Cleaning) -> None:
        """Read the splits, none held out, whose pairs are looked for; take the corpus' cleaning."""
        self._cleaning = cleaning
        self._unseen = {
            name: {(pair.source, pair.target) for pair in pairs} for name, pairs in splits.items()
        }
        self._sizes = {name: len(pairs) for name, pairs in self._unseen.items()}
        self._codes = array("I")  # of all pairs
        self._stretches = EvenSample[LineBlock](2 * _QUICK_STRETCHES)

    def read(self, pairs: Iterable[SentencePair]) -> Iterator[SentencePair]:
        """Yield the pairs of the corpus unchanged, once."""
        rest = iter(pairs)
        while chunk := list(islice(rest, CHUNK_LINES)):
            texts = [(pair.source, pair.target) for pair in chunk]
            for unseen in self._unseen.values():
                unseen.difference_update(texts)  # also of a corpus of the other direction
                unseen.difference_update((target, source) for source, target in texts)
            self._stretches.add([_make_block(chunk, len(self._codes))])
            lines = (f"{source}\n{target}" for source, target in texts)
            self._codes.extend(crc32(line.encode("utf-8", "surrogatepass")) for line in lines)
            yield from chunk

    def warnings(self) -> list[str]:
        """Return at most five warnings about pairs that the cleaning keeps, the worst first."""
        cleaning, stretches = self._cleaning, self._stretches.items
        sample = list(cleaning.clean(sample_pairs(stretches)))
        vectors, warnings = learn_word_vectors(stretches), list[str]()
        if are_unrelated(stretches, vectors):
            warnings.append(KINDS["unrelated"])
        else:
            for shift in find_shifts(stretches, vectors)[:1]:  # those between stretches are lost
                stretch, line = divmod(shift.line - 1, CHUNK_LINES)
                after = stretches[stretch].first + line + 1
                warnings.append(
                    f"the sides go out of step, at line {after:,} or before: from there on line i "
                    f"translates to line i{shift.distance:+d}"
                )
        warnings += _judge(sample, cleaning.direction)
        if not cleaning.settings.overlap:
            for name, size in self._sizes.items():
                shared = size - len(self._unseen[name])
                if shared >= max(1, _MIN_OVERLAP * size):
                    warnings.append(f"{shared:,} of the {size:,} pairs of `{name}` are also in it")
        repeated = 1 - len(np.unique(self._codes)) / max(1, len(self._codes))
        if not cleaning.settings.duplicates and repeated > _MAJORITY:
            warnings.append(f"{repeated:.0%} of the pairs are repetitions")
        return warnings[:_MAX_WARNINGS]


def sample_pairs(stretches: Sequence[LineBlock]) -> list[SentencePair]:
    """Return at most 2,000 pairs, evenly spread over the stretches."""
    pairs = [SentencePair(*texts) for stretch in stretches for _, *texts in stretch.numbered()]
    return pairs[:: len(pairs) // _MAX_PAIRS + 1]


def check_split(pairs: Sequence[SentencePair], languages: tuple[str, str]) -> list[str]:
    """Warn of blank pairs of a split, and of sides that do not look like translations."""
    blank = [n for n, pair in enumerate(pairs, 1) if has_empty_side(pair.source, pair.target)]
    warnings = []
    if blank:
        count = f"{len(blank):,} of the {len(pairs):,} pairs have a blank side"
        warnings.append(f"{count}, the first at line {blank[0]:,}")
    filled = [pair for pair in pairs if not has_empty_side(pair.source, pair.target)]
    return [*warnings, *_judge(filled[:: len(filled) // _MAX_PAIRS + 1], languages)]


def are_swapped(pairs: Sequence[SentencePair], languages: tuple[str, str]) -> bool:
    """Return True if the sides are in each other's language."""
    return _find_mismatch(pairs, languages) == [_SWAPPED.format(*languages)]


def _make_block(pairs: Sequence[SentencePair], first: int = 0) -> LineBlock:
    return LineBlock(first, [pair.source for pair in pairs], [pair.target for pair in pairs])


def _judge(pairs: Sequence[SentencePair], languages: tuple[str, str]) -> list[str]:
    """Warn if the sides are swapped, in another language, or mostly of a questionable form."""
    if warnings := [*_find_no_text(pairs), *_find_swapped_scripts(pairs, languages)]:
        return warnings
    blocks = [_make_block(pairs)]
    counted = count_pairs(blocks, *languages).findings
    for finding in (*_find_two_scripts(blocks, languages), *counted):
        least = _MIN_SHARES.get(finding.kind, 2.0)
        # Of fewer than 100 pairs, most of them.
        if finding.share >= least and (len(pairs) >= _MIN_PAIRS or finding.share > _MAJORITY):
            warnings.append(f"{finding.share:.0%} of {len(pairs):,} pairs: {describe(finding)}")
    return warnings + _find_other_languages(pairs, languages)


def _find_no_text(pairs: Sequence[SentencePair]) -> list[str]:
    """Warn of sides of numbers and codes, and of sides in quotation marks, from ten texts on."""
    warnings = []
    for side in ("source", "target"):
        texts = [text for pair in pairs if not is_blank(text := getattr(pair, side))]
        data = [text for text in texts if is_metadata(text)]
        quoted = sum(len(text) > 1 and text[0] == text[-1] == '"' for text in texts)
        if len(texts) < _FEWEST_TEXTS:
            continue
        if len(data) > _MAJORITY * len(texts):
            shown = data[0].strip()[:_SHOWN]
            warnings.append(f"the {side} side is numbers, codes or the like, such as `{shown}`")
        if quoted > _MOST * len(texts):
            warnings.append(f"the {side} side is in quotation marks, which are taken for text")
    return warnings


def _find_mismatch(pairs: Sequence[SentencePair], languages: tuple[str, str]) -> list[str]:
    """Warn of swapped sides and other languages, by scripts or, if they are alike, py3langid."""
    return _find_swapped_scripts(pairs, languages) or _find_other_languages(pairs, languages)


def _find_swapped_scripts(pairs: Sequence[SentencePair], languages: tuple[str, str]) -> list[str]:
    """Warn if most sides are in the script of the other side's language only."""
    lettered = [
        pair
        for pair in pairs
        if any(map(str.isalpha, pair.source)) and any(map(str.isalpha, pair.target))
    ]
    swapped = 0
    for pair in lettered:
        texts = pair.source, pair.target
        wrong = [in_wrong_script(text, code) for text in texts for code in languages]
        swapped += wrong == [True, False, False, True]
    return [_SWAPPED.format(*languages)] if swapped > _MAJORITY * len(lettered) else []


def _find_two_scripts(blocks: Sequence[LineBlock], languages: tuple[str, str]) -> Iterator[Finding]:
    """Yield a finding for a side in both scripts of its language, unless its code names one."""
    for index, side in enumerate(("source", "target")):
        lines: dict[str, list[int]] = {}
        numbered = [pair for block in blocks for pair in block.numbered()]
        for number, *texts in numbered:
            if not in_wrong_script(texts[index], languages[index]):
                for variant in variants_in(texts[index], languages[index]):
                    lines.setdefault(variant, []).append(number)
        rarer = min(lines.values(), key=len) if len(lines) > 1 else []
        if len(rarer) > _RARER_SCRIPT * len(numbered):
            shown = tuple(rarer[:MAX_LINES_SHOWN])
            yield Finding("two_scripts", side, len(rarer), len(numbered), shown)


def _find_other_languages(pairs: Sequence[SentencePair], languages: tuple[str, str]) -> list[str]:
    """Warn of sides in another language of the same script; without py3langid return nothing."""
    bases = tuple(map(base_language, languages))
    source, target = map(scripts_of, languages)
    if bases[0] == bases[1] or (source and target and set(source).isdisjoint(target)):
        return []
    sides = [pair.source for pair in pairs], [pair.target for pair in pairs]
    try:
        if tuple(map(_identify_all, sides, languages)) == bases[::-1]:
            return [_SWAPPED.format(*languages)]
        others = [*map(_identify_other, sides, languages)]
    except DataError:
        return []
    return [
        f"the {side} side seems to be in {'no language' if other == NO_LANGUAGE else f'`{other}`'}"
        f", `data.{side}_language` is `{language}`"
        for side, other, language in zip(("source", "target"), others, languages, strict=True)
        if other
    ]


def _identify_all(texts: Sequence[str], language: str) -> str | None:
    """Return the language of some texts taken together; None for few letters unless it is clear."""
    joined = _join_some(texts)
    is_clear = weighted_length(joined) >= _MIN_LETTERS or in_other_language(joined, language)
    return identify(joined)[0] if is_clear else None


def _join_some(texts: Sequence[str]) -> str:
    """Join at most 20 texts, spread evenly; the probabilities of long texts are less certain."""
    return " ".join(texts[:: len(texts) // _MAX_JOINED + 1])


def _identify_other(texts: Sequence[str], language: str) -> str | None:
    """Return the language of most texts, or None if it may be `language`.

    Fewer than 100 texts are judged together, because one by one they may all be names.
    """
    judged = [text for text in texts if can_be_judged(text, language)][:_QUICK_IDENTIFIED]
    if len(judged) < _MIN_PAIRS:
        joined = _join_some(judged)
        judged = [joined] if weighted_length(joined) >= _MIN_LETTERS else []
    others = [text for text in judged if in_other_language(text, language)]
    if len(others) <= _MAJORITY * len(judged):
        return None
    return Counter(identify(text)[0] for text in others).most_common(1)[0][0]


def check_corpora(
    data: DataConfig, *, tokenizer: Tokenizer | None = None, pairs: int | None = None
) -> CorpusReport:
    """Read every split of a config that has files several times and return all warnings.

    Each corpus of a mixture is a split of its own. With a tokenizer, the report has its tokens per
    word and the characters that it loses, on a sample. The cleaning is advised for `pairs`, more
    than there are if the training corpora are a sample. Memory grows by about 110 bytes a pair.
    Raises DataError if a corpus cannot be read or is empty.
    """
    corpora = {corpus.key: corpus for corpus in open_training_corpora(data)}
    training = frozenset(corpora)
    reports: list[SplitReport] = []
    notes: list[str] = []
    given = [name for name in data.split_names() if not isinstance(data.split(name), HeldOutSource)]
    corpora |= open_splits(data, given) if given else {}
    known = frozenset[str]()
    try:
        known = known_languages()
    except DataError as error:
        notes.append(f"languages were not checked: {error}")
    counts: dict[str, PairCounts] = {}
    for name, corpus in corpora.items():
        blocks = read_blocks(corpus.source, f"{name}: counting")
        counts[name] = count_pairs(blocks, *corpus.direction)
        if not len(counts[name].source.lengths) or not len(counts[name].target.lengths):
            raise DataError(f"{corpus.source.description}: the corpus is empty")
    vectors: dict[tuple[str, str], WordVectors] = {}
    for name, corpus in corpora.items():
        source, languages, counted = corpus.source, corpus.direction, counts[name]
        read = partial(read_blocks, source)
        stretches = spread_stretches(read(f"{name}: sampling lines"), at_least=_STRETCHES)
        # The first split in two languages is a training corpus if there is one.
        if languages not in vectors:
            vectors[languages] = learn_word_vectors(stretches)
        findings = [
            *_find_misalignment(counted, stretches, read(f"{name}: aligning"), vectors[languages]),
            *counted.findings,
            *_find_two_scripts(stretches, languages),
            *find_duplicates(counted),
        ]
        if known:
            blocks = read(f"{name}: identifying languages")
            findings += find_other_languages(blocks, counted.pairs, languages)
        for other in reports:
            findings += find_overlaps(counted, counts[other.name], other.name)
        warnings = [finding for finding in findings if finding.count]
        warnings.sort(key=lambda finding: list(KINDS).index(finding.kind))
        shown = {line for finding in warnings for line in finding.lines}
        examples = [
            PairExample(*numbered)
            for block in read(f"{name}: reading examples")
            for numbered in block.numbered()
            if numbered[0] in shown
        ]
        source_fertility = target_fertility = None
        if tokenizer is not None:
            sources = [line for stretch in stretches for line in stretch.sources]
            targets = [line for stretch in stretches for line in stretch.targets]
            source_fertility = measure_fertility(sources, tokenizer.source, languages[0])
            target_fertility = measure_fertility(targets, tokenizer.target, languages[1])
        sample = sample_pairs(stretches)
        notes += [f"{name}: {note}" for note in _find_no_text(sample)]
        reports.append(
            SplitReport(
                name,
                source.description,
                counted.source.size(languages[0], source_fertility),
                counted.target.size(languages[1], target_fertility),
                tuple(warnings),
                tuple(examples),
                tuple(_find_mismatch(sample, languages)),
            )
        )
    train, splits = reports[: len(training)], reports[len(training) :]
    for code in dict.fromkeys(code for corpus in corpora.values() for code in corpus.direction):
        unknown = [] if scripts_of(code) else ["its script is unknown"]
        if known and base_language(code) not in known:
            unknown.append("py3langid does not identify it")
        if unknown:
            notes.append(f"`{code}` was not fully checked: {' and '.join(unknown)}")
    if any(split.errors() for split in train):  # no count of the cleaning would be right
        return CorpusReport(tuple(reports), tuple(notes), CleaningConfig(), {})
    total = sum(split.pairs for split in train)
    cleaning, _ = advise(train, splits, pairs or total)
    removed = _count_removed(data.changed(cleaning=cleaning), train)
    rare = {kind for kind, count in removed.items() if count <= RARE * total} - {"overlap"}
    cleaning, questions = advise(train, splits, pairs or total, rare)
    # A count of 0: other filters remove these pairs.
    removed = {kind: count for kind, count in removed.items() if not count or kind not in rare}
    return CorpusReport(tuple(reports), (*notes, *questions), cleaning, removed)


def _count_removed(data: DataConfig, train: Iterable[SplitReport]) -> dict[str, int]:
    """Count the pairs that filters remove before splits are held out, and the repaired lines."""
    removed = Counter[str]()
    for corpus in open_training_corpora(data):
        cleaning = replace(corpus.cleaning, held_out=())
        removed.update(dict.fromkeys(cleaning.make_filters(), 0))
        deque(cleaning.clean(corpus.pairs(), removed), maxlen=0)
    counts = Counter({FILTERS.get(name, name): count for name, count in removed.items()})
    for finding in (finding for split in train for finding in split.findings):
        key, _ = CLEANING.get(finding.kind, ("", None))
        if key in REPAIRS and getattr(data.cleaning, key):
            counts[finding.kind] += finding.count
    return dict(counts)


def _find_misalignment(
    counts: PairCounts,
    stretches: Sequence[LineBlock],
    blocks: Iterable[LineBlock],
    vectors: WordVectors,
) -> Iterator[Finding]:
    """Yield sides of unequal length, unrelated sides, and where the sides go out of step."""
    lines, pairs = (len(counts.source.lengths), len(counts.target.lengths)), counts.pairs
    if max(lines) != pairs:
        side = "source" if lines[0] > lines[1] else "target"
        yield Finding("uneven", side, max(lines) - pairs, max(lines), (pairs + 1,))
    if are_unrelated(stretches, vectors):
        yield Finding("unrelated", "pair", pairs, pairs, ())
        return
    for shift in find_shifts(blocks, vectors):
        yield Finding("shift", "pair", 1, pairs, (shift.line,), f"{shift.distance:+d}")
