"""The counted cost against the model's parameters and PyTorch's counter of products."""

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, get_args

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from mt.config import ModelConfig
from mt.errors import UserError
from mt.model.transformer import DecoderState, Transformer
from mt.profiling import cost as module
from mt.profiling.cost import (
    Cost,
    PairLengths,
    Product,
    matmul_rate,
    model_cost,
    model_products,
    training_flops,
)

LENGTHS = PairLengths(source=5, target=3)
# All widths differ.
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


CONFIGS = [
    *({"positional": kind, **DEPTHS} for kind in choices("positional")),
    *({"residual": kind} for kind in choices("residual")),
    *({"feed_forward": kind} for kind in choices("feed_forward")),
    *({**shape, **DEPTHS} for shape in SHAPES),
    *({**shape, **DEPTHS, "positional": "relative"} for shape in SHAPES[:5]),
]


def built(config: ModelConfig) -> tuple[Transformer, Cost]:
    """Return the model and its cost."""
    sizes = {
        "source_vocabulary": 37 if config.tie_embeddings == "all" else 31,
        "target_vocabulary": 37,
    }
    return Transformer(config, **sizes).eval(), model_cost(config, LENGTHS, **sizes)


def pair() -> tuple[Tensor, Tensor]:
    return torch.full((1, LENGTHS.source), 5), torch.full((1, LENGTHS.target), 6)


@contextmanager
def counter() -> Iterator[FlopCounterMode]:
    """Count with the unfused attention kernel: the fused ones have counting rules of their own."""
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
    """Count the products of one pair by part; positions are part of self-attention."""
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
    # The rest of a decoder layer; the keys of the memory belong to no sublayer.
    parts["decoder cross-attention"] = of("decoder", "") - known
    parts["output layer"] = by_module["Transformer.output"]
    assert sum(parts.values()) == counted.get_total_flops()
    return parts


def claimed(cost: Cost) -> dict[str, int]:
    flops = {part.name: part.flops for part in cost.parts}
    for stack in ("encoder", "decoder"):
        flops[f"{stack} self-attention"] += flops.pop(f"{stack} positions")
    return {name: count for name, count in flops.items() if count}


@pytest.mark.parametrize("keys", CONFIGS, ids=str)
def test_cost_is_that_of_the_passes_of_the_model(keys: dict[str, Any]) -> None:
    model, cost = built(tiny(**keys))
    assert claimed(cost) == flops_by_part(model)
    assert cost.parameters == sum(p.numel() for p in model.parameters())
    step_flops, state = last_step(model)
    assert cost.step_flops == step_flops
    held = sum(layer.keys.nbytes + layer.values.nbytes for layer in state.layers)
    assert cost.cache_bytes_per_token * LENGTHS.target == held
    memories = [(layer.memory_keys, layer.memory_values) for layer in state.layers]
    held = sum(keys.nbytes + values.nbytes for keys, values in memories)
    assert cost.cache_bytes_per_token * LENGTHS.source == held


@pytest.mark.parametrize("positional", ["relative", "rotary"])
def test_training_costs_three_forward_passes(positional: str) -> None:
    model, cost = built(tiny(positional=positional, feed_forward="swiglu"))
    with counter() as counted:
        model.train()(*pair()).sum().backward()
    training = cost.training_flops_per_target_token * LENGTHS.target
    assert round(training) == counted.get_total_flops()


def parameters_by_part(config: ModelConfig) -> dict[str, int]:
    _, cost = built(config)
    return {part.name: part.parameters for part in cost.parts}


def test_parameters_by_part_equal_a_count_by_hand() -> None:
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
    """Vaswani et al. 2017, table 3: 65 and 213 million, with a vocabulary of about 37,000."""
    size = {"source_vocabulary": 37_000, "target_vocabulary": 37_000}
    cost = model_cost(ModelConfig.model_validate({"preset": preset}), PairLengths(25, 25), **size)
    low, high = millions
    assert low * 1e6 <= cost.parameters <= high * 1e6
    assert cost.weight_bytes == 4 * cost.parameters
    assert cost.flops_per_target_token * 25 == cost.flops


def test_a_pair_beyond_the_learned_positions_is_an_error() -> None:
    config = tiny(positional="learned")
    size = {"source_vocabulary": 37, "target_vocabulary": 37}
    assert model_cost(config, PairLengths(9, 9), **size).flops > 0
    for lengths in (PairLengths(10, 9), PairLengths(9, 10)):
        with pytest.raises(UserError, match="10 tokens does not fit into the 9 positions of"):
            model_cost(config, lengths, **size)


@pytest.mark.parametrize(
    "variant", [{}, {"positional": "relative"}, {"feed_forward": "swiglu", "kv_heads": 1}]
)
def test_training_flops_of_many_pairs_are_those_of_each_pair(variant: dict[str, Any]) -> None:
    config = tiny(tie_embeddings="decoder", **variant)
    pairs = np.random.default_rng(1).integers(1, 90, (6, 2))
    size = {"source_vocabulary": 31, "target_vocabulary": 47}
    expected = [3 * model_cost(config, PairLengths(*pair), **size).flops for pair in pairs.tolist()]
    assert training_flops(config, pairs, vocabularies=(31, 47)).tolist() == expected


def test_training_flops_equal_a_count_by_hand() -> None:
    config = tiny(d_model=8, heads=2, encoder_layers=2, decoder_layers=3)
    pairs = np.array([[3, 4], [5, 2]])
    matrix, inner, vocabulary = 8 * 8, 2 * 8 * 20, 50
    products = 0
    for s, t in pairs.tolist():
        products += 2 * (s * (4 * matrix + inner) + 2 * s * s * 8)
        products += 3 * (t * (4 * matrix + inner) + 2 * t * t * 8)
        products += 3 * (2 * t * matrix + 2 * s * matrix + 2 * s * t * 8)
        products += t * 8 * vocabulary
    # Two operations a multiply-add; backward costs twice as much as forward.
    assert training_flops(config, pairs, vocabularies=(50, 50)).sum() == 3 * 2 * products


def test_products_are_those_of_the_model_with_results_of_limited_size() -> None:
    config = ModelConfig(d_model=256, d_ff=1024, heads=4)
    assert model_products(config, positions=4096, vocabulary=8000) == {
        Product(4096, 256, 256),
        Product(4096, 256, 1024),
        Product(4096, 1024, 256),
        Product(4096, 256, 8000),
    }
    products = model_products(ModelConfig(), positions=10**6, vocabulary=32_000)
    assert max(product.rows * product.columns for product in products) <= 2**26
    assert model_products(ModelConfig(), positions=3, vocabulary=10**9) >= {Product(1, 512, 10**9)}


def test_rate_is_the_median_of_the_fastest_product(monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock gives each product a warm-up, a first timing and five samples, one disturbed."""
    samples = [[9.0, 1.0, 3.0, 2.0, 50.0, 2.0, 2.0], [9.0, 1.0, 4.0, 6.0, 5.0, 90.0, 1.0]]
    ticks = iter([tick for taken in samples for seconds in taken for tick in (0.0, seconds)])
    monkeypatch.setattr(module, "SAMPLES", 5)
    monkeypatch.setattr(module, "time", SimpleNamespace(perf_counter=lambda: next(ticks)))
    products = [Product(2, 3, 5), Product(4, 5, 2)]
    rate = matmul_rate(products, torch.device("cpu"), torch.float32)
    assert rate == pytest.approx(max(60 / 2, 80 / 5))
