"""A run over a corpus that the config cleans."""

import json
import re
from pathlib import Path

import pytest

from mt.config import Config
from mt.config.loading import load_config
from mt.data.corpora import cache_folder
from mt.errors import RunError
from mt.training.data import Corpus, describe, first_plan, join, prepare
from mt.training.run_folder import RunFolder, open_run

CLEAN = ("data.cleaning.duplicates=pair", "data.cleaning.mojibake=true")


@pytest.fixture
def dirty(tiny_recipe: Path, tmp_path: Path) -> Path:
    """The tiny recipe; its lines 3, 4 and 8 are such as the filters above take."""
    folder = tmp_path / "corpus"
    folder.mkdir()
    for path in tiny_recipe.parent.iterdir():
        text = path.read_text().replace(str(tiny_recipe.parent), str(folder))
        (folder / path.name).write_text(text)
    for side in ("en", "de"):
        lines = (folder / f"train.{side}").read_text().splitlines()
        lines[2] = lines[3] = lines[0]
        lines[7] = "one thrÃ©e"
        (folder / f"train.{side}").write_text("".join(f"{line}\n" for line in lines))
    return folder / "tiny.yaml"


def prepared(recipe: Path, run: Path, *settings: str) -> tuple[Config, Corpus]:
    run.mkdir(exist_ok=True)
    config = load_config(recipe, overrides=settings)
    return config, prepare(config, RunFolder(run))


def sources(corpus: Corpus) -> list[str]:
    examples = corpus.store.examples(range(len(corpus.store)))
    return [corpus.tokenizer.decode_source(each.source.tolist()) for each in examples]


def test_it_trains_on_what_is_left_and_tells_what_went(dirty: Path, tmp_path: Path) -> None:
    config, corpus = prepared(dirty, tmp_path / "run", *CLEAN)
    lines = (dirty.parent / "train.en").read_text().splitlines()
    assert sources(corpus) == [*lines[:2], *lines[4:7], *lines[8:]]
    taken = {"duplicates": 2, "mojibake": 1}
    assert corpus.store.left_out.cleaned == taken
    assert corpus.store.left_out.total == len(lines)
    recorded = json.loads((tmp_path / "run" / "corpora.json").read_text())
    assert recorded["cleaning"] == taken
    told = describe(corpus, config, first_plan(corpus, config)).splitlines()
    assert re.fullmatch(
        r"cleaning took out 3 of \d+ pairs: (2 by `duplicates`, 1 by `mojibake`"
        r"|1 by `mojibake`, 2 by `duplicates`)",
        told[0],
    )
    assert told[1].startswith(f"{len(lines) - 3} pairs to train on (0 too long and ")


def test_noise_is_on_the_training_sources_alone_and_is_counted(dirty: Path, tmp_path: Path) -> None:
    noise = ("data.cleaning.duplicates=pair", "data.cleaning.noise_case=0.5")
    config, corpus = prepared(dirty, tmp_path / "run", *noise)
    lines = (dirty.parent / "train.en").read_text().splitlines()
    texts = sources(corpus)
    assert [text.lower() for text in texts] == [line.lower() for line in lines[:2] + lines[4:]]
    loud = sum(text.isupper() for text in texts)
    assert 0 < loud < len(texts)
    assert corpus.store.left_out.noisy == {"noise_case": loud}
    examples = corpus.store.examples(range(len(corpus.store)))
    targets = [corpus.tokenizer.decode_target(each.target.tolist()) for each in examples]
    assert not any(map(str.isupper, targets))
    assert [pair.source.lower() for pair in corpus.valid] == [pair.source for pair in corpus.valid]
    recorded = json.loads((tmp_path / "run" / "corpora.json").read_text())
    assert recorded["cleaning"] == {"duplicates": 2, "noise_case": loud}
    told = describe(corpus, config, first_plan(corpus, config)).splitlines()
    assert told[1] == f"noise has changed sources: {loud} by `noise_case`"
    again = prepare(config, RunFolder(tmp_path / "run"))
    assert again.store.left_out == corpus.store.left_out


def test_the_tokenizer_learns_from_what_is_left(dirty: Path, tmp_path: Path) -> None:
    _, raw = prepared(dirty, tmp_path / "raw")
    _, clean = prepared(dirty, tmp_path / "clean", *CLEAN)
    assert any("Ã" in text for text in raw.tokenizer.source.texts().values())
    assert not any("Ã" in text for text in clean.tokenizer.source.texts().values())


def test_another_cleaning_is_another_store_and_the_same_one_is_found_again(
    dirty: Path, tmp_path: Path
) -> None:
    def stores() -> set[str]:
        return {path.name for path in (cache_folder() / "pairs").iterdir()}

    config, first = prepared(dirty, tmp_path / "run", *CLEAN)
    one = stores()
    again = prepare(config, RunFolder(tmp_path / "run"))
    assert stores() == one
    assert again.store.left_out == first.store.left_out
    assert sources(join(config, RunFolder(tmp_path / "run"))) == sources(first)
    assert stores() == one
    prepared(dirty, tmp_path / "run", CLEAN[0])
    assert len(stores()) == 2


def test_a_run_goes_on_with_its_own_cleaning_alone(finished_run: Path, tiny_recipe: Path) -> None:
    config = load_config(tiny_recipe, overrides=CLEAN)
    with pytest.raises(RunError, match=r"data\.cleaning\.duplicates: None -> pair"):
        open_run(finished_run, config)


def test_tokens_are_drawn_of_what_is_left(dirty: Path, tmp_path: Path) -> None:
    _, corpus = prepared(dirty, tmp_path / "run", *CLEAN, "tokenizer.sampling=0.3")
    drawn = corpus.epoch_store(1)
    decode = corpus.tokenizer.decode_source
    examples = drawn.examples(range(len(drawn)))
    assert [decode(each.source.tolist()) for each in examples] == sources(corpus)
    corpus.close()
