"""Placeholders of programs and signs of no language, and running text that has none."""

import string
import time
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mt.data.placeholders import GENERAL, find_syntax
from mt.data.verbatim import copied_parts, inner_spans, missing_verbatim

FORMS = """
%d %i %u %x %c %e %g %p %n %r %ld %lu %llu %zu %hhd %lf %I64d %5d %-10s %+d %.2f %'d
%*d %.*s %-*.*f %1$s %2$ld %1$@ %@ %lld %<PRIu64> %(full_name)s %(n).2f %% %{x} %<x>d
{} {0} {0:d} {name!r:>10} {obj.attr[0]} {0:N2} {0,-10:N2} {0,number} #{x} ${x} @:key
{{x|f}} {{{x}}} {{count}} {{#if}} {%x%} {#x#} <%=x%> $t(key) $x_y $name $NAME
%1 %L1 %2% %|1$d| %name% %user.name% {$name} {-brand} %#@dogs@ %1$#@dogs@ [[name]] <<name>>
__name__ ##name## #name# $[name] @[name] $(name) @NAME@ @@x.y@@ %%NAME%% %arg %b %H
"""
SPACED = """
{{ user.name }}; {{ x | date:'short' }}; {{ f({a: 1}) }}; {% trans 'a' %}; {# a note #}
<%= a.b %>; <% if (a) { %>; { $name }; { -brand }; { name }; ${ a.b }; ${{ x }}
{ DATETIME($d, month: 'long') }; {0,date,dd MMM yyyy}; {0, number, #.##}; {count, number}
{:%Y-%m-%d %H:%M}; %(full name)s; %(größe) 5d; $t(a, {"n": 1}); @:{'a.b'}
"""
TEMPLATES = "%(*)s {*} {{*}} {{\xa0*\xa0}} ${*} %{*} %#@*@ %* %*% $* [[*]] <<*>> $[*] ##*## @*@"
STARTS = "% { ~ $ [[ << < __ ## @ : \\ ${{ {% {# <% %( $t( %#@a %1$#@ $[ C:\\ \ue001 {a,"


@pytest.mark.parametrize("part", FORMS.split() + SPACED.strip().replace("\n", "; ").split("; "))
def test_placeholder_is_one_part(part: str) -> None:
    assert copied_parts(f"See {part} here") == [part]
    assert copied_parts(f"见“{part}”。") == [part]


@pytest.mark.parametrize("form", TEMPLATES.split(" "))
@given(name=st.text(st.sampled_from(string.ascii_lowercase), min_size=4, max_size=9))
def test_any_name_is_found(form: str, name: str) -> None:
    part = form.replace("*", f"{name}_x")
    assert copied_parts(f"She has {part}, he {part}.") == [part, part]
    assert missing_verbatim(f"She has {part}.", "Sie hat.") == [part]


@pytest.mark.parametrize("part", ["%.3f", "%d", "%5.1f", "%ld", "%%"])
def test_placeholder_may_have_a_unit_or_percent_sign(part: str) -> None:
    assert copied_parts(f"It took {part}s, {part}%% of 100%%") == [part, part, "%%", "%%"]


@pytest.mark.parametrize(
    "text",
    [
        *("50% discount", "100 % sure", "a:b", "Note: see", "@home", "5 % d'intérêt", "30% off"),
        *("at 10%.", "50%-a a népnek", "100%ige Sicherheit", "20%-s", "%50 indirim", "100%:n"),
        *("5 $US", "100 $CA", "US$5 A$AP Ke$ha", "R$ 5", "10%or20%", "std::string :D"),
        *("{1, 2, 3}", "{see above}", "100% (sure)", "5%, 6% & 7%", "50%/50%", "25 % i alle"),
        *("{don't go}", "{note: a b}", "{ COUGH }", "[laughs]", "a_b", "C# #1 @you", "*a* __b c__"),
        *("<3 you", "a < b and c > d", "R&D AT&T", "C++17", "1+1", "He (or she) has [two]."),
        *("她花了50%的时间，还剩$5（约合四分之一）。", "税率5％、値段は「100円」です。"),
        *("ราคา 50% ของ [หนังสือ] คือ $5", "وصلت النسبة إلى 50% (أو أكثر) يا {صديق قديم}"),
        *("यह 50% है, [किताब] अच्छी है: हाँ", "50% ᎠᏂᏴᏫᏯ (ᎤᏂᏣᏘ)", "ფასი 50% ან $5: [წიგნი]"),
    ],
)
def test_running_text_has_no_placeholders(text: str) -> None:
    assert copied_parts(text) == []


