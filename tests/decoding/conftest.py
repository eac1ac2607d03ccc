from pathlib import Path

import pytest

from mt.decoding.translator import Translator


@pytest.fixture(scope="session")
def original(finished_run: Path) -> Translator:
    """Return a translator of the finished run, with the searches of PyTorch."""
    return Translator.load(finished_run, overrides=["decoding.engine=torch"], device="cpu")


@pytest.fixture(scope="session")
def exported(exported_run: Path) -> Translator:
    """Return a translator of the exported run."""
    return Translator.load(exported_run, device="cpu")
