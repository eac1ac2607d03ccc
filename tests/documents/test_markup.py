"""HTML and Markdown: everything but text comes back, and text comes back translated."""

import gc
import json
import re
from collections.abc import Callable
from html.parser import HTMLParser
from time import process_time

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from mt.documents.segments import Format
from tests.documents.samples import longer, translated

HTML = [
    ("<p>Hello <b>big <i>world</i></b>!</p>", "<p>HELLO <b>BIG <i>WORLD</i></b>!</p>"),
    ("<p>One\r\n  two &amp; 3<br>four", "<p>ONE TWO &amp; 3<br>FOUR"),
    (
        "\ufeff<!DOCTYPE html><title>a <b>c</title>",
        "\ufeff<!DOCTYPE html><title>A &lt;B&gt;C</title>",
    ),
    ("<p>Use <code>ls <b>x</b></code> now</p>", "<p>USE <code>ls <b>x</b></code> NOW</p>"),
    ("<pre>a\n<b>b</b></pre>c<pre>d", "<pre>a\n<b>b</b></pre>C<pre>d"),
    ("<div translate=no>a<div>b</div>c</div>d", "<div translate=no>a<div>b</div>c</div>D"),
    (
        "<script>'</p><p>x'</script><STYLE>a{}</Style >b",
        "<script>'</p><p>x'</script><STYLE>a{}</Style >B",
    ),
    ("a <img alt=dog title='my \"cat\"'> b", 'A <img alt="DOG" title=\'MY "CAT"\'> B'),
    (
        '<input placeholder="a &quot;b&quot;" value="c">',
        '<input placeholder="A &quot;B&quot;" value="c">',
    ),
    (
        "a <!-- b > c --> d &unknown; e&nbsp;&eacute;<![CDATA[e]]>",
        "A <!-- b > c --> D &unknown; E&#160;É<![CDATA[e]]>",
    ),
    ("<p>1 < 2 and <3 a</p><a href='x>y'>b</a>", "<p>1 &lt; 2 AND &lt;3 A</p><a href='x>y'>B</a>"),
    ("a<p title='b>c", "A<p title='b>c"),
    ("</p>a</b></i> <b>b<p>c</b> d", "</p>A</b></i> <b>B<p>C</b> D"),
    ("a <!-- b", "A <!-- b"),
    ("a<p>b <![CDATA[ c <p>d", "A<p>B <![CDATA[ c <p>d"),
    ("a\0b <b\0 title='c\0d'>e</b\0>\0", "A\0B <b\0 title='C\0D'>E</b\0>\0"),
    (
        "<?xml version='1.0'?>\n<!DOCTYPE html [<!ENTITY b '&c;c'>\n]>\n<p>a &b; c</p>",
        "<?xml version='1.0'?>\n<!DOCTYPE html [<!ENTITY b '&c;c'>\n]>\n<p>A &b; C</p>",
    ),
    ("a <!DOCTYPE b [> c ]> d", "A <!DOCTYPE b [> C ]&gt; D"),
    ("<script>'<script>'</script>b", "<script>'<script>'</script>B"),
    ("<?php echo '>a'; ?>b", "<?php echo '>a'; ?>B"),
    ("12 <b>34</b> &copy; …", "12 <b>34</b> &copy; …"),
    (
        "<textarea>a</textarea><button title=ok>b</button>",
        '<textarea>a</textarea><button title="OK">B</button>',
    ),
    ("", ""),
]
MARKDOWN = [
    ("![an *x*](y) some *text* here\n", "![an *x*](y) SOME *TEXT* HERE\n"),
    ("# Head *line* #\n\nPara\ngraph\n", "# HEAD *LINE* #\n\nPARA GRAPH\n"),
    ("Setext\n===\n\n---\n\n    code\n", "SETEXT\n===\n\n---\n\n    code\n"),
    ("---\ntitle: x\n---\n\ntext\n", "---\ntitle: x\n---\n\nTEXT\n"),
    ("a\r\n\r\n```py\r\ncode\r\n```\r\nb\r\n", "A\r\n\r\n```py\r\ncode\r\n```\r\nB\r\n"),
    ('> a\n> b\n>\n> - c `d` [e](f "g")\n', '> A B\n>\n> - C `d` [E](f "g")\n'),
    ("- [x] task\n  1. sub **item**\n", "- [x] TASK\n  1. SUB **ITEM**\n"),
    (
        "| a | b `c` |\n|:--|--:|\n| a | <br>d *e* |\n",
        "| A | B `c` |\n|:--|--:|\n| A | <br>D *E* |\n",
    ),
    ("one  \ntwo\\\nthree\n", "ONE  \nTWO\\\nTHREE\n"),
    (
        "see [ref], [a b][ref] and [ref][].\n\n[ref]: http://x 'title'\n",
        "SEE [REF][ref], [A B][ref] AND [REF][ref].\n\n[ref]: http://x 'title'\n",
    ),
    (
        '![an image](a.png "t") text <b>bold</b> <http://a.b>\n',
        '![AN IMAGE](a.png "t") TEXT <b>BOLD</b> <http://a.b>\n',
    ),
    (
        "<div align='x'>\n<p>html <b>text</b></p>\n</div>\n",
        "<div align='x'>\n<p>HTML <b>TEXT</b></p>\n</div>\n",
    ),
    ("<!-- a\n\nb -->\n\nc &amp; d&copy;\n", "<!-- a\n\nb -->\n\nC & D©\n"),
    ("snake_case 2 * 3 a<b\n", "SNAKE_CASE 2 * 3 A<B\n"),
    ("not \\*this\\* one[^1]\n\n[^1]: the note\n", "NOT \\*THIS\\* ONE[^1]\n\n[^1]: THE NOTE\n"),
    ("use <code>ls *x*</code> here ~~gone~~\n", "USE <code>ls *x*</code> HERE ~~GONE~~\n"),
]


