"""Do results come in order, from one process or two, and is no more read than is needed?"""

from collections.abc import Iterator

import pytest

from mt.doctor.spreading import spread_over


@pytest.mark.parametrize("processes", [1, 2])
def test_results_have_the_order_of_the_items_and_few_wait(processes: int) -> None:
    taken = []

    def items() -> Iterator[int]:
        for number in range(40):
            taken.append(number)
            yield number

    with spread_over(processes) as spread:
        for number, result in enumerate(spread(str, items())):
            assert result == str(number)
            assert len(taken) <= number + 1 + 2 * processes
    assert len(taken) == 40
