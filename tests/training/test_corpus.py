"""What a run trains on, when its tokens are drawn anew for each epoch."""

import re
import shutil
from pathlib import Path

import numpy as np
import pytest

from mt.config.loading import load_config
from mt.data import sources as sources_module
from mt.data.corpora import cache_folder
from mt.data.lines import FileScan, scan
from mt.errors import ConfigError
from mt.training.data import Corpus, describe, first_plan, prepare
from mt.training.run_folder import RunFolder
from mt.training.trainer import train

SAMPLED = ("tokenizer.sampling=0.3", "training.max_updates=14", "training.validate_every=14")


def prepared(recipe: Path, run: Path, *settings: str) -> Corpus:
    run.mkdir(exist_ok=True)
    return prepare(load_config(recipe, overrides=settings), RunFolder(run))


def drawn_stores() -> list[str]:
    return sorted(path.name for path in (cache_folder() / "epochs").glob("*/*.arrow"))


def test_without_sampling_every_epoch_is_the_same_store(tiny_recipe: Path, tmp_path: Path) -> None:
    corpus = prepared(tiny_recipe, tmp_path / "run")
    assert corpus.epoch_store(0) is corpus.epoch_store(7) is corpus.store
    corpus.close()
    assert not (cache_folder() / "epochs").exists()


def test_with_sampling_every_epoch_has_tokens_of_its_own(tiny_recipe: Path, tmp_path: Path) -> None:
    corpus = prepared(tiny_recipe, tmp_path / "run", "tokenizer.sampling=0.3")
    stores = [corpus.epoch_store(epoch) for epoch in (0, 1)]
    texts = [
        [
            (
                corpus.tokenizer.decode_source(pair.source.tolist()),
                corpus.tokenizer.decode_target(pair.target.tolist()),
            )
            for pair in store.examples(range(len(store)))
        ]
        for store in (corpus.store, *stores)
    ]
    assert texts[0] == texts[1] == texts[2]
    assert not np.array_equal(stores[0].lengths, stores[1].lengths)
    assert stores[0].lengths.sum() > corpus.store.lengths.sum()
    corpus.close()
    assert drawn_stores() == []


def test_validation_and_the_longest_source_know_no_sampling(
    tiny_recipe: Path, tmp_path: Path
) -> None:
    plain = prepared(tiny_recipe, tmp_path / "plain")
    corpus = prepared(tiny_recipe, tmp_path / "run", "tokenizer.sampling=0.3")
    assert corpus.epoch_store(0).longest_source > plain.store.longest_source
    assert corpus.store.longest_source == plain.store.longest_source
    for ours, expected in zip(corpus.valid_examples, plain.valid_examples, strict=True):
        assert ours.source.tolist() == expected.source.tolist()
        assert ours.target.tolist() == expected.target.tolist()
    corpus.close()


@pytest.mark.parametrize(
    ("settings", "source", "target"),
    [
        (["tokenizer.sampling=0.3", "tokenizer.sampling_target=0"], True, False),
        (["tokenizer.sampling_target=0.3"], False, True),
    ],
)
def test_one_side_alone_can_be_drawn(
    settings: list[str], source: bool, target: bool, tiny_recipe: Path, tmp_path: Path
) -> None:
    corpus = prepared(tiny_recipe, tmp_path / "run", *settings)
    longer = corpus.epoch_store(0).lengths.sum(axis=0) > corpus.store.lengths.sum(axis=0)
    assert longer.tolist() == [source, target]
    corpus.close()


@pytest.mark.parametrize("wrong", ["-0.1", "1.5"])
def test_no_probability_is_refused(wrong: str, tiny_recipe: Path) -> None:
    with pytest.raises(ConfigError, match=r"tokenizer\.sampling"):
        load_config(tiny_recipe, overrides=[f"tokenizer.sampling={wrong}"])


def test_plan_and_description_are_those_of_the_epoch(tiny_recipe: Path, tmp_path: Path) -> None:
    settings = ["tokenizer.sampling=0.3", "training.target_tokens_per_update=40"]
    config = load_config(tiny_recipe, overrides=settings)
    corpus = prepared(tiny_recipe, tmp_path / "run", *settings)
    store = corpus.epoch_store(3)
    plan = first_plan(corpus, config, epoch=3)
    assert len(plan) == round(store.lengths[:, 1].sum() / 40)
    assert sorted(np.concatenate(plan).tolist()) == list(range(len(corpus.store)))
    text = describe(corpus, config, plan, epoch=3)
    assert re.search(rf"\nabout {len(plan)} updates an epoch; padding", text)
    assert f"left out of {corpus.store.left_out.total}" in text
    corpus.close()


def test_checksums_are_taken_once(
    tiny_recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scanned = []

    def counted(path: Path) -> FileScan:
        scanned.append(path.name)
        return scan(path)

    monkeypatch.setattr(sources_module, "scan", counted)
    prepared(tiny_recipe, tmp_path / "run")
    assert sorted(scanned) == [
        f"{split}.{side}" for split in ("test", "train", "valid") for side in ("de", "en")
    ]


def test_a_sampled_run_that_goes_on_is_the_run_that_nobody_stopped(
    tiny_recipe: Path, tmp_path: Path
) -> None:
    """Taken up in the middle of an epoch, and with an empty cache, as on another machine."""
    config = load_config(tiny_recipe, overrides=SAMPLED)
    train(config, tmp_path / "whole")
    shorter = load_config(tiny_recipe, overrides=[*SAMPLED, "training.max_updates=8"])
    train(shorter, tmp_path / "broken")
    shutil.rmtree(cache_folder())
    (tmp_path / "broken" / "model.json").unlink()
    train(config, tmp_path / "broken")
    whole, broken = (RunFolder(tmp_path / name).weights for name in ("whole", "broken"))
    assert whole.read_bytes() == broken.read_bytes()
    assert drawn_stores() == []
