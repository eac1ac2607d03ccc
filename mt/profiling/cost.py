"""Parameters of each part of a model, its floating-point operations (FLOPs), and the device's rate.

Only matrix products are counted, a multiply-add as two operations: norms, softmax, activations and
positional encodings that are added or rotated cost little in comparison. Masks save nothing: causal
attention counts in full.
"""

import statistics
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.benchmark import Timer
from torch.utils.flop_counter import FlopCounterMode

from mt.config import ModelConfig
from mt.errors import UserError
from mt.model.transformer import Transformer
from mt.training.run_folder import peak_memory_mib

TRAINING_FACTOR = 3
"""Backward takes two products for each one of forward: the gradient of each factor."""
_SUBLAYERS = ("self_attention", "cross_attention", "feed_forward")
_COUNTED_LENGTHS = np.array([(1, 1), (2, 1), (1, 2), (3, 1), (1, 3)])
"""Source and target tokens of the pairs that determine the operations of all others."""


@dataclass(frozen=True)
class PartCost:
    """Parameters of a part of the model, and its operations in the forward pass of one pair."""

    name: str
    parameters: int
    flops: int


def count_parts(
    config: ModelConfig, *, lengths: tuple[int, int], vocabularies: tuple[int, int]
) -> list[PartCost]:
    """Count the cost of each part of a config's Transformer, without memory for its weights.

    `lengths` are the tokens of source and target of the pair, end marks included; `vocabularies`
    the sizes of both. A matrix that the output layer shares counts as an embedding. Raises
    UserError where the model has too few positions for the pair.
    """
    model = _build_without_memory(config, vocabularies)
    if model.longest is not None and max(lengths) > model.longest:
        raise UserError(
            f"a sentence of {max(lengths)} tokens does not fit into the {model.longest} positions "
            f"of `model.positional: {config.positional}` (`model.max_positions`)"
        )
    parameters: Counter[str] = Counter()
    for path, parameter in model.named_parameters():
        stack, *inside = path.split(".")
        part = "output layer" if stack == "output" else "norms and positions"
        if sublayer := next(filter(inside.__contains__, _SUBLAYERS), None):
            part = f"{stack} {sublayer.replace('_', '-')}"
        elif stack.endswith("_embedding"):
            part = "embeddings"
        parameters[part] += parameter.numel()
    flops: Counter[str] = Counter()
    for path, by_operator in _count_flops(model, *lengths).get_flop_counts().items():
        count = sum(by_operator.values())
        match path.split(".")[2:]:
            case [stack, _, sublayer] if sublayer in _SUBLAYERS:
                flops[f"{stack} {sublayer.replace('_', '-')}"] += count
                flops[f"{stack} cross-attention"] -= count
            # A layer of the decoder projects the memory's keys outside the sublayers.
            case ["encoder" | "decoder" as stack, _]:
                flops[f"{stack} cross-attention"] += count
            case ["output"]:
                flops["output layer"] += count
    names = dict.fromkeys([*parameters, *(name for name, count in flops.items() if count)])
    return [PartCost(name, parameters[name], flops[name]) for name in names]


def count_training_flops(
    config: ModelConfig, pairs: NDArray[np.integer], *, vocabularies: tuple[int, int]
) -> NDArray[np.int64]:
    """Return the operations [N] of training once on each pair, forward and backward.

    `pairs` [N 2] are the tokens of source and target, `vocabularies` the sizes of both. The
    operations of a pair are a polynomial of its lengths, a S + b T + c S^2 + d T^2 + e S T. Five
    counts give the coefficients.
    """
    model = _build_without_memory(config, vocabularies)
    counts = [_count_flops(model, *pair).get_total_flops() for pair in _COUNTED_LENGTHS.tolist()]
    coefficients = np.linalg.solve(_list_monomials(_COUNTED_LENGTHS), counts)
    forward = _list_monomials(pairs) @ coefficients.round().astype(np.int64)
    return TRAINING_FACTOR * forward


