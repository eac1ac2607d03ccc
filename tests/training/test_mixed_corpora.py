"""A run over several corpora."""

import json
import shutil
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from mt.compare.systems import Texts, read_systems
from mt.config import Config
from mt.config.loading import load_config
from mt.data.clean_files import write_cleaned
from mt.data.corpora import cache_folder
from mt.data.filters import open_training_corpora
from mt.data.tokenizer import Tokenizer
from mt.decoding.translator import Translator
from mt.errors import ConfigError, DataError, UserError
from mt.evaluation.evaluate import EvaluationJob, GivenTexts, evaluate_run
from mt.evaluation.passport_check import check_passport
from mt.export.export import export_ctranslate2, export_marian
from mt.training.data import Corpus, describe, first_plan, join, prepare
from mt.training.distributed import World
from mt.training.loader import PlannedUpdate, planned_updates
from mt.training.run_folder import RunFolder
from mt.training.state import TrainState
from mt.training.trainer import train

FIRST = 20
"""Pairs of the tiny corpus that stand in the first of two corpora."""


@pytest.fixture
def halves(tiny_recipe: Path, tmp_path: Path) -> Path:
    """The tiny recipe with its training corpus cut in two, `few` and `many`."""
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


def prepared(recipe: Path, run: Path, *settings: str) -> tuple[Config, Corpus]:
    run.mkdir(exist_ok=True)
    config = load_config(recipe, overrides=settings)
    return config, prepare(config, RunFolder(run))


def texts(corpus: Corpus, epoch: int = 0) -> list[str]:
    store = corpus.epoch_store(epoch)
    decode = corpus.tokenizer.decode_source
    return [decode(each.source.tolist()) for each in store.examples(range(len(store)))]


def places(update: PlannedUpdate) -> list[int]:
    return [place for batch in update.batches for place in batch.index.tolist()]


def test_two_corpora_of_weight_one_are_trained_on_as_the_one_that_they_were_cut_from(
    tiny_recipe: Path, halves: Path, tmp_path: Path
) -> None:
    settings = ("training.max_updates=6", "training.validate_every=6")
    whole = load_config(tiny_recipe, overrides=settings)
    train(whole, tmp_path / "whole")
    cut = load_config(halves, overrides=settings)
    train(cut, tmp_path / "cut")
    weights = [(tmp_path / run / "model.safetensors").read_bytes() for run in ("whole", "cut")]
    assert weights[0] == weights[1]


def test_an_epoch_takes_what_the_weights_say_and_every_line_of_a_line_is_told(
    halves: Path, tmp_path: Path
) -> None:
    config, corpus = prepared(halves, tmp_path / "run", *WEIGHTS)
    many = len(corpus.store) - FIRST
    seen = Counter[int]()
    for epoch in (0, 1):
        plan = first_plan(corpus, config, epoch=epoch)
        counted = Counter(np.concatenate(plan).tolist())
        assert [counted[pair] for pair in range(FIRST)] == [3] * FIRST
        assert max(counted[pair] for pair in range(FIRST, len(corpus.store))) == 1
        seen += counted
    assert [seen[pair] for pair in range(FIRST, len(corpus.store))] == [1] * many
    told = describe(corpus, config, first_plan(corpus, config)).splitlines()
    assert told[1] == (
        f"epoch 1 takes {3 * FIRST + many // 2} pairs: {3 * FIRST} from the {FIRST} of `few` "
        f"(weight 3), {many // 2} from the {many} of `many` (weight 0.5)"
    )
    assert told[2].startswith("about ")


def test_a_single_corpus_may_have_a_weight(tiny_recipe: Path, tmp_path: Path) -> None:
    config, corpus = prepared(tiny_recipe, tmp_path / "run", "data.train.weight=2")
    plan = first_plan(corpus, config)
    counted = Counter(np.concatenate(plan).tolist())
    assert counted == dict.fromkeys(range(len(corpus.store)), 2)


