"""Numbers in digits: the same ones on both sides, and those that a translation lacks."""

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import islice

from mt.languages import FINAL_MARKS, in_letters

MAGNITUDE = re.compile("[万萬亿億千百兆만억]")
"""A power of ten in place of zeros."""
_DIGIT_RUN = re.compile(r"\d+")
_JOINS = "[.,:/'’\u00a0\u202f–-]"
"""Mark inside a number, date, time or range."""
_LETTER = "A-Za-zªºÀ-ÖØ-öø-ʯͰ-Ͽ\u0400-\u052f"
NUMBER = re.compile(
    rf"(?<![\d{_LETTER}])(?<!{MAGNITUDE.pattern})(?<!\d{_JOINS})(?<![{_LETTER}]-)(?:(?<!\S)[+−-])?"
    rf"(?:\d{{1,3}}(?>(?: \d{{3}})+)(?!\d)|\d(?>(?:{_JOINS}?\d)*))"
    rf"(?!\s?{MAGNITUDE.pattern}|['’-]?[{_LETTER}]|年代|世[纪紀])"
)
"""A number of digits alone; 1000万 is another one in most languages, H2O and 1930's are words."""
_DIGITS = re.compile(rf"\d(?>(?:{_JOINS}?\d| (?=\d{{3}}(?!\d))\d)*)")
_SEPARATOR = re.compile("[.,'’ \u00a0\u202f]")
_THOUSANDS = re.compile(rf"{_SEPARATOR.pattern}(?=(?:\d\d{_SEPARATOR.pattern})*\d{{3}}(?!\d))")
_MYRIADS = re.compile(r"(?<=\d)[万萬亿億만억](?=\d{4}(?!\d))")
_ASCII_MARKS = str.maketrans("٫٬．：／－", ".,.:/-")
_TIME = r"\d{1,2}(?::\d\d|\.[0-5][05])?"
_SHORT = re.compile(rf"{_TIME}(?:[–-]{_TIME})?|\d{{1,2}}(?:[.,]5|/\d{{1,2}})")
"""A number that is often written in words: 7, 10:30, 2.5, 1/2, 3-5, 8:15-9."""
_BESIDE = "+−-$€£¥%‰° "
_STEMS = (
    "hundr hundert honderd thousand tausend duizend tusen tusind million millón milj milió billion "
    "billón milliard miliard nineteen twenty ciento cento tysi tisíc tuhan tuhat sataa száz ezer "
    "тысяч тисяч сот сто миллион мільйон χίλι χιλι εκατ सौ हज़ार हजार लाख करोड़ ألف آلاف مائ مئ ملي "
    "אלף אלפ מאה מאות ร้อย พัน หมื่น แสน ล้าน ათას ასი"
)
_WORDS = "cent cents mil mille mila cem cien sto sta set sata yüz bin trăm nghìn ngàn ratus ribu"
_IN_WORDS = re.compile(
    rf"(?:[〇零一二两兩三四五六七八九十数數\d]\s?|(?<!\w)){MAGNITUDE.pattern}|[백천]|[〇零一二三四五六七八九十]{{3}}"
    rf"|元年|(?:明治|大正|昭和|平成|令和|民[国國])[一二三四五六七八九十]"
    rf"|\b[CDILMVX]{{3,}}\b|(?i:{'|'.join(_STEMS.split())}|\b(?:{'|'.join(_WORDS.split())})\b)"
)
"""A part of a number of three digits or more in words, in some languages."""
_ERAS = {543, 1867, 1911, 1925, 1988, 2018}
"""Years before the first of the Buddhist era, Meiji to Reiwa, and the Republic of China."""
_UNIT = re.compile(r"\s?(?:[°度]|(?:[kcm]?m|k?g|m?l|ft|lbs?|oz|mi|mph)\b)")
_SENTENCE_END = re.compile(rf"[{FINAL_MARKS}](?=[\s\"'”’»)]|$)|[。！？]")
_CLAUSE_END = re.compile("[,;:、，；：،؛]")
_ALLOWANCE, _MOST_LETTERS = 10, 1.8
_THOUSAND, _LONGEST_YEAR, _SHORTEST_CODE, _MOST_COMPARED = 3, 4, 7, 100


