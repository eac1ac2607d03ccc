import io

import pytest
import sentencepiece
from hypothesis import given
from hypothesis import strategies as st

from mt.config import TokenizerConfig
from mt.data.tokenizer_training import train_model
from mt.data.vocabulary import Vocabulary, escape, unescape
from mt.special_ids import BOS, EOS, PAD, UNK

LINES = [f"the {noun} sees  the cat, 你好，世界。" for noun in ("dog", "bird", "fish", "horse")]


def trained(**settings: str) -> Vocabulary:
    config = TokenizerConfig.model_validate(settings)
    return Vocabulary.from_model(train_model(LINES, config=config, seed=1))


BPE = trained(algorithm="bpe")
UNIGRAM = trained(algorithm="unigram")

anything = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\n"))
awkward = st.text(
    st.sampled_from("▁\U000f2581_= \t\r\0\u2028\u0085\u3000，e\u0301é<>/s\u2585⁇\ufffd🇨🇭")
)


@pytest.mark.parametrize("vocabulary", [BPE, UNIGRAM], ids=["bpe", "unigram"])
@given(text=anything | awkward)
def test_decoding_is_the_inverse_of_encoding(vocabulary: Vocabulary, text: str) -> None:
    (ids,) = vocabulary.encode([text])
    assert ids[-1] == EOS
    assert not {PAD, UNK, BOS, EOS} & set(ids[:-1])
    assert vocabulary.decode(ids) == text


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "  two  runs   of spaces ",
        "全角，标点。！",
        "a▁b ▁ ▁▁",
        "\U000f2581 \U000f2581_ \U000f2581= ▁\U000f2581▁",
        "🧑‍🧑‍🧒 👍🏽",
        "NUL \0 BEL \a ESC \x1b DEL \x7f",
        "line\u2028paragraph\u2029next\u0085feed\x0c tab\t return\r",
        "</s><unk><s><pad> <0x41><0xE2>",
        "e\u0301 é \ufb01 Ａ ｶﾞ \u1112\u1161\u11ab",
        "\ufeff\u200b\u00ad\ufffe\U0010ffff",
    ],
)
@pytest.mark.parametrize("vocabulary", [BPE, UNIGRAM], ids=["bpe", "unigram"])
def test_odd_texts_come_back_as_they_were(vocabulary: Vocabulary, text: str) -> None:
    assert vocabulary.decode(vocabulary.encode([text])[0]) == text


@given(anything | awkward)
def test_escaping_leaves_no_space_mark_and_can_be_undone(text: str) -> None:
    assert "▁" not in escape(text)
    assert unescape(escape(text)) == text


def test_an_escape_character_that_introduces_nothing_is_left_alone() -> None:
    assert unescape("\U000f2581a\U000f2581") == "\U000f2581a\U000f2581"


@given(st.lists(st.integers(0, len(BPE) - 1), max_size=40))
def test_any_ids_have_a_reading(ids: list[int]) -> None:
    assert isinstance(BPE.decode(ids), str)


def test_decoding_stops_at_the_end_mark_and_skips_padding_and_begin() -> None:
    dog, bird = BPE.encode(["dog"])[0][:-1], BPE.encode(["bird"])[0][:-1]
    assert BPE.decode([BOS, *dog, PAD, *bird, EOS, *dog]) == "dog bird"


def test_broken_bytes_and_unknown_tokens_become_replacement_characters() -> None:
    first_of_three = next(i for i, token in enumerate(BPE.token_bytes) if token == b"\xe4")
    (cat, *_) = BPE.encode(["cat"])
    assert BPE.decode([first_of_three, *cat]) == "\ufffd cat"
    assert BPE.decode([UNK, first_of_three, first_of_three]) == "\ufffd\ufffd\ufffd"


@pytest.mark.parametrize("wrong", [-1, len(BPE)])
def test_ids_outside_the_vocabulary_are_a_defect_of_the_caller(wrong: int) -> None:
    with pytest.raises((AssertionError, IndexError)):
        BPE.decode([wrong])


def test_many_lines_are_encoded_as_each_alone() -> None:
    lines = [f"{number} dogs{' ' * number}" for number in range(200)]
    assert BPE.encode(lines) == [BPE.encode([line])[0] for line in lines]
    assert BPE.encode([]) == []


def test_without_byte_fallback_an_unseen_character_is_unknown() -> None:
    vocabulary = trained(byte_fallback="off")
    (ids,) = vocabulary.encode(["the ß"])
    assert UNK in ids
    assert vocabulary.decode(ids) == "the \ufffd"


def test_what_is_no_model_is_refused() -> None:
    with pytest.raises(ValueError, match="is no SentencePiece model"):
        Vocabulary.from_model(b"no model")


def test_a_model_with_other_special_ids_is_refused() -> None:
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(LINES),
        model_writer=model,
        vocab_size=300,
        hard_vocab_limit=False,
        minloglevel=2,
    )
    with pytest.raises(ValueError, match="other special ids"):
        Vocabulary.from_model(model.getvalue())
