"""Positions, residual wrapping, feed-forward and attention, held against values and formulas."""

import math
from typing import get_args

import pytest
import torch

from mt.config import ModelConfig
from mt.model.attention import Attention
from mt.model.feed_forward import FEED_FORWARD, Relu
from mt.model.positional import POSITIONAL, Sinusoidal, sinusoids
from mt.model.residual import NORMS, RESIDUALS, PostNorm

CONFIG = ModelConfig(d_model=8, d_ff=12, heads=2, dropout=0.0)


def test_sinusoids_have_the_values_of_the_formula() -> None:
    row = sinusoids(3, 4)[2]
    assert row.tolist() == pytest.approx([0.909297, -0.416147, 0.019999, 0.999800], abs=1e-5)
    table = sinusoids(200, 64)
    for position, i in [(0, 0), (1, 3), (17, 20), (199, 31)]:
        angle = position / 10000 ** (2 * i / 64)
        assert table[position, 2 * i].item() == pytest.approx(math.sin(angle), abs=2e-5)
        assert table[position, 2 * i + 1].item() == pytest.approx(math.cos(angle), abs=2e-5)


def test_sinusoids_go_on_beyond_any_length_seen() -> None:
    positional = Sinusoidal(CONFIG)
    x = torch.zeros(1, 3, 8)
    late = positional.embed(x, first=700)
    torch.testing.assert_close(late[0], sinusoids(703, 8)[700:])
    assert "table" not in positional.state_dict()


def test_post_norm_normalises_the_sum() -> None:
    residual = PostNorm(CONFIG)
    x = torch.randn(4, 8)
    expected = torch.nn.functional.layer_norm(x + 3 * x.sin(), (8,))
    torch.testing.assert_close(residual(x, lambda y: 3 * y.sin()), expected)


def test_relu_feed_forward_is_the_papers_equation() -> None:
    layer = Relu(CONFIG)
    x = torch.randn(5, 8)
    inner = (x @ layer.inner.weight.T + layer.inner.bias).clamp(min=0)
    torch.testing.assert_close(layer(x), inner @ layer.outer.weight.T + layer.outer.bias)


def test_attention_is_the_papers_equation_head_by_head() -> None:
    attention = Attention(CONFIG)
    x, memory = torch.randn(1, 3, 8), torch.randn(1, 5, 8)
    mask = torch.tensor([[True, False, True, True, True]])
    q, (k, v) = attention.queries(x), attention.keys_values(memory)
    expected = []
    for head in range(2):
        scores = q[0, head] @ k[0, head].T / math.sqrt(4)
        expected.append(scores.masked_fill(~mask, -math.inf).softmax(-1) @ v[0, head])
    joined = torch.cat(expected, dim=-1) @ attention.output.weight.T + attention.output.bias
    torch.testing.assert_close(attention.attend(q, k, v, mask)[0], joined, atol=1e-6, rtol=1e-5)


def test_attention_dropout_acts_in_training_only() -> None:
    attention = Attention(CONFIG.model_copy(update={"attention_dropout": 0.5}))
    x = torch.randn(1, 6, 8)
    q, (k, v) = attention.queries(x), attention.keys_values(x)
    attention.eval()
    assert torch.equal(attention.attend(q, k, v, None), attention.attend(q, k, v, None))
    attention.train()
    assert not torch.equal(attention.attend(q, k, v, None), attention.attend(q, k, v, None))


@pytest.mark.parametrize(
    ("field", "table"),
    [
        ("positional", POSITIONAL),
        ("norm", NORMS),
        ("residual", RESIDUALS),
        ("feed_forward", FEED_FORWARD),
    ],
)
def test_the_config_offers_exactly_the_variants_there_are(
    field: str, table: dict[str, object]
) -> None:
    annotation = ModelConfig.model_fields[field].annotation
    assert set(get_args(annotation)) == set(table)
