"""The counted cost against the model's parameters and PyTorch's counter of products."""

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, get_args

import numpy as np
import pytest
import torch
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
SOURCE, TARGET = torch.full((1, LENGTHS.source), 5), torch.full((1, LENGTHS.target), 6)
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
    *({**shape, **DEPTHS, "positional": "relative"} for shape in SHAPES[:4]),
]


def built(config: ModelConfig) -> tuple[Transformer, Cost]:
    """Return the model and its cost."""
    sizes = {
        "source_vocabulary": 37 if config.tie_embeddings == "all" else 31,
        "target_vocabulary": 37,
    }
    return Transformer(config, **sizes).eval(), model_cost(config, LENGTHS, **sizes)


@contextmanager
def counter() -> Iterator[FlopCounterMode]:
    """Count with the unfused attention kernel: the fused ones have counting rules of their own."""
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counted:
        yield counted


@torch.no_grad()
def last_step(model: Transformer) -> tuple[int, DecoderState]:
    state = model.start(model.encode(SOURCE), rows_per_sentence=1)
    for token in TARGET[0, :-1]:
        model.step(token[None], state)
    with counter() as counted:
        model.step(TARGET[0, -1:], state)
    return counted.get_total_flops(), state


@torch.no_grad()
def flops_by_part(model: Transformer) -> dict[str, int]:
    """Count the products of one pair by part; positions are part of self-attention."""
    with counter() as counted:
        model(SOURCE, TARGET)
    by_module = {name: sum(kinds.values()) for name, kinds in counted.get_flop_counts().items()}

    def of(stack: str, sublayer: str) -> int:
        layers = range(len(getattr(model, stack)))
        return sum(by_module[f"Transformer.{stack}.{number}{sublayer}"] for number in layers)

    parts = {
        f"{stack} {part}": of(stack, f".{part.replace('-', '_')}")
        for stack in ("encoder", "decoder")
        for part in ("self-attention", "feed-forward")
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
    for prefix, length in (("", LENGTHS.target), ("memory_", LENGTHS.source)):
        names = f"{prefix}keys", f"{prefix}values"
        held = sum(getattr(layer, name).nbytes for layer in state.layers for name in names)
        assert cost.cache_bytes_per_token * length == held


@pytest.mark.parametrize("positional", ["relative", "rotary"])
def test_training_costs_three_forward_passes(positional: str) -> None:
    model, cost = built(tiny(positional=positional, feed_forward="swiglu"))
    with counter() as counted:
        model.train()(SOURCE, TARGET).sum().backward()
    training = cost.training_flops_per_target_token * LENGTHS.target
    assert round(training) == counted.get_total_flops()


@pytest.mark.parametrize(
    ("preset", "millions"), [("transformer-base", (63, 65)), ("transformer-big", (210, 215))]
)
def test_the_papers_models_have_its_parameters(preset: str, millions: tuple[int, int]) -> None:
    """Vaswani et al. 2017, table 3: 65 and 213 million, with a vocabulary of about 37,000."""
    size = {"source_vocabulary": 37_000, "target_vocabulary": 37_000}
    cost = model_cost(ModelConfig.model_validate({"preset": preset}), PairLengths(25, 25), **size)
    assert millions[0] * 1e6 <= cost.parameters <= millions[1] * 1e6


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
