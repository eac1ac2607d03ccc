"""Sampling from a step model.

Axes: R rows, one per sentence, V vocabulary, C tokens to draw from.
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
    sum_dtype,
)
from mt.decoding.engine import Hypothesis
from mt.decoding.search import StepModel, extend
from mt.special_ids import EOS


@dataclass(frozen=True, slots=True)
class SampleSettings:
    """Parameters of sampling."""

    temperature: float = 1.0
    """Divisor of the logits."""
    top_k: int | None = None
    """Number of most probable tokens to draw from (Fan et al. 2018, section 5.1); None: all."""
    top_p: float = 1.0
    """Probability mass of the fewest most probable tokens to draw from.

    Holtzman et al. 2020, equation 2; applied after `top_k`.
    """


def sample(
    model: StepModel,
    limits: Tensor,
    uniforms: Tensor,
    settings: SampleSettings,
    constraints: Constraints = NO_CONSTRAINTS,
) -> list[Hypothesis]:
    """Draw one translation of each sentence.

    `uniforms` [B T] are numbers in [0, 1), T at least the longest limit, on the device of `limits`
    in the precision of `sum_dtype`. Each number decides one token, so a translation depends only on
    its own sentence and numbers. Log-probability and score of a hypothesis are the model's own,
    whatever the settings.
    """

    def choose(logits: Tensor, prefixes: Prefixes) -> tuple[Tensor, Tensor]:
        step = prefixes.tokens.shape[1]
        return draw(logits, uniforms[prefixes.sentences, step], settings, constraints, prefixes)

    return extend(model, limits, choose)


def draw(
    logits: Tensor,
    uniforms: Tensor,
    settings: SampleSettings,
    constraints: Constraints,
    prefixes: Prefixes,
) -> tuple[Tensor, Tensor]:
    """Return the tokens [R] drawn by uniform numbers [R], and their log-probabilities."""
    logits, normaliser = apply_constraints(logits, constraints, prefixes)
    count = min(settings.top_k or logits.shape[1], logits.shape[1] - EOS)
    best = logits[:, EOS:].topk(count, dim=1)
    values = best.values.to(sum_dtype(logits.device))
    cumulative = torch.softmax(values / settings.temperature, dim=1).cumsum(1)
    last = (cumulative < settings.top_p * cumulative[:, -1:]).sum(dim=1, keepdim=True)
    last = last.clamp(max=count - 1)
    threshold = uniforms[:, None] * cumulative.gather(1, last)
    place = (cumulative <= threshold).sum(dim=1, keepdim=True).minimum(last)
    log_probs = best.values.gather(1, place) - normaliser
    return (best.indices.gather(1, place) + EOS).flatten(), log_probs.flatten().to(values.dtype)


def uniform_numbers(
    sources: Sequence[Sequence[int]], *, seed: int, draws: Sequence[int], length: int
) -> Tensor:
    """Return uniform numbers [B T] that depend only on the source, its draw and the seed.

    The samples of a sentence therefore do not depend on its place in the input.
    """
    rows = []
    for source, number in zip(sources, draws, strict=True):
        digest = hashlib.sha256(np.asarray(source, dtype=np.int64).tobytes()).digest()
        words = np.frombuffer(digest, dtype=np.uint32).tolist()
        random = np.random.Generator(np.random.PCG64([seed, number, *words]))
        rows.append(random.random(length))
    return torch.from_numpy(np.stack(rows))
