"""Sampling from a step model, and minimum Bayes risk decoding of a sample.

Axes: R rows, one per sentence, V vocabulary, C tokens to draw from.
"""

import hashlib
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from mt.config import DecodingConfig
from mt.decoding.constraints import NO_CONSTRAINTS, Constraints, History
from mt.decoding.engine import Hypothesis
from mt.decoding.search import StepModel, apply_constraints, extend, sum_dtype
from mt.special_ids import EOS

Utility = Literal["chrf", "bleu"]
Compare = Callable[[str, str], float]
"""Map a translation and a reference to a utility from 0 to 100."""


def sample(
    model: StepModel,
    limits: Tensor,
    uniforms: Tensor,
    decoding: DecodingConfig,
    constraints: Constraints = NO_CONSTRAINTS,
) -> list[Hypothesis]:
    """Draw one translation of each sentence by the temperature, `top_k` and `top_p` of `decoding`.

    `uniforms` [B T] are numbers in [0, 1), T at least the longest limit, on the device of `limits`
    in the precision of `sum_dtype`. Each number decides one token, so a translation depends only on
    its own sentence and numbers. Log-probability and score of a hypothesis are the model's own,
    whatever the settings.
    """

    def choose(logits: Tensor, history: History) -> tuple[Tensor, Tensor]:
        step = history.tokens.shape[1]
        return draw(logits, uniforms[history.sentences, step], decoding, constraints, history)

    return extend(model, limits, choose)


def draw(
    logits: Tensor,
    uniforms: Tensor,
    decoding: DecodingConfig,
    constraints: Constraints,
    history: History,
) -> tuple[Tensor, Tensor]:
    """Return the tokens [R] drawn by uniform numbers [R], and their log-probabilities.

    They are drawn from the `top_k` most probable tokens (Fan et al. 2018, section 5.1), and of
    these from the fewest with a probability of `top_p` (Holtzman et al. 2020, equation 2).
    """
    logits, normaliser = apply_constraints(logits, constraints, history)
    count = min(decoding.top_k or logits.shape[1], logits.shape[1] - EOS)
    best = logits[:, EOS:].topk(count, dim=1)
    values = best.values.to(sum_dtype(logits.device))
    cumulative = torch.softmax(values / decoding.temperature, dim=1).cumsum(1)
    last = (cumulative < decoding.top_p * cumulative[:, -1:]).sum(dim=1, keepdim=True)
    last = last.clamp(max=count - 1)
    threshold = uniforms[:, None] * cumulative.gather(1, last)
    position = (cumulative <= threshold).sum(dim=1, keepdim=True).minimum(last)
    log_probs = best.values.gather(1, position) - normaliser
    return (best.indices.gather(1, position) + EOS).flatten(), log_probs.flatten().to(values.dtype)


def uniform_numbers(
    sources: Sequence[Sequence[int]], *, seed: int, draws: Sequence[int], length: int
) -> Tensor:
    """Return uniform numbers [B T] that depend only on the source, its draw and the seed."""
    rows = []
    for source, draw_number in zip(sources, draws, strict=True):
        digest = hashlib.sha256(np.asarray(source, dtype=np.int64).tobytes()).digest()
        words = np.frombuffer(digest, dtype=np.uint32).tolist()
        random = np.random.Generator(np.random.PCG64([seed, draw_number, *words]))
        rows.append(random.random(length))
    return torch.from_numpy(np.stack(rows))


def rank_by_utility(
    candidates: Sequence[Hypothesis], texts: Sequence[str], compare: Compare
) -> list[Hypothesis]:
    """Return the distinct candidates with their expected utility as the score, highest first."""
    utilities = compute_expected_utilities(texts, compare)
    scored = {
        hypothesis.ids: replace(hypothesis, score=utility)
        for hypothesis, utility in zip(candidates, utilities, strict=True)
    }
    return sorted(scored.values(), key=lambda hypothesis: -hypothesis.score)


def compute_expected_utilities(texts: Sequence[str], compare: Compare) -> list[float]:
    """Return the mean utility of each translation, with each of `texts` as the reference.

    Kumar and Byrne 2004, equation 3, with the translations as a sample of the model's distribution
    (Eikema and Aziz 2020, section 5); duplicates count as often as they were drawn.
    """
    counts = Counter(texts)
    means = {
        text: sum(count * compare(text, reference) for reference, count in counts.items())
        / len(texts)
        for text in counts
    }
    return [means[text] for text in texts]


def _load_comparison(utility: Utility) -> Compare:
    from sacrebleu.metrics.bleu import BLEU
    from sacrebleu.metrics.chrf import CHRF

    # Character n-grams need no word boundaries and therefore no language.
    metric = CHRF() if utility == "chrf" else BLEU(tokenize="char", effective_order=True)
    return lambda text, reference: metric.sentence_score(text, [reference]).score


UTILITIES: dict[Utility, Callable[[], Compare]] = {
    "chrf": partial(_load_comparison, "chrf"),
    "bleu": partial(_load_comparison, "bleu"),
}
