"""Language codes, the scripts of languages, and text lengths across scripts.

Codes are ISO 639 codes of two or three letters, alone or at the start of a tag: `zh`, `zho`,
`zh-CN`, `zh_Hant`.
"""

import functools
import re
import unicodedata

_NAMES = """
af afr Afrikaans, am amh Amharic, ar ara arb Arabic, as asm Assamese, ast Asturian, ay aym ayr
Aymara, az aze azj Azerbaijani, ba bak Bashkir, be bel Belarusian, bg bul Bulgarian, bho Bhojpuri,
bm bam Bambara, bn ben Bengali, bo bod tib Tibetan, br bre Breton, bs bos Bosnian, ca cat Catalan,
ceb Cebuano, ckb Central Kurdish, cs ces cze Czech, cv chv Chuvash, cy cym wel Welsh, da dan Danish,
de deu ger German, dz dzo Dzongkha, el ell gre Greek, en eng English, eo epo Esperanto, es spa
Spanish, et est ekk Estonian, eu eus baq Basque, fa fas per pes Persian, fi fin Finnish, fo fao
Faroese, fr fra fre French, ga gle Irish, gd gla Scottish Gaelic, gl glg Galician, gn grn Guarani,
gu guj Gujarati, ha hau Hausa, he iw heb Hebrew, hi hin Hindi, hr hrv Croatian, ht hat Haitian
Creole, hu hun Hungarian, hy hye arm Armenian, id ind Indonesian, ig ibo Igbo, ii iii Nuosu, is isl
ice Icelandic, it ita Italian, ja jpn Japanese, jv jav Javanese, ka kat geo Georgian, kk kaz Kazakh,
km khm Khmer, kn kan Kannada, ko kor Korean, ku kur kmr Kurdish, ky kir Kyrgyz, la lat Latin, lb ltz
Luxembourgish, lg lug Ganda, ln lin Lingala, lo lao Lao, lt lit Lithuanian, lv lav lvs Latvian, lzh
Classical Chinese, mai Maithili, mg mlg plt Malagasy, mi mri mao Maori, mk mkd mac Macedonian, ml
mal Malayalam, mn mon khk Mongolian, mr mar Marathi, ms msa may zsm Malay, mt mlt Maltese, my mya
bur Burmese, nb nob Norwegian Bokmål, ne nep npi Nepali, nl nld dut Dutch, nn nno Norwegian Nynorsk,
no nor Norwegian, ny nya Nyanja, oc oci Occitan, om orm gaz Oromo, or ori ory Odia, pa pan Punjabi,
pl pol Polish, ps pus pbt Pashto, pt por Portuguese, qu que quy Quechua, ro ron rum Romanian, ru rus
Russian, rw kin Kinyarwanda, sa san Sanskrit, sd snd Sindhi, si sin Sinhala, sk slk slo Slovak, sl
slv Slovenian, sm smo Samoan, sn sna Shona, so som Somali, sq sqi alb als Albanian, sr srp Serbian,
st sot Southern Sotho, su sun Sundanese, sv swe Swedish, sw swa swh Swahili, ta tam Tamil, te tel
Telugu, tg tgk Tajik, th tha Thai, ti tir Tigrinya, tk tuk Turkmen, tl tgl fil Tagalog, tn tsn
Tswana, tr tur Turkish, tt tat Tatar, ug uig Uyghur, uk ukr Ukrainian, ur urd Urdu, uz uzb uzn
Uzbek, vi vie Vietnamese, wo wol Wolof, xh xho Xhosa, yi yid ydd Yiddish, yo yor Yoruba, yue
Cantonese, zh zho chi cmn Chinese, zu zul Zulu, ace Acehnese, acm Mesopotamian Arabic, acq
Ta'izzi-Adeni Arabic, aeb Tunisian Arabic, ajp South Levantine Arabic, ak aka Akan, apc North
Levantine Arabic, ars Najdi Arabic, ary Moroccan Arabic, arz Egyptian Arabic, awa Awadhi, azb South
Azerbaijani, ban Balinese, bem Bemba, bjn Banjar, bug Buginese, cjk Chokwe, crh Crimean Tatar, dik
Dinka, dyu Dyula, ee ewe Ewe, fj fij Fijian, fon Fon, fur Friulian, fuv Nigerian Fulfulde, hne
Chhattisgarhi, ilo Ilocano, kab Kabyle, kac Jingpho, kam Kamba, kbp Kabiyè, kea Kabuverdianu, kg kon
Kikongo, ki kik Kikuyu, kmb Kimbundu, knc Kanuri, ks kas Kashmiri, li lim Limburgish, lij Ligurian,
lmo Lombard, ltg Latgalian, lua Luba-Kasai, luo Luo, lus Mizo, mag Magahi, min Minangkabau, mni
Meitei, mos Mossi, nso Northern Sotho, nus Nuer, pag Pangasinan, pap Papiamento, prs Dari, rn run
Rundi, sat Santali, sc srd Sardinian, scn Sicilian, sg sag Sango, shn Shan, ss ssw Swati, szl
Silesian, taq Tamasheq, tpi Tok Pisin, ts tso Tsonga, tum Tumbuka, tw twi Twi, tzm Central Atlas
Tamazight, umb Umbundu, vec Venetian, war Waray
"""
"""Codes of each language, the shortest first, and its English name.

Codes of three letters are those of ISO 639-2 and 639-3, and those of the individual languages that
NLLB-200 and its benchmark FLORES-200 use for a macrolanguage (`arb`, `zsm`).
"""
_CHINESE = ("gan", "hak", "hsn", "lzh", "nan", "wuu", "yue")
"""Other languages of the macrolanguage Chinese; they share its script."""
UNSPACED = (
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3005-\u30ff\u3400-\u9fff\uf900-\ufaff"
    "\U00020000-\U000323af"
)
"""Letters of scripts without spaces between words, as in a class of a regular expression."""
FINAL_MARKS = ".!?…。！？।؟"
"""Marks that end a sentence."""
_COUNTRIES = """
ar eg eh iq jo ly ma qa sy ye, be by, bn bd, ca ad, cs cz, da dk, de at, dv mv, dz bt, el gr,
en ag ai au bb bw bz ck dm fk fm gb gg gh gi gm gy im je jm lc lr mp mu mw nf nu nz pg pn pw sb
en sz tc tv um us vc vg vu zm zw, es cl do ec gq gt hn mx ni pe pr py uy, fa ir,
fr bf bj bl cd cf cg ci cm dj gf gp mc mf mq nc pf pm re td wf yt, he il, it va, ja jp, ka ge,
kk kz, km kh, ko kp kr, my mm, ne np, nl aw bq cw sx, pt ao gw mz, ro md, si lk, sm ws, sq al xk,
sr me rs, st ls, sv ax, sw ke tz, tg tj, ti er, tk tm, tl ph, uk ua, ur pk, vi vn, zh cn hk
"""
"""Main language of each country, then the countries whose codes are no codes of languages.

`kr` is the exception: it is far more often Korea than Kanuri, which has the code `kau` as well.
"""
_SENTENCES_WITHOUT_SPACES = frozenset({"zh", "ja", "ii"})
_WRITTEN_WITHOUT_SPACES = _SENTENCES_WITHOUT_SPACES | {"th", "lo", "km", "my", "bo", "dz"}


