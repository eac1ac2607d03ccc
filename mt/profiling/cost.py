"""Parameters and floating-point operations (FLOPs) of each part of a model.

Only matrix products are counted, a multiply-add as two operations: norms, softmax, activations and
positional encodings that are added or rotated cost little in comparison. Masks save nothing: causal
attention counts in full.
"""

import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from mt.config import ModelConfig
from mt.config.model import Side
from mt.errors import UserError
from mt.model.attention import Attention
from mt.model.positional import RelativeLayer
from mt.model.sublayers import PostNorm
from mt.model.transformer import DecoderLayer, EncoderLayer, Transformer

BYTES_PER_NUMBER = 4
"""Size of a number in fp32."""
TRAINING_FACTOR = 3
"""Backward takes two products for each one of forward: the gradient of each factor."""
M = TypeVar("M", bound=nn.Module)


@dataclass(frozen=True)
class PairLengths:
    """Tokens of a sentence pair, EOS included."""

    source: int
    target: int


@dataclass(frozen=True)
class Part:
    """Cost of a part of the model."""

    name: str
    parameters: int
    flops: int
    """Forward pass of one pair in training."""
    step_flops: int
    """Decoding step of the last target token of one row, with all earlier tokens cached."""


@dataclass(frozen=True)
class Cost:
    """Cost of a model, part by part; a shared matrix counts as a parameter of the first part."""

    parts: tuple[Part, ...]
    lengths: PairLengths
    cache_bytes_per_token: int
    """Keys and values of one target token of one row in all decoder layers, in fp32.

    A source token takes as much, for all rows of its sentence together.
    """

    @property
    def parameters(self) -> int:
        """Parameters of the model."""
        return sum(part.parameters for part in self.parts)

    @property
    def flops(self) -> int:
        """Forward pass of one pair."""
        return sum(part.flops for part in self.parts)

    @property
    def step_flops(self) -> int:
        """Last decoding step of one row."""
        return sum(part.step_flops for part in self.parts)

    @property
    def flops_per_target_token(self) -> float:
        """Forward pass of one pair, divided by its target tokens."""
        return self.flops / self.lengths.target

    @property
    def training_flops_per_target_token(self) -> float:
        """Forward and backward pass of one pair, divided by its target tokens."""
        return TRAINING_FACTOR * self.flops_per_target_token

    @property
    def weight_bytes(self) -> int:
        """Size of the parameters in fp32."""
        return BYTES_PER_NUMBER * self.parameters


def model_cost(
    config: ModelConfig, lengths: PairLengths, *, source_vocabulary: int, target_vocabulary: int
) -> Cost:
    """Count the cost of a config's Transformer, without memory for its weights.

    Raises UserError where the model has too few positions for the pair.
    """
    model = _without_memory(config, source_vocabulary, target_vocabulary)
    longest = max(lengths.source, lengths.target)
    if model.longest is not None and longest > model.longest:
        raise UserError(
            f"a sentence of {longest} tokens does not fit into the {model.longest} positions of "
            f"`model.positional: {config.positional}` (`model.max_positions`); count a shorter one"
        )
    return _count(model, lengths)


def training_flops(
    config: ModelConfig, pairs: NDArray[np.integer], *, vocabularies: tuple[int, int]
) -> NDArray[np.int64]:
    """Return the operations [N] of training once on each pair, forward and backward.

    `pairs` [N 2] are the tokens of source and target, `vocabularies` the sizes of both. The
    operations of a pair are a polynomial of its lengths, a S + b T + c S^2 + d T^2 + e S T. Five
    counts give the coefficients.
    """
    model = _without_memory(config, *vocabularies)

    def count(source: int, target: int) -> int:
        return _count(model, PairLengths(source, target)).flops

    c, d = count(2, 0) // 2 - count(1, 0), count(0, 2) // 2 - count(0, 1)
    a, b = count(1, 0) - c, count(0, 1) - d
    e = count(1, 1) - count(1, 0) - count(0, 1)
    s, t = pairs.T.astype(np.int64)
    forward: NDArray[np.int64] = a * s + b * t + c * s * s + d * t * t + e * s * t
    return TRAINING_FACTOR * forward


def _without_memory(config: ModelConfig, source: int, target: int) -> Transformer:
    with torch.device("meta"):
        return Transformer(config, source_vocabulary=source, target_vocabulary=target)


@dataclass(frozen=True)
class _Work:
    """Work of a part in one pass."""

    queries: int
    """Positions that pass through the part."""
    keys: int
    """Positions that each query attends to."""
    new_keys: int
    """Positions whose keys and values are computed; the others are cached."""


_Passes = tuple[_Work, _Work]
"""The forward pass of a pair, and the last decoding step."""


