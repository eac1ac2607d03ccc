"""Subtitles, catalogues, exchange formats and records come back with translated texts."""

import json
import re
import shutil
import subprocess
from collections.abc import Callable
from html import escape
from pathlib import Path
from typing import get_args

import polib
import pytest

from mt.data.exchange_formats import READERS as CORPUS_READERS
from mt.documents.document import FORMATS, SUFFIXES, find_format, read_document
from mt.documents.segments import Format, Options, Replacement, count_untranslated
from mt.errors import DataError, UserError
from tests.documents.samples import longer, translated

SRT = """1
00:00:01,000 --> 00:00:02,500 X1:40
<i>Hello there,</i>
my friend.

2
00:00:02,000 --> 00:00:04,000
- Who?
- Me & you{\\an8}
3
00:00:05,000 --> 00:00:06,000
12:30

"""
ODD_SRT = (
    "00:00:05,000 --> 00:00:01,000\r\nNo number\rnor order\n\r\n\r"
    "2\r00:00:02.0 --> 0:0:9,5\nOverlaps\n3\n00:00:03,000 --> 00:00:04,000 --> x\nA -> B --> C"
)
SRT_UPPER = (
    SRT.replace("Hello there", "HELLO THERE")
    .replace("my friend", "MY FRIEND")
    .replace("Who", "WHO")
    .replace("Me & you", "ME & YOU")
)
VTT = """WEBVTT - a title

STYLE
::cue { color: red }

NOTE a comment
of two lines

an id
00:01.000 --> 00:02.000 align:start position:10%
<v Bob>Hello &amp; <c.loud>good</c>
<00:01.500>bye
"""
VTT_UPPER = (
    VTT.replace("Hello", "HELLO").replace(">good", ">GOOD").replace("]bye", "]BYE")
).replace(">bye", ">BYE")


def cue(text: str, point: str = ",") -> str:
    return f"1\n00:00:01{point}000 --> 00:00:02{point}500\n{text}\n\n"


JSONL = """{"id": 1, "text": "Hello \\"you\\"\\nNext line\\nand \\u00e9", "n": {"t": "In \\/ x"}}

{ "text" : null , "text2": "text" }
{"text":"ok","text":"1.5"}
"""
JSONL_UPPER = (
    (JSONL.replace("Hello", "HELLO").replace("you", "YOU").replace("Next line", "NEXT LINE"))
    .replace("and \\u00e9", "AND \\u00c9")
    .replace('"ok"', '"OK"')
)
LISTS = """{"m": [ {"r": "a", "c": "hi"} ,{"c":["hi", [null,"hi"]]}], "t": "yo"}
{"t" : [ "yo" , 1, {"t": "u"}, "yo"], "m": null}
"""
TSV = "id\ttext\tx\n1\tHello you\ty\n\n2\tBye\n"


@pytest.mark.parametrize(
    "change", [str, lambda text: re.sub("\r?\n", "\r\n", text)], ids=["LF", "CRLF"]
)
@pytest.mark.parametrize("mark", ["", "\ufeff"], ids=["", "BOM"])
@pytest.mark.parametrize(
    ("format", "source", "expected", "column"),
    [
        ("srt", SRT, SRT_UPPER, None),
        ("srt", ODD_SRT, ODD_SRT.upper().replace("X\n", "x\n"), None),
        ("vtt", VTT, VTT_UPPER, None),
        ("jsonl", JSONL, JSONL_UPPER, "text"),
        ("jsonl", JSONL, JSONL.replace("In \\/ x", "IN / X"), "n.t"),
        ("jsonl", LISTS, LISTS.replace("hi", "HI"), "m[].c"),
        ("jsonl", LISTS, LISTS.replace("hi", "HI"), "m.c"),
        ("jsonl", LISTS, LISTS.replace("yo", "YO"), "t"),
        ("tsv", TSV, TSV.replace("Hello you", "HELLO YOU").replace("Bye", "BYE"), "text"),
        ("tsv", TSV, TSV.replace("id", "ID"), "1"),
    ],
)
def test_only_text_changes(
    format: Format,
    source: str,
    expected: str,
    column: str | None,
    mark: str,
    change: Callable[[str], str],
) -> None:
    content = (mark + change(source)).encode()
    assert translated(content, format, str, column=column) == content
    upper = translated(content, format, str.upper, column=column)
    assert upper == (mark + change(expected)).encode()


