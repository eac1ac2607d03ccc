"""Build the semantic classes that the slots of the patterns draw from."""

from __future__ import annotations

import lexicon
from grammar import (
    POSSESSORS,
    Classes,
    Entry,
    activity,
    adjective,
    clock,
    count_number,
    noun,
    person,
    place,
    pronoun,
    split_list,
    verb,
    weather,
    word,
)
from numbers_zh import chinese_number, day_ordinal

# Classes that are the union of others.
UNIONS = {
    "goods": "reading clothes womenswear pair accessory gadget appliance furniture household"
    " stationery toy",
    "item": "reading clothes accessory gadget household stationery toy",
    "wear": "clothes pair",
    "wear_one": "clothes accessory",
    "priced": "clothes womenswear accessory",
    "priced_any": "clothes womenswear pair",
    "sellable": "accessory gadget vehicle toy furniture appliance",
    "broken": "gadget appliance toy",
    "carry": "bag document accessory gadget",
    "carry_color": "bag accessory gadget",
    "small": "bag stationery household accessory reading",
    "tool": "stationery vehicle",
    "machine": "gadget appliance vehicle",
    "food": "fruit snack dish sweet",
    "prepared": "snack dish sweet",
    "shopping": "reading clothes womenswear pair accessory gadget furniture household"
    " stationery toy fruit"
    " grocery",
    "groceries": "fruit grocery",
    "anyplace": "shop special_shop service station sight work",
    "public": "sight service outdoor",
    "placed": "sport leisure meal_out",
    "outside": "sport outing",
    "time_of_year": "season month",
    "city": "china_city world_city",
    "amenity": "shop special_shop service eatery",
    "arrival": "station service",
    "workday": "station work academy",
    "chore": "home daily",
    "past": "past_day past_part past_far last_day ago",
    "past_wide": "past_day past_far last_day ago",
    "near": "past_day past_part last_day",
    "near_day": "past_day last_day",
    "future": "future_day future_part future_week",
    "future_near": "future_day future_part",
    "soon": "future_day future_part future_week next_day",
    "soon_day": "future_day future_week next_day",
    "later_on": "future_day future_part future_week future_far next_day later",
    "often": "habit every_day",
    "customary": "weekly weekly on_days",
    "wait": "hours minute_span",
    "repeat": "sport leisure outing",
    "thing_adj": "thing_good thing_bad thing_plain",
}
# Classes whose groups are drawn equally often, however many entries each has.
GROUPS = {
    "S": ("pron_s", "named", "kin"),
    "S1": ("pron_s1", "named", "kin_one"),
    "Q": ("pron_q", "named", "kin_your"),
    "N": ("named", "kin"),
    "P": ("named", "kin_my"),
    "S1_untitled": ("pron_s1", "name", "kin_one"),
    "P1_untitled": ("name", "kin_my_one"),
    "P1": ("named", "kin_my_one"),
    "PP": ("named", "pron_any"),
}
PRONOUNS = {
    "I": "I 我 me my mine am was do have",
    "you": "you 你 you your yours are were do have",
    "he": "he 他 him his his is was does has",
    "she": "she 她 her her hers is was does has",
    "we": "we 我们 us our ours are were do have",
    "they": "they 他们 them their theirs are were do have",
}


def people() -> Classes:
    """All classes of persons."""
    out: Classes = {
        f"pron_{name}": [pronoun(PRONOUNS[key]) for key in keys.split()]
        for name, keys in {
            "s": "I he she we they",
            "s1": "I he she",
            "q": "you he she they",
            "any": "I he she we they",
        }.items()
    }
    names = [person(en, zh, sex, (en,)) for en, zh, sex in split_list(lexicon.NAMES)]
    titled = [person(en, zh, sex, (en,)) for en, zh, sex in split_list(lexicon.TITLED)]
    out["name"], out["named"] = names, names + titled
    kin: list[Entry] = []
    by_group: Classes = {group: [] for group in lexicon.KIN}
    for group, table in lexicon.KIN.items():
        for english, chinese, sex in split_list(table):
            owners = [p for p in POSSESSORS if group != "spouse" or p == "my"]
            for owner in owners:
                tags = (owner, "spouse") if group == "spouse" else (owner,)
                kin.append(
                    person(
                        f"{owner} {english}",
                        POSSESSORS[owner] + chinese,
                        sex,
                        (f"{english}|{chinese}",),
                        tags,
                    )
                )
                by_group[group].append(kin[-1])
    out["kin"] = [k for k in kin if "your" not in k.tags]
    out["kin_my"] = [k for k in kin if "my" in k.tags]
    out["kin_your"] = [k for k in kin if "your" in k.tags]
    for name in ("kin", "kin_my"):
        out[name + "_one"] = [k for k in out[name] if k.third]
    close = by_group["peer_kin"] + by_group["mate"] + by_group["spouse"]
    out["peer"] = names + [k for k in close if "my" in k.tags]
    out["young"] = by_group["child_kin"] + by_group["peer_kin"]
    return out


