"""Target terms shown in training sources: what is shown, and that it follows from the seed."""

from collections.abc import Iterator
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mt.config.data import TERM_TAGS
from mt.config.loading import load_config
from mt.data.batches import collate
from mt.data.glossary import Glossary, as_terms
from mt.data.store import Chunk, Example, LeftOut, PairStore, Rows, write_store
from mt.data.tokenizer import Tokenizer
from mt.decoding.alignment import WordAligner
from mt.decoding.preparation import SearchInput
from mt.decoding.terms import Terms
from mt.decoding.translator import Translator
from mt.training.data import TrainingData, prepare
from mt.training.run_folder import RunFolder
from mt.training.shown_terms import TermDrawing
from mt.training.translation_table import learn_table
from tests.factories import foreign_vocabulary, train_with
from tests.training.killed_training import outcome
from tests.training.test_resume import train_until

NOUNS = {f"noun{a}{b}": f"wort{b}{a}" for a in "abcdefgh" for b in "klmnopqr"}
PLURALS = {f"{noun}s": f"{NOUNS[noun]}n" for noun in ("nounak", "nounbl", "nouncm", "noundn")}
VERBS = {f"verb{a}{b}": f"tun{b}{a}" for a in "stuvwxy" for b in "abcdefgh"}
PAIRS = [
    (f"the {noun} can {verb} .", f"der {NOUNS[noun]} mag {VERBS[verb]} .")
    for row, noun in enumerate(NOUNS)
    for column, verb in enumerate(VERBS)
    if (row + column) % 5 == 0
]
PAIRS += [(f"the {noun} .", f"der {word} .") for noun, word in PLURALS.items()] * 4
TRANSLATIONS = NOUNS | VERBS | PLURALS
WORDS = foreign_vocabulary(
    [line for pair in PAIRS for line in pair], 240, control_symbols=[*TERM_TAGS]
)
FIRST, LAST = (WORDS.tags[tag] for tag in TERM_TAGS)
Drawn = list[tuple[str, list[tuple[str, str]], str, str]]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> PairStore:
    path = tmp_path_factory.mktemp("cache") / "pairs.arrow"
    source, target = (Rows.of(WORDS.encode([pair[side] for pair in PAIRS])) for side in (0, 1))
    write_store(path, [Chunk(source, target, LeftOut(0, 0, len(PAIRS)))])
    return PairStore(path)


def read(chunk: Chunk) -> Iterator[tuple[str, list[tuple[str, str]], str]]:
    """Yield source without terms, source word and shown term of each, and target of each row."""
    for row in range(len(chunk.source)):
        shown, plain = [], list[int]()
        ids = chunk.source[row].tolist()
        while ids:
            token = ids.pop(0)
            if token != FIRST:
                plain.append(token)
                continue
            term, ids = ids[: ids.index(LAST)], ids[ids.index(LAST) + 1 :]
            shown.append((WORDS.decode(plain).split()[-1], WORDS.decode(term)))
        yield WORDS.decode(plain), shown, WORDS.decode(chunk.target[row].tolist())


def draw(store: PairStore, share: float, seed: int = 1, most: int = 99, **shares: float) -> Chunk:
    both, table = Tokenizer(WORDS, WORDS, ""), cache(partial(learn_table, store))
    show = TermDrawing(share, ("pairs",), most, both, table, **shares)
    chunk = store.chunks[0]
    return show(chunk, chunk, np.random.SeedSequence(seed))


def as_lists(chunk: Chunk) -> list[list[int]]:
    rows = range(len(chunk.source))
    return [side[row].tolist() for row in rows for side in (chunk.source, chunk.target)]


def test_a_share_of_the_sources_shows_words_of_their_targets(store: PairStore) -> None:
    rows = list(read(draw(store, 0.5, other_form=0.0)))
    with_terms = [row for row in rows if row[1]]
    assert 0.35 < len(with_terms) / len(rows) < 0.55
    assert {len(shown) for _, shown, _ in with_terms} == {1, 2}
    for (source, shown, target), pair in zip(rows, PAIRS, strict=True):
        assert all(f" {term} " in f" {target} " for _, term in shown)
        if not shown:
            assert (source, target) == pair
    right = {(word, term) for _, shown, _ in rows for word, term in shown}
    own = [pair for pair in right if TRANSLATIONS.get(pair[0]) == pair[1]]
    others = [pair for pair in right if TRANSLATIONS.get(pair[0]) != pair[1]]
    assert len(own) > 20 and len(others) > 20
    assert any(term not in TRANSLATIONS.values() for _, term in others), "some are made up"
    assert not any(word in {"the", "can", "."} for word, _ in right), "frequent words are no terms"


def test_other_forms_and_other_words_are_shown_in_their_shares(store: PairStore) -> None:
    for word, term, target in list_terms(draw(store, 1.0, unseen=0.0, other_form=0.5)):
        assert TRANSLATIONS[word].startswith(term)
        assert f" {TRANSLATIONS[word]} " in target
    forms = [*list_terms(draw(store, 1.0, unseen=0.0, other_form=1.0))]
    assert ("nouncms", "wortmc", "der wortmcn .") in forms
    others = [*list_terms(draw(store, 1.0, unseen=1.0, invented=0.0))]
    assert all(term in TRANSLATIONS.values() and term in target for _, term, target in others)
    assert sum(term == TRANSLATIONS[word] for word, term, _ in others) < 0.1 * len(others)


