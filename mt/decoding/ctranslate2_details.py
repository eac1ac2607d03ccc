"""Log-probabilities and alignments of translations with CTranslate2, each by a forced pass."""

from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias

import ctranslate2
import numpy as np

from mt.decoding.details import PieceDetails
from mt.decoding.length_batches import length_batches

Pieces: TypeAlias = Sequence[str]

# Padded positions of a batch; a longer pair is alone.
_POSITIONS_AT_ONCE = 1024


def explain(
    translator: ctranslate2.Translator, sources: Sequence[Pieces], targets: Sequence[Pieces]
) -> list[PieceDetails]:
    """Return the details of a target for each source; sources end with EOS, targets do not.

    A target piece belongs to the source piece that it looks at most, EOS aside, in the mean over
    the heads of the one layer that the exported model names for that.
    """
    details = [PieceDetails((), ())] * len(targets)
    each_log_probs = score(translator, sources, targets)
    for number, result in _forced(translator, sources, targets):
        target = targets[number]
        end = len(sources[number]) - 1
        attention = np.asarray(result.attention[0][: len(target)], dtype=np.float32)
        looked_at = attention.argmax(axis=1).tolist()
        details[number] = PieceDetails(
            tuple(each_log_probs[number][: len(target)]),
            tuple((place, piece) for piece, place in enumerate(looked_at) if place < end),
            attention,
        )
    return details


def score(
    translator: ctranslate2.Translator, sources: Sequence[Pieces], targets: Sequence[Pieces]
) -> list[list[float]]:
    """Return the natural log-probability of each piece of each target and of EOS after the last.

    Sources end with EOS, targets do not.
    """
    scores: list[list[float]] = [[] for _ in targets]
    jobs = []
    for numbers in _batches(sources, targets, range(len(targets))):
        results = translator.score_batch(
            [list(sources[number]) for number in numbers],
            [list(targets[number]) for number in numbers],
            max_input_length=0,  # the default cuts sources at 1,024 pieces
            asynchronous=True,
        )
        jobs.append((numbers, results))
    for numbers, results in jobs:
        for number, result in zip(numbers, results, strict=True):
            scores[number] = list(result.result().log_probs)
    return scores


def _forced(
    translator: ctranslate2.Translator, sources: Sequence[Pieces], targets: Sequence[Pieces]
) -> Iterator[tuple[int, Any]]:
    """Yield the numbers of the targets that have pieces, and CTranslate2's way along each.

    Forced scoring tells no attention; a greedy search that is given the whole target does. A search
    goes on behind a target that is shorter than the longest of its batch; nobody reads that.
    """
    jobs = []
    filled = [number for number, target in enumerate(targets) if target]
    for numbers in _batches(sources, targets, filled):
        results = translator.translate_batch(
            [list(sources[number]) for number in numbers],
            target_prefix=[list(targets[number]) for number in numbers],
            beam_size=1,
            return_attention=True,
            max_input_length=0,
            max_decoding_length=max(len(targets[number]) for number in numbers),
            asynchronous=True,
        )
        jobs.append((numbers, results))
    for numbers, results in jobs:
        for number, result in zip(numbers, results, strict=True):
            yield number, result.result()


def _batches(
    sources: Sequence[Pieces], targets: Sequence[Pieces], numbers: Sequence[int]
) -> Iterator[list[int]]:
    """Return batches of pairs of about one length; the target has an end mark besides."""
    lengths = {number: max(len(sources[number]), len(targets[number]) + 1) for number in numbers}
    return length_batches(lengths, positions=_POSITIONS_AT_ONCE)
