import re
import shlex
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from mt.config import Config
from mt.config.data import DataConfig, HubSource, MixtureSource, Source, TextSource
from mt.config.loading import load_config
from mt.data.corpora import supplied_files
from mt.data.pairs import UNVERIFIED
from mt.data.sources import open_source

RECIPES = sorted((Path(__file__).parents[2] / "configs").glob("*.yaml"))
BY_CORPUS = {"quickstart", "classical-modern", "small-parallel-enja"}
"""Recipes that are named after their corpus alone."""
OUTPUTS = {"--out", "--run"}
"""Options for the output of a command."""


@dataclass(frozen=True)
class Split:
    """Split of a recipe."""

    name: str
    source: Source
    data: DataConfig


def splits(recipe: Path) -> Iterator[Split]:
    data = load_config(recipe).data
    train = data.train
    parts = train.corpora if isinstance(train, MixtureSource) else {"train": train}
    for name, source in {**parts, "valid": data.valid, **data.tests}.items():
        yield Split(name, source, data)


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda path: path.stem)
def test_recipe_loads_and_is_named_after_its_languages(recipe: Path) -> None:
    data = load_config(recipe).data
    assert data.tests
    if recipe.stem not in BY_CORPUS:
        form = "-lc-norm-tok" if "lc.norm.tok" in str(data.train) else ""
        assert recipe.stem.endswith(f"-{data.source_language}-{data.target_language}{form}")


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda path: path.stem)
def test_downloads_of_a_recipe_are_pinned(recipe: Path) -> None:
    for split in splits(recipe):
        source = split.source
        if isinstance(source, TextSource) and (source.corpus or "://" in str(source.source)):
            assert UNVERIFIED not in {source.sha256_source, source.sha256_target}, split.name
        elif isinstance(source, HubSource):
            assert source.corpus is not None


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda path: path.stem)
def test_checksums_match_the_corpora(recipe: Path, corpora: Path) -> None:
    found = [split for split in splits(recipe) if supplied_files(split.source, split.data)]
    if not found:
        pytest.skip(f"{corpora} has nothing of {recipe.stem}")
    for split in found:
        sums = open_source(split.source, split.data).checksums()
        assert sums.source == split.source.sha256_source
        assert sums.target == split.source.sha256_target


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda path: path.stem)
def test_data_page_has_every_checksum_and_revision(recipe: Path) -> None:
    page = (recipe.parents[1] / "data" / "README.md").read_text(encoding="utf-8")
    for split in splits(recipe):
        source = split.source
        for checksum in (source.sha256_source, source.sha256_target):
            assert checksum in page
        if isinstance(source, HubSource):
            assert source.revision in page


def test_make_best_creates_inputs_before_their_use() -> None:
    root = RECIPES[0].parents[1]
    output = subprocess.check_output(["make", "-n", "best"], cwd=root, text=True)
    made: set[str] = set()
    for line in [line for line in output.splitlines() if "/mt " in line]:
        command, *arguments = shlex.split(line)[1:]
        written = {arguments[at + 1] for at, each in enumerate(arguments) if each in OUTPUTS}
        read = set(re.findall(r"runs/[\w-]+(?:/[\w-]+)?", " ".join(arguments))) - written
        if command != "distill":
            recipe = root / next(each for each in arguments if each.endswith(".yaml"))
            read |= _made_before(load_config(recipe))
            written = written or {f"runs/{recipe.stem}"}
        assert read <= made, line
        made |= written
    assert made >= {"runs/multi30k-pairs/forward", "runs/multi30k-best-en-de-lc-norm-tok"}


def _made_before(recipe: Config) -> set[str]:
    """Return the runs and text folders under runs/ that a recipe reads."""
    train = recipe.data.train
    parts = train.corpora.values() if isinstance(train, MixtureSource) else [train]
    texts = [each for each in parts if isinstance(each, TextSource)]
    sides = [str(side) for each in texts for side in (each.source, each.target)]
    origins = {recipe.training.init_from, recipe.tokenizer.from_} - {None}
    return {str(Path(side).parent) for side in sides if side.startswith("runs/")} | {
        *map(str, origins)
    }
