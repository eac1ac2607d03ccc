"""Changed copies of training pairs."""

from collections import Counter
from dataclasses import asdict
from random import Random

import numpy as np
import pytest

from mt.config import TokenizerConfig
from mt.data.augmentation import FILLER, Augmentation, Noise, copied_text, with_typos
from mt.data.pairs import SentencePair
from mt.data.store import Chunk, LeftOut, Rows
from mt.data.tokenizer import Tokenizer, Vocabulary
from mt.data.tokenizer_training import train_model

PAIRS = [
    SentencePair(f"The café number {n} doesn't open.", f"Das Café Nummer {n} öffnet nicht!")
    for n in range(300)
]
CONFIG = TokenizerConfig(vocabulary_size=400, tags=("<bt>",))
LINES = [side for pair in PAIRS for side in (pair.source, pair.target)]
VOCABULARY = Vocabulary.from_model(train_model(LINES, CONFIG))
TOKENIZER = Tokenizer(VOCABULARY, VOCABULARY, "")
NONE = dict.fromkeys(asdict(Augmentation()), 0.0)


def chunk_of(pairs: list[SentencePair], tokenizer: Tokenizer = TOKENIZER) -> Chunk:
    source = tokenizer.encode_source([pair.source for pair in pairs])
    target = tokenizer.encode_target([pair.target for pair in pairs])
    return Chunk(Rows.of(source), Rows.of(target), LeftOut(0, 0, len(pairs)))


def drawn(
    shares: dict[str, float], *, seed: int = 1, max_tokens: int = 999, chunk: Chunk | None = None
) -> Chunk:
    augmentation = Augmentation(**{**NONE, **shares})
    sequence = np.random.SeedSequence(seed)
    return augmentation.apply(chunk or chunk_of(PAIRS), TOKENIZER, sequence, max_tokens=max_tokens)


def texts(chunk: Chunk) -> list[SentencePair]:
    return [
        SentencePair(
            TOKENIZER.decode_source(chunk.source[row].tolist()),
            TOKENIZER.decode_target(chunk.target[row].tolist()),
        )
        for row in range(len(chunk.source))
    ]


@pytest.mark.parametrize(
    ("kind", "source", "target"),
    [
        ("upper_case", "THE CAFÉ NUMBER 7 DOESN'T OPEN.", "DAS CAFÉ NUMMER 7 ÖFFNET NICHT!"),
        ("title_case", "The Café Number 7 Doesn't Open.", "Das Café Nummer 7 Öffnet Nicht!"),
        ("lower_case", "the café number 7 doesn't open.", "Das Café Nummer 7 öffnet nicht!"),
        (
            "no_final_punctuation",
            "The café number 7 doesn't open",
            "Das Café Nummer 7 öffnet nicht",
        ),
        ("no_diacritics", "The cafe number 7 doesn't open.", "Das Café Nummer 7 öffnet nicht!"),
    ],
)
def test_each_kind_changes_its_sides(kind: str, source: str, target: str) -> None:
    assert texts(drawn({kind: 1.0}))[7] == SentencePair(source, target)


def test_joined_pairs_are_those_that_follow() -> None:
    counts = Counter[int]()
    for row, pair in enumerate(texts(drawn({"joined_pairs": 1.0}))):
        count = pair.source.count("number")
        joined = PAIRS[row : row + count]
        assert pair.source == " ".join(each.source for each in joined)
        assert pair.target == " ".join(each.target for each in joined)
        counts[count] += 1
    assert set(counts) == {1, 2, 3, 4}, "the last row has no pair after it"
    assert counts[1] == 1


@pytest.mark.parametrize(
    ("text", "joined"),
    [
        ("我累。", "我累。我累。"),
        ("他说“好”", "他说“好”他说“好”"),
        ("我有 3 GB", "我有 3 GB我有 3 GB"),
        ("はい", "はいはい"),
        ("네 가요", "네 가요 네 가요"),
        ("สวัสดี", "สวัสดี สวัสดี"),
        ("ខ្ញុំទៅ។", "ខ្ញុំទៅ។ ខ្ញុំទៅ។"),
        ("I am.", "I am. I am."),
    ],
)
def test_sentences_are_joined_as_in_decoding(text: str, joined: str) -> None:
    chunk = chunk_of([SentencePair(text, "I am.")] * 2)
    assert texts(drawn({"joined_pairs": 1.0}, chunk=chunk))[0] == SentencePair(
        joined, "I am. I am."
    )


