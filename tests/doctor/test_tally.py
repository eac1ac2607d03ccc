import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from mt.doctor.tally import process_map


@pytest.mark.parametrize("processes", [1, 2])
def test_results_are_in_order_and_few_items_are_read_ahead(processes: int) -> None:
    taken = []

    def items() -> Iterator[int]:
        for number in range(40):
            taken.append(number)
            yield number

    with process_map(processes) as parallel:
        for number, result in enumerate(parallel(str, items())):
            assert result == str(number)
            assert len(taken) <= number + 1 + 2 * processes
    assert len(taken) == 40


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_workers_end_when_their_parent_is_killed() -> None:
    script = (
        "import os, signal\n"
        "from mt.doctor.tally import process_map\n"
        "if __name__ == '__main__':\n"
        "    with process_map(2) as parallel:\n"
        "        print(next(parallel(eval, ['__import__(\"os\").getpid()'])), flush=True)\n"
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
    pytest.fail("a worker outlives its parent")


def _runs(process: int) -> bool:
    """Return False for a process that has ended, even if it was not waited for."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(") ")[2][0] != "Z"
    except FileNotFoundError:
        return False
