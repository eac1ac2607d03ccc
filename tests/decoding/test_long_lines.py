import time
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mt.decoding.text import joiner, split_line


def count_characters(texts: Sequence[str]) -> list[int]:
    return [len(text) + 1 for text in texts]


def count_words(texts: Sequence[str]) -> list[int]:
    return [len(text.split()) + 1 for text in texts]


def split_words(line: str, longest: int) -> list[str]:
    return split_line(line, longest, count_tokens=count_words)


def split_characters(line: str, longest: int) -> list[str]:
    return split_line(line, longest, count_tokens=count_characters)


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
        ("What?! No... but yes!) Well.so", 3, ["What?! No...", "but yes!)", "Well.so"]),
        ("one,; two:) three;four five", 3, ["one,; two:)", "three;four five"]),
        ("oh, no not in the end. Go on", 5, ["oh,", "no not in the", "end.", "Go on"]),
    ],
)
def test_the_best_cut_that_is_there(line: str, longest: int, parts: list[str]) -> None:
    assert split_words(line, longest) == parts


@pytest.mark.parametrize(
    ("line", "longest", "parts"),
    [
        ("我们走吧。“好的。”他说！真的吗？", 11, ["我们走吧。“好的。”", "他说！真的吗？"]),
        ("早上好，你好吗，我很好", 9, ["早上好，你好吗，", "我很好"]),
        ("一二三四五六七", 4, ["一二三", "四五六", "七"]),
        ("价格3.5元。好", 8, ["价格3.5元。", "好"]),
    ],
)
def test_chinese_needs_no_space_after_a_mark(line: str, longest: int, parts: list[str]) -> None:
    assert split_characters(line, longest) == parts


def test_packing_takes_as_much_as_fits_and_no_more() -> None:
    line = " ".join(["a."] * 100)
    parts = split_words(line.upper(), 11)
    assert [len(part.split()) for part in parts] == [10] * 10


@pytest.mark.parametrize(
    ("at_the_start", "between_words", "words_in_a_part"),
    [(0, 0, 7), (0, 2, 3), (1, 0, 6)],
    ids=["as the sum", "more than the sum", "less than the sum"],
)
def test_tokens_that_reach_across_a_cut_are_counted_as_they_are(
    at_the_start: int, between_words: int, words_in_a_part: int
) -> None:
    def count(texts: Sequence[str]) -> list[int]:
        words = [len(text.split()) for text in texts]
        return [at_the_start + n + between_words * max(n - 1, 0) + 1 for n in words]

    parts = split_line("aa bb cc dd ee ff gg hh ii jj kk ll", 8, count_tokens=count)
    assert {len(part.split()) for part in parts[:-1]} == {words_in_a_part}
    assert " ".join(parts) == "aa bb cc dd ee ff gg hh ii jj kk ll"


def test_a_letter_keeps_its_combining_marks() -> None:
    assert split_characters("ab" + "e\u0301" * 3, 4) == ["ab", "e\u0301", "e\u0301", "e\u0301"]


def test_one_character_too_long_by_itself_stands_alone() -> None:
    def count(texts: Sequence[str]) -> list[int]:
        return [4 * len(text) + 1 for text in texts]

    assert split_line("ab c", 3, count_tokens=count) == ["a", "b", "c"]


@given(
    line=st.text(alphabet='ab .,!。，？"」3\u3000\u2028\u0301', max_size=80),
    longest=st.integers(2, 12),
)
def test_nothing_is_lost_and_every_part_fits(line: str, longest: int) -> None:
    parts = split_characters(line, longest)
    assert "".join("".join(parts).split()) == "".join(line.split())
    assert all(len(part) + 1 <= longest for part in parts)
    assert all(part == part.strip() != "" for part in parts)


def test_a_very_long_line_takes_time_in_proportion() -> None:
    counted = 0

    def count(texts: Sequence[str]) -> list[int]:
        nonlocal counted
        counted += sum(map(len, texts))
        return [len(text) + 1 for text in texts]

    line = "x" * 40_000
    parts = split_line(line, 100, count_tokens=count)
    assert "".join(parts) == line
    assert len(parts) == -(-40_000 // 99)
    assert counted < 30 * len(line)


@pytest.mark.parametrize("mark", [".", "…", ",", "؛", "。", "，", '."', ",)"])
def test_a_very_long_run_of_marks_takes_time_in_proportion(mark: str) -> None:
    line = (mark[0] * 200_000 + mark[1:] * 200_000) + "x"
    started_at = time.process_time()
    parts = split_characters(line, 1000)
    assert time.process_time() - started_at < 2
    assert "".join(parts) == line


@pytest.mark.parametrize(
    ("language", "between"),
    [
        ("zh", ""),
        ("zh-Hant", ""),
        ("zh_CN", ""),
        ("zho", ""),
        ("ja", ""),
        ("th", ""),
        ("en", " "),
        ("ko", " "),
        ("de-AT", " "),
    ],
)
def test_joiner(language: str, between: str) -> None:
    assert joiner(language) == between
