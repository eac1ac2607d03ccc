"""Positions: values by hand, formulas, and what each kind may and may not depend on."""

import math
from itertools import pairwise
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from mt.config import ModelConfig
from mt.config.model import Side
from mt.errors import UserError
from mt.model.attention import CAUSAL, EVERYWHERE, Attention, Mask
from mt.model.positional import (
    POSITIONAL,
    Alibi,
    Learned,
    Positional,
    Relative,
    RelativeBias,
    RelativeLayer,
    Rotary,
    Sinusoidal,
    SinusoidTable,
    alibi_slopes,
    sinusoids,
)
from mt.model.transformer import SelfAttention, Transformer
from mt.model.weights import Gains
from mt.special_ids import EOS, PAD

SMALL: dict[str, Any] = {
    "d_model": 16,
    "d_ff": 16,
    "heads": 4,
    "kv_heads": 2,
    "d_head": 4,
    "d_value": 6,
    "encoder_layers": 2,
    "decoder_layers": 1,
    "relative_clip": 3,
    "relative_buckets": 8,
    "relative_max_distance": 8,
    "dropout": 0.0,
}
CONFIG = ModelConfig(**SMALL)
SIDES: list[Side] = ["encoder", "decoder"]
OF_OFFSETS = ["relative", "relative_bias", "alibi", "rotary", "none"]
"""The kinds that know how far apart two tokens are, and not where."""
POSITIONS = st.integers(0, 2000)


def of_kind(positional: str, **changes: object) -> ModelConfig:
    return ModelConfig.model_validate({**SMALL, "positional": positional, **changes})


def build(positional: str, **changes: object) -> Transformer:
    torch.manual_seed(1)
    config = of_kind(positional, **changes)
    return Transformer(config, source_vocabulary=40, target_vocabulary=40).eval()


def random_heads(seed: int, *, length: int = 1, width: int = 4) -> Tensor:
    return torch.randn(1, 1, length, width, generator=torch.Generator().manual_seed(seed))


def assert_close(found: Tensor, expected: Tensor, atol: float = 1e-5) -> None:
    torch.testing.assert_close(found, expected, atol=atol, rtol=1e-5)


# Sinusoidal


def test_sinusoids_have_the_values_of_the_formula() -> None:
    row = sinusoids(3, 4)[2]
    assert row.tolist() == pytest.approx([0.909297, -0.416147, 0.019999, 0.999800], abs=1e-5)
    table = sinusoids(200, 64)
    for position, i in [(0, 0), (1, 3), (17, 20), (199, 31)]:
        angle = position / 10000 ** (2 * i / 64)
        assert table[position, 2 * i].item() == pytest.approx(math.sin(angle), abs=2e-5)
        assert table[position, 2 * i + 1].item() == pytest.approx(math.cos(angle), abs=2e-5)


def test_sinusoids_are_added_as_they_are() -> None:
    positional = Sinusoidal(ModelConfig(d_model=4, heads=1), "encoder")
    added = positional.embed(torch.zeros(1, 3, 4), first=0)[0, 2]
    assert added.tolist() == pytest.approx([0.909297, -0.416147, 0.019999, 0.999800], abs=1e-5)
    x = torch.randn(2, 3, 4)
    assert_close(positional.embed(x, first=5), x + sinusoids(8, 4)[5:])


def test_late_positions_are_exact() -> None:
    angle = 100_000.0
    assert sinusoids(100_001, 2)[-1].tolist() == pytest.approx(
        [math.sin(angle), math.cos(angle)], abs=1e-6
    )


# Tables that grow


@pytest.mark.parametrize("kind", ["sinusoidal", "rotary"])
def test_positions_go_on_beyond_any_length_seen(kind: str) -> None:
    positional = POSITIONAL[kind](of_kind(kind), "encoder")
    if kind == "sinusoidal":
        late = positional.embed(torch.zeros(1, 3, 16), first=700)
        assert_close(late[0], sinusoids(703, 16)[700:])
    else:
        ones = torch.tensor([1.0, 0.0, 1.0, 0.0]).expand(1, 1, 3, 4)  # the direction (1, 0) twice
        late = positional.rotate(ones, first=700)
        assert_close(late[0, 0], sinusoids(703, 4)[700:, [1, 0, 3, 2]])
    assert not positional.state_dict(), "what a formula gives is not saved"


@pytest.mark.parametrize("kind", ["sinusoidal", "rotary"])
def test_a_table_that_grew_while_translating_serves_training(kind: str) -> None:
    model = build(kind)
    long = torch.full((1, 300), 7)
    with torch.inference_mode():
        model.encode(long)
    states = model.decode(long[:, :5], model.encode(long[:, :9]))
    states.sum().backward()  # type: ignore[no-untyped-call]
    assert model.target_embedding.weight.grad is not None


