"""The counted cost against the model itself: its parameters, and PyTorch's counter of products."""

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import product
from typing import Any, get_args

import pytest
import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from mt.config import ModelConfig
from mt.errors import UserError
from mt.model.transformer import DecoderState, Transformer
from mt.profiling.cost import Cost, PairLengths, model_cost

LENGTHS = PairLengths(source=5, target=3)
# No two widths are equal, so that none can stand in for another.
SIZES: dict[str, Any] = {
    "d_model": 24,
    "d_ff": 20,
    "heads": 4,
    "encoder_layers": 1,
    "decoder_layers": 1,
    "max_positions": 9,
    "relative_clip": 2,
}
DEPTHS = {"encoder_layers": 1, "decoder_layers": 2}
SHAPES: list[dict[str, Any]] = [
    {},
    {"kv_heads": 2},
    {"kv_heads": 1, "d_head": 8},
    {"d_head": 10, "d_value": 7},
    {"heads": 5, "d_head": 4, "d_value": 8, "bias": False},
    {"bias": False, "norm": "rmsnorm", "feed_forward": "swiglu"},
    {"tie_embeddings": "decoder"},
    {"tie_embeddings": "none", "residual": "sandwich"},
]


def choices(field: str) -> tuple[str, ...]:
    return get_args(ModelConfig.model_fields[field].annotation)


def tiny(**chosen: Any) -> ModelConfig:
    return ModelConfig(**{**SIZES, **chosen})


def kinds(positional: str) -> Iterator[ModelConfig]:
    """Every feed-forward in every wrapping."""
    for residual, feed_forward in product(choices("residual"), choices("feed_forward")):
        yield tiny(residual=residual, feed_forward=feed_forward, positional=positional)


def shapes(positional: str) -> Iterator[ModelConfig]:
    for shape in SHAPES:
        yield tiny(**shape, **DEPTHS, positional=positional)


def built(config: ModelConfig) -> tuple[Transformer, Cost]:
    """Return the model and its cost, for a source vocabulary of 31 or that of the target."""
    sizes = {
        "source_vocabulary": 37 if config.tie_embeddings == "all" else 31,
        "target_vocabulary": 37,
    }
    return Transformer(config, **sizes).eval(), model_cost(config, LENGTHS, **sizes)


def pair() -> tuple[Tensor, Tensor]:
    return torch.full((1, LENGTHS.source), 5), torch.full((1, LENGTHS.target), 6)


@contextmanager
def counter() -> Iterator[FlopCounterMode]:
    """Count by one kernel of attention: the fused ones are counted by rules of their own."""
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counted:
        yield counted


@torch.no_grad()
def last_step(model: Transformer) -> tuple[int, DecoderState]:
    source, target = pair()
    state = model.start(model.encode(source), rows_per_sentence=1)
    for token in target[0, :-1]:
        model.step(token[None], state)
    with counter() as counted:
        model.step(target[0, -1:], state)
    return counted.get_total_flops(), state


@torch.no_grad()
def flops_by_part(model: Transformer) -> dict[str, int]:
    """Count the products of one pair by the names of the parts, positions with self-attention."""
    with counter() as counted:
        model(*pair())
    by_module = {name: sum(kinds.values()) for name, kinds in counted.get_flop_counts().items()}

    def of(stack: str, sublayer: str) -> int:
        names = [f"Transformer.{stack}.{n}{sublayer}" for n in range(len(getattr(model, stack)))]
        return sum(by_module[name] for name in names)

    parts = {
        f"{stack} {part}": of(stack, sublayer)
        for stack in ("encoder", "decoder")
        for part, sublayer in (
            ("self-attention", ".self_attention"),
            ("feed-forward", ".feed_forward"),
        )
    }
    known = parts["decoder self-attention"] + parts["decoder feed-forward"]
    # What a decoder layer multiplies besides; the keys of the memory are no sublayer's.
    parts["decoder cross-attention"] = of("decoder", "") - known
    parts["output layer"] = by_module["Transformer.output"]
    assert sum(parts.values()) == counted.get_total_flops()
    return parts


def claimed(cost: Cost) -> dict[str, int]:
    flops = {part.name: part.flops for part in cost.parts}
    for stack in ("encoder", "decoder"):
        flops[f"{stack} self-attention"] += flops.pop(f"{stack} positions")
    return {name: count for name, count in flops.items() if count}


