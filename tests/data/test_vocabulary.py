import io

import pytest
import sentencepiece
from hypothesis import example, given

from mt.config import TokenizerConfig
from mt.data.tokenizer import Vocabulary, escape, unescape
from mt.data.tokenizer_training import train_model
from mt.special_ids import BOS, EOS, PAD, UNK
from tests.factories import LINES_OF_TEXT

LINES = [f"the {noun} sees  the cat, 你好，世界。" for noun in ("dog", "bird", "fish", "horse")]


def trained(**settings: str) -> Vocabulary:
    config = TokenizerConfig.model_validate(settings)
    return Vocabulary.from_model(train_model(LINES, config))


BPE = trained(algorithm="bpe")
UNIGRAM = trained(algorithm="unigram")


@pytest.mark.parametrize("vocabulary", [BPE, UNIGRAM], ids=["bpe", "unigram"])
@given(text=LINES_OF_TEXT)
@example(text="")
@example(text="  two  runs   of spaces ")
@example(text="\U000f2581 \U000f2581_ \U000f2581= ▁\U000f2581▁")
@example(text="🧑‍🧑‍🧒 👍🏽 NUL \0 BEL \a ESC \x1b DEL \x7f \x0c \ufeff\u200b\u00ad\ufffe\U0010ffff")
@example(text="</s><unk><s><pad> <0x41><0xE2>")
@example(text="e\u0301 é \ufb01 Ａ ｶﾞ \u1112\u1161\u11ab")
def test_decoding_inverts_encoding(vocabulary: Vocabulary, text: str) -> None:
    (ids,) = vocabulary.encode([text])
    assert ids[-1] == EOS
    assert not {PAD, UNK, BOS, EOS} & set(ids[:-1])
    assert vocabulary.decode(ids) == text


@given(LINES_OF_TEXT)
def test_unescape_inverts_escape(text: str) -> None:
    assert "▁" not in escape(text)
    assert unescape(escape(text)) == text
    assert unescape("\U000f2581a\U000f2581") == "\U000f2581a\U000f2581"


def test_decoding_stops_at_eos_and_skips_pad_and_bos() -> None:
    dog, bird = BPE.encode(["dog"])[0][:-1], BPE.encode(["bird"])[0][:-1]
    assert BPE.decode([BOS, *dog, PAD, *bird, EOS, *dog]) == "dog bird"


def test_invalid_bytes_and_unk_become_replacement_characters() -> None:
    first_of_three = next(i for i, token in enumerate(BPE.token_bytes) if token == b"\xe4")
    (cat, *_) = BPE.encode(["cat"])
    assert BPE.decode([first_of_three, *cat]) == "\ufffd cat"
    assert BPE.decode([UNK, first_of_three, first_of_three]) == "\ufffd\ufffd\ufffd"


def test_foreign_model_is_rejected() -> None:
    with pytest.raises(ValueError, match="is no SentencePiece model"):
        Vocabulary.from_model(b"no model")
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
