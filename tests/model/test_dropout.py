"""Dropout: how often, how much, what comes back."""

import pytest
import torch

from mt.model.sublayers import Dropout


def dropped(p: float, shape: tuple[int, ...] = (500, 401)) -> torch.Tensor:
    """What it makes of ones; the number of elements is no multiple of four."""
    torch.manual_seed(1)
    result: torch.Tensor = Dropout(p).train()(torch.ones(shape))
    return result


@pytest.mark.parametrize("p", [0.001, 0.1, 0.3, 0.5, 0.9])
def test_each_element_is_dropped_with_probability_p(p: float) -> None:
    zeros = dropped(p) == 0.0
    count = zeros.numel()
    assert abs(int(zeros.sum()) - p * count) < 5 * (p * (1 - p) * count) ** 0.5
    # Independently: of neighbours in each direction, both with probability p^2.
    for both in (
        zeros[1:] & zeros[:-1],
        zeros[:, 1:] & zeros[:, :-1],
        zeros[:, 4:] & zeros[:, :-4],
    ):
        assert abs(int(both.sum()) - p**2 * both.numel()) < 6 * (p**2 * both.numel()) ** 0.5 + 3


@pytest.mark.parametrize("p", [0.1, 0.5, 0.999_999])
def test_what_is_kept_makes_up_for_what_is_dropped(p: float) -> None:
    kept = {*dropped(p).flatten().tolist()} - {0.0}
    share = 1 - min(round(p * 2**16), 2**16 - 1) / 2**16
    assert kept <= {float(torch.tensor(1 / share))}
    assert share == pytest.approx(1 - p, abs=2**-16)


def test_the_gradient_passes_where_the_value_did() -> None:
    x = torch.randn(40, 50, requires_grad=True)
    y = Dropout(0.3).train()(x)
    y.sum().backward()
    assert x.grad is not None
    torch.testing.assert_close(x.grad * x.detach(), y.detach())


def test_it_follows_torchs_seed_and_goes_on_from_call_to_call() -> None:
    assert torch.equal(dropped(0.2), dropped(0.2))
    torch.manual_seed(1)
    layer = Dropout(0.2).train()
    first, second = layer(torch.ones(100)), layer(torch.ones(100))
    assert not torch.equal(first, second)


@pytest.mark.parametrize("layer", [Dropout(0.0).train(), Dropout(0.4).eval()], ids=str)
def test_off_means_the_same_values(layer: Dropout) -> None:
    x = torch.randn(3, 5)
    assert torch.equal(layer(x), x)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_the_precision_stays(dtype: torch.dtype) -> None:
    assert Dropout(0.1).train()(torch.ones(7, dtype=dtype)).dtype == dtype