@pytest.mark.parametrize("positional", choices("positional"))
def test_every_variant_costs_what_its_forward_pass_multiplies(positional: str) -> None:
    for config in kinds(positional):
        check_forward(config)


@pytest.mark.parametrize("positional", choices("positional"))
def test_every_shape_costs_what_its_passes_multiply_and_keep(positional: str) -> None:
    for config in shapes(positional):
        model, cost = check_forward(config)
        step_flops, state = last_step(model)
        assert cost.step_flops == step_flops, config
        kept = sum(layer.keys.nbytes + layer.values.nbytes for layer in state.layers)
        assert cost.cache_bytes_per_token * LENGTHS.target == kept, config
        memories = [(layer.memory_keys, layer.memory_values) for layer in state.layers]
        kept = sum(keys.nbytes + values.nbytes for keys, values in memories)
        assert cost.cache_bytes_per_token * LENGTHS.source == kept, config


def check_forward(config: ModelConfig) -> tuple[Transformer, Cost]:
    model, cost = built(config)
    assert claimed(cost) == flops_by_part(model), config
    assert cost.parameters == sum(p.numel() for p in model.parameters()), config
    return model, cost


@pytest.mark.parametrize("positional", choices("positional"))
def test_training_costs_three_forward_passes(positional: str) -> None:
    model, cost = built(tiny(positional=positional, feed_forward="swiglu"))
    with counter() as counted:
        model.train()(*pair()).sum().backward()
    training = cost.training_flops_per_target_token * LENGTHS.target
    assert round(training) == counted.get_total_flops()


def parameters_by_part(config: ModelConfig) -> dict[str, int]:
    _, cost = built(config)
    return {part.name: part.parameters for part in cost.parts}


def test_parameters_stand_at_their_part() -> None:
    """Counted by hand for widths small enough."""
    relative = tiny(**DEPTHS, positional="relative", residual="pre")
    attention = 4 * (24 * 24 + 24)
    feed_forward = 2 * 24 * 20 + 24 + 20
    assert parameters_by_part(relative) == {
        "shared embedding": 37 * 24,
        "encoder positions": (2 * 2 + 1) * (6 + 6),
        "encoder self-attention": attention,
        "encoder feed-forward": feed_forward,
        "encoder norms": (2 + 1) * 2 * 24,
        "decoder positions": 2 * (2 + 1) * (6 + 6),
        "decoder self-attention": 2 * attention,
        "decoder cross-attention": 2 * attention,
        "decoder feed-forward": 2 * feed_forward,
        "decoder norms": (2 * 3 + 1) * 2 * 24,
        "output layer": 0,
    }


@pytest.mark.parametrize(
    ("tying", "expected"),
    [
        ("all", {"shared embedding": 37 * 24, "output layer": 0}),
        (
            "decoder",
            {"source embedding": 31 * 24, "target embedding": 37 * 24, "output layer": 0},
        ),
        (
            "none",
            {"source embedding": 31 * 24, "target embedding": 37 * 24, "output layer": 37 * 24},
        ),
    ],
)
def test_a_shared_matrix_is_counted_once(tying: str, expected: dict[str, int]) -> None:
    parts = parameters_by_part(tiny(tie_embeddings=tying))
    ends = {name: n for name, n in parts.items() if "embedding" in name or "output" in name}
    assert ends == expected


@pytest.mark.parametrize(
    ("preset", "millions"), [("transformer-base", (63, 65)), ("transformer-big", (210, 215))]
)
def test_the_papers_models_have_its_parameters(preset: str, millions: tuple[int, int]) -> None:
    """Vaswani et al. 2017, table 3: 65 and 213 million, with about 37,000 tokens."""
    size = {"source_vocabulary": 37_000, "target_vocabulary": 37_000}
    cost = model_cost(ModelConfig.model_validate({"preset": preset}), PairLengths(25, 25), **size)
    low, high = millions
    assert low * 1e6 <= cost.parameters <= high * 1e6
    assert cost.weight_bytes == 4 * cost.parameters
    assert cost.flops_per_target_token * 25 == cost.flops


def test_a_pair_beyond_the_learned_positions_is_refused() -> None:
    config = tiny(positional="learned")
    size = {"source_vocabulary": 37, "target_vocabulary": 37}
    assert model_cost(config, PairLengths(9, 9), **size).flops > 0
    for lengths in (PairLengths(10, 9), PairLengths(9, 10)):
        with pytest.raises(UserError, match="10 tokens does not fit into the 9 positions of"):
            model_cost(config, lengths, **size)
