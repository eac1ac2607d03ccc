"""Checks of single pairs of texts by their characters.

Each check returns True for a defect. Precision comes before recall: good text should pass.
"""

import functools
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable

from mt.languages import base_language, count_in, in_letters, letters_in, script_share

_ALLOWANCE = 10
"""Added to both lengths of a ratio, since short texts may differ more."""

MIN_SCRIPT_SHARE = 0.3
"""Good text of any script contains names, formulas and code in Latin letters."""

_CP1252 = "€‚ƒ„…†‡ˆ‰Š‹ŒŽ‘’“”•–—˜™š›œžŸ"
_CONTINUATION = f"[\x80-\xbf{_CP1252}]"
_MOJIBAKE = re.compile(
    "\ufffd|ï¿½|ï»¿|锟斤拷"
    "|[ÂÃ][\x80-\xbf]|ÃŸ"  # Latin-1: ä as Ã¤, a no-break space as Â and itself
    f"|â€{_CONTINUATION}|â\x80[\x80-\xbf]"  # quotation marks and dashes
    "|[ÄÅ][‚ƒ„†‡ˆ™›œžŸ¡-ª¬-±´-¸º¼-¿]"  # other letters of Latin
    f"|(?:[ÎÏÐÑ×ØÙ]{_CONTINUATION}){{2}}"  # Greek, Cyrillic, Hebrew, Arabic: each letter is two
    f"|(?:[à-ï]{_CONTINUATION}{{2}}){{2}}"  # the rest: each character is three
    f"|ðŸ{_CONTINUATION}{{2}}|ð\x9f[\x80-\xbf]{{2}}"  # emoji
)
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029]")
_MARKUP = re.compile(
    r"</?[A-Za-z][\w:-]*(?:\s[^<>]*)?/?>|&(?:#\d{2,6}|#[xX][0-9A-Fa-f]{2,5}|[A-Za-z]{2,8});"
)
_TOKENS = re.compile(r"▁|\S@@(?:\s|$)|\s##\w")
_ESCAPES = re.compile(
    r"-[LR][RSC]B-|&(?:apos|quot|#39|#91|#93|#124);|@[-/,.]@|``\s|\s''(?:\s|$)"
    r"|\w (?:n't|'(?:s|m|re|ve|ll|d)|n 't|'t)(?= |$)"
)
_MARK = re.compile(r"(?<=[^\s.,?!;:])( ?)(?:[.,?!;:](?= |$)|[。、，．！？；：])")
_FRENCH_MARK = re.compile(r"(?<=[^\s.,?!;:])( ?)[.,](?= |$)")
"""Punctuation after a word, and the space before it."""
_IDEOGRAPHIC = letters_in("Han", "Kana")
_GAP = re.compile(f"(?<=[{_IDEOGRAPHIC}]) +(?=[{_IDEOGRAPHIC}])")
_WORD_CHARACTERS = 3
"""Upper bound of the mean word length in segmented Chinese or Japanese."""
_SEPARATOR = re.compile("(?<=\\d)[.,:'’٫٬．，\u00a0\u202f](?=\\d)")
MAGNITUDE = re.compile("[万萬亿億千百兆만억]")
"""A power of ten in place of zeros."""
_DIGITS = re.compile(r"\d+")


def has_empty_side(source: str, target: str) -> bool:
    """Return True if a side is empty or white space."""
    return not source.strip() or not target.strip()


def has_identical_sides(source: str, target: str) -> bool:
    """Return True if both sides are the same text with letters, up to white space around it.

    A text without letters, such as a number, may be its own translation.
    """
    return source.strip() == target.strip() and any(map(str.isalpha, source))


@functools.lru_cache(maxsize=1 << 14)  # several checks need it for the same texts
def weighted_length(text: str) -> int:
    """Return the length of a text without white space, in letters of an alphabet.

    A Chinese character counts 3, a kana or a Korean syllable 2, as in `in_letters`.
    """
    return in_letters("".join(text.split()))


def length_ratio(source: str, target: str) -> float:
    """Return the ratio of the longer to the shorter side, 1 or more.

    Lengths are those of `weighted_length` plus 10 each: a greeting may be three times as long as
    its translation, a paragraph may not.
    """
    lengths = weighted_length(source) + _ALLOWANCE, weighted_length(target) + _ALLOWANCE
    return max(lengths) / min(lengths)


