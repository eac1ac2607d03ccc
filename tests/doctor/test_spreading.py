"""Do results come in order, from one process or two, and is no more read than is needed?"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from mt.doctor.tally import spread_over


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


@pytest.mark.skipif(sys.platform != "linux", reason="asks /proc which processes there are")
def test_no_process_is_left_where_the_first_is_killed() -> None:
    script = (
        "import os, signal\n"
        "from mt.doctor.tally import spread_over\n"
        "if __name__ == '__main__':\n"
        "    with spread_over(1 + 1) as spread:\n"
        "        print(next(spread(eval, ['__import__(\"os\").getpid()'])), flush=True)\n"
        "        os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    command = [sys.executable, "-c", script]
    ended = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False, timeout=60)
    assert ended.returncode == -signal.SIGKILL
    worker = int(ended.stdout)
    for _ in range(100):
        if not _runs(worker):
            return
        time.sleep(0.1)
    os.kill(worker, signal.SIGKILL)
    pytest.fail("a process of the pool outlives the one that began it")


def _runs(process: int) -> bool:
    """Say whether a process runs; one that has ended and that nobody has asked about does not."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(") ")[2][0] != "Z"
    except FileNotFoundError:
        return False
