"""Training data of a run: cleaning, drawn tokens, warnings, prefetching."""

import json
import logging
import re
import shutil
import threading
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

import numpy as np
import pytest

from mt.data.corpus_files import cache_folder
from mt.data.store import PairStore
from mt.training.data import TrainingData
from mt.training.loader import PlannedUpdate, Prefetcher, planned_updates
from mt.training.progress import describe_data
from mt.training.state import TrainState
from mt.training.step import TokenCounts
from tests.factories import CPU, DIGITS, Program, prepare_run

CLEAN = ("data.cleaning.duplicates=pair", "data.cleaning.broken_text=[mojibake]")


def texts(corpus: TrainingData, store: PairStore | None = None) -> list[tuple[str, str]]:
    tokenizer, store = corpus.tokenizer, store or corpus.store
    return [
        (
            tokenizer.decode_source(pair.source.tolist()),
            tokenizer.decode_target(pair.target.tolist()),
        )
        for pair in store.examples(range(len(store)))
    ]


def drawn_stores() -> list[str]:
    return sorted(path.name for path in (cache_folder() / "epochs").glob("*/*.arrow"))


def test_without_sampling_every_epoch_has_the_same_store(tiny_recipe: Path, tmp_path: Path) -> None:
    _, corpus = prepare_run(tiny_recipe, tmp_path / "run")
    assert corpus.epoch_store(0) is corpus.epoch_store(7) is corpus.store
    corpus.close()
    assert not (cache_folder() / "epochs").exists()


def test_with_sampling_every_epoch_draws_other_tokens_of_the_same_text(
    tiny_recipe: Path, tmp_path: Path
) -> None:
    _, plain = prepare_run(tiny_recipe, tmp_path / "plain")
    settings = ["tokenizer.subword_dropout=[0.3, 0.3]", "training.target_tokens_per_update=40"]
    config, corpus = prepare_run(tiny_recipe, tmp_path / "run", *settings)
    first, second = corpus.epoch_store(0), corpus.epoch_store(1)
    assert texts(corpus) == texts(corpus, first) == texts(corpus, second)
    assert not np.array_equal(first.lengths, second.lengths)
    assert first.lengths.sum() > corpus.store.lengths.sum()
    # Validation and the longest source are those of translation.
    assert first.longest_source > plain.store.longest_source == corpus.store.longest_source
    for ours, expected in zip(corpus.valid_examples, plain.valid_examples, strict=True):
        assert ours.source.tolist() == expected.source.tolist()
        assert ours.target.tolist() == expected.target.tolist()
    # Plan and description are those of the epoch.
    plan = corpus.plan_epoch(1)
    assert len(plan) == round(second.lengths[:, 1].sum() / 40)
    assert sorted(np.concatenate([*chain(*plan)]).tolist()) == list(range(len(corpus.store)))
    text = describe_data(
        corpus, plan, max_tokens_per_batch=config.training.max_tokens_per_batch, epoch=1
    )
    assert re.search(rf"\nabout {len(plan)} updates an epoch; padding", text)
    corpus.close()
    assert drawn_stores() == []


def test_augmentation_changes_other_pairs_in_each_epoch(tiny_recipe: Path, tmp_path: Path) -> None:
    _, corpus = prepare_run(tiny_recipe, tmp_path / "run", "data.augmentation=strong")
    plain = texts(corpus)
    first, second = (texts(corpus, corpus.epoch_store(epoch)) for epoch in (0, 1))
    changed = [
        [new != old for new, old in zip(epoch, plain, strict=True)] for epoch in (first, second)
    ]
    assert changed[0] != changed[1]
    assert 0 < sum(changed[0]) < len(plain)
    corpus.close()


def test_epochs_drawn_again_with_an_empty_cache_give_the_same_updates(
    tiny_recipe: Path, tmp_path: Path
) -> None:
    settings = (
        *("tokenizer.subword_dropout=[0.3, 0.3]", "data.augmentation=on"),
        *("training.max_epochs=2", "training.max_updates=null"),
    )

    def batches(state: TrainState) -> list[list[list[int]]]:
        config, corpus = prepare_run(tiny_recipe, tmp_path / "run", *settings)
        updates = [*planned_updates(config.training, corpus, state, CPU)]
        corpus.close()
        return [batch.source.tolist() for update in updates for batch in update.batches]

    whole = batches(TrainState())
    shutil.rmtree(cache_folder())
    resumed = batches(TrainState(epoch=1, update_in_epoch=1))
    assert 0 < len(resumed) < len(whole)
    assert resumed == whole[-len(resumed) :]
    assert drawn_stores() == []


@pytest.fixture
def dirty(tiny_recipe: Path, tmp_path: Path) -> Path:
    """Return the tiny recipe with faults in lines 3, 4 and 8, which `CLEAN` removes."""
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


