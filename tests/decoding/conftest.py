from pathlib import Path

import pytest

from mt.decoding.translator import Translator, load_translator


@pytest.fixture(scope="session")
def original(finished_run: Path) -> Translator:
    """Return a translator of the finished run."""
    return load_translator(finished_run, device="cpu")


@pytest.fixture(scope="session")
def exported(exported_run: Path) -> Translator:
    """Return a translator of the exported run."""
    return load_translator(exported_run, device="cpu")