def list_terms(chunk: Chunk) -> Iterator[tuple[str, str, str]]:
    for _, shown, target in read(chunk):
        yield from ((word, term, target) for word, term in shown)


def test_the_draw_follows_from_the_seed(store: PairStore) -> None:
    first = as_lists(draw(store, 0.3))
    assert as_lists(draw(store, 0.3)) == first
    assert as_lists(draw(store, 0.3, seed=2)) != first
    assert as_lists(draw(store, 0.0)) == as_lists(store.chunks[0])
    longest = int(store.lengths.max())
    assert as_lists(draw(store, 0.3, most=longest)) == as_lists(store.chunks[0])


def test_shown_tokens_are_aligned_with_their_copies(store: PairStore) -> None:
    table = learn_table(store)
    [source] = WORDS.encode(["the nounak can verbs ."])
    [target] = WORDS.encode(["der wortxyz mag tuns ."])
    [shown] = WORDS.encode(["wortxyz"])
    cut = len(WORDS.encode(["the nounak"])[0]) - 1
    source = [*source[:cut], FIRST, *shown[:-1], LAST, *source[cut:]]
    batch = collate([Example(0, np.array(source, np.int32), np.array(target, np.int32))])
    [aligned] = (
        replace(table, term_ids=(FIRST, LAST)).align(batch.source, batch.target_out).tolist()
    )
    start = len(WORDS.encode(["der"])[0]) - 1
    places = range(cut + 1, cut + len(shown))
    assert aligned[start : start + len(places)] == [*places]
    plain = table.align(batch.source, batch.target_out)
    assert plain.tolist() != [aligned]


def prepared(recipe: Path, run: Path, *settings: str) -> TrainingData:
    run.mkdir()
    return prepare(load_config(recipe, overrides=settings), RunFolder(run))


TERMS: Any = ("data.terms=0.9", "tokenizer.vocabulary=joint", "model.tie_embeddings=all")


def test_training_shows_terms_and_validation_does_not(tiny_recipe: Path, tmp_path: Path) -> None:
    corpus = prepared(tiny_recipe, tmp_path / "run", *TERMS)
    assert set(TERM_TAGS) <= set(corpus.tokenizer.source.tags)
    assert corpus.tokenizer.term_ids is not None
    first, _ = corpus.tokenizer.term_ids

    def count(examples: Any) -> int:
        return sum(first in example.source for example in examples)

    pairs = range(len(corpus.store))
    epochs = [corpus.epoch_store(epoch).examples(pairs) for epoch in range(2)]
    corpus.close()
    assert count(corpus.store.examples(pairs)) == count(corpus.valid_examples) == 0
    assert all(count(epoch) > 0.4 * len(pairs) for epoch in epochs)
    sources = [[example.source.tolist() for example in epoch] for epoch in epochs]
    assert sources[0] != sources[1]
    plain = prepared(tiny_recipe, tmp_path / "plain")
    assert (plain.tokenizer.term_ids, plain.drawn) == (None, None)


def test_resumed_training_with_terms_is_bit_for_bit_the_uninterrupted_one(
    tiny_recipe: Path, tmp_path: Path
) -> None:
    settings = *TERMS, "training.max_updates=24", "training.guided_alignment=0.5"
    train_with(tiny_recipe, tmp_path / "whole", *settings)
    for how, update in (("dies", 7), ("SIGTERM", 11), ("dies", 17)):
        train_until(tiny_recipe, tmp_path / "stopped", update, how, *settings)
    train_with(tiny_recipe, tmp_path / "stopped", *settings)
    assert outcome(tmp_path / "stopped") == outcome(tmp_path / "whole")


def test_a_run_without_terms_is_continued_with_them(
    finished_run: Path, tiny_recipe: Path, tmp_path: Path
) -> None:
    settings = *TERMS, f"training.init_from={finished_run}", "training.max_updates=4"
    train_with(tiny_recipe, tmp_path / "run", *settings)
    translator = Translator.load(tmp_path / "run", device="cpu")
    tokenizer, glossary = translator.tokenizer, {"two": "zwei", "nine": "neun"}
    assert tokenizer.term_ids is not None
    rows = Glossary(as_terms(glossary), translator.direction)
    terms = Terms(rows, tokenizer, WordAligner(translator.engine, tokenizer), 99)
    [ids] = tokenizer.encode_source(["one two three four"])
    source = [*terms.annotate_source(SearchInput("one two three four", ids))]
    first, last = map(source.index, tokenizer.term_ids)
    assert tokenizer.source.decode(source[:first]) == "one two"
    assert tokenizer.source.decode(source[first:last]) == "zwei"
    assert [*source[:first], *source[last + 1 :]] == ids
    [translation] = translator.stream(["one two three four"], glossary=rows)
    [use] = translation.terms
    assert (use.source, use.target, use.fate in {"used", "missed"}) == ("two", "zwei", True)