@functools.cache
def base_language(code: str) -> str:
    """Return the shortest code of a language, without country and script.

    It is `de` for deu and deu_Latn, and `zh` for every kind of Chinese (zh-CN, zh_Hant, zho, lzh,
    yue). Any other text is returned in lower case, up to its first hyphen or underscore.
    """
    first = code_parts(code)[0]
    return "zh" if first in _CHINESE else _named().get(first, (first, ""))[0]


@functools.cache
def written_without_spaces(code: str) -> bool:
    """Return True for languages without spaces between words, unless romanised (zh-Latn)."""
    return base_language(code) in _WRITTEN_WITHOUT_SPACES and "latn" not in code_parts(code)


@functools.cache
def joiner_of(code: str) -> str:
    """Return the usual text between two sentences: a space, or nothing, as in Chinese."""
    has_none = base_language(code) in _SENTENCES_WITHOUT_SPACES and "latn" not in code_parts(code)
    return "" if has_none else " "


_DOTTED_I = frozenset({"tr", "az"})
"""Languages in which I is the capital of ı, and İ that of i."""
_NOT_GEORGIAN = re.compile("[^ა-ჿ]+")
"""Text other than the letters of Georgian, whose capitals readers do not expect."""
_GREEK = re.compile("[Ͱ-Ͽἀ-῿][Ͱ-Ͽἀ-῿\u0300-\u036f]*")
_GREEK_ACCENTS = dict.fromkeys(map(ord, "\u0300\u0301\u0313\u0314\u0342"))
_HIATUS = re.compile("(?<=[αεου]\u0301)[ιυ](?!\u0308)")


