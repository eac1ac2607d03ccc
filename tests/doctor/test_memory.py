import random
import sys
from pathlib import Path

import pytest

from tests.factories import run_process

FEW, MANY = 100_000, 400_000
MOST_BYTES = {"check": 100, "clean": 60}
"""Bytes a pair, less than a text takes."""
WORK = {
    "check": """
from mt.doctor.check import check_corpora
assert check_corpora(data).splits[0].source.lines == int(sys.argv[2])
""",
    "clean": """
from mt.data.splits import write_cleaned
(files,) = write_cleaned(data, Path(sys.argv[1]).with_suffix(".cleaned"))
assert files.total == int(sys.argv[2]) and 0 < sum(files.removed.values()) < files.total
""",
}
BEFORE = """
import re, sys
from pathlib import Path
from mt.config.loading import load_config
data = load_config(Path(sys.argv[1])).data
"""
AFTER = """
status = Path("/proc/self/status").read_text()
print(re.search(r"VmHWM:\\s+([0-9]+) kB", status)[1])
"""


def recipe(folder: Path, pairs: int) -> Path:
    """Write a corpus with a duplicate in ten pairs, and the config that cleans it."""
    folder /= str(pairs)
    folder.mkdir()
    draw = random.Random(1)
    words = [f"{left}{right}" for left in "bdfgklmnprst" for right in ("am", "el", "ino", "urt")]
    with (folder / "train.en").open("w") as source, (folder / "train.de").open("w") as target:
        line = ""
        for number in range(pairs):
            if number % 10:
                line = " ".join(draw.choices(words, k=8))
            source.write(f"{line}.\n")
            target.write(f"{line.title()}!\n")
    for side in ("en", "de"):
        (folder / f"valid.{side}").write_text("one\ntwo\n")
    train, valid = (
        f"{{source: {folder}/{name}.en, target: {folder}/{name}.de}}" for name in ("train", "valid")
    )
    path = folder / "recipe.yaml"
    path.write_text(
        f"data: {{source_language: en, target_language: de, train: {train}, valid: {valid},\n"
        "  cleaning: {duplicates: pair, max_length_ratio: 3, broken_text: [mojibake]}}\n"
    )
    return path


def peak_memory(work: str, config: Path, pairs: int) -> int:
    """Return the peak memory of the work in bytes, measured in its own process."""
    code = BEFORE + WORK[work] + AFTER
    return 1024 * int(run_process(sys.executable, "-c", code, config, pairs).split()[-1])


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc/self/status")
@pytest.mark.parametrize("work", WORK)
def test_memory_grows_by_less_than_a_hundred_bytes_a_pair(work: str, tmp_path: Path) -> None:
    few, many = (peak_memory(work, recipe(tmp_path, pairs), pairs) for pairs in (FEW, MANY))
    sys.stderr.write(f"{work}: {few >> 20} MiB, {many >> 20} MiB\n")
    assert (many - few) / (MANY - FEW) < MOST_BYTES[work]