@pytest.mark.parametrize(
    ("format", "source", "texts"),
    [
        ("srt", SRT, ["Hello there, my friend.", "Who?", "Me & you"]),
        ("vtt", VTT, ["Hello & good bye"]),
        ("srt", cue("It was late.\nMr.\nOak ran.\n\nHe fell"),
         ["It was late.", "Mr. Oak ran.", "He fell"]),
        ("srt", cue("- Why? - Why\nnot?\nANNA: So\nMAN 2 (OFF): No"),
         ["Why?", "Why not?", "So", "No"]),
        ("srt", cue("STOP: NO ENTRY\nIt is 4:30, at -5 degrees"),
         ["STOP: NO ENTRY It is 4:30, at -5 degrees"]),
        ("srt", cue("{\\an8}<i>5 < 6\\Nand\\h8 > 7</i>"), ["5 < 6 and 8 > 7"]),
        ("srt", cue("♪ la la ♪\n<font color=red>{b}No{/b}</font>"), ["la la", "No"]),
        ("srt", cue("他走了。\n她呢？\n- 在家"), ["他走了。", "她呢？", "在家"]),
        ("vtt", "WEBVTT\n\n" + cue("<v Ann>Hi <b>you</b></v> <v.loud Bob>Me\ntoo", "."),
         ["Hi you", "Me too"]),
        ("jsonl", '{"text": "One\\ntwo\\nThree\\n\\nFour"}', ["One two", "Three", "Four"]),
        ("srt", cue("(gasps)\nDr. Elm: So\nMax: No\n<c.red>[bell]</c><br>It is<br/>late"),
         ["gasps", "Dr. Elm: So", "Max: No", "bell", "It is late"]),
        ("vtt", "WEBVTT\n\n" + cue("{\\an8}<ruby>字<rt>zi</rt></ruby> it", "."), ["字 it"]),
        ("jsonl", '{"text": "# Up\\n* one\\n  two\\n2. три\\nдва | <b>no</b> |x|\\n## <i>x</i> y"}',
         ["# Up", "* one two", "2. три два", "no", "## x y"]),
        ("po", 'msgid "One\\ntwo\\n- Three"\nmsgstr ""\n', ["One two", "- Three"]),
    ],
)  # fmt: skip
def test_lines_of_a_sentence_are_one_text(format: Format, source: str, texts: list[str]) -> None:
    seen: list[str] = []

    def record(text: str) -> str:
        seen.append(text)
        return text

    translated(source.encode(), format, record, column="text")
    assert seen == texts


def test_cue_keeps_its_lines_and_tags_in_other_words() -> None:
    cue = b"1\n00:01:00,000 --> 00:01:02,000\n<i>one two</i> three\nfour five six\n"
    start, text = translated(cue, "srt", longer).decode().split("2,000\n")
    assert start == cue.decode().split("2,000\n")[0]
    assert text.count("\n") == 2
    assert text.count("<i>") == text.count("</i>") == 1
    words = text.replace("<i>", "").replace("</i>", "").split()
    assert words == longer("one two three four five six").split()
    # A translation of one word has no place for a line end, and no blank line ends the cue.
    assert translated(cue, "srt", lambda _: "x").endswith(b"2,000\n<i>x</i>\n")


@pytest.mark.parametrize(
    "change", [longer, lambda text: text[::-1], lambda _: "x", lambda _: "中文字"]
)
def test_times_inside_a_cue_rise(change: Callable[[str], str]) -> None:
    times = [f"<00:{minute:02}:{second:02}.500>" for minute in range(2) for second in (1, 5, 20)]
    words = "".join(f"{time}<c> word{index}</c>" for index, time in enumerate(times))
    source = "WEBVTT\n\n" + cue(f"So {words}", ".")
    text = translated(source.encode(), "vtt", change).decode()
    assert re.findall(r"<[\d:.]+>", text) == times
    assert text.count("<c>") == text.count("</c>") == len(times)


def test_text_of_a_cue_in_another_language_stays_and_is_counted() -> None:
    source = "WEBVTT\n\n" + cue(
        "one <lang fr>deux</lang>\n- <lang de>drei</lang>\n- <i>four</i>", "."
    )
    result = translated(source.encode(), "vtt", str.upper).decode()
    assert result == source.replace("one", "ONE").replace(">four", ">FOUR")
    items = read_document(source.encode(), "vtt", "x").read_items(Options("x", "en", "de"))
    assert count_untranslated(items) == {"texts in other languages": 2}


def test_untimed_and_unfit_texts_are_counted() -> None:
    records = '{"m": [{"c": "a"}, {"c": null}, {"c": ["b", 5]}]}\n{"m": []}\n{"n": {"m": 1}}\n'
    vtt = "WEBVTT\n\nNOTE Hello\n\nHello\n\n" + cue("Hi\n\nlost\nlines", ".") + "STYLE\nHello\n"
    cases: list[tuple[Format, str, list[str], list[str]]] = [
        ("srt", "Hello\n" + cue("Hi"), ["Hi"], ["paragraphs without times"]),
        ("vtt", vtt, ["Hi"], ["paragraphs without times"] * 2),
        (
            "jsonl",
            records,
            ["a", "b"],
            ["values of `m[].c` other than texts"] * 2 + ["records without `m[].c`"] * 2,
        ),
        ("tsv", "m[].c\tn\na\t1\n\nb\tx\t2\nc\t3\n", ["a", "c"], ["rows with too many cells"]),
    ]
    for format, source, texts, kept in cases:
        document = read_document(source.encode(), format, "file")
        items = list(document.read_items(Options("file", "en", "de", "m[].c")))
        assert [text for item in items for text in item.texts] == texts
        assert [item.reason_untranslated for item in items if isinstance(item, Replacement)] == kept


PO = r"""# translators
msgid ""
msgstr ""
"Content-Type: text/plain; charset=UTF-8\n"
"Plural-Forms: nplurals=2; plural=n != 1;\n"
"Language: de\n"

#: a.c:1
#, c-format
msgctxt "menu"
msgid "File %d"
msgstr ""

#, fuzzy
#| msgid "Older"
msgid "Old"
msgstr "Alt"

#. "quoted" in a comment
#| msgid "Before"
msgid "One \"file\""
msgid_plural "Many\tfiles"
msgstr[0] ""
msgstr[1] "Viele"

msgid ""
"Usage:\n"
"  -a  first\n"
"\n"
"Long text "
"in parts\n"
msgstr ""

msgid "Done"
msgstr "Fertig"

#~ msgid "gone"
#~ msgstr ""
"""


