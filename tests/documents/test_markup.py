"""HTML and Markdown: everything but text comes back, and text comes back translated."""

import gc
import json
import re
from collections.abc import Callable
from html.parser import HTMLParser
from random import Random
from time import process_time

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from markdown_it import MarkdownIt
from markdown_it.token import Token

from mt.decoding.alignment import Link
from mt.documents.document import read_document
from mt.documents.segments import Format, Options, TranslatedLine, count_untranslated
from tests.documents.samples import longer, translated

HTML = [
    ("<p>Hello <b>big <i>world</i></b>!</p>", "<p>HELLO <b>BIG <i>WORLD</i></b>!</p>"),
    ("<p>One\r\n  two &amp; 3<br>four", "<p>ONE TWO &amp; 3<br>FOUR"),
    ("\ufeff<!DOCTYPE html><title>a <b>c</title>",
     "\ufeff<!DOCTYPE html><title>A &lt;B&gt;C</title>"),
    ("<p>Use <code>ls <b>x</b></code> now</p>", "<p>USE <code>ls <b>x</b></code> NOW</p>"),
    ("<pre>a\n<b>b</b></pre>c<pre>d", "<pre>a\n<b>b</b></pre>C<pre>d"),
    ("<div translate=no>a<div>b</div>c</div>d", "<div translate=no>a<div>b</div>c</div>D"),
    ("<script>'</p><p>x'</script><STYLE>a{}</Style >b",
     "<script>'</p><p>x'</script><STYLE>a{}</Style >B"),
    ("a <img alt=dog title='my \"cat\"'> b", 'A <img alt="DOG" title=\'MY "CAT"\'> B'),
    ('<input placeholder="a &quot;b&quot;" value="c">',
     '<input placeholder="A &quot;B&quot;" value="c">'),
    ("a <!-- b > c --> d &unknown; e&nbsp;&eacute;<![CDATA[e]]>",
     "A <!-- b > c --> D &unknown; E&#160;É<![CDATA[e]]>"),
    ("<p>1 < 2 and <3 a</p><a href='x>y'>b</a>", "<p>1 &lt; 2 AND &lt;3 A</p><a href='x>y'>B</a>"),
    ("a<p title='b>c", "A<p title='b>c"),
    ("</p>a</b></i> <b>b<p>c</b> d", "</p>A</b></i> <b>B<p>C</b> D"),
    ("a <!-- b", "A <!-- b"),
    ("a<p>b <![CDATA[ c <p>d", "A<p>B <![CDATA[ c <p>d"),
    ("a\0b <b\0 title='c\0d'>e</b\0>\0", "A\0B <b\0 title='C\0D'>E</b\0>\0"),
    ("<?xml version='1.0'?>\n<!DOCTYPE html [<!ENTITY b '&c;c'>\n]>\n<p>a &b; c</p>",
     "<?xml version='1.0'?>\n<!DOCTYPE html [<!ENTITY b '&c;c'>\n]>\n<p>A &b; C</p>"),
    ("a <!DOCTYPE b [> c ]> d", "A <!DOCTYPE b [> C ]&gt; D"),
    ("<script>'<script>'</script>b", "<script>'<script>'</script>B"),
    ("<?php echo '>a'; ?>b", "<?php echo '>a'; ?>B"),
    ("12 <b>34</b> &copy; …", "12 <b>34</b> &copy; …"),
    ("<textarea>a</textarea><button title=ok>b</button>",
     '<textarea>a</textarea><button title="OK">B</button>'),
    ("", ""),
]  # fmt: skip
MARKDOWN = [
    ("![an *x*](y) some *text* here\n", "![an *x*](y) SOME *TEXT* HERE\n"),
    ("# Head *line* #\n\nPara\ngraph\n", "# HEAD *LINE* #\n\nPARA GRAPH\n"),
    ("Setext\n===\n\n---\n\n    code\n", "SETEXT\n===\n\n---\n\n    code\n"),
    ("---\ntitle: x\n---\n\ntext\n", "---\ntitle: x\n---\n\nTEXT\n"),
    ("a\r\n\r\n```py\r\ncode\r\n```\r\nb\r\n", "A\r\n\r\n```py\r\ncode\r\n```\r\nB\r\n"),
    ('> a\n> b\n>\n> - c `d` [e](f "g")\n', '> A B\n>\n> - C `d` [E](f "g")\n'),
    ("- [x] task\n  1. sub **item**\n", "- [x] TASK\n  1. SUB **ITEM**\n"),
    ("| a | b `c` |\n|:--|--:|\n| a | <br>d *e* |\n",
     "| A | B `c` |\n|:--|--:|\n| A | <br>D *E* |\n"),
    ("one  \ntwo\\\nthree\n", "ONE  \nTWO\\\nTHREE\n"),
    ("see [ref], [a b][ref] and [ref][].\n\n[ref]: http://x 'title'\n",
     "SEE [REF][ref], [A B][ref] AND [REF][ref].\n\n[ref]: http://x 'title'\n"),
    ('![an image](a.png "t") text <b>bold</b> <http://a.b>\n',
     '![AN IMAGE](a.png "t") TEXT <b>BOLD</b> <http://a.b>\n'),
    ("<div align='x'>\n<p>html <b>text</b></p>\n</div>\n",
     "<div align='x'>\n<p>HTML <b>TEXT</b></p>\n</div>\n"),
    ("<!-- a\n\nb -->\n\nc &amp; d&copy;\n", "<!-- a\n\nb -->\n\nC & D©\n"),
    ("snake_case 2 * 3 a<b\n", "SNAKE_CASE 2 * 3 A<B\n"),
    ("not \\*this\\* one[^1]\n\n[^1]: the note\n", "NOT \\*THIS\\* ONE[^1]\n\n[^1]: THE NOTE\n"),
    ("use <code>ls *x*</code> here ~~gone~~\n", "USE <code>ls *x*</code> HERE ~~GONE~~\n"),
    ("| a |\n|--|\n| x \\| `y \\| z` w |\n", "| A |\n|--|\n| X \\| `y \\| z` W |\n"),
    ("- <p>in\n  list</p>\n", "- <p>IN LIST</p>\n"),
]  # fmt: skip
KEPT_LINES = [
    "{{< figure src='x' >}}", "{% include 'x' %}", "{{ content }}", "{: .lead }", "[TOC]",
    "[[toc]]", '--8<-- "x.md"', "<<< @/x.js", "::: {.wide}", ":::", "$$\na\n\nb\n$$",
    "\\[\na = b\n\\]", "\\begin{align}\na\n\\end{align}", "\\newpage", "import A from 'a'",
    "import {\n  A,\n} from 'a'", "export const a = {\n  b: 1,\n\n  c: 2\n}",
    "{/*\nnote\n\nmore\n*/}", "<Tab on={() => 1}>", "</Tab.Item>", "*[HTML]: Markup", "(label)=",
    "```{code} py\nx\n```", "{{<\n  note\n>}}",
]  # fmt: skip
KEPT_INLINE = [
    "`a b`", "$p = 2q$", "$$a_b$$", "\\(x^2\\)", "\\[y_1\\]", ":tada:", "[[Page]]",
    "[[Page|the text]]", "![[x.png]]", "{{ page.x }}", "{% raw %}", "{{< ref 'x' >}}",
    "{{% x %}}", "{props.a}", "{/* why */}", "{@link a.b}", "{ref}`a b`", ":ref:`a b`", "[^1]",
    "[@key, p. 3]", "@user", "++ctrl+a++", "H~2~O", "x^2^", "https://a.b/c_d_e?f=g",
    "www.a.org/b", "me@a.org", "<https://a.b>", "%%aside%%", "<%= a %>", "<A b={() => c}/>",
    "<!-- c -->", "![](x.png){ width=3 }",
]  # fmt: skip
PAIRS = [
    ("*", "*"), ("**", "**"), ("~~", "~~"), ("~", "~"), ("==", "=="), ("^^", "^^"),
    ("[", "](a 'b')"), ("[", "]{.c}"), ("^[", "]"), ("[", "][pkg.Name]"), ("<b>", "</b>"),
    ("<A.B c={d}>", "</A.B>"), ("**_", "_**"),
]  # fmt: skip
BODIES = [
    ("> [!NOTE]\n> one\n> two\n", "> [!NOTE]\n> ONE TWO\n"),
    ("> [!tip]- the *title*\n> one\n", "> [!tip]- the *title*\n> ONE\n"),
    ('!!! note "a title"\n    one\n\n    two\n', '!!! note "a title"\n    ONE\n\n    TWO\n'),
    ("??? note\n\n    one\n\n    - two\n", "??? note\n\n    ONE\n\n    - TWO\n"),
    ('=== "first tab"\n\n    one\n', '=== "first tab"\n\n    ONE\n'),
    (":::tip a title\none\n:::\n", ":::tip a title\nONE\n:::\n"),
    (":::note[a *title*]{#i}\none\n:::\n", ":::note[a *title*]{#i}\nONE\n:::\n"),
    ("```{note} a title\n:class: x\none\n```\n", "```{note} a title\n:class: x\none\n```\n"),
    ("/// note | a title\none\n///\n", "/// note | a title\nONE\n///\n"),
    ("term\n: one\n\n:   two\n    three\n", "TERM\n: ONE\n\n:   TWO THREE\n"),
    ("a[^1]\n\n[^1]: one note\n\n    two\n", "A[^1]\n\n[^1]: ONE NOTE\n\n    TWO\n"),
    ("# head {#id .c}\n", "# HEAD {#id .c}\n"),
    ("<Card title='one' a={b}>\n  two\n</Card>\n", "<Card title='ONE' a={b}>\n  TWO\n</Card>\n"),
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
        ("<x-b>a <x-c>b</x-c></x-b>, <x-b>c<p>d</x-b> e", ["a b", "c", "d e"]),
        (
            "a <svg><title>b</title><text>c</text></svg> d<p><svg><text>e</text></svg>",
            ["a d", "b", "c", "e"],
        ),
        (
            "a <select><option>b<option>c</select> d <input placeholder=e> f",
            ["a d f", "b", "c", "e"],
        ),
        (
            "<meta name=Description content=a><meta name=x content=no><input type=submit value=b>"
            "<input value=no><p aria-label=c>d<option label=e value=no>",
            ["a", "b", "c", "d", "e"],
        ),
        (
            "<a>a <b>b</b></a> | <a>c</a>, <a id=x></a><a>d<p><a>e</a> f <a>g</a> |",
            ["a b", "c", "d", "e f g"],
        ),
        ("<h1>a<a title=b>¶</a></h1><i>→</i> c <b>!</b>", ["a", "b", "c"]),
        ("<img alt='{% a \"b\" %}' title=' c &amp; {{ d }}  e'>f {% a %}", ["c & e", "f"]),
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


@pytest.mark.parametrize("line", KEPT_LINES)
def test_lines_of_dialects_come_back_between_paragraphs(line: str) -> None:
    source = f"one\n{line}\ntwo\nthree\n"
    assert translated(source.encode(), "markdown", str).decode() == source
    result = translated(source.encode(), "markdown", str.upper).decode()
    assert result == f"ONE\n{line}\nTWO THREE\n"


def only(text: str) -> Callable[[str], str]:
    return lambda _: text


def read_markdown_texts(source: str) -> list[str]:
    items = read_document(source.encode(), "markdown", "x").read_items(Options("x", "en", "de"))
    return [text for item in items for text in item.texts]


@pytest.mark.parametrize("markup", KEPT_INLINE)
def test_inline_markup_of_dialects_comes_back(markup: str) -> None:
    source = f"one {markup} two, {markup}\n"
    assert " ".join(read_markdown_texts(source)).split() == ["one", "two,"]
    assert translated(source.encode(), "markdown", str).decode() == source
    for translate in (str.upper, only("这是中文，好的")):
        result = translated(source.encode(), "markdown", translate).decode()
        assert result.count(markup) == 2
        assert markup[0] not in "$hw" or not re.search(rf"{re.escape(markup)}\w", result)


@pytest.mark.parametrize(("start", "end"), PAIRS)
def test_text_inside_marks_is_translated(start: str, end: str) -> None:
    source = f"one {start}two words{end} three\n"
    expected = f"ONE {start}TWO WORDS{end} THREE\n"
    assert translated(source.encode(), "markdown", str.upper).decode() == expected


@pytest.mark.parametrize(("source", "expected"), BODIES)
def test_text_inside_blocks_of_dialects_is_translated(source: str, expected: str) -> None:
    assert translated(source.encode(), "markdown", str).decode() == source
    assert translated(source.encode(), "markdown", str.upper).decode() == expected


@pytest.mark.parametrize(
    "text",
    [
        "costs $5 and $10 or 20$", "set $HOME or $PATH", "at 10:30:45", "see \\[not math\\] here",
        "{see below}", "a:b:c d", "C++ or C++", "x == y, a == b", "~/a and ~/b",
        "import the thing", "export default settings now",
    ],
)  # fmt: skip
def test_text_like_markup_is_translated(text: str) -> None:
    assert read_markdown_texts(text) == [text.replace("\\", "")]


def test_text_that_is_not_translated_is_named() -> None:
    source = (
        "---\ntitle: one\ndate: x\n---\n# The head\n\n[a](#the-head) [b](#own) [c](x 'title')\n"
        "[[Page]] ![`d`](x)\n\n## Own {#own}\n\n> <p>e\n> f</p>\n\n*[HTML]: Markup\n\n"
        "[^1]: word\n\n```{figure} x\nwords\n```\n"
    )
    items = read_document(source.encode(), "markdown", "x").read_items(Options("x", "en", "de"))
    assert count_untranslated(items) == {
        "blocks of front matter": 1,
        "links to anchors, which headings may change": 2,
        "titles of links": 1,
        "wiki links": 1,
        "alternative texts": 1,
        "texts of HTML in quotations": 1,
        "lines of marks": 1,
        "footnotes of one word": 1,
        "directives in fences": 1,
    }


@pytest.mark.parametrize(
    ("format", "whole"),
    [
        ("html", "<sup><a href=x>[1]</a></sup>"),
        ("html", "<i class=icon>&#xf015;</i>"),
        ("html", "<i class='x material-icons'>home</i>"),
        ("html", "H<sub>2</sub>O"),
        ("markdown", "[[2]](#n2)"),
        ("markdown", "**3**"),
        ("markdown", "<sup>1</sup>"),
        ("xliff", "<g id='1'>4</g>"),
        ("vtt", "<i>2</i>"),
    ],
)
def test_pair_without_letters_is_one_thing(format: Format, whole: str) -> None:
    around = {
        "html": "<p>{}</p>",
        "markdown": "{}\n",
        "vtt": "WEBVTT\n\n00:01.000 --> 00:02.000\n{}\n",
        "xliff": "<xliff version='1.2'><file source-language='en'><trans-unit id='1'>"
        "<source>{}</source></trans-unit></file></xliff>",
    }[format]
    source = around.format(f"one {whole} two three").encode()
    for translate in (only("四五六七"), only("Four five six"), str.upper):
        result = translated(source, format, translate).decode()
        assert result.count(whole) == source.decode().count(whole) + (format == "xliff")


def test_text_in_another_language_stays_and_is_counted() -> None:
    page = (
        "<html lang={0} xml:lang='{0}'><p>one <q lang={0}-GB>two</q></p><p lang=de>drei</p>"
        "<p>four <i xml:lang='fr'>cinq</i></p><img lang=de alt=hund></html>"
    )
    result = translated(page.format("en").encode(), "html", str.upper, languages=("en", "de"))
    expected = page.format('"de"').replace("'\"de\"'", "'de'").replace('"de"-GB', '"de"')
    for word in ("one", "two", "four"):
        expected = expected.replace(f">{word}", f">{word.upper()}")
    assert result.decode() == expected
    items = read_document(page.format("en").encode(), "html", "x").read_items(
        Options("x", "en", "de")
    )
    assert count_untranslated(items) == {"texts in other languages": 2}
    text = "one <span lang=fr>deux</span> three <b lang=en>four</b>\n"
    assert translated(text.encode(), "markdown", str.upper).decode() == (
        'ONE <span lang=fr>deux</span> THREE <b lang="de">FOUR</b>\n'
    )


def test_markdown_inside_html_is_markdown() -> None:
    source = "<div markdown=1>\nsee [it](x) and `c`\n- **one**\n</div>\n\n<p>a `b` **c**</p>\n"
    expected = source
    for word in ("see", "it]", "and", "one", "a `", "c*"):
        expected = expected.replace(word, word.upper())
    assert translated(source.encode(), "markdown", str.upper).decode() == expected


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
        ('See <a href="x>y">it</a> &amp; <b>go</b>', ["See it & go"],
         ['<a href="x>y">', "</a>", "<b>", "</b>"]),
        ("<p>One</p>\n<p>Two <kbd>x y</kbd> now</p>", ["One", "Two now"],
         ["<p>", "</p>\n<p>", "<kbd>x y</kbd>", "</p>"]),
        ("A <0>b</0> c <x/> d", ["A b c d"], ["<0>", "</0>", "<x/>"]),
        ("Read :ref:`b <c>` or ``d``::", ["Read or"], [" :ref:`b <c>`", " ``d``::"]),
        ("In `e f <g:h>`_, |v| [1]_.", ["In e f, ."], [" `", " <g:h>`_ ", " |v|", " [1]_"]),
        ("Use `a b`, **c** and *d*", ["Use , c and d"], [" `a b` ", "**", "** ", "*", "*"]),
        ("An [e f](g.h) ![i](j)", ["An e f i"], [" [", "](g.h)", " ![", "](j)"]),
        ("A <link>b</link> <button>c</button> <1>d <2>e</2></1> [f g=h]i[/f] [j k='l'] [m]",
         ["A b c d e i [m]"],
         ["<link>", "</link>", "<button>", "</button>", "<1>", "<2>", "</2></1>", "[f g=h]"]),
        ("5 * 3 < 4 `a' <f> **k, x_y & |", ["5 * 3 < 4 `a' <f> **k, x_y & |"], []),
        ("one\ntwo\nThree", ["one two", "Three"], ["\n", "\n"]),
    ],
)  # fmt: skip
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
    "parts",
    [
        ["<1>", "<2>", "</2>", "</1>"],
        ["{% if a %}", "{% else %}", "{% endif %}", "{{#if b}}", "{{else}}", "{{/if}}"],
        ["[a=b]", "[c]", "[/c]", "[/a]"],
    ],
)
def test_markup_of_strings_keeps_its_order_with_any_alignment(parts: list[str]) -> None:
    record = json.dumps({"t": "A dog " + " ran ".join(parts) + " home"}).encode()
    document, random = read_document(record, "jsonl", "file"), Random(5)
    items = document.read_items(Options("file", "en", "de", "t"))
    texts = [text for item in items for text in item.texts]
    for _ in range(20):
        lines = []
        for text in texts:
            places = [random.sample(range(len(text) + 1), 4) for _ in range(5)]
            links = [Link((a, a + 2), (b, b + 2)) for a, b, *_ in places]
            lines.append(TranslatedLine(" ".join(reversed(text.split())), links))
        result = b"".join(document.translate(items, lines)).decode()
        found = [part[0] for part in re.finditer("|".join(map(re.escape, parts)), result)]
        assert found == parts, result


