import logging
from collections import Counter
from typing import Literal

import numpy as np
import pytest

from mt.config import TokenizerConfig
from mt.data.sentencepiece_model import bytes_field, fields, number_field, varint
from mt.data.tokenizer import Vocabulary
from mt.data.tokenizer_training import Reservoir, train_model
from mt.errors import ConfigError, DataError

Algorithm = Literal["bpe", "unigram"]
LINES = [f"line {number} of the corpus, number {number * 7}" for number in range(300)]


def vocabulary(lines: list[str], **keys: object) -> Vocabulary:
    config = TokenizerConfig.model_validate(keys)
    return Vocabulary.from_model(train_model(lines, config))


@pytest.mark.parametrize("algorithm", ["bpe", "unigram"])
def test_training_is_deterministic_and_gives_the_configured_size(algorithm: Algorithm) -> None:
    config = TokenizerConfig(algorithm=algorithm, vocabulary_size=310)
    one, again = train_model(LINES, config), train_model(iter(LINES), config)
    assert one == again
    assert len(Vocabulary.from_model(one)) == 310


@pytest.mark.parametrize("algorithm", ["bpe", "unigram"])
def test_short_text_gives_a_smaller_vocabulary_with_a_warning(
    algorithm: Algorithm, caplog: pytest.LogCaptureFixture
) -> None:
    config = TokenizerConfig(algorithm=algorithm, vocabulary_size=8000)
    with caplog.at_level(logging.WARNING):
        model = train_model(["a dog", "ein Hund", "the cat"], config)
    size = len(Vocabulary.from_model(model))
    assert 260 < size < 320
    (message,) = caplog.messages
    assert f"only {size} tokens" in message
    assert "`tokenizer.vocabulary_size` asks for 8,000" in message


def test_too_small_vocabulary_names_the_smallest_size() -> None:
    lines = ["".join(chr(0x4E00 + number) for number in range(100))]
    config = TokenizerConfig(vocabulary_size=300, character_coverage=1.0)
    with pytest.raises(ConfigError, match=r"`tokenizer\.vocabulary_size` 300 .* 361 tokens"):
        train_model(lines, config)
    assert len(vocabulary(lines, vocabulary_size=361, character_coverage=1.0)) == 361


@pytest.mark.parametrize(("coverage", "known"), [(0.91, 19), (0.96, 69), (0.98, 89)])
def test_low_coverage_leaves_out_rare_characters(coverage: float, known: int) -> None:
    frequent = [chr(0x4E00 + number) for number in range(9)]
    rare = [chr(0x5000 + number) for number in range(100)]  # a tenth of the text
    tokens = vocabulary(["".join(frequent * 100 + rare)], character_coverage=coverage).token_bytes
    assert len({*tokens} & {character.encode() for character in frequent + rare}) == known


@pytest.mark.parametrize("lines", [[], ["", "  ", "\u3000"]])
def test_corpus_without_text_is_an_error(lines: list[str]) -> None:
    with pytest.raises(DataError, match="no text to learn a tokenizer from"):
        train_model(lines, TokenizerConfig())


def test_text_is_not_normalized() -> None:
    lines, odd = ["ﬁne，　ｗｉｄｅ"] * 20, {character.encode() for character in "ﬁ，　ｗ"}
    assert odd <= set(vocabulary(lines).token_bytes)


def test_long_lines_and_special_tokens_in_the_text_are_text() -> None:
    assert b" zebra" in vocabulary(["short", "zebra " * 2000]).token_bytes
    lines = ["</s> <unk> <0x41> ▁ \u2585 word"] * 50
    special = vocabulary(lines)
    assert special.decode(special.encode(lines[:1])[0]) == lines[0]


def drawn_at_once(items: list[int], count: int, seed: int) -> list[int]:
    """Return a sample by algorithm R of Vitter 1985, as long as a whole list is at hand."""
    random = np.random.Generator(np.random.PCG64(seed))
    sample = items[:count]
    for begin in range(count, len(items), 65_536):
        block = items[begin : begin + 65_536]
        slots = random.integers(0, np.arange(begin, begin + len(block)) + 1)
        for slot, item in zip(slots.tolist(), block, strict=True):
            if slot < count:
                sample[slot] = item
    return sample


@pytest.mark.parametrize("count", [500, 100_000, 200_000, 300_000])
def test_reservoir_is_the_sample_of_the_whole_stream(count: int) -> None:
    items = list(range(200_000))
    reservoir = Reservoir[int](count, seed=3)
    for size, begin in [(7, 0), (90_000, 7), (0, 90_007), (109_993, 90_007)]:
        reservoir.add(iter(items[begin : begin + size]))
    assert reservoir.items == drawn_at_once(items, count, seed=3)


def test_reservoir_takes_every_part_of_the_stream_alike() -> None:
    one, other = (Reservoir[int](500, seed) for seed in (1, 2))
    for reservoir in (one, other):
        reservoir.add(range(200_000))
    assert len({*one.items}) == 500
    assert len({*one.items} & {*other.items}) < 20
    quarters = Counter(item // 50_000 for item in one.items)
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