@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("fuzzy", [False, True])
def test_untranslated_messages_are_filled(end: str, fuzzy: bool, tmp_path: Path) -> None:
    source = PO.replace("\n", end).encode()
    result = translated(source, "po", str.upper, fuzzy=fuzzy).decode()
    before, after = polib.pofile(PO), polib.pofile(result.replace("\r\n", "\n"))
    assert len(after) == len(before)
    assert after.metadata == before.metadata
    for old, new in zip(before, after, strict=True):
        changed = not (old.translated() or old.fuzzy or old.obsolete)
        assert ("fuzzy" in new.flags) == (old.fuzzy or (fuzzy and changed))
        assert [flag for flag in new.flags if flag != "fuzzy"] == [
            flag for flag in old.flags if flag != "fuzzy"
        ]
        for name in ("msgid", "msgctxt", "msgid_plural", "comment", "occurrences", "obsolete"):
            assert getattr(new, name) == getattr(old, name)
        assert new.msgstr == (
            old.msgstr
            or (old.msgid.upper().replace("%D", "%d") if changed and not old.msgid_plural else "")
        )
    plural = next(entry for entry in after if entry.msgid_plural)
    assert plural.msgstr_plural == {0: 'ONE "FILE"', 1: "Viele"}
    removed = [line for line in source.decode().split(end) if line not in result.split(end)]
    assert removed == (["#, c-format", 'msgstr[0] ""'] if fuzzy else ['msgstr[0] ""'])
    assert translated(result.encode(), "po", str.lower).decode() == result, "nothing is left to do"
    if shutil.which("msgfmt"):
        (tmp_path / "de.po").write_bytes(translated(PO.encode(), "po", str))
        check = ["msgfmt", "-c", "-o", str(tmp_path / "de.mo"), str(tmp_path / "de.po")]
        subprocess.run(check, check=True, capture_output=True)


def _reverse(text: str) -> str:
    return " ".join(reversed(text.split()))


@pytest.mark.parametrize(
    ("message", "texts", "markup"),
    [
        ('See <a href="%(u)s">a dog</a>.', ["See a dog."], ['<a href="%(u)s">', "</a>"]),
        ("Read :ref:`a %d` or ``b``", ["Read or"], [" :ref:`a %d` ", " ``b``"]),
        ("A &amp; <b>b</b>\nC `d <x>`_", ["A & b", "C d"], ["<b>", "</b>", "\n", "`", " <x>`_"]),
    ],
)
def test_markup_of_messages_comes_back(message: str, texts: list[str], markup: list[str]) -> None:
    seen: list[str] = []

    def translate(text: str) -> str:
        seen.append(text.strip())
        return "译" * 5

    entry = polib.POEntry(msgid=message, flags=["python-format"])
    result = translated(_LANGUAGE + str(entry).encode(), "po", translate)
    assert seen == texts
    [filled] = polib.pofile(result.decode())
    assert re.search("[译 ]*".join(map(re.escape, markup)), filled.msgstr), filled.msgstr


@pytest.mark.parametrize(
    ("flag", "message", "translation"),
    [
        ("c", "%lu of %'d: 5%% in %-5.*s", "%lu in %'d 5 :%% of %-5.*s"),
        ("c", "%<PRIu64> bytes of %I64d", "%<PRIu64> of bytes %I64d"),
        ("c", "50% discount on %d", "on% discount 50 %d"),
        ("objc", "%@ has %1$lld dogs", "%@ dogs %1$lld has"),
        ("python", "bad: %r in %(full name)s", "in bad:%r %(full name)s"),
        ("python-brace", "{name!r:>9} has {{{0[a].b}}} of {}",
         "{name!r:>9} of {{{0[a].b}}} has {}"),
        ("java", "don''t see '{a}' in {0}", "in see '{a}' don''t {0}"),
        ("csharp", "{0:N2} of {1,-9} apples", "{0:N2} apples {1,-9} of"),
        ("lisp", "~a has ~5,2f dogs~%", "~a dogs ~5,2f has~%"),
        ("ruby", "%{a b} has %<n>.2f dogs", "%{a b} dogs %<n>.2f has"),
        ("sh", "$name has ${n} dogs", "$name dogs ${n} has"),
        ("qt", "%L1 has 100% of %12", "%L1 of 100% has %12"),
        ("qt-plural", "%n dogs ran", "%n ran dogs"),
        ("kde", "%1 of %12 dogs", "%1 dogs %12 of"),
        ("boost", "%1% has %|2$d| dogs", "%1% dogs %|2$d| has"),
        ("object-pascal", "%1:s has %0:d dogs", "%1:s dogs %0:d has"),
        ("perl-brace", "{a} has {n} dogs", "{a} dogs {n} has"),
        ("php", "%1$s has %'*9d dogs", "%1$s dogs %'*9d has"),
        ("gcc-internal", "%qs is %<not%> %+D", "%qs not %<is%> %+D"),
        ("javascript", "%s took %.3fs more", "%s more %.3fs took"),
        ("no-c", "{{ a }} has dogs", "{{ a }} dogs has"),
    ],
)  # fmt: skip
def test_flag_of_a_message_chooses_its_placeholders(
    flag: str, message: str, translation: str
) -> None:
    source = f'#, {flag}-format\nmsgid "{message}"\nmsgstr ""\n'
    result = polib.pofile(translated(_LANGUAGE + source.encode(), "po", _reverse).decode())
    assert [entry.msgstr for entry in result] == [translation]