def test_resuming_at_any_update_gives_the_rest_of_the_epoch(halves: Path, tmp_path: Path) -> None:
    config, corpus = prepared(halves, tmp_path / "run", *WEIGHTS, "training.max_epochs=2")

    def updates(state: TrainState) -> list[tuple[int, int, list[int]]]:
        found = planned_updates(config, corpus, state, torch.device("cpu"))
        return [(each.epoch, each.number, places(each)) for each in found]

    every = updates(TrainState())
    assert {epoch for epoch, _, _ in every} == {0, 1}
    for number, (epoch, in_epoch, _) in enumerate(every):
        state = replace(TrainState(), epoch=epoch, update_in_epoch=in_epoch)
        assert updates(state) == every[number:]


def test_two_ranks_share_the_updates_of_one(halves: Path, tmp_path: Path) -> None:
    config, alone = prepared(halves, tmp_path / "run", *WEIGHTS, "training.max_epochs=2")
    other = join(config, RunFolder(tmp_path / "run"))
    worlds = [(World(), alone), (World(rank=0, size=2), alone), (World(rank=1, size=2), other)]
    found = [
        [
            sorted(places(update))
            for update in planned_updates(config, corpus, TrainState(), torch.device("cpu"), world)
        ]
        for world, corpus in worlds
    ]
    one, first, second = found
    assert one == [sorted(left + right) for left, right in zip(first, second, strict=True)]


def test_each_corpus_has_its_store_which_other_weights_find_again(
    halves: Path, tmp_path: Path
) -> None:
    prepared(halves, tmp_path / "run", *WEIGHTS)
    stores = set((cache_folder() / "pairs").iterdir())
    assert len(stores) == 2
    _, again = prepared(halves, tmp_path / "run", "data.train.temperature=5")
    assert set((cache_folder() / "pairs").iterdir()) == stores
    assert again.mixture.sizes == (20, 40)
    assert again.mixture.counts(0) == [28, 32]  # 20^(1/5) : 40^(1/5) is 1.82 : 2.09


def test_what_the_cleaning_takes_is_told_of_each_corpus(halves: Path, tmp_path: Path) -> None:
    for side in ("en", "de"):
        path = tmp_path / f"many.{side}"
        lines = path.read_text().splitlines(keepends=True)
        path.write_text("".join([lines[0], *lines]))
    config, corpus = prepared(halves, tmp_path / "run", "data.cleaning.duplicates=pair")
    recorded = json.loads((tmp_path / "run" / "corpora.json").read_text())
    assert recorded["cleaning.corpora.many"] == {"duplicates": 1}
    assert "cleaning.corpora.few" not in recorded
    assert len(recorded["train.corpora.few"]["source"]) == 64
    total = len(corpus.parts["train.corpora.many"]) + 1
    assert describe(corpus, config, first_plan(corpus, config)).startswith(
        f"cleaning took out 1 of {total} pairs of `many`: 1 by `duplicates`\n"
    )
    assert corpus.store.left_out.total == total + FIRST


def test_tokens_are_drawn_for_every_corpus(halves: Path, tmp_path: Path) -> None:
    config, corpus = prepared(halves, tmp_path / "run", *WEIGHTS, "tokenizer.sampling=0.3")
    plain = corpus.store
    for epoch in (0, 1):
        drawn = corpus.epoch_store(epoch)
        assert texts(corpus, epoch) == [
            corpus.tokenizer.decode_source(each.source.tolist())
            for each in plain.examples(range(len(plain)))
        ]
        for part in (slice(FIRST), slice(FIRST, None)):
            assert drawn.lengths[part].sum() > plain.lengths[part].sum()
    assert sum(map(len, first_plan(corpus, config, epoch=1))) == sum(corpus.mixture.counts(1))
    corpus.close()


