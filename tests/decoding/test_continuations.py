"""The choice of the largest logits, against a full sort."""

import pytest
import torch

from mt.decoding.constraints import largest


@pytest.mark.parametrize("width", [5, 16, 95, 96, 97, 1000, 8003])
@pytest.mark.parametrize("count", [1, 2, 3])
def test_the_largest_are_those_of_a_full_sort(width: int, count: int) -> None:
    torch.manual_seed(width)
    rows = torch.randn(40, width + 3)[:, 3:]
    rows[:20] = rows[:20].round()  # many alike
    rows[30:, 1:] = float("-inf")
    values, places = largest(rows, count)
    assert torch.equal(values, rows.sort(dim=1, descending=True).values[:, :count])
    assert torch.equal(rows.gather(1, places), values)
    assert all(len(set(each)) == count for each in places.tolist())
