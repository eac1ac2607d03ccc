"""Normal form of text: forms that readers do not tell apart are equal, others stay."""

import time
import unicodedata
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from mt.config import TokenizerConfig
from mt.data.normalization import normalize_source, normalize_target, split_by_form
from mt.data.pairs import SentencePair
from mt.data.tokenizer import Tokenizer, copy_tokenizer, write_models
from mt.data.tokenizer_training import extend_model, learn, train_tokenizer
from tests.factories import LINES_OF_TEXT

EQUAL = {
    **{f"see{space}it": "see it" for space in "\t\x0b\x0c\x1c\x85\xa0\u1680\u2003\u2009\u2028"},
    **{f"see{space}it": "see it" for space in ("\u202f", "\u205f", "\u3000", "\xa0 ", "  ")},
    **{f"pil{mark}low": "pillow" for mark in "\0\x7f\xad\u200b\u200e\u202b\u2060\u2068\ufeff"},
    "\ufeffSee it.\u200b ": "See it.",
    "see \xad it": "see it",
    "葛\U000e0100城": "葛城",
    "Cafe\u0301 Gro\u0308ße": "Café Größe",
    "o\u0302\u0323 o\u0323\u0302 \u00f4\u0323": "ộ ộ ộ",
    "\u1112\u1161\u11ab\u1100\u116e\u11a8": "한국",
    "\u0958": "\u0915\u093c",
    "\u05e9\u05c1\u05bc": "\u05e9\u05bc\u05c1",
    "Ｎｏ．　Ｇｏ，　ｎｏｗ！": "No. Go, now!",
    "１２，５００円": "12,500円",
    "ﾃﾞｰﾀ｡": "データ。",
    "ﬁnd oﬃce": "find office",
    "ﻣﺮﺣﺒﺎ": "مرحبا",
    "𝒃𝒐𝒍𝒅": "bold",
}
SAME = (
    *(" a ", "می‌روم", "क्‍ष", "👩‍🚒 ❤️ 👍🏽", "你好，（世界）！", "x² ½ №", "葛城。"),
    *("ภาษาไทย", "ᏣᎳᎩ", "ქართული", "e\u0335", "“It’s” — «là»…", "\U000f2581_"),
)


@pytest.mark.parametrize(("text", "form"), EQUAL.items())
def test_forms_that_readers_do_not_tell_apart_are_equal(text: str, form: str) -> None:
    assert normalize_source(text) == form


@pytest.mark.parametrize("text", SAME)
def test_marks_that_a_script_needs_stay(text: str) -> None:
    assert (normalize_source(text), normalize_target(text)) == (text, text)


def test_targets_keep_the_characters_that_their_readers_expect() -> None:
    text = "« Où\u202f? »\xa0: １２時　ﾃﾞｰﾀ \u200f(א)\u200f ខ្ញុំ\u200bទៅ"
    assert normalize_target(text) == text
    assert normalize_target("\ufeffWo\u0308r\xadter\u2028da") == "Wörter da"


MIXED = st.text(
    st.sampled_from("aé́̈ẹ  \u3000\xad\ufeff\u200b１Ａｂ，．？！（ｶﾞ한\u1112\u1161\u11abﬁ\u200d\t"),
    max_size=12,
)


@given(MIXED | LINES_OF_TEXT)
@example("a \xad b")
@example("\x1f0¹")
@example("\ufeff　Ａ， ｂ")
def test_a_form_is_final_and_its_parts_give_it(text: str) -> None:
    composed, decomposed = (unicodedata.normalize(form, text) for form in ("NFC", "NFD"))
    for normalize in (normalize_source, normalize_target):
        form = normalize(text)
        assert normalize(form) == form
        assert normalize(composed) == normalize(decomposed)
        parts = [*split_by_form(text, normalize)]
        assert "".join(part for part, _ in parts) == text
        assert "".join(form for _, form in parts) == form


def test_time_is_in_proportion_to_the_length() -> None:
    began = time.perf_counter()
    for text in ("\xad" * 50_000 + "a", "Ａ！" * 20_000, "\u0301" * 50_000, " \xad" * 20_000):
        assert "".join(form for _, form in split_by_form(text, normalize_source)) == (
            normalize_source(text)
        )
    assert time.perf_counter() - began < 5


PAIRS = [
    SentencePair(f"The{space}{noun} is very sm\xadall. Cafe\u0301", f"Le {noun}\xa0! cafe\u0301")
    for noun in ("dog", "bird", "fish", "horse")
    for space in (" ", "\xa0", "\u3000")
]
CONFIG = TokenizerConfig(vocabulary_size=340, vocabulary="separate")


def test_training_and_use_have_one_form(tmp_path: Path) -> None:
    tokenizer = train_tokenizer(lambda: iter(PAIRS), tmp_path / "a", config=CONFIG)
    sources = [pair.source for pair in PAIRS]
    assert len({*map(tuple, tokenizer.encode_source(sources[:3]))}) == 1
    assert tokenizer.source.characters.isdisjoint("\xa0\u3000\xad\u0301")
    assert "\xa0" in tokenizer.target.characters
    [ids] = tokenizer.encode_target([PAIRS[0].target])
    assert tokenizer.decode_target(ids) == "Le dog\xa0! café"
    copy = copy_tokenizer(tmp_path / "a", tmp_path / "copy")
    assert copy.encode_source(sources) == tokenizer.encode_source(sources)


def test_older_tokenizers_encode_the_text_itself(tmp_path: Path) -> None:
    lines = [pair.source for pair in PAIRS]
    old, longer = learn(lines, CONFIG), ["Ｑ ｑｑ ｑｑｑ"] * 9
    more = CONFIG.changed(tags=("<xx>",), added_tokens=20)
    for name, model in {"old": old, "more": extend_model(old, longer, more)}.items():
        tokenizer = write_models(tmp_path / name, {"joint.model": model})
        for ids, line in zip(tokenizer.encode_source(lines), lines, strict=True):
            assert tokenizer.decode_source(ids) == line
    new = train_tokenizer(lambda: iter(PAIRS), tmp_path / "new", config=CONFIG)
    models = {
        name: extend_model((tmp_path / "new" / name).read_bytes(), ["jumped quickly"] * 9, more)
        for name in ("source.model", "target.model")
    }
    extended = write_models(tmp_path / "extended", models)
    assert len(extended.source) > len(new.source)
    [ids] = extended.encode_source(["jumped\xa0quick\xadly"])
    assert extended.decode_source(ids) == "jumped quickly"
    assert Tokenizer.load(tmp_path / "extended").source.is_normal
