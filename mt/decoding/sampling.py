"""Sampling from a step model, and minimum Bayes risk decoding of a sample.

Axes: R rows, one per sentence, V vocabulary, C tokens to draw from.
"""

import hashlib
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from mt.config import DecodingConfig
from mt.config.decoding import MBR_CANDIDATES
from mt.decoding.constraints import NO_CONSTRAINTS, Constraints, Prefixes
from mt.decoding.engine import Hypothesis
from mt.decoding.search import StepModel, apply_constraints, extend, sum_dtype
from mt.errors import UserError
from mt.special_ids import EOS

Utility = Literal["chrf", "bleu"]
Compare = Callable[[str, str], float]
"""Map a translation and a reference to a utility from 0 to 100."""


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
    position = (cumulative <= threshold).sum(dim=1, keepdim=True).minimum(last)
    log_probs = best.values.gather(1, position) - normaliser
    return (best.indices.gather(1, position) + EOS).flatten(), log_probs.flatten().to(values.dtype)


def uniform_numbers(
    sources: Sequence[Sequence[int]], *, seed: int, draws: Sequence[int], length: int
) -> Tensor:
    """Return uniform numbers [B T] that depend only on the source, its draw and the seed.

    The samples of a sentence therefore do not depend on its place in the input.
    """
    rows = []
    for source, draw_number in zip(sources, draws, strict=True):
        digest = hashlib.sha256(np.asarray(source, dtype=np.int64).tobytes()).digest()
        words = np.frombuffer(digest, dtype=np.uint32).tolist()
        random = np.random.Generator(np.random.PCG64([seed, draw_number, *words]))
        rows.append(random.random(length))
    return torch.from_numpy(np.stack(rows))


def check_candidates(decoding: DecodingConfig) -> None:
    """Raise UserError if the search finds fewer candidates than `decoding.mbr` needs."""
    if decoding.mbr is None or decoding.search == "sample":
        return
    most = decoding.beam if decoding.search == "beam" else 1
    if most < MBR_CANDIDATES:
        raise UserError(
            f"`decoding.mbr` chooses from {MBR_CANDIDATES} translations, and {decoding.search} "
            f"search finds {most}: take `decoding.search` sample, or a larger `decoding.beam`"
        )


def rank_by_utility(
    candidates: Sequence[Hypothesis], texts: Sequence[str], compare: Compare
) -> list[Hypothesis]:
    """Return the distinct candidates, whose texts are `texts`, highest expected utility first.

    The utility is their score.
    """
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


def _compare_by_chrf() -> Compare:
    from sacrebleu.metrics.chrf import CHRF

    metric = CHRF()
    return lambda text, reference: metric.sentence_score(text, [reference]).score


def _compare_by_bleu() -> Compare:
    from sacrebleu.metrics.bleu import BLEU

    # Character n-grams need no word boundaries and therefore no language.
    metric = BLEU(tokenize="char", effective_order=True)
    return lambda text, reference: metric.sentence_score(text, [reference]).score


UTILITIES: dict[Utility, Callable[[], Compare]] = {
    "chrf": _compare_by_chrf,
    "bleu": _compare_by_bleu,
}