@pytest.mark.parametrize(
    ("flags", "message", "added"),
    [
        ("c-format", "A dog %d", "%s"),
        ("c-format", "A dog", "100% "),
        ("python-brace-format", "A {n} dog", "{"),
        ("qt-format", "A dog %1", "%2"),
        ("scheme-format", "A dog ~a", "~"),
        ("wrap", "A dog", "{x}"),
        ("wrap", "A dog", "%d"),
    ],
)
def test_message_with_other_placeholders_is_left_untranslated(
    flags: str, message: str, added: str
) -> None:
    source = _LANGUAGE + f'#, {flags}\nmsgid "{message}"\nmsgstr ""\n'.encode()
    assert translated(source, "po", lambda text: f"{text} {added}", fuzzy=True) == source
    assert translated(source, "po", lambda _: " ", fuzzy=True) == source
    assert translated(source, "po", lambda text: f"{text} Hund") != source


@pytest.mark.parametrize(
    ("format", "source"),
    [
        ("html", "<p>A <b>{n}</b> dog</p>"),
        ("markdown", "A %s dog\n"),
        ("tsv", "text\nA {{n} dog\n"),
        ("jsonl", '{"text": "A %s or %d dog"}\n'),
        ("srt", "1\n00:00:01,000 --> 00:00:02,000\nA $name dog\n"),
        (
            "xliff",
            "<xliff version='1.2'><file source-language='en' target-language='de'><trans-unit>"
            "<source>A %s or {n}</source></trans-unit></file></xliff>",
        ),
    ],
)
@pytest.mark.parametrize("change", ["Hund", "{} %i", "{} {{x}}", " "])
def test_text_with_other_placeholders_keeps_its_source(
    format: Format, source: str, change: str
) -> None:
    refused: list[str] = []
    result = translated(source.encode(), format, change.format, column="text", refused=refused)
    assert result == source.encode()
    assert re.match("the translation (lacks `|adds `|is empty)", refused[0])


@pytest.mark.parametrize(
    ("message", "text", "result"),
    [
        ("&Open file", "Open file", "&FILE OPEN"),
        ("Save _As", "Save As", "AS _SAVE"),
        ("Now E&xit it", "Now Exit it", "IT &EXIT NOW"),
        ("Find it\tCtrl+F", "Find it", "IT FIND\tCtrl+F"),
        (r"Find it\tF3", "Find it", r"IT FIND\tF3"),
        ("查找(&F)...", "查找", "查找(&F)..."),
        ("AT&T or R&D", "AT&T or R&D", "R&D OR AT&T"),
        ("a &b or &c", "a &b or &c", "&C OR &B A"),
        ("read _it.txt", "read _it.txt", "_IT.TXT READ"),
    ],
)
@pytest.mark.parametrize("format", ["jsonl", "xliff"])
def test_accelerator_and_keys_are_kept(
    message: str, text: str, result: str, format: Format
) -> None:
    seen: list[str] = []

    def translate(text: str) -> str:
        seen.append(text)
        return _reverse(text.upper())

    if format == "jsonl":
        record = json.dumps({"t": message}).encode()
        assert json.loads(translated(record, format, translate, column="t")) == {"t": result}
    else:
        unit = exchange(format, f"<source>{escape(message)}</source>").encode()
        assert f">{escape(result)}</target>" in translated(unit, format, translate).decode()
    assert seen == [text]


def test_brackets_of_notes_enclose_their_words() -> None:
    notes = "(She ran)\n- [bell] The old (red) dog\nate.\n[It\nbarks]"
    texts = {"She ran": "a", "bell": "b", "The old red dog ate.": "c d e f", "It barks": "g h"}
    result = translated(cue(notes).encode(), "srt", texts.__getitem__).decode()
    assert result.partition("2,500\n")[2].strip() == "(a)\n- [b] c (d) e\nf\n[g\nh]"


def test_other_order_of_placeholders_without_number_is_refused() -> None:
    for text, order in (("A %s has %d dogs", False), ("A %2$s has %1$d dogs", True)):
        refused: list[str] = []
        translated(f"{text}\n".encode(), "text", _reverse, refused=refused)
        assert refused == ([] if order else ["the translation changes the order of `%s`, `%d`"])


_LANGUAGE = b'msgid ""\nmsgstr "Language: de\\n"\n\n'
TEMPLATE = r"""# A title
#, fuzzy
msgid ""
msgstr ""
"Project-Id-Version: x\n"
"PO-Revision-Date: 2020-01-01 00:00+0000\n"
"Last-Translator: x\n"
"Language-Team: x\n"
"Language: \n"
"MIME-Version: 1.0\n"
"Content-Type: text/plain; charset=CHARSET\n"
"Content-Transfer-Encoding: 8bit\n"
"Plural-Forms: nplurals=INTEGER; plural=EXPRESSION;\n"

msgid "a dog"
msgstr ""
"""
PLURALS = """
#, c-format
msgid "one dog"
msgid_plural "%d dogs"

#, c-format
msgid "%d"
msgid_plural "%d hats"
"""


