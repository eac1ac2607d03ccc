"""Training on several corpora."""

import json
from collections import Counter
from dataclasses import replace
from itertools import chain
from pathlib import Path

import numpy as np
import pytest

from mt.config.loading import load_config
from mt.data.corpus_files import cache_folder
from mt.data.splits import open_training_corpora, write_cleaned
from mt.data.tokenizer import Tokenizer
from mt.decoding.translator import Translator
from mt.errors import ConfigError, UserError
from mt.evaluation.evaluate import EvaluationJob, GivenTexts, evaluate_run
from mt.export.export import ExportOptions, export_huggingface
from mt.training.data import TrainingData
from mt.training.loader import PlannedUpdate, planned_updates
from mt.training.progress import describe_data
from mt.training.state import TrainState
from mt.training.trainer import train
from tests.factories import CPU, export_run, prepare_run

FIRST = 20
"""Pairs in the first of two corpora."""


@pytest.fixture
def halves(tiny_recipe: Path, tmp_path: Path) -> Path:
    """Return the tiny recipe with its training corpus cut in two, `few` and `many`."""
    for side in ("en", "de"):
        lines = (tiny_recipe.parent / f"train.{side}").read_text().splitlines(keepends=True)
        (tmp_path / f"few.{side}").write_text("".join(lines[:FIRST]))
        (tmp_path / f"many.{side}").write_text("".join(lines[FIRST:]))
    corpora = "".join(
        f"{name}: {{source: {tmp_path}/{name}.en, target: {tmp_path}/{name}.de}}, "
        for name in ("few", "many")
    )
    lines = [
        f"  train: {{corpora: {{{corpora}}}}}\n" if line.startswith("  train:") else line
        for line in tiny_recipe.read_text().splitlines(keepends=True)
    ]
    recipe = tmp_path / "halves.yaml"
    recipe.write_text("".join(lines))
    return recipe


WEIGHTS = ("data.train.corpora.few.weight=3", "data.train.corpora.many.weight=0.5")


def texts(corpus: TrainingData, epoch: int = 0) -> list[str]:
    store = corpus.epoch_store(epoch)
    decode = corpus.tokenizer.decode_source
    return [decode(each.source.tolist()) for each in store.examples(range(len(store)))]


def places(update: PlannedUpdate) -> list[int]:
    return [place for batch in update.batches for place in batch.index.tolist()]


def test_two_corpora_of_weight_one_equal_the_one_that_they_were_cut_from(
    tiny_recipe: Path, halves: Path, tmp_path: Path
) -> None:
    _, whole = prepare_run(tiny_recipe, tmp_path / "whole")
    _, cut = prepare_run(halves, tmp_path / "cut")
    assert whole.tokenizer.fingerprint == cut.tokenizer.fingerprint
    assert texts(whole) == texts(cut)
    plans = [corpus.plan_epoch(1) for corpus in (whole, cut)]
    assert [np.concatenate(update).tolist() for update in plans[0]] == [
        np.concatenate(update).tolist() for update in plans[1]
    ]


def test_epochs_take_pairs_by_weight_and_the_description_shows_it(
    halves: Path, tmp_path: Path
) -> None:
    config, corpus = prepare_run(halves, tmp_path / "run", *WEIGHTS)
    many = len(corpus.store) - FIRST
    seen = Counter[int]()
    for epoch in (0, 1):
        plan = corpus.plan_epoch(epoch)
        counted = Counter(np.concatenate([*chain(*plan)]).tolist())
        assert [counted[pair] for pair in range(FIRST)] == [3] * FIRST
        assert max(counted[pair] for pair in range(FIRST, len(corpus.store))) == 1
        seen += counted
    assert [seen[pair] for pair in range(FIRST, len(corpus.store))] == [1] * many
    lines = describe_data(
        corpus,
        corpus.plan_epoch(),
        max_tokens_per_batch=config.training.max_tokens_per_batch,
    ).splitlines()
    assert lines[1] == (
        f"epoch 1 takes {3 * FIRST + many // 2} pairs: {3 * FIRST} from the {FIRST} of `few` "
        f"(weight 3), {many // 2} from the {many} of `many` (weight 0.5)"
    )
    assert lines[2].startswith("about ")


