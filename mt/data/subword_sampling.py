"""New tokens of the training pairs for each epoch: changed text, and BPE-dropout.

SentencePiece can sample, but version 0.2.3 mixes an entropy of the process into its generator:
after `set_random_generator_seed` a second process draws other tokens, so a run could not resume
bit for bit. Here words are cut in step, in whole arrays, with a NumPy generator of each chunk.
"""

import hashlib
import json
import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import CancelledError, Future, wait
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from mt.data.augmentation import Augmentation
from mt.data.store import Chunk, PairStore, Rows, concatenate, join_stores, open_store, write_store
from mt.data.tokenizer import SPACE_MARK, Tokenizer, Vocabulary
from mt.errors import ConfigError
from mt.files import lock_file, make_cache_folder

Ids = NDArray[np.int32]
Flags = NDArray[np.bool_]

_FORMAT = 2
"""Part of a folder's name; raised whenever the same seed draws other tokens."""
_BLOCK_ROWS = 1024
"""Rows segmented at once; part of the format, since they share a generator."""
SILENT_SECONDS = 1.0
_logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Sampling:
    """Parameters of the draws: dropout of BPE merges on each side, and changed text."""

    source: float
    """0 keeps the usual segmentation."""
    target: float
    max_tokens: int
    seed: int
    augmentation: Augmentation | None = None
    """Changes of the text before it is cut into tokens."""
    show_terms: Callable[[Chunk, Chunk, np.random.SeedSequence], Chunk] | None = None
    """Function of drawn and plain rows that shows terms in some; its `repr` names the epochs."""


def sample_epoch(
    store: PairStore,
    tokenizer: Tokenizer,
    sampling: Sampling,
    epoch: int,
    *,
    is_cancelled: Callable[[], bool] = lambda: False,
) -> PairStore:
    """Return the pairs of a store in the tokens of an epoch, drawn unless the cache has them.

    The tokens follow from seed, epoch and text. Ranks of one host share the file: the first draws,
    the others wait; without file locks, each draws. Raises `CancelledError` soon after
    `is_cancelled` returns True.
    """
    path = find_epoch_file(store, sampling, epoch)
    with lock_file(make_cache_folder(path.parent) / ".lock"):
        if drawn := open_store(path):
            return drawn
        sides = (tokenizer.source, sampling.source), (tokenizer.target, sampling.target)
        source, target = (BpeDropout(vocabulary, dropout) for vocabulary, dropout in sides)

        def chunks() -> Iterator[Chunk]:
            for index, chunk in enumerate(store.chunks):
                if is_cancelled():
                    raise CancelledError
                *seeds, third, fourth = np.random.SeedSequence(
                    [sampling.seed, epoch], spawn_key=(index,)
                ).spawn(4)
                if changes := sampling.augmentation:
                    limit = sampling.max_tokens
                    chunk = changes.apply(chunk, tokenizer, third, max_tokens=limit)
                drawn = Chunk(
                    source.draw(chunk.source, seeds[0], max_tokens=sampling.max_tokens),
                    target.draw(chunk.target, seeds[1], max_tokens=sampling.max_tokens),
                    chunk.left_out,
                )
                yield sampling.show_terms(drawn, chunk, fourth) if sampling.show_terms else drawn

        write_store(path, chunks())
        return PairStore(path)


def find_epoch_file(store: PairStore, sampling: Sampling, epoch: int) -> Path:
    """Return the file of `sample_epoch`; the name of `store` identifies corpus and tokenizer."""
    key = json.dumps([_FORMAT, store.path.name, repr(sampling)])
    folder = hashlib.sha256(key.encode()).hexdigest()[:32]
    return store.path.parent.with_name("epochs") / folder / f"{epoch}.arrow"


def open_drawn(
    stores: Sequence[PairStore], tokenizer: Tokenizer, sampling: Sampling, *, epochs: int | None
) -> "EpochTokens | None":
    """Return the epochs that `sampling` draws; None if it changes nothing.

    Raises ConfigError for a tokenizer whose algorithm has no subword dropout.
    """
    changes = sampling.source, sampling.target, sampling.augmentation, sampling.show_terms
    if not any(changes):
        return None
    sides = (sampling.source, tokenizer.source), (sampling.target, tokenizer.target)
    if any(dropout and vocabulary.algorithm != "bpe" for dropout, vocabulary in sides):
        raise ConfigError(
            "`tokenizer.subword_dropout` needs byte-pair encoding, but the copied tokenizer is a "
            "unigram model; remove the key"
        )
    return EpochTokens(stores, tokenizer, sampling, epochs=epochs)