@pytest.mark.parametrize(
    ("language", "code"), [("zh-CN", "zh_CN"), ("deu_Latn", "de"), ("pt-BR", "pt_BR")]
)
def test_template_is_completed_for_the_target(language: str, code: str, tmp_path: Path) -> None:
    path = tmp_path / "file.po"
    for source in (TEMPLATE, TEMPLATE.replace("Language: ", "Language: en_GB")):
        path.write_bytes(translated(source.encode(), "po", str.upper, languages=("en", language)))
        result = polib.pofile(str(path))
        assert not result.metadata_is_fuzzy
        assert result.metadata["Language"] == code
        assert result.metadata["Content-Type"] == "text/plain; charset=UTF-8"
        assert [entry.msgstr for entry in result] == ["A DOG"]
        if shutil.which("msgfmt"):
            check = ["msgfmt", "-c", "-o", str(tmp_path / "x.mo"), str(path)]
            subprocess.run(check, check=True, capture_output=True)
    plural = PLURALS.split("\n\n")[0] + '\nmsgstr[0] ""\n'
    document = read_document((TEMPLATE + plural).encode(), "po", "file")
    items = document.read_items(Options("file", "en", language))
    assert [*count_untranslated(items)] == ["messages with plural forms, which `msginit` declares"]


@pytest.mark.parametrize(
    ("code", "declared", "forms"),
    [
        ("zh", "nplurals=1; plural=0", ["%d DOGS"]),
        ("de", "nplurals=2; plural=n != 1", ["ONE DOG", "%d DOGS"]),
        # The first form is of 21, too.
        (
            "ru",
            "nplurals=3; plural=n%10==1 && n%100!=11 ? 0 : n%10>=2 && n%10<=4 ? 1 : 2",
            ["%d DOGS", "%d DOGS", "%d DOGS"],
        ),
        ("ar", "nplurals=4; plural=n==0 ? 0 : n==1 ? 1 : n==2 ? 2 : 3",
         ["%d DOGS", "ONE DOG", "%d DOGS", "%d DOGS"]),
    ],
)  # fmt: skip
def test_form_of_one_is_the_singular(code: str, declared: str, forms: list[str]) -> None:
    header = f'msgid ""\nmsgstr ""\n"Language: {code}\\n"\n"Plural-Forms: {declared};\\n"\n'
    empty = "".join(f'msgstr[{index}] ""\n' for index in range(len(forms)))
    messages = PLURALS.replace('dogs"\n', f'dogs"\n{empty}').replace('hats"\n', f'hats"\n{empty}')
    result = translated((header + messages).encode(), "po", str.upper, languages=("en", code))
    dogs, hats = ([*entry.msgstr_plural.values()] for entry in polib.pofile(result.decode()))
    assert dogs == forms
    expected = [form.replace("ONE DOG", "%d").replace("DOGS", "HATS") for form in forms]
    assert hats == (["%d", *expected[1:]] if code == "ru" else expected)


def test_header_is_added_where_there_is_none() -> None:
    result = translated(b'# a\nmsgid "a"\nmsgstr ""\n', "po", str.upper).decode()
    header, message = result.split("\n\n")
    assert message == '# a\nmsgid "a"\nmsgstr "A"\n'
    assert '"Content-Type: text/plain; charset=UTF-8\\n"\n' in header
    assert '"Language: de\\n"' in header


def test_message_with_another_number_of_forms_is_kept_and_counted() -> None:
    source = _HEADER + b"\n" + _PLURAL + b'\nmsgid "c"\nmsgstr ""\n'
    assert translated(source, "po", str.upper) == source[:-2] + b'C"\n'
    items = read_document(source, "po", "file").read_items(Options("file", "en", "de"))
    assert [item.reason_untranslated for item in items if isinstance(item, Replacement)] == [
        "messages with another number of plural forms than the header declares"
    ]


