"""The rules of the house that no linter knows: who imports whom, how long things are, one table."""

import ast
import importlib
import subprocess
import sys
import typing
from collections.abc import Iterator, Sequence
from graphlib import TopologicalSorter
from pathlib import Path

import pytest
from pydantic import BaseModel

from mt.config import Config, Source

ROOT = Path(__file__).parent.parent
FILES = sorted((ROOT / "mt").rglob("*.py"))
MODULES = {
    ".".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): file
    for file in FILES
}
MAX_FILE_LINES = 300
MAX_FUNCTION_LINES = 40
MAX_DEPTH = 3

TABLES = {
    "tokenizer.algorithm": "mt.data.subword_sampling:SAMPLERS",
    "model.positional": "mt.model.positional:POSITIONAL",
    "model.norm": "mt.model.residual:NORMS",
    "model.residual": "mt.model.residual:RESIDUALS",
    "model.feed_forward": "mt.model.feed_forward:FEED_FORWARD",
    "training.schedule": "mt.training.optimizer:SCHEDULES",
    "training.precision": "mt.training.optimizer:_DTYPES",
    "training.on_divergence": "mt.training.divergence:ON_DIVERGENCE",
    "decoding.length_normalization": "mt.decoding.engine:LENGTH_NORMALIZATIONS",
    "decoding.mbr": "mt.decoding.mbr:UTILITIES",
    "evaluation.bleu_tokenizer": "mt.evaluation.scores:TOKENIZERS",
}
"""The choice of the config, and the table that knows what each word means."""

AnyFunction = ast.FunctionDef | ast.AsyncFunctionDef


def test_imports_go_one_way() -> None:
    linter = Path(sys.executable).with_name("lint-imports")
    result = subprocess.run([linter], cwd=ROOT, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr


def test_each_module_imports_alone() -> None:
    """A circular import hides as long as somebody else imports first; here there is none at all."""
    graph = {
        module: {*_needed(module, file.read_text(encoding="utf-8"))}
        for module, file in MODULES.items()
    }
    order = [*TopologicalSorter(graph).static_order()]  # CycleError names the modules of a circle
    assert order.index("mt.errors") < order.index("mt.config") < order.index("mt.training.trainer")


@pytest.mark.parametrize(
    ("code", "needed"),
    [
        ("import torch, mt.errors", ["mt.errors", "mt"]),
        ("from mt.data import lines, nothing", ["mt.data.lines", "mt.data", "mt", "mt.data", "mt"]),
        ("if TYPE_CHECKING:\n  import mt.a\nelse:\n  import mt.errors", ["mt.errors", "mt"]),
        ("def f():\n  import mt.a\nclass A:\n  import mt.errors", ["mt.errors", "mt"]),
        ("from mt.config.data import x", ["mt.config.data"]),
        ("from mt.config import Config", ["mt.config"]),
    ],
)
def test_what_a_module_needs_is_what_its_import_runs(code: str, needed: list[str]) -> None:
    module = "mt.config.root" if "mt.config" in code else "other"
    assert [*_needed(module, code)] == needed


def _needed(module: str, code: str) -> Iterator[str]:
    """Yield the modules of ours that must be whole before this one: not the packages it lies in."""
    for name in _imported(ast.parse(code).body):
        if name.partition(".")[0] == "mt":
            yield name
            packages = [name.rsplit(".", count)[0] for count in range(1, name.count(".") + 1)]
            yield from (each for each in packages if not f"{module}.".startswith(f"{each}."))


def _imported(body: Sequence[ast.stmt]) -> Iterator[str]:
    """Yield the names of the modules that are imported when a module is."""
    for node in body:
        if isinstance(node, ast.Import):
            yield from (each.name for each in node.names)
        elif isinstance(node, ast.ImportFrom):
            names = [f"{node.module}.{each.name}" for each in node.names]
            yield from (name if name in MODULES else node.module or "" for name in names)
        elif isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            yield from _imported(node.orelse)
        elif not isinstance(node, AnyFunction):
            for field in ("body", "orelse", "handlers", "finalbody"):
                yield from _imported(getattr(node, field, []))


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