def test_resumed_updates_are_the_rest_of_the_run(halves: Path, tmp_path: Path) -> None:
    config, corpus = prepare_run(halves, tmp_path / "run", *WEIGHTS, "training.max_epochs=2")

    def updates(state: TrainState) -> list[tuple[int, int, list[int]]]:
        found = planned_updates(config.training, corpus, state, CPU)
        return [(each.epoch, each.index, places(each)) for each in found]

    every = updates(TrainState())
    assert {epoch for epoch, _, _ in every} == {0, 1}
    for number, (epoch, in_epoch, _) in enumerate(every):
        state = replace(TrainState(), epoch=epoch, update_in_epoch=in_epoch)
        assert updates(state) == every[number:]


def test_each_corpus_has_a_store_that_does_not_depend_on_the_weights(
    halves: Path, tmp_path: Path
) -> None:
    prepare_run(halves, tmp_path / "run", *WEIGHTS)
    stores = set((cache_folder() / "pairs").iterdir())
    assert len(stores) == 2
    _, again = prepare_run(halves, tmp_path / "run", "data.train.temperature=5")
    assert set((cache_folder() / "pairs").iterdir()) == stores
    assert again.mixture.sizes == (20, 40)
    assert again.mixture.counts(0) == [28, 32]  # 20^(1/5) : 40^(1/5) is 1.82 : 2.09


def test_weights_that_take_no_pair_are_an_error(halves: Path, tmp_path: Path) -> None:
    weights = [f"data.train.corpora.{name}.weight=0.001" for name in ("few", "many")]
    with pytest.raises(ConfigError, match="`data.train`: the weights take none of the 60 pairs"):
        prepare_run(halves, tmp_path / "run", *weights)


TAGS = (
    "tokenizer.tags=[<bt>, <2de>]",
    "data.train.corpora.few.tag=<bt>",
    "data.train.corpora.many.tag=<2de>",
    "data.valid.tag=<2de>",
)


def test_source_lines_begin_with_the_tag_of_their_corpus(halves: Path, tmp_path: Path) -> None:
    _, corpus = prepare_run(halves, tmp_path / "run", *TAGS, "tokenizer.subword_dropout=[0.3, 0.3]")
    numbers = corpus.tokenizer.source.tags
    wanted = [numbers["<bt>"]] * FIRST + [numbers["<2de>"]] * (len(corpus.store) - FIRST)
    for store in (corpus.store, corpus.epoch_store(0), corpus.epoch_store(1)):
        examples = store.examples(range(len(store)))
        assert [each.source[0] for each in examples] == wanted
        assert not {*numbers.values()} & {
            token for each in examples for token in (*each.source[1:], *each.target)
        }
    assert {each.source[0] for each in corpus.valid_examples} == {numbers["<2de>"]}
    corpus.close()