def _count(model: Transformer, lengths: PairLengths) -> Cost:
    source, target = lengths.source, lengths.target
    decoder = [layer for layer in model.decoder if isinstance(layer, DecoderLayer)]
    own = _Work(target, target, target), _Work(1, target, 1)
    across = _Work(target, source, source), _Work(1, source, 0)
    attentions = [layer.cross_attention for layer in decoder]
    cross = _part("decoder cross-attention", attentions, _attention_flops, across)
    output = _part("output layer", [model.output], _linear_flops, own)
    if model.output.weight is model.target_embedding.weight:
        output = replace(output, parameters=0)
    embeddings = {"source": model.source_embedding, "target": model.target_embedding}
    if model.source_embedding is model.target_embedding:
        embeddings = {"shared": model.source_embedding}
    parts = [
        *(Part(f"{name} embedding", _parameters([e]), 0, 0) for name, e in embeddings.items()),
        *_stack(model, "encoder", (_Work(source, source, source), _Work(0, 0, 0))),
        *_stack(model, "decoder", own),
        output,
    ]
    parts.insert(-3, cross)  # after the self-attention, as in a layer
    cached = [layer.self_attention.attention for layer in decoder]
    numbers = sum(each.key.out_features + each.value.out_features for each in cached)
    return Cost(tuple(parts), lengths, BYTES_PER_NUMBER * numbers)


def _stack(model: Transformer, side: Side, passes: _Passes) -> list[Part]:
    """Return the parts of a stack without cross-attention."""
    layers: list[EncoderLayer | DecoderLayer] = [*getattr(model, side)]
    attentions = [layer.self_attention.attention for layer in layers]
    norms = [part for layer in layers for part in layer.children() if isinstance(part, PostNorm)]
    norms.append(getattr(model, f"{side}_norm"))
    of_positions = partial(_positional_flops, heads=attentions[0].heads)
    return [
        _part(f"{side} positions", [getattr(model, f"{side}_positional")], of_positions, passes),
        _part(f"{side} self-attention", attentions, _attention_flops, passes),
        _part(f"{side} feed-forward", [x.feed_forward for x in layers], _linear_flops, passes),
        _part(f"{side} norms", norms, _linear_flops, passes),
    ]


def _part(
    name: str, modules: Sequence[M], flops: Callable[[M, _Work], int], passes: _Passes
) -> Part:
    forward, step = (sum(flops(module, work) for module in modules) for work in passes)
    return Part(name, _parameters(modules), forward, step)


def _linear_flops(module: nn.Module, work: _Work) -> int:
    """Count the linear layers in a module, each applied to every position."""
    linears = [each for each in module.modules() if isinstance(each, nn.Linear)]
    return sum(2 * work.queries * linear.weight.numel() for linear in linears)


def _attention_flops(attention: Attention, work: _Work) -> int:
    """Count four projections, queries times keys, and weights times values."""
    of_queries = attention.query.weight.numel() + attention.output.weight.numel()
    of_keys = attention.key.weight.numel() + attention.value.weight.numel()
    # Summed over the heads of queries: each meets every key, however few the heads of keys.
    of_pairs = attention.query.out_features + attention.output.in_features
    return 2 * (
        work.queries * of_queries + work.new_keys * of_keys + work.queries * work.keys * of_pairs
    )


def _positional_flops(positional: nn.Module, work: _Work, *, heads: int) -> int:
    """Count the products of queries and offset vectors in layers that have such vectors."""
    tables = [each for each in positional.modules() if isinstance(each, RelativeLayer)]
    return sum(2 * heads * work.queries * _parameters([table]) for table in tables)


def _parameters(modules: Iterable[nn.Module]) -> int:
    return sum(parameter.numel() for m in modules for parameter in m.parameters())


SAMPLES = 9
SAMPLE_SECONDS = 0.02
"""Minimum time of a sample, which repeats its product."""
MOST_OUTPUTS = 2**26
"""Numbers in the largest result, so that measuring takes less memory than training."""


@dataclass(frozen=True)
class Product:
    """A product of matrices, [rows inner] times [inner columns]."""

    rows: int
    inner: int
    columns: int

    @property
    def flops(self) -> int:
        """Operations, a multiply-add as two."""
        return 2 * self.rows * self.inner * self.columns


def model_products(config: ModelConfig, *, positions: int, vocabulary: int) -> set[Product]:
    """Return the matrix products of a forward pass, the output layer included."""
    d_model, d_ff = config.d_model, config.d_ff
    matrices = {
        (d_model, config.heads * config.key_width),
        (d_model, d_ff),
        (d_ff, d_model),
        (d_model, vocabulary),
    }
    return {
        Product(min(positions, max(1, MOST_OUTPUTS // columns)), inner, columns)
        for inner, columns in matrices
    }


def matmul_rate(products: Iterable[Product], device: torch.device, dtype: torch.dtype) -> float:
    """Return the rate of the fastest product in FLOP/s, each the median of several samples."""
    return max(_rate(product, device, dtype) for product in products)


def _rate(product: Product, device: torch.device, dtype: torch.dtype) -> float:
    inputs = torch.randn(product.rows, product.inner, device=device, dtype=dtype)
    weight = torch.randn(product.columns, product.inner, device=device, dtype=dtype)
    # One result for all calls: the first write to fresh memory is slower.
    result = torch.empty(product.rows, product.columns, device=device, dtype=dtype)

    def seconds(times: int) -> float:
        synchronize(device)
        started_at = time.perf_counter()
        for _ in range(times):
            torch.mm(inputs, weight.T, out=result)
        synchronize(device)
        return (time.perf_counter() - started_at) / times

    seconds(2)
    times = max(1, round(SAMPLE_SECONDS / seconds(1)))
    return product.flops / statistics.median(seconds(times) for _ in range(SAMPLES))


def synchronize(device: torch.device) -> None:
    """Wait until the device has finished its work; no-op on a CPU."""
    if device.type != "cpu":
        torch.accelerator.synchronize(device)