@pytest.mark.parametrize(
    ("page", "expected"),
    [
        ("The <i class=x></i> dog ran", "ran <i class=x></i> dog The"),
        ("See {{ a }}, the dog", "dog {{ a }} the , See"),
        ("({{ a }}) my dog", "dog {{ a }} my ()"),
    ],
)
def test_single_tag_is_no_part_of_a_word(page: str, expected: str) -> None:
    result = translated(page.encode(), "html", lambda text: " ".join(text.split()[::-1]))
    assert result.decode() == expected


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
            "<p>", "</p>", "<b>", "</b>", "<i class='a b'>", "</i>", "<br>", "<code>",
            "</code>", '<a href=x title="the title">', "</a>", "<img alt=dog>", "<!-- c -->",
            "<div translate='no'>", "</div>", "<pre>", "</pre>", "word ", "two words", " ",
            "\n", "\r\n", "&amp;", "&lt;b>", " &nope; ", "&eacute;", "&", "1 ", ". ", "你好",
            "<script>a<b</script>", "<title>t & u</title>", "</x>", "<hr/>", "\t", "e\u0301",
            "😀",
        ]
    ),
    max_size=30,
).map("".join)  # fmt: skip


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
            "# head *line*", "text with `code` and **bold** words", "> quote", "> > deep",
            "- item [a](b)", "  - inner", "1. first", "```", "    indented", "", "",
            "| a | b |", "|---|---|", "---", "===", "<div>", "</div>", "<b>x</b> y", "a  ",
            "b\\", "*open", "__strong__ _em_", "[ref]", "[ref]: /x", "![alt](x)", "\\*no\\*",
            "a &amp; b", "\tcode", "~~~", "<!-- c", "-->", "你好 **世界**。", "+ plus", "2) two",
            "[^1]: note",
        ]
    ),
    max_size=12,
)  # fmt: skip


