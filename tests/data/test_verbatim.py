"""Text that translations repeat unchanged."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mt.data.placeholders import GENERAL, find_syntax
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


@pytest.mark.parametrize(
    "text",
    [
        "%d %i %u %x %c %e %g %p %n %r %ld %lu %llu %zu %hhd %lf %I64d %5d %-10s %+d %.2f %'d",
        "%*d %.*s %-*.*f %1$s %2$ld %1$@ %@ %lld %<PRIu64> %(full_name)s %(n).2f %% %{x} %<x>d",
        "{} {0} {0:d} {name!r:>10} {obj.attr[0]} {0:N2} {0,-10:N2} {0,number} #{x} ${x} @:key",
        "{{x|f}} {{{x}}} {{count}} {{#if}} {%x%} {#x#} <%=x%> $t(key) $x_y $name $NAME :name",
        "%1 %L1 %2% %|1$d| %name% %user.name% {$name} {-brand}",
    ],
)
def test_placeholders_are_copied_parts(text: str) -> None:
    assert copied_parts(text) == text.split()
    assert copied_parts(f"见{text.replace(' ', '，')}。") == [
        part
        for part in text.split()
        if part != ":name"  # without a space as in `a:b`
    ]


@pytest.mark.parametrize(
    "part",
    [
        *("{{ user.name }}", "{{ x | date:'short' }}", "{{ f({a: 1}) }}", "{% trans 'a' %}"),
        *("{# a note #}", "<%= a.b %>", "<% if (a) { %>", "{ $name }", "{ -brand }", "${ a.b }"),
        *("{ DATETIME($d, month: 'long') }", "{0,date,dd MMM yyyy}", "{0, number, #.##}"),
        *("{:%Y-%m-%d %H:%M}", "%(full name)s", "%(größe) 5d", '$t(a, {"n": 1})', "@:{'a.b'}"),
    ],
)
def test_placeholder_with_spaces_is_one_part(part: str) -> None:
    assert copied_parts(f"See {part} here") == [part]


@pytest.mark.parametrize("part", ["%.3f", "%d", "%5.1f", "%ld", "%%"])
def test_placeholder_may_have_a_unit_or_percent_sign(part: str) -> None:
    assert copied_parts(f"It took {part}s, {part}%% of 100%%") == [part, part, "%%", "%%"]


@pytest.mark.parametrize(
    "text",
    [
        *("50% discount", "100 % sure", "a:b", "Note: see", "@home", "5 % d'intérêt", "30% off"),
        *("at 10%.", "50%-a a népnek", "100%ige Sicherheit", "20%-s", "%50 indirim", "100%:n"),
        *("5 $US", "100 $CA", "US$5 A$AP Ke$ha", "R$ 5", "10%or20%", "std::string :D", "the %age"),
        *("{1, 2, 3}", "{see above}", "100% (sure)", "5%, 6% & 7%", "50%/50%", "25 % i alle"),
    ],
)
def test_running_text_has_no_placeholders(text: str) -> None:
    assert copied_parts(text) == []


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
            [
                *("{{name}}", "{user.name}", "{0:.2f}", "%1$s", "%5.2f"),
            ],
        ),
        ("🇩🇪 ⭐ 1️⃣ 👩🏽‍👧🏽 ❤️", "🇩🇪 ⭐ 👩🏽👧🏽 ❤", ["1️⃣", "👩🏽‍👧🏽", "❤️"]),
        ("Wait... what?! 住手！！！", "等什么？不", []),
        ("--- In 1984 ---", "Im Jahr 1984 ---", ["---"]),
        ("See www.a.org.", "Siehe www.a.org.", []),
        ("See https://a.b/12 now", "Siehe https://a.b/13 jetzt", ["https://a.b/12"]),
        ("Mail a@b.org 👍", "Mail a@b.org", ["👍"]),
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
    ],
)
def test_time_is_linear(part: str) -> None:
    for end in ("", "万", "@"):
        text = part * (60_000 // len(part)) + end
        started_at = time.process_time()
        extract_verbatim(text)
        missing_verbatim(text, "")
        assert time.process_time() - started_at < 2


@pytest.mark.parametrize("flag", ["", "c", "python", "php", "java", "lisp", "ruby", "gcc-internal"])
def test_time_is_linear_in_each_syntax(flag: str) -> None:
    pattern = find_syntax(frozenset({f"{flag}-format"})).hidden if flag else GENERAL.pattern
    started_at = time.process_time()
    for start in ("%", "{", "~"):
        for part in ("0", " ", "'%", start):
            assert list(pattern.finditer(start + part * (20_000 // len(part)))) is not None
    assert time.process_time() - started_at < 1


@given(
    st.text(
        st.sampled_from("aA1.!?！@{}%$:/wW-_#*~=<>()|é雪😀🇩🇪\u20e3\ufe0f\u200d \u0661"), max_size=20
    )
)
def test_all_copied_parts_are_removed_and_missed(text: str) -> None:
    parts = copied_parts(text)
    assert (without_copied(text) != text) is bool(parts)
    assert {*missing_verbatim(text, "")} == {part for part in parts if part.strip(".!?！？")}