def missing_numbers(source: str, translation: str) -> list[str]:
    """Return the numbers of a source that a translation lacks, or has others in place of.

    Numbers differ neither by digits of another script and other separators, nor by another order of
    the same groups, a month in words, the other form of a time, year or century, or a power of ten
    in words. Short numbers without another one in their place may be in words.
    """
    lacking, others, in_words = _compare(source, translation)
    numbers = [source[number.start() : number.end()] for number in lacking]
    return [number for number in numbers if others or not (in_words or is_short(number))]


def lost_numbers(source: str, translation: str) -> list[str]:
    """Return the missing numbers that have nothing in their place, neither digits nor words.

    Round numbers and measures are not among them, which a translation may express otherwise, nor is
    any number of a source of which the translation seems to lack more.
    """
    lacking, others, in_words = _compare(source, translation)
    if in_words or len(lacking) <= others or _is_shortened(source, translation):
        return []
    matched = {number.span() for number in NUMBER.finditer(lacking[0].string)}
    matched -= {number.span() for number in lacking}
    used = Counter(_groups(" ".join(source[start:end] for start, end in matched)))
    unused = Counter(_groups(_in_ascii(translation))) - used
    return [
        source[number.start() : number.end()]
        for number in lacking
        if not is_short(number[0])
        and len(_significant(_value(number[0]))[0]) > 1
        and not _UNIT.match(number.string, number.end())
        and unused.keys().isdisjoint(_groups(number[0]))
    ]


def _is_shortened(source: str, translation: str) -> bool:
    """Return True for a translation with fewer parts or far fewer letters than its source."""
    texts = [_DIGITS.sub("", text) for text in (source, translation)]
    lengths = [in_letters("".join(text.split())) + _ALLOWANCE for text in texts]
    sentences = [len(_SENTENCE_END.findall(text)) for text in texts]
    has_clauses = [_CLAUSE_END.search(text) is not None for text in texts]
    return (
        lengths[0] > _MOST_LETTERS * lengths[1]
        or sentences[0] != sentences[1]
        or has_clauses[0] > has_clauses[1]
    )


def _compare(source: str, translation: str) -> tuple[list[re.Match[str]], int, int]:
    """Return the numbers of a source without a counterpart, and counts of the others.

    These are the numbers of the translation without a counterpart, in digits and in words.
    """
    ours, theirs = _in_ascii(source), _in_ascii(translation)
    if NUMBER.search(ours) is None:
        return [], 0, 0
    read, written = _Numbers.of(ours), _Numbers.of(theirs)
    lacking = written.lacks(NUMBER.finditer(ours), read)
    if not lacking:
        return [], 0, 0
    others = read.lacks(_DIGITS.finditer(theirs), written)
    return lacking, len(others), len(_IN_WORDS.findall(translation))


