"""Checks of corpora: a quick one at the start of training, and the full one of `mt data check`.

The quick check takes one pass and a sample, and is calibrated to be silent on good corpora; the
full check reads the corpora several times and reports everything.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from zlib import crc32

import numpy as np

from mt.config import DataConfig
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
from mt.data.pairs import EvenSample, PairSource, SentencePair
from mt.data.sources import TsvPairs, open_source, usual_width
from mt.data.splits import HeldOutPairs, open_splits
from mt.data.tokenizer import Tokenizer
from mt.doctor.findings import (
    KINDS,
    MAX_LINES_SHOWN,
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
_QUICK_IDENTIFIED, _MAX_IDENTIFIED = 200, 100_000
"""Texts whose language is identified, which is slow."""
_MIN_SHARES = {
    "wrong_script": 0.1,
    "mojibake": 0.1,
    "identical": 0.5,
    "tokenized": 0.5,
    "tokens": 0.5,
}
"""Share of the sample from which a kind of finding is a warning of the quick check."""
_MIN_LETTERS = 100
"""Least number of letters from which the language of a side is identified."""
_MIN_OVERLAP = 0.01
_RARER_SCRIPT = 0.05
_MAJORITY, _MOST = 0.5, 0.9
_FEWEST_TEXTS = 10
_SHOWN = 30
_MAX_HASHES = 1 << 16
_MAX_WARNINGS = 5


class CorpusWatch:
    """Quick check of a training corpus while it is read: a sample, and counts of all pairs.

    The result is deterministic.
    """

    def __init__(self, splits: Mapping[str, Iterable[SentencePair]], cleaning: Cleaning) -> None:
        """Read the splits, none held out, whose pairs are looked for; take the corpus' cleaning."""
        self._cleaning = cleaning
        self._unseen = {
            name: {(pair.source, pair.target) for pair in pairs} for name, pairs in splits.items()
        }
        self._sizes = {name: len(pairs) for name, pairs in self._unseen.items()}
        self._repeats = _Repeats()
        self._stretches = EvenSample[LineBlock](2 * _QUICK_STRETCHES)

    def read(self, pairs: Iterable[SentencePair]) -> Iterator[SentencePair]:
        """Yield the pairs of the corpus unchanged, once."""
        rest, first = iter(pairs), 0
        while chunk := list(islice(rest, CHUNK_LINES)):
            texts = [(pair.source, pair.target) for pair in chunk]
            for unseen in self._unseen.values():
                unseen.difference_update(texts)  # also of a corpus of the other direction
                unseen.difference_update((target, source) for source, target in texts)
            self._repeats.add(texts)
            self._stretches.add([_make_block(chunk, first)])
            yield from chunk
            first += len(chunk)

    def warnings(self) -> list[str]:
        """Return at most five warnings about the pairs read, the worst first, each a clause.

        Defects that the cleaning removes are left out.
        """
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
        languages = cleaning.direction
        warnings += (
            _judge(sample, languages)
            if len(sample) >= _MIN_PAIRS
            else check_languages(sample, languages)
        )
        if not cleaning.settings.overlap:
            for name, size in self._sizes.items():
                shared = size - len(self._unseen[name])
                if shared >= max(1, _MIN_OVERLAP * size):
                    warnings.append(f"{shared:,} of the {size:,} pairs of `{name}` are also in it")
        if not cleaning.settings.duplicates and self._repeats.share > _MAJORITY:
            warnings.append(f"{self._repeats.share:.0%} of the pairs are repetitions")
        return warnings[:_MAX_WARNINGS]


