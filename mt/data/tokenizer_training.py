"""Learning a vocabulary from text."""

import io
import logging
import re
import time
from collections.abc import Iterable
from itertools import islice
from typing import TypeVar

import numpy as np
import sentencepiece

from mt.config.tokenizer import TokenizerConfig
from mt.data.vocabulary import Vocabulary, escape
from mt.errors import ConfigError, DataError
from mt.special_ids import BOS, EOS, PAD, UNK

_Item = TypeVar("_Item")

_logger = logging.getLogger(__name__)

_THREADS = 4
"""The same on every machine: the model, which names it, and sums of floats depend on it."""
_LONGEST_LINE_BYTES = 1 << 30
"""SentencePiece's own limit; at its default, longer lines would be left out without a word."""
_RESERVED = "\u2585"
"""SentencePiece learns nothing from a line that has this character, and does not say so."""
_ERRORS_ONLY = 2
_TOO_SMALL = re.compile(r"smaller than required_chars\. \d+ vs (\d+)")
_BLOCK_LINES = 1 << 16


def train_model(lines: Iterable[str], *, config: TokenizerConfig, seed: int) -> bytes:
    """Return a serialised SentencePiece model learnt from a sample of `lines`.

    BPE: Sennrich et al. 2016; unigram: Kudo 2018. Text is taken as it is, but for
    `normalization`: no space removed, no line too long. A vocabulary that the text cannot fill is
    lowered, which is logged. Raises `DataError` where no line holds anything, `ConfigError` where
    the vocabulary is too small for the characters.
    """
    began = time.monotonic()
    sample = text_sample(lines, config.sample_lines, seed=seed)
    model = learn(sample, config)
    pieces = len(Vocabulary.from_model(model))
    _logger.info(
        "tokenizer: %s pieces learnt from %s lines in %.1f s",
        *(f"{pieces:,}", f"{len(sample):,}", time.monotonic() - began),
    )
    if pieces < config.vocabulary_size:
        _logger.warning(
            "tokenizer: the text has only %s pieces, `tokenizer.vocabulary_size` asks for %s; "
            "going on with %s",
            *(f"{pieces:,}", f"{config.vocabulary_size:,}", f"{pieces:,}"),
        )
    return model


def text_sample(lines: Iterable[str], count: int, *, seed: int) -> list[str]:
    """Return at most `count` of `lines`, as SentencePiece is to see them.

    Raises `DataError` where none holds anything.
    """
    kept = sample_lines(lines, count, seed=seed)
    sample = [escape(line).replace(_RESERVED, " ") for line in kept]
    if not any(line.strip() for line in sample):
        raise DataError("the training corpus has no text to learn a tokenizer from")
    return sample


def sample_lines(lines: Iterable[_Item], count: int, *, seed: int) -> list[_Item]:
    """Return at most `count` of `lines`, each as likely as any other, in one pass.

    Reservoir sampling (Vitter 1985, algorithm R): memory grows with `count` only.
    """
    remaining = iter(lines)
    random = np.random.Generator(np.random.PCG64(seed))
    kept = list(islice(remaining, count))
    seen = len(kept)
    while block := list(islice(remaining, _BLOCK_LINES)):
        slots = random.integers(0, np.arange(seen, seen + len(block)) + 1)
        for position in np.flatnonzero(slots < count):
            kept[slots[position]] = block[position]
        seen += len(block)
    return kept


def learn(sample: list[str], config: TokenizerConfig) -> bytes:
    """Return a serialised SentencePiece model of a `text_sample`.

    Raises `ConfigError` where the vocabulary is too small for the characters.
    """
    model = io.BytesIO()
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(sample),
            model_writer=model,
            model_type=config.algorithm,
            vocab_size=config.vocabulary_size,
            hard_vocab_limit=False,
            character_coverage=config.character_coverage,
            byte_fallback=config.byte_fallback == "on",
            control_symbols=list(dict.fromkeys(config.tags)),
            normalization_rule_name=config.normalization,
            remove_extra_whitespaces=False,
            pad_id=PAD,
            unk_id=UNK,
            bos_id=BOS,
            eos_id=EOS,
            shuffle_input_sentence=False,
            max_sentence_length=_LONGEST_LINE_BYTES,
            num_threads=_THREADS,
            minloglevel=_ERRORS_ONLY,
        )
    except RuntimeError as error:
        if needed := _TOO_SMALL.search(str(error)):
            raise ConfigError(
                f"`tokenizer.vocabulary_size` {config.vocabulary_size} is too small: the "
                f"characters of the corpus take {needed[1]} pieces; raise it, or lower "
                "`tokenizer.character_coverage`"
            ) from error
        raise
    return model.getvalue()
