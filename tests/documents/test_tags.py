"""Inline tags enclose the words that are aligned with those inside them in the source."""

import re
from random import Random

import pytest

from mt.decoding.alignment import Link
from mt.documents.document import read_document
from mt.documents.segments import Format, Options, TranslatedLine

TAG = re.compile(r"<!-- n -->|<code>c</code>|<(?:[^<>']|'[^']*')*>")


def rendered(source: str, translation: str, links: list[Link], format: Format = "html") -> str:
    document = read_document(source.encode(), format, "file")
    items = document.read_items(Options("file", "en", "de"))
    translated = TranslatedLine(translation, links)
    lines = [translated for item in items for _ in item.texts]
    return b"".join(document.translate(items, lines)).decode()


def word_links(source: str, translation: str, pairs: str) -> list[Link]:
    """Return links between words by their numbers, such as "0-1 1-0"."""
    spans = [
        [match.span() for match in re.finditer(r"\S", text) if " " not in text]
        or [match.span() for match in re.finditer(r"[\w']+|[^\w\s]", text)]
        for text in (source, translation)
    ]
    numbers = [tuple(map(int, pair.split("-"))) for pair in pairs.split()]
    return [Link(spans[0][first], spans[1][second]) for first, second in numbers]


@pytest.mark.parametrize(
    ("source", "translation", "pairs", "expected"),
    [
        ("a <b>red</b> <i>car</i>", "une voiture rouge", "0-0 1-2 2-1",
         "une <i>voiture</i> <b>rouge</b>"),
        ("a <b>red <i>car</i></b> here", "ici une voiture rouge", "0-1 1-3 2-2 3-0",
         "ici une <b><i>voiture</i> rouge</b>"),
        ("<b>take</b> the coat <i>off</i> now", "nun zieh den Mantel aus", "0-1 1-2 2-3 3-4 4-0",
         "nun <b>zieh</b> den Mantel <i>aus</i>"),
        ("<b>not</b> here", "ne est pas ici", "0-0 0-2 1-3", "<b>ne est pas</b> ici"),
        ("he <b>is <i>not</i> here</b>", "il ne est pas ici", "0-0 1-2 2-1 2-3 3-4",
         "il <b><i>ne est pas</i> ici</b>"),
        ("look <img> here now", "nun schau hier", "0-1 1-2 2-0", "nun schau <img> hier"),
        ("word<wbr> and text", "Text und Wort", "0-2 1-1 2-0", "Text und Wort<wbr>"),
        ("<b>the</b> cat sees", "Katze sieht", "1-0 2-1", "<b>Katze</b> sieht"),
        ("cat <b></b><i>sees</i> me", "mich sieht Katze", "0-2 1-1 2-0",
         "mich <b></b><i>sieht</i> Katze"),
        ("a <b>b</i></b> c", "y x", "0-1 1-1 2-0", "<b>y x</i></b>"),
        ("a <b>x y</b> <img> z", "x z y a", "0-3 1-0 2-2 3-1", "<img> <b>x z y</b> a"),
        ("buy <b>books</b> there", "在那里买书。", "0-3 1-4 2-1 2-2", "在那里买<b>书</b>。"),
    ],
)  # fmt: skip
def test_tags_follow_the_alignment(
    source: str, translation: str, pairs: str, expected: str
) -> None:
    links = word_links(" ".join(TAG.sub("", source).split()), translation, pairs)
    assert rendered(source, translation, links) == expected


def _tagged(random: Random, depth: int = 0) -> str:
    """Return a sentence with nested tags."""
    parts = []
    for _ in range(random.randint(1, 4)):
        kind = random.random()
        if kind < 0.25 and depth < 4:
            tag = random.choice(["b", "i", "a href='x>y'", "span"])
            parts.append(f"<{tag}>{_tagged(random, depth + 1)}</{tag.split()[0]}>")
        elif kind < 0.35:
            parts.append(random.choice(["<img src=x>", "<code>c</code>", "<wbr>", "<!-- n -->"]))
        else:
            words = ["alpha", "über", "don't", "v3.5", "你好", "end.", "(x)"]
            parts.append(" ".join(random.choices(words, k=random.randint(1, 3))))
    return random.choice(["", " "]).join(parts)


def _spans(random: Random, text: str) -> tuple[int, int]:
    start = random.randrange(len(text))
    return start, random.randint(start + 1, min(len(text), start + 8))


def _is_nested(tags: list[str]) -> bool:
    opened: list[str] = []
    for tag in tags:
        name = tag.strip("</>").split()[0]
        if tag.startswith("</"):
            if not opened or opened.pop() != name:
                return False
        elif name in {"b", "i", "a", "span", "p"}:
            opened.append(name)
    return not opened


def test_any_alignment_keeps_all_tags_nested_and_changes_no_word() -> None:
    random = Random(1)
    moved = 0
    for _ in range(10_000):
        source = f"<p>{_tagged(random)} word</p>"
        words = ["wort", "zwei", "你", "。", "vier,", "fünf!"]
        text = " ".join(random.choices(words, k=random.randint(1, 12)))
        plain = TAG.sub("", source)
        links = [
            Link(_spans(random, plain), _spans(random, text)) for _ in range(random.randint(0, 8))
        ]
        result = rendered(source, text, links)
        tags = TAG.findall(result)
        assert sorted(tags) == sorted(TAG.findall(source))
        assert _is_nested(tags)
        assert TAG.sub("", result).split() == text.split()
        moved += tags != TAG.findall(source)
        assert links or tags == TAG.findall(source), "in proportion, tags stay in order"
    assert moved > 500