def test_signs_of_no_language_are_copied_parts() -> None:
    signs = [
        *"©®™°№§¶†→←⇒★✓☎♪\ue001\uf8ff\U000f1234\U0010fffd",
        *(chr(code) for code in range(0x2300, 0x2C00) if unicodedata.category(chr(code)) == "So"),
    ]
    assert [sign for sign in signs if copied_parts(f"An {sign} axe{sign}.") != [sign] * 2] == []
    assert [sign for sign in signs if sign not in missing_verbatim(f"An {sign}.", "")] == []
    for letters in ("½ cup, a × b, −5, ’tis – «no» …", "雪「の」、ー々。", "ไม่ฯ ៛ा۔، ।"):
        assert copied_parts(letters) == []


@pytest.mark.parametrize(
    ("line", "parts"),
    [
        ("1. The dog", ["The dog"]),
        ("• a) The dog 🐕", ["The dog"]),
        ("(3) 狗", ["狗"]),
        ("- 2. Собака", ["Собака"]),
        ("\ue001 The dog™ → ★", ["The dog™"]),
        ("© 2020 Tom.", ["2020 Tom."]),
        ("你好😀", ["你好😀"]),
        ("3. patro", ["3. patro"]),
        ("A. Smith -5 #1 *a*", ["A. Smith -5 #1 *a*"]),
        ("# The dog", ["The dog"]),
        ("# 8 ran", ["# 8 ran"]),
        (r"It ran.\nShe saw it.\tSo?", ["It ran.", "She saw it.", "So?"]),
        ("It ran.\tShe", ["It ran.", "She"]),
        (r"C:\new\top", [r"C:\new\top"]),
        (" It ran. ", [" It ran. "]),
    ],
)
def test_signs_and_list_marks_around_a_text_are_not_in_it(line: str, parts: list[str]) -> None:
    assert [line[start:end] for start, end in inner_spans(line)] == parts


def test_dash_between_sentences_is_no_mark_of_a_list() -> None:
    assert inner_spans("– Yes.") == [(2, 6)]
    assert inner_spans("– Yes.", is_first=False) == [(0, 6)]
    assert inner_spans("2. Yes.", is_first=False) == [(3, 7)]


@given(st.text(st.sampled_from("aB1.)( -•→😀\ue001\\nt\t雪é"), max_size=20))
def test_parts_of_a_text_are_in_order_and_have_its_words(text: str) -> None:
    places = [place for span in inner_spans(text) for place in span]
    assert places == sorted(places)
    rest = text
    for start, end in reversed(inner_spans(text)):
        rest = rest[:start] + "|" + rest[end:]
    words = [
        word for word in rest.replace("\\n", " ").replace("\\t", " ").split() if word.isalpha()
    ]
    assert all(len(word) == 1 for word in words), "only `a)` is a mark"


@pytest.mark.parametrize("flag", ["", "c", "python-brace", "java", "lisp", "qt"])
def test_time_is_linear_in_any_syntax(flag: str) -> None:
    syntax = find_syntax(frozenset({f"{flag}-format"})) if flag else GENERAL
    started_at = time.process_time()
    for start in STARTS.split():
        for part in ("", "0", " ", "_a", "="):
            text = (start + part) * (40_000 // len(start + part))
            assert all(match[0] for match in syntax.hidden.finditer(text))
            if not flag:
                copied_parts(text)
                inner_spans(text)
    assert time.process_time() - started_at < 120, "a quadratic search takes an hour"
