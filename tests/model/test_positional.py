"""Position encodings against values by hand, formulas, and their symmetries."""

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from transformers.models.m2m_100.modeling_m2m_100 import M2M100SinusoidalPositionalEmbedding

from mt.config import ModelConfig
from mt.config.model import Side
from mt.errors import UserError
from mt.model.positional import POSITIONAL, Learned, Rotary, SinusoidTable, sinusoids
from mt.model.transformer import Transformer
from mt.special_ids import EOS, PAD
from tests.factories import model_config, transformer

SMALL: dict[str, Any] = {
    "d_model": 16,
    "heads": 4,
    "kv_heads": 2,
    "d_head": 4,
    "d_value": 6,
    "encoder_layers": 2,
    "decoder_layers": 1,
    "relative_clip": 3,
    "dropout": 0.0,
}
SIDES: list[Side] = ["encoder", "decoder"]
OF_OFFSETS = ["relative", "relative_bias", "alibi", "rotary", "none"]
"""Kinds that depend on offsets between tokens, not on positions."""
POSITIONS = st.integers(0, 2000)


def of_kind(positional: str, **changes: object) -> ModelConfig:
    return model_config(**{**SMALL, "positional": positional, **changes})


def build(positional: str, **changes: object) -> Transformer:
    return transformer(vocabulary=40, **{**SMALL, "positional": positional, **changes}).eval()


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


def test_late_positions_are_exact() -> None:
    angle = 100_000.0
    assert sinusoids(100_001, 2)[-1].tolist() == pytest.approx(
        [math.sin(angle), math.cos(angle)], abs=1e-6
    )


def test_positions_of_fairseq_have_the_values_of_transformers() -> None:
    added = POSITIONAL["fairseq"](of_kind("fairseq"), "decoder").embed(torch.zeros(1, 300, 16), 3)
    theirs = M2M100SinusoidalPositionalEmbedding(310, 16, padding_idx=1).weights
    torch.testing.assert_close(added[0], theirs[5:305], atol=5e-5, rtol=0.0)


# Tables that grow


@pytest.mark.parametrize("kind", ["sinusoidal", "rotary"])
def test_positions_continue_beyond_the_table(kind: str) -> None:
    positional = POSITIONAL[kind](of_kind(kind), "encoder")
    if kind == "sinusoidal":
        late = positional.embed(torch.zeros(1, 3, 16), first=700)
        assert_close(late[0], sinusoids(703, 16)[700:])
    else:
        ones = torch.tensor([1.0, 0.0, 1.0, 0.0]).expand(1, 1, 3, 4)  # the direction (1, 0) twice
        late = positional.rotate(ones, first=700)
        assert_close(late[0, 0], sinusoids(703, 4)[700:, [1, 0, 3, 2]])
    assert not positional.state_dict(), "the table is not saved"


@pytest.mark.parametrize("kind", ["sinusoidal", "fairseq", "rotary"])
def test_a_table_that_grew_in_inference_mode_serves_training(kind: str) -> None:
    model = build(kind)
    long = torch.full((1, 300), 7)
    with torch.inference_mode():
        model.encode(long)
    states = model.decode(long[:, :5], model.encode(long[:, :9]))
    states.sum().backward()  # type: ignore[no-untyped-call]
    assert model.target_embedding.weight.grad is not None


@pytest.mark.parametrize("kind", ["sinusoidal", "fairseq", "rotary"])
def test_cached_steps_continue_beyond_the_table(kind: str) -> None:
    model = build(kind, encoder_layers=1)
    source = torch.tensor([[5, 6, EOS]])
    target_in = torch.randint(4, 40, (1, 262))
    with torch.no_grad():
        full = model.output(model.decode(target_in, model.encode(source)))
        state = model.start(model.encode(source), 1)
        steps = [model.step(column, state) for column in target_in.T]
    assert_close(torch.stack(steps[-10:], dim=1), full[:, -10:])


def test_a_shorter_table_from_another_thread_removes_no_rows() -> None:
    class Shared(SinusoidTable):
        def __setattr__(self, name: str, value: Any) -> None:
            # The other thread needed fewer rows, and finished later.
            super().__setattr__(name, sinusoids(300, 8) if name == "table" else value)

    assert torch.equal(Shared(8, 10000.0).slice(400, 402), sinusoids(402, 8)[400:])