def in_lower_case(text: str, language: str) -> str:
    """Return a text in lower case, as its language writes it."""
    if base_language(language) in _DOTTED_I:
        text = text.replace("I", "ı").replace("İ", "i")
    return text.lower()


def in_upper_case(text: str, language: str) -> str:
    """Return a text in upper case, as its language and its scripts write it.

    Greek has no accents in capitals, except on the word `ή`; Georgian is unchanged.
    """
    if base_language(language) in _DOTTED_I:
        text = text.replace("i", "İ")
    if text.isascii():
        return text.upper()
    text = _GREEK.sub(lambda word: _greek_capitals(word[0]), text).replace("և", "ԵՎ")
    return _NOT_GEORGIAN.sub(lambda part: part[0].upper(), text)


def _greek_capitals(word: str) -> str:
    letters = unicodedata.normalize("NFD", word)
    if letters.lower() == "η\u0301":
        return "Ή"
    letters = _HIATUS.sub("\\g<0>\u0308", letters).translate(_GREEK_ACCENTS)
    return unicodedata.normalize("NFC", letters.upper())


def language_name(code: str) -> str:
    """Return the English name of a language, or the code if it has none here.

    The code follows the name if it adds a country or script: `Chinese (zh-Hant)`.
    """
    first, *more = code_parts(code)
    name = _named().get(first, ("", code))[1]
    is_plain = not more or (len(more) == 1 and _SUBTAGS.get(more[0]) == scripts_of(first))
    return name if is_plain or name == code else f"{name} ({code})"


@functools.cache
def _named() -> dict[str, tuple[str, str]]:
    """Return the shortest code and the name of each language, by all its codes."""
    languages: dict[str, tuple[str, str]] = {}
    for row in _NAMES.split(","):
        words = row.split()
        codes = [word for word in words if word.islower()]
        name = " ".join(words[len(codes) :])
        languages |= dict.fromkeys(codes, (codes[0], name))
    return languages


def is_language(text: str) -> bool:
    """Test for the code of two letters or the English name of a language."""
    name, named = text.strip().lower(), _named()
    return (len(name) == 2 and name in named) or name in {n.lower() for _, n in named.values()}


@functools.cache
def describe_country(code: str) -> str:
    """Return a message for the code of a country in place of a language, as `jp`; else ""."""
    rows = (row.split() for row in re.split(",?\n|,", _COUNTRIES.strip()))
    meant = {country: language for language, *countries in rows for country in countries}
    first = code_parts(code)[0]
    if first not in meant:
        return ""
    other = " (Kanuri is `kau`)" if first == "kr" else ""
    return f"`{code}` is a country; did you mean `{meant[first]}`?{other}"


def code_parts(code: str) -> list[str]:
    """Return the language, script and country of a code in lower case."""
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
_LANGUAGES = """
Han: zh, Han Kana: ja, Hangul Han: ko, Greek: el, Cyrillic: ru uk be bg mk kk ky tg mn ba tt cv,
Cyrillic Latin: sr uz bs, Armenian: hy, Georgian: ka, Hebrew: he yi,
Arabic: ar arz fa ur ps ug sd ckb, Devanagari: hi mr ne sa mai bho, Bengali: bn as,
Gurmukhi Arabic: pa, Gujarati: gu, Oriya: or, Tamil: ta, Telugu: te, Kannada: kn, Malayalam: ml,
Sinhala: si, Thai: th, Lao: lo, Tibetan: bo dz, Myanmar: my, Ethiopic: am ti, Khmer: km,
Latin: en de fr es pt it nl af sv da no nb nn is fi et lv lt pl cs sk sl hr hu ro sq tr az tk ca gl
eu oc ast br cy ga gd lb fo mt eo la id ms jv su tl ceb vi sw ha yo ig so zu xh st tn rw lg wo ln mg
mi sm ht qu ay gn
"""
"""Languages by their scripts, as `base_language` names them."""
_SCRIPTS = {
    code: tuple(scripts.split())
    for scripts, codes in (row.split(":") for row in _LANGUAGES.split(","))
    for code in codes.split()
}
_SUBTAGS = {
    "latn": ("Latin",),
    "cyrl": ("Cyrillic",),
    "arab": ("Arabic",),
    "deva": ("Devanagari",),
    "guru": ("Gurmukhi",),
}
"""Scripts by the script subtag of a language tag (`sr-Latn`)."""
LETTERS = re.compile(r"[^\W\d_]+")
_WEIGHTS = {"Han": 3, "Kana": 2, "Hangul": 2}


