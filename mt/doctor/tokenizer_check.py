"""The tokenizer doctor: what a tokenizer loses of a corpus, and whether its size fits it."""

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
from mt.data.pairs import SentencePair
from mt.data.sources import open_source
from mt.data.tokenizer import Tokenizer, provide_tokenizer
from mt.data.tokenizer_training import sample_lines
from mt.data.training_corpora import cleaned_pairs, open_training_corpora
from mt.data.vocabulary import Vocabulary
from mt.doctor.tokenizer_report import (
    FREQUENT,
    FREQUENT_SHARE,
    Ceiling,
    CharacterLoss,
    SideReport,
    TokenizerReport,
    VocabularyReport,
)
from mt.errors import DataError
from mt.evaluation.scores import choose_tokenizer, evaluate
from mt.languages import written_without_spaces
from mt.special_ids import EOS, UNK

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
    """[V] how often each piece is used."""
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
        pieces=int(side.counts.sum()),
        unknown_pieces=int(side.counts[UNK]),
        byte_pieces=int(side.counts[is_byte].sum()),
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
        text_pieces=len(texts),
        unused=tuple(text for number, text in texts.items() if not counts[number]),
        rare=int(rare),
        advised_size=_advised_size(vocabulary, len(texts) - int(rare)),
    )


def _advised_size(vocabulary: Vocabulary, frequent: int) -> int | None:
    """Return the size of which `FREQUENT_SHARE` would be frequent, or None where this one is such.

    An estimate from below: without its rare pieces, a vocabulary uses the others more often. It
    has room for every character that has a piece now.
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
