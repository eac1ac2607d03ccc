"""Operations (FLOPs) of training, the device's rate of matrix products, and its peak memory."""

import statistics
import time
from collections.abc import Iterable

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.benchmark import Timer

from mt.config import ModelConfig
from mt.profiling.cost import count_parts
from mt.profiling.plan import synchronize
from mt.training.run_folder import peak_memory_mib

TRAINING_FACTOR = 3
"""Backward takes two products for each one of forward: the gradient of each factor."""
_COUNTED_LENGTHS = np.array([(1, 1), (2, 1), (1, 2), (3, 1), (1, 3)])
"""Source and target tokens of the pairs that determine the operations of all others."""


def count_training_flops(
    config: ModelConfig, pairs: NDArray[np.integer], *, vocabularies: tuple[int, int]
) -> NDArray[np.int64]:
    """Return the operations [N] of training once on each pair, forward and backward.

    `pairs` [N 2] are the tokens of source and target, `vocabularies` the sizes of both. The
    operations of a pair are a polynomial of its lengths, a S + b T + c S^2 + d T^2 + e S T. Five
    counts give the coefficients.
    """
    counts = [
        sum(part.flops for part in count_parts(config, lengths=pair, vocabularies=vocabularies))
        for pair in map(tuple, _COUNTED_LENGTHS.tolist())
    ]
    coefficients = np.linalg.solve(_list_monomials(_COUNTED_LENGTHS), counts)
    forward = _list_monomials(pairs) @ coefficients.round().astype(np.int64)
    return TRAINING_FACTOR * forward


def _list_monomials(pairs: NDArray[np.integer]) -> NDArray[np.int64]:
    """Return S, T, S^2, T^2 and S T of each pair [N 5]."""
    source, target = pairs.T.astype(np.int64)
    return np.stack([source, target, source**2, target**2, source * target], axis=1)


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


def measure_peak_memory(device: torch.device) -> float | None:
    """Return the peak in MiB of a CUDA device's tensors, elsewhere of the process, if known."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 2**20
    return peak_memory_mib()
