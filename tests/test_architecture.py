"""Layers, cycles, import cost and the tables behind the config's choices."""

import ast
import importlib
import re
import subprocess
import sys
import typing
from pathlib import Path

import pytest
from pydantic import BaseModel

from mt.config import Config

ROOT = Path(__file__).parent.parent

TABLES = {
    "data.augmentation": "mt.data.augmentation:AUGMENTATIONS",
    "model.positional": "mt.model.positional:POSITIONAL",
    "model.norm": "mt.model.sublayers:NORMS",
    "model.residual": "mt.model.sublayers:RESIDUALS",
    "model.feed_forward": "mt.model.sublayers:FEED_FORWARD",
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


@pytest.mark.parametrize("choice", sorted(TABLES))
def test_the_choices_of_the_config_are_the_keys_of_the_table(choice: str) -> None:
    """A variant is one row of a table and one word of a `Literal`; neither is forgotten."""
    module, name = TABLES[choice].split(":")
    table = getattr(importlib.import_module(module), name)
    assert set(_choices(choice)) - {"auto"} == set(table)


def test_no_pattern_has_a_possessive_quantifier_of_a_group() -> None:
    """Python before 3.11.5 matches `(?:ab?)*+` wrongly; `(?>(?:ab?)*)` has the same meaning."""
    paths = sorted((ROOT / "mt").rglob("*.py"))
    faults = {path.name: _possessive_groups(path.read_text(encoding="utf-8")) for path in paths}
    assert {name: patterns for name, patterns in faults.items() if patterns} == {}


_QUANTIFIED = re.compile(
    r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|(?P<possessive>\)(?:[*+?]|\{\d*,?\d*\})\+)", re.DOTALL
)
"""An escaped character, a character class, or a group with a possessive quantifier."""


def _possessive_groups(source: str) -> list[str]:
    """Return the string literals with a possessive quantifier of a group.

    An inserted value counts as a group unless the same file assigns a string literal to its name.
    """
    tree = ast.parse(source)
    pieces = {
        ast.unparse(node.targets[0]): node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant)
    }

    def text(node: ast.expr) -> str:
        if isinstance(node, ast.JoinedStr):
            return "".join(text(value) for value in node.values)
        if isinstance(node, ast.FormattedValue):
            node = pieces.get(ast.unparse(node.value), node)
        value = node.value if isinstance(node, ast.Constant) else "(?:)"
        return value.decode("latin-1") if isinstance(value, bytes) else str(value)

    literals = (n for n in ast.walk(tree) if isinstance(n, ast.Constant | ast.JoinedStr))
    return [
        literal
        for literal in map(text, literals)
        if any(match["possessive"] for match in _QUANTIFIED.finditer(literal))
    ]


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
