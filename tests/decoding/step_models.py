"""Step models without a network, and the exhaustive search that beam search is compared with."""

import itertools
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from mt.config import DecodingConfig
from mt.decoding.engine import LENGTH_NORMALIZATIONS, Normalization
from mt.special_ids import BOS, EOS

Ids = tuple[int, ...]


def beam_settings(
    beam: int, alpha: float = 0.0, normalization: Normalization = "gnmt"
) -> DecodingConfig:
    """Settings of a beam that may be wider than a config allows."""
    return DecodingConfig.model_construct(
        beam=beam, length_penalty=alpha, length_normalization=normalization
    )


def log_probs(logits: Tensor) -> list[float]:
    found: list[float] = logits.double().log_softmax(0).tolist()
    return found


class PrefixModel:
    """A model whose logits depend on the sentence and on every token read, and that checks calls.

    `seeds` has a number per sentence: the same number means the same sentence. The logits of a
    prefix are drawn from a generator seeded by sentence and prefix, so that nothing but a right
    `reorder` and `keep` leads to the right ones.
    """

    def __init__(
        self, seeds: Sequence[int], *, beam: int, vocabulary: int, sharpness: float = 2.0
    ) -> None:
        self.vocabulary, self.beam, self.sharpness = vocabulary, beam, sharpness
        self.seeds = list(seeds)
        self.prefixes: list[Ids] = [()] * len(self.seeds)
        self.rows_by_step: list[int] = []
        self.reorders = 0

    def step(self, last_ids: Tensor) -> Tensor:
        rows = self.beam if self.rows_by_step else 1
        assert last_ids.shape == (len(self.seeds) * rows,)
        self.rows_by_step.append(len(last_ids))
        read = [
            (*prefix, last) for prefix, last in zip(self.prefixes, last_ids.tolist(), strict=True)
        ]
        self.prefixes = [prefix for prefix in read for _ in range(self.beam // rows)]
        logits = [self.logits(self.seeds[row // rows], prefix) for row, prefix in enumerate(read)]
        return torch.stack(logits)

    def reorder(self, parents: Tensor) -> None:
        assert parents.shape == (len(self.seeds), self.beam)
        self.reorders += 1
        self.prefixes = [
            self.prefixes[sentence * self.beam + row]
            for sentence, rows in enumerate(parents.tolist())
            for row in rows
        ]

    def keep(self, sentences: Tensor) -> None:
        kept = sentences.tolist()
        assert len(kept) < len(self.seeds), "nothing was dropped"
        self.seeds = [self.seeds[sentence] for sentence in kept]
        self.prefixes = [
            self.prefixes[sentence * self.beam + row]
            for sentence in kept
            for row in range(self.beam)
        ]

    def logits(self, seed: int, prefix: Ids) -> Tensor:
        return self.sharpness * self._normal(seed, prefix, self.vocabulary)

    def _normal(self, seed: int, prefix: Ids, count: int) -> Tensor:
        number = seed
        for token in prefix:
            number = (number * 1_000_003 + token + 1) % (2**61 - 1)
        return torch.randn(count, generator=torch.Generator().manual_seed(number))

    def forced_log_probs(self, ids: Ids) -> list[float]:
        """The log-probability of each of `ids`, of the first sentence, without any search."""
        return [
            log_probs(self.logits(self.seeds[0], (BOS, *ids[:place])))[token]
            for place, token in enumerate(ids)
        ]


class TableModel(PrefixModel):
    """A model of one sentence with given probabilities after each prefix, else even ones."""

    def __init__(self, table: dict[Ids, list[float]], *, beam: int) -> None:
        super().__init__([0], beam=beam, vocabulary=len(table[()]))
        self.table = table

    def logits(self, seed: int, prefix: Ids) -> Tensor:
        even = [1.0 / self.vocabulary] * self.vocabulary
        return torch.tensor(self.table.get(prefix[1:], even)).log()


def every_translation(vocabulary: int, limit: int) -> list[Ids]:
    """All translations of at most `limit` tokens, EOS last."""
    return [
        (*ids, EOS)
        for length in range(limit)
        for ids in itertools.product(range(EOS + 1, vocabulary), repeat=length)
    ]


def exhaustive(
    model: PrefixModel,
    limit: int,
    *,
    alpha: float = 0.6,
    normalization: Normalization = "gnmt",
    allowed: Callable[[Ids], bool] = lambda _: True,
    free: int = 0,
) -> list[tuple[Ids, float]]:
    """Rank all allowed translations of a model's sentence; the first `free` tokens cost nothing."""
    scores = {}
    for ids in filter(allowed, every_translation(model.vocabulary, limit)):
        total = sum(model.forced_log_probs(ids)[free:])
        scores[ids] = total / LENGTH_NORMALIZATIONS[normalization](len(ids), alpha)
    return sorted(scores.items(), key=lambda item: -item[1])