@pytest.mark.parametrize(
    ("page", "texts"),
    [
        ("a <ruby>b<rp>(</rp><rt>c</rt><rp>)</rp></ruby> d", ["a b d"]),
        ("<ruby>漢<rt>kan<rt>x<rb>字<rp>(<rt>ji</ruby>だ", ["漢字だ"]),
        ("<ruby>b<rtc><rt>c</rt></rtc></ruby> d<p>e", ["b d", "e"]),
        (
            "a <button title=x>b</button> c<p><button>d</button><button>e</button>",
            ["a b c", "x", "d", "e"],
        ),
        ("<label>a</label> <input> <label>b</label>: <input>", ["a", "b"]),
        ("a <x-b><i>c</i> <x-d>d</x-d></x-b> e<p><x-b>f</x-b> <x-b>g</x-b>", ["a c d e", "f", "g"]),
        ("<x-b>a <x-c>b</x-c></x-b>, <x-b>c<p>d</x-b> e", ["a b", "c", "d", "e"]),
        (
            "a <svg><title>b</title><text>c</text></svg> d<p><svg><text>e</text></svg>",
            ["a d", "b", "c", "e"],
        ),
        (
            "a <select><option>b<option>c</select> d <input placeholder=e> f",
            ["a d f", "b", "c", "e"],
        ),
        ("a<br>b<br/>c.<br>d<br><br>e<BR>", ["a b c.", "d", "e"]),
        ("你<br>好。<br>吗", ["你 好。", "吗"]),
        ("a <kbd>b</kbd> <samp>c</samp> <tt>d</tt> <var>e</var> f", ["a f"]),
        (
            "a <b class='x notranslate'>b</b> c<div class=notranslate>d</div>"
            "<code translate=yes>e</code>",
            ["a c", "e"],
        ),
    ],
)
def test_sentence_is_one_text_of_what_is_read(page: str, texts: list[str]) -> None:
    seen: list[str] = []

    def record(text: str) -> str:
        seen.append(" ".join(text.split()))
        return text

    assert translated(page.encode(), "html", record) == page.encode()
    assert seen == texts
    tags = re.compile(r"</?[\w-]+")
    changed = translated(page.encode(), "html", longer).decode()
    assert sorted(tags.findall(changed)) == sorted(tags.findall(page))


@pytest.mark.parametrize(
    ("format", "source", "expected"),
    [*(("html", *pair) for pair in HTML), *(("markdown", *pair) for pair in MARKDOWN)],
)
def test_only_text_changes(format: Format, source: str, expected: str) -> None:
    assert translated(source.encode(), format, str) == source.encode()
    assert translated(source.encode(), format, str.upper).decode() == expected


def only(text: str) -> Callable[[str], str]:
    return lambda _: text


