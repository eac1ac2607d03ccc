"""The operations of many pairs, and the rate of matrix products."""

from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from bench.cost import count_training_flops, list_products, measure_matmul_rate
from mt.config import ModelConfig
from mt.model.transformer import Transformer
from mt.profiling.cost import count_parts

# All widths differ.
SIZES: dict[str, Any] = {
    "d_model": 24,
    "d_ff": 20,
    "heads": 4,
    "encoder_layers": 1,
    "decoder_layers": 2,
    "max_positions": 9,
    "relative_clip": 2,
}
VARIANTS: list[dict[str, Any]] = [
    *({"positional": kind} for kind in ("relative", "relative_bias", "rotary", "learned")),
    {"kv_heads": 1, "d_head": 8},
    {"heads": 5, "d_head": 4, "d_value": 8, "bias": False},
    {"residual": "sandwich", "norm": "rmsnorm", "feed_forward": "swiglu"},
    {"tie_embeddings": "none"},
]


def tiny(**keys: Any) -> ModelConfig:
    return ModelConfig(**{**SIZES, **keys})


@pytest.mark.parametrize("keys", VARIANTS, ids=str)
def test_operations_of_many_pairs_are_those_of_each_pair(keys: dict[str, Any]) -> None:
    config, sizes = tiny(**{"tie_embeddings": "decoder", **keys}), (31, 47)
    pairs = np.random.default_rng(1).integers(1, 10, (2, 2))
    expected = []
    for lengths in pairs.tolist():
        parts = count_parts(config, lengths=tuple(lengths), vocabularies=sizes)
        expected.append(3 * sum(part.flops for part in parts))
    assert count_training_flops(config, pairs, vocabularies=sizes).tolist() == expected
    model = Transformer(config, source_vocabulary=31, target_vocabulary=47)
    assert sum(part.parameters for part in parts) == sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize("positional", ["relative", "rotary"])
def test_training_costs_three_forward_passes(positional: str) -> None:
    config = tiny(positional=positional, feed_forward="swiglu")
    model = Transformer(config, source_vocabulary=37, target_vocabulary=37)
    source, target = torch.full((1, 5), 5), torch.full((1, 3), 6)
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        model(source, target).sum().backward()
    (flops,) = count_training_flops(config, np.array([[5, 3]]), vocabularies=(37, 37))
    assert flops == counter.get_total_flops()


def test_products_are_those_of_the_model_with_results_of_limited_size() -> None:
    config = ModelConfig(d_model=256, d_ff=1024, heads=4)
    assert list_products(config, positions=4096, vocabulary=8000) == {
        (4096, 256, 256),
        (4096, 256, 1024),
        (4096, 1024, 256),
        (4096, 256, 8000),
    }
    products = list_products(ModelConfig(), positions=10**6, vocabulary=32_000)
    assert max(rows * columns for rows, _, columns in products) <= 2**26


def test_rate_is_that_of_the_fastest_product(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bench.cost.SAMPLE_SECONDS", 1e-3)
    slow, fast = (1, 1, 1), (256, 256, 256)
    cpu = torch.device("cpu")
    rate = measure_matmul_rate({slow}, cpu, torch.float32)
    assert measure_matmul_rate({slow, fast}, cpu, torch.float32) > 10 * rate > 0
