"""Command `mt compare`."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.factories import Program

_NAMES = ("Anna", "Bert", "Clara", "David", "Emma", "Frank", "Greta", "Hugo", "Ines", "Jan")
_THINGS = ("a red ball", "two old books", "the blue car", "some fresh bread")
RIGHT = [f"{name} has seen {thing} today." for name in _NAMES for thing in _THINGS]
POOR = [line.replace("has seen", "saw then") if n % 4 else line for n, line in enumerate(RIGHT)]
GOOD = [line if n % 20 else "no" for n, line in enumerate(RIGHT)]
OF_FILES = ("--references", "right.txt", "--target-language", "en", "--samples", "100")


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Change to a folder with references, a poor and a good system, and other files."""
    monkeypatch.chdir(tmp_path)
    texts = {"right": RIGHT, "poor": POOR, "good": GOOD, "none": []}
    for name, lines in texts.items():
        Path(f"{name}.txt").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


@pytest.mark.usefixtures("files")
def test_files_are_compared(program: Program) -> None:
    status, out, err = program("compare", "poor.txt", "good.txt", *OF_FILES)
    assert (status, err) == (0, "")
    assert "A  poor.txt  (baseline)\nB  good.txt\non right.txt: 40 sentences\n" in out
    assert out.count("better") == 2
    status, out, err = program("compare", "poor.txt", "good.txt", *OF_FILES, "--json")
    (record,) = json.loads(out)
    baseline, other = record["scores"][0]
    assert baseline["metric"] == "BLEU"
    assert (baseline["outcome"], other["outcome"]) == ("baseline", "better")
    assert other["difference"] == pytest.approx(other["value"] - baseline["value"])
    assert record["slices"][0]["bleu"] == [baseline["value"], other["value"]]  # one length only


@pytest.mark.usefixtures("files")
@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        (["poor.txt"], "2 to 26"),
        (["poor.txt"] * 27, "2 to 26"),
        (["poor.txt", "./poor.txt"], "a system is named twice"),
        (["poor.txt", "god.txt"], "god.txt: no such file; did you mean `good.txt`?"),
        (["poor.txt", "good.txt", "--split", "x"], "--split"),
        (["poor.txt", "good.txt", "--sources", "none.txt"], "none.txt: is empty"),
    ],
)
def test_invalid_input_is_one_line(
    arguments: list[str], name: str, refused: Callable[..., str]
) -> None:
    assert name in refused("compare", *arguments, *OF_FILES)
