"""The recipes: every one loads, and the corpora at hand are the ones they were written for."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from mt.config.data import DataConfig, HubSource, MixtureSource, Source, TextSource
from mt.config.load import load_config
from mt.data.corpora import supplied_files
from mt.data.pairs import UNVERIFIED
from mt.data.sources import open_source

RECIPES = sorted((Path(__file__).parents[2] / "configs").glob("*.yaml"))
BY_CORPUS = {"quickstart", "classical-modern", "small-parallel-enja"}
"""Recipes whose corpus has no other name, and in one direction alone."""


@dataclass(frozen=True)
class Split:
    """A split of a recipe."""

    name: str
    source: Source
    data: DataConfig


def splits(recipe: Path) -> Iterator[Split]:
    data = load_config(recipe).data
    assert not isinstance(data.train, MixtureSource)
    for name, source in {"train": data.train, "valid": data.valid, **data.tests}.items():
        yield Split(name, source, data)


def test_the_recipes_are_there() -> None:
    assert {recipe.stem for recipe in RECIPES} >= {
        "multi30k-en-de",
        "multi30k-en-fr",
        "multi30k-en-de-lc-norm-tok",
        "multi30k-en-fr-lc-norm-tok",
        "tatoeba-zh-en",
        "tatoeba-en-zh",
        "coursera-zh-en",
        "classical-modern",
        "small-parallel-enja",
        "iwslt14-de-en",
        "wmt14-en-de",
    }


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda path: path.stem)
def test_a_recipe_loads_and_is_named_after_its_languages(recipe: Path) -> None:
    data = load_config(recipe).data
    assert data.tests
    if recipe.stem not in BY_CORPUS:
        form = "-lc-norm-tok" if "lc.norm.tok" in str(data.train) else ""
        assert recipe.stem.endswith(f"-{data.source_language}-{data.target_language}{form}")


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda path: path.stem)
def test_what_a_recipe_downloads_is_pinned_and_checked(recipe: Path) -> None:
    """A text from the network has both checksums; a hub dataset names its commit by itself."""
    for split in splits(recipe):
        source = split.source
        if isinstance(source, TextSource) and (source.corpus or "://" in str(source.source)):
            assert UNVERIFIED not in {source.sha256_source, source.sha256_target}, split.name
        elif isinstance(source, HubSource):
            assert source.corpus is not None


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda path: path.stem)
def test_checksums_are_those_of_the_corpora(recipe: Path, corpora: Path) -> None:
    found = [split for split in splits(recipe) if supplied_files(split.source, split.data)]
    if not found:
        pytest.skip(f"{corpora} has nothing of {recipe.stem}")
    for split in found:
        sums = open_source(split.source, split.data).checksums()
        assert sums.source == split.source.sha256_source
        assert sums.target == split.source.sha256_target


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda path: path.stem)
def test_the_page_of_corpora_has_every_checksum_and_revision(recipe: Path) -> None:
    page = (recipe.parents[1] / "data" / "README.md").read_text(encoding="utf-8")
    for split in splits(recipe):
        source = split.source
        for checksum in (source.sha256_source, source.sha256_target):
            assert checksum in page
        if isinstance(source, HubSource):
            assert source.revision in page
