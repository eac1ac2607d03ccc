"""What a model costs: parameters and floating-point operations of each part.

Only matrix products are counted, a multiply-add as two operations: beside them, norms, softmax,
activations and positions that are added or turned are few. A mask saves nothing: causal attention
counts in full.
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
from mt.errors import UserError
from mt.model.attention import Attention
from mt.model.positional import RelativeLayer
from mt.model.transformer import DecoderLayer, EncoderLayer, Transformer

BYTES_PER_NUMBER = 4
"""Those of fp32."""
TRAINING_FACTOR = 3
"""Forward and backward: for each product there are two, one for the gradient of each factor."""
M = TypeVar("M", bound=nn.Module)


@dataclass(frozen=True)
class PairLengths:
    """Tokens of the pair that is counted, end marks included."""

    source: int
    target: int


@dataclass(frozen=True)
class Part:
    """A part of the model and what it costs."""

    name: str
    parameters: int
    flops: int
    """Of one pair, forward, as in training."""
    step_flops: int
    """Of the step that decodes the last target token of one row, all before it being cached."""


@dataclass(frozen=True)
class Cost:
    """What a model costs, part by part; a matrix that parts share is a parameter of the first."""

    parts: tuple[Part, ...]
    lengths: PairLengths
    cache_bytes_per_token: int
    """Keys and values of one target token of one row in all decoder layers, in fp32.

    A source token of a sentence takes as much, whatever the rows.
    """

    @property
    def parameters(self) -> int:
        """Parameters of the model."""
        return sum(part.parameters for part in self.parts)

    @property
    def flops(self) -> int:
        """Operations of one pair, forward."""
        return sum(part.flops for part in self.parts)

    @property
    def step_flops(self) -> int:
        """Operations of the last decoding step, one row."""
        return sum(part.step_flops for part in self.parts)

    @property
    def flops_per_target_token(self) -> float:
        """Operations of one pair, forward, divided by its target tokens."""
        return self.flops / self.lengths.target

    @property
    def training_flops_per_target_token(self) -> float:
        """The same, forward and backward."""
        return TRAINING_FACTOR * self.flops_per_target_token

    @property
    def weight_bytes(self) -> int:
        """Size of the parameters in fp32."""
        return BYTES_PER_NUMBER * self.parameters


def model_cost(
    config: ModelConfig, lengths: PairLengths, *, source_vocabulary: int, target_vocabulary: int
) -> Cost:
    """Count what the Transformer of a config costs; its weights take no memory meanwhile.

    Raises UserError where the model has too few positions for such a pair.
    """
    with torch.device("meta"):
        model = Transformer(
            config, source_vocabulary=source_vocabulary, target_vocabulary=target_vocabulary
        )
    longest = max(lengths.source, lengths.target)
    if model.longest is not None and longest > model.longest:
        raise UserError(
            f"a sentence of {longest} tokens does not fit into the {model.longest} positions of "
            f"`model.positional: {config.positional}` (`model.max_positions`); count a shorter one"
        )
    parts = (
        *_embeddings(model),
        *_encoder(model, lengths.source),
        *_decoder(model, lengths),
        _output(model, lengths.target),
    )
    return Cost(parts, lengths, BYTES_PER_NUMBER * _cached_numbers(model))


def training_flops(
    config: ModelConfig, pairs: NDArray[np.integer], *, vocabularies: tuple[int, int]
) -> NDArray[np.int64]:
    """Return the operations [N] of training once on each pair, forward and backward.

    `pairs` [N 2] are tokens of source and target, `vocabularies` the sizes of both. The operations
    of a pair are a polynomial of its lengths S and T: a S + b T + c S^2 + d T^2 + e S T. Five
    pairs, counted one by one, give its coefficients.
    """
    source_size, target_size = vocabularies

    def count(source: int, target: int) -> int:
        return model_cost(
            config,
            PairLengths(source, target),
            source_vocabulary=source_size,
            target_vocabulary=target_size,
        ).flops

    c, d = count(2, 0) // 2 - count(1, 0), count(0, 2) // 2 - count(0, 1)
    a, b = count(1, 0) - c, count(0, 1) - d
    e = count(1, 1) - count(1, 0) - count(0, 1)
    s, t = pairs.T.astype(np.int64)
    forward: NDArray[np.int64] = a * s + b * t + c * s * s + d * t * t + e * s * t
    return TRAINING_FACTOR * forward


@dataclass(frozen=True)
class _Work:
    """What one pass gives a part to do."""

    queries: int
    """Positions that pass through the part."""
    keys: int
    """Positions that each of them looks at."""
    new_keys: int
    """Positions to compute keys and values of; the others come from a cache."""


_Passes = tuple[_Work, _Work]
"""The forward pass over a pair, and the last decoding step."""
_NOTHING = _Work(0, 0, 0)


def _embeddings(model: Transformer) -> list[Part]:
    source, target = model.source_embedding, model.target_embedding
    if source is target:
        return [Part("shared embedding", _parameters([source]), 0, 0)]
    return [
        Part("source embedding", _parameters([source]), 0, 0),
        Part("target embedding", _parameters([target]), 0, 0),
    ]


def _encoder(model: Transformer, source: int) -> list[Part]:
    layers = [layer for layer in model.encoder if isinstance(layer, EncoderLayer)]
    attentions = [layer.self_attention.attention for layer in layers]
    residuals = [m for layer in layers for m in (layer.self_residual, layer.feed_forward_residual)]
    passes = _Work(source, source, source), _NOTHING
    positional = partial(_positional_flops, heads=attentions[0].heads)
    return [
        _part("encoder positions", [model.encoder_positional], positional, passes),
        _part("encoder self-attention", attentions, _attention_flops, passes),
        _part("encoder feed-forward", [x.feed_forward for x in layers], _linear_flops, passes),
        _part("encoder norms", [*residuals, model.encoder_norm], _linear_flops, passes),
    ]


def _decoder(model: Transformer, lengths: PairLengths) -> list[Part]:
    source, target = lengths.source, lengths.target
    layers = _decoder_layers(model)
    attentions = [layer.self_attention.attention for layer in layers]
    crosses = [layer.cross_attention for layer in layers]
    residuals = [
        m
        for layer in layers
        for m in (layer.self_residual, layer.cross_residual, layer.feed_forward_residual)
    ]
    passes = _Work(target, target, target), _Work(1, target, 1)
    across = _Work(target, source, source), _Work(1, source, 0)
    positional = partial(_positional_flops, heads=attentions[0].heads)
    return [
        _part("decoder positions", [model.decoder_positional], positional, passes),
        _part("decoder self-attention", attentions, _attention_flops, passes),
        _part("decoder cross-attention", crosses, _attention_flops, across),
        _part("decoder feed-forward", [x.feed_forward for x in layers], _linear_flops, passes),
        _part("decoder norms", [*residuals, model.decoder_norm], _linear_flops, passes),
    ]


def _output(model: Transformer, target: int) -> Part:
    passes = _Work(target, 0, 0), _Work(1, 0, 0)
    part = _part("output layer", [model.output], _linear_flops, passes)
    tied = model.output.weight is model.target_embedding.weight
    return replace(part, parameters=0) if tied else part


def _part(
    name: str, modules: Sequence[M], flops: Callable[[M, _Work], int], passes: _Passes
) -> Part:
    forward, step = (sum(flops(module, work) for module in modules) for work in passes)
    return Part(name, _parameters(modules), forward, step)


def _linear_flops(module: nn.Module, work: _Work) -> int:
    """Every linear layer in it meets every position once; a part may have none."""
    linears = [each for each in module.modules() if isinstance(each, nn.Linear)]
    return sum(2 * work.queries * linear.weight.numel() for linear in linears)


def _attention_flops(attention: Attention, work: _Work) -> int:
    """Four projections, queries times keys, and weights times values."""
    of_queries = attention.query.weight.numel() + attention.output.weight.numel()
    of_keys = attention.key.weight.numel() + attention.value.weight.numel()
    # All heads together: however few the heads of keys, each head of queries meets every key.
    of_pairs = attention.query.out_features + attention.output.in_features
    return 2 * (
        work.queries * of_queries + work.new_keys * of_keys + work.queries * work.keys * of_pairs
    )


def _positional_flops(positional: nn.Module, work: _Work, *, heads: int) -> int:
    """Each head's queries times the vectors of all offsets, in layers that have such."""
    tables = [each for each in positional.modules() if isinstance(each, RelativeLayer)]
    return sum(2 * heads * work.queries * _parameters([table]) for table in tables)


