import math
from collections import Counter

import pytest
import torch

from mt.config import DecodingConfig
from mt.decoding.constraints import NO_CONSTRAINTS, Constraints, History
from mt.decoding.sampling import draw, uniform_numbers
from mt.special_ids import EOS

# PAD, UNK and BOS, the first three of the seven tokens, are never drawn.
PROBABILITIES = [0.1, 0.05, 0.05, 0.08, 0.4, 0.2, 0.12]
DRAWABLE = {4: 0.4, 5: 0.2, 6: 0.12, EOS: 0.08}


def shares(settings: DecodingConfig, constraints: Constraints = NO_CONSTRAINTS) -> dict[int, float]:
    """The share of [0, 1) that draws each token, to a thousandth."""
    numbers = (torch.arange(1000, dtype=torch.float64) + 0.5) / 1000
    logits = torch.tensor([PROBABILITIES]).log().repeat(1000, 1)
    prefixes = History(
        torch.zeros(1000, dtype=torch.int64), torch.empty(1000, 0, dtype=torch.int64)
    )
    ids, log_probs = draw(logits, numbers, settings, constraints, prefixes)
    for token, log_prob in zip(ids.tolist(), log_probs.tolist(), strict=True):
        assert log_prob == pytest.approx(math.log(DRAWABLE[token]), abs=1e-6), "the model's own"
    return {token: count / 1000 for token, count in Counter(ids.tolist()).items()}


def normalized(weights: dict[int, float]) -> dict[int, float]:
    return {token: weight / sum(weights.values()) for token, weight in weights.items()}


@pytest.mark.parametrize(
    ("settings", "weights"),
    [
        (DecodingConfig(), DRAWABLE),
        (DecodingConfig(temperature=0.5), {token: p**2 for token, p in DRAWABLE.items()}),
        (DecodingConfig(temperature=2.0), {token: p**0.5 for token, p in DRAWABLE.items()}),
        (DecodingConfig(top_k=2), {4: 0.4, 5: 0.2}),
        (DecodingConfig(top_k=1), {4: 1.0}),
        # 0.4 of 0.8 is half, 0.6 three quarters.
        (DecodingConfig(top_p=0.5), {4: 1.0}),
        (DecodingConfig(top_p=0.51), {4: 0.4, 5: 0.2}),
        (DecodingConfig(top_p=0.76), {4: 0.4, 5: 0.2, 6: 0.12}),
        (DecodingConfig(top_k=3, top_p=0.6), {4: 0.4, 5: 0.2}),
        (DecodingConfig(temperature=1e-3), {4: 1.0}),
    ],
)
def test_tokens_are_drawn_by_their_probability(
    settings: DecodingConfig, weights: dict[int, float]
) -> None:
    found = shares(settings)
    assert found.keys() == weights.keys()
    for token, share in normalized(weights).items():
        assert found[token] == pytest.approx(share, abs=0.0015)


def test_uniform_numbers_depend_on_seed_sentence_and_draw() -> None:
    sources = [[4, 5, EOS], [4, 6, EOS], [4, 5, EOS]]
    numbers = uniform_numbers(sources, seed=1, draws=[0, 0, 1], length=9)
    assert numbers.shape == (3, 9)
    assert bool(((numbers >= 0) & (numbers < 1)).all())
    assert len({tuple(row) for row in numbers.tolist()}) == 3
    again = uniform_numbers(sources[::-1], seed=1, draws=[1, 0, 0], length=9)
    assert torch.equal(again, numbers.flip(0))
    longer = uniform_numbers(sources, seed=1, draws=[0, 0, 1], length=20)
    assert torch.equal(longer[:, :9], numbers)
    assert not torch.equal(uniform_numbers(sources, seed=2, draws=[0, 0, 1], length=9), numbers)
