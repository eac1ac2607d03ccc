"""The Python API."""

import os
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from mt import Translator
from tests.factories import run_process

SPIN = ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")
SENTENCES = [f"{first} {second} five" for first in ("one", "two", "six") for second in ("0", "ten")]


def test_loaded_run_translates(finished_run: Path) -> None:
    translator = Translator.load(str(finished_run), overrides=["decoding.beam=3"], device="cpu")
    assert translator.decoding.beam == 3
    first, second = translator.translate(["one two three", ""])
    assert first
    assert second == ""


def test_threads_translate_concurrently(finished_run: Path) -> None:
    # Dropout switched on by one thread would change the translations of another.
    translator = Translator.load(finished_run, overrides=["decoding.batch_size=1"], device="cpu")
    expected = [translator.translate([sentence]) for sentence in SENTENCES]
    with ThreadPoolExecutor(8) as threads:
        found = list(threads.map(translator.translate, [[each] for each in SENTENCES] * 10))
    assert found == expected * 10


def test_package_imports_nothing_heavy() -> None:
    code = "import sys, mt; print('pydantic' in sys.modules, 'torch' in sys.modules, dir(mt))"
    assert run_process(sys.executable, "-c", code).startswith("False False")


@pytest.mark.skipif(sys.platform != "linux", reason="torch has libgomp on Linux only")
@pytest.mark.parametrize(
    ("given", "expected"),
    [({}, "1000"), ({"GOMP_SPINCOUNT": "7"}, "7"), ({"OMP_WAIT_POLICY": "active"}, None)],
)
def test_waiting_threads_spin_briefly_unless_the_user_set_it(
    given: dict[str, str], expected: str | None
) -> None:
    code = "import os, mt; print(os.environ.get('GOMP_SPINCOUNT'))"
    environment = {name: os.environ[name] for name in os.environ.keys() - set(SPIN)} | given
    assert run_process(sys.executable, "-c", code, env=environment).strip() == str(expected)
