"""The tokenizer doctor's report in a few lines of plain text."""

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
from mt.data.filters import cleaned_pairs, open_training_corpora
from mt.data.pairs import SentencePair
from mt.data.sources import open_source
from mt.data.tokenizer import Tokenizer, provide_tokenizer
from mt.data.tokenizer_training import sample_lines, shown_tokens
from mt.data.vocabulary import Vocabulary
from mt.errors import DataError
from mt.evaluation.scores import choose_tokenizer, evaluate
from mt.languages import written_without_spaces
from mt.special_ids import EOS, UNK
from mt.tables import aligned, display_width, printable

FREQUENT = 100
"""Examples of a token in the training text that a model needs to learn it well."""
FREQUENT_SHARE = 0.95
"""Share of the tokens that should be frequent.

Gowda and May 2020, "Finding the Optimal Vocabulary Size for Neural Machine Translation": the
largest vocabulary of which 95 % have 100 examples or more is near the best.
"""


@dataclass(frozen=True, slots=True)
class CharacterLoss:
    """A character that encoding and decoding takes away or turns into another."""

    character: str
    count: int
    """How many of the sampled text are gone."""
    becomes: str
    """What is left of it where it stands alone."""
    never_written: bool
    """Whether none is left: a model that learns from these tokens can never write it."""


@dataclass(frozen=True, slots=True)
class SideReport:
    """One side of the training text in tokens; the end mark is not counted."""

    side: str
    language: str
    lines: int
    characters: int
    words: int | None
    """By spaces; None for a language that is written without."""
    tokens: int
    unknown_tokens: int
    """How many of `tokens` are the unknown one."""
    byte_tokens: int
    """How many of `tokens` are bytes, of characters without a token of their own."""
    changed_lines: int
    """Lines that are another text after encoding and decoding."""
    losses: tuple[CharacterLoss, ...]
    """The most frequent first."""

    @property
    def tokens_per_character(self) -> float:
        """How finely the text is cut."""
        return self.tokens / max(1, self.characters)

    @property
    def tokens_per_word(self) -> float | None:
        """How finely words are cut (fertility); None where there are no spaces."""
        return None if self.words is None else self.tokens / max(1, self.words)


@dataclass(frozen=True, slots=True)
class VocabularyReport:
    """How the training text uses one vocabulary; special and byte tokens are no text tokens."""

    name: str
    """`joint`, `source` or `target`."""
    algorithm: str
    size: int
    text_tokens: int
    unused: tuple[str, ...]
    """Text tokens that the sampled text never uses, the most frequent when trained first."""
    rare: int
    """Text tokens that the whole text has fewer than `FREQUENT` times, by the sample."""
    advised_size: int | None
    """A `tokenizer.vocabulary_size` that fits the text better; None where this one does."""


@dataclass(frozen=True, slots=True)
class Ceiling:
    """What a perfect model could reach on a split: its references, encoded and decoded."""

    split: str
    lines: int
    changed_lines: int
    bleu: float
    signature: str


@dataclass(frozen=True, slots=True)
class TokenizerReport:
    """Everything that can be told of a tokenizer and the corpora of a config."""

    fingerprint: str
    pairs: int
    """Training pairs, cleaned as the config says."""
    sampled_pairs: int
    """How many of them were encoded."""
    source: SideReport
    target: SideReport
    vocabularies: tuple[VocabularyReport, ...]
    ceilings: tuple[Ceiling, ...]


_MOST_PAIRS = 500_000
_BLOCK_LINES = 4096
_ADVICE_STEP = 100
_SMALLEST_SIZE = 300


@contextmanager
def configured_tokenizer(config: Config) -> Iterator[Tokenizer]:
    """Give the tokenizer that a training with a config would have; nothing of it is kept.

    Raises what the training would, before any work what `choose_tokenizer` would.
    """
    choose_tokenizer(config.data.target_language, config.evaluation.bleu_tokenizer)
    with TemporaryDirectory(prefix="mt-tokenizer-") as folder:
        yield provide_tokenizer(
            config,
            Path(folder) / "tokenizer",
            pairs=lambda: cleaned_pairs(open_training_corpora(config.data)),
        )


def check_tokenizer(config: Config, tokenizer: Tokenizer) -> TokenizerReport:
    """Encode and decode the corpora of a config and return all that is found.

    Of the training pairs at most 500,000, drawn by the seed, are looked at. Raises `DataError`
    where a corpus cannot be read or cleaning leaves nothing, `UserError` where a package for BLEU
    is missing.
    """
    data = config.data
    ceilings = tuple(_ceiling(config, tokenizer, name) for name in data.split_names())
    sample, total = _sample(config)
    source = _read_side([pair.source for pair in sample], tokenizer.source)
    target = _read_side([pair.target for pair in sample], tokenizer.target)
    scale = total / len(sample)
    return TokenizerReport(
        fingerprint=tokenizer.fingerprint,
        pairs=total,
        sampled_pairs=len(sample),
        source=_side_report(source, "source", data.source_language),
        target=_side_report(target, "target", data.target_language),
        vocabularies=tuple(_vocabularies(source, target, scale)),
        ceilings=ceilings,
    )


