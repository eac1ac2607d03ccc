"""Terms of a glossary: reading, finding in sources, checking in translations."""

import random
import re
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mt.config.data import Direction
from mt.data.glossary import Glossary, Term, as_terms, find_whole, read_memory, read_terms
from mt.errors import DataError, UserError


def glossary(*rows: tuple[str, str], source: str = "en", target: str = "de") -> Glossary:
    targets: dict[str, str] = {}
    for term, translation in rows:
        targets[term] = f"{targets[term]}|{translation}" if term in targets else translation
    return Glossary(as_terms(targets), Direction(source, target))


def found(terms: str, text: str, language: str = "en") -> list[str]:
    """Return the parts of a text where terms, separated by commas, are found."""
    rows = [(term.strip(), "x") for term in terms.split(",")]
    return [match.text for match in glossary(*rows, source=language).find(text)]


def match_naively(terms: list[str], text: str, borders: str = r"(?<!\w){}(?!\w)") -> list[str]:
    """Return the longest terms first, each between word borders, in the order of the text."""
    places = [
        (-len(term), match.start(), term)
        for term in {*terms}
        for match in re.finditer(f"(?={borders.format(re.escape(term))})", text)
    ]
    chosen: list[tuple[int, int, str]] = []
    for length, start, term in sorted(places):
        if all(start - length <= at or at - other <= start for at, other, _ in chosen):
            chosen.append((start, length, term))
    return [term for *_, term in sorted(chosen)]


WORDS = st.sampled_from(["ab", "abc", "b", "ba", "bab", "c"])


@settings(deadline=None, max_examples=200)
@given(
    terms=st.lists(st.lists(WORDS, min_size=1, max_size=3).map(" ".join), min_size=1, max_size=8),
    text=st.lists(WORDS | st.sampled_from([",", "."]), max_size=12).map(" ".join),
)
def test_longest_terms_are_found_as_by_a_naive_search(terms: list[str], text: str) -> None:
    assert found(",".join(terms), text) == match_naively(terms, text)


@settings(deadline=None, max_examples=200)
@given(
    terms=st.lists(
        st.sampled_from(["电脑", "电", "大学", "大学生", "学生", "桌子", "子"]), min_size=1
    ),
    words=st.lists(st.sampled_from(["电脑", "桌子", "大学生", "学生", "，"]), max_size=8),
)
def test_longest_terms_are_found_as_whole_words_without_spaces(
    terms: list[str], words: list[str]
) -> None:
    assert found(",".join(terms), "".join(words), "zh") == match_naively(terms, " ".join(words))


@pytest.mark.parametrize(
    ("language", "terms", "text", "parts"),
    [
        # Case as in the row, in capitals, and with a capital at the start of a sentence.
        ("de", "Macht, recht, Essen", "Was macht Tom? Recht so. MACHT, Recht essen", "Recht MACHT"),
        ("en", "it, IT, iPhone", "IT: it Is; an Iphone, IPHONE", "IT it IPHONE"),
        ("tr", "ışık", "IŞIK ISIK Işık", "IŞIK"),
        # The forms of the row and no others.
        ("en", "file|files, party", "Files, a file, profile, parties, filed", "Files file"),
        ("de", "Haus|Häuser", "Häuser, Hauses, Haus", "Häuser Haus"),
        # Whole words, also beside signs that join words.
        ("en", "cat", "cat.txt /usr/cat <cat> cat-food @cat a_cat cat's 'cat'. (cat)", "cat " * 3),
        ("en", "C, C++, .NET", "C++17 or C++, ASP.NET or .NET. C", "C++ .NET C"),
        (
            "en",
            "half-life, life",
            "half-life half\u2011life, life",
            "half-life half\u2011life life",
        ),
        ("fr", "école", "l'école, L’école, écoles", "école école"),
        ("en", "e\u0301te\u0301", "été \u00e9t\u00e9", "été été"),
        ("ar", "كتاب", "الكتاب كتاب", "كتاب"),
        ("hi", "हि", "हिन्दी हि", "हि"),
        ("ko", "계약", "계약을 계약", "계약"),
        ("ka", "სახლი", "სახლი სახლში", "სახლი"),
        ("chr", "ᎠᎹ", "ᎠᎹ ᎠᎹᏱ", "ᎠᎹ"),
        # In scripts without spaces, the longest terms; a run of katakana or Latin is a word.
        ("zh", "电, 电脑, iPhone", "我的电脑和电，新iPhone手机", "电脑 电 iPhone"),
        ("ja", "パン, サーバ, サーバー", "パンダとパン、サーバー、京都", "パン サーバー"),
        ("ja", "大学, 京都", "大学生は東京都の大学へ", "大学"),
        ("th", "กา", "กา กา้", "กา"),
        ("th", "กา", "กากับกาแฟ", "กา"),
        ("zh", "汤, 大学", "汤姆喝汤，大学生在大学", "汤 大学"),
    ],
)
def test_terms_are_found_as_they_are_written(
    language: str, terms: str, text: str, parts: str
) -> None:
    assert " ".join(found(terms, text, language)) == parts.strip()


