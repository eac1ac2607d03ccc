import re
import shlex
import subprocess
from pathlib import Path

import pytest

from mt.config import Config
from mt.config.data import DataConfig, HeldOutSource, HubSource, MixtureSource, Source, TextSource
from mt.config.loading import load_config
from mt.data.corpus_files import find_supplied_files
from mt.data.pairs import UNVERIFIED
from mt.data.sources import open_source

RECIPES = sorted((Path(__file__).parents[2] / "configs").glob("*.yaml"))
BY_CORPUS = {"quickstart", "classical-modern", "small-parallel-enja"}
"""Recipes that are named after their corpus alone."""
OUTPUTS = {"--out", "--run"}
"""Options for the output of a command."""


EACH = pytest.mark.parametrize("recipe", RECIPES, ids=lambda path: path.stem)


def splits(data: DataConfig) -> dict[str, Source]:
    train = data.train
    parts = train.corpora if isinstance(train, MixtureSource) else {"train": train}
    others = {"valid": data.valid, **data.tests}
    corpora = {k: each for k, each in others.items() if not isinstance(each, HeldOutSource)}
    return {**parts, **corpora}


@EACH
def test_recipe_loads_and_is_named_after_its_languages(recipe: Path) -> None:
    data = load_config(recipe).data
    assert data.tests
    if recipe.stem not in BY_CORPUS:
        form = "-lc-norm-tok" if "lc.norm.tok" in str(data.train) else ""
        assert recipe.stem.endswith(f"-{data.source_language}-{data.target_language}{form}")


@EACH
def test_downloads_of_a_recipe_are_pinned_and_on_the_data_page(recipe: Path) -> None:
    page = (recipe.parents[1] / "data" / "README.md").read_text(encoding="utf-8")
    for name, source in splits(load_config(recipe).data).items():
        sums = {source.sha256_source, source.sha256_target}
        assert all(checksum in page for checksum in sums)
        if isinstance(source, TextSource) and (source.corpus or "://" in str(source.source)):
            assert UNVERIFIED not in sums, name
        elif isinstance(source, HubSource):
            assert source.corpus is not None
            assert source.revision in page


@EACH
def test_checksums_match_the_corpora(recipe: Path, corpora: Path) -> None:
    data = load_config(recipe).data
    sources = [(source, data.direction_of(source)) for source in splits(data).values()]
    supplied = [
        (source, direction)
        for source, direction in sources
        if find_supplied_files(source, direction)
    ]
    if not supplied:
        pytest.skip(f"{corpora} has nothing of {recipe.stem}")
    for source, direction in supplied:
        sums = open_source(source, direction).checksums()
        assert (sums.source, sums.target) == (source.sha256_source, source.sha256_target)


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
