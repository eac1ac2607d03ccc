import io
import math
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from itertools import pairwise, product
from typing import cast

import numpy as np
import pytest
import sentencepiece
from hypothesis import given
from hypothesis import strategies as st

from mt.config import TokenizerConfig
from mt.data import subword_sampling as sampling_module
from mt.data.store import Rows
from mt.data.subword_sampling import PairTable, Sampler
from mt.data.tokenizer_training import train_model
from mt.data.vocabulary import Vocabulary
from mt.special_ids import BOS, EOS, PAD, UNK

LINES = [
    *(f"the {noun} sees  the cats, 你好，世界。" for noun in ("dog", "bird", "fish", "horse")),
    *(f"{word} low lower lowest new newer newest wide wider widest" for word in "abcd"),
    "今天天气很好，我们去公园。",
]


def trained(**settings: object) -> Vocabulary:
    config = TokenizerConfig.model_validate(settings)
    return Vocabulary.from_model(train_model(LINES, config=config, seed=1))


BPE = trained(algorithm="bpe", vocabulary_size=420)
UNIGRAM = trained(algorithm="unigram", vocabulary_size=360)
BOTH = pytest.mark.parametrize("vocabulary", [BPE, UNIGRAM], ids=["bpe", "unigram"])

familiar = st.lists(
    st.sampled_from(["the", "lowest", "newer", "dogs", "你好", "世界。", "今天", "we", "st"]),
    max_size=8,
).map(" ".join)
anything = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\n"))
awkward = st.text(
    st.sampled_from("▁\U000f2581_= \t\r\0\u2028\u0085\u3000，e\u0301é<>/s\u2585⁇\ufffd🇨🇭")
)
texts = st.lists(familiar | anything | awkward, max_size=4)


def sampled(
    vocabulary: Vocabulary, lines: list[str], strength: float, *, seed: int = 1, longest: int = 9999
) -> list[list[int]]:
    plain = Rows.of(vocabulary.encode(lines))
    random = np.random.default_rng(seed)
    drawn = Sampler(vocabulary, strength).sample(plain, random, max_tokens=longest)
    return [drawn[row].tolist() for row in range(len(drawn))]


@BOTH
@given(lines=texts, strength=st.floats(0.01, 1.0), seed=st.integers(0, 2**32))
def test_whatever_is_drawn_is_the_same_text(
    vocabulary: Vocabulary, lines: list[str], strength: float, seed: int
) -> None:
    drawn = sampled(vocabulary, lines, strength, seed=seed)
    assert [vocabulary.decode(ids) for ids in drawn] == lines
    for ids in drawn:
        assert ids[-1] == EOS
        assert not {PAD, UNK, BOS, EOS} & set(ids[:-1])


@given(texts)
def test_bpe_that_drops_nothing_is_that_of_sentencepiece(lines: list[str]) -> None:
    assert sampled(BPE, lines, 0.0) == BPE.encode(lines)


def test_bpe_that_drops_everything_leaves_characters() -> None:
    (ids,) = sampled(BPE, ["the lowest 你"], 1.0)
    assert [BPE.processor.id_to_piece(number) for number in ids] == [*"▁the▁lowest▁你", "</s>"]


def test_a_large_exponent_leaves_the_likeliest_segmentation() -> None:
    lines = ["the lowest newer dog", "你好，世界。 wider", "a b c"]
    assert sampled(UNIGRAM, lines, 1000.0) == UNIGRAM.encode(lines)


WORD = "lowest"
DRAWS = 40_000


def frequencies(vocabulary: Vocabulary, strength: float) -> dict[tuple[str, ...], float]:
    drawn = Counter(map(tuple, sampled(vocabulary, [WORD] * DRAWS, strength)))
    return {
        tuple(vocabulary.processor.id_to_piece(list(ids))[:-1]): count / DRAWS
        for ids, count in drawn.items()
    }


def assert_drawn_as(
    expected: dict[tuple[str, ...], float], found: dict[tuple[str, ...], float]
) -> None:
    assert math.isclose(sum(expected.values()), 1.0)
    assert len(expected) > 4
    for tokens in {*expected, *found}:
        wanted = expected.get(tokens, 0.0)
        deviation = math.sqrt(wanted * (1 - wanted) / DRAWS)
        assert abs(found.get(tokens, 0.0) - wanted) <= 5 * deviation, tokens


def all_segmentations(text: str, known: set[str]) -> Iterator[tuple[str, ...]]:
    if not text:
        yield ()
    for end in range(1, len(text) + 1):
        if text[:end] in known:
            for rest in all_segmentations(text[end:], known):
                yield (text[:end], *rest)


@pytest.mark.parametrize("exponent", [0.1, 1.0])
def test_unigram_draws_every_segmentation_with_its_probability(exponent: float) -> None:
    """Kudo 2018, section 3.2, with every segmentation counted by hand."""
    scores = {text: UNIGRAM.processor.get_score(n) for n, text in UNIGRAM.texts().items()}
    weights = {
        tokens: math.exp(exponent * sum(scores[token] for token in tokens))
        for tokens in all_segmentations(f"▁{WORD}", set(scores))
    }
    total = sum(weights.values())
    expected = {tokens: weight / total for tokens, weight in weights.items()}
    assert_drawn_as(expected, frequencies(UNIGRAM, exponent))


Outcomes = dict[tuple[str, ...], float]


