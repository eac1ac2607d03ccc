"""Loading of recipes given as YAML."""

from collections.abc import Callable
from pathlib import Path

import pytest

from mt.config import Config
from mt.config.loading import load_config
from mt.errors import ConfigError


@pytest.fixture
def load(tmp_path: Path) -> Callable[..., Config]:
    """Return a function that loads YAML text with overrides."""

    def read(text: str, *overrides: str) -> Config:
        file = tmp_path / "recipe.yaml"
        file.write_text(text, encoding="utf-8")
        return load_config(file, overrides=overrides)

    return read


@pytest.fixture
def refuse(load: Callable[..., Config], tmp_path: Path) -> Callable[..., str]:
    """Return a function that loads invalid YAML and returns the error, with FILE for the path."""

    def read(text: str, *overrides: str) -> str:
        with pytest.raises(ConfigError) as error:
            load(text, *overrides)
        return str(error.value).replace(str(tmp_path / "recipe.yaml"), "FILE")

    return read