def scripts_of(language: str) -> tuple[str, ...]:
    """Return the scripts of a language, or () if they are unknown."""
    for part in code_parts(language)[1:]:
        if part in _SUBTAGS:
            return _SUBTAGS[part]
    return _SCRIPTS.get(base_language(language), ())


def script_share(text: str, language: str) -> float | None:
    """Return the share of a text's letters in a script of `language`, from 0 to 1.

    Letters are weighted as in `in_letters`: a name in Latin letters does not outweigh the Chinese
    around it. Digits, punctuation and combining marks are not letters. Returns None for a text
    without letters, or if the scripts of the language are unknown.
    """
    scripts = scripts_of(language)
    letters = "".join(LETTERS.findall(text))
    if not scripts or not letters:
        return None
    if letters.isascii():
        return float("Latin" in scripts)
    in_scripts = "".join(_pattern(scripts).findall(letters))
    return 1.0 if in_scripts == letters else in_letters(in_scripts) / in_letters(letters)


def in_letters(text: str) -> int:
    """Return the length of a text in letters of an alphabet.

    A Chinese character counts 3, and a kana or a Korean syllable 2: about the length of their
    translations into alphabetic scripts. Any other character counts 1.
    """
    if text.isascii():
        return len(text)
    weights = _WEIGHTS.items()
    return len(text) + sum((weight - 1) * count_in(text, script) for script, weight in weights)


def script_of(character: str) -> str:
    """Return the first word of the Unicode name of a letter, which is that of its script."""
    return unicodedata.name(character, "").partition(" ")[0]


def count_in(text: str, script: str) -> int:
    """Return the number of characters of a text in a script."""
    return len("".join(_pattern((script,)).findall(text)))


def letters_in(*scripts: str) -> str:
    """Return the characters of some scripts as ranges for a regular expression class."""
    return "".join(_RANGES[script] for script in scripts)


@functools.cache
def _pattern(scripts: tuple[str, ...]) -> re.Pattern[str]:
    return re.compile(f"[{letters_in(*scripts)}]+")


@functools.cache
def _variants(language: str) -> dict[str, re.Pattern[str]]:
    """Return patterns of the letters that only one of the two scripts of a language has.

    Simplified and traditional characters are the common ones (level 1) of GB 2312 and Big5 that the
    other set lacks.
    """
    if base_language(language) != "zh":
        scripts = scripts_of(language)
        is_either = "Latin" in scripts and len(scripts) > 1
        return {script: _pattern((script,)) for script in scripts} if is_either else {}
    only: dict[str, list[str]] = {"simplified": [], "traditional": []}
    for character in map(chr, range(0x4E00, 0xA000)):
        gb, big = (character.encode(code, "ignore") for code in ("gb2312", "big5"))
        if not (gb and big):
            only["simplified"] += [character] * (b"" < gb < b"\xd8")
            only["traditional"] += [character] * (b"" < big < b"\xc9")
    return {name: re.compile(f"[{''.join(characters)}]") for name, characters in only.items()}


@functools.lru_cache(maxsize=1 << 14)
def variants_in(text: str, language: str) -> frozenset[str]:
    """Return in which of the two scripts of its language a text is written, if it has two.

    Chinese has `simplified` and `traditional`, and a text may have characters of both. In another
    language it is the script of most letters.
    """
    patterns = _variants(language)
    counts = {name: len("".join(letters.findall(text))) for name, letters in patterns.items()}
    least = 1 if base_language(language) == "zh" else max([1, *counts.values()])
    return frozenset(name for name, count in counts.items() if count >= least)


_CHINESE_SCRIPTS = {
    **dict.fromkeys(("hans", "cn", "sg"), "traditional"),
    **dict.fromkeys(("hant", "tw", "hk", "mo"), "simplified"),
}


def in_other_variant(text: str, language: str) -> bool:
    """Return True for characters that a code of Chinese excludes, as `zh-Hans` traditional ones."""
    excluded = {_CHINESE_SCRIPTS.get(part) for part in code_parts(language)[1:]}
    return bool(excluded & variants_in(text, language)) if excluded - {None} else False
