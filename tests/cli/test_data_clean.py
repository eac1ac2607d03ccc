"""`mt data clean`: the files, the counts, and how it fails."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest

Program = Callable[..., tuple[int, str, str]]

RECIPE = """\
data:
  source_language: en
  target_language: de
  train: {{source: {0}/train.en, target: {0}/train.de}}
  valid: {{source: {0}/valid.en, target: {0}/valid.de}}
  cleaning: {{identical_sides: true, mojibake: true, duplicates: pair}}
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


def test_the_sub_commands_and_options_are_frozen(program: Program) -> None:
    assert re.search(r"^  clean  ", program("data")[1], re.M)
    text = program("data", "clean", "--help")[1]
    assert re.findall(r"^  ([A-Z]+) <", text, re.M) == ["CONFIG"]
    options = re.findall(r"^  (-.*?)(?:  |$)", text, re.M)
    assert options == ["--out DIR", "--removed", "--set KEY=VALUE", "--help"]


def test_what_is_left_what_went_and_how_many(
    recipe: Path, tmp_path: Path, program: Program
) -> None:
    out = tmp_path / "clean"
    status, told, _ = program("data", "clean", recipe, "--out", out, "--removed")
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
    assert told.splitlines() == [
        "pairs read                      6",
        "taken out by `identical_sides`  1  16.667%",
        "taken out by `mojibake`         1  16.667%",
        "taken out by `duplicates`       1  16.667%",
        "pairs left                      3  50.000%",
        "changed of those                0",
        *(str(out / name) for name in ("train.en", "train.de", "removed.tsv")),
    ]


def test_texts_are_changed_as_asked_for_and_counted(
    recipe: Path, tmp_path: Path, program: Program
) -> None:
    out = tmp_path / "clean"
    settings = ["--set", "data.cleaning.normalize_spaces=true"]
    status, told, _ = program("data", "clean", recipe, "--out", out, *settings)
    assert status == 0
    assert (out / "train.en").read_text() == "One house.\nTwo houses.\nWhere? Here.\n"
    assert sorted(path.name for path in out.iterdir()) == ["train.de", "train.en"]
    assert "changed of those                2\n" in told


def test_noise_is_told_by_its_kind(recipe: Path, tmp_path: Path, program: Program) -> None:
    out = tmp_path / "clean"
    settings = ["data.cleaning.noise_case=1", "data.cleaning.noise_typos=0.01"]
    named = [word for setting in settings for word in ("--set", setting)]
    status, told, _ = program("data", "clean", recipe, "--out", out, *named)
    assert status == 0
    assert (out / "train.en").read_bytes().decode() == (
        "ONE HOUSE.\nTWO HOUSES. \nWHERE?\u2028HERE.\n"
    )
    assert (out / "train.de").read_text() == "Ein Haus.\nZwei Häuser.\nWo? Hier.\n"
    assert told.splitlines()[5:8] == [
        "changed of those                3",
        "changed by `noise_case`         3  50.000%",
        "changed by `noise_typos`        0   0.000%",
    ]


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        (
            [f"data.cleaning.{key}" for key in ("identical_sides=false", "mojibake=false")]
            + ["data.cleaning.duplicates=null"],
            "`data.cleaning` asks for nothing: set one of its keys; `mt data check` suggests some",
        ),
        (["data.cleaning.min_characters=99"], "the cleaning leaves no pair of 6"),
        (["data.target_language=en"], "`data.source_language` and `data.target_language` are"),
        (["data.cleaning.mojibake=1"], "--set data.cleaning.mojibake: "),
        (["data.cleaning.duplicate=pair"], "did you mean `data.cleaning.duplicates`"),
    ],
)
def test_a_mistake_is_one_line_and_leaves_nothing(
    settings: list[str], told: str, recipe: Path, tmp_path: Path, program: Program
) -> None:
    before = sorted(tmp_path.iterdir())
    named = [word for setting in settings for word in ("--set", setting)]
    status, out, err = program("data", "clean", recipe, "--out", tmp_path / "clean", *named)
    assert (status, out) == (2, "")
    assert told in err
    assert sorted(tmp_path.iterdir()) == before


def test_a_folder_that_is_there_stays(recipe: Path, tmp_path: Path, program: Program) -> None:
    (tmp_path / "clean").mkdir()
    status, out, err = program("data", "clean", recipe, "--out", tmp_path / "clean")
    assert (status, out) == (2, "")
    assert err == f"error: {tmp_path}/clean: exists already; name a folder that is not there yet\n"
    status, _, err = program("data", "clean", recipe, "--out", tmp_path / "no" / "clean")
    assert (status, err) == (
        2,
        f"error: {tmp_path}/no/clean: there is no folder {tmp_path}/no to make it in\n",
    )
