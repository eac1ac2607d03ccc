"""Which scripts a language is written in, and how much of a text is in them.

Ranges are those of the blocks of the Unicode Character Database (https://www.unicode.org/ucd/),
as far as living languages use them.
"""

import functools
import re

from mt.languages import base_language

_RANGES = {
    "Latin": "A-Za-zªºÀ-ÖØ-öø-ʯḀ-ỿⱠ-ⱿꜢ-ꟿ\uff21-\uff3a\uff41-\uff5a",
    "Greek": "Ͱ-Ͽἀ-῿",
    "Cyrillic": "Ѐ-ԯᲀ-᲏ⷠ-ⷿꙀ-ꚟ",
    "Armenian": "Ա-֏",
    "Georgian": "Ⴀ-ჿᲐ-Ჿⴀ-⴯",
    "Hebrew": "\u0590-\u05ff\ufb1d-\ufb4f",
    "Arabic": "\u0600-\u06ff\u0750-\u077f\u0870-\u08ff\ufb50-\ufdff\ufe70-\ufefc",
    "Devanagari": "\u0900-\u097f\ua8e0-\ua8ff",
    "Bengali": "\u0980-\u09ff",
    "Gurmukhi": "\u0a00-\u0a7f",
    "Gujarati": "\u0a80-\u0aff",
    "Oriya": "\u0b00-\u0b7f",
    "Tamil": "\u0b80-\u0bff",
    "Telugu": "\u0c00-\u0c7f",
    "Kannada": "\u0c80-\u0cff",
    "Malayalam": "\u0d00-\u0d7f",
    "Sinhala": "\u0d80-\u0dff",
    "Thai": "\u0e00-\u0e7f",
    "Lao": "\u0e80-\u0eff",
    "Tibetan": "\u0f00-\u0fff",
    "Myanmar": "\u1000-\u109f\ua9e0-\ua9ff\uaa60-\uaa7f",
    "Ethiopic": "\u1200-\u139f\u2d80-\u2ddf",
    "Khmer": "\u1780-\u17ff",
    "Han": "\u2e80-\u2fdf\u3005-\u3007\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U000323af",
    "Kana": "\u3041-\u309f\u30a0-\u30ff\u31f0-\u31ff\uff66-\uff9f",
    "Hangul": "\u1100-\u11ff\u3130-\u318f\ua960-\ua97f\uac00-\ud7ff",
}
"""Inside of a regular expression's class, by script."""

_LANGUAGES = {
    ("Han",): "zh",
    ("Han", "Kana"): "ja",
    ("Hangul", "Han"): "ko",
    ("Greek",): "el ell",
    ("Cyrillic",): "ru rus uk ukr be bel bg bul mk mkd kk kaz ky kir tg tgk mn mon ba tt cv",
    ("Cyrillic", "Latin"): "sr srp uz uzb bs",
    ("Armenian",): "hy hye",
    ("Georgian",): "ka kat",
    ("Hebrew",): "he heb iw yi yid",
    ("Arabic",): "ar ara arz fa fas per ur urd ps pus ug uig sd ckb",
    ("Devanagari",): "hi hin mr mar ne nep sa san mai bho",
    ("Bengali",): "bn ben as asm",
    ("Gurmukhi", "Arabic"): "pa pan",
    ("Gujarati",): "gu guj",
    ("Oriya",): "or ori ory",
    ("Tamil",): "ta tam",
    ("Telugu",): "te tel",
    ("Kannada",): "kn kan",
    ("Malayalam",): "ml mal",
    ("Sinhala",): "si sin",
    ("Thai",): "th",
    ("Lao",): "lo",
    ("Tibetan",): "bo dz",
    ("Myanmar",): "my",
    ("Ethiopic",): "am amh ti tir",
    ("Khmer",): "km",
    ("Latin",): (
        "en eng de deu ger fr fra fre es spa pt por it ita nl nld dut af afr sv swe da dan no nb "
        "nn nor is isl fi fin et est lv lav lt lit pl pol cs ces cze sk slk sl slv hr hrv hu hun "
        "ro ron rum sq sqi tr tur az aze tk ca cat gl glg eu eus oc ast br cy cym ga gle gd lb fo "
        "mt mlt eo epo la lat id ind ms msa may jv su tl tgl fil ceb vi vie sw swa ha yo ig so zu "
        "xh st tn rw lg wo ln mg mi sm ht qu ay gn"
    ),
}
"""Languages by the scripts that each is written in."""

_SUBTAGS = {
    "latn": ("Latin",),
    "cyrl": ("Cyrillic",),
    "arab": ("Arabic",),
    "deva": ("Devanagari",),
    "guru": ("Gurmukhi",),
    "hans": ("Han",),
    "hant": ("Han",),
}
"""What the script in a language tag (`sr-Latn`, `zh_Hant`) says."""

_LETTERS = re.compile(r"[^\W\d_]+")
_WEIGHTS = {"Han": 3, "Kana": 2, "Hangul": 2}


def scripts_of(language: str) -> tuple[str, ...]:
    """Return the scripts that a language is written in; () where that is not known."""
    for part in re.split("[-_]", language.lower())[1:]:
        if part in _SUBTAGS:
            return _SUBTAGS[part]
    return _known().get(base_language(language), ())


def script_share(text: str, language: str) -> float | None:
    """Return the share of a text's letters that are in a script of `language`, from 0 to 1.

    Letters weigh what `in_letters` says, so that a name in Latin letters does not outweigh the
    Chinese around it. Digits, punctuation and combining marks are no letters. None where the text
    has no letter, or the scripts of the language are not known.
    """
    scripts = scripts_of(language)
    letters = "".join(_LETTERS.findall(text))
    if not scripts or not letters:
        return None
    if letters.isascii():
        return float("Latin" in scripts)
    own = "".join(_pattern(scripts).findall(letters))
    return 1.0 if own == letters else in_letters(own) / in_letters(letters)


def in_letters(text: str) -> int:
    """Return how long a text is, in letters of an alphabet.

    A Chinese character counts 3, a kana or a Korean syllable 2: about as many letters as their
    translations into alphabets have. Any other character counts 1.
    """
    if text.isascii():
        return len(text)
    length, heavy = len(text), "".join(_pattern(tuple(_WEIGHTS)).findall(text))
    for script, weight in _WEIGHTS.items():
        if not heavy:  # most texts have one of these scripts, or none
            break
        other = _pattern((script,)).sub("", heavy)
        length += (weight - 1) * (len(heavy) - len(other))
        heavy = other
    return length


def count_in(text: str, script: str) -> int:
    """Return how many characters of a text are in a script."""
    return len("".join(_pattern((script,)).findall(text)))


def letters_in(*scripts: str) -> str:
    """Return the characters of some scripts, for the inside of a regular expression's class."""
    return "".join(_RANGES[script] for script in scripts)


@functools.cache
def _known() -> dict[str, tuple[str, ...]]:
    return {code: scripts for scripts, codes in _LANGUAGES.items() for code in codes.split()}


@functools.cache
def _pattern(scripts: tuple[str, ...]) -> re.Pattern[str]:
    return re.compile(f"[{letters_in(*scripts)}]+")