def moved(prefix: str, suffix: str, chinese: str, entries: list[Entry]) -> list[Entry]:
    """Spans of time turned into moments ("three days" into "three days ago")."""
    return [
        Entry(
            {"": prefix + e.en[""] + suffix},
            {"": e.zh[""] + chinese},
            (*e.parts, (prefix + suffix).strip()),
        )
        for e in entries
    ]


def durations() -> Classes:
    """Spans of time and moments counted from now."""
    units = {
        "minute": "分钟",
        "hour": "个小时",
        "day": "天",
        "week": "个星期",
        "month": "个月",
        "year": "年",
    }
    spans: dict[str, list[Entry]] = {}
    for unit, chinese in units.items():
        spans[unit] = []
        for number in range(2, 11):
            count = count_number(number)
            spans[unit].append(
                Entry(
                    {"": f"{count.en['']} {unit}s"},
                    {"": count.zh[""] + chinese},
                    (*count.parts, unit),
                )
            )
    dated = spans["day"] + spans["week"] + spans["month"]
    return {
        "stay": dated,
        "years": spans["year"],
        "months": spans["month"] + spans["year"],
        "minute_span": spans["minute"],
        "short": spans["day"] + spans["hour"],
        "hours": spans["hour"],
        "nights": spans["day"],
        "ago": moved("", " ago", "前", dated),
        "later": moved("in ", "", "后", spans["day"] + spans["week"]),
    }


def calendar() -> Classes:
    """Weekdays, dates, times of day and their combinations."""
    days = split_list(lexicon.WEEKDAYS)
    out: Classes = {}
    for name, prefix, chinese in (
        ("last_day", "last ", "上个星期"),
        ("next_day", "next ", "下个星期"),
        ("every_day", "every ", "每个星期"),
    ):
        out[name] = [
            Entry({"": prefix + en}, {"": chinese + zh}, (en, prefix.strip())) for en, zh in days
        ]
    out["on_days"] = [Entry({"": f"on {en}s"}, {"": f"星期{zh}"}, (en, "on")) for en, zh in days]
    parts = [("morning", "早上"), ("afternoon", "下午"), ("evening", "晚上")]
    out["daypart"] = [
        Entry(
            {"": f"{prefix}{en} {part}"},
            {"": f"{week}{zh}{chinese}"},
            (en, part),
            {"clock": f"clock_{part}"},
        )
        for prefix, week, table in (("on ", "星期", days), ("", "", [["tomorrow", "明天"]] * 3))
        for en, zh in table
        for part, chinese in parts
    ]
    out["part"] = [
        Entry({"": f"in the {part}"}, {"": chinese}, (part,), {"clock": f"clock_{part}"})
        for part, chinese in parts
    ]
    by_part = dict(zip("mae", out["part"], strict=True))
    for name in ("m", "e", "ae"):
        out[f"part_{name}"] = [by_part[letter] for letter in name]
    hours = {
        "morning": range(6, 10),
        "afternoon": range(1, 6),
        "evening": range(6, 11),
        "noon": (11, 12, 1),
        "one_digit": range(1, 10),
    }
    for part, span in hours.items():
        out[f"clock_{part}"] = [clock(hour, kind) for hour in span for kind in range(5)]
    out["clock"] = [clock(hour, kind) for hour in range(1, 13) for kind in range(5)]
    months = [item[0] for item in split_list(lexicon.MONTHS)]
    out["month"] = [
        Entry({"": month}, {"": f"{chinese_number(index)}月"}, (month,))
        for index, month in enumerate(months, 1)
    ]
    out["date"] = [
        Entry(
            {"": f"{month} {day_ordinal(day)}"},
            {"": f"{chinese_number(index)}月{chinese_number(day)}号"},
            (month, *day_ordinal(day).split("-")),
        )
        for index, month in enumerate(months, 1)
        for day in range(1, 29)
    ]
    return out


def numbers() -> Classes:
    """Classes of numbers for counting, prices, ages and degrees."""
    return {
        "num": [count_number(n) for n in range(2, 13)],
        "two_to_four": [count_number(n) for n in range(2, 5)],
        "few": [count_number(n) for n in range(2, 7)],
        "floor": [count_number(n) for n in range(2, 13)],
        "price": [count_number(n) for n in [*range(15, 100), *range(100, 1000, 10)]],
        "minutes": [count_number(n) for n in range(10, 60)],
        "degrees": [count_number(n) for n in range(8, 33)],
        "age": [count_number(n) for n in range(3, 19)],
    }


def build_classes() -> Classes:
    """Every class by name."""
    out: Classes = {**people(), **durations(), **calendar(), **numbers()}
    makers = (
        (lexicon.NOUNS, noun),
        (lexicon.PLACES, place),
        (lexicon.ADJECTIVES, adjective),
        (lexicon.WORDS, word),
        (lexicon.ACTIVITIES, activity),
        (lexicon.VERBS, verb),
    )
    for tables, make in makers:
        for name, table in tables.items():
            separator = ";" if tables in (lexicon.ACTIVITIES, lexicon.VERBS) else ","
            out[name] = [make(fields) for fields in split_list(table, separator)]
    out["weather"] = [weather(fields) for fields in split_list(lexicon.WEATHER, ";")]
    for name, members in UNIONS.items():
        out[name] = [entry for member in members.split() for entry in out[member]]
    return out
