"""Attention against the papers' formulas, and the masks that reach the kernel."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from mt.config import ModelConfig
from mt.model.attention import CAUSAL, EVERYWHERE, Attention, AttentionWeights, Mask
from mt.model.transformer import Transformer
from mt.model.weights import Gains
from mt.special_ids import BOS, EOS, PAD

# Widths of heads that are not d_model / heads, and differ.
CONFIG = ModelConfig(d_model=8, d_ff=12, heads=4, d_head=6, d_value=3, dropout=0.0)
MASKS = {
    "everywhere": EVERYWHERE,
    "causal": CAUSAL,
    "bool": Mask(torch.tensor([True, False, True, True, True])[None, None, None]),
    "bias": Mask(bias=torch.linspace(-1, 2, 100).view(1, 4, 5, 5)),
}


def build(**changes: object) -> Attention:
    config = CONFIG.changed(**changes)
    attention = Attention(config, Gains())
    for parameter in attention.parameters():
        if parameter.dim() == 1:
            torch.nn.init.normal_(parameter)
    return attention.eval()


def attend(attention: Attention, x: Tensor, memory: Tensor, mask: Mask = EVERYWHERE) -> Tensor:
    keys, values = attention.project_keys_values(memory)
    output: Tensor = attention(attention.project_queries(x), keys, values, mask)
    return output


def assert_close(found: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(found, expected, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)
@pytest.mark.parametrize("temperature", [1.0, 0.5])
def test_attention_is_the_papers_equation_in_each_head(mask: Mask, temperature: float) -> None:
    attention = build(attention_temperature=temperature)
    x, memory = torch.randn(1, 5, 8), torch.randn(1, 5, 8)
    q, (k, v) = attention.project_queries(x), attention.project_keys_values(memory)
    heads = []
    for head in range(4):
        scores = q[0, head] @ k[0, head].T / (math.sqrt(6) * temperature)
        if mask.causal:
            scores = scores.masked_fill(torch.ones(5, 5).triu(1) > 0, -math.inf)
        elif mask.allowed is not None:
            scores = scores.masked_fill(~mask.allowed[0, 0], -math.inf)
        elif mask.bias is not None:
            scores = scores + mask.bias[0, head]
        heads.append(scores.softmax(-1) @ v[0, head])
    joined = torch.cat(heads, dim=-1) @ attention.output.weight.T + attention.output.bias
    assert_close(attend(attention, x, memory, mask)[0], joined)


@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)
def test_explicit_weights_are_those_of_the_kernel(mask: Mask) -> None:
    attention = build()
    x, memory = torch.randn(2, 5, 8), torch.randn(2, 5, 8)
    k, v = attention.project_keys_values(memory)
    weights = attention.weights(attention.project_queries(x), k, mask)
    assert weights.shape == (2, 4, 5, 5)
    assert_close(weights.sum(-1), torch.ones(2, 4, 5))
    assert_close(attention.join(weights @ v), attend(attention, x, memory, mask))


def test_addends_of_the_products_are_scaled_with_them() -> None:
    weights = AttentionWeights(0.25, 0.0)
    q, k, added = torch.randn(1, 2, 3, 4), torch.randn(1, 2, 5, 4), torch.randn(1, 2, 3, 5)
    expected = ((q @ k.transpose(2, 3) + added) / 4).softmax(-1)
    assert_close(weights(q, k, EVERYWHERE, added), expected)


def test_low_temperature_selects_the_value_of_the_best_key() -> None:
    attention = build(attention_temperature=1e-4)
    x, memory = torch.randn(1, 3, 8), torch.randn(1, 7, 8)
    q, (k, v) = attention.project_queries(x), attention.project_keys_values(memory)
    best = (q @ k.transpose(2, 3)).argmax(-1)
    weights = attention.weights(q, k, EVERYWHERE)
    assert torch.equal(weights, F.one_hot(best, 7).float())
    picked = v.gather(2, best[..., None].expand(-1, -1, -1, 3))
    assert_close(attend(attention, x, memory), attention.join(picked))


@pytest.mark.parametrize("kv_heads", [1, 2])
@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)
def test_grouped_heads_are_full_heads_with_the_same_keys_and_values(
    kv_heads: int, mask: Mask
) -> None:
    """Key head g serves the query heads from g H/G to (g + 1) H/G - 1."""
    grouped, full = build(kv_heads=kv_heads), build()
    shared = grouped.state_dict()
    for name in ("key.weight", "key.bias", "value.weight", "value.bias"):
        width = 6 if name.startswith("key") else 3
        by_head = shared[name].unflatten(0, (kv_heads, width))
        shared[name] = torch.cat([by_head[head * kv_heads // 4] for head in range(4)])
    full.load_state_dict(shared)
    x, memory = torch.randn(2, 5, 8), torch.randn(2, 5, 8)
    assert grouped.project_keys_values(memory)[0].shape == (2, kv_heads, 5, 6)
    assert_close(attend(grouped, x, memory, mask), attend(full, x, memory, mask))


def test_dropout_acts_on_the_weights_and_in_training_only() -> None:
    attention = build(attention_dropout=0.5)
    x = torch.randn(1, 6, 8)
    q, (k, _) = attention.project_queries(x), attention.project_keys_values(x)
    calm = attention.weights(q, k, EVERYWHERE)
    assert torch.equal(attend(attention, x, x), attend(attention, x, x))
    attention.train()
    assert not torch.equal(attend(attention, x, x), attend(attention, x, x))
    dropped = attention.weights(q, k, EVERYWHERE)
    kept = dropped != 0
    assert 0.2 < kept.float().mean() < 0.8
    assert_close(dropped, 2 * calm * kept)


def test_bias_is_added_where_the_mask_allows() -> None:
    bias = torch.randn(1, 2, 3, 3)
    allowed = torch.tensor([[True, True, False], [True, False, False]])[:, None, None]
    assert Mask(allowed).with_bias(None) == Mask(allowed)
    assert CAUSAL.with_bias(None) is CAUSAL
    assert EVERYWHERE.with_bias(bias).bias is bias
    both = Mask(allowed).with_bias(bias).bias
    assert both is not None
    assert both.shape == (2, 2, 3, 3)
    for sentence, length in enumerate((2, 1)):
        assert torch.equal(both[sentence, ..., :length], bias[0, ..., :length])
        assert (both[sentence, ..., length:] == -math.inf).all()


Seen = list[tuple[str, tuple[int, ...] | None, bool]]
"""For each attention: its name, the shape of its mask, and whether it is causal."""

DEPTH = {"encoder_layers": 1, "decoder_layers": 1}
FULL = torch.tensor([[5, 6, EOS], [7, 8, EOS]])
PADDED = torch.tensor([[5, 6, EOS], [7, EOS, PAD]])
TARGET_IN = torch.tensor([[BOS, 5, 6, 7], [BOS, 8, PAD, PAD]])


@pytest.fixture
def masks(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Seen]:
    """Return a function that runs a model of one layer and returns the masks of its attentions."""
    kernel = F.scaled_dot_product_attention
    calls: list[dict[str, Any]] = []

    def spy(q: Tensor, k: Tensor, v: Tensor, **settings: Any) -> Tensor:
        calls.append(settings)
        return kernel(q, k, v, **settings)

    monkeypatch.setattr(F, "scaled_dot_product_attention", spy)

    def seen(
        source: Tensor, *, steps: int = 0, rows: int = 1, positional: str = "sinusoidal"
    ) -> Seen:
        config = ModelConfig.model_validate(
            {"d_model": 8, "d_ff": 8, "heads": 2, **DEPTH, "positional": positional}
        )
        model = Transformer(config, source_vocabulary=9, target_vocabulary=9)
        state = model.start(model.encode(source), rows)
        calls.clear()
        for _ in range(steps):
            model.step(torch.full((2 * rows,), BOS), state)
        if not steps:
            model(source, TARGET_IN)
        names = ["self", "cross"] * steps or ["encoder", "self", "cross"]
        given = [call["attn_mask"] for call in calls]
        shapes = [None if mask is None else (*mask.shape,) for mask in given]
        causal = [call["is_causal"] for call in calls]
        return list(zip(names, shapes, causal, strict=True))

    return seen


def test_without_padding_no_mask_is_made(masks: Callable[..., Seen]) -> None:
    assert masks(FULL) == [("encoder", None, False), ("self", None, True), ("cross", None, False)]
    assert masks(FULL, steps=2) == [("self", None, False), ("cross", None, False)] * 2


def test_beam_search_masks_the_keys_of_other_prefixes(masks: Callable[..., Seen]) -> None:
    steps = masks(FULL, steps=2, rows=3)
    assert steps[0::2] == [("self", (2, 1, 3, 3), False), ("self", (2, 1, 3, 6), False)]
    assert steps[1::2] == [("cross", None, False)] * 2


def test_source_padding_is_masked_by_one_row_a_sentence(masks: Callable[..., Seen]) -> None:
    row = (2, 1, 1, 3)
    assert masks(PADDED) == [("encoder", row, False), ("self", None, True), ("cross", row, False)]
    assert masks(PADDED, steps=2) == [("self", None, False), ("cross", row, False)] * 2


@pytest.mark.parametrize("positional", ["learned", "rotary", "none"])
def test_positions_without_bias_need_no_mask(masks: Callable[..., Seen], positional: str) -> None:
    assert {mask for _, mask, _ in masks(FULL, positional=positional)} == {None}
    assert {mask for _, mask, _ in masks(FULL, positional=positional, steps=2)} == {None}


@pytest.mark.parametrize("positional", ["relative_bias", "alibi"])
def test_positional_bias_is_added_in_self_attention_only(
    masks: Callable[..., Seen], positional: str
) -> None:
    assert masks(FULL, positional=positional) == [
        ("encoder", (1, 2, 3, 3), False),
        ("self", (1, 2, 4, 4), False),
        ("cross", None, False),
    ]
    assert masks(PADDED, positional=positional)[0] == ("encoder", (2, 2, 3, 3), False)
    steps = masks(FULL, positional=positional, steps=2)
    assert steps[0::2] == [("self", (1, 2, 1, 1), False), ("self", (1, 2, 1, 2), False)]


@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)
def test_cpu_autocast_attends_in_fp32_and_projects_in_bf16(mask: Mask) -> None:
    attention = build()
    q, k, v = (torch.randn(1, 4, 5, width, dtype=torch.bfloat16) for width in (6, 6, 3))
    heads: list[Tensor] = []
    attention.output.register_forward_pre_hook(lambda _, inputs: heads.extend(inputs))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = attention(q, k, v, mask)
        assert attention.project_queries(torch.randn(1, 5, 8)).dtype == torch.bfloat16
    assert heads[0].dtype == torch.float32
    with torch.no_grad():
        attention(q.float(), k.float(), v.float(), mask)
    assert torch.equal(heads[0], heads[1])
    assert found.dtype == torch.bfloat16