def test_translation_evaluation_and_export_use_the_tag(halves: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    settings = (*TAGS, "decoding.tag=<bt>", "seed=1")
    train(load_config(halves, overrides=settings), run)
    validated = json.loads((run / "model.json").read_text())["score"]
    lines = ["one two", "<bt> three"]
    for override, tag in (
        ((), "<bt>"),
        (("decoding.tag=<2de>",), "<2de>"),
        (("decoding.tag=null",), None),
    ):
        translator = Translator.load(run, overrides=(*override, "decoding.repair=off"))
        plain = Tokenizer.load(run / "tokenizer")
        front = [plain.source.tags[tag]] if tag else []
        sources = [made.alternatives[0].parts[0].source for made in translator.stream(lines)]
        assert sources == [[*front, *ids] for ids in plain.encode_source(lines)]
    as_validation = ["decoding.repair=off", "decoding.search=greedy"]
    scored = evaluate_run(run, split="valid", overrides=as_validation)
    assert scored.bleu.value > 1
    assert f"BLEU {scored.bleu.value:.2f} " in validated
    evaluate_run(run, split="test")
    recorded = [
        json.loads((run / f"evaluations/{name}.json").read_text())
        for name in ("valid.search=greedy,repair=off", "test")
    ]
    assert [each["decoding"]["tag"] for each in recorded] == ["<2de>", "<bt>"]
    evaluate_run(run, split="test", overrides=["decoding.tag=null"])
    untagged = json.loads((run / "evaluations/test.tag=null.json").read_text())
    assert untagged["decoding"]["tag"] is None
    with pytest.raises(UserError):
        export_run(run, tmp_path / "marian", ExportOptions(), export_huggingface)
    result = export_run(run, tmp_path / "exported", ExportOptions(sample=tmp_path / "few.en"))
    assert result.failure is None
    exported = Translator.load(tmp_path / "exported")
    assert exported.tokenizer.tag == "<bt>"


def test_copied_tokenizer_without_a_tag_of_the_corpora_is_an_error(
    halves: Path, tmp_path: Path
) -> None:
    prepare_run(halves, tmp_path / "old")
    copied = f"tokenizer.from={tmp_path / 'old'}"
    with pytest.raises(ConfigError):
        prepare_run(halves, tmp_path / "new", copied, "data.train.corpora.few.tag=<bt>")
    _, corpus = prepare_run(halves, tmp_path / "newer", copied, *TAGS)
    assert {*corpus.tokenizer.source.tags} == {"<bt>", "<2de>"}


def test_split_is_scored_in_its_own_languages(halves: Path, tmp_path: Path) -> None:
    run, english = tmp_path / "run", "the weather was very fine and we went into the woods"
    (tmp_path / "to_en.de").write_text("eins zwei\ndrei vier\n")
    (tmp_path / "to_en.en").write_text(f"{english}\n{english}\n")
    back = "data.tests.back"
    settings = (
        *TAGS,
        "training.max_updates=2",
        "training.validate_every=2",
        "data.train.corpora.few.target_language=en",
        f"{back}.source={tmp_path}/to_en.de",
        f"{back}.target={tmp_path}/to_en.en",
        f"{back}.tag=<bt>",
        f"{back}.source_language=de",
        f"{back}.target_language=zh",
    )
    train(load_config(halves, overrides=settings), run)
    scored = evaluate_run(run, split="back")
    assert scored.target_language == "zh"
    assert "tok:zh" in scored.bleu.signature
    assert evaluate_run(run, split="test").target_language == "de"
    texts = GivenTexts(tmp_path / "to_en.de", (tmp_path / "to_en.en",))
    with pytest.raises(UserError):
        evaluate_run(run, job=EvaluationJob(texts=texts))
    job = EvaluationJob(texts=texts)
    given = evaluate_run(run, overrides=["decoding.tag=<bt>"], job=job)
    assert given.target_language == "en"


def test_cleaned_corpora_of_a_mixture_are_written_separately(halves: Path, tmp_path: Path) -> None:
    overrides = ["data.cleaning.duplicates=pair", "data.train.corpora.few.target_language=el"]
    config = load_config(halves, overrides=overrides)
    few, many = open_training_corpora(config.data)
    assert (few.cleaning.direction, many.cleaning.direction) == (("en", "el"), ("en", "de"))
    twice = tmp_path / "twice.en", tmp_path / "twice.el"
    pairs = [*few.source.pairs(), *few.source.pairs()]
    for path, side in zip(twice, ("source", "target"), strict=True):
        path.write_text("".join(f"{getattr(pair, side)}\n" for pair in pairs), encoding="utf-8")
    key = "data.train.corpora.few"
    settings = [*overrides, f"{key}.source={twice[0]}", f"{key}.target={twice[1]}"]
    data = load_config(halves, overrides=settings).data

    folder = tmp_path / "cleaned"
    first, second = write_cleaned(data, folder)
    assert (first.key, second.key) == ("train.corpora.few", "train.corpora.many")
    assert [path.name for path in first.files] == ["few.en", "few.el", "few.removed.tsv"]
    assert [path.name for path in second.files] == ["many.en", "many.de", "many.removed.tsv"]
    assert (first.total, first.removed) == (len(pairs), {"duplicates": len(pairs) // 2})
    assert second.removed == {"duplicates": 0}
    lines = (folder / "few.el").read_text(encoding="utf-8").splitlines()
    assert lines == [pair.target for pair in few.source.pairs()]
    assert len((folder / "few.removed.tsv").read_text("utf-8").splitlines()) == len(pairs) // 2
    lines = (folder / "many.de").read_text(encoding="utf-8").splitlines()
    assert lines == [pair.target for pair in many.source.pairs()]
