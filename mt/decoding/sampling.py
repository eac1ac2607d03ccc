"""Sampling: each token is drawn from what the model thinks of it.

Axes: R rows, of which each is a sentence here, V vocabulary, C tokens to draw from.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from mt.decoding.constraints import (
    NO_CONSTRAINTS,
    Constraints,
    Prefixes,
    apply_constraints,
    require_finite,
)
from mt.decoding.engine import Hypothesis
from mt.decoding.search import StepModel, extend
from mt.special_ids import EOS


@dataclass(frozen=True, slots=True)
class SampleSettings:
    """Which tokens are drawn from, and how evenly."""

    temperature: float = 1.0
    """What logits are divided by."""
    top_k: int | None = None
    """Only so many most probable tokens (Fan et al. 2018, section 5.1); None: all."""
    top_p: float = 1.0
    """Of these, only the fewest most probable that have this probability together.

    Holtzman et al. 2020, equation 2.
    """


def sample(
    model: StepModel,
    limits: Tensor,
    numbers: Tensor,
    settings: SampleSettings,
    rules: Constraints = NO_CONSTRAINTS,
) -> list[Hypothesis]:
    """Draw a translation of each sentence.

    `numbers` [B T], at least as many as the longest limit, are uniform in [0, 1): one decides about
    each token, so a translation depends on its own sentence and numbers alone. The log-probability
    of a hypothesis is the model's, whatever the settings; its score is the same.
    """

    def draw(logits: Tensor, written: Prefixes) -> tuple[Tensor, Tensor]:
        step = written.tokens.shape[1]
        return drawn(logits, numbers[written.sentences, step], settings, rules, written)

    return extend(model, limits, draw)


def drawn(
    logits: Tensor, numbers: Tensor, settings: SampleSettings, rules: Constraints, written: Prefixes
) -> tuple[Tensor, Tensor]:
    """Return the tokens [R] that uniform numbers [R] choose, and their log-probabilities."""
    logits, normaliser = apply_constraints(logits, rules, written)
    count = min(settings.top_k or logits.shape[1], logits.shape[1] - EOS)
    best = logits[:, EOS:].topk(count, dim=1)
    log_probs = (best.values - normaliser).cpu().double()
    require_finite(log_probs[:, 0])
    reached = torch.softmax(best.values.cpu().double() / settings.temperature, dim=1).cumsum(dim=1)
    last = (reached < settings.top_p * reached[:, -1:]).sum(dim=1, keepdim=True)
    last = last.clamp(max=count - 1)
    place = (reached <= numbers[:, None] * reached.gather(1, last)).sum(dim=1, keepdim=True)
    place = place.minimum(last)
    ids = best.indices.cpu().gather(1, place) + EOS
    return ids.flatten(), log_probs.gather(1, place).flatten()


def uniform_numbers(
    sources: Sequence[Sequence[int]], *, seed: int, draws: Sequence[int], length: int
) -> Tensor:
    """Return uniform numbers [B T] that follow from each source, its draw and the seed alone.

    The same sentence is therefore given the same samples wherever it stands.
    """
    rows = []
    for source, number in zip(sources, draws, strict=True):
        digest = hashlib.sha256(np.asarray(source, dtype=np.int64).tobytes()).digest()
        words = np.frombuffer(digest, dtype=np.uint32).tolist()
        random = np.random.Generator(np.random.PCG64([seed, number, *words]))
        rows.append(random.random(length))
    return torch.from_numpy(np.stack(rows))
