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
from mt.data.glossary import Glossary, Term, as_terms, read_terms
from mt.errors import DataError


def glossary(*rows: tuple[str, str], source: str = "en", target: str = "de") -> Glossary:
    targets: dict[str, list[str]] = {}
    for term, translation in rows:
        targets.setdefault(term, []).append(translation)
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
    terms=st.lists(st.text("电脑桌子", min_size=1, max_size=3), min_size=1, max_size=8),
    text=st.text("电脑桌子，", max_size=20),
)
def test_longest_terms_are_found_in_text_without_spaces(terms: list[str], text: str) -> None:
    assert found(",".join(terms), text, "zh") == match_naively(terms, text, "{}")


@pytest.mark.parametrize(
    ("language", "term", "text", "forms"),
    [
        ("en", "an", "and An ant", "An"),
        ("en", "plan", "plans planet Plan", "Plan"),
        ("en", "floor", "floors flood Floor floored floorings", "floors Floor floored"),
        ("en", "printer", "Printers printed PRINTER printer's", "Printers PRINTER printer"),
        ("en", "company", "companies COMPANY compan company2", "companies COMPANY compan"),
        ("en", "IT", "it IT Its", "IT"),
        ("en", "iPhone", "iphone iPhones IPHONE iPhone", "IPHONE iPhone"),
        ("en", "model2", "models model2 MODEL2 model", "model2 MODEL2"),
        ("de", "Vertrag", "Vertrags Vertrages Verträge Vertragspartner", "Vertrags Vertrages"),
        ("fr", "école", "l'école écoles écolier", "école écoles"),
        ("ru", "собака", "собаки собакой собаками собачий", "собаки собакой собаками"),
        ("tr", "ışık", "IŞIK Işıklar isik", "IŞIK"),
        ("tr", "sözleşme", "SÖZLEŞME sözleşmesi sözleşmeler", "SÖZLEŞME sözleşmesi"),
        ("el", "βιβλίο", "βιβλία ΒΙΒΛΊΩΝ βιβλιοθήκη", "βιβλία ΒΙΒΛΊΩΝ"),
        ("ko", "계약", "계약을 계약에서 계약자에게서 계", "계약을 계약에서"),
        ("hi", "किताब", "किताबें किताबों किताबखाना", "किताबें किताबों"),
        ("hi", "हि", "हिन्दी हि", "हि"),
        ("ar", "كتاب", "كتابان كتاب", "كتاب"),
        ("ar", "المدرسة", "المدرسة المدرستان مدرسة", "المدرسة"),
        ("chr", "ᎠᎹ", "ᎠᎹ ᎠᎹᏱ", "ᎠᎹ"),
        ("ka", "კომპიუტერი", "კომპიუტერს კომპიუტერის ქალი", "კომპიუტერს კომპიუტერის"),
        ("zh", "电", "我的电脑", "电"),
        ("zh", "iPhone", "新iPhone手机", "iPhone"),
        ("th", "กา", "กา กา้", "กา"),
    ],
)
def test_forms_of_a_term_are_found(language: str, term: str, text: str, forms: str) -> None:
    assert " ".join(found(term, text, language)) == forms


@pytest.mark.parametrize(
    ("terms", "text", "parts"),
    [
        ("new york, new york city, york", "New York. New  York\tcity, York", "3"),
        ("shop", "shop www.shop.com info@shop.org", ["shop"]),
        ("name", "{name} name %(name)s", ["name"]),
        ("windows 11", "Windows 11", ["Windows 11"]),
        ("e\u0301te\u0301", "été \u00e9t\u00e9", ["été", "été"]),
        ("strasse", "Straße", ["Straße"]),
        ("half-life", "half-life half life", ["half-life"]),
    ],
)
def test_terms_are_whole_words_outside_of_copied_text(terms: str, text: str, parts: Any) -> None:
    parts = ["New York", "New  York\tcity", "York"] if parts == "3" else parts
    assert found(terms, text) == parts


def test_a_term_that_is_written_as_in_the_text_goes_first() -> None:
    rows = ("turkey", "Truthahn"), ("Turkey", "Türkei"), ("turkeys", "Puten")
    matches = glossary(*rows).find("turkey Turkey turkeys")
    assert [match.term.targets[0] for match in matches] == ["Truthahn", "Türkei", "Puten"]


