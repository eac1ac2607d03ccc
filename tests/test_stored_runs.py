"""Stored runs translate and resume to the numbers that were recorded with them.

`python -m tests.test_stored_runs VERSION` trains and records one in tests/stored/VERSION. Users
keep old runs: a change of a format (`MODEL_FORMAT`, `EXPORT_FORMAT`, `STATE_FORMAT`, the files of a
checkpoint) adds a run beside those of released versions, and replaces none.
"""

import json
import os
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mt.decoding.translator import Translator
from tests.factories import journal, run_process, train_with

STORED = Path(__file__).with_name("stored").absolute()
LINES = ["one two three", "nine", "seven seven zero four", "Eight, 2 two!", ""]
KEYS = ("epoch", "target_tokens", "learning_rate", "loss", "nll", "gradient_norm")
TOLERANCES = {
    **dict.fromkeys(("learning_rate", "loss", "nll", "bleu", "chrf"), 1e-5),
    **{"score": 1e-4, "confidence": 1e-4, "gradient_norm": 1e-3},
}
"""Relative, by the last word of a name; text and counts are exact.

The code for a processor without AVX (`ATEN_CPU_CAPABILITY=default ONEDNN_MAX_CPU_ISA=SSE41
CT2_FORCE_CPU_ISA=GENERIC`) changed scores by 4e-6, losses by 6e-7 and norms by 1e-5.
"""


def translate() -> dict[str, list[Any]]:
    numbers = {}
    for engine, folder in (("torch", "run"), ("ctranslate2", "run/ctranslate2")):
        for beam in (1, 4):
            settings = [f"decoding.engine={engine}", f"decoding.beam={beam}"]
            lines = [*Translator.load(folder, overrides=settings, device="cpu").stream(LINES)]
            for key in ("text", "score", "confidence"):
                values = [getattr(line, key) for line in lines]
                numbers[f"{engine}, beam {beam}: {key}"] = [x for x in values if x is not None]
    return numbers


def resume() -> dict[str, list[Any]]:
    run = Path("run")
    train_with(run / "config.yaml", run, "max_updates=210", "log_every=1", "export=off")
    updates, validation = journal(run, "train")[-10:], journal(run, "validation")[-1]
    numbers = {f"next updates: {key}": [line[key] for line in updates] for key in KEYS}
    return {**numbers, **{f"validation: {key}": [validation[key]] for key in ("bleu", "loss")}}


@pytest.mark.parametrize("use", [translate, resume])
@pytest.mark.parametrize("version", [path.parent.name for path in STORED.glob("*/run")])
def test_stored_run_gives_the_recorded_numbers(
    version: str,
    use: Callable[[], dict[str, list[Any]]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for part in ("corpus", f"{version}/run"):
        shutil.copytree(STORED / part, tmp_path / Path(part).name)
    monkeypatch.chdir(tmp_path)  # where the paths of the config begin
    expected = json.loads((STORED / version / "expected.json").read_text(encoding="utf-8"))
    numbers = use()
    assert numbers.keys() == expected[use.__name__].keys()
    for name, values in expected[use.__name__].items():
        tolerance = TOLERANCES.get(name.split()[-1])
        recorded = pytest.approx(values, rel=tolerance, abs=0.0) if tolerance else values
        assert numbers[name] == recorded, name


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        os.chdir(scratch)
        os.environ["MT_CACHE"] = "cache"
        shutil.copytree(STORED / "corpus", "corpus")
        run_process(sys.executable, "-m", "mt", "train", STORED / "recipe.yaml", "--run", "run")
        shutil.copytree("run", STORED / sys.argv[1] / "run")
        text = json.dumps({use.__name__: use() for use in (translate, resume)}, indent=1)
    (STORED / sys.argv[1] / "expected.json").write_text(f"{text}\n", encoding="utf-8")