def _decoder_layers(model: Transformer) -> list[DecoderLayer]:
    return [layer for layer in model.decoder if isinstance(layer, DecoderLayer)]


def _cached_numbers(model: Transformer) -> int:
    """Return the numbers in the keys and values of one token, over all decoder layers."""
    attentions = [layer.self_attention.attention for layer in _decoder_layers(model)]
    return sum(each.key.out_features + each.value.out_features for each in attentions)


def _parameters(modules: Iterable[nn.Module]) -> int:
    return sum(parameter.numel() for m in modules for parameter in m.parameters())


SAMPLES = 9
SAMPLE_SECONDS = 0.02
"""A sample repeats its product for so long, or does it once if that takes longer."""
MOST_OUTPUTS = 2**26
"""Numbers in the largest result, so that the measurement takes less memory than the training."""


@dataclass(frozen=True)
class Product:
    """A product of matrices, [rows inner] times [inner columns]."""

    rows: int
    inner: int
    columns: int

    @property
    def flops(self) -> int:
        """Operations, a multiply-add being two."""
        return 2 * self.rows * self.inner * self.columns


def model_products(config: ModelConfig, *, positions: int, vocabulary: int) -> set[Product]:
    """Return what a forward pass of so many positions multiplies, the output layer included."""
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
    """Return the rate of the fastest of the products in FLOP/s, each the median of some samples."""
    return max(_rate(product, device, dtype) for product in products)


def _rate(product: Product, device: torch.device, dtype: torch.dtype) -> float:
    inputs = torch.randn(product.rows, product.inner, device=device, dtype=dtype)
    weight = torch.randn(product.columns, product.inner, device=device, dtype=dtype)
    # One result for all calls: memory that is touched for the first time would cost more.
    result = torch.empty(product.rows, product.columns, device=device, dtype=dtype)

    def multiply() -> None:
        torch.mm(inputs, weight.T, out=result)

    _seconds(multiply, 2, device)
    times = max(1, round(SAMPLE_SECONDS / _seconds(multiply, 1, device)))
    seconds = statistics.median(_seconds(multiply, times, device) for _ in range(SAMPLES))
    return product.flops / seconds


def _seconds(call: Callable[[], None], times: int, device: torch.device) -> float:
    """Return the mean time of a call."""
    synchronize(device)
    started_at = time.perf_counter()
    for _ in range(times):
        call()
    synchronize(device)
    return (time.perf_counter() - started_at) / times


def synchronize(device: torch.device) -> None:
    """Wait until the device has done all that it was given; the CPU has always."""
    if device.type != "cpu":
        torch.accelerator.synchronize(device)
