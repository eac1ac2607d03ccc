"""The rules of the house that no linter knows: who imports whom, how long things are, one table."""

import ast
import importlib
import subprocess
import sys
import typing
from collections.abc import Iterator
from pathlib import Path

import pytest
from pydantic import BaseModel

from mt.config import Config, Source

ROOT = Path(__file__).parent.parent
FILES = sorted((ROOT / "mt").rglob("*.py"))
MODULES = [
    ".".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
    for file in FILES
    if file.name != "__main__.py"
]
MAX_FILE_LINES = 300
MAX_FUNCTION_LINES = 40
MAX_DEPTH = 3

TABLES = {
    "tokenizer.algorithm": "mt.data.sampling:SAMPLERS",
    "model.positional": "mt.model.positional:POSITIONAL",
    "model.norm": "mt.model.residual:NORMS",
    "model.residual": "mt.model.residual:RESIDUALS",
    "model.feed_forward": "mt.model.feed_forward:FEED_FORWARD",
    "training.schedule": "mt.training.optimizer:SCHEDULES",
    "training.precision": "mt.training.precision:_DTYPES",
    "training.on_divergence": "mt.training.divergence:ON_DIVERGENCE",
    "decoding.length_normalization": "mt.decoding.lengths:LENGTH_NORMALIZATIONS",
    "decoding.mbr": "mt.decoding.mbr:UTILITIES",
    "evaluation.bleu_tokenizer": "mt.evaluation.scores:TOKENIZERS",
}
"""The choice of the config, and the table that knows what each word means."""

AnyFunction = ast.FunctionDef | ast.AsyncFunctionDef


def test_imports_go_one_way() -> None:
    linter = Path(sys.executable).with_name("lint-imports")
    result = subprocess.run([linter], cwd=ROOT, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr


_IMPORT_EACH_ALONE = """
import importlib, os, sys, traceback
import datasets, pyarrow, sacrebleu, safetensors.torch, sentencepiece, torch, typer

failed = False
for name in sys.argv[1:]:
    child = os.fork()
    if child == 0:
        try:
            importlib.import_module(name)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    if os.waitpid(child, 0)[1] != 0:
        print(f"{name} cannot be imported alone", file=sys.stderr)
        failed = True
sys.exit(failed)
"""


@pytest.mark.timeout(300)  # a process for each module, on a busy machine
@pytest.mark.skipif(sys.platform == "win32", reason="needs fork")
def test_each_module_imports_alone() -> None:
    """A circular import hides as long as somebody else imports first."""
    # The libraries are imported once and each module of ours in a fork of its own.
    command = [sys.executable, "-c", _IMPORT_EACH_ALONE, *MODULES]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr


@pytest.mark.parametrize("module", ["mt.config", "mt.errors", "mt.__main__", "mt.cli"])
def test_what_must_answer_at_once_imports_nothing_heavy(module: str) -> None:
    heavy = ["torch", "datasets", "pyarrow", "sentencepiece", "sacrebleu", "numpy", "pandas"]
    code = f"import sys, {module}; print(*(set({heavy}) & set(sys.modules)))"
    result = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert result.stdout.split() == []


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(ROOT)))
def test_files_and_functions_stay_short(file: Path) -> None:
    text = file.read_text(encoding="utf-8")
    assert text.count("\n") <= MAX_FILE_LINES
    for function in _functions(ast.parse(text)):
        where = f"{file.relative_to(ROOT)}:{function.lineno} {function.name}"
        assert function.end_lineno is not None
        lines = function.end_lineno - function.lineno + 1
        assert lines <= MAX_FUNCTION_LINES, f"{where} has {lines} lines"
        assert _depth(function.body) <= MAX_DEPTH, f"{where} is {_depth(function.body)} deep"


def test_the_depth_of_nested_blocks_is_counted() -> None:
    code = """
if a:
    pass
elif b:
    for x in y:
        with z:
            pass
else:
    pass
"""
    assert _depth(ast.parse(code).body) == 3


@pytest.mark.parametrize("choice", sorted(TABLES))
def test_the_choices_of_the_config_are_the_keys_of_the_table(choice: str) -> None:
    """A variant is one row of a table and one word of a `Literal`; neither is forgotten."""
    module, name = TABLES[choice].split(":")
    table = getattr(importlib.import_module(module), name)
    assert set(_choices(choice)) - {"auto"} == set(table)


def test_every_format_of_a_corpus_has_its_opener() -> None:
    from mt.data.sources import _OPENERS

    kinds = typing.get_args(typing.get_args(Source)[0])
    formats = {typing.get_args(kind.model_fields["format"].annotation)[0] for kind in kinds}
    assert formats == set(_OPENERS)


def _functions(tree: ast.AST) -> Iterator[AnyFunction]:
    for node in ast.walk(tree):
        if isinstance(node, AnyFunction):
            yield node


def _depth(body: list[ast.stmt]) -> int:
    """Return how many blocks stand inside each other; `elif` and `else` stand beside their `if`."""
    deepest = 0
    for statement in body:
        if isinstance(statement, AnyFunction | ast.ClassDef):
            continue  # a function of its own
        inner = _blocks(statement)
        if inner:
            deepest = max(deepest, 1 + max(map(_depth, inner)))
    return deepest


def _blocks(statement: ast.stmt) -> list[list[ast.stmt]]:
    if isinstance(statement, ast.If):
        orelse = statement.orelse
        is_elif = len(orelse) == 1 and isinstance(orelse[0], ast.If)
        rest = _blocks(orelse[0]) if is_elif else [orelse]
        return [statement.body, *rest]
    if isinstance(statement, ast.Match):
        return [case.body for case in statement.cases]
    blocks = [getattr(statement, field, []) for field in ("body", "orelse", "finalbody")]
    handlers = [handler.body for handler in getattr(statement, "handlers", [])]
    return [block for block in [*blocks, *handlers] if block]


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