@settings(max_examples=150, deadline=None)
@example(["+ plus", "[^1]: note", "text with `code` and **bold** words", "2) two"], "\n", False)
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


INLINE = st.lists(
    st.sampled_from(
        [
            "`a b`", "`` c`d ``", "[e `f`](g)", "*h i*", "**j *k* l**", "***m** n*", "~~o~~",
            "![p](q)", "<b>r</b>", "<i></i>", "[s]", "\\\n", "  \n", "<https://t.u>", "\\*",
            "&amp;", "word", "words, and", "$x$", ":v:", "(", ")",
        ]
    ),
    min_size=1,
    max_size=8,
)  # fmt: skip


@settings(max_examples=300, deadline=None)
@given(
    INLINE,
    st.sampled_from(["{}", "# {}", "{}\n===", "| {} |\n|-|", "> - {}"]),
    st.text("中文字。，（）a *`_[]$|\\#-:!<~=", min_size=1, max_size=12),
    st.lists(st.tuples(st.integers(0, 30), st.integers(0, 12)), max_size=12),
)
def test_inline_markup_reads_as_before_or_is_named(
    parts: list[str], block: str, translation: str, pairs: list[tuple[int, int]]
) -> None:
    words = " ".join(parts)
    source = (
        block.format(words if block[:1] in "{>" and block[1:2] != "#" else words.replace("\n", ""))
        + "\n\n[s]: /t\n"
    )
    links = [Link((first, first + 2), (second, second + 1)) for first, second in pairs]
    refused: list[str] = []
    document = read_document(source.encode(), "markdown", "x")
    items = document.read_items(Options("x", "en", "zh"))
    lines = [TranslatedLine(translation, links) for item in items for _ in item.texts]
    pages = document.translate(items, lines, lambda _, reason: refused.append(reason))
    result = b"".join(pages).decode()
    assert _inline(result) == _inline(source), refused
    if refused and len(refused) == len(items):
        assert result == source