@dataclass(frozen=True, slots=True)
class _Numbers:
    """Numbers of a text, in the forms in which those of another text are looked up."""

    values: frozenset[str]
    groups: Counter[str]
    exponents: Mapping[str, set[int]]
    """Exponents of ten by the digits without zeros at their ends."""
    has_power: bool
    """True if a power of ten may be in words."""

    @classmethod
    def of(cls, text: str) -> "_Numbers":
        numbers = _DIGITS.findall(_MYRIADS.sub("", text))
        values = frozenset(map(_value, numbers)) | frozenset(map(_code, numbers))
        exponents: dict[str, set[int]] = {}
        for digits, exponent in map(_significant, values):
            exponents.setdefault(digits, set()).add(exponent)
        return cls(values, Counter(_groups(text)), exponents, bool(MAGNITUDE.search(text)))

    def lacks(self, numbers: Iterable[re.Match[str]], others: "_Numbers") -> list[re.Match[str]]:
        """Return those of the numbers of another text that this one does not have in any form."""
        has_power = self.has_power or others.has_power
        return [number for number in numbers if not self._has(number[0], has_power=has_power)]

    def _has(self, number: str, *, has_power: bool) -> bool:
        value = _value(number)
        digits, exponent = _significant(value)
        if (
            value in self.values
            or _code(number) in self.values
            or any(
                has_power or abs(exponent - other) >= _THOUSAND
                for other in self.exponents.get(digits, ())
            )
        ):
            return True
        own = _groups(number)
        missing = [group for group, count in Counter(own).items() if count > self.groups[group]]
        if len(own) > len(missing) == 1 and _is_between(1, missing[0], 12):
            own.remove(missing[0])
            if all(group in self.values and not _is_between(32, group, 999) for group in own):
                return True  # a month in words
        others = [*islice(self.groups, _MOST_COMPARED)]
        return all(any(_are_related(group, other) for other in others) for group in missing)


def _groups(text: str) -> list[str]:
    """Return the runs of digits of a text, zeros left out where there are others."""
    groups = [digits.lstrip("0") for digits in _DIGIT_RUN.findall(text)]
    return [*filter(None, groups)] or ["0" for _ in groups]


def _is_between(least: int, group: str, most: int) -> bool:
    return len(group) <= _LONGEST_YEAR and least <= int(group) <= most


def _are_related(one: str, other: str) -> bool:
    """Test for an hour, year, decade or century in another form."""
    if one == other or max(len(one), len(other)) > _LONGEST_YEAR:
        return False
    small, large = sorted((int(one), int(other)))
    return (
        (large <= 24 and large - small == 12)
        or (1000 <= large < 2200 and small in {large % 100, large // 100 + 1})
        or (1000 <= large < 3000 and large - small in _ERAS)
    )


def _significant(value: str) -> tuple[str, int]:
    """Return the digits of a number without zeros at its ends, and the exponent of ten."""
    whole, _, decimals = value.partition(".")
    digits = (whole + decimals).rstrip("0")
    return digits.lstrip("0"), len(whole) - len(digits)


def _code(number: str) -> str:
    """Return the digits of a long number, as of a telephone or a book, else the number."""
    digits = "".join(_DIGIT_RUN.findall(number))
    return digits if len(digits) >= _SHORTEST_CODE else number


def is_short(number: str) -> bool:
    """Test for a number that is often written in words, also with a currency or percent sign."""
    return _SHORT.fullmatch(_in_ascii(number).strip(_BESIDE)) is not None


def numbers_differ(source: str, target: str) -> bool:
    """Return True if each side has a number that the other lacks in any form.

    A number on one side alone is no difference, since the other may have a number word.
    """
    if not (_DIGIT_RUN.search(source) and _DIGIT_RUN.search(target)):
        return False
    ours, theirs = _in_ascii(source), _in_ascii(target)
    left, right = _Numbers.of(ours), _Numbers.of(theirs)
    return bool(right.lacks(_DIGITS.finditer(ours), left)) and bool(
        left.lacks(_DIGITS.finditer(theirs), right)
    )


def _value(number: str) -> str:
    """Return a number without sign and thousands separators, with a point for the decimal one."""
    value = _SEPARATOR.sub(".", _THOUSANDS.sub("", number.lstrip("+−-")))
    return value.rstrip("0").rstrip(".") if value.count(".") == 1 else value


def _in_ascii(text: str) -> str:
    """Return a text of the same length with digits and their marks in ASCII."""
    if text.isascii():
        return text
    return "".join(
        str(unicodedata.decimal(character)) if character.isdecimal() else character
        for character in text.translate(_ASCII_MARKS)
    )
