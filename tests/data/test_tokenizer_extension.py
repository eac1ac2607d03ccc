import random
from itertools import pairwise
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mt.config import TokenizerConfig
from mt.data.tokenizer import Vocabulary
from mt.data.tokenizer_training import extend_model, find_former_rows, train_model
from mt.special_ids import UNK
from tests.factories import foreign_vocabulary

Algorithm = Literal["bpe", "unigram"]
ALGORITHMS: tuple[Algorithm, ...] = ("bpe", "unigram")
MARK = "\u2581"


def sentences(syllables: str, seed: int) -> list[str]:
    """Return text with sixty words of Zipfian frequency."""
    draw = random.Random(seed)
    words = ["".join(draw.choices(syllables.split(), k=draw.randint(1, 3))) for _ in range(60)]
    weights = [1 / rank for rank in range(1, 61)]
    return [" ".join(draw.choices(words, weights, k=8)) for _ in range(300)]


OLD_TEXT = sentences("the a old li ne num ber was were se en saw he re is 1 2 12 ,", 1)
NEW_TEXT = sentences("anti bio tic pa tient the li ne fe ver 12 抗 生 素 体 病 ， 。", 2)
COUNT = 40


def settings(algorithm: Algorithm = "bpe", **keys: Any) -> TokenizerConfig:
    return TokenizerConfig(algorithm=algorithm, vocabulary_size=340, **keys)


def extended(old: bytes, lines: list[str], count: int, **keys: Any) -> Vocabulary:
    config = settings(added_tokens=count, **keys)
    return Vocabulary.from_model(extend_model(old, lines, config))


def tokens_of(vocabulary: Vocabulary) -> list[str]:
    return [vocabulary.processor.id_to_piece(number) for number in range(len(vocabulary))]


OLD = {name: train_model(OLD_TEXT, settings(name)) for name in ALGORITHMS}
OLDER = {name: Vocabulary.from_model(model) for name, model in OLD.items()}
NEWER = {name: extended(model, NEW_TEXT, COUNT) for name, model in OLD.items()}
each_algorithm = pytest.mark.parametrize("algorithm", ALGORITHMS)


@each_algorithm
def test_old_tokens_keep_their_ids_and_scores(algorithm: Algorithm) -> None:
    old, new = OLDER[algorithm], NEWER[algorithm]
    assert len(new) == len(old) + COUNT
    assert tokens_of(new)[: len(old)] == tokens_of(old)
    assert new.token_bytes[: len(old)] == old.token_bytes
    for number in range(len(old)):
        assert new.processor.get_score(number) == old.processor.get_score(number)
    assert new.algorithm == old.algorithm == algorithm
    lowest = min(old.processor.get_score(number) for number in old.texts())
    scores = [new.processor.get_score(number) for number in range(len(old), len(new))]
    assert algorithm == "bpe" or lowest <= min(scores) < max(scores) < 0


@each_algorithm
def test_new_tokens_are_used_and_shorten_the_new_text(algorithm: Algorithm) -> None:
    old, new = OLDER[algorithm], NEWER[algorithm]
    before, after = old.encode(NEW_TEXT), new.encode(NEW_TEXT)
    assert sum(map(len, after)) < 0.4 * sum(map(len, before))
    used = {number for ids in after for number in ids if number >= len(old)}
    assert len(used) > 0.6 * COUNT
    assert [new.decode(ids) for ids in after] == NEW_TEXT


@each_algorithm
def test_text_without_new_tokens_keeps_its_segmentation(algorithm: Algorithm) -> None:
    old, new = OLDER[algorithm], NEWER[algorithm]
    added = tokens_of(new)[len(old) :]
    draw = random.Random(1)
    words = sorted({word for line in OLD_TEXT + NEW_TEXT for word in line.split()})
    same = others = 0
    for _ in range(3000):
        text = " ".join(draw.choices(words, k=draw.randint(1, 4)))
        first = draw.randrange(len(text))
        text = text[first : first + draw.randint(1, 15)]
        before, after = old.encode([text]), new.encode([text])
        if any(token in MARK + text.replace(" ", MARK) for token in added):
            others += before != after
        else:
            same += 1
            assert before == after
    assert same > 500
    assert others > 500


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@given(
    text=st.text(st.sampled_from("antibiotics 抗生素\u2581\U000f2581\u2585é\n，  🙂"), max_size=30)
)
def test_extended_vocabulary_is_lossless(algorithm: Algorithm, text: str) -> None:
    new = NEWER[algorithm]
    assert new.decode(new.encode([text])[0]) == text


