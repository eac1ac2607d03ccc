"""Turn the word tables into entries with English and Chinese forms, grouped in classes."""

from __future__ import annotations

from dataclasses import dataclass, field

from numbers_zh import ONES, chinese_number, day_ordinal, english_number

Forms = dict[str, str]
# Vowel letters that sound like consonants, and the other way round.
A_EXCEPTIONS = ("university", "useful", "uniform")
POSSESSORS = {"my": "我", "your": "你", "his": "他", "her": "她"}
THIRD = {"m": ("he", "his", "him", "他"), "f": ("she", "her", "her", "她")}


@dataclass(frozen=True)
class Entry:
    """A filler for a slot: its forms in both languages and the lexical items inside it."""

    en: Forms
    zh: Forms
    parts: tuple[str, ...]
    links: dict[str, str] = field(default_factory=dict)
    third: bool = True
    tags: tuple[str, ...] = ()


Classes = dict[str, list[Entry]]


def split_list(text: str, separator: str = ",") -> list[list[str]]:
    """Cut a table into its entries and each entry into its fields."""
    items = [" ".join(item.split()) for item in text.split(separator)]
    return [[part.strip() for part in item.split("|")] for item in items if item]


def add_s(word: str) -> str:
    """Put the regular -s ending on a noun or a verb."""
    if word.endswith(("s", "x", "ch", "sh", "z", "do", "go")):
        return word + "es"
    if word.endswith("y") and word[-2] not in "aeiou":
        return word[:-1] + "ies"
    return word + "s"


def with_article(phrase: str) -> str:
    """Put the indefinite article before a phrase."""
    vowel = phrase[0].lower() in "aeiou" and not phrase.startswith(A_EXCEPTIONS)
    return f"{'an' if vowel or phrase.startswith('hour') else 'a'} {phrase}"


def count_number(number: int) -> Entry:
    """A number that counts things, so that 2 is the counting form of the Chinese word."""
    english = english_number(number)
    en = {
        "": english,
        "times": {1: "once", 2: "twice"}.get(number, f"{english} times"),
        "floor": day_ordinal(number) if number < 32 else "",
    }
    zh = {"": "两" if number == 2 else chinese_number(number), "floor": chinese_number(number)}
    return Entry(en, zh, tuple(w for w in english.replace("-", " ").split() if w != "and"))


def noun(fields: list[str]) -> Entry:
    """A countable noun, or one counted through its container."""
    singular, chinese, measure = fields[:3]
    singular, _, plural = singular.partition("/")
    if not plural:
        head, joint, tail = singular.partition(" of ")
        if not joint:
            head, joint, tail = singular.partition(" with ")
        plural = add_s(head) + joint + tail
    bare = fields[3] if len(fields) > 3 else plural
    own = fields[3] if len(fields) > 3 else singular
    en = {
        "": singular,
        "pl": plural,
        "a": with_article(singular),
        "bare": bare,
        "any": f"any {bare}",
        "own": own,
    }
    zh = {"": chinese, "mw": measure, "one": f"一{measure}{chinese}"}
    return Entry(en, zh, (f"{own}|{chinese}",))


def place(fields: list[str]) -> Entry:
    """A kind of place with the preposition that goes with it."""
    english, chinese, preposition, measure = fields
    en = {"": english, "a": with_article(english), "at": f"{preposition} the {english}"}
    return Entry(en, {"": chinese, "mw": measure}, (f"{english}|{chinese}",))


def verb(fields: list[str]) -> Entry:
    """A verb with its four principal parts and the classes of its objects and places."""
    base, past, participle, ing = fields[0].split()
    en = {"": base, "past": past, "pp": participle, "ing": ing, "s": add_s(base)}
    links = {"objects": fields[2], "places": fields[3]}
    return Entry(en, {"": fields[1]}, (f"{base}|{fields[1]}",), links)


def activity(fields: list[str]) -> Entry:
    """A whole verb phrase that needs no further object."""
    base, past, ing = (form.replace("_", " ") for form in fields[0].split())
    head, _, tail = base.partition(" ")
    third = {"have": "has"}.get(head, add_s(head)) + (f" {tail}" if tail else "")
    en = {"": base, "past": past, "ing": ing, "s": third}
    return Entry(en, {"": fields[1]}, (f"{base}|{fields[1]}",), {"places": fields[2]})


def adjective(fields: list[str]) -> Entry:
    """An adjective with its degrees and its Chinese attributive and negated forms."""
    degrees = fields[0].split("/")
    positive, chinese = degrees[0], fields[1]
    comparative, superlative = degrees[1:] or [f"more {positive}", f"most {positive}"]
    attributive = fields[2] if len(fields) > 2 else f"{chinese}的"
    en = {
        "": positive,
        "comp": comparative,
        "compa": with_article(comparative),
        "sup": superlative,
        "a": with_article(positive),
    }
    return Entry(en, {"": chinese, "attr": attributive}, (f"{positive}|{chinese}",))


def word(fields: list[str]) -> Entry:
    """A word or fixed phrase with one form in each language."""
    english, chinese = fields[:2]
    links = {"next": fields[2]} if len(fields) > 2 else {}
    en = {"": english, "a": with_article(english)}
    return Entry(en, {"": chinese}, (f"{english}|{chinese}",), links)


def weather(fields: list[str]) -> Entry:
    """A weather event, said of "it" in English."""
    base, past, third = (form.replace("_", " ") for form in fields[0].split())
    return Entry({"": base, "past": past, "s": third}, {"": fields[1]}, (f"{base}|{fields[1]}",))


def person(
    english: str, chinese: str, gender: str, parts: tuple[str, ...], tags: tuple[str, ...] = ()
) -> Entry:
    """A person named by a noun phrase, third person."""
    plural = gender == "p"
    pronoun, own, object_form, _ = ("they", "their", "them", "") if plural else THIRD[gender]
    possessive = english + ("'" if english.endswith("s") else "'s")
    auxiliaries = (
        "are were do don't have haven't" if plural else "is was does doesn't has hasn't"
    ).split()
    en = {
        "": english,
        "obj": english,
        "poss": possessive,
        "mine": possessive,
        "pro": pronoun,
        "own": own,
        "proobj": object_form,
        **dict(zip(("be", "was", "do", "dont", "have", "havent"), auxiliaries, strict=True)),
    }
    pro = "他们" if plural else THIRD[gender][3]
    return Entry(en, {"": chinese, "pro": pro}, parts, {}, not plural, tags)


def pronoun(row: str) -> Entry:
    """A personal pronoun from a row of its forms."""
    english, chinese, obj, poss, mine, be, was, do, have = row.split()
    en = {
        "": english,
        "obj": obj,
        "poss": poss,
        "mine": mine,
        "pro": english,
        "own": poss,
        "proobj": obj,
        "be": be,
        "was": was,
        "do": do,
        "dont": do + "n't",
        "have": have,
        "havent": have + "n't",
    }
    return Entry(en, {"": chinese, "pro": chinese}, (english,), {}, have == "has", ("pronoun",))


def clock(hour: int, kind: int) -> Entry:
    """A time of day on a twelve-hour clock."""
    name, chinese = ONES[hour], ("两" if hour == 2 else chinese_number(hour)) + "点"
    english = (
        f"{name} o'clock",
        f"half past {name}",
        f"a quarter past {name}",
        f"ten past {name}",
        f"twenty past {name}",
    )[kind]
    minutes = ("", "半", "一刻", "十分", "二十分")[kind]
    marks = (name, english.replace(name, "").strip())
    return Entry({"": english}, {"": chinese + minutes}, marks)
