"""What the code of a language tells: which language it is, and whether it is written with spaces.

Codes are those of ISO 639, of two or three letters, alone or at the start of a tag: `zh`, `zho`,
`zh-CN`, `zh_Hant`.
"""

import re

_OTHER_CODES = {
    # What ISO 639-3 counts as Chinese shares its script, and so all that is asked for here.
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

_WRITTEN_WITHOUT_SPACES = frozenset({"zh", "ja", "th", "lo", "km", "my", "bo", "dz", "ii"})


def base_language(code: str) -> str:
    """Return the language of a code in lower case, without country and script.

    The languages that are treated in a way of their own have one name each: `zh` for every kind of
    Chinese (zh-CN, zh_Hant, zho, lzh, yue), `ja` for jpn, `ko` for kor. What is no code of a
    language comes back as it is, up to the first hyphen or underscore.
    """
    first = _parts(code)[0]
    return _BASE.get(first, first)


def written_without_spaces(code: str) -> bool:
    """Say whether words stand without spaces between them; not so in Latin letters (zh-Latn)."""
    return base_language(code) in _WRITTEN_WITHOUT_SPACES and "latn" not in _parts(code)


def _parts(code: str) -> list[str]:
    return re.split("[-_]", code.lower())
