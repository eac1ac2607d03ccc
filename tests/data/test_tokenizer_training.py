import logging
from typing import Literal

import pytest

from mt.config import TokenizerConfig
from mt.data.sentencepiece_model import fields
from mt.data.tokenizer import Vocabulary
from mt.data.tokenizer_training import train_model
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
    with pytest.raises(DataError, match="text"):
        train_model(lines, TokenizerConfig())


def test_long_lines_and_special_tokens_in_the_text_are_text() -> None:
    assert b" zebra" in vocabulary(["short", "zebra " * 2000]).token_bytes
    lines = ["</s> <unk> <0x41> ▁ \u2585 word"] * 50
    special = vocabulary(lines)
    assert special.decode(special.encode(lines[:1])[0]) == lines[0]


@pytest.mark.parametrize("damaged", ["12ff", "12036160", "0b", "08", "1d00"])
def test_damaged_protobuf_is_rejected(damaged: str) -> None:
    with pytest.raises(ValueError, match="not a protocol buffers message"):
        list(fields(bytes.fromhex(damaged)))
