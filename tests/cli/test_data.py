"""Commands `mt data check` and `mt data clean`."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.factories import Program

RECIPE = """\
data:
  source_language: en
  target_language: de
  train: {{source: {0}/train.en, target: {0}/train.de}}
  valid: {{source: {0}/valid.en, target: {0}/valid.de}}
  cleaning: {{identical_sides: true, broken_text: [mojibake], duplicates: pair}}
"""
PAIRS = [
    ("One house.", "Ein Haus."),
    ("Tom\there", "Tom\there"),
    ("Two houses. ", "Zwei Häuser."),
    ("One house.", "Ein Haus."),
    ("Cologne", "KÃ¶ln"),
    ("Where?\u2028Here.", "Wo? Hier."),
]


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    for side, lines in zip(("en", "de"), zip(*PAIRS, strict=True), strict=True):
        (tmp_path / f"train.{side}").write_bytes("".join(f"{line}\n" for line in lines).encode())
        (tmp_path / f"valid.{side}").write_text("x\n")
    path = tmp_path / "tiny.yaml"
    path.write_text(RECIPE.format(tmp_path))
    return path


def test_check_of_a_run_or_of_a_config_with_its_tokenizer_counts_tokens(
    program: Program, finished_run: Path, tiny_recipe: Path
) -> None:
    status, out, _ = program("data", "check", finished_run)
    assert status == 0
    assert re.search(r"^  en: 0\.\d{3} tokens a character, \d\.\d\d a word; ", out, re.MULTILINE)
    copied = ("--set", f"tokenizer.from={finished_run}")
    assert program("data", "check", tiny_recipe, *copied)[:2] == (0, out)
    assert "a character" not in program("data", "check", tiny_recipe)[1]


def test_clean_writes_and_counts_kept_and_removed_pairs(
    recipe: Path, tmp_path: Path, program: Program
) -> None:
    out = tmp_path / "clean"
    status, printed, _ = program("data", "clean", recipe, "--out", out)
    assert status == 0
    assert (out / "train.en").read_bytes().decode() == (
        "One house.\nTwo houses. \nWhere?\u2028Here.\n"
    )
    assert (out / "train.de").read_text() == "Ein Haus.\nZwei Häuser.\nWo? Hier.\n"
    assert (out / "removed.tsv").read_text() == (
        "2\tidentical_sides\tTom here\tTom here\n"
        "4\tduplicates\tOne house.\tEin Haus.\n"
        "5\tmojibake\tCologne\tKÃ¶ln\n"
    )
    assert printed.splitlines() == [
        "pairs read                    6",
        "removed by `identical_sides`  1  16.667%",
        "removed by `mojibake`         1  16.667%",
        "removed by `duplicates`       1  16.667%",
        "pairs kept                    3  50.000%",
        "changed among these           0",
        *(str(out / name) for name in ("train.en", "train.de", "removed.tsv")),
    ]
    spaces = ("--out", tmp_path / "spaces", "--set", "data.cleaning.normalize_spaces=true")
    assert "changed among these           2" in program("data", "clean", recipe, *spaces)[1]
    changed = (tmp_path / "spaces" / "train.en").read_text()
    assert changed == "One house.\nTwo houses.\nWhere? Here.\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            "clean RECIPE --out FOLDER/clean --set data.cleaning.identical_sides=false --set "
            "data.cleaning.broken_text=[] --set data.cleaning.duplicates=null",
            "`data.cleaning` asks for nothing: set one of its keys; `mt data check` suggests some",
        ),
        (
            "clean RECIPE --out FOLDER/clean --set data.cleaning.min_characters=99",
            "the cleaning leaves no pair of 6",
        ),
        (
            "clean RECIPE --out FOLDER/clean --set data.target_language=en",
            "`data.source_language` and `data.target_language` are",
        ),
        ("clean RECIPE --out FOLDER", "exists already; name a folder that is not there yet"),
    ],
)
def test_invalid_call_is_one_line_and_leaves_everything_as_it_is(
    arguments: str,
    message: str,
    recipe: Path,
    tmp_path: Path,
    refused: Callable[..., str],
) -> None:
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    arguments = arguments.replace("RECIPE", str(recipe)).replace("FOLDER", str(tmp_path))
    assert message in refused("data", *arguments.split())
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before