# Learned


def test_learned_positions_are_added() -> None:
    positional = Learned(of_kind("learned", max_positions=7), "encoder")
    x = torch.randn(2, 3, 16)
    assert_close(positional.embed(x, first=4), x + positional.table[4:7])
    assert build("learned", max_positions=7).longest == 7
    assert build("sinusoidal", max_positions=7).longest is None


def test_a_sentence_beyond_the_last_learned_position_is_an_error() -> None:
    model = build("learned", max_positions=7)
    seven, eight = torch.full((1, 7), 5), torch.full((1, 8), 5)
    memory = model.encode(seven)
    model.decode(seven, memory)
    with pytest.raises(UserError, match="`model.max_positions`"):
        model.encode(eight)
    with pytest.raises(UserError):
        model.decode(eight, memory)
    state = model.start(memory, 1)
    for _ in range(7):
        model.step(torch.tensor([5]), state)
    with pytest.raises(UserError):
        model.step(torch.tensor([5]), state)


# Rotary


@settings(deadline=None)
@given(POSITIONS, POSITIONS, st.integers(0, 9))
def test_rotary_scores_depend_on_the_offset_only(one: int, other: int, seed: int) -> None:
    rotary = Rotary(of_kind("rotary", d_head=8), "encoder")
    q, k = torch.randn(2, 1, 1, 1, 8, generator=torch.Generator().manual_seed(seed))
    score = (rotary.rotate(q, one) * rotary.rotate(k, other)).sum()
    earlier, later = sorted((one, other))
    query, key = (q, k) if one == later else (k, q)
    assert_close(score, (rotary.rotate(query, later - earlier) * key).sum(), atol=1e-4)


# Biases by offset


@settings(deadline=None, max_examples=30)
@given(
    st.sampled_from(["relative_bias", "alibi"]),
    st.sampled_from(SIDES),
    st.integers(1, 12),
    st.integers(0, 12),
)
def test_bias_depends_on_the_offset_and_queries_are_at_the_last_positions(
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


# Relative vectors


def test_each_layer_has_its_own_vectors_and_the_decoder_none_for_later_keys() -> None:
    model = build("relative", decoder_layers=3)
    for stack, layers, rows in ((model.encoder_positional, 2, 7), (model.decoder_positional, 3, 4)):
        tables = [stack.layer(number) for number in range(layers)]
        assert len({id(table) for table in tables}) == layers
        shapes = [[(*p.shape,) for p in table.parameters()] for table in tables]
        assert shapes == [[(rows, 4), (rows, 6)]] * layers
    assert len(list(model.encoder_positional.parameters())) == 2 * 2


# Symmetries of a stack


@pytest.mark.parametrize("kind", POSITIONAL)
@pytest.mark.parametrize("shift", [7, 300])
def test_a_shifted_sentence_is_encoded_alike_by_offsets_only(kind: str, shift: int) -> None:
    model = build(kind)
    source = torch.tensor([[5, 9, 13, 21, EOS]])
    shifted = nn.functional.pad(source, (shift, 0), value=PAD)
    with torch.no_grad():
        states, elsewhere = model.encode(source).states, model.encode(shifted).states[:, shift:]
    if kind in OF_OFFSETS:
        assert_close(elsewhere, states)
    else:
        assert (elsewhere - states).abs().max() > 1e-2


@pytest.mark.parametrize("kind", POSITIONAL)
def test_only_a_stack_without_positions_ignores_the_order_of_its_input(kind: str) -> None:
    model = build(kind)
    source = torch.tensor([[5, 9, 13, 21, 30, EOS]])
    order = torch.tensor([3, 0, 5, 1, 4, 2])
    memory = model.encode(torch.tensor([[5, 6, EOS]]))
    one, other = (torch.tensor([[2, *tokens, 20]]) for tokens in ([5, 9, 13], [13, 5, 9]))
    with torch.no_grad():
        encoded = model.encode(source[:, order]).states, model.encode(source).states[:, order]
        decoded = [model.decode(ids, memory)[:, -1] for ids in (one, other)]
    for (found, expected), least in ((encoded, 1e-2), (decoded, 1e-3)):
        if kind == "none":
            assert_close(found, expected)
        else:
            assert (found - expected).abs().max() > least
