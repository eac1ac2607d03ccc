from pathlib import Path

import pytest

from mt.decoding.translator import Translator, load_translator


@pytest.fixture(scope="session")
def original(finished_run: Path) -> Translator:
    """Return a translator of the finished run, with the searches of PyTorch."""
    return load_translator(finished_run, overrides=["decoding.engine=torch"], device="cpu")


@pytest.fixture(scope="session")
def exported(exported_run: Path) -> Translator:
    """Return a translator of the exported run."""
    return load_translator(exported_run, device="cpu")