XLIFF_1 = """<?xml version="1.0"?>
<!DOCTYPE xliff [ <!ELEMENT note (#PCDATA)> ]>
<xliff version="1.2" xmlns="urn:oasis:names:tc:xliff:document:1.2">
  <file original="x>y" source-language="en" datatype="plaintext"{language}>
    <body><!-- <trans-unit> -->
      <trans-unit id="1">
        <source>Hello <g id="1">big <x id="2"/>world</g>!</source>{first}
        <note>keep</note>
      </trans-unit>
      <trans-unit id="2"><source>Done</source><target state="final">Fertig</target></trans-unit>
      <trans-unit id="3"><source>A &lt;b&gt; c</source>{third}
        <alt-trans><source>x</source><target/></alt-trans></trans-unit>
      <trans-unit id="4" translate="no"><source>No</source></trans-unit>
      <trans-unit id="5"><source>Click <ph id="1">&lt;br&gt;</ph> <![CDATA[a<b]]></source>{fifth}
      </trans-unit>
      <trans-unit id="6"><source>12</source></trans-unit>
    </body>
  </file>
</xliff>
"""
XLIFF_2 = """<x:xliff version="2.0" srcLang="en"
    xmlns:x="urn:oasis:names:tc:xliff:document:2.0"{language}>
<x:file id="f"><x:unit id="1">
  <x:segment{state}>
    <x:source>Press <x:pc id="1">here</x:pc> now</x:source>{target}
  </x:segment>
  <x:segment state="final"><x:source>a b</x:source><x:target>c</x:target></x:segment>
</x:unit></x:file></x:xliff>
"""
TMX = """<tmx version="1.4"><header srclang="en"/><body>
<tu>
  <tuv xml:lang="EN-US"><seg>Hello <bpt i="1">&lt;b></bpt>you<ept i="1">x</ept></seg></tuv>
  <tuv xml:lang="fr"><seg>Salut</seg></tuv>{added}
</tu>
<tu><tuv xml:lang="en"><seg>a word</seg></tuv><tuv xml:lang="de-AT"><seg>Wort</seg></tuv></tu>
<tu><tuv xml:lang="fr"><seg>seul</seg></tuv></tu>
</body></tmx>
"""
EXCHANGE: list[tuple[Format, str, dict[str, tuple[str, str]]]] = [
    (
        "xliff",
        XLIFF_1,
        {
            "language": ("", ' target-language="de"'),
            "first": (
                "",
                '\n        <target state="translated">'
                'HELLO <g id="1">BIG <x id="2"/>WORLD</g>!</target>',
            ),
            "third": (
                "<target xml:lang='de' state='new'>x</target>",
                "<target xml:lang='de' state='translated'>A &lt;B&gt; C</target>",
            ),
            "fifth": (
                "<target/>",
                '<target state="translated">CLICK <ph id="1">&lt;br&gt;</ph> A&lt;B</target>',
            ),
        },
    ),
    (
        "xliff",
        XLIFF_2,
        {
            "language": ("", ' trgLang="de"'),
            "state": ("", ' state="translated"'),
            "target": ("", '\n    <x:target>PRESS <x:pc id="1">HERE</x:pc> NOW</x:target>'),
        },
    ),
    (
        "tmx",
        TMX,
        {
            "added": (
                "",
                '\n  <tuv xml:lang="de"><seg>HELLO <bpt i="1">&lt;b></bpt>YOU<ept i="1">x</ept>'
                "</seg></tuv>",
            )
        },
    ),
]
"""A file with gaps, and the texts of each before and after its translation."""


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
@pytest.mark.parametrize(("format", "file", "gaps"), EXCHANGE)
def test_targets_are_written(
    format: Format, file: str, gaps: dict[str, tuple[str, str]], encoding: str, tmp_path: Path
) -> None:
    source, expected = (
        file.format(**{name: texts[index] for name, texts in gaps.items()}) for index in (0, 1)
    )
    assert translated(source.encode(encoding), format, str.upper) == expected.encode(encoding)
    assert translated(expected.encode(), format, str.lower) == expected.encode(), (
        "all is translated"
    )
    path = tmp_path / "file"
    path.write_text(expected)
    pairs = list(CORPUS_READERS[format](path))
    new = next(texts for texts in pairs if len(texts) > 1)
    languages = [code for code in new if code.lower()[:2] == "en"]
    assert new["de"] == new[languages[0]].upper()


def test_units_are_found_behind_long_ones_and_any_character() -> None:
    notes = f"<note>{'ü 你 😀' * 250_000}</note>"  # more than the longest unit of a corpus
    text = "<tuv xml:lang='en'><seg>a😀 b</seg></tuv></tu>"
    source = f"<tmx><!-- ü 😀 --><body><tu>{notes}{text}<tu>{text}</body></tmx>"
    added = '</seg></tuv><tuv xml:lang="de"><seg>A😀 B</seg></tuv></tu>'
    expected = source.replace("</seg></tuv></tu>", added)
    assert translated(source.encode(), "tmx", str.upper).decode() == expected


_CUE = b"1\n00:00:01,000 --> 00:00:02,000\na\n"
_HEADER = b'msgid ""\nmsgstr "Plural-Forms: nplurals=2; plural=n != 1;\\n"\n'
_PLURAL = b'#: a.c\nmsgid "a"\nmsgid_plural "b"\nmsgstr[0] ""\n'


@pytest.mark.parametrize(
    ("format", "content", "place"),
    [
        ("srt", b"no cues", "`00:00:01,000 -->"),
        ("srt", _CUE + b"00:00:03 -> 00:00:04\nb", "line 4: `00:00:03 -> 00:00:04`"),
        ("srt", _CUE + b"\n2\n00:00:03,000 --> \nb", "line 6: `00:00:03,000 -->`"),
        ("srt", _CUE + b"\n2\n--> 00:00:03,000\nb", "line 6: `--> 00:00:03,000`"),
        ("vtt", b"WEBVTT\n\n00:01 --> 00:02\n", "line 3: .*`00:00:01.000 --> 00:00:02."),
        ("po", _HEADER + b'\nmsgid "a"\n', "line 4: .*`msgstr`"),
        ("po", b'msgid ""\nmsgstr "Language: fr_FR\\n"\n', "`Language` is `fr_FR`.*msginit"),
        ("po", b'msgid "a"\nmsgstr "b\n', "line 2: "),
        ("po", b'msgid ""\nmsgstr "charset=latin-1\\n"\n', "latin-1.*msgconv"),
        ("po", b'msgid "a"\nmsgid "a"\n', "line 2: .*`msgid`"),
        ("html", "<p>a\nb</p>".encode("utf-16-le"), "UTF-16"),
        ("html", b"<p>caf\xe9</p>", "line 1 .*byte 0xe9"),
        ("markdown", b"\xff", "line 1 "),
        ("xliff", b"<xliff version='1.2'>\n<file></xliff>", "line 2: "),
        ("xliff", b"<html/>", "`xliff`"),
        ("xliff", b"<xliff version='2.0' srcLang='fr'/>", "`srcLang` is `fr`"),
        ("xliff", b"<!DOCTYPE a [<!ENTITY b 'c'>]><a>&b;</a>", "entity `b`"),
        ("xliff", b"<!DOCTYPE a [<!ENTITY b SYSTEM 'c'>]><a/>", "entity `b`"),
        ("xliff", b"<xliff><trans-unit>" + b"<g>" * 1000, "100 elements"),
        ("tmx", b"<tmx/>\n\xe9", "line 2 .*byte 0xe9"),
        ("tmx", b"<!DOCTYPE a [<!ENTITY % b SYSTEM 'c'> %b;]><a/>", "entity `b`"),
        ("tmx", b"<!DOCTYPE a SYSTEM 'c'><a>&b;</a>", "entity `b`"),
        ("tmx", b"<tmx><tu><tuv xml:lang='fr'><seg>x</seg></tuv></tu></tmx>", "`en`.*`fr`"),
        ("tsv", b"", "`text`; line 1"),
        ("tsv", b"id\ttext\n1\ta\n2\n", "line 3: .*`text`"),
        ("tsv", b"id\ttext2\n", "`text`; .*did you mean `text2`"),
        ("jsonl", b'{"text2": "a", "b": {"c": "d"}}', "`text2`, `b.c`; did you mean `text2`"),
        ("jsonl", b'{"a": "b"}\n{"a" 1}\n{}', "line 2: "),
        ("jsonl", b'{"a": ' + b"[" * 10**5, "line 1: "),
        ("jsonl", b"[1]", "line 1: "),
    ],
)  # fmt: skip
def test_bad_documents_are_refused(format: Format, content: bytes, place: str) -> None:
    with pytest.raises(DataError, match=place):
        translated(content, format, str, column="text")