def test_tags_enclose_words_in_proportion() -> None:
    for source, translation, expected in (
        ("<b>a</b> <i>b</i> c d", "x y", "<b>x</b> <i>y</i>"),
        ("a <b>b <i>c</i></b> d", "v w x y", "v <b>w <i>x</i></b> y"),
        ("a <b>b</b> c", "x", "<b>x</b>"),
        ("a <img> b <wbr> c", "x, y", "x, <img> <wbr> y"),
        ("a <i>b</i> <code>c</code> d", "这是盔。", "这<i>是盔</i><code>c</code>。"),
        ("a <a><code>c</code></a> d e f", "x y", "<a><code>c</code></a> x y"),
    ):
        assert translated(source.encode(), "html", only(translation)).decode() == expected


def test_translation_that_would_be_markup_is_escaped() -> None:
    for text, expected in {
        "1. a": "1\\. a",
        "- a": "\\- a",
        "# a": "\\# a",
        "*a* <b>": "\\*a\\* \\<b\\>",
        "a | b": "a | b",
        "[ref]": "\\[ref\\]",
        "> a": "\\> a",
        "&amp;": "\\&amp;",
    }.items():
        assert translated(b"text\n\n[ref]: x", "markdown", only(text)).decode() == (
            f"{expected}\n\n[ref]: x"
        )
    table = b"| a |\n|---|\n"
    assert translated(table, "markdown", only("b | c")) == b"| b \\| c |\n|---|\n"
    # Emphasis beside a full-width mark is none without a space.
    assert translated(b"a **b** c", "markdown", only("这是**。你")).decode().count("**") == 2


@pytest.mark.parametrize(
    ("text", "texts", "markup"),
    [
        (
            'See <a href="x>y">it</a> &amp; <b>go</b>',
            ["See it & go"],
            ['<a href="x>y">', "</a>", "<b>", "</b>"],
        ),
        (
            "<p>One</p>\n<p>Two <kbd>x y</kbd> now</p>",
            ["One", "Two now"],
            ["<p>", "</p>\n<p>", "<kbd>x y</kbd>", "</p>"],
        ),
        ("A <0>b</0> c <x/> d", ["A b c d"], ["<0>", "</0>", "<x/>"]),
        ("Read :ref:`b <c>` or ``d``::", ["Read or"], [" :ref:`b <c>`", " ``d``::"]),
        ("In `e f <g:h>`_, |v| [1]_.", ["In e f, ."], [" `", " <g:h>`_ ", " |v|", " [1]_"]),
        ("Use `a b`, **c** and *d*", ["Use , c and d"], [" `a b` ", "**", "** ", "*", "*"]),
        ("An [e f](g.h) ![i](j)", ["An e f i"], [" [", "](g.h)", " ![", "](j)"]),
        ("5 * 3 < 4 `a' <f> **k, x_y & |", ["5 * 3 < 4 `a' <f> **k, x_y & |"], []),
        ("one\ntwo\nThree", ["one two", "Three"], ["\n", "\n"]),
    ],
)
def test_markup_of_strings_comes_back(text: str, texts: list[str], markup: list[str]) -> None:
    seen: list[str] = []

    def translate(text: str) -> str:
        seen.append(" ".join(text.split()))
        return "译" * len(text.split()) * 3

    record = json.dumps({"t": text}).encode()
    [result] = json.loads(translated(record, "jsonl", translate, column="t")).values()
    assert seen == texts
    assert re.search("[译 ]*".join(map(re.escape, markup)), result), result
    assert translated(record, "jsonl", str, column="t") == record
    cell = '"' + text.replace('"', '""').replace("\n", " ") + '"'
    table = f"t\n{cell}\n".encode()
    assert translated(table, "tsv", str, column="t") == table
    changed = translated(table, "tsv", translate, column="t").decode().splitlines()[1]
    assert all(part.strip().replace('"', '""') in changed for part in markup if "\n" not in part)


@pytest.mark.parametrize(
    ("text", "translation"), [("a <b>c</b>", "x **y** z"), ("a", "<b>x</b>"), ("`a` b", "`c` d")]
)
def test_translation_that_adds_markup_keeps_the_source(text: str, translation: str) -> None:
    record = json.dumps({"t": text}).encode()
    assert translated(record, "jsonl", lambda _: translation, column="t") == record


