"""Parity of ALiBi with Bloom in transformers, and of Shaw's vectors with the paper."""

import math

import pytest
import torch
from torch import Tensor, nn
from transformers.models.bloom.modeling_bloom import build_alibi_tensor

from mt.config import ModelConfig
from mt.config.model import Side
from mt.model.attention import CAUSAL, Mask
from mt.model.positional import POSITIONAL, RelativeLayer
from mt.model.transformer import SelfAttention
from mt.model.weights import Gains

SIDES: list[Side] = ["encoder", "decoder"]
LENGTH = 9
HEADS = pytest.mark.parametrize("heads", [1, 3, 8, 12, 20])


@pytest.mark.parametrize("side", SIDES)
@HEADS
def test_alibi_equals_blooms(side: Side, heads: int) -> None:
    positional = POSITIONAL["alibi"](ModelConfig(d_model=4 * heads, heads=heads), side)
    # Bloom adds slope x key position: for each query, slope x offset plus a constant.
    by_key = build_alibi_tensor(torch.ones(1, LENGTH), heads, torch.float32)
    offsets = by_key - by_key.transpose(1, 2)
    expected = -offsets.abs()
    if side == "decoder":
        expected = offsets.masked_fill(torch.ones(LENGTH, LENGTH).triu(1) > 0, -math.inf)
    for queries in (LENGTH, 1):
        found = positional.bias(queries, LENGTH)
        assert found is not None
        torch.testing.assert_close(found[0], expected[:, -queries:], atol=1e-5, rtol=0)


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("clip", [1, 20])
def test_shaws_vectors_are_the_papers_equations(side: Side, clip: int) -> None:
    config = ModelConfig(
        d_model=12,
        heads=4,
        kv_heads=2,
        d_head=6,
        d_value=5,
        encoder_layers=2,
        decoder_layers=2,
        positional="relative",
        relative_clip=clip,
        attention_temperature=0.7,
        dropout=0.0,
    )
    ours = SelfAttention(config, Gains())
    positional = POSITIONAL["relative"](config, side)
    tables = positional.layer(1)
    assert isinstance(tables, RelativeLayer)
    assert positional.layer(0) is not tables
    for parameter in (*tables.parameters(), *ours.parameters()):
        nn.init.normal_(parameter, std=0.5)
    x = torch.randn(2, LENGTH, 12)
    real = torch.arange(LENGTH) < torch.tensor([[LENGTH], [5]])
    allowed = torch.ones(2, LENGTH, LENGTH, dtype=torch.bool).tril()
    mask = CAUSAL
    if side == "encoder":
        allowed = real[:, None, :].expand(2, LENGTH, LENGTH)
        mask = Mask(real[:, None, None, :])
    expected = torch.stack(
        [shaw(row, ours, tables, visible) for row, visible in zip(x, allowed, strict=True)]
    )
    found = ours(x, mask, tables)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)
    learned = [*ours.parameters(), *tables.parameters()]
    probe = torch.randn_like(expected) / LENGTH  # so that sums over positions have unit scale
    pairs = zip(
        torch.autograd.grad(found, learned, probe),
        torch.autograd.grad(expected, learned, probe),
        strict=True,
    )
    for ours_gradient, gradient in pairs:
        torch.testing.assert_close(ours_gradient, gradient, atol=1e-5, rtol=1e-5)


def shaw(x: Tensor, ours: SelfAttention, tables: RelativeLayer, allowed: Tensor) -> Tensor:
    """Attend from x [T D] to itself by equations 3 and 4 of Shaw et al. 2018.

    Row r of a table has the offset r - clip; query head h uses key head h // 2.
    """
    attention, clip = ours.attention, tables.clip
    q = attention.query(x).view(LENGTH, 4, 6)
    k, v = attention.key(x).view(LENGTH, 2, 6), attention.value(x).view(LENGTH, 2, 5)
    rows = []
    for i in range(LENGTH):
        heads = []
        for h in range(4):
            visible = [j for j in range(LENGTH) if allowed[i, j]]
            row = {j: max(-clip, min(clip, j - i)) + clip for j in visible}
            e = [q[i, h] @ (k[j, h // 2] + tables.keys[row[j]]) for j in visible]
            a = torch.softmax(torch.stack(e) / (0.7 * math.sqrt(6)), dim=0)
            parts = [v[j, h // 2] + tables.values[row[j]] for j in visible]
            heads.append(a @ torch.stack(parts))
        rows.append(torch.cat(heads))
    return attention.output(torch.stack(rows))  # type: ignore[no-any-return]
