"""Layers, cycles, import cost and the tables behind the config's choices."""

import importlib
import subprocess
import sys
import typing
from pathlib import Path

import pytest
from pydantic import BaseModel

from mt.config import Config, Source

ROOT = Path(__file__).parent.parent

TABLES = {
    "data.augmentation": "mt.data.augmentation:AUGMENTATIONS",
    "model.positional": "mt.model.positional:POSITIONAL",
    "model.norm": "mt.model.sublayers:NORMS",
    "model.residual": "mt.model.sublayers:RESIDUALS",
    "model.feed_forward": "mt.model.sublayers:FEED_FORWARD",
    "training.schedule": "mt.training.optimizer:SCHEDULES",
    "training.precision": "mt.training.optimizer:AUTOCAST_DTYPES",
    "decoding.length_normalization": "mt.decoding.engine:LENGTH_NORMALIZATIONS",
    "decoding.mbr": "mt.decoding.sampling:UTILITIES",
    "evaluation.bleu_tokenizer": "mt.evaluation.scores:TOKENIZERS",
}
"""The choice of the config, and the table that knows what each word means."""


def test_imports_go_one_way() -> None:
    linter = Path(sys.executable).with_name("lint-imports")
    result = subprocess.run([linter], cwd=ROOT, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr


def test_command_line_and_config_import_nothing_heavy() -> None:
    heavy = ["torch", "datasets", "pyarrow", "sentencepiece", "sacrebleu", "numpy", "pandas"]
    code = "import sys, mt.config, mt.errors, mt.__main__, mt.cli; "
    code += f"print(*(set({heavy}) & set(sys.modules)))"
    result = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert result.stdout.split() == []


@pytest.mark.parametrize("choice", sorted(TABLES))
def test_the_choices_of_the_config_are_the_keys_of_the_table(choice: str) -> None:
    """A variant is one row of a table and one word of a `Literal`; neither is forgotten."""
    module, name = TABLES[choice].split(":")
    table = getattr(importlib.import_module(module), name)
    assert set(_choices(choice)) - {"auto"} == set(table)


def test_every_format_of_a_corpus_has_its_opener() -> None:
    from mt.data.sources import OPENERS

    kinds = typing.get_args(typing.get_args(Source)[0])
    formats = {typing.get_args(kind.model_fields["format"].annotation)[0] for kind in kinds}
    assert formats == set(OPENERS)


def _choices(dotted: str) -> tuple[str, ...]:
    """Return the words of a `Literal` by its dotted key."""
    section: type[BaseModel] = Config
    *path, last = dotted.split(".")
    for key in path:
        annotation = section.model_fields[key].annotation
        assert isinstance(annotation, type)
        assert issubclass(annotation, BaseModel)
        section = annotation
    annotation = section.model_fields[last].annotation
    words = typing.get_args(annotation)
    if type(None) in words:  # a Literal that may be left unset
        words = typing.get_args(words[0])
    return words