@dataclass(frozen=True)
class _Side:
    """One side of the sample, encoded and decoded."""

    vocabulary: Vocabulary
    lines: int
    words: int
    counts: npt.NDArray[np.int64]
    """[V] how often each token is used."""
    characters: Counter[str]
    written: frozenset[str]
    """The characters that are there after decoding."""
    lost: Counter[str]
    changed_lines: int


def _sample(config: Config) -> tuple[list[SentencePair], int]:
    """Return the training pairs to look at, in no order, and how many there are in all."""
    numbers = count()
    pairs = cleaned_pairs(open_training_corpora(config.data))
    # `zip` asks the pairs first, so that at their end no number has been taken for nothing.
    numbered = zip(pairs, numbers, strict=False)
    sample = sample_lines((pair for pair, _ in numbered), _MOST_PAIRS, seed=config.seed)
    if not sample:
        raise DataError("the cleaning leaves no pair to train on")
    return sample, next(numbers)


def _read_side(lines: Sequence[str], vocabulary: Vocabulary) -> _Side:
    counts = np.zeros(len(vocabulary), np.int64)
    characters: Counter[str] = Counter()
    lost: Counter[str] = Counter()
    written: set[str] = set()
    changed_lines = 0
    for first in range(0, len(lines), _BLOCK_LINES):
        block = lines[first : first + _BLOCK_LINES]
        rows = vocabulary.encode(block)
        counts += np.bincount(np.concatenate(rows), minlength=len(vocabulary))
        for line, row in zip(block, rows, strict=True):
            decoded = vocabulary.decode(row)
            characters.update(line)
            written.update(decoded)
            if decoded != line:
                changed_lines += 1
                lost.update(Counter(line) - Counter(decoded))
    counts[EOS] = 0
    words = sum(len(line.split()) for line in lines)
    return _Side(
        *(vocabulary, len(lines), words, counts, characters, frozenset(written), lost),
        changed_lines=changed_lines,
    )


def _side_report(side: _Side, name: str, language: str) -> SideReport:
    is_byte = [side.vocabulary.processor.is_byte(number) for number in range(len(side.counts))]
    losses = [
        CharacterLoss(
            character,
            lost,
            side.vocabulary.decode(side.vocabulary.encode([character])[0]),
            character not in side.written,
        )
        for character, lost in sorted(side.lost.items(), key=lambda item: (-item[1], item[0]))
    ]
    return SideReport(
        side=name,
        language=language,
        lines=side.lines,
        characters=side.characters.total(),
        words=None if written_without_spaces(language) else side.words,
        tokens=int(side.counts.sum()),
        unknown_tokens=int(side.counts[UNK]),
        byte_tokens=int(side.counts[is_byte].sum()),
        changed_lines=side.changed_lines,
        losses=tuple(losses),
    )


def _vocabularies(source: _Side, target: _Side, scale: float) -> Iterator[VocabularyReport]:
    if source.vocabulary is target.vocabulary:
        counts = source.counts + target.counts
        yield _vocabulary_report("joint", source.vocabulary, counts, scale=scale)
        return
    for name, side in (("source", source), ("target", target)):
        yield _vocabulary_report(name, side.vocabulary, side.counts, scale=scale)


def _vocabulary_report(
    name: str, vocabulary: Vocabulary, counts: npt.NDArray[np.int64], *, scale: float
) -> VocabularyReport:
    texts = vocabulary.texts()
    rare = sum(counts[number] * scale < FREQUENT for number in texts)
    return VocabularyReport(
        name=name,
        algorithm=vocabulary.algorithm,
        size=len(vocabulary),
        text_tokens=len(texts),
        unused=tuple(text for number, text in texts.items() if not counts[number]),
        rare=int(rare),
        advised_size=_advised_size(vocabulary, len(texts) - int(rare)),
    )


