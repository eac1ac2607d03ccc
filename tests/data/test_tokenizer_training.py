import logging
from collections import Counter
from typing import Literal

import pytest

from mt.config import TokenizerConfig
from mt.data.sentencepiece_model import bytes_field, fields, number_field, varint
from mt.data.tokenizer import Vocabulary
from mt.data.tokenizer_training import sample_lines, train_model
from mt.errors import ConfigError, DataError

Algorithm = Literal["bpe", "unigram"]
LINES = [f"line {number} of the corpus, number {number * 7}" for number in range(300)]


def vocabulary(lines: list[str], **keys: object) -> Vocabulary:
    config = TokenizerConfig.model_validate(keys)
    return Vocabulary.from_model(train_model(lines, config=config, seed=1))


@pytest.mark.parametrize("algorithm", ["bpe", "unigram"])
def test_training_is_deterministic_and_gives_the_configured_size(algorithm: Algorithm) -> None:
    config = TokenizerConfig(algorithm=algorithm, vocabulary_size=310, sample_lines=100)
    models = [train_model(iter(LINES), config=config, seed=seed) for seed in (1, 1, 2)]
    assert models[0] == models[1]
    assert models[0] != models[2]  # another sample
    assert len(Vocabulary.from_model(models[0])) == 310


@pytest.mark.parametrize("algorithm", ["bpe", "unigram"])
def test_short_text_gives_a_smaller_vocabulary_with_a_warning(
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


def test_too_small_vocabulary_names_the_smallest_size() -> None:
    lines = ["".join(chr(0x4E00 + number) for number in range(100))]
    config = TokenizerConfig(vocabulary_size=300, character_coverage=1.0)
    with pytest.raises(ConfigError, match=r"`tokenizer\.vocabulary_size` 300 .* 361 tokens"):
        train_model(lines, config=config, seed=1)
    assert len(vocabulary(lines, vocabulary_size=361, character_coverage=1.0)) == 361


@pytest.mark.parametrize("lines", [[], ["", "  ", "\u3000"]])
def test_corpus_without_text_is_an_error(lines: list[str]) -> None:
    with pytest.raises(DataError, match="no text to learn a tokenizer from"):
        train_model(lines, config=TokenizerConfig(), seed=1)


def test_text_is_normalized_only_if_asked() -> None:
    lines, odd = ["ﬁne，　ｗｉｄｅ"] * 20, {character.encode() for character in "ﬁ，　ｗ"}
    assert odd <= set(vocabulary(lines).token_bytes)
    normalizing = vocabulary(lines, normalization="nmt_nfkc")
    assert not odd & set(normalizing.token_bytes)
    assert normalizing.decode(normalizing.encode(lines)[0]) == "fine, wide"


def test_long_lines_and_special_tokens_in_the_text_are_text() -> None:
    assert b" zebra" in vocabulary(["short", "zebra " * 2000]).token_bytes
    lines = ["</s> <unk> <0x41> ▁ \u2585 word"] * 50
    special = vocabulary(lines)
    assert special.decode(special.encode(lines[:1])[0]) == lines[0]


def test_sample_is_drawn_from_the_whole_corpus_by_seed() -> None:
    lines = [str(number) for number in range(200_000)]
    assert sample_lines(iter(lines), 200_000, seed=1) == lines
    one, again, other = (sample_lines(iter(lines), 500, seed=seed) for seed in (1, 1, 2))
    assert one == again
    assert len(set(one)) == 500
    assert len(set(one) & set(other)) < 20
    quarters = Counter(int(line) // 50_000 for line in one)
    assert all(90 <= quarters[quarter] <= 160 for quarter in range(4))


def test_protobuf_fields_round_trip() -> None:
    """The first example is that of https://protobuf.dev/programming-guides/encoding."""
    assert number_field(1, 150) == bytes.fromhex("089601")
    fixed = bytes.fromhex("1d0000803f") + bytes.fromhex("210000000000000040")
    written = number_field(1, 300) + bytes_field(40, b"x" * 300) + fixed + bytes_field(2, b"")
    assert [*fields(written)] == [
        (1, varint(300)),
        (40, b"x" * 300),
        (3, bytes.fromhex("0000803f")),
        (4, bytes.fromhex("0000000000000040")),
        (2, b""),
    ]


@pytest.mark.parametrize("damaged", ["12ff", "12036160", "0b", "08", "1d00"])
def test_damaged_protobuf_is_rejected(damaged: str) -> None:
    with pytest.raises(ValueError, match="not a protocol buffers message"):
        list(fields(bytes.fromhex(damaged)))
