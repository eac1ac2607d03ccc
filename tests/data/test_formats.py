import gzip
import logging
from pathlib import Path

import pytest

from mt.config.data import DataConfig, Direction
from mt.data.pairs import PairSource, SentencePair
from mt.data.sources import open_source
from mt.errors import DataError
from tests.factories import counted

TMX = """<?xml version="1.0" encoding="{encoding}"?>
<!DOCTYPE tmx SYSTEM "tmx14.dtd">
<tmx version="1.4"><header srclang="en" segtype="sentence"/><body>{units}</body></tmx>
"""
XLIFF_1 = """<?xml version="1.0"?>
<xliff version="1.2" xmlns="urn:oasis:names:tc:xliff:document:1.2" xmlns:s="http://s.example">
<file original="a" source-language="en-US" target-language="de" datatype="x"><body>{units}</body>
</file></xliff>
"""
XLIFF_2 = """<?xml version="1.0"?>
<xliff version="2.0" xmlns="urn:oasis:names:tc:xliff:document:2.0" srcLang="en" trgLang="de-AT">
<file id="f">{units}</file></xliff>
"""
PO = """msgid ""
msgstr ""
"Language: de\\n"
"Content-Type: text/plain; charset=UTF-8\\n"

"""


def opened(path: Path, *, source: str = "en", target: str = "de") -> PairSource:
    kind = next(suffix[1:] for suffix in path.suffixes if suffix in {".tmx", ".xliff", ".po"})
    keys = {"format": kind, "path": str(path)}
    data = DataConfig.model_validate(
        {"source_language": source, "target_language": target, "train": keys, "valid": keys}
    )
    return open_source(data.train, Direction(source, target))


def written(path: Path, content: str | bytes) -> Path:
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def read(path: Path, *, source: str = "en", target: str = "de") -> list[tuple[str, str]]:
    pairs = list(opened(path, source=source, target=target).pairs())
    return [(pair.source, pair.target) for pair in pairs]


def unit(*variants: tuple[str, str]) -> str:
    inner = "".join(f'<tuv xml:lang="{code}"><seg>{text}</seg></tuv>' for code, text in variants)
    return f"<tu>{inner}</tu>"


def tmx(folder: Path, *units: str) -> Path:
    return written(folder / "a.tmx", TMX.format(encoding="UTF-8", units="".join(units)))


# TMX


def test_exact_language_code_is_preferred(tmp_path: Path) -> None:
    path = tmx(tmp_path, unit(("pt-BR", "ônibus"), ("pt", "autocarro"), ("en", "bus")))
    assert read(path, target="pt") == [("bus", "autocarro")]
    assert read(path, target="pt-BR") == [("bus", "ônibus")]


def test_tmx_languages_match_by_prefix_in_any_order(tmp_path: Path) -> None:
    path = tmx(
        tmp_path,
        unit(("en", "one"), ("de", "eins")),
        unit(("fr", "deux"), ("DE", "zwei"), ("EN", "two")),
        unit(("en-US", "three"), ("de_CH", "drei")),
        unit(("en", "four"), ("de", "vier")).replace("xml:lang", "lang"),  # an older version
    )
    assert read(path) == [("one", "eins"), ("two", "zwei"), ("three", "drei"), ("four", "vier")]
    packed = written(tmp_path / "b.tmx.gz", gzip.compress(path.read_bytes()))
    assert read(packed) == read(path)
    assert read(path, source="de", target="en")[1] == ("zwei", "two")
    assert read(path, source="fr", target="de") == [("deux", "zwei")]


