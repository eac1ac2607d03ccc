"""Language codes, the scripts of languages, and text lengths across scripts.

Codes are ISO 639 codes of two or three letters, alone or at the start of a tag: `zh`, `zho`,
`zh-CN`, `zh_Hant`.
"""

import functools
import re

_OTHER_CODES = {
    # The languages of ISO 639-3's macrolanguage Chinese share its script.
    "zh": ("zho", "chi", "cmn", "gan", "hak", "hsn", "lzh", "nan", "wuu", "yue"),
    "ja": ("jpn",),
    "ko": ("kor",),
    "th": ("tha",),
    "lo": ("lao",),
    "km": ("khm",),
    "my": ("mya", "bur"),
    "bo": ("bod", "tib"),
    "dz": ("dzo",),
    "ii": ("iii",),
}
_BASE = {other: base for base, others in _OTHER_CODES.items() for other in others}
UNSPACED = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3005-\u30ff\u3400-\u9fff\uf900-\ufaff"
"""Letters of scripts without spaces between words, as in a class of a regular expression."""
FINAL_MARKS = ".!?…。！？।؟"
"""Marks that end a sentence."""
_WRITTEN_WITHOUT_SPACES = frozenset({"zh", "ja", "th", "lo", "km", "my", "bo", "dz", "ii"})


@functools.cache
def base_language(code: str) -> str:
    """Return the language of a code in lower case, without country and script.

    Languages with special treatment get their two-letter code: `zh` for every kind of Chinese
    (zh-CN, zh_Hant, zho, lzh, yue), `ja` for jpn, `ko` for kor. Any other text is returned up to
    its first hyphen or underscore.
    """
    first = _parts(code)[0]
    return _BASE.get(first, first)


@functools.cache
def written_without_spaces(code: str) -> bool:
    """Return True for languages without spaces between words, unless romanised (zh-Latn)."""
    return base_language(code) in _WRITTEN_WITHOUT_SPACES and "latn" not in _parts(code)


_NAMES = """
ar Arabic, az Azerbaijani, be Belarusian, bg Bulgarian, bn Bengali, ca Catalan, cs Czech, cy Welsh,
da Danish, de German, el Greek, en English, eo Esperanto, es Spanish, et Estonian, eu Basque,
fa Persian, fi Finnish, fr French, ga Irish, gl Galician, gu Gujarati, he Hebrew, hi Hindi,
hr Croatian, hu Hungarian, hy Armenian, id Indonesian, is Icelandic, it Italian, ja Japanese,
ka Georgian, kk Kazakh, km Khmer, ko Korean, ky Kyrgyz, la Latin, lo Lao, lt Lithuanian, lv Latvian,
lzh Classical Chinese, mk Macedonian, mn Mongolian, mr Marathi, ms Malay, my Burmese,
nb Norwegian Bokmål, ne Nepali, nl Dutch, nn Norwegian Nynorsk, no Norwegian, pa Punjabi, pl Polish,
ps Pashto, pt Portuguese, ro Romanian, ru Russian, sk Slovak, sl Slovenian, sq Albanian, sr Serbian,
sv Swedish, sw Swahili, ta Tamil, te Telugu, th Thai, tl Tagalog, tr Turkish, uk Ukrainian, ur Urdu,
uz Uzbek, vi Vietnamese, yue Cantonese, zh Chinese
"""
"""Codes and English names of languages."""


def language_name(code: str) -> str:
    """Return the English name of a language, or the code if it has none here.

    The code follows the name if it adds a country or script: `Chinese (zh-Hant)`.
    """
    first, *more = _parts(code)
    pairs = (each.strip().split(" ", 1) for each in _NAMES.split(","))
    name = dict(pairs).get(first)
    return f"{name} ({code})" if name and more else name or code


def _parts(code: str) -> list[str]:
    return re.split("[-_]", code.lower())


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
"""Character ranges of a regular expression, by script."""
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
"""Language codes by their scripts."""
_SUBTAGS = {
    "latn": ("Latin",),
    "cyrl": ("Cyrillic",),
    "arab": ("Arabic",),
    "deva": ("Devanagari",),
    "guru": ("Gurmukhi",),
    "hans": ("Han",),
    "hant": ("Han",),
}
"""Scripts by the script subtag of a language tag (`sr-Latn`, `zh_Hant`)."""
_LETTERS = re.compile(r"[^\W\d_]+")
_WEIGHTS = {"Han": 3, "Kana": 2, "Hangul": 2}


def scripts_of(language: str) -> tuple[str, ...]:
    """Return the scripts of a language, or () if they are unknown."""
    for part in _parts(language)[1:]:
        if part in _SUBTAGS:
            return _SUBTAGS[part]
    return _known().get(base_language(language), ())


def script_share(text: str, language: str) -> float | None:
    """Return the share of a text's letters in a script of `language`, from 0 to 1.

    Letters are weighted as in `in_letters`: a name in Latin letters does not outweigh the Chinese
    around it. Digits, punctuation and combining marks are not letters. Returns None for a text
    without letters, or if the scripts of the language are unknown.
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
    """Return the length of a text in letters of an alphabet.

    A Chinese character counts 3, and a kana or a Korean syllable 2: about the length of their
    translations into alphabetic scripts. Any other character counts 1.
    """
    if text.isascii():
        return len(text)
    length, heavy = len(text), "".join(_pattern(tuple(_WEIGHTS)).findall(text))
    for script, weight in _WEIGHTS.items():
        if not heavy:  # most texts have at most one of these scripts
            break
        other = _pattern((script,)).sub("", heavy)
        length += (weight - 1) * (len(heavy) - len(other))
        heavy = other
    return length


def count_in(text: str, script: str) -> int:
    """Return the number of characters of a text in a script."""
    return len("".join(_pattern((script,)).findall(text)))


def letters_in(*scripts: str) -> str:
    """Return the characters of some scripts as ranges for a regular expression class."""
    return "".join(_RANGES[script] for script in scripts)


@functools.cache
def _known() -> dict[str, tuple[str, ...]]:
    return {code: scripts for scripts, codes in _LANGUAGES.items() for code in codes.split()}


@functools.cache
def _pattern(scripts: tuple[str, ...]) -> re.Pattern[str]:
    return re.compile(f"[{letters_in(*scripts)}]+")