def test_weights_that_take_nothing_are_refused(halves: Path, tmp_path: Path) -> None:
    weights = [f"data.train.corpora.{name}.weight=0.001" for name in ("few", "many")]
    with pytest.raises(ConfigError, match="`data.train`: of the 60 pairs, the weights take none"):
        prepared(halves, tmp_path / "run", *weights)


def test_only_what_is_trained_on_has_a_weight(halves: Path) -> None:
    with pytest.raises(ConfigError, match=r"`data\.tests\.test\.weight`: only corpora that are"):
        load_config(halves, overrides=["data.tests.test.weight=2"])
    with pytest.raises(ConfigError, match=r"did you mean `data\.train\.corpora\.few\.weight`"):
        load_config(halves, overrides=["data.train.corpora.few.wieght=2"])


TAGS = (
    "tokenizer.tags=[<bt>, <2de>]",
    "data.train.corpora.few.tag=<bt>",
    "data.train.corpora.many.tag=<2de>",
    "data.valid.tag=<2de>",
)


def test_every_source_line_begins_with_the_tag_of_its_corpus(halves: Path, tmp_path: Path) -> None:
    _, corpus = prepared(halves, tmp_path / "run", *TAGS, "tokenizer.sampling=0.3")
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


def test_translation_evaluation_and_export_set_the_tag_as_training_does(
    halves: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    settings = (*TAGS, "decoding.tag=<bt>")
    train(load_config(halves, overrides=settings), run)
    validated = json.loads((run / "model.json").read_text())["score"]
    lines = ["one two", "<bt> three"]
    for override, tag in (
        ((), "<bt>"),
        (("decoding.tag=<2de>",), "<2de>"),
        (("decoding.tag=null",), None),
    ):
        translator = Translator.load(run, overrides=override)
        plain = Tokenizer.load(run / "tokenizer")
        front = [plain.source.tags[tag]] if tag else []
        sources = [made.alternatives[0].parts[0].source for made in translator.stream(lines)]
        assert sources == [[*front, *ids] for ids in plain.encode_source(lines)]
    as_validation = ["decoding.on_repetition=keep", "decoding.search=greedy"]
    scored = evaluate_run(run, split="valid", overrides=as_validation)
    assert scored.bleu.value > 1
    assert f"BLEU {scored.bleu.value:.2f} " in validated
    evaluate_run(run, split="test")
    recorded = [
        json.loads((run / f"evaluations/{name}.json").read_text()) for name in ("valid", "test")
    ]
    assert [each["decoding"]["tag"] for each in recorded] == ["<2de>", "<bt>"]
    evaluate_run(run, split="test", overrides=["decoding.tag=null"])
    assert json.loads((run / "evaluations/test.json").read_text())["decoding"]["tag"] is None
    with pytest.raises(UserError, match="Marian cannot express `<bt>`, `<2de>`"):
        export_marian(run, tmp_path / "marian")
    pytest.importorskip("ctranslate2")
    result = export_ctranslate2(run, tmp_path / "exported", sample=tmp_path / "few.en")
    assert result.failure is None
    exported = Translator.load(tmp_path / "exported")
    assert exported.tokenizer.tag == "<bt>"


def test_a_tag_that_is_not_reserved_is_refused(halves: Path, tmp_path: Path) -> None:
    told = r"`data\.train\.corpora\.few\.tag` is `<bt>`, which `tokenizer\.tags` does not reserve"
    with pytest.raises(ConfigError, match=told):
        load_config(halves, overrides=["data.train.corpora.few.tag=<bt>"])
    with pytest.raises(ConfigError, match="`<unk>` is a special token already"):
        load_config(halves, overrides=["tokenizer.tags=[<unk>]"])
    prepared(halves, tmp_path / "old")
    copied = f"tokenizer.from={tmp_path / 'old'}"
    with pytest.raises(ConfigError, match="the tag `<bt>` has no token"):
        prepared(halves, tmp_path / "new", copied, "data.train.corpora.few.tag=<bt>")
    _, corpus = prepared(halves, tmp_path / "newer", copied, *TAGS)
    assert {*corpus.tokenizer.source.tags} == {"<bt>", "<2de>"}


def test_a_direction_is_scored_in_its_own_languages_with_an_off_target_rate(
    halves: Path, tmp_path: Path
) -> None:
    pytest.importorskip("py3langid")
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
    recorded = json.loads((run / "evaluations/back.json").read_text())["off_target"]
    assert (recorded["language"], recorded["references_found"]) == ("zh", 2)
    assert "off target: no translation is long enough to judge (py3langid" in scored.as_text()
    assert evaluate_run(run, split="test").target_language == "de"
    texts = GivenTexts(tmp_path / "to_en.de", (tmp_path / "to_en.en",))
    with pytest.raises(UserError, match="each line that it has learnt from begins with a tag"):
        evaluate_run(run, job=EvaluationJob(texts=texts))
    with pytest.raises(UserError, match="translate them with `mt translate`, tag and all, and"):
        read_systems([run, run], Texts(texts.references, texts.sources))
    job = EvaluationJob(texts=texts)
    given = evaluate_run(run, overrides=["decoding.tag=<bt>"], job=job)
    assert given.target_language == "en"
    assert given.off_target is not None
    assert (given.off_target.references_judged, given.off_target.references_found) == (2, 0)
    assert check_passport(run / "evaluations/to_en.json").passed


def test_a_run_of_one_direction_tells_no_off_target_rate(
    finished_run: Path, tmp_path: Path
) -> None:
    shutil.copytree(finished_run, tmp_path / "run")
    scored = evaluate_run(tmp_path / "run", split="test")
    assert scored.off_target is None
    assert "off_target" not in json.loads((tmp_path / "run/evaluations/test.json").read_text())


def test_a_corpus_is_cleaned_in_its_own_languages(halves: Path, tmp_path: Path) -> None:
    script = "data.cleaning.wrong_script=true"
    _, corpus = prepared(halves, tmp_path / "a", script)
    assert corpus.store.left_out.cleaned == {}
    greek = "data.train.corpora.few.target_language=el"
    with pytest.raises(DataError, match="the cleaning takes out 20"):
        prepared(halves, tmp_path / "b", script, greek)


def test_the_corpora_of_a_mixture_are_written_each_by_itself(halves: Path, tmp_path: Path) -> None:
    overrides = ["data.cleaning.duplicates=pair", "data.train.corpora.few.target_language=el"]
    config = load_config(halves, overrides=overrides)
    few, many = open_training_corpora(config.data)
    twice = tmp_path / "twice.en", tmp_path / "twice.el"
    pairs = [*few.source.pairs(), *few.source.pairs()]
    for path, side in zip(twice, ("source", "target"), strict=True):
        path.write_text("".join(f"{getattr(pair, side)}\n" for pair in pairs), encoding="utf-8")
    key = "data.train.corpora.few"
    settings = [*overrides, f"{key}.source={twice[0]}", f"{key}.target={twice[1]}"]
    data = load_config(halves, overrides=settings).data

    folder = tmp_path / "cleaned"
    first, second = write_cleaned(data, folder, removed_file="removed.tsv")
    assert (first.key, second.key) == ("train.corpora.few", "train.corpora.many")
    assert [path.name for path in first.files] == ["few.en", "few.el", "few.removed.tsv"]
    assert [path.name for path in second.files] == ["many.en", "many.de", "many.removed.tsv"]
    assert (first.total, first.taken) == (len(pairs), {"duplicates": len(pairs) // 2})
    assert second.taken == {"duplicates": 0}
    lines = (folder / "few.el").read_text(encoding="utf-8").splitlines()
    assert lines == [pair.target for pair in few.source.pairs()]
    assert len((folder / "few.removed.tsv").read_text("utf-8").splitlines()) == len(pairs) // 2
    lines = (folder / "many.de").read_text(encoding="utf-8").splitlines()
    assert lines == [pair.target for pair in many.source.pairs()]
