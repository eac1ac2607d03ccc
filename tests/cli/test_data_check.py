"""`mt data check`: its options, what they lead to, and how they fail."""

import json
import re
from collections.abc import Callable
from pathlib import Path

Program = Callable[..., tuple[int, str, str]]


def test_the_options_are_frozen(program: Program) -> None:
    text = program("data", "check", "--help")[1]
    assert re.findall(r"^  ([A-Z|]+) <", text, re.M) == ["CONFIG"]
    assert re.findall(r"^  (-.*?)(?:  |$)", text, re.M) == [
        "--json FILE",
        "--html FILE",
        "--processes N",
        "--set KEY=VALUE",
        "--help",
    ]


def test_the_tiny_corpus_is_sound(program: Program, tiny_recipe: Path, tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    status, out, _ = program("data", "check", tiny_recipe, "--json", report)
    assert status == 0
    data = json.loads(report.read_text(encoding="utf-8"))
    assert [split["name"] for split in data["splits"]] == ["train", "valid", "test"]
    assert out.startswith("train: ")
    assert "  60 pairs; en: " in out


def test_overrides_reach_the_corpora(program: Program, tiny_recipe: Path) -> None:
    status, out, err = program(
        "data", "check", tiny_recipe, "--set", "data.train.source=nowhere.en"
    )
    assert (status, out) == (2, "")
    assert "nowhere.en: no such file" in err


def test_a_file_that_cannot_be_written_is_told_before_the_work(
    program: Program, tiny_recipe: Path, tmp_path: Path
) -> None:
    status, out, err = program(
        "data", "check", tiny_recipe, "--html", tmp_path / "no" / "page.html"
    )
    assert (status, out) == (2, "")
    assert "there is no folder" in err


def test_the_config_is_not_written_over(program: Program, tiny_recipe: Path) -> None:
    before = tiny_recipe.read_bytes()
    for options in (
        ["--json", tiny_recipe],
        ["--json", tiny_recipe.parent / "x", "--html", tiny_recipe.parent / "x"],
    ):
        status, out, err = program("data", "check", tiny_recipe, *options)
        assert (status, out) == (2, "")
        assert f"error: {options[-1]}: is named twice, and would be written over\n" in err
    assert tiny_recipe.read_bytes() == before