def test_texts_without_a_named_column_are_refused() -> None:
    for content in (b"id\ttext\n", b'{"id": "a"}'):
        with pytest.raises(DataError):
            translated(content, "tsv" if content[:1] == b"i" else "jsonl", str)


@pytest.mark.parametrize("mark", [b"", "\ufeff".encode(), "\ufeff".encode("utf-16-le")])
@pytest.mark.parametrize("format", FORMATS)
def test_files_without_text_are_kept_or_refused(format: Format, mark: bytes) -> None:
    encoding = "utf-16-le" if mark == b"\xff\xfe" else "utf-8"
    for text in ("", "\n", " \r\n\t\n", " 1 \n\n"):
        content = mark + text.encode(encoding)
        try:
            assert translated(content, format, str.upper, column="1") == content
        except DataError as error:
            assert format in {"srt", "vtt", "po", "xliff", "tmx", "jsonl", "tsv"}
            assert str(error).startswith("file: ")


def test_declared_encodings_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    page = '<meta charset="iso-8859-1"><p>caf\xe9</p>'
    result = translated(page.encode("latin-1"), "html", lambda _: "\xc9 \u4f60")
    assert result == page.replace("caf\xe9", "\xc9 &#20320;").encode("latin-1")
    monkeypatch.setattr("mt.documents.document.MOST_BYTES", 10)
    with pytest.raises(DataError):
        read_document(b"12345678901", "html", "file")


def test_formats_are_found_by_suffix() -> None:
    assert set(get_args(Format)) == set(FORMATS) == set(SUFFIXES.values())
    names = ["a.MD", "a.tmx.gz", "a.b.eng_Latn", "a", "a.b.html", ".gz", "a.mdx", "a.txt.xz"]
    assert [find_format(Path(name), "en") for name in names] == (
        ["markdown", "tmx", "text", "text", "html", "text", "markdown", "text"]
    )
    assert find_format(None, "en") == "text"
    for suffix in ("json", "csv.gz", "yaml~", "usfm", "q7x", "docx", "tar", "2017", "ja"):
        with pytest.raises(UserError, match=rf"a\.{suffix}: unknown suffix .*; known are \.md, "):
            find_format(Path(f"a.{suffix}"), "en")


@pytest.mark.parametrize("format", get_args(Format))
def test_documents_of_a_binary_format_are_refused(format: Format) -> None:
    for content, kind in (
        (b"PK\x03\x04", "ZIP"),
        (b"%PDF-1.7\n", "PDF"),
        (b"\x1f\x8b\x08", "gzip"),
    ):
        with pytest.raises(DataError, match=f"file: is not text but .*{kind}"):
            read_document(content, format, "file")


_SEGMENTS = '<mrk mtype="seg" mid="1">One.</mrk> <mrk mtype="seg" mid="2">Two <x id="9"/></mrk>'
_ONE = '<source>A <g id="1">cat</g></source>'
_NEW = f'{_ONE}<target state="translated">A <g id="1">CAT</g></target>'


def exchange(format: Format, units: str) -> str:
    """Return a file with some units."""
    if format == "po":
        return f'msgid "{units}"\nmsgstr ""'
    if format == "tmx":
        return f"<tmx><tu>{units}</tu></tmx>"
    head = '<xliff version="1.2" xmlns:m="m"><file source-language="en" target-language="de">'
    return f"{head}<trans-unit>{units}</trans-unit></file></xliff>"


