"""How fast a device multiplies matrices: the rate that training is measured against."""

import statistics
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch

from mt.config import ModelConfig

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
