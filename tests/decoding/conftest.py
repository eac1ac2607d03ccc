from pathlib import Path

import pytest

from mt.decoding.translator import Translator, load_translator
from mt.export.export import export_ctranslate2


@pytest.fixture(scope="session")
def exported_run(finished_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the finished run as `mt export --to ctranslate2` writes it; for reading alone."""
    output = tmp_path_factory.mktemp("exports") / "ct2"
    assert export_ctranslate2(finished_run, output, device="cpu").failure is None
    return output


@pytest.fixture(scope="session")
def original(finished_run: Path) -> Translator:
    """Return a translator of the finished run."""
    return load_translator(finished_run, device="cpu")


@pytest.fixture(scope="session")
def exported(exported_run: Path) -> Translator:
    """Return a translator of the exported run."""
    return load_translator(exported_run, device="cpu")