@pytest.mark.parametrize(
    ("rows", "source", "translation", "fates"),
    [
        ([("cat", "Katze")], "a cat", "eine Katze", ["used"]),
        ([("cat", "Katze")], "A CAT", "zwei Katzen", ["inflected"]),
        ([("cat", "roter Hund")], "a cat", "der rote Hund", ["missed"]),
        ([("cat", "kleine Katze")], "a cat", "einer kleinen Katze", ["inflected"]),
        ([("cat", "Katze")], "a cat", "ein Hund", ["missed"]),
        ([("cat", "Katze")], "a cat", "Katzenfutter", ["missed"]),
        ([("cat", "Katze")], "a cat and a cat", "eine Katze", ["used", "missed"]),
        ([("cat", "Katze"), ("cat", "Kater")], "a cat", "ein Kater", ["used"]),
        ([("sofa", "Sofa"), ("couch", "Sofa")], "sofa, couch", "das Sofa", ["used", "missed"]),
        ([("phone", "iPhone")], "a phone", "ein Iphone", ["missed"]),
        ([("phone", "iPhone")], "A PHONE", "EIN IPHONE", ["used"]),
        ([("cats", "Katzen"), ("cat", "Katze")], "cats, a cat", "Katze, Katzen", ["used", "used"]),
    ],
)
def test_terms_are_checked_in_a_translation(
    rows: list[tuple[str, str]], source: str, translation: str, fates: list[str]
) -> None:
    terms = glossary(*rows)
    matches = terms.find(source)
    places = terms.locate(matches, translation)
    assert [("inflected" if p[1] else "used") if p else "missed" for p in places] == fates


@pytest.mark.parametrize(
    ("row", "text", "is_first", "target"),
    [
        (("house", "maison"), "house", False, "maison"),
        (("house", "maison"), "House", False, "Maison"),
        (("house", "maison"), "HOUSE", False, "MAISON"),
        (("Hund", "dog"), "Hund", False, "dog"),
        (("Hund", "dog"), "Hund", True, "Dog"),
        (("phone", "iPhone"), "Phone", True, "iPhone"),
        (("house", "房子"), "House", True, "房子"),
        (("Berlin", "Berlin"), "berlin", False, "Berlin"),
    ],
)
def test_case_follows_the_source(
    row: tuple[str, str], text: str, is_first: bool, target: str
) -> None:
    terms = glossary(row, target="fr")
    [match] = terms.find(f"a {text}")
    assert terms.write_target(match, starts_sentence=is_first) == target


def test_rows_are_read_with_notes_and_alternatives(tmp_path: Path) -> None:
    path = tmp_path / "terms.tsv"
    path.write_bytes(b"\xef\xbb\xbfcat\tKatze\tan animal\r\n\r\ncat\tKater\r\ncat\tKatze\r\n")
    assert read_terms(path) == (Term("cat", ("Katze", "Kater")),)
    terms = Term("cat", ("Katze", "Kater")), Term("dog", ("Hund",))
    assert as_terms({"cat": ["Katze", "Kater"], "dog": "Hund"}) == terms


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "has no term"),
        (b"\n \n", "has no term"),
        (b"a\tb\nc\n", "line 2: has 0 tabs; write source term, tab, target term"),
        (b"a\tb\tc\td\n", "line 1: has 3 tabs"),
        (b"a\tb\n\tc\n", "line 2: the source term is empty"),
        (b"a\t \n", "line 1: the target term is empty"),
        (b"a\tb\nc\t\xff\n", "line 2 is not UTF-8 .*iconv"),
        (b"a\tb\1\n", "line 1: the target term has `\ufffd`; leave out"),
        ("a\u2028\tb\n".encode(), "line 1: the source term has `"),
        (b"a <b>c</b>\td\n", "line 1: the source term has `<b>`; leave out markup"),
        (b"a\tR&amp;D\n", "line 1: the target term has `&amp;`"),
        (b"%s files\td\n", "line 1: the source term has `%s`"),
        (b"{name}\td\n", "line 1: the source term has `{name}`"),
        (b"a\twww.example.org\n", "line 1: the target term has `www.example.org`"),
        (b"12\td\n", "line 1: the source term `12` has no letter"),
        ("a\tb".encode("utf-16"), "is UTF-16, not UTF-8"),
    ],
)
def test_a_row_that_is_no_term_is_named(content: bytes, message: str, tmp_path: Path) -> None:
    path = tmp_path / "terms.tsv"
    path.write_bytes(content)
    with pytest.raises(DataError, match=message):
        read_terms(path)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ({"a": ["b", ""]}, "the target term is empty"),
        ({"a": []}, "the target term is empty"),
        ({"": "b"}, "the source term is empty"),
        ({"a": "<b>"}, "the target term has `<b>`"),
        ({"a\n": "b"}, "the source term has "),
    ],
)
def test_a_given_row_that_is_no_term_is_named(rows: Any, message: str) -> None:
    [source] = rows
    with pytest.raises(DataError, match=f"glossary: `{source.strip()}.?`: {message}"):
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