@pytest.mark.parametrize("kind", ["sinusoidal", "rotary"])
def test_a_sentence_beyond_the_table_is_cached_like_any_other(kind: str) -> None:
    model = build(kind, encoder_layers=1)
    source = torch.tensor([[5, 6, EOS]])
    target_in = torch.randint(4, 40, (1, 262))
    with torch.no_grad():
        full = model.output(model.decode(target_in, model.encode(source)))
        state = model.start(model.encode(source), 1)
        steps = [model.step(column, state) for column in target_in.T]
    assert_close(torch.stack(steps[-10:], dim=1), full[:, -10:])


# Learned


def test_a_shorter_table_of_another_thread_takes_no_rows_away() -> None:
    class Shared(SinusoidTable):
        def __setattr__(self, name: str, value: Any) -> None:
            # The other thread needed fewer rows, and was a bit later.
            super().__setattr__(name, sinusoids(300, 8) if name == "table" else value)

    assert torch.equal(Shared(8, 10000.0).rows(400, 402), sinusoids(402, 8)[400:])


def test_learned_positions_are_rows_that_are_added() -> None:
    positional = Learned(of_kind("learned", max_positions=7), "encoder")
    x = torch.randn(2, 3, 16)
    assert_close(positional.embed(x, first=4), x + positional.table[4:7])
    assert build("learned", max_positions=7).longest == 7
    assert build("sinusoidal", max_positions=7).longest is None


def test_a_sentence_beyond_the_last_row_is_a_clear_error() -> None:
    model = build("learned", max_positions=7)
    seven, eight = torch.full((1, 7), 5), torch.full((1, 8), 5)
    memory = model.encode(seven)
    model.decode(seven, memory)
    told = "8 tokens is longer than the 7 positions .*`model.max_positions`"
    with pytest.raises(UserError, match=told):
        model.encode(eight)
    with pytest.raises(UserError, match=told):
        model.decode(eight, memory)
    state = model.start(memory, 1)
    for _ in range(7):
        model.step(torch.tensor([5]), state)
    with pytest.raises(UserError, match=told):
        model.step(torch.tensor([5]), state)


# Rotary


@settings(deadline=None)
@given(POSITIONS, POSITIONS, st.integers(0, 9))
def test_rotary_scores_depend_on_the_offset_alone(one: int, other: int, seed: int) -> None:
    rotary = Rotary(of_kind("rotary", d_head=8), "encoder")
    q, k = random_heads(seed, width=8), random_heads(seed + 10, width=8)
    score = (rotary.rotate(q, one) * rotary.rotate(k, other)).sum()
    earlier, later = sorted((one, other))
    query, key = (q, k) if one == later else (k, q)
    assert_close(score, (rotary.rotate(query, later - earlier) * key).sum(), atol=1e-4)


@settings(deadline=None)
@given(POSITIONS)
def test_rotary_turns_pairs_as_complex_numbers(position: int) -> None:
    rotary = Rotary(of_kind("rotary", d_head=6, rotary_base=50.0), "decoder")
    heads = random_heads(1, length=3, width=6)
    turned = rotary.rotate(heads, position)
    for column in range(3):
        for pair in range(3):
            angle = (position + column) * 50.0 ** (-2 * pair / 6)
            before = complex(*heads[0, 0, column, 2 * pair : 2 * pair + 2].tolist())
            after = complex(*turned[0, 0, column, 2 * pair : 2 * pair + 2].tolist())
            expected = before * complex(math.cos(angle), math.sin(angle))
            assert abs(after - expected) < 1e-5