def test_tags_are_removed_and_line_breaks_become_spaces(tmp_path: Path) -> None:
    english = (
        '<bpt i="1">&lt;b&gt;</bpt>Fat<ept i="1">&lt;/b&gt;</ept> &amp; <hi>very <hi>thin</hi></hi>'
        "<ph>{0}<sub>alt</sub></ph>.<it pos='begin'>x</it><ut>y</ut>"
    )
    path = tmx(
        tmp_path,
        unit(("en", english), ("de", "a<ph/>b &lt;c&gt; &#x4f60;<!-- no -->好")),
        unit(("en", "\n  two \n\n lines\u2028 \u00a0 x\t"), ("de", "a  b\tc")),
    )
    assert read(path) == [
        ("Fat & very thin{0} alt.", "ab <c> 你好"),
        ("two lines\u2028 \u00a0 x", "a  b\tc"),
    ]


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ('Shut the door.<ph type="lb"/>Then rest', "Shut the door. Then rest"),
        ("Shut the door.<ph>\\n</ph>Then rest", "Shut the door. Then rest"),
        ("Shut the door.&lt;br/&gt;Then &lt;i&gt;", "Shut the door. Then <i>"),
        (
            'Shut the door.<x id="LINE_BREAK"/><x ctype="x-br"/>Then rest',
            "Shut the door. Then rest",
        ),
        ("Dear <ph>%1$s</ph>, {<ph>{0}</ph>} is <ph>late</ph>.", "Dear %1$s, {{0}} is late."),
        ('Dear <x id="N" equiv-text="{{n}}"/>, welcome', "Dear {{n}}, welcome"),
        ("هل <x/>؟ नहीं <x/>।", "هل؟ नहीं।"),
        ("Voilà <x/>\u00a0!", "Voilà\u00a0!"),
        ("a <bpt i='1'>{\\b </bpt>fat <ept i='1'>}</ept> cat<ut>{\\par}</ut>", "a fat cat"),
        ("a <g> red</g> <mrk><hi>hat</hi> </mrk> <pc>on</pc>", "a red hat on"),
        ('the <ph>&lt;img alt="<sub>a frog</sub>"&gt;</ph>jumps', "the a frog jumps"),
    ],
)
def test_tag_leaves_the_space_or_text_that_it_shows(
    content: str, text: str, tmp_path: Path
) -> None:
    path = tmx(tmp_path, unit(("en", content), ("de", "x")))
    assert read(path) == [(text, "x")]
    frame = "<trans-unit><source>{}</source><target>x</target></trans-unit>"
    assert read(xliff(tmp_path, XLIFF_1, frame.format(content))) == [(text, "x")]


def test_incomplete_units_are_left_out_and_logged_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmx(
        tmp_path,
        unit(("en", "one")),
        unit(("en", "two"), ("de", " \n ")),
        "<tu><tuv xml:lang='en'><seg>three</seg></tuv><tuv xml:lang='de'/></tu>",
        unit(("en", "four"), ("de", "<ph>&lt;b4&gt;</ph><ph>&lt;br&gt;</ph>")),
        unit(("en", "five"), ("de", "fünf")),
    )
    corpus = opened(path)
    with caplog.at_level(logging.WARNING, "mt"):
        assert list(corpus.pairs()) == [SentencePair("five", "fünf")]
        corpus.checksums()
    message = f"{path}: 4 of 5 units lack one of the sides and are left out"
    assert [record.getMessage() for record in caplog.records] == [message]


@pytest.mark.parametrize(
    ("variants", "languages"),
    [
        ((("en", "a"), ("den", "b")), "`den`, `en`"),
        ((), "none"),
        ((("en", ""), ("de", "")), "`de`, `en`"),
    ],
)
def test_missing_language_names_those_of_the_file(
    tmp_path: Path, variants: tuple[tuple[str, str], ...], languages: str
) -> None:
    corpus = opened(tmx(tmp_path, *([unit(*variants)] if variants else [])))
    for reading in (corpus.checksums, lambda: list(corpus.pairs())):
        with pytest.raises(DataError, match=f"a.tmx: .* are {languages}$"):
            reading()


@pytest.mark.parametrize("encoding", ["UTF-8", "UTF-16", "ISO-8859-1", "windows-1252"])
def test_declared_encoding_is_used(tmp_path: Path, encoding: str) -> None:
    text = TMX.format(encoding=encoding, units=unit(("en", "two"), ("de", "zwölf «é»")))
    assert read(written(tmp_path / "a.tmx", text.encode(encoding))) == [("two", "zwölf «é»")]