@dataclass(eq=False)
class EpochTokens:
    """Stores of successive epochs; a thread draws the next one during training.

    Files of other epochs are deleted.
    """

    stores: Sequence[PairStore]
    tokenizer: Tokenizer
    sampling: Sampling
    epochs: int | None
    """Length of the run, if known."""
    _drawn: dict[int, Future[PairStore]] = field(default_factory=dict, init=False)

    def open(self, epoch: int) -> PairStore:
        """Return the joined stores of an epoch, and begin to draw the next epoch."""
        for other in set(self._drawn) - {epoch, epoch + 1}:
            self._discard(other)
        drawn = self.begin(epoch)
        if not wait([drawn], timeout=SILENT_SECONDS).done:
            _logger.info("waiting for the tokens of epoch %d", epoch + 1)
        store = drawn.result()
        if self.epochs is None or epoch + 1 < self.epochs:
            self.begin(epoch + 1)
        return store

    def close(self) -> None:
        """Stop drawing and delete the files."""
        for epoch in list(self._drawn):
            self._discard(epoch)

    def begin(self, epoch: int) -> "Future[PairStore]":
        """Begin to draw an epoch, unless it is begun; return its future store."""
        if epoch in self._drawn:
            return self._drawn[epoch]
        drawn = self._drawn[epoch] = Future[PairStore]()

        def is_cancelled() -> bool:
            # The interpreter waits for this thread once the main thread has ended.
            return self._drawn.get(epoch) is not drawn or not threading.main_thread().is_alive()

        def draw() -> None:
            sample = partial(sample_epoch, is_cancelled=is_cancelled)
            try:
                stores = [sample(one, self.tokenizer, self.sampling, epoch) for one in self.stores]
                drawn.set_result(join_stores(stores))
            except BaseException as error:
                drawn.set_exception(error)

        threading.Thread(target=draw).start()
        return drawn

    def _discard(self, epoch: int) -> None:
        wait([self._drawn.pop(epoch)])
        for store in self.stores:
            find_epoch_file(store, self.sampling, epoch).unlink(missing_ok=True)


class BpeDropout:
    """BPE that skips possible merges at random (Provilkov et al. 2020, algorithm 1)."""

    def __init__(self, vocabulary: Vocabulary, dropout: float) -> None:
        """Take the probability to skip a merge; 0 draws nothing."""
        size, texts = len(vocabulary), vocabulary.texts()
        self._dropout = dropout
        ids = {text: token for token, text in texts.items()}
        self._scores = np.array([vocabulary.processor.get_score(token) for token in range(size)])
        spelled = [[ids.get(character, -1) for character in texts.get(n, "")] for n in range(size)]
        spelled = [row if row and -1 not in row else [n] for n, row in enumerate(spelled)]
        self._spelling = Rows.of(spelled)
        """[V rows] Characters of each token, as ids; bytes, tags, UNK and EOS are their own."""
        crossing = any(SPACE_MARK in text[1:] for text in ids)
        starting = [] if crossing else [n for n, text in texts.items() if text[0] == SPACE_MARK]
        self._begins_word = np.isin(np.arange(size), starting)
        merges = {
            ids[text[:cut]] << 32 | ids[text[cut:]]: token
            for text, token in ids.items()
            for cut in range(1, len(text))
            if text[:cut] in ids and text[cut:] in ids
        }
        self._pairs = np.array([*sorted(merges), np.iinfo(np.int64).max])
        """Pairs of tokens that can be merged, each as one number."""
        self._merged = np.array([*(merges[pair] for pair in sorted(merges)), -1], np.int32)

    def draw(self, rows: Rows, seed: np.random.SeedSequence, *, max_tokens: int) -> Rows:
        """Return rows of the same text; a row that exceeds `max_tokens` keeps its tokens."""
        if not self._dropout:
            return rows
        random = np.random.Generator(np.random.PCG64(seed))
        drawn = []
        for first in range(0, len(rows), _BLOCK_ROWS):
            plain = rows.take(np.arange(first, min(first + _BLOCK_ROWS, len(rows))))
            symbols = self._spelling.take(plain.values)
            row_starts = symbols.offsets[plain.offsets]
            begins = self._begins_word[symbols.values]
            begins[row_starts[:-1]] = True
            tokens = self._segment(symbols.values, begins, random)
            counts = np.append(0, np.cumsum(tokens >= 0))
            both = concatenate([Rows(tokens[tokens >= 0], counts[row_starts]), plain])
            too_long = both.lengths[: len(plain)] > max_tokens
            drawn.append(both.take(np.arange(len(plain)) + too_long * len(plain)))
        return concatenate(drawn)

    def _segment(self, ids: Ids, begins: Flags, random: np.random.Generator) -> Ids:
        """Return [N] the token that begins at each of the symbols `ids`, or -1.

        `begins` [N] is True at the first symbol of each word; no token crosses that border.
        """
        tokens = np.full(len(ids), -1, np.int32)
        word, at = np.cumsum(begins) - 1, np.arange(len(ids))
        while len(ids):
            pairs = ids[:-1].astype(np.int64) << 32 | ids[1:]
            rows = np.searchsorted(self._pairs, pairs)
            merged = np.where(self._pairs[rows] == pairs, self._merged[rows], np.int32(-1))
            merges = (merged >= 0) & (word[:-1] == word[1:])
            merges &= random.random(len(merges)) >= self._dropout
            (merges,) = np.nonzero(merges)
            merges = merges[np.lexsort((merges, -self._scores[merged[merges]], word[merges]))]
            best = merges[np.diff(word[merges], prepend=-1) > 0]  # one merge in each word
            stays = np.isin(word, word[best])
            tokens[at[~stays]] = ids[~stays]
            ids[best] = merged[best]
            stays[best + 1] = False
            ids, word, at = ids[stays], word[stays], at[stays]
        return tokens