@pytest.mark.parametrize("base", [16.0, 81.0, 10000.0])
@pytest.mark.parametrize("pair", [0, 1])
def test_a_pair_turns_once_in_its_wavelength(base: float, pair: int) -> None:
    """710 is 113 times 2 pi, up to 6e-5; 355 is half a turn more than 56 times."""
    rotary = Rotary(of_kind("rotary", rotary_base=base), "encoder")
    heads = random_heads(2)
    columns = slice(2 * pair, 2 * pair + 2)
    stretch = round(base ** (2 * pair / 4))
    whole = rotary.rotate(heads, 710 * stretch)[..., columns]
    half = rotary.rotate(heads, 355 * stretch)[..., columns]
    quarter = rotary.rotate(heads, 355 * stretch // 2)[..., columns]
    assert_close(whole, heads[..., columns], atol=2e-4)
    assert_close(half, -heads[..., columns], atol=2e-4)
    assert (quarter - heads[..., columns]).norm() > 0.5 * heads[..., columns].norm()


def test_rotary_keeps_lengths_and_the_type_of_numbers() -> None:
    rotary = Rotary(of_kind("rotary"), "encoder")
    heads = random_heads(3, length=30)
    assert_close(rotary.rotate(heads, 17).norm(dim=-1), heads.norm(dim=-1))
    assert_close(rotary.rotate(heads[:, :, :1], 0), heads[:, :, :1])
    assert rotary.rotate(heads.bfloat16(), 17).dtype == torch.bfloat16


# T5's buckets


def test_buckets_by_hand() -> None:
    """32 buckets up to distance 128, as in T5: 16 exact ones, then logarithmic ones."""
    config = ModelConfig(positional="relative_bias", d_model=8, heads=2)
    distances = torch.tensor([0, 1, 15, 16, 18, 19, 63, 64, 113, 127, 128, 5000])
    decoder = RelativeBias(config, "decoder").buckets(-distances).tolist()
    assert decoder == [0, 1, 15, 16, 16, 17, 26, 26, 31, 31, 31, 31]
    encoder = RelativeBias(config, "encoder")
    distances = torch.tensor([0, 1, 7, 8, 11, 12, 16, 127, 128, 5000])
    before = [0, 1, 7, 8, 8, 9, 10, 15, 15, 15]
    assert encoder.buckets(-distances).tolist() == before
    assert encoder.buckets(distances[1:]).tolist() == [16 + bucket for bucket in before[1:]]


@st.composite
def buckets_and_distance(draw: st.DrawFn) -> tuple[int, int]:
    buckets = 2 * draw(st.integers(2, 40))
    return buckets, draw(st.integers(buckets // 2 + 1, 600))


@settings(deadline=None)
@given(buckets_and_distance())
def test_buckets_grow_with_the_distance_and_tell_left_from_right(shape: tuple[int, int]) -> None:
    count, furthest = shape
    config = of_kind("relative_bias", relative_buckets=count, relative_max_distance=furthest)
    distances = torch.arange(700)
    for side in SIDES:
        positional = RelativeBias(config, side)
        behind = positional.buckets(-distances)
        own = count if side == "decoder" else count // 2
        assert (behind.diff() >= 0).all()
        assert (int(behind[0]), int(behind[-1])) == (0, own - 1)
        assert (behind[furthest:] == own - 1).all()
        near = max(own // 2, 1)
        assert behind[:near].tolist() == list(range(near)), "the nearest are told apart"
        if side == "encoder":
            ahead = positional.buckets(distances[1:])
            assert torch.equal(ahead, behind[1:] + own)


@pytest.mark.parametrize(("count", "furthest"), [(32, 128), (8, 64), (16, 256), (64, 625)])
@pytest.mark.parametrize("side", SIDES)
def test_buckets_follow_the_formula_in_whole_numbers(count: int, furthest: int, side: Side) -> None:
    """exact + floor(log(d / exact) / log(furthest / exact) x rest), with powers for logarithms."""
    own = count if side == "decoder" else count // 2
    exact = own // 2
    rest = own - exact
    expected = list(range(exact))
    for distance in range(exact, furthest):
        steps = [
            step
            for step in range(rest)
            if furthest**step * exact ** (rest - step) <= distance**rest
        ]
        expected.append(exact + max(steps))
    config = of_kind("relative_bias", relative_buckets=count, relative_max_distance=furthest)
    assert RelativeBias(config, side).buckets(-torch.arange(furthest)).tolist() == expected


def test_relative_bias_is_the_tables_row_of_the_bucket() -> None:
    for side in SIDES:
        positional = RelativeBias(of_kind("relative_bias"), side)
        bias = positional.bias(3, 5)
        assert bias.shape == (1, 4, 3, 5)
        for t in range(3):
            for s in range(5):
                offset = s - (t + 2)
                row = positional.table[int(positional.buckets(torch.tensor(offset)))]
                later = side == "decoder" and offset > 0
                assert_close(bias[0, :, t, s], torch.full((4,), -math.inf) if later else row)


# ALiBi


def test_slopes_by_hand() -> None:
    assert alibi_slopes(8).tolist() == [
        1 / 2,
        1 / 4,
        1 / 8,
        1 / 16,
        1 / 32,
        1 / 64,
        1 / 128,
        1 / 256,
    ]
    assert alibi_slopes(2).tolist() == [1 / 16, 1 / 256]
    assert alibi_slopes(1).tolist() == [1 / 256]
    half_steps = [2 ** -(i + 0.5) for i in range(4)]  # every second slope of 16 heads
    assert alibi_slopes(12).tolist() == pytest.approx([*alibi_slopes(8).tolist(), *half_steps])


def test_alibi_penalties_by_hand() -> None:
    config = of_kind("alibi", d_model=16, heads=8, kv_heads=8)
    encoder = Alibi(config, "encoder").bias(3, 3)[0]
    assert encoder[0].tolist() == [[0, -0.5, -1], [-0.5, 0, -0.5], [-1, -0.5, 0]]
    assert encoder[7].tolist() == [[x / 128 for x in row] for row in encoder[0].tolist()]
    decoder = Alibi(config, "decoder").bias(3, 3)[0]
    never = -math.inf
    assert decoder[1].tolist() == [[0, never, never], [-0.25, 0, never], [-0.5, -0.25, 0]]
    assert Alibi(config, "decoder").bias(1, 4)[0, 0].tolist() == [[-1.5, -1, -0.5, 0]]


# Biases of both kinds


@settings(deadline=None, max_examples=30)
@given(
    st.sampled_from(["relative_bias", "alibi"]),
    st.sampled_from(SIDES),
    st.integers(1, 12),
    st.integers(0, 12),
)
def test_a_bias_depends_on_the_offset_and_the_queries_are_the_last(
    kind: str, side: Side, queries: int, earlier: int
) -> None:
    positional = POSITIONAL[kind](of_kind(kind), side)
    keys = earlier + queries
    whole = positional.bias(keys, keys)
    assert whole is not None
    assert torch.equal(whole[..., 1:, 1:], whole[..., :-1, :-1])
    last = positional.bias(queries, keys)
    assert last is not None
    assert torch.equal(last, whole[..., earlier:, :])


# Shaw's vectors


@pytest.mark.parametrize("side", SIDES)
def test_relative_attention_is_equations_3_and_4(side: Side) -> None:
    config = of_kind("relative")
    attention, tables = Attention(config, Gains()), Relative(config, side).layer(0)
    assert isinstance(tables, RelativeLayer)
    q, k, v = random_qkv(config, queries=4, keys=6)
    mask = Mask(torch.ones(4, 6, dtype=torch.bool).tril(2)) if side == "decoder" else EVERYWHERE
    heads = torch.zeros(1, 4, 4, 6)
    for head in range(4):
        for t in range(4):
            seen = range(t + 3 if side == "decoder" else 6)
            offsets = [min(max(s - (t + 2), -3), 3) for s in seen]
            keys = [
                k[0, head // 2, s] + tables.keys[offset + 3]
                for s, offset in zip(seen, offsets, strict=True)
            ]
            scores = torch.stack([q[0, head, t] @ key / math.sqrt(4) for key in keys])
            for s, offset, weight in zip(seen, offsets, scores.softmax(0), strict=True):
                heads[0, head, t] += weight * (v[0, head // 2, s] + tables.values[offset + 3])
    assert_close(tables.attend(attention, q, k, v, mask), attention.join(heads))


def test_each_layer_has_its_own_vectors_and_a_decoder_none_of_later_offsets() -> None:
    model = build("relative", decoder_layers=3)
    for stack, layers, rows in (
        (model.encoder_positional, 2, 7),
        (model.decoder_positional, 3, 4),
    ):
        tables = [stack.layer(number) for number in range(layers)]
        assert len({id(table) for table in tables}) == layers
        shapes = [[(*p.shape,) for p in table.parameters()] for table in tables]
        assert shapes == [[(rows, 4), (rows, 6)]] * layers
    assert len(list(model.encoder_positional.parameters())) == 2 * 2


def random_qkv(config: ModelConfig, *, queries: int, keys: int) -> tuple[Tensor, Tensor, Tensor]:
    heads = config.key_heads
    return (
        torch.randn(1, config.heads, queries, config.key_width),
        torch.randn(1, heads, keys, config.key_width),
        torch.randn(1, heads, keys, config.value_width),
    )


@pytest.mark.parametrize(("kind", "near"), [("relative", 3), ("relative_bias", 8)])
@pytest.mark.parametrize("side", SIDES)
def test_far_offsets_look_alike_and_near_ones_do_not(kind: str, near: int, side: Side) -> None:
    """Keys that change places from `near` on change nothing for the query; nearer ones do."""
    config = of_kind(kind)
    attention, positional = Attention(config, Gains()), POSITIONAL[kind](config, side)
    q, k, v = random_qkv(config, queries=1, keys=14)

    def attend(order: list[int]) -> Tensor:
        mask = EVERYWHERE.with_bias(positional.bias(1, 14))
        return positional.layer(0).attend(attention, q, k[:, :, order], v[:, :, order], mask)

    order = list(range(14))  # the query stands at 13
    beyond = 13 - near + 1
    assert_close(attend([*reversed(order[:beyond]), *order[beyond:]]), attend(order))
    assert (attend([*order[:-2], 13, 12]) - attend(order)).abs().max() > 1e-3


# What a stack may depend on


@pytest.mark.parametrize("kind", POSITIONAL)
@pytest.mark.parametrize("shift", [1, 7, 300])
def test_a_shifted_sentence_is_encoded_alike_where_offsets_are_all_there_is(
    kind: str, shift: int
) -> None:
    model = build(kind)
    source = torch.tensor([[5, 9, 13, 21, EOS]])
    shifted = nn.functional.pad(source, (shift, 0), value=PAD)
    with torch.no_grad():
        states, elsewhere = model.encode(source).states, model.encode(shifted).states[:, shift:]
    if kind in OF_OFFSETS:
        assert_close(elsewhere, states)
    else:
        assert (elsewhere - states).abs().max() > 1e-2


@pytest.mark.parametrize("kind", OF_OFFSETS)
@pytest.mark.parametrize("side", SIDES)
@settings(deadline=None, max_examples=10)
@given(shift=st.integers(0, 2000))
def test_shifted_attention_is_the_same(kind: str, side: Side, shift: int) -> None:
    """The last five positions of many, the others hidden, attend as five alone do."""
    config = of_kind(kind)
    torch.manual_seed(1)
    attention, positional = SelfAttention(config, Gains()), POSITIONAL[kind](config, side)
    x = torch.randn(1, 5, config.d_model)
    q, (k, v) = attention.attention.queries(x), attention.attention.keys_values(x)

    def attend(first: int, mask: Mask, hidden: int = 0) -> Tensor:
        keys, values = (nn.functional.pad(part, (0, 0, hidden, 0)) for part in (k, v))
        return positional.layer(0).attend(
            attention.attention,
            positional.rotate(q, first),
            positional.rotate(keys, first - hidden),
            values,
            mask.with_bias(positional.bias(5, 5 + hidden)),
        )

    own = CAUSAL if side == "decoder" else EVERYWHERE
    shown = torch.ones(5, shift + 5, dtype=torch.bool)
    shown[:, :shift] = False
    if side == "decoder":
        shown[:, shift:] = shown[:, shift:].tril()
    assert_close(attend(shift, Mask(shown), hidden=shift), attend(0, own), atol=1e-4)


@pytest.mark.parametrize("kind", POSITIONAL)
def test_without_positions_the_encoder_permutes_with_its_input_and_with_them_it_does_not(
    kind: str,
) -> None:
    model = build(kind)
    source = torch.tensor([[5, 9, 13, 21, 30, EOS]])
    order = torch.tensor([3, 0, 5, 1, 4, 2])
    with torch.no_grad():
        permuted = model.encode(source[:, order]).states
        expected = model.encode(source).states[:, order]
    if kind == "none":
        assert_close(permuted, expected)
    else:
        assert (permuted - expected).abs().max() > 1e-2


@pytest.mark.parametrize("kind", POSITIONAL)
def test_a_decoder_without_positions_knows_only_what_came_before(kind: str) -> None:
    """With nothing but causality, the order of what came before is not known."""
    model = build(kind)
    memory = model.encode(torch.tensor([[5, 6, EOS]]))
    one, other = (torch.tensor([[2, *tokens, 20]]) for tokens in ([5, 9, 13], [13, 5, 9]))
    with torch.no_grad():
        last = [model.decode(ids, memory)[:, -1] for ids in (one, other)]
    if kind == "none":
        assert_close(last[0], last[1])
    else:
        assert (last[0] - last[1]).abs().max() > 1e-3


def test_each_hook_of_no_positions_does_nothing() -> None:
    none, x = Positional(CONFIG, "encoder"), torch.randn(1, 2, 3, 4)
    embedded = x[0]
    assert none.embed(embedded, 3) is embedded
    assert none.rotate(x, 3) is x
    assert none.bias(3, 3) is None
    assert none.layer(1) is none
    assert none.longest is None
    assert not list(none.parameters())


def test_wavelengths_grow_geometrically() -> None:
    """Each pair turns more slowly than the one before, by the same factor."""
    angles = sinusoids(2, 8)[1, 0::2].asin().tolist()
    ratios = [earlier / later for earlier, later in pairwise(angles)]
    assert ratios == pytest.approx([10.0] * 3, rel=1e-4)
