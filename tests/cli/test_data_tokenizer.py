"""`mt data tokenizer`: its options, and how it fails."""

import re
from collections.abc import Callable
from pathlib import Path

Program = Callable[..., tuple[int, str, str]]


def test_the_options_are_frozen(program: Program) -> None:
    text = program("data", "tokenizer", "--help")[1]
    assert re.findall(r"^  ([A-Z|]+) <", text, re.M) == ["RUN|CONFIG"]
    assert re.findall(r"^  (-.*?)(?:  |$)", text, re.M) == [
        "--json FILE",
        "--set KEY=VALUE",
        "--help",
    ]


def test_what_is_no_run_is_told(program: Program, tmp_path: Path) -> None:
    status, out, err = program("data", "tokenizer", tmp_path)
    assert (status, out) == (2, "")
    assert err == f"error: {tmp_path}: not a run folder, config.yaml is missing\n"


def test_the_tokenizer_of_a_run_cannot_be_set(program: Program, finished_run: Path) -> None:
    status, out, err = program(
        "data", "tokenizer", finished_run, "--set", "tokenizer.vocabulary_size=300"
    )
    assert (status, out) == (2, "")
    assert err.startswith("error: --set tokenizer.vocabulary_size: a run has its tokenizer already")


def test_a_file_that_cannot_be_written_is_told_before_the_work(
    program: Program, tiny_recipe: Path, tmp_path: Path
) -> None:
    status, out, err = program(
        "data", "tokenizer", tiny_recipe, "--json", tmp_path / "no" / "report.json"
    )
    assert (status, out) == (2, "")
    assert "there is no folder" in err