@pytest.mark.parametrize(
    ("terms", "text", "parts"),
    [
        ("new york, new york city, york", "new york. new  york\tcity, york", "3"),
        ("shop", "shop www.shop.com info@shop.org", ["shop"]),
        ("name", "{name} name %(name)s", ["name"]),
        ("windows 11", "Windows 11", ["Windows 11"]),
    ],
)
def test_terms_are_not_found_in_copied_text(terms: str, text: str, parts: Any) -> None:
    parts = ["new york", "new  york\tcity", "york"] if parts == "3" else parts
    assert found(terms, text) == parts


def test_a_term_that_is_written_as_in_the_text_goes_first() -> None:
    rows = ("turkey", "Truthahn"), ("Turkey", "Türkei"), ("turkeys", "Puten")
    matches = glossary(*rows).find("Turkey? turkey turkeys")[::-1]
    assert [match.term.targets[0] for match in matches] == ["Puten", "Truthahn", "Türkei"]


@pytest.mark.parametrize(
    ("row", "text", "translation", "target"),
    [
        (("house", "maison"), "a house", "y X", "maison"),
        (("house", "maison"), "house", "X", "Maison"),
        (("house", "maison"), "house", "x", "maison"),
        (("house", "maison"), "A HOUSE", "x", "MAISON"),
        (("phone", "iPhone"), "phone", "X", "iPhone"),
        (("house", "房子"), "House", "X", "房子"),
        (("I", "je"), "so I", "x", "je"),
    ],
)
def test_case_follows_the_place(
    row: tuple[str, str], text: str, translation: str, target: str
) -> None:
    terms = glossary(row, target="fr")
    [match] = terms.find(text)
    assert terms.write_target(match, translation, len(translation) - 1) == target


def test_as_many_forms_on_both_sides_are_pairs() -> None:
    terms = {term.source: term.targets for term in as_terms({"file|files": "Datei|Dateien"})}
    assert terms == {"file": ("Datei", "Dateien"), "files": ("Dateien", "Datei")}
    assert as_terms({"house": "Haus|Häuser"}) == (Term("house", ("Haus", "Häuser")),)