class _Markup(HTMLParser):
    """Reads tags, comments and text as the standard library does."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[object] = []
        self.text = ""
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        unchanged = [(k, v) for k, v in attrs if k not in {"alt", "title", "placeholder"}]
        self.tags.append((tag, unchanged))

    def handle_endtag(self, tag: str) -> None:
        self.tags.append(tag)

    def handle_comment(self, data: str) -> None:
        self.tags.append(("!", data))

    def handle_data(self, data: str) -> None:
        self.text += data


SOUP = st.lists(
    st.sampled_from(
        [
            "<p>",
            "</p>",
            "<b>",
            "</b>",
            "<i class='a b'>",
            "</i>",
            "<br>",
            "<code>",
            "</code>",
            '<a href=x title="the title">',
            "</a>",
            "<img alt=dog>",
            "<!-- c -->",
            "<div translate='no'>",
            "</div>",
            "<pre>",
            "</pre>",
            "word ",
            "two words",
            " ",
            "\n",
            "\r\n",
            "&amp;",
            "&lt;b>",
            " &nope; ",
            "&eacute;",
            "&",
            "1 ",
            ". ",
            "你好",
            "<script>a<b</script>",
            "<title>t & u</title>",
            "</x>",
            "<hr/>",
            "\t",
            "e\u0301",
            "😀",
        ]
    ),
    max_size=30,
).map("".join)


@settings(max_examples=150, deadline=None)
@given(SOUP)
def test_any_page_keeps_its_tags_and_gets_all_words(page: str) -> None:
    assert translated(page.encode(), "html", str).decode() == page
    source = _Markup(page)
    for translate in (str.upper, longer):
        result = _Markup(translated(page.encode(), "html", translate).decode())
        assert result.tags == source.tags
    upper = _Markup(translated(page.encode(), "html", str.upper).decode())
    assert _letters(upper.text).upper() == _letters(source.text).upper()


def _letters(text: str) -> str:
    return re.sub(r"\s", "", text)


LINES = st.lists(
    st.sampled_from(
        [
            "# head *line*",
            "text with `code` and **bold** words",
            "> quote",
            "> > deep",
            "- item [a](b)",
            "  - inner",
            "1. first",
            "```",
            "    indented",
            "",
            "",
            "| a | b |",
            "|---|---|",
            "---",
            "===",
            "<div>",
            "</div>",
            "<b>x</b> y",
            "a  ",
            "b\\",
            "*open",
            "__strong__ _em_",
            "[ref]",
            "[ref]: /x",
            "![alt](x)",
            "\\*no\\*",
            "a &amp; b",
            "\tcode",
            "~~~",
            "<!-- c",
            "-->",
            "你好 **世界**。",
            "+ plus",
            "2) two",
            "[^1]: note",
        ]
    ),
    max_size=12,
)


@settings(max_examples=150, deadline=None)
@given(LINES, st.sampled_from(["\n", "\r\n"]), st.booleans())
def test_any_markdown_keeps_its_blocks(lines: list[str], end: str, last: bool) -> None:
    assume(lines[:1] != ["---"])  # front matter, which CommonMark does not know
    source = end.join(lines) + end * last
    assert translated(source.encode(), "markdown", str).decode() == source
    expected = _blocks(source)
    for translate in (str.upper, longer):
        assert _blocks(translated(source.encode(), "markdown", translate).decode()) == expected


def _blocks(source: str) -> list[object]:
    parser = MarkdownIt("commonmark").enable(["table", "strikethrough"])
    code = {"fence", "code_block"}
    return [
        (token.type, token.tag, token.content if token.type in code else "")
        for token in parser.parse(source)
    ]


@pytest.mark.parametrize(
    "part", ["<!DOCTYPE a [ ] x >", "x <img alt='a'>", "<![CDATA[ ", "<a b='c' title=d", "<code>a"]
)
def test_time_grows_with_the_page(part: str) -> None:
    def seconds(count: int) -> float:
        gc.disable()  # its time depends on the objects of earlier tests
        try:
            start = process_time()
            translated((part * count).encode(), "html", str.upper)
            return process_time() - start
        finally:
            gc.enable()

    assert seconds(12_000) < 20 * seconds(1500) + 1


def test_deep_nesting_and_large_pages() -> None:
    deep = "<div><b>" * 1000 + "text" + "</b></div>" * 1000
    assert translated(deep.encode(), "html", str.upper).decode() == deep.replace("text", "TEXT")
    quoted = "> " * 1000 + "text"
    assert translated(quoted.encode(), "markdown", str).decode() == quoted
    large = "<p>a <b>b</b></p>\n" * 20_000 + "<" * 20_000 + "<a '" * 20_000
    assert translated(large.encode(), "html", str).decode() == large
