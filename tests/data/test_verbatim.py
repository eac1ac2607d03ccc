"""Text that translations repeat unchanged."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mt.data.verbatim import (
    change_words,
    copied_parts,
    extract_verbatim,
    missing_verbatim,
    reinsert,
    without_copied,
)


def test_addresses_placeholders_and_emoji_are_copied_parts() -> None:
    text = (
        "见https://a.b/c_(d)?e=f#g，或 http://x.org. Write to a.b+c@mail.example.org! "
        "Hello {name}, {0} {}, %s %(count)d %d% 100 %, $HOME ${user} $5 👍🏽 ☺"
    )
    assert copied_parts(text) == [
        *("https://a.b/c_(d)?e=f#g", "http://x.org", "a.b+c@mail.example.org", "{name}", "{0}"),
        *("{}", "%s", "%(count)d", "%d", "$HOME", "${user}", "👍🏽", "☺"),
    ]


def test_words_with_a_sign_attached_are_translated_and_control_keys_copied() -> None:
    assert copied_parts(r"press ^X, then \v") == ["^X", r"\v"]
    for words in ("&Open", "E&xit", "_Open", "AT&T and R&D", "&nbsp; b&amp;c", "x_y 2^8"):
        assert copied_parts(words) == []
    assert copied_parts("§5 and §§ 6") == ["§", "§", "§"]


def test_percentage_in_another_place_is_not_lost() -> None:
    assert missing_verbatim("Fiyatlar %5 arttı.", "Prices rose by 5%.") == []
    assert missing_verbatim("Fiyatlar %5 arttı.", "Prices rose.") == ["%5"]


@pytest.mark.parametrize(
    ("text", "order"),
    [("%s has %d", "%s %d"), ("{:d} has {:s}", "{:d} {:s}"), ("%2 has %1", "%1 %2")],
)
def test_placeholders_without_number_return_in_order(text: str, order: str) -> None:
    _, parts = extract_verbatim(text)
    assert copied_parts(reinsert("x y z", parts, lambda place: 5 - min(place, 5))) == order.split()


@pytest.mark.parametrize(
    ("source", "translation", "lacking"),
    [
        ("Cliquez ici, {name} !", "Click here, {name}!", []),
        ("Cliquez ici, {name} !", "Click here, name!", ["{name}"]),
        ("%s and %s", "%s und", ["%s"]),
        (
            "{{name}} {user.name} {0:.2f} %1$s %5.2f",
            "{name}",
            [*("{{name}}", "{user.name}", "{0:.2f}", "%1$s", "%5.2f")],
        ),
        ("🇩🇪 ⭐ 1️⃣ 👩🏽‍👧🏽 ❤️", "🇩🇪 ⭐ 👩🏽👧🏽 ❤", ["1️⃣", "👩🏽‍👧🏽", "❤️"]),
        ("Wait... what?! 住手！！！", "等什么？不", []),
        ("--- In 1984 ---", "Im Jahr 1984 ---", ["---"]),
        ("See www.a.org.", "Siehe www.a.org.", []),
        ("See https://a.b/12 now", "Siehe https://a.b/13 jetzt", ["https://a.b/12"]),
        ("Mail a@b.org 👍", "Mail a@b.org", ["👍"]),
        ("[name] has [b]a dog[/b].", "[Name] hat [b]einen Hund.", ["[name]", "[b]", "[/b]"]),
        ("[name] has a dog [1].", "（名字）有一只狗【1】。", []),
        ("$[name] has a dog.", "Ein Hund.", ["$[name]"]),
    ],
)
def test_lost_parts_are_named(source: str, translation: str, lacking: list[str]) -> None:
    assert missing_verbatim(source, translation) == lacking


@pytest.mark.parametrize(
    ("text", "rest", "parts"),
    [
        ("Click {name} to go, %s!", "Click to go,!", [(5, "{name}"), (12, "%s")]),
        ("{n} apples at 5 %.", "apples at 5 %.", [(0, "{n}")]),
        ("我有{n}个苹果！", "我有个苹果！", [(2, "{n}")]),
        ("你好！😀", "你好！", [(3, "😀")]),
        ("No... {a} what?!", "No... what?!", [(5, "{a}")]),
        ("Hi! 😀 {a}", "Hi!", [(3, "😀"), (3, "{a}")]),
    ],
)
def test_taken_out_parts_return_to_the_same_place(
    text: str, rest: str, parts: list[tuple[int, str]]
) -> None:
    assert extract_verbatim(text) == (rest, parts)
    written = reinsert(rest, parts, lambda place: place)
    assert written.replace(" ", "") == text.replace(" ", "")
    assert missing_verbatim(text, written) == []


@pytest.mark.parametrize(
    ("translation", "place", "restored"),
    [
        ("Äpfel", 0, "{n} Äpfel"),
        ("Ich habe Äpfel.", 9, "Ich habe {n} Äpfel."),
        ("Ich habe Äpfel.", 14, "Ich habe Äpfel {n}."),
        ("Äpfel (hier)", 7, "Äpfel ({n} hier)"),
        ("我有苹果。", 2, "我有{n}苹果。"),
        ("", 0, "{n}"),
        ("사람이 걷는다", 3, "사람이 {n} 걷는다"),
    ],
)
def test_parts_are_spaced_as_words(translation: str, place: int, restored: str) -> None:
    assert reinsert(translation, [(3, "{n}")], lambda _: place) == restored


def test_changes_leave_copied_parts_alone() -> None:
    assert change_words("See {Name} AT https://A.b, $HOME", str.lower) == (
        "see {Name} at https://A.b, $HOME"
    )


@pytest.mark.parametrize(
    "part",
    [
        *(
            "1",
            "1,",
            "1 ",
            "a",
            "a.",
            "a@a.",
            "+",
            "a-",
            "{",
            "http://",
            ".",
            "!",
            "👍",
            "é1",
            "%1",
        ),
        *("{{", "{{a", "{%", "{#", "<%", "<%a", "%(", "%(a", "%5", "%a", "$t(", "$a", " :a", "{ "),
        *("_a ", "_", "a&", "a&b;", "§a", "^", "[", "[a", "[a]", "\\a"),
    ],
)
def test_time_is_linear(part: str) -> None:
    for end in ("", "万", "@"):
        text = part * (60_000 // len(part)) + end
        started_at = time.process_time()
        extract_verbatim(text)
        missing_verbatim(text, "")
        assert time.process_time() - started_at < 2


@given(
    st.text(
        st.sampled_from("aA1.!?！@{}%$:/wW-_#*~=<>()|&^§\\é雪😀🇩🇪\u20e3\ufe0f\u200d \u0661"),
        max_size=20,
    )
)
def test_all_copied_parts_are_removed_and_missed(text: str) -> None:
    parts = copied_parts(text)
    assert (without_copied(text) != text) is bool(parts)
    assert {*missing_verbatim(text, "")} == {part for part in parts if part.strip(".!?！？")}