@pytest.mark.parametrize(
    ("content", "line"),
    [
        ("<tmx>\n<body><tu></body></tmx>", 2),
        ("<tmx>\n\n<body>", 3),
        ("", 1),
        (b"<tmx>\n<tu>\xff</tu></tmx>", 2),
        ('<?xml version="1.0" encoding="klingon"?><tmx/>', 1),
        ('<?xml version="1.0" encoding="shift_jis"?><tmx/>', 1),
        ("<tmx><tu>&nbsp;</tu></tmx>", 1),
        ('<!DOCTYPE tmx SYSTEM "a">\n<tmx>&nbsp;</tmx>', 2),
    ],
)
def test_invalid_xml_names_its_line(tmp_path: Path, content: str | bytes, line: int) -> None:
    with pytest.raises(DataError, match=f"^{tmp_path}/a.tmx: line {line}: "):
        read(written(tmp_path / "a.tmx", content))


def test_declared_entities_are_refused(tmp_path: Path) -> None:
    """Exponential expansion (billion laughs), and inclusion of a local file."""
    laughs = "".join(f'<!ENTITY l{n} "{f"&l{n - 1};" * 10}">' for n in range(1, 10))
    units = unit(("en", "&l9;"), ("de", "x"))
    bomb = f'<!DOCTYPE tmx [\n<!ENTITY l0 "ha">{laughs}]><tmx>{units}</tmx>'
    with pytest.raises(DataError, match="a.tmx: line 2: the entity `l0`"):
        read(written(tmp_path / "a.tmx", bomb))
    secret = written(tmp_path / "secret", "a secret")
    for declaration in (
        f'<!ENTITY l9 SYSTEM "file://{secret}">',
        f'<!ENTITY % l9 SYSTEM "file://{secret}"> %l9;',
    ):
        outside = f"<!DOCTYPE tmx [{declaration}]><tmx>{units}</tmx>"
        with pytest.raises(DataError):
            read(written(tmp_path / "a.tmx", outside))