def test_cleaned_pairs_are_left_out_and_counted(dirty: Path, tmp_path: Path) -> None:
    config, corpus = prepare_run(dirty, tmp_path / "run", *CLEAN)
    lines = (dirty.parent / "train.en").read_text().splitlines()
    assert [source for source, _ in texts(corpus)] == [*lines[:2], *lines[4:7], *lines[8:]]
    assert not any("Ã" in text for text in corpus.tokenizer.source.texts().values())
    removed = {"duplicates": 2, "mojibake": 1}
    assert corpus.store.left_out.removed == removed
    assert corpus.store.left_out.total == len(lines)
    assert json.loads((tmp_path / "run/corpora.json").read_text())["cleaning"] == removed
    first, second, *_ = describe_data(
        corpus,
        corpus.plan_epoch(),
        max_tokens_per_batch=config.training.max_tokens_per_batch,
    ).splitlines()
    assert re.fullmatch(r"cleaning removed 3 of \d+ pairs: (2|1) by `\w+`, (2|1) by `\w+`", first)
    assert second.startswith(f"{len(lines) - 3} pairs to train on (0 too long and ")


@pytest.fixture
def swapped(tiny_recipe: Path, tmp_path: Path) -> Path:
    """Return a recipe from English to Chinese whose training files are exchanged."""
    recipe = tiny_recipe.read_text(encoding="utf-8").replace("language: de", "language: zh")
    for split, numbers in {"train": range(120), "valid": range(200, 204), "test": [300]}.items():
        digits = [[int(digit) for digit in str(number)] for number in numbers]
        english = [" ".join(DIGITS[digit] for digit in number) for number in digits]
        chinese = ["".join("零一二三四五六七八九"[digit] for digit in number) for number in digits]
        sides = (chinese, english) if split == "train" else (english, chinese)
        for language, lines in zip(("en", "de"), sides, strict=True):
            path = tmp_path / f"{split}.{language}"
            path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
            recipe = recipe.replace(f"{tiny_recipe.parent}/{split}.{language}", str(path))
    path = tmp_path / "recipe.yaml"
    path.write_text(recipe, encoding="utf-8")
    return path


def warnings(log: pytest.LogCaptureFixture) -> list[str]:
    """Return the logged warnings, and clear them."""
    found = [each.getMessage() for each in log.records if each.levelno == logging.WARNING]
    log.clear()
    return found


def test_swapped_sides_are_warned_about_in_each_new_run(
    swapped: Path, tmp_path: Path, program: Program, caplog: pytest.LogCaptureFixture
) -> None:
    run = tmp_path / "run"
    settings = ("--set", "training.max_updates=1")
    assert program("train", swapped, "--run", run, *settings)[0] == 0
    (warning,) = [found for found in warnings(caplog) if "data.train" in found]
    command = f"mt data check {run}/config.yaml"
    assert warning == (
        "warning: data.train: the sides look swapped: `zh` on the source side, `en` on the target "
        f"side; run `{command}`"
    )
    assert program(*command.split()[1:])[0] == 0
    warnings(caplog)

    prepare_run(swapped, tmp_path / "second")
    assert warnings(caplog) == [warning.replace(str(run), str(tmp_path / "second"))]
    prepare_run(swapped, tmp_path / "off", "data.check=false")
    assert warnings(caplog) == []
    prepare_run(swapped, run)  # resumed
    assert warnings(caplog) == []


@pytest.mark.parametrize(("tag", "count"), [("null", 2), ("<2de>", 1)])
def test_split_without_a_tag_is_warned_about_if_each_training_corpus_has_one(
    tag: str, count: int, tiny_recipe: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tags = ["tokenizer.tags=[<2de>]", "data.train.tag=<2de>", f"data.valid.tag={tag}"]
    prepare_run(tiny_recipe, tmp_path / "run", *tags)
    found = [message for message in warnings(caplog) if "tag" in message]
    assert len(found) == count
    assert found[-1] == (
        "warning: data.tests.test: has no tag, but every training corpus has one; set "
        "`data.tests.test.tag`"
    )


def updates(count: int, error: Exception | None = None) -> Iterator[PlannedUpdate]:
    for number in range(count):
        yield PlannedUpdate(0, number, [], TokenCounts(1, 1))
    if error:
        raise error


def test_updates_come_in_order_and_the_thread_ends() -> None:
    threads = threading.active_count()
    with Prefetcher(updates(10)) as prefetcher:
        assert [each.index for each in prefetcher] == [*range(10)]
    with Prefetcher(updates(1000)) as prefetcher:
        assert next(iter(prefetcher)).index == 0  # the loop leaves early
    assert prefetcher.waited_seconds > 0
    assert threading.active_count() == threads


def test_error_of_the_thread_is_raised_after_the_updates_before_it() -> None:
    with Prefetcher(updates(3, ValueError("damaged"))) as prefetcher:
        iterator = iter(prefetcher)
        assert [next(iterator).index for _ in range(3)] == [0, 1, 2]
        with pytest.raises(ValueError):
            next(iterator)
