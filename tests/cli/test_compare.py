"""Command `mt compare`."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import wcwidth

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
    outputs = ("-o", "c.json", "-o", "c.html")
    status, out, err = program("compare", "poor.txt", "good.txt", *OF_FILES, *outputs)
    assert (status, err) == (0, "")
    assert "A  poor.txt  (baseline)\nB  good.txt\non right.txt: 40 sentences\n" in out
    assert "better" in out
    assert all(wcwidth.width(line) <= 100 for line in out.splitlines())
    record = json.loads(Path("c.json").read_bytes())
    baseline, other = record["scores"][0]
    assert baseline["metric"] == "BLEU"
    assert (baseline["outcome"], other["outcome"]) == ("baseline", "better")
    assert other["difference"] == pytest.approx(other["value"] - baseline["value"])
    assert other["p_value"] < 0.05
    assert record["slices"][0]["bleu"] == [baseline["value"], other["value"]]  # one length only
    assert len(record["changed"]) == 7  # five that gain most, and the two that have lost
    assert "Comparison of translations" in Path("c.html").read_text(encoding="utf-8")
    again = program("compare", "poor.txt", "good.txt", *OF_FILES)
    assert again == (0, out, "")


@pytest.mark.usefixtures("files")
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["poor.txt"], "nothing to compare: name two or more runs"),
        (["poor.txt", "./poor.txt"], "poor.txt: is named twice; a system does not compare with"),
        (["poor.txt", "god.txt"], "god.txt: no such file; did you mean `good.txt`?"),
        (["poor.txt", "good.txt", "--split", "x"], "--split is of runs, whose config has splits"),
        (["poor.txt", "good.txt", "--metric", "comet"], "metric `comet` is unknown"),
        (["poor.txt", "good.txt", "--allow", "x"], "--allow x: unknown; known: `line-counts`"),
        (["poor.txt", "good.txt", "-o", "right.txt"], "right.txt: is named twice, and"),
        (["poor.txt", "good.txt", "--sources", "none.txt"], "none.txt: is empty"),
        ([f"{n}.txt" for n in range(9)], "9 systems: up to 8 can be compared at once"),
    ],
)
def test_invalid_input_is_one_line(
    arguments: list[str], message: str, refused: Callable[..., str]
) -> None:
    assert message in refused("compare", *arguments, *OF_FILES)


def test_runs_are_compared(
    finished_run: Path,
    tmp_path: Path,
    program: Program,
    refused: Callable[..., str],
) -> None:
    one, other = (shutil.copytree(finished_run, tmp_path / name) for name in ("one", "other"))
    config = (other / "config.yaml").read_text(encoding="utf-8")
    (other / "config.yaml").write_text(config.replace("beam: 2", "beam: 1"), encoding="utf-8")
    html = tmp_path / "c.html"
    options = ("--split", "test", "--split", "valid", "--samples", "100", "-o", html)
    status, out, _ = program("compare", one, other, *options)
    assert status == 0
    assert "\ndirection" in out
    assert "  en-de (test)   " in out
    assert "  en-de (valid)  " in out
    for signed in ("test by tok:13a", "valid by tok:13a|text:lower-cased"):
        assert signed in " ".join(out.split())
        assert signed in html.read_text(encoding="utf-8")
    assert f"seen at most 5 times in the training data of\n{one}" in out.replace(" \n", "\n")
    before = (one / "config.yaml").read_bytes()
    for arguments, message in (
        ("--split test --split valid --references r", "--references are of one test set: give --"),
        ("--split test --split valdi", "split `valdi` is unknown; did you mean `valid`?"),
        ("--split test --split test", "--split names a split twice"),
        (f"-o {one}/config.yaml", f"{one}/config.yaml: is a file of "),
    ):
        assert refused("compare", one, other, *arguments.split()).startswith(message)
    assert (one / "config.yaml").read_bytes() == before
