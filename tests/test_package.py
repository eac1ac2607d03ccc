import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import mt
from mt import Translator
from mt.errors import ConfigError, RunError

SENTENCES = [f"{first} {second} five" for first in ("one", "two", "six") for second in ("0", "ten")]


def test_a_run_is_loaded_and_translates(finished_run: Path) -> None:
    translator = Translator.load(str(finished_run), overrides=["decoding.beam=3"], device="cpu")
    assert translator.decoding.beam == 3
    texts = translator.translate(["one two three", ""])
    assert texts[0]
    assert texts[1] == ""
    assert texts == Translator.load(finished_run, overrides=["decoding.beam=3"]).translate(
        ["one two three", ""]
    )


def test_what_cannot_be_loaded_is_told(finished_run: Path) -> None:
    with pytest.raises(RunError, match="no such run folder"):
        Translator.load(finished_run.parent / "tyny")
    with pytest.raises(ConfigError, match=r"decoding.bean.*did you mean"):
        Translator.load(finished_run, overrides=["decoding.bean=3"])


def test_several_threads_translate_at_once(finished_run: Path) -> None:
    """Dropout, left on by one thread for another, would change what that one says."""
    translator = Translator.load(finished_run, overrides=["decoding.batch_size=1"], device="cpu")
    expected = [translator.translate([sentence]) for sentence in SENTENCES]
    with ThreadPoolExecutor(8) as threads:
        found = list(threads.map(translator.translate, [[each] for each in SENTENCES] * 20))
    assert found == expected * 20


def test_importing_the_package_imports_nothing_heavy() -> None:
    code = "import sys, mt; print('pydantic' in sys.modules, 'torch' in sys.modules, dir(mt))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("False False")


def test_what_the_package_does_not_have_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module `mt` has no attribute `Translater`"):
        mt.Translater  # noqa: B018