@pytest.mark.parametrize(
    ("format", "unit", "expected"),
    [
        *(
            ("xliff", f"{_ONE}<target>{empty}</target>", _NEW)
            for empty in (
                " ", "&#160;\n", '<g id="1"></g>', '<g id="1"/> &#8203;', '<x id="1"/>', "<!-- -->",
                '<mrk mtype="seg" mid="1"></mrk>', "<pc><ph>%s</ph></pc>", "<![CDATA[ ]]>",
                '<bpt id="1">&lt;b&gt;</bpt><ept id="1">&lt;/b&gt;</ept>', '<bx id="1"/><ex/>',
            )
        ),
        ("xliff", f'{_ONE}<target state="needs-translation"><g id="1">A cat</g></target>', _NEW),
        *(
            (
                "xliff",
                f"<source>One. Two</source><seg-source>{_SEGMENTS}</seg-source>{target}",
                f"<source>One. Two</source><seg-source>{_SEGMENTS}</seg-source>{after}",
            )
            for target, after in [
                ("", f'<target state="translated">{_SEGMENTS.upper()}</target>'
                 .replace("MRK", "mrk").replace('MTYPE="SEG" MID', 'mtype="seg" mid')
                 .replace("X ID", "x id")),
                ('<target><mrk mtype="seg" mid="1"/><mrk mtype="seg" mid="2" m:new="1"/></target>',
                 '<target state="translated"><mrk mtype="seg" mid="1">ONE.</mrk> '
                 '<mrk mtype="seg" mid="2" m:new="1">TWO <x id="9"/></mrk></target>'),
                ('<target m:a="b"><mrk mtype="seg" mid="1" m:b="c">Eins</mrk>'
                 '<mrk mtype="seg" mid="2"> </mrk></target>',
                 '<target m:a="b" state="translated"><mrk mtype="seg" mid="1" m:b="c">Eins</mrk> '
                 '<mrk mtype="seg" mid="2">TWO <x id="9"/></mrk></target>'),
            ]
        ),
        ("tmx", "<tuv xml:lang='de'><seg></seg></tuv><tuv xml:lang='en'><seg>a</seg></tuv>",
         "<tuv xml:lang='de'><seg>A</seg></tuv><tuv xml:lang='en'><seg>a</seg></tuv>"),
        ("tmx", "<tuv xml:lang='en'><seg>a</seg></tuv><tuv xml:lang='de-CH'><p/><seg x='1'/></tuv>",
         "<tuv xml:lang='en'><seg>a</seg></tuv><tuv xml:lang='de-CH'><p/><seg x='1'>A</seg></tuv>"),
        ("tmx", "<tuv xml:lang='en'><seg>a</seg></tuv><tuv xml:lang='de'><seg><x/> \n</seg></tuv>",
         "<tuv xml:lang='en'><seg>a</seg></tuv><tuv xml:lang='de'><seg>A</seg></tuv>"),
    ],
)  # fmt: skip
def test_target_without_text_is_filled(format: Format, unit: str, expected: str) -> None:
    result = translated(exchange(format, unit).encode(), format, str.upper).decode()
    assert result == exchange(format, expected)
    assert translated(result.encode(), format, str.lower).decode() == result


@pytest.mark.parametrize(
    ("format", "unit", "reason"),
    [
        ("xliff", f"{_ONE}<target>!</target>", "units with a translation"),
        ("xliff", "<source>a</source><target><g>b</g></target>", "units with a translation"),
        ("xliff", f"{_ONE}<target xml:lang='fr'/>", "units in other languages"),
        ("xliff", "<source>{n, plural, other {b}}</source>", "ICU messages with branches"),
        ("xliff", "<source>1 <x id='a'/> 2</source>", "units without letters"),
        ("xliff", _ONE + "</trans-unit><trans-unit translate='no'><source/>",
         'units with `translate="no"`'),
        ("xliff", _ONE + "</trans-unit><trans-unit approved='yes'><source/>", "approved units"),
        ("xliff", _ONE + "</trans-unit><trans-unit m:locked='true'><source/>", "locked units"),
        ("po", "{n, plural, other {b}}", "ICU messages with branches"),
        ("tmx", "<tuv xml:lang='en'><seg>a</seg></tuv><tuv xml:lang='de'><seg>b</seg></tuv>",
         "units with a translation"),
        ("tmx", "<tuv xml:lang='de'><seg/></tuv><tuv xml:lang='de'><seg>b</seg></tuv>"
         "<tuv xml:lang='en'><seg>a</seg></tuv>", "units with a translation"),
        ("tmx", "<tuv xml:lang='en'><seg>a</seg></tuv></tu><tu><tuv xml:lang='fr'><seg/></tuv>",
         "units without a text in `en`"),
    ],
)  # fmt: skip
def test_unit_that_stays_is_counted(format: Format, unit: str, reason: str) -> None:
    document = read_document(exchange(format, unit).encode(), format, "file")
    items = document.read_items(Options("file", "en", "de"))
    assert [
        item.reason_untranslated
        for item in items
        if isinstance(item, Replacement) and item.reason_untranslated
    ] == [reason]


@pytest.mark.parametrize(
    ("limit", "state"),
    [
        ("maxwidth='5' size-unit='char'", ""),
        ("maxwidth='14' size-unit='byte'", ""),
        ("maxwidth='14' size-unit='char'", "translated"),
        ("maxwidth='500'", "needs-review-translation"),
        ("", "translated"),
    ],
)
def test_unit_of_xliff_takes_no_translation_above_its_limit(limit: str, state: str) -> None:
    source = (
        f"<xliff version='1.2'><file source-language='en'><trans-unit id='1' {limit}>"
        "<source>one <g id='1'>two</g></source></trans-unit></file></xliff>"
    )
    result = translated(source.encode(), "xliff", lambda _: "für eins zwei.").decode()
    assert re.findall('<target state="([^"]*)">', result) == [state] * bool(state)