def _inline(source: str) -> list[tuple[str, object]]:
    """Return blocks, and the kinds of the inline tokens of each, in any order."""
    parser = MarkdownIt("commonmark").enable(["table", "strikethrough"])
    blocks = [
        (token.type, sorted(_describe(child) for child in token.children or ()))
        for token in parser.parse(source)
    ]
    return [(kind, [child for child in children if child]) for kind, children in blocks]


def _describe(token: Token) -> str:
    if token.type in {"text", "softbreak", "text_special", "hardbreak"}:
        return ""  # line ends without words beside them are left out
    source = token.attrs.get("src") or token.attrs.get("href") or ""
    return f"{token.type} {source} {'' if token.type == 'image' else token.content}"


def test_markup_that_melts_is_set_off_or_keeps_its_source() -> None:
    for source, translation, expected in (
        ("a `b` or `c` d", "中", "`b` `c` 中"),
        ("a **b** and **c** d", "中", None),
        ("see https://a.b/c.", "中。", "中 https://a.b/c 。"),
        ("a **b *c***", "中", None),
    ):
        refused: list[str] = []
        result = translated(source.encode(), "markdown", only(translation), refused=refused)
        assert result.decode() == (source if expected is None else expected)
        assert bool(refused) == (expected is None)


@pytest.mark.parametrize(
    "source",
    [
        r"a \[b\] c",
        "[`x`][] and b",
        r"a \* [b](c) \`d",
        r"x\[1] `y` z",
        r"[a `b`](d) \_e\_",
        r"1\. a",
    ],
)
def test_markup_is_kept_beside_signs_that_move(source: str) -> None:
    render = MarkdownIt().render
    for change in (lambda text: text[::-1], longer, lambda text: f"[{text}]", lambda _: "*[x_ ]`"):
        refused: list[str] = []
        page = render(translated(source.encode(), "markdown", change, refused=refused).decode())
        assert refused == []
        for tag in ("<code>", "<a ", "<em>", "<ol"):
            assert page.count(tag) == render(source).count(tag)


