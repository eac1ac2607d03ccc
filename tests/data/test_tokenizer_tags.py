from pathlib import Path
from typing import Any

import pytest

from mt.config import TokenizerConfig
from mt.data.pairs import SentencePair
from mt.data.tokenizer import TAG_LAST, Tokenizer, copy_tokenizer, write_models
from mt.data.tokenizer_training import train_tokenizer
from mt.errors import ConfigError
from mt.special_ids import EOS
from tests.factories import extend_tokenizer

PAIRS = [
    SentencePair(f"<bt> the {word} of <2de>", f"a {word}<bt> <s>")
    for word in ("house", "horse", "mouse", "nurse", "purse")
] * 9
TAGS = ("<bt>", "<2de>")
LINES = ["the house", "", "<bt> of <2de>"]


def trained(folder: Path, **settings: object) -> Tokenizer:
    config = TokenizerConfig.model_validate({"vocabulary_size": 330, **settings})
    return train_tokenizer(lambda: iter(PAIRS), folder, config=config)


def extended(old: Path, new: Path, pairs: list[SentencePair], **settings: Any) -> Tokenizer:
    config = TokenizerConfig(**settings)
    return extend_tokenizer(old, new, pairs, config)


@pytest.mark.parametrize("vocabulary", ["joint", "separate"])
@pytest.mark.parametrize("algorithm", ["bpe", "unigram"])
def test_tag_is_one_leading_token_that_decodes_to_nothing(
    algorithm: str, vocabulary: str, tmp_path: Path
) -> None:
    tokenizer = trained(tmp_path / "t", tags=TAGS, algorithm=algorithm, vocabulary=vocabulary)
    lines = LINES
    plain = tokenizer.encode_source(lines)
    numbers = tokenizer.source.tags
    assert tuple(numbers) == TAGS
    for tag in TAGS:
        tagged = tokenizer.tagged(tag)
        assert tagged.encode_source(lines) == [[numbers[tag], *ids] for ids in plain]
        assert tagged.encode_target(lines) == tokenizer.encode_target(lines)
        assert [tagged.decode_source(ids) for ids in tagged.encode_source(lines)] == lines
    assert tokenizer.tagged(None) is tokenizer
    prints = {tokenizer.fingerprint, *(tokenizer.tagged(tag).fingerprint for tag in TAGS)}
    assert len(prints) == 3
    assert tokenizer.source.algorithm == algorithm


@pytest.mark.parametrize("is_last", [False, True])
def test_both_sides_may_have_a_tag(is_last: bool, tmp_path: Path) -> None:
    plain = trained(tmp_path / "t", tags=TAGS)
    if is_last:  # only the name of the file differs
        model = (tmp_path / "t" / "joint.model").read_bytes()
        write_models(tmp_path / "last", {TAG_LAST: model})
        plain = copy_tokenizer(tmp_path / "last", tmp_path / "copy")
    both = plain.tagged("<bt>", "<2de>")
    first, second = (plain.source.tags[tag] for tag in TAGS)
    for line, source, target in zip(
        LINES, both.encode_source(LINES), both.encode_target(LINES), strict=True
    ):
        (ids,) = plain.encode_source([line])
        assert source == ([*ids, first] if is_last else [first, *ids])
        assert target == [second, *ids]
        assert both.decode_source(source) == both.decode_target(target) == line
    prints = {each.fingerprint for each in (plain, both, plain.tagged("<bt>"))}
    assert len({*prints, Tokenizer.load(tmp_path / "t").fingerprint}) == (4 if is_last else 3)


def test_tag_spelled_in_the_text_is_text(tmp_path: Path) -> None:
    tokenizer = trained(tmp_path / "t", tags=TAGS)
    lines = ["<bt>", "<bt> the", "x<2de>y", "the <bt><bt>", "▁<bt>"]
    special = {*tokenizer.source.tags.values()}
    assert len(special) == len(TAGS)
    for line, ids in zip(lines, tokenizer.encode_source(lines), strict=True):
        assert not special & set(ids)
        assert tokenizer.decode_source(ids) == line
        assert ids[-1] == EOS


def test_unknown_tag_is_an_error_with_the_known_tags(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="`<fr>` has no token: .* only `<bt>`, `<2de>`;"):
        trained(tmp_path / "a", tags=TAGS).tagged("<fr>")
    with pytest.raises(ConfigError, match="the tokenizer has none; `tokenizer.tags` reserves"):
        trained(tmp_path / "b").tagged("<bt>")


def test_copied_tokenizer_gets_only_missing_tags(tmp_path: Path) -> None:
    old = trained(tmp_path / "old", tags=["<bt>"])
    new = extended(tmp_path / "old", tmp_path / "new", PAIRS, tags=TAGS)
    assert new.source_size == old.source_size + 1
    assert new.source.tags == {**old.source.tags, "<2de>": old.source_size}
    lines = [pair.source for pair in PAIRS]
    assert new.encode_source(lines) == old.encode_source(lines)
    again = extended(tmp_path / "new", tmp_path / "again", PAIRS, tags=TAGS)
    assert again.fingerprint == new.fingerprint


def test_tags_and_new_tokens_are_added_together(tmp_path: Path) -> None:
    old = trained(tmp_path / "old", tags=["<bt>"])
    pairs = [SentencePair("zebra quagga", "zebra quagga")] * 20
    new = extended(tmp_path / "old", tmp_path / "new", pairs, tags=("<2de>",), added_tokens=10)
    assert new.source_size == old.source_size + 11
    assert [*new.source.tags] == ["<bt>", "<2de>"]
    assert new.source.algorithm == "bpe"
    assert len(new.encode_source(["zebra"])[0]) < len(old.encode_source(["zebra"])[0])
