from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mt.config import DecodingConfig, TokenizerConfig
from mt.config.data import Direction
from mt.data.sentences import line_shape
from mt.data.tokenizer import Tokenizer, Vocabulary
from mt.data.tokenizer_training import train_model
from mt.decoding.preparation import (
    LineSplitter,
    Prefix,
    Preparation,
    encode_prefixes,
    repair_unicode,
    unknown_characters,
)
from mt.decoding.retries import repeats_itself
from mt.runs import LineStatistics
from tests.factories import foreign_vocabulary

LONE = "lone surrogates are read as U+FFFD"
BYTES = "bytes that are not UTF-8 are read as U+FFFD"


@pytest.mark.parametrize(
    ("line", "repaired", "notes"),
    [
        ("a é 雪 \U0001f600 \ufffd \0", "a é 雪 \U0001f600 \ufffd \0", ()),
        ("a\ud800b\udfff", "a\ufffdb\ufffd", (LONE,)),
        ("a\udcffb", "a\ufffdb", (BYTES,)),
        ("\udcff\ud83d", "\ufffd\ufffd", (LONE, BYTES)),
    ],
)
def test_surrogates_become_the_replacement_character(
    line: str, repaired: str, notes: tuple[str, ...]
) -> None:
    assert repair_unicode(line) == (repaired, notes)


def test_invalid_bytes_are_read_as_by_any_decoder() -> None:
    for line in (b"a\xff\xfeb", b"cut \xe2\x82", b"\xed\xa0\x80", b"\xc0\xaf", bytes(range(256))):
        kept = line.decode("utf-8", "surrogateescape")
        assert repair_unicode(kept) == (line.decode("utf-8", "replace"), (BYTES,))


@pytest.mark.parametrize("algorithm", ["bpe", "unigram"])
@pytest.mark.parametrize("text", ["早上好你好吗", "a cat sat on the mat"])
def test_characters_outside_the_training_text_are_unknown(text: str, algorithm: str) -> None:
    vocabulary = foreign_vocabulary([text] * 10, 300, model_type=algorithm)
    tokenizer = Tokenizer(vocabulary, vocabulary, "")
    line = f"我好☃ my cat ▁ {text} ☃\U000f2581\u2028"
    unknown = [character for character in dict.fromkeys(line) if character not in {*text, " "}]
    assert unknown_characters(line, tokenizer) == unknown
    assert unknown_characters(text, tokenizer) == []


def count_characters(texts: Sequence[str]) -> list[int]:
    return [len(text) + 1 for text in texts]


def count_words(texts: Sequence[str]) -> list[int]:
    return [len(text.split()) + 1 for text in texts]


@pytest.mark.parametrize(
    ("line", "longest", "parts"),
    [
        ("One two. Three four! Five six?", 5, ["One two. Three four!", "Five six?"]),
        ('He said "go." Then he left.', 4, ['He said "go."', "Then he left."]),
        ("It costs 3.5 euros. We pay now.", 5, ["It costs 3.5 euros.", "We pay now."]),
        ("Wir mögen z.B. Obst. Du auch nicht?", 5, ["Wir mögen z.B. Obst.", "Du auch nicht?"]),
        ("Am 3. Mai war es. Und heute ist", 6, ["Am 3. Mai war es.", "Und heute ist"]),
        ("See e.g. this one. And then that", 5, ["See e.g. this one.", "And then that"]),
        ("By J. Smith and others. They know", 6, ["By J. Smith and others.", "They know"]),
        ("one two, three four; five six", 5, ["one two, three four;", "five six"]),
        ("one two three four five", 3, ["one two", "three four", "five"]),
        ("one,; two:) three;four five", 3, ["one,; two:)", "three;four five"]),
        ("oh, no not in the end. Go on", 5, ["oh,", "no not in the", "end.", "Go on"]),
        (" ".join(["A."] * 100), 11, [" ".join(["A."] * 10)] * 10),
        # Cuts between characters, here the tokens, need no space and keep combining marks.
        ("我们走吧。“好的。”他说！真的吗？", 11, ["我们走吧。“好的。”", "他说！真的吗？"]),
        ("早上好，你好吗，我很好", 9, ["早上好，你好吗，", "我很好"]),
        ("一二三四五六七", 4, ["一二三", "四五六", "七"]),
        ("价格3.5元。好", 8, ["价格3.5元。", "好"]),
        ("ab" + "e\u0301" * 3, 4, ["ab", "e\u0301", "e\u0301", "e\u0301"]),
    ],
)
def test_lines_are_split_at_the_best_cut(line: str, longest: int, parts: list[str]) -> None:
    count = count_words if " " in line else count_characters
    assert LineSplitter(longest, count, "en").split(line) == parts