def dropout_outcomes(word: str, ranks: dict[str, int], dropout: float) -> Outcomes:
    """Follow algorithm 1 of Provilkov et al. 2020 through every way that its coins can fall."""

    @cache
    def outcomes_of(tokens: tuple[str, ...]) -> Outcomes:
        pairs = ["".join(pair) for pair in pairwise(tokens)]
        merges = [at for at, pair in enumerate(pairs) if pair in ranks]
        outcomes: Outcomes = defaultdict(float)
        for kept in product([False, True], repeat=len(merges)):
            chance = math.prod(1 - dropout if keep else dropout for keep in kept)
            left = [at for at, keep in zip(merges, kept, strict=True) if keep]
            if not left:
                outcomes[tokens] += chance
                continue
            at = min(left, key=lambda at: ranks[pairs[at]])
            merged = (*tokens[:at], pairs[at], *tokens[at + 2 :])
            for outcome, share in outcomes_of(merged).items():
                outcomes[outcome] += chance * share
        return outcomes

    return outcomes_of(tuple(word))


@pytest.mark.parametrize("dropout", [0.1, 0.6])
def test_bpe_drops_merges_as_the_paper_says(dropout: float) -> None:
    ranks = {text: rank for rank, text in enumerate(BPE.texts().values())}
    expected = dropout_outcomes(f"▁{WORD}", ranks, dropout)
    assert_drawn_as(expected, frequencies(BPE, dropout))


@BOTH
def test_what_is_drawn_follows_from_the_generator_alone(vocabulary: Vocabulary) -> None:
    first, again, other = (sampled(vocabulary, LINES, 0.3, seed=seed) for seed in (1, 1, 2))
    assert first == again
    assert first != other
    assert first[0] != first[1]


@BOTH
def test_a_row_that_would_become_too_long_stays_as_it_is(vocabulary: Vocabulary) -> None:
    lines = ["the lowest newer"] * 200
    plain = vocabulary.encode(lines)
    longest = len(plain[0]) + 2
    free = sampled(vocabulary, lines, 0.3)
    bound = sampled(vocabulary, lines, 0.3, longest=longest)
    expected = [ids if len(ids) <= longest else plain[0] for ids in free]
    assert bound == expected
    assert any(len(ids) == longest for ids in bound)
    assert any(len(ids) > longest for ids in free)


@BOTH
def test_many_rows_are_drawn_block_by_block(
    vocabulary: Vocabulary, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sampling_module, "_BLOCK_TOKENS", 50)
    lines = [f"the {number} newest" + " dogs" * (number % 40) for number in range(60)]
    drawn = sampled(vocabulary, lines, 0.3)
    assert [vocabulary.decode(ids) for ids in drawn] == lines
    assert sampled(vocabulary, [], 0.3) == []


@pytest.mark.parametrize("algorithm", ["bpe", "unigram"])
def test_tokens_that_reach_over_spaces_are_drawn_too(algorithm: str) -> None:
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(["new york is new york"] * 20),
        model_writer=model,
        model_type=algorithm,
        vocab_size=300,
        hard_vocab_limit=False,
        byte_fallback=True,
        normalization_rule_name="identity",
        split_by_whitespace=False,
        pad_id=PAD,
        unk_id=UNK,
        bos_id=BOS,
        eos_id=EOS,
        minloglevel=2,
    )
    vocabulary = Vocabulary.from_model(model.getvalue())
    lines = ["new york", "york is new york"]
    assert vocabulary.algorithm == algorithm
    assert any("▁" in text[1:] for text in vocabulary.texts().values())
    strength = {"bpe": 0.0, "unigram": 1000.0}[algorithm]
    assert sampled(vocabulary, lines, strength) == vocabulary.encode(lines)


@dataclass(frozen=True)
class ListedVocabulary:
    """A vocabulary of which one token has a character that is no token."""

    algorithm: str

    @property
    def processor(self) -> "ListedVocabulary":
        return self

    def __len__(self) -> int:
        return 8

    def texts(self) -> dict[int, str]:
        return {4: "▁", 5: "qa", 6: "a", 7: "▁a"}

    def get_score(self, number: int) -> float:
        return -float(number)


@pytest.mark.parametrize("algorithm", ["bpe", "unigram"])
def test_a_token_that_cannot_be_spelled_stays_whole(algorithm: str) -> None:
    sampler = Sampler(cast(Vocabulary, ListedVocabulary(algorithm)), 0.5)
    rows = Rows.of([[7, 5, 6, EOS]] * 50)
    drawn = sampler.sample(rows, np.random.default_rng(1), max_tokens=9)
    assert {tuple(drawn[row].tolist()) for row in range(50)} == {
        (7, 5, 6, EOS),
        (4, 6, 5, 6, EOS),
    }


def test_unknown_tokens_stay_unknown_and_no_other_comes() -> None:
    vocabulary = trained(algorithm="bpe", vocabulary_size=300, byte_fallback="off")
    plain = vocabulary.encode(["the ß lowest"])[0]
    (drawn,) = sampled(vocabulary, ["the ß lowest"], 0.9)
    assert plain.count(UNK) == drawn.count(UNK) == 1
    assert len(drawn) > len(plain)


@given(
    st.dictionaries(st.tuples(st.integers(0, 9), st.integers(0, 9)), st.integers(0, 2**31 - 1)),
    st.lists(st.tuples(st.integers(0, 10), st.integers(0, 10)), max_size=20),
)
def test_a_pair_table_is_a_dictionary(
    entries: dict[tuple[int, int], int], asked: list[tuple[int, int]]
) -> None:
    left, right = np.array(asked, np.int32).reshape(-1, 2).T
    found = PairTable(entries).find(left, right)
    assert found.tolist() == [entries.get(pair, -1) for pair in asked]