def _advised_size(vocabulary: Vocabulary, frequent: int) -> int | None:
    """Return the size of which `FREQUENT_SHARE` would be frequent, or None where this one is such.

    An estimate from below: without its rare tokens, a vocabulary uses the others more often. It
    has room for every character that has a token now.
    """
    texts = vocabulary.texts()
    if frequent >= FREQUENT_SHARE * len(texts):
        return None
    others = len(vocabulary) - len(texts)
    single = sum(len(text) == 1 for text in texts.values())
    wanted = others + max(frequent / FREQUENT_SHARE, single)
    size = max(_SMALLEST_SIZE, -int(-wanted // _ADVICE_STEP) * _ADVICE_STEP)
    return size if size < len(vocabulary) else None


def _ceiling(config: Config, tokenizer: Tokenizer, name: str) -> Ceiling:
    source = config.data.split(name)
    assert source is not None, "the name is one of `split_names`"
    references = [pair.target for pair in open_source(source, config.data).pairs()]
    decoded = [tokenizer.decode_target(ids) for ids in tokenizer.encode_target(references)]
    bleu = evaluate(
        decoded,
        [references],
        target_language=config.data.of(source).target_language,
        tokenizer=config.evaluation.bleu_tokenizer,
    ).bleu
    changed = sum(map(str.__ne__, decoded, references))
    # Of equal texts sacreBLEU's floats come to a hair above 100, or to 0 where all are short.
    value = min(bleu.value, 100.0) if changed else 100.0
    return Ceiling(name, len(references), changed, value, bleu.signature)


_MOST_LOSSES = 12
_MOST_NEVER_WRITTEN = 60


def tokenizer_as_text(report: TokenizerReport) -> str:
    """Return the report for a terminal: sides, losses, vocabularies with advice, ceilings."""
    sample = "" if report.sampled_pairs == report.pairs else f"{report.sampled_pairs:,} of "
    parts = [
        f"training text: {sample}{report.pairs:,} pairs",
        _sides(report),
        *filter(None, map(_losses, (report.source, report.target))),
        *filter(None, [_never_written(report.target)]),
        _vocabularies_tokenizer_text(report),
        "\n".join(map(_advice, report.vocabularies)),
        _ceilings(report),
    ]
    return "\n\n".join(parts)


def _sides(report: TokenizerReport) -> str:
    rows = [("side", "language", "tokens/word", "tokens/character", "unknown", "bytes", "changed")]
    for side in (report.source, report.target):
        per_word = side.tokens_per_word
        rows.append(
            (
                *(side.side, side.language),
                "-" if per_word is None else f"{per_word:.2f}",
                f"{side.tokens_per_character:.3f}",
                f"{side.unknown_tokens / max(1, side.tokens):.3%}",
                f"{side.byte_tokens / max(1, side.tokens):.3%}",
                f"{side.changed_lines:,} lines",
            )
        )
    return aligned(rows, right=range(2, 7))


def _losses(side: SideReport) -> str:
    if not side.losses:
        return ""
    rows = [(f"lost, {side.side} side", "", "times", "becomes")]
    rows += [
        (_seen(loss.character), _code(loss.character), f"{loss.count:,}", _left_of(loss))
        for loss in side.losses[:_MOST_LOSSES]
    ]
    more = len(side.losses) - _MOST_LOSSES
    rest = [f"and {more:,} other characters"] if more > 0 else []
    return "\n".join([aligned(rows, right=[2]), *rest])


def _never_written(target: SideReport) -> str:
    never = [loss.character for loss in target.losses if loss.never_written]
    if not never:
        return ""
    shown = " ".join(_seen(c) or _code(c) for c in never[:_MOST_NEVER_WRITTEN])
    more = ", ..." if len(never) > _MOST_NEVER_WRITTEN else ""
    return f"{len(never):,} characters that no model with this tokenizer can write: {shown}{more}"


def _vocabularies_tokenizer_text(report: TokenizerReport) -> str:
    rows = [("vocabulary", "algorithm", "tokens", "unused", f"seen < {FREQUENT} times", "")]
    rows += [
        (
            *(found.name, found.algorithm, f"{found.size:,}", f"{len(found.unused):,}"),
            f"{found.rare:,} ({found.rare / max(1, found.text_tokens):.1%})",
            f"unused: {shown_tokens(map(printable, found.unused))}" if found.unused else "",
        )
        for found in report.vocabularies
    ]
    return aligned(rows, right=[2, 3, 4])


def _advice(found: VocabularyReport) -> str:
    share = 1 - found.rare / max(1, found.text_tokens)
    facts = f"{share:.1%} of its text tokens are seen {FREQUENT} times or more"
    rule = f"{FREQUENT_SHARE:.0%} should be (Gowda and May 2020)"
    if found.advised_size is not None:
        return (
            f"{found.name} vocabulary: {facts}, {rule}; about "
            f"`tokenizer.vocabulary_size: {found.advised_size}` would fit this corpus better"
        )
    if share < FREQUENT_SHARE:
        return f"{found.name} vocabulary: {facts}; no smaller one would hold its characters"
    return f"{found.name} vocabulary: {facts}, {rule}: its size fits this corpus"


def _ceilings(report: TokenizerReport) -> str:
    rows = [("ceiling on", "BLEU", "references changed", "signature")]
    rows += [
        (c.split, _score(c.bleu), f"{c.changed_lines:,} of {c.lines:,}", c.signature)
        for c in report.ceilings
    ]
    return aligned(rows, right=[1, 2])


def _score(bleu: float) -> str:
    """Return a score with two decimals; what is below 100 does not read 100.00."""
    return f"{bleu if bleu == 100.0 else min(bleu, 99.99):.2f}"


def _left_of(loss: CharacterLoss) -> str:
    if not loss.becomes:
        return "nothing"
    if loss.becomes == loss.character:
        return "itself where it stands alone"
    return f"{_seen(loss.becomes)} {' '.join(map(_code, loss.becomes))}".lstrip()


def _seen(text: str) -> str:
    """Return `text`, or "" where nothing of it would be seen."""
    visible = printable(text)
    return visible if visible.strip() and display_width(visible) else ""


def _code(character: str) -> str:
    return f"U+{ord(character):04X}"
