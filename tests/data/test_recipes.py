from pathlib import Path

import pytest

from mt.config.data import DataConfig, HeldOutSource, HubSource, MixtureSource, Source, TextSource
from mt.config.loading import load_config
from mt.data.corpus_files import find_supplied_files
from mt.data.pairs import UNVERIFIED
from mt.data.sources import open_source

RECIPES = sorted((Path(__file__).parents[2] / "configs").glob("*.yaml"))

EACH = pytest.mark.parametrize("recipe", RECIPES, ids=lambda path: path.stem)


def splits(data: DataConfig) -> dict[str, Source]:
    train = data.train
    parts = train.corpora if isinstance(train, MixtureSource) else {"train": train}
    others = {"valid": data.valid, **data.tests}
    corpora = {k: each for k, each in others.items() if not isinstance(each, HeldOutSource)}
    return {**parts, **corpora}


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
