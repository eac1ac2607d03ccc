"""Where a pair that is trained on stands in the user's files."""

from pathlib import Path

import pytest

from mt.config import Config
from mt.config.loading import load_config
from mt.training.data import Corpus, prepare
from mt.training.memory import pair_place
from mt.training.run_folder import begin, open_run


@pytest.fixture
def folder(tiny_recipe: Path, tmp_path: Path) -> Path:
    """A copy of the tiny corpus and its recipe, to be changed."""
    folder = tmp_path / "corpus"
    folder.mkdir()
    for path in tiny_recipe.parent.iterdir():
        text = path.read_text().replace(str(tiny_recipe.parent), str(folder))
        (folder / path.name).write_text(text)
    return folder


def prepared(folder: Path, *settings: str) -> tuple[Config, Corpus]:
    config = load_config(folder / "tiny.yaml", overrides=settings)
    run, _ = open_run(folder / "run", config)
    begin(run, config)
    return config, prepare(config, run)


def test_where_nothing_is_left_out_the_place_is_that_of_the_store(folder: Path) -> None:
    config, corpus = prepared(folder)
    assert pair_place(config, corpus, 6) == f"line 7 of {folder}/train.en and {folder}/train.de"


def test_pairs_that_are_left_out_count_as_lines(folder: Path) -> None:
    for side in ("en", "de"):
        lines = (folder / f"train.{side}").read_text().splitlines()
        lines[1] = " "
        lines[3] = " ".join(lines[:30])
        # The same text once more, further down: the first place that it can have is told.
        lines[9] = lines[12]
        (folder / f"train.{side}").write_text("".join(f"{line}\n" for line in lines))
    config, corpus = prepared(folder)
    assert (corpus.store.left_out.empty, corpus.store.left_out.too_long) == (1, 1)
    places = [pair_place(config, corpus, index) for index in (0, 1, 2, 7, 10)]
    assert [place.split(" of ")[0] for place in places] == [
        "line 1",
        "line 3",
        "line 5",
        "line 10",
        "line 13",
    ]


def test_text_that_the_tokenizer_does_not_know_is_counted_as_encoded(folder: Path) -> None:
    for side in ("en", "de"):
        lines = (folder / f"train.{side}").read_text().splitlines()
        lines[1] = " "
        (folder / f"train.{side}").write_text("".join(f"{line}\n" for line in lines))
    config, corpus = prepared(folder)
    # As if line 3 had been another text when it was encoded.
    lines = (folder / "train.en").read_text().splitlines()
    lines[2] = "one"
    (folder / "train.en").write_text("".join(f"{line}\n" for line in lines))
    assert pair_place(config, corpus, 1).startswith("pair 2 of those trained on, of ")