def joined_by_rank(text: str, ranks: dict[str, int]) -> list[str]:
    """BPE of Sennrich et al. 2016: merge the pair learnt first, the leftmost one first."""
    parts = list(text)
    while ranked := [
        (ranks[one + two], place)
        for place, (one, two) in enumerate(pairwise(parts))
        if one + two in ranks
    ]:
        _, place = min(ranked)
        parts[place : place + 2] = [parts[place] + parts[place + 1]]
    return parts


def test_new_bpe_tokens_are_merged_after_old_ones() -> None:
    new = NEWER["bpe"]
    ranks = {token: number for number, token in enumerate(tokens_of(new))}
    for line in OLD_TEXT[:20] + NEW_TEXT[:20]:
        text = MARK + line.replace(" ", MARK)
        ours = [new.processor.id_to_piece(number) for number in new.encode([line])[0][:-1]]
        assert ours == [part for part in joined_by_rank(text, ranks) if part in ranks]


def test_tokens_that_bpe_cannot_produce_are_omitted() -> None:
    draw = random.Random(3)
    texts = [["".join(draw.choices("abcd", k=7)) for _ in range(90)] for _ in range(2)]
    old = train_model(texts[0], settings())
    known = tokens_of(Vocabulary.from_model(old))
    size = TokenizerConfig(vocabulary_size=len(known) + 600 + len("abcd"))
    learnt = tokens_of(Vocabulary.from_model(train_model(texts[1], size)))
    lacking = [token for token in learnt if token not in known]
    added = tokens_of(extended(old, texts[1], 600))[len(known) :]
    ranks = {token: rank for rank, token in enumerate([*known, *lacking])}
    made = [token for token in lacking if joined_by_rank(token, ranks) == [token]]
    assert added == made
    assert 50 < len(made) < len(lacking) - 10


@each_algorithm
def test_tokens_that_the_normalization_changes_are_omitted(algorithm: Algorithm) -> None:
    nfkc = {"byte_fallback": True, "normalization_rule_name": "nfkc"}
    old = foreign_vocabulary(OLD_TEXT, 340, model_type=algorithm, **nfkc)
    wide = [line.translate({ord("a"): "ａ", ord(","): "，", ord("n"): "①"}) for line in NEW_TEXT]
    vocabulary = extended(old.processor.serialized_model_proto(), wide, COUNT)
    added = tokens_of(vocabulary)[len(old) :]
    assert "抗" in added
    assert {*"".join(added)}.isdisjoint("ａ，①")


@each_algorithm
def test_former_row_is_the_old_token_or_the_parts_of_a_new_one(algorithm: Algorithm) -> None:
    old, new = OLDER[algorithm], NEWER[algorithm]
    rows = find_former_rows(new, old)
    assert [row.ids for row in rows[: len(old)]] == [(number,) for number in range(len(old))]
    assert [row.is_new for row in rows] == [False] * len(old) + [True] * COUNT
    assert [row.token for row in rows] == tokens_of(new)
    for number, row in enumerate(rows[len(old) :], start=len(old)):
        assert b"".join(old.token_bytes[part] for part in row.ids) == new.token_bytes[number]
        if row.token.startswith(MARK):
            assert list(row.ids) == old.encode([row.token[1:].replace(MARK, " ")])[0][:-1]


def test_former_row_of_an_unknown_byte_is_unk() -> None:
    rows = find_former_rows(OLDER["bpe"], foreign_vocabulary(["ab"] * 5, 20))
    former = {row.token: (row.ids, row.is_new) for row in rows}
    assert former["<0x41>"] == former["h"] == ((UNK,), True)
    assert former["<unk>"] == ((UNK,), False)