def _list_monomials(pairs: NDArray[np.integer]) -> NDArray[np.int64]:
    """Return S, T, S^2, T^2 and S T of each pair [N 5]."""
    source, target = pairs.T.astype(np.int64)
    return np.stack([source, target, source**2, target**2, source * target], axis=1)


def _build_without_memory(config: ModelConfig, vocabularies: tuple[int, int]) -> Transformer:
    source, target = vocabularies
    with torch.device("meta"):
        model = Transformer(config, source_vocabulary=source, target_vocabulary=target)
    return model.eval().to("meta")  # with the position tables, which are computed on the CPU


class _FullPass(nn.Module):
    """Forward pass of a batch without padding; Transformer finds it by the values of the ids."""

    def __init__(self, model: Transformer) -> None:
        super().__init__()
        self.model = model

    def forward(self, source: Tensor, target_in: Tensor) -> Tensor:
        states = self.model.states(source, target_in, torch.arange(target_in.numel()))
        return self.model.output(states)  # type: ignore[no-any-return]


def _count_flops(model: Transformer, source: int, target: int) -> FlopCounterMode:
    """Count the forward pass of one pair by the path of the module in `_FullPass`."""
    # The unfused attention kernel: the fused ones have counting rules of their own.
    counter = FlopCounterMode(display=False)
    with torch.no_grad(), torch.device("meta"), sdpa_kernel(SDPBackend.MATH), counter:
        source_ids = torch.ones(1, source, dtype=torch.long)
        _FullPass(model)(source_ids, torch.ones(1, target, dtype=torch.long))
    return counter


SAMPLES = 9
SAMPLE_SECONDS = 0.02
"""Minimum time of a sample, so that a busy machine slows samples as it slows training."""
_MAX_OUTPUTS = 2**26
"""Numbers in the largest result, so that measuring takes less memory than training."""


MatrixProduct = tuple[int, int, int]
"""Rows, inner size and columns of [rows inner] times [inner columns]."""


def list_products(config: ModelConfig, *, positions: int, vocabulary: int) -> set[MatrixProduct]:
    """Return the matrix products of a forward pass, the output layer included."""
    d_model, d_ff = config.d_model, config.d_ff
    matrices = {
        (d_model, config.heads * config.key_width),
        (d_model, d_ff),
        (d_ff, d_model),
        (d_model, vocabulary),
    }
    return {
        (min(positions, max(1, _MAX_OUTPUTS // columns)), inner, columns)
        for inner, columns in matrices
    }


def measure_matmul_rate(
    products: Iterable[MatrixProduct], device: torch.device, dtype: torch.dtype
) -> float:
    """Return the rate of the fastest product in FLOP/s, each the median of several samples."""
    statement, threads = "torch.mm(inputs, weight.T, out=result)", torch.get_num_threads()

    def read_clock() -> float:
        synchronize(device)
        return time.perf_counter()

    rates = []
    for rows, inner, columns in products:
        names = {
            "torch": torch,
            "inputs": torch.randn(rows, inner, device=device, dtype=dtype),
            "weight": torch.randn(columns, inner, device=device, dtype=dtype),
            # One result for all calls: the first write to fresh memory is slower.
            "result": torch.empty(rows, columns, device=device, dtype=dtype),
        }
        timer = Timer(statement, timer=read_clock, globals=names, num_threads=threads)
        count = max(1, round(SAMPLE_SECONDS / timer.timeit(1).mean))
        seconds = statistics.median(timer.timeit(count).mean for _ in range(SAMPLES))
        rates.append(2 * rows * inner * columns / seconds)
    return max(rates)


def synchronize(device: torch.device) -> None:
    """Wait until the device has finished its work; no-op on a CPU."""
    if device.type != "cpu":
        torch.accelerator.synchronize(device)


def measure_peak_memory(device: torch.device) -> float | None:
    """Return the peak in MiB of a CUDA device's tensors, elsewhere of the process, if known."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 2**20
    return peak_memory_mib()