def test_copied_text_is_the_same_on_both_sides() -> None:
    changed = texts(drawn({"copied_text": 1.0}))
    alone = [pair for pair in changed if pair.source == pair.target]
    assert len(alone) == pytest.approx(0.2 * len(PAIRS), abs=25)
    extras = set()
    for new, old in zip(changed, PAIRS, strict=True):
        if new in alone:
            continue
        assert old.source in new.source
        extra = new.source.replace(old.source, "", 1)
        assert extra == new.target.replace(old.target, "", 1) != ""
        assert extra.startswith(" ") != extra.endswith(" ")
        extras.add(extra.strip())
    assert len(extras) > 150
    some = {copied_text(Random(seed)) for seed in range(500)}
    for sign in ("https://", "@", "{", "%", "$", "...", "-0", ":"):
        assert any(sign in each for each in some), sign


def test_draws_follow_from_the_seed_and_leave_the_rest_unchanged() -> None:
    shares = asdict(Augmentation())
    plain = texts(chunk_of(PAIRS))
    one, again, other = (texts(drawn(shares, seed=seed)) for seed in (1, 1, 2))
    assert one == again != other
    same = sum(new == old for new, old in zip(one, plain, strict=True)) / len(plain)
    assert same == pytest.approx(1 - sum(shares.values()), abs=0.08)
    assert texts(drawn({})) == plain


def test_long_rows_and_tags_are_kept() -> None:
    tagged = chunk_of(PAIRS, TOKENIZER.tagged("<bt>", "<bt>"))
    limit = int(max(tagged.source.lengths.max(), tagged.target.lengths.max()))
    longer = drawn({"joined_pairs": 1.0}, chunk=tagged, max_tokens=limit)
    assert texts(longer) == PAIRS
    tag = VOCABULARY.tags["<bt>"]
    upper = drawn({"upper_case": 1.0}, chunk=tagged)
    assert [upper.source[row][0] for row in range(len(PAIRS))] == [tag] * len(PAIRS)
    assert [upper.target[row][0] for row in range(len(PAIRS))] == [tag] * len(PAIRS)
    assert [upper.target[row][1] for row in range(len(PAIRS))] != [tag] * len(PAIRS)
    assert texts(upper)[0].source == PAIRS[0].source.upper()


def test_typo_swaps_drops_or_doubles_a_letter_of_a_long_word() -> None:
    changed = set()
    for seed in range(300):
        words = with_typos("An abcdef 12345 go.", Random(seed)).split(" ")
        assert (words[0], *words[2:]) == ("An", "12345", "go.")
        changed.add(words[1])
    swaps, drops = "acbdef abdcef abcedf abcdfe", "acdef abdef abcef abcdf"
    assert changed == {*f"{swaps} {drops} abbcdef abccdef abcddef abcdeef".split()}


WORDS = [f"w{number}" for number in range(40)]
TEXT = " ".join(WORDS)


def on(
    noise: Noise, text: str = TEXT, *, line: int = 1, seed: int = 1, language: str = "de"
) -> str:
    return noise.on(text, language=language, seed=seed, line=line)


def test_words_are_dropped_or_masked_with_the_given_probability() -> None:
    kept = [on(Noise(drop=0.25), line=line).split() for line in range(200)]
    assert all(words == sorted(words, key=WORDS.index) for words in kept)
    assert sum(map(len, kept)) / (200 * len(WORDS)) == pytest.approx(0.75, abs=0.02)
    masked = [on(Noise(mask=0.1), line=line).split() for line in range(200)]
    for words in masked:
        assert all(word in {FILLER, was} for word, was in zip(words, WORDS, strict=True))
    share = sum(words.count(FILLER) for words in masked) / (200 * len(WORDS))
    assert share == pytest.approx(0.1, abs=0.02)
    assert on(Noise(), " a  b\u3000 ") == " a  b\u3000 "


def test_words_move_up_to_the_given_distance() -> None:
    moved = set()
    for line in range(200):
        words = on(Noise(swap=3), line=line).split()
        assert sorted(words) == sorted(WORDS)
        moved |= {abs(place - WORDS.index(word)) for place, word in enumerate(words)}
    assert moved == {0, 1, 2, 3}


@pytest.mark.parametrize("language", ["de", "zh"])
def test_at_least_one_word_remains(language: str) -> None:
    texts = [on(Noise(drop=0.99), "猫 hat", line=line, language=language) for line in range(50)]
    assert set(texts) <= {"猫", "hat", "猫 hat"}
    assert "猫" in texts


def test_in_unspaced_languages_words_are_characters_and_latin_words() -> None:
    text = "我在New York买了2个苹果。"
    units = ["我", "在", "New", "York", "买", "了", "2", "个", "苹", "果", "。"]
    masked = [on(Noise(mask=0.3), text, line=line, language="zh") for line in range(100)]
    assert sum(each.count(FILLER) for each in masked) / 1100 == pytest.approx(0.3, abs=0.05)
    rest = "".join(masked).replace(FILLER, "")
    assert not set(rest) - set(text)
    for line in range(20):
        swapped = on(Noise(swap=2), text, line=line, language="zh")
        assert all(unit in swapped for unit in units)
        assert len(swapped.replace(" ", "")) == len(text) - 1