def xliff(unit: str) -> str:
    return (
        "<xliff version='1.2'><file source-language='en' target-language='de'><trans-unit>"
        f"<source>{unit}</source></trans-unit></file></xliff>"
    )


@pytest.mark.parametrize(
    "names",
    [
        ("<x id='START_LINK_1'/>", "<x id='CLOSE_LINK'/>"),
        ("<x id='1' ctype='x-bold-open'/>", "<x id='2' ctype='x-bold-close'/>"),
        ("<x id='1' equiv-text='&lt;a href=\"b\">'/>", "<x id='2' equiv-text='&lt;/a>'/>"),
        ("<ph id='1'>&lt;b&gt;</ph>", "<ph id='2'>&lt;/b&gt;</ph>"),
        ("<ph id='1' disp='&lt;b&gt;'/>", "<ph id='2' disp='&lt;/b&gt;'/>"),
        ("<ph id='1'>{1}</ph>", "<ph id='2'>{/1}</ph>"),
        ("<it id='1' pos='open'/>", "<it id='2' pos='close'/>"),
        ("<it id='1' pos='begin'>x</it>", "<it id='2' pos='end'>y</it>"),
        ("<bx id='1' rid='7'/>", "<ex id='2' rid='7'/>"),
        ("<bpt id='1' rid='7'>x</bpt>", "<ept id='2' rid='7'>y</ept>"),
        ("<sc id='1'/>", "<ec startRef='1'/>"),
        ("{0}", "{/0}"),
        ("&lt;0&gt;", "&lt;/0&gt;"),
        ("&lt;a href='{x}'&gt;", "&lt;/a&gt;"),
        ("[b]", "[/b]"),
    ],
)
def test_placeholders_that_stand_for_a_pair_enclose_the_aligned_words(
    names: tuple[str, str],
) -> None:
    opening, closing = names
    source = xliff(f"the {opening}red{closing} car <x id='V'/>drives away")
    links = word_links("the red car drives away", "weg fährt das Auto rot", "0-2 1-4 2-3 3-1 4-0")
    result = rendered(source, "weg fährt das Auto rot", links, "xliff")
    target = result.partition("translated")[2]
    assert f"weg <x id='V'/>fährt das Auto {opening}rot{closing}</target>" in target


@pytest.mark.parametrize(
    "source",
    [
        "<x id='1'/>red<x id='2'/> car <x id='3'/>drives away",
        "the <ph id='1'/>red <ph id='2'/>car <ph id='3'/>drives",
        "the <bpt i='1'/>red <bpt i='2'/>car<ept i='1'/> drives<ept i='2'/> away",
        "the <x id='CLOSE_B'/>red<x id='START_B'/> car drives",
        "<g id='1'>the <x id='START_B'/>red</g> car<x id='CLOSE_B'/> drives",
        "the <it pos='close'/>red <it pos='open'/>car drives",
        "the <x id='INTERPOLATION'/>red <x id='LINE_BREAK'/>car<x id='INTERPOLATION_1'/> drives",
    ],
)
def test_placeholders_of_unknown_role_keep_their_order(source: str) -> None:
    words = " ".join(TAG.sub("", source).split())
    random = Random(1)
    for _ in range(200):
        text = " ".join(random.choices(["rot", "Auto", "你", "。"], k=random.randint(1, 6)))
        links = [Link(_spans(random, words), _spans(random, text)) for _ in range(4)]
        target = rendered(xliff(source), text, links, "xliff").partition("translated")[2]
        order = [tag for tag in TAG.findall(target) if not tag.startswith(("<g", "</"))]
        assert order == [tag for tag in TAG.findall(source) if not tag.startswith(("<g", "</"))]


@pytest.mark.parametrize(
    ("translation", "words", "expected"),
    [
        ("aa-bb cc dd", [], "aa-bb cc\ndd"),
        ("我见过天气了", [(1, 3), (3, 5)], "我见过\n天气了"),
        ("我从天气见过", [(2, 4), (4, 6)], "我从\n天气见过"),
        ("私はヘルメットを", [], "私はヘルメット\nを"),
        ("他（好），走了", [], "他（好），\n走了"),
        ("ผมไม่เคย เห็น", [], "ผมไม่เคย\nเห็น"),
        ("ผมไม่เคยเห็น", [], "ผมไม่เคย\nเห็น"),
    ],
)
def test_no_line_ends_inside_a_word(
    translation: str, words: list[tuple[int, int]], expected: str
) -> None:
    source = "1\n00:00:01,000 --> 00:00:02,000\none two\nsix ten"
    starts = [0, 4, 8, 12]
    links = [Link((starts[index], starts[index] + 3), span) for index, span in enumerate(words[:4])]
    assert rendered(source, translation, links, "srt").split("000\n")[1] == expected
