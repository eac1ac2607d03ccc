"""What can be wrong with a pair of texts, a function each; pure, and blind to the other pairs.

Each says True where something is wrong. They look at characters alone, and are made to be silent
on good text rather than to find all that is bad.
"""

import functools
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable

from mt.languages import base_language, count_in, in_letters, letters_in, script_share

_ALLOWANCE = 10
"""Added to both lengths before they are divided: short texts may differ more."""

MIN_SCRIPT_SHARE = 0.3
"""Names, formulas and code in Latin letters stand in good text of any script."""

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
_MARK_APART = re.compile(r"(?<=[^\s.,?!;:]) (?:[.,?!;:](?= |$)|[。、，．！？；：])")
_MARK_ATTACHED = re.compile(r"(?<=[^\s.,?!;:])(?:[.,?!;:](?= |$)|[。、，．！？；：])")
_FRENCH_APART = re.compile(r"(?<=[^\s.,?!;:]) [.,](?= |$)")
_FRENCH_ATTACHED = re.compile(r"(?<=[^\s.,?!;:])[.,](?= |$)")
_IDEOGRAPHIC = letters_in("Han", "Kana")
_GAP = re.compile(f"(?<=[{_IDEOGRAPHIC}]) +(?=[{_IDEOGRAPHIC}])")
_WORD_CHARACTERS = 3
"""The mean word of segmented Chinese or Japanese has fewer characters than that."""
_SEPARATOR = re.compile("(?<=\\d)[.,:'’٫٬．，\u00a0\u202f](?=\\d)")
_MAGNITUDE = re.compile("[万萬亿億千百兆만억]")
_DIGITS = re.compile(r"\d+")


def has_empty_side(source: str, target: str) -> bool:
    """Say whether a side holds nothing but white space."""
    return not source.strip() or not target.strip()


def has_identical_sides(source: str, target: str) -> bool:
    """Say whether both sides are the same text but for white space around it.

    A text without letters, as a number, may well be its own translation.
    """
    return source.strip() == target.strip() and any(map(str.isalpha, source))


@functools.lru_cache(maxsize=1 << 14)  # several checks ask it of the same few thousand texts
def weighted_length(text: str) -> int:
    """Return the length of a text without white space, in letters of an alphabet.

    A Chinese character counts 3, a kana or a Korean syllable 2, as in `in_letters`.
    """
    return in_letters("".join(text.split()))


def length_ratio(source: str, target: str) -> float:
    """Return how many times longer the longer side is, from 1 up.

    Lengths are those of `weighted_length`, with 10 added to each: a greeting may be thrice as long
    as its translation, a paragraph may not.
    """
    lengths = weighted_length(source) + _ALLOWANCE, weighted_length(target) + _ALLOWANCE
    return max(lengths) / min(lengths)


def in_wrong_script(text: str, language: str, *, min_share: float = MIN_SCRIPT_SHARE) -> bool:
    """Say whether less than `min_share` of a text's letters are in a script of its language.

    Letters weigh what `script_share` says.
    """
    share = script_share(text, language)
    return share is not None and share < min_share


def has_mojibake(text: str) -> bool:
    """Say whether a text holds U+FFFD, or UTF-8 that was read as Latin-1 or Windows-1252."""
    return not text.isascii() and _MOJIBAKE.search(text) is not None


def holds_tokens(text: str) -> bool:
    """Say whether a text is cut into subwords: `▁` of SentencePiece, `@@` of BPE, `##`."""
    return _TOKENS.search(text) is not None


def looks_tokenized(text: str, language: str) -> bool:
    """Say whether a text was cut into words for a machine.

    The signs: escapes such as `&apos;` and `-LRB-`, a space before a clitic, more punctuation with
    a space before it than without, and in Chinese or Japanese a space after every word. In French,
    where a space does stand before `!?;:`, points and commas alone are counted.
    """
    if _ESCAPES.search(text):
        return True
    french = base_language(language) in {"fr", "fra", "fre"}
    apart, attached = (_FRENCH_APART, _FRENCH_ATTACHED) if french else (_MARK_APART, _MARK_ATTACHED)
    if len(apart.findall(text)) > len(attached.findall(text)):
        return True
    gaps = 0 if text.isascii() else len(_GAP.findall(text))
    if gaps < 2:
        return False
    return count_in(text, "Han") + count_in(text, "Kana") < _WORD_CHARACTERS * (gaps + 1)


def has_control_characters(text: str) -> bool:
    """Say whether a text holds NUL, another control character but tab, U+2028 or U+2029."""
    return _CONTROL.search(text) is not None


def without_control_characters(text: str) -> str:
    """Return a text without what `has_control_characters` finds.

    What ends a line, as U+2028 or U+0085, becomes a space; anything else goes.
    """
    return _CONTROL.sub(lambda found: " " if found[0].isspace() else "", text)


def has_markup(text: str) -> bool:
    """Say whether a text holds a tag or a character reference of HTML or XML."""
    return _MARKUP.search(text) is not None


def numbers_differ(source: str, target: str) -> bool:
    """Say whether each side has a number that the other has not.

    Numbers are strings of digits of any script, without zeros in front. They are compared without
    separators (`1,000` is `1.000`), then group by group (`6:30` is `6 Uhr 30`), and beside 万 and
    its like without zeros at the end (`40,000` is `4万`); all have to differ. Number words cannot
    be seen, so a number on one side alone is no difference.
    """
    if not (_DIGITS.search(source) and _DIGITS.search(target)):
        return False
    whole_left, whole_right = _SEPARATOR.sub("", source), _SEPARATOR.sub("", target)
    if not _unlike(_numbers(whole_left), _numbers(whole_right)):
        return False
    if not _unlike(_numbers(source), _numbers(target)):
        return False
    if not _MAGNITUDE.search(source + target):
        return True
    return _unlike(
        [number.rstrip("0") for number in _numbers(whole_left)],
        [number.rstrip("0") for number in _numbers(whole_right)],
    )


def _unlike(left: Iterable[str], right: Iterable[str]) -> bool:
    ours, theirs = Counter(left), Counter(right)
    return bool(ours - theirs) and bool(theirs - ours)


def _numbers(text: str) -> list[str]:
    return [_ascii(digits).lstrip("0") or "0" for digits in _DIGITS.findall(text)]


def _ascii(digits: str) -> str:
    return digits if digits.isascii() else "".join(str(int(digit)) for digit in digits)


def normalized(text: str) -> str:
    """Return a text without case, spacing, punctuation and width, for comparing.

    NFKC and case folding; then punctuation, white space and control characters go. A text that
    has nothing else comes back without white space around it.
    """
    folded = unicodedata.normalize("NFKC", text).casefold()
    return folded.translate(_unspaced()) or text.strip()


class _Unspaced(dict[int, int | None]):
    """What becomes of each character; asked of `unicodedata` once."""

    def __missing__(self, code: int) -> int | None:
        kept = None if unicodedata.category(chr(code))[0] in "PZC" else code
        self[code] = kept
        return kept


@functools.cache
def _unspaced() -> _Unspaced:
    return _Unspaced()