@pytest.mark.parametrize("header", ["English\tGerman", "source\ttarget\tnote", "en\tde"])
def test_names_of_columns_are_no_term(
    header: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "terms.tsv"
    path.write_text(f"{header}\ncat\tKatze\nterm\tAusdruck\n")
    assert read_terms(path) == (Term("cat", ("Katze",)), Term("term", ("Ausdruck",)))
    assert f"{path}: line 1 has names of columns" in caplog.text
    path.write_text("term\tAusdruck\nEnglish\tEnglisch\n")
    assert len(read_terms(path)) == 2


def test_rows_are_read_with_notes_and_alternatives(tmp_path: Path) -> None:
    path = tmp_path / "terms.tsv"
    path.write_bytes(b"\xef\xbb\xbfcat\tKatze\tan animal\r\n\r\ncat\tKater\r\ncat\tKatze\r\n")
    assert read_terms(path) == (Term("cat", ("Katze", "Kater")),)
    terms = Term("cat", ("Katze", "Kater")), Term("dog", ("Hund",))
    assert as_terms({"cat": "Katze|Kater", "dog": "Hund"}) == terms


@pytest.mark.parametrize(
    ("content", "places"),
    [
        (b"", "has no term"),
        (b"\n \n", "has no term"),
        (b"English\tGerman\n", "has no term"),
        (b"a\tb\nc\nd\te\n\tc\n", "line 2 .*line 4 "),
        (
            b"a\tb\tc\td\na\t \n%\tx\n24/7\tx\na|\tb\na\tb|\n",
            " ".join(f"line {number}.*" for number in range(1, 7)),
        ),
        (b"a\tb\nc\t\xff\n", "line 2 is not UTF-8 .*iconv"),
        (b"a\tb\1\n", "line 1 has `\ufffd`; leave out"),
        ("a\u2028\tb\n".encode(), "line 1 has `"),
        ("a\tb\u200b\n".encode(), "line 1 has `"),
        (b"a <b>c</b>\td\n", "line 1 has `<b>`"),
        (b"a\tR&amp;D\n", "line 1 has `&amp;`"),
        (b"%s files\td\n{name}\td\n", "line 1 has `%s`.*line 2 has `{name}`"),
        (b"a\twww.example.org\n", "line 1 has `www.example.org`"),
        ("a\tb".encode("utf-16"), "is UTF-16, not UTF-8"),
    ],
)
def test_all_rows_that_are_no_terms_are_named(content: bytes, places: str, tmp_path: Path) -> None:
    path = tmp_path / "terms.tsv"
    path.write_bytes(content)
    with pytest.raises(DataError, match=places):
        read_terms(path)


@pytest.mark.parametrize("rows", [{"a": "b|"}, {"a": ""}, {"": "b"}, {"a": "<b>"}, {"a\tb": "c"}])
def test_a_given_row_that_is_no_term_is_named(rows: Any) -> None:
    [source] = rows
    with pytest.raises(DataError, match=f"glossary: `{source[:1]}"):
        as_terms(rows)


@pytest.mark.parametrize(("language", "letters"), [("en", "abcdefgh"), ("zh", "电脑桌子书本门窗")])
def test_terms_are_found_fast_in_a_large_glossary(language: str, letters: str) -> None:
    random.seed(1)
    joiner = " " if language == "en" else ""
    words = list({"".join(random.choices(letters, k=random.randint(2, 8))) for _ in range(9000)})
    rows = {joiner.join(random.choices(words, k=random.randint(1, 3))): "x" for _ in range(25_000)}
    terms = Glossary(as_terms(rows), Direction(language, "de"))
    texts = [joiner.join(random.choices(words, k=12)) for _ in range(100)]
    seconds = []
    for _ in range(3):
        began_at = time.process_time()
        assert all(terms.find(text) for text in texts[:50])
        seconds.append(time.process_time() - began_at)
    assert min(seconds) / 50 < 0.003, "a scan of all terms takes 0.05 s"


UNIT = "<tu><tuv xml:lang='EN-us'><seg>{}</seg></tuv><tuv xml:lang='de'><seg>{}</seg></tuv></tu>"


@pytest.mark.parametrize("suffix", [".tmx", ".tsv"])
def test_a_memory_has_the_last_target_of_the_normal_form_of_a_text(
    suffix: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rows = [("A  café", "x"), ("b", "1"), ("c", ""), ("", "y"), ("b", "2"), ("b", "3"), ("B", "4")]
    form = UNIT if suffix == ".tmx" else "{}\t{}\n"
    content = "".join(form.format(*row) for row in rows)
    path = tmp_path / f"memory{suffix}"
    path.write_text(f"<tmx>{content}</tmx>" if suffix == ".tmx" else f"en\tde\n{content}")
    memory = read_memory(path, Direction("en", "de"))
    assert memory == {"A café": "x", "b": "3", "B": "4"}
    assert "1 texts have several targets, the last is taken: `b` is `3`, not `2`" in caplog.text
    texts = ["\tA cafe\u0301\u00a0", "a café", "A café.", "b\n", "c", ""]
    assert [find_whole(memory, text) for text in texts] == ["\tx", None, None, "3", None, None]


def test_a_file_that_is_no_memory_is_refused(tmp_path: Path) -> None:
    french = UNIT.format("a", "b").replace("de", "fr")
    for name, content, message in (
        ("a.txt", "a\tb\n", "a.txt: unknown suffix"),
        ("a.tsv", "a\tb\nc\n", "a.tsv: line 2 has 1 columns"),
        ("a.tmx", f"<tmx>{french}</tmx>", "its languages are `EN-us`, `fr`"),
    ):
        (tmp_path / name).write_text(content)
        with pytest.raises(UserError, match=message):
            read_memory(tmp_path / name, Direction("en", "de"))
