from pathlib import Path
from typing import Literal

import pytest

from mt.config import TokenizerConfig
from mt.data.pairs import SentencePair
from mt.data.tokenizer import train_tokenizer
from mt.decoding.text import mend, named, unknown_characters

LONE = "lone surrogates are read as U+FFFD"
BYTES = "bytes that are not UTF-8 are read as U+FFFD"


@pytest.mark.parametrize(
    ("line", "mended", "notes"),
    [
        ("a é 雪 \U0001f600 \ufffd \0", "a é 雪 \U0001f600 \ufffd \0", ()),
        ("a\ud800b\udfff", "a\ufffdb\ufffd", (LONE,)),
        ("a\udcffb", "a\ufffdb", (BYTES,)),
        ("\udcff\ud83d", "\ufffd\ufffd", (LONE, BYTES)),
    ],
)
def test_what_utf_8_cannot_hold_becomes_the_replacement_character(
    line: str, mended: str, notes: tuple[str, ...]
) -> None:
    assert mend(line) == (mended, notes)


def test_bytes_are_read_as_any_decoder_reads_them() -> None:
    for line in (b"a\xff\xfeb", b"cut \xe2\x82", b"\xed\xa0\x80", b"\xc0\xaf", bytes(range(256))):
        kept = line.decode("utf-8", "surrogateescape")
        assert mend(kept) == (line.decode("utf-8", "replace"), (BYTES,))


def test_characters_are_named_as_far_as_they_can_be_seen() -> None:
    assert named(["☃", "\t", "\u3000", "\0"]) == "`☃` (U+2603), U+0009, U+3000, U+0000"
    assert named([*"abcdefghijkl"]).endswith("`j` (U+006A) and 2 more")


@pytest.mark.parametrize("algorithm", ["bpe", "unigram"])
@pytest.mark.parametrize("text", ["早上好你好吗", "a cat sat on the mat"])
def test_unknown_is_what_was_not_in_the_text(
    text: str, algorithm: Literal["bpe", "unigram"], tmp_path: Path
) -> None:
    config = TokenizerConfig(vocabulary_size=300, byte_fallback="off", algorithm=algorithm)
    pairs = [SentencePair(text, text)] * 5
    tokenizer = train_tokenizer(lambda: iter(pairs), tmp_path, config=config, seed=1)
    line = f"我好☃ my cat ▁ {text} ☃\U000f2581\u2028"
    unknown = [character for character in dict.fromkeys(line) if character not in {*text, " "}]
    assert unknown_characters(line, tokenizer) == unknown
    assert unknown_characters(text, tokenizer) == []