class _Repeats:
    """Counter of repeated pairs in bounded memory: it samples by hash, all copies or none."""

    def __init__(self) -> None:
        self._counts: Counter[int] = Counter()
        self._every = 1

    @property
    def share(self) -> float:
        """Share of the pairs that have occurred before."""
        return 1 - len(self._counts) / max(1, self._counts.total())

    def add(self, texts: Iterable[tuple[str, str]]) -> None:
        codes = (crc32(f"{s}\n{t}".encode("utf-8", "surrogatepass")) for s, t in texts)
        self._counts.update([code for code in codes if not code % self._every])
        while len(self._counts) > _MAX_HASHES:
            self._every *= 2
            sampled = {c: n for c, n in self._counts.items() if not c % self._every}
            self._counts = Counter(sampled)


def sample_pairs(stretches: Sequence[LineBlock]) -> list[SentencePair]:
    """Return at most 2,000 pairs, evenly spread over the stretches."""
    pairs = [
        SentencePair(source, target)
        for stretch in stretches
        for _, source, target in stretch.numbered()
    ]
    return pairs[:: len(pairs) // _MAX_PAIRS + 1]


def check_languages(pairs: Sequence[SentencePair], languages: tuple[str, str]) -> list[str]:
    """Warn if the sides are swapped or in other languages.

    Uses scripts if they differ, else py3langid if it is installed.
    """
    return (
        _find_no_text(pairs)
        or _find_swapped_scripts(pairs, languages)
        or _find_other_languages(pairs, languages)
    )


def check_split(pairs: Sequence[SentencePair], languages: tuple[str, str]) -> list[str]:
    """Warn of blank pairs of a split, and of sides that do not look like translations.

    A single pair is enough for blank and for swapped sides in different scripts.
    """
    blank = [n for n, pair in enumerate(pairs, 1) if has_empty_side(pair.source, pair.target)]
    warnings = []
    if blank:
        count = f"{len(blank):,} of the {len(pairs):,} pairs have a blank side"
        warnings.append(f"{count}, the first at line {blank[0]:,}")
    filled = [pair for pair in pairs if not has_empty_side(pair.source, pair.target)]
    sample = filled[:: len(filled) // _MAX_PAIRS + 1]
    return [*warnings, *_judge(sample, languages, is_whole=len(sample) == len(filled))]


def are_swapped(pairs: Sequence[SentencePair], languages: tuple[str, str]) -> bool:
    """Return True if the sides are in each other's language, judged as by `check_languages`."""
    return check_languages(pairs, languages) == [_describe_swapped(languages)]


def _make_block(pairs: Sequence[SentencePair], first: int = 0) -> LineBlock:
    return LineBlock(first, [pair.source for pair in pairs], [pair.target for pair in pairs])


def _judge(
    pairs: Sequence[SentencePair], languages: tuple[str, str], *, is_whole: bool = False
) -> list[str]:
    """Warn if the sides are swapped, in another language, or mostly of a questionable form."""
    if warnings := [*_find_no_text(pairs), *_find_swapped_scripts(pairs, languages)]:
        return warnings
    block, whole = _make_block(pairs), "the pairs" if is_whole else "a sample"
    for finding in _find_two_scripts([block], languages):
        warnings.append(f"{finding.share:.0%} of a sample: {describe(finding)}")
    for finding in count_pairs([block], *languages).findings:
        least = _MIN_SHARES.get(finding.kind, 2.0)
        # Of fewer than 100 pairs, most of them.
        if finding.share >= least and (len(pairs) >= _MIN_PAIRS or finding.share > _MAJORITY):
            warnings.append(f"{finding.share:.0%} of {whole}: {describe(finding)}")
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


def _find_swapped_scripts(pairs: Sequence[SentencePair], languages: tuple[str, str]) -> list[str]:
    """Warn if most sides are in the script of the other side's language only."""
    source, target = languages
    lettered = [
        pair
        for pair in pairs
        if any(map(str.isalpha, pair.source)) and any(map(str.isalpha, pair.target))
    ]
    swapped = sum(
        in_wrong_script(pair.source, source)
        and in_wrong_script(pair.target, target)
        and not in_wrong_script(pair.source, target)
        and not in_wrong_script(pair.target, source)
        for pair in lettered
    )
    return [_describe_swapped(languages)] if swapped > _MAJORITY * len(lettered) else []


def _describe_swapped(languages: tuple[str, str]) -> str:
    source, target = languages
    return f"the sides look swapped: `{target}` on the source side, `{source}` on the target side"


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


def _find_extra_cells(corpus: PairSource) -> Iterator[Finding]:
    """Yield the rows of a TSV file that are left out, with the number of the first as a name."""
    if isinstance(corpus, TsvPairs):
        widths = [len(cells) for cells in corpus.rows()]
        width = usual_width(widths)
        wide = [number for number, cells in enumerate(widths, 1) if cells > width]
        if wide:
            yield Finding("extra_cells", "pair", len(wide), len(widths), (), f"line {wide[0]}")


def _find_other_languages(pairs: Sequence[SentencePair], languages: tuple[str, str]) -> list[str]:
    """Warn of sides in another language of the same script; without py3langid return nothing.

    Loading the identifier takes longer than the rest of the quick check.
    """
    bases = tuple(map(base_language, languages))
    source, target = map(scripts_of, languages)
    if bases[0] == bases[1] or (source and target and set(source).isdisjoint(target)):
        return []
    sides = [pair.source for pair in pairs], [pair.target for pair in pairs]
    try:
        if tuple(map(_identify_all, sides, languages)) == bases[::-1]:
            return [_describe_swapped(languages)]
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


@dataclass(frozen=True)
class CountedSplit:
    """A corpus or a split with the counts of its lines."""

    name: str
    corpus: PairSource
    languages: tuple[str, str]
    counts: PairCounts

    @property
    def pairs(self) -> int:
        """Number of lines that have an opposite line."""
        return min(len(self.counts.source.lengths), len(self.counts.target.lengths))

    def blocks(self, task: str) -> Iterator[LineBlock]:
        """Read the corpus once more, with a progress bar."""
        return read_blocks(self.corpus, f"{self.name}: {task}")


def check_corpora(data: DataConfig, *, tokenizer: Tokenizer | None = None) -> CorpusReport:
    """Read every split of a config several times and return all warnings.

    Each corpus of a mixture is a split of its own. With a tokenizer, the report has its tokens per
    word and the characters that it loses, on a sample. Memory grows by about 110 bytes a pair.
    Raises DataError if a corpus cannot be read or is empty.
    """
    training = data.train_corpora()
    sections = {**training, "valid": data.valid, **data.tests}
    corpora = {
        key: open_source(section, data.direction_of(section)) for key, section in training.items()
    }
    reports: list[SplitReport] = []
    notes: list[str] = []
    for name, opened in open_splits(data).items():
        try:
            if isinstance(opened.source, HeldOutPairs):
                opened.source.checksums()
            corpora[name] = opened.source
        except DataError as error:  # such as training sides of unequal length, checked below
            notes.append(f"{name}: was not checked: {error}")
    splits = []
    for name, corpus in corpora.items():
        languages = data.direction_of(sections[name])
        counts = count_pairs(read_blocks(corpus, f"{name}: counting"), *languages)
        if not len(counts.source.lengths) or not len(counts.target.lengths):
            raise DataError(f"{corpus.description}: the corpus is empty")
        splits.append(CountedSplit(name, corpus, languages, counts))
    vectors: dict[tuple[str, str], WordVectors] = {}
    for index, split in enumerate(splits):
        stretches = spread_stretches(split.blocks("sampling lines"), at_least=_STRETCHES)
        # The first split in two languages is a training corpus if there is one.
        if split.languages not in vectors:
            vectors[split.languages] = learn_word_vectors(stretches)
        findings = [
            *_find_misalignment(split, stretches, vectors[split.languages]),
            *split.counts.findings,
            *_find_two_scripts(stretches, split.languages),
            *_find_extra_cells(split.corpus),
            *find_duplicates(split.counts),
            *_find_other_language_lines(split),
        ]
        for other in splits[:index]:
            # Training leaves held-out pairs out.
            if not (isinstance(split.corpus, HeldOutPairs) and other.name in training):
                findings += find_overlaps(split.counts, other.counts, other.name)
        warnings = [finding for finding in findings if finding.count]
        warnings.sort(key=lambda finding: list(KINDS).index(finding.kind))
        shown = {line for finding in warnings for line in finding.lines}
        examples = [
            PairExample(line, source, target)
            for block in split.blocks("reading examples")
            for line, source, target in block.numbered()
            if line in shown
        ]
        sources = [line for stretch in stretches for line in stretch.sources]
        targets = [line for stretch in stretches for line in stretch.targets]
        source_fertility = target_fertility = None
        if tokenizer is not None:
            source_fertility = measure_fertility(sources, tokenizer.source, split.languages[0])
            target_fertility = measure_fertility(targets, tokenizer.target, split.languages[1])
        reports.append(
            SplitReport(
                split.name,
                split.corpus.description,
                split.counts.source.size(split.languages[0], source_fertility),
                split.counts.target.size(split.languages[1], target_fertility),
                tuple(warnings),
                tuple(examples),
            )
        )
        sample = sample_pairs(stretches)
        notes += [f"{split.name}: {note}" for note in check_languages(sample, split.languages)]
    train, others = reports[: len(training)], reports[len(training) :]
    overlaps = [f for split in others for f in split.findings if f.other in training]
    notes = [*describe_misaligned(train), *notes, *_describe_skipped(splits)]
    return CorpusReport(tuple(reports), tuple(notes), advise(train, overlaps))


def describe_misaligned(train: Iterable[SplitReport]) -> Iterator[str]:
    """Yield a note on each training corpus whose sides do not match, so that no count is right."""
    for split in train:
        shifts = [f.lines[0] for f in split.findings if f.kind in {"shift", "uneven"}]
        if shifts:
            yield (
                f"{split.name}: repair the sides near line {min(shifts)} and check again; until "
                "then the other counts and the cleaning come from lines that do not match"
            )


def _find_misalignment(
    split: CountedSplit, stretches: Sequence[LineBlock], vectors: WordVectors
) -> Iterator[Finding]:
    lines = len(split.counts.source.lengths), len(split.counts.target.lengths)
    longer, pairs = max(lines), split.pairs
    if longer != pairs:
        side = "source" if lines[0] > lines[1] else "target"
        yield Finding("uneven", side, longer - pairs, longer, (pairs + 1,))
    if are_unrelated(stretches, vectors):
        yield Finding("unrelated", "pair", pairs, pairs, ())
        return
    for shift in find_shifts(split.blocks("aligning"), vectors):
        yield Finding("shift", "pair", 1, pairs, (shift.line,), f"{shift.distance:+d}")


def _find_other_language_lines(split: CountedSplit) -> list[Finding]:
    """Count the lines of a fixed sample in another language; without py3langid return nothing."""
    try:
        known_languages()
    except DataError:
        return []
    sampled = min(split.pairs, _MAX_IDENTIFIED)
    is_sampled = np.zeros(split.pairs, dtype=bool)
    is_sampled[np.random.default_rng(1).choice(split.pairs, sampled, replace=False)] = True
    lines: tuple[list[int], list[int]] = [], []
    for block in split.blocks("identifying languages"):
        for line, *texts in block.numbered():
            for side, text in enumerate(texts):
                if is_sampled[line - 1] and in_other_language(text, split.languages[side]):
                    lines[side].append(line)
    total = split.pairs if sampled < split.pairs else 0
    return [
        Finding(
            "other_language", side, len(hits), sampled, tuple(hits[:MAX_LINES_SHOWN]), total=total
        )
        for side, hits in zip(("source", "target"), lines, strict=True)
    ]


def _describe_skipped(splits: Iterable[CountedSplit]) -> Iterator[str]:
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
