"""Commands `mt data check`, `mt data clean` and `mt data tokenizer`."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.factories import Program

Refused = Callable[..., str]

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


def test_check_writes_the_report_as_json(
    program: Program, tiny_recipe: Path, tmp_path: Path
) -> None:
    report = tmp_path / "report.json"
    status, out, _ = program("data", "check", tiny_recipe, "--json", report)
    assert status == 0
    data = json.loads(report.read_text(encoding="utf-8"))
    assert [split["name"] for split in data["splits"]] == ["train", "valid", "test"]
    assert out.startswith("train: ")
    assert "  60 pairs; en: " in out


def test_check_refuses_missing_corpora_and_unusable_outputs(
    refused: Refused, tiny_recipe: Path, tmp_path: Path
) -> None:
    before = tiny_recipe.read_bytes()
    same = tmp_path / "x"
    for options, message in (
        (["--set", "data.train.source=nowhere.en"], "nowhere.en: no such file"),
        (["--html", tmp_path / "no" / "page.html"], "there is no folder"),
        (["--json", tiny_recipe], f"{tiny_recipe}: is named twice, and would be written over"),
        (["--json", same, "--html", same], f"{same}: is named twice, and would be written over"),
    ):
        assert message in refused("data", "check", tiny_recipe, *options)
    assert tiny_recipe.read_bytes() == before


def test_tokenizer_refuses_unusable_outputs_and_a_changed_run(
    refused: Refused, tiny_recipe: Path, finished_run: Path, tmp_path: Path
) -> None:
    output = tmp_path / "no" / "report.json"
    assert "there is no folder" in refused("data", "tokenizer", tiny_recipe, "--json", output)
    key = "tokenizer.vocabulary_size"
    message = refused("data", "tokenizer", finished_run, "--set", f"{key}=300")
    assert message.startswith(f"--set {key}: the tokenizer of a run is fixed; name a config")


def test_clean_writes_and_counts_kept_and_removed_pairs(
    recipe: Path, tmp_path: Path, program: Program
) -> None:
    out = tmp_path / "clean"
    status, printed, _ = program("data", "clean", recipe, "--out", out, "--removed")
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


def test_clean_counts_changed_texts(recipe: Path, tmp_path: Path, program: Program) -> None:
    out = tmp_path / "clean"
    settings = ["--set", "data.cleaning.normalize_spaces=true"]
    status, printed, _ = program("data", "clean", recipe, "--out", out, *settings)
    assert status == 0
    assert (out / "train.en").read_text() == "One house.\nTwo houses.\nWhere? Here.\n"
    assert sorted(path.name for path in out.iterdir()) == ["train.de", "train.en"]
    assert "changed among these           2\n" in printed


def test_clean_counts_noise_by_kind(recipe: Path, tmp_path: Path, program: Program) -> None:
    out = tmp_path / "clean"
    settings = ["data.cleaning.noise_case=1", "data.cleaning.noise_typos=0.01"]
    named = [word for setting in settings for word in ("--set", setting)]
    status, printed, _ = program("data", "clean", recipe, "--out", out, *named)
    assert status == 0
    assert (out / "train.en").read_bytes().decode() == (
        "ONE HOUSE.\nTWO HOUSES. \nWHERE?\u2028HERE.\n"
    )
    assert (out / "train.de").read_text() == "Ein Haus.\nZwei Häuser.\nWo? Hier.\n"
    assert printed.splitlines()[5:8] == [
        "changed among these           3",
        "changed by `noise_case`       3  50.000%",
        "changed by `noise_typos`      0   0.000%",
    ]


@pytest.mark.parametrize(
    ("settings", "message"),
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
def test_invalid_cleaning_is_refused_and_leaves_nothing(
    settings: list[str], message: str, recipe: Path, tmp_path: Path, refused: Refused
) -> None:
    before = sorted(tmp_path.iterdir())
    named = [word for setting in settings for word in ("--set", setting)]
    assert message in refused("data", "clean", recipe, "--out", tmp_path / "clean", *named)
    assert sorted(tmp_path.iterdir()) == before


def test_clean_needs_a_new_folder(recipe: Path, tmp_path: Path, refused: Refused) -> None:
    for folder, message in (
        (tmp_path, "exists already; name a folder that is not there yet"),
        (tmp_path / "no" / "clean", f"there is no folder {tmp_path}/no to make it in"),
    ):
        assert refused("data", "clean", recipe, "--out", folder) == f"{folder}: {message}"