def test_single_character_may_exceed_the_limit() -> None:
    def count(texts: Sequence[str]) -> list[int]:
        return [4 * len(text) + 1 for text in texts]

    assert LineSplitter(3, count, "en").split("ab c") == ["a", "b", "c"]


@given(
    line=st.text(alphabet='ab .,!。，？"」3\u3000\u2028\u0301', max_size=80),
    longest=st.integers(2, 12),
)
def test_splitting_loses_nothing_and_every_part_fits(line: str, longest: int) -> None:
    parts = LineSplitter(longest, count_characters, "en").split(line)
    assert "".join("".join(parts).split()) == "".join(line.split())
    assert all(len(part) + 1 <= longest for part in parts)
    assert all(part == part.strip() != "" for part in parts)


def test_very_long_line_takes_linear_time() -> None:
    counted = 0

    def count(texts: Sequence[str]) -> list[int]:
        nonlocal counted
        counted += sum(map(len, texts))
        return [len(text) + 1 for text in texts]

    line = "x" * 40_000
    parts = LineSplitter(100, count, "en").split(line)
    assert "".join(parts) == line
    assert len(parts) == -(-40_000 // 99)
    assert counted < 30 * len(line)


SOURCE = list(range(100, 110))


@pytest.mark.parametrize(
    ("translation", "source", "finished", "loops"),
    [
        ([1, 2, 3, *[7] * 7], SOURCE, True, False),
        ([1, 2, 3, *[7] * 8], SOURCE, True, True),
        ([1, *[7, 8] * 4, 2], SOURCE, True, True),
        ([1, *[7, 8, 9] * 3, 2], SOURCE, True, False),
        ([1, 2, 3, 1, 2, 3, 4, 1, 2, 3, 5, 3, 1], SOURCE, True, False),
        # Not in a row; an unfinished translation needs less.
        ([1, 2, 3, 1, 2, 3, 2, 1, 2, 3, 1, 3, 1], SOURCE, True, False),
        ([1, 2, 3, 1, 2, 3, 2, 1, 2, 3, 1, 3, 1], SOURCE, False, True),
        (list(range(60)), SOURCE, False, False),
        ([], SOURCE, False, False),
        # A source that repeats itself excuses its translation.
        ([1, *[2, 3] * 8], [5, *[6, 7] * 4], True, False),
        ([1, *[2, 3] * 9], [5, *[6, 7] * 4], True, True),
        ([1, 2, 1, 3] * 3, [5, 6, 6, 6, 5, 6, 5, 5], False, False),
    ],
)
def test_loops_are_detected(
    translation: list[int], source: list[int], finished: bool, loops: bool
) -> None:
    assert repeats_itself(translation, source, finished=finished) is loops


def trained(lines: list[str], **config: object) -> Tokenizer:
    model = train_model(lines, TokenizerConfig.model_validate(config))
    vocabulary = Vocabulary.from_model(model)
    return Tokenizer(vocabulary, vocabulary, "")


def test_white_space_at_the_end_of_a_prefix_is_dropped() -> None:
    tokenizer = trained(["one two", "two three"] * 20)
    bare, spaced, blank, begins = encode_prefixes(["one t", "one t \t", " ", " one"], tokenizer)
    assert bare == spaced == Prefix(tuple(tokenizer.encode_target(["one t"])[0][:-1]))
    assert blank == Prefix()
    assert tokenizer.decode_target(begins.ids) == " one"


def test_prefix_ends_before_an_unknown_character_where_folding_changes_lengths() -> None:
    lines = ["off we go", "a caf\u00e9"] * 20
    vocabulary = foreign_vocabulary(lines, 300, normalization_rule_name="nmt_nfkc")
    tokenizer = Tokenizer(vocabulary, vocabulary, "")
    prefixes = encode_prefixes(["o\ufb00\u96ea", "cafe\u0301 we \u96ea"], tokenizer)
    note = ("prefix: ends before `\u96ea` (U+96EA), unknown to the tokenizer",)
    assert [each.notes for each in prefixes] == [note, note]
    assert [tokenizer.decode_target(each.ids) for each in prefixes] == ["off", "caf\u00e9 we"]


NOUNS, PLACES = ("dog", "bird", "fish", "horse"), ("river", "market", "village", "garden")
ENGLISH = [f"Today the {noun} walks from the {place}." for noun in NOUNS for place in PLACES]
GERMAN = [f"Heute geht der {noun} aus dem {place} heraus." for noun in NOUNS for place in PLACES]
CHEROKEE = [
    "".join(chr(0x13A0 + ord(letter) - ord("a")) if letter.isalpha() else letter for letter in line)
    for line in (line.lower() for line in ENGLISH)
]
CAPITALS = [line.upper() for line in ENGLISH]


def preparation(
    sources: Sequence[str],
    targets: Sequence[str],
    shape: LineStatistics | None = None,
    **settings: float,
) -> Preparation:
    """Prepare lines for a model with a joint vocabulary; its record is that of its sources."""
    config = TokenizerConfig.model_validate({"vocabulary_size": 400, **settings})
    words = Vocabulary.from_model(train_model([*sources, *targets], config))
    return Preparation(
        Tokenizer(words, words, ""),
        DecodingConfig(),
        longest_source=200,
        direction=Direction("en", "de"),
        splits_sentences=True,
        shape=shape or line_shape(sources, "en"),
    )


def texts_of(made: Preparation, line: str) -> list[str]:
    [prepared] = made.prepare([(line, "")])
    return [part.text for part in prepared.inputs]


@pytest.mark.parametrize("shape", [None, LineStatistics(1.0)], ids=["recorded", "unknown"])
def test_capitals_are_the_exception_only_where_the_training_text_has_lower_case(
    shape: LineStatistics | None,
) -> None:
    line = "TODAY THE HORSE WALKS FROM THE RIVER."
    assert texts_of(preparation(ENGLISH, GERMAN, shape), line) == [line.capitalize()]
    for sources in (CAPITALS, *([] if shape else [CAPITALS * 3 + ENGLISH * 2])):
        assert texts_of(preparation(sources, GERMAN, shape), line) == [line]
    for sources in (CHEROKEE, CHEROKEE + ENGLISH * 20):
        assert texts_of(preparation(sources, GERMAN, shape), CHEROKEE[0]) == [CHEROKEE[0]]


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("MARKET VILLAGE GARDEN TODAY", "Market village garden today"),
        ("FROM THE MARKET!", "From the market!"),
        ("WALKS", "WALKS"),
        *((line, line) for line in ("UNESCO", "PDF", "COVID-19", "USB & 3.0")),
    ],
)
def test_a_word_is_no_sentence_in_capitals(line: str, text: str) -> None:
    assert texts_of(preparation(ENGLISH, GERMAN), line) == [text]