def in_wrong_script(text: str, language: str, *, min_share: float = MIN_SCRIPT_SHARE) -> bool:
    """Return True if less than `min_share` of the letters are in a script of the language.

    Letters are weighted as in `script_share`.
    """
    share = script_share(text, language)
    return share is not None and share < min_share


def has_mojibake(text: str) -> bool:
    """Return True for U+FFFD, and for UTF-8 decoded as Latin-1 or Windows-1252."""
    return not text.isascii() and _MOJIBAKE.search(text) is not None


def holds_tokens(text: str) -> bool:
    """Return True for subword marks: `▁` of SentencePiece, `@@` of BPE, `##` of WordPiece."""
    return _TOKENS.search(text) is not None


def looks_tokenized(text: str, language: str) -> bool:
    """Return True for the output of a word tokenizer.

    Signs are escapes such as `&apos;` and `-LRB-`, a space before a clitic, more punctuation with
    a space before it than without, and spaces between words of Chinese or Japanese. French has
    spaces before `!?;:`, so only points and commas count there.
    """
    if _ESCAPES.search(text):
        return True
    french = base_language(language) == "fr"
    spaces = (_FRENCH_MARK if french else _MARK).findall(text)
    if spaces.count(" ") > spaces.count(""):
        return True
    gaps = 0 if text.isascii() else len(_GAP.findall(text))
    if gaps < 2:
        return False
    return count_in(text, "Han") + count_in(text, "Kana") < _WORD_CHARACTERS * (gaps + 1)


def has_control_characters(text: str) -> bool:
    """Return True for control characters other than tab, and for U+2028 and U+2029."""
    return _CONTROL.search(text) is not None


def without_control_characters(text: str) -> str:
    """Remove the characters of `has_control_characters`; line ends such as U+2028 become spaces."""
    return _CONTROL.sub(lambda found: " " if found[0].isspace() else "", text)


def has_markup(text: str) -> bool:
    """Return True for a tag or character reference of HTML or XML."""
    return _MARKUP.search(text) is not None


def numbers_differ(source: str, target: str) -> bool:
    """Return True if each side has a number that the other lacks.

    Numbers are digits of any script without leading zeros. They are compared without separators
    (`1,000` is `1.000`), by groups (`6:30` is `6 Uhr 30`), and in texts with 万 or the like without
    trailing zeros (`40,000` is `4万`); all three must differ. A number on one side alone is no
    difference, since the other may have a number word.
    """
    if not (_DIGITS.search(source) and _DIGITS.search(target)):
        return False
    whole_left, whole_right = _SEPARATOR.sub("", source), _SEPARATOR.sub("", target)
    if not _unlike(_numbers(whole_left), _numbers(whole_right)):
        return False
    if not _unlike(_numbers(source), _numbers(target)):
        return False
    if not MAGNITUDE.search(source + target):
        return True
    return _unlike(
        [number.rstrip("0") for number in _numbers(whole_left)],
        [number.rstrip("0") for number in _numbers(whole_right)],
    )


def _unlike(left: Iterable[str], right: Iterable[str]) -> bool:
    one, other = Counter(left), Counter(right)
    return bool(one - other) and bool(other - one)


def _numbers(text: str) -> list[str]:
    found = ("".join(str(int(digit)) for digit in digits) for digits in _DIGITS.findall(text))
    return [digits.lstrip("0") or "0" for digits in found]


def normalized(text: str) -> str:
    """Return a text without case, spacing, punctuation and width, for comparisons.

    After NFKC and case folding, punctuation, white space and control characters are removed. A
    text of these alone is only stripped.
    """
    folded = unicodedata.normalize("NFKC", text).casefold()
    encoded = folded.encode("utf-8", "surrogatepass").translate(None, _ASCII_PUNCTUATION)
    kept = encoded.decode("utf-8", "surrogatepass")
    if not kept.isalnum():  # the translation is slow
        kept = folded.translate(_KEPT)
    return kept or text.strip()


class _Kept(dict[int, int | None]):
    """Translation table without punctuation, white space and control characters."""

    def __missing__(self, code: int) -> int | None:
        self[code] = None if unicodedata.category(chr(code))[0] in "PZC" else code
        return self[code]


_KEPT = _Kept()
_ASCII_PUNCTUATION = bytes(code for code in range(128) if _KEPT[code] is None)
"""Also white space and control characters."""
