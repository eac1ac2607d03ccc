"""Forced scoring with our own Transformer, teacher-forced in batches."""

import math
from collections.abc import Sequence
from itertools import islice

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from mt.data.batches import collate
from mt.data.store import Example
from mt.decoding.length_batches import length_batches
from mt.errors import DivergedError
from mt.model.transformer import Transformer

Ids = Sequence[int]

# Padded positions of a batch, sentences times the longest side; a longer pair is alone.
_POSITIONS_AT_ONCE = 4096
# Logits that exist at once: 64 MiB in fp32.
_LOGITS_AT_ONCE = 2**24


def score(
    models: Sequence[Transformer],
    sources: Sequence[Ids],
    targets: Sequence[Ids],
    *,
    device: torch.device,
) -> list[list[float]]:
    """Return what several models together give to each piece: the mean of their probabilities."""
    of_each = [score_pairs(model, sources, targets, device=device) for model in models]
    return [
        (np.logaddexp.reduce(rows, axis=0) - math.log(len(models))).tolist()
        for rows in zip(*of_each, strict=True)
    ]


def score_pairs(
    model: Transformer, sources: Sequence[Ids], targets: Sequence[Ids], *, device: torch.device
) -> list[list[float]]:
    """Return the natural log-probability of each piece of each target, in the given order.

    A source ends with EOS; a whole target does, too. Teacher-forced in batches of like length; the
    softmax is fp32. The numbers do not depend on what shares a batch, but for rounding. Raises
    DivergedError where the model's output is not finite.
    """
    assert not model.training, "dropout would make the scores random"
    pairs = zip(sources, targets, strict=True)
    lengths = {number: max(map(len, pair)) for number, pair in enumerate(pairs)}
    scores: list[list[float]] = [[] for _ in targets]
    for batch in length_batches(lengths, positions=_POSITIONS_AT_ONCE):
        examples = [
            Example(number, np.asarray(sources[number]), np.asarray(targets[number]))
            for number in batch
        ]
        pieces = iter(_log_probs(model, examples, device).tolist())
        for number in batch:
            scores[number] = list(islice(pieces, len(targets[number])))
    return scores


def _log_probs(model: Transformer, examples: Sequence[Example], device: torch.device) -> Tensor:
    """Return the log-probabilities [N] of all target pieces of a batch, row after row."""
    batch = collate(examples).to(device)
    with torch.inference_mode():
        states = model.states(batch.source, batch.target_in, batch.real)
        targets = batch.target_out.flatten()[batch.real]
        rows = max(1, _LOGITS_AT_ONCE // model.output.out_features)
        found = torch.cat(
            [
                F.log_softmax(model.output(some).float(), dim=-1).gather(1, ids[:, None])[:, 0]
                for some, ids in zip(
                    torch.split(states, rows), torch.split(targets, rows), strict=True
                )
            ]
        ).cpu()
    if not found.isfinite().all():
        raise DivergedError(
            "the model's output is not finite (NaN or infinite): its weights are damaged, "
            "or its training diverged"
        )
    return found
