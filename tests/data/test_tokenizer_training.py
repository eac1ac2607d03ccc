import logging
from collections import Counter
from typing import Literal

import pytest

from mt.config import TokenizerConfig
from mt.data.tokenizer_training import sample_lines, train_model
from mt.data.vocabulary import Vocabulary
from mt.errors import ConfigError, DataError

Algorithm = Literal["bpe", "unigram"]
LINES = [f"line {number} of the corpus, number {number * 7}" for number in range(300)]


@pytest.mark.parametrize("algorithm", ["bpe", "unigram"])
def test_the_same_lines_give_the_same_bytes(algorithm: Algorithm) -> None:
    config = TokenizerConfig(algorithm=algorithm, vocabulary_size=320, sample_lines=100)
    models = [train_model(iter(LINES), config=config, seed=seed) for seed in (1, 1, 2)]
    assert models[0] == models[1]
    assert models[0] != models[2]  # another sample


@pytest.mark.parametrize("algorithm", ["bpe", "unigram"])
def test_the_vocabulary_has_the_size_asked_for(algorithm: Algorithm) -> None:
    config = TokenizerConfig(algorithm=algorithm, vocabulary_size=310)
    assert len(Vocabulary.from_model(train_model(LINES, config=config, seed=1))) == 310


@pytest.mark.parametrize("algorithm", ["bpe", "unigram"])
def test_three_lines_lower_the_vocabulary_and_say_so(
    algorithm: Algorithm, caplog: pytest.LogCaptureFixture
) -> None:
    config = TokenizerConfig(algorithm=algorithm, vocabulary_size=8000)
    with caplog.at_level(logging.WARNING):
        model = train_model(["a dog", "ein Hund", "the cat"], config=config, seed=1)
    size = len(Vocabulary.from_model(model))
    assert 260 < size < 320
    (message,) = caplog.messages
    assert f"only {size} tokens" in message
    assert "`tokenizer.vocabulary_size` asks for 8,000" in message


def test_training_writes_nothing_of_its_own(capfd: pytest.CaptureFixture[str]) -> None:
    train_model(LINES, config=TokenizerConfig(vocabulary_size=310), seed=1)
    assert capfd.readouterr() == ("", "")


def test_a_vocabulary_too_small_for_the_characters_names_the_smallest_that_does() -> None:
    lines = ["".join(chr(0x4E00 + number) for number in range(100))]
    config = TokenizerConfig(vocabulary_size=300, character_coverage=1.0)
    with pytest.raises(ConfigError, match=r"`tokenizer\.vocabulary_size` 300 .* 361 tokens"):
        train_model(lines, config=config, seed=1)
    enough = TokenizerConfig(vocabulary_size=361, character_coverage=1.0)
    assert len(Vocabulary.from_model(train_model(lines, config=enough, seed=1))) == 361


@pytest.mark.parametrize("lines", [[], ["", "  ", "\u3000"]])
def test_a_corpus_without_text_is_an_error(lines: list[str]) -> None:
    with pytest.raises(DataError, match="no text to learn a tokenizer from"):
        train_model(lines, config=TokenizerConfig(), seed=1)


def test_text_is_taken_as_it_is() -> None:
    lines = ["ﬁne，　ｗｉｄｅ"] * 20
    vocabulary = Vocabulary.from_model(train_model(lines, config=TokenizerConfig(), seed=1))
    assert {character.encode() for character in "ﬁ，　ｗ"} <= set(vocabulary.token_bytes)


def test_nmt_nfkc_folds_text_before_it_is_cut() -> None:
    config = TokenizerConfig(normalization="nmt_nfkc")
    vocabulary = Vocabulary.from_model(train_model(["ﬁne，　ｗｉｄｅ"] * 20, config=config, seed=1))
    assert not {character.encode() for character in "ﬁ，　ｗ"} & set(vocabulary.token_bytes)
    assert vocabulary.decode(vocabulary.encode(["ﬁne，　ｗｉｄｅ"])[0]) == "fine, wide"


def test_a_very_long_line_teaches_too() -> None:
    lines = ["short", "zebra " * 2000]
    vocabulary = Vocabulary.from_model(train_model(lines, config=TokenizerConfig(), seed=1))
    assert b" zebra" in vocabulary.token_bytes


def test_spelled_out_marks_in_the_corpus_do_no_harm() -> None:
    lines = ["</s> <unk> <0x41> ▁ \u2585 word"] * 50
    vocabulary = Vocabulary.from_model(train_model(lines, config=TokenizerConfig(), seed=1))
    assert vocabulary.decode(vocabulary.encode(lines[:1])[0]) == lines[0]


def test_a_small_corpus_is_its_own_sample() -> None:
    assert sample_lines(iter(LINES), 1000, seed=1) == LINES


def test_a_sample_is_drawn_by_the_seed_from_the_whole_corpus() -> None:
    lines = [str(number) for number in range(200_000)]
    one, again, other = (sample_lines(iter(lines), 500, seed=seed) for seed in (1, 1, 2))
    assert one == again
    assert len(set(one)) == 500
    assert len(set(one) & set(other)) < 20
    quarters = Counter(int(line) // 50_000 for line in one)
    assert all(90 <= quarters[quarter] <= 160 for quarter in range(4))
