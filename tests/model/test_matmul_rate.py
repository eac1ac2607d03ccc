"""The rate of matrix products: which products, how they are counted, and what is returned."""

from types import SimpleNamespace

import pytest
import torch

from mt.config import ModelConfig
from mt.profiling import cost as module
from mt.profiling.cost import Product, matmul_rate, model_products

CPU = torch.device("cpu")


def test_the_products_of_a_model() -> None:
    config = ModelConfig(d_model=256, d_ff=1024, heads=4)
    assert model_products(config, positions=4096, vocabulary=8000) == {
        Product(4096, 256, 256),
        Product(4096, 256, 1024),
        Product(4096, 1024, 256),
        Product(4096, 256, 8000),
    }


def test_the_result_of_a_product_is_never_huge() -> None:
    products = model_products(ModelConfig(), positions=10**6, vocabulary=32_000)
    assert max(product.rows * product.columns for product in products) <= 2**26
    assert Product(2**17, 512, 512) in products
    assert model_products(ModelConfig(), positions=3, vocabulary=10**9) >= {Product(1, 512, 10**9)}


def test_operations_are_counted_as_two_a_multiply_add() -> None:
    assert Product(2, 3, 5).flops == 60


def test_the_rate_is_the_median_of_the_fastest_product(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a clock that gives each product its samples, one of them disturbed."""
    times = iter([9.0, 1.0, *[3.0, 2.0, 50.0, 2.0, 2.0], 9.0, 1.0, *[4.0, 6.0, 5.0, 90.0, 1.0]])
    monkeypatch.setattr(module, "SAMPLES", 5)
    monkeypatch.setattr(module, "_seconds", lambda *_: next(times))
    products = [Product(2, 3, 5), Product(4, 5, 2)]
    assert matmul_rate(products, CPU, torch.float32) == pytest.approx(max(60 / 2, 80 / 5))


def test_a_call_is_timed_by_itself_however_often_it_is_repeated(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = [0.0]

    def call() -> None:
        clock[0] += 0.25

    monkeypatch.setattr(module, "time", SimpleNamespace(perf_counter=lambda: clock[0]))
    assert module._seconds(call, 8, CPU) == 0.25


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_real_rate_is_positive(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SAMPLE_SECONDS", 1e-4)
    rate = matmul_rate([Product(8, 16, 4)], CPU, dtype)
    assert 0 < rate < float("inf")