@pytest.mark.timeout(20)
@pytest.mark.parametrize(
    "segment", ["one two " * 3_000_000, "<x/>" * 300_000, f'<x id="{"1" * 99}"/>' * 10_000]
)
def test_long_segment_is_left_out_and_logged(
    segment: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    long = unit(("en", segment), ("de", "x"))
    path = tmx(tmp_path, unit(("en", "a"), ("de", "b")), long, unit(("en", "c"), ("de", "d")))
    assert read(path) == [("a", "b"), ("c", "d")]
    assert (
        f"{path}: 1 units of more than 1,048,576 bytes are left out, such as 2" in caplog.messages
    )


@pytest.mark.timeout(20)
@pytest.mark.parametrize(
    "text", [f'<tu x="{"a " * 15_000_000}"/>', "<!--" + "-" * 30_000_000, "<a>" * 200]
)
def test_xml_of_extreme_size_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(DataError):
        read(tmx(tmp_path, text))


def test_memory_does_not_grow_with_a_tmx(tmp_path: Path) -> None:
    corpus = opened(tmx(tmp_path, unit(("en", "x" * 400), ("de", "y" * 400)) * 12_000))
    count, peak = counted(corpus)
    assert count == 12_000
    assert peak < 15_000_000  # the elements would take 27 MB


# XLIFF


def xliff(folder: Path, frame: str, *units: str) -> Path:
    return written(folder / "a.xliff", frame.format(units="".join(units)))


def test_xliff_1_2(tmp_path: Path) -> None:
    path = xliff(
        tmp_path,
        XLIFF_1,
        '<trans-unit id="1"><source>one <x id="1"/><g id="2">fat</g><ph id="3">%s</ph></source>'
        '<seg-source>no</seg-source><target state="translated">ein <mrk mtype="seg">fettes</mrk>'
        "</target><alt-trans><source>old</source><target>alt</target></alt-trans></trans-unit>",
        '<group><s:info>z</s:info><trans-unit id="2"><source>two</source><target>zwei</target>'
        "</trans-unit></group>",
        '<trans-unit id="3"><source>three</source></trans-unit>',
        '<trans-unit id="4"><source>four</source><target state="new">four</target></trans-unit>',
        '<trans-unit id="5"><source>five</source><target xml:lang="fr">cinq</target></trans-unit>',
    )
    assert read(path) == [("one fat%s", "ein fettes"), ("two", "zwei")]
    assert read(path, source="de", target="en") == [("ein fettes", "one fat%s"), ("zwei", "two")]
    assert read(path, target="fr") == [("five", "cinq")]
    with pytest.raises(DataError):
        read(path, target="da")


def test_each_file_of_an_xliff_has_its_own_languages(tmp_path: Path) -> None:
    unit = "<body><trans-unit id='1'><source>{}</source><target>{}</target></trans-unit></body>"
    files = [
        f'<file source-language="{left}" target-language="{right}">{unit.format(*texts)}</file>'
        for left, right, *texts in (
            ("en", "de", "one", "eins"),
            ("de", "en", "zwei", "two"),
            ("en", "fr", "three", "trois"),
        )
    ]
    path = written(tmp_path / "a.xliff", f"<xliff version='1.2'>{''.join(files)}</xliff>")
    assert read(path) == [("one", "eins"), ("two", "zwei")]


def test_xliff_2(tmp_path: Path) -> None:
    path = xliff(
        tmp_path,
        XLIFF_2,
        '<unit id="1"><originalData><data id="d">x</data></originalData>'
        '<segment><source>A <pc id="1">fat</pc> word.<ph id="2" dataRef="d"/></source>'
        "<target>Ein <pc id='1'>fettes</pc> Wort.</target></segment>"
        "<ignorable><source> </source><target> </target></ignorable>"
        '<segment state="final"><source>Two.</source><target>Zwei.</target></segment></unit>',
        '<unit id="2"><segment state="initial"><source>Three.</source><target>Three.</target>'
        "</segment></unit>",
    )
    assert read(path) == [("A fat word.", "Ein fettes Wort."), ("Two.", "Zwei.")]


# gettext


def test_po(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    body = """#: a.c:1
msgid "one\\n"
"line\\u2028"
msgstr "eine Zeile"

#, fuzzy
msgid "two"
msgstr "drei"

msgid "three"
msgstr ""

msgctxt "menu"
msgid "a \\"file\\""
msgstr "eine \\"Datei\\"\u2028"

msgid "%d file"
msgid_plural "%d files"
msgstr[0] "%d Datei"
msgstr[1] "%d Dateien"

msgid "%d day"
msgid_plural "%d days"
msgstr[0] "a"
msgstr[1] "b"
msgstr[2] "c"

msgid "%d hour"
msgid_plural "%d hours"
msgstr[0] "%d Stunden"

#~ msgid "old"
#~ msgstr "alt"
""".replace("\\u2028", "")
    expected = [
        ("one line", "eine Zeile"),
        ('a "file"', 'eine "Datei"\u2028'),
        ("%d file", "%d Datei"),
        ("%d files", "%d Dateien"),
        ("%d hours", "%d Stunden"),
    ]
    path = written(tmp_path / "a.po", PO + body)
    with caplog.at_level(logging.WARNING, "mt"):
        assert read(path) == expected
    assert "a.po: 3 of 8 units lack one of the sides" in caplog.text
    assert read(path, source="de", target="en") == [(b, a) for a, b in expected]
    packed = written(tmp_path / "a.po.gz", gzip.compress((PO + body).encode()))
    assert read(packed) == expected


def test_po_of_another_language_is_an_error(tmp_path: Path) -> None:
    path = written(tmp_path / "a.po", PO.replace("de", "de_AT") + 'msgid "a"\nmsgstr "b"\n')
    assert read(path) == [("a", "b")]
    with pytest.raises(DataError):
        read(path, target="fr")
    with pytest.raises(DataError):
        read(written(tmp_path / "b.po", 'msgid "a"\nmsgstr "b"\n'))


@pytest.mark.parametrize("charset", ["UTF-8", "ISO-8859-1", "CHARSET"])
def test_declared_charset_of_a_po_is_used(tmp_path: Path, charset: str) -> None:
    text = PO.replace("UTF-8", charset) + 'msgid "twelve"\nmsgstr "zwölf"\n'
    encoding = "utf-8" if charset == "CHARSET" else charset
    assert read(written(tmp_path / "a.po", text.encode(encoding))) == [("twelve", "zwölf")]
    if charset == "UTF-8":
        with pytest.raises(DataError):
            read(written(tmp_path / "a.po", text.encode("latin-1")))