REPEATED_MARKDOWN = (
    "{{ a ", "$a ", "{% a ", "==a ", "~a ", ":a: ", "[[a ", "\\( ", "{a{", "^[a ", "a://b ",
    "@a ", "<A b={", "$$\n", "{/*\n", "!!! a\n", ": b\n", "*a `b` ", "| a \\| b ",
)  # fmt: skip
REPEATED_HTML = (
    "<!DOCTYPE a [ ] x >",
    "x <img alt='a'>",
    "<![CDATA[ ",
    "<a b='c' title=d",
    "<code>a",
)


@pytest.mark.parametrize(
    ("format", "part", "few"),
    [
        *(("markdown", part, 500) for part in REPEATED_MARKDOWN),
        *(("html", part, 1500) for part in REPEATED_HTML),
        ("jsonl", "* A b\n", 3000),
    ],
)
def test_time_grows_with_the_document(format: Format, part: str, few: int) -> None:
    def seconds(count: int) -> float:
        text = json.dumps({"t": part * count}) if format == "jsonl" else part * count
        gc.disable()  # its time depends on the objects of earlier tests
        try:
            start = process_time()
            translated(text.encode(), format, str.upper, column="t")
            return process_time() - start
        finally:
            gc.enable()

    assert seconds(8 * few) < 18 * seconds(few) + 1


def test_deep_nesting_and_large_pages() -> None:
    deep = "<div><b>" * 1000 + "text" + "</b></div>" * 1000
    assert translated(deep.encode(), "html", str.upper).decode() == deep.replace("text", "TEXT")
    quoted = "> " * 1000 + "text"
    assert translated(quoted.encode(), "markdown", str).decode() == quoted
    large = "<p>a <b>b</b></p>\n" * 20_000 + "<" * 20_000 + "<a '" * 20_000
    assert translated(large.encode(), "html", str).decode() == large