RARE = "镯饕綍筊"


def test_rare_characters_of_the_training_text_are_translated() -> None:
    lines = [*["今天天气很好，我们去公园。"] * 400, *(f"{character}也。" for character in RARE)]
    made = preparation(lines, ENGLISH * 40, vocabulary_size=350, character_coverage=0.995)
    assert made.tokenizer.source.characters.isdisjoint(RARE)
    for line in ("镯饕綍。", "綍也"):
        assert texts_of(made, line) == [line]
    foreign = ["ฉันชอบกินข้าว", "Καλημέρα σας", "เขาไป ok", "ᏣᎳᎩ ᎦᏬᏂ", "Читать"]
    assert [texts_of(made, line) for line in foreign] == [[]] * 5
    [prepared] = made.prepare([("ฉัน\xad\u200bชอบ\u200b กิน\xa0ข้าว\u200b", "")])
    assert prepared.gaps == [prepared.line]
    few = preparation([*ENGLISH * 50, "The dog 今 walks."], GERMAN, vocabulary_size=500)
    assert texts_of(few, "今天很好") == []


def test_sentences_are_those_of_the_normal_form() -> None:
    made = preparation(ENGLISH, GERMAN)
    line = "\ufeffMr.\xa0Dog wal\xadks.\u200b\xa0 It is ｂｉｇ．　Ｍｒ．　Fish sees\u2028it.\xad"
    [prepared] = made.prepare([(line, "")])
    assert prepared.line == prepared.text == line
    assert prepared.sentences == (
        *("Mr.\xa0Dog wal\xadks.", "It is ｂｉｇ．", "Ｍｒ．　Fish sees\u2028it."),
    )
    assert prepared.gaps == ["", "\xa0 ", "\u3000", ""]
    plain = "Mr. Dog walks. It is big. Mr. Fish sees it."
    [same] = made.prepare([(plain, "")])
    assert [part.ids for part in same.inputs] == [part.ids for part in prepared.inputs]
