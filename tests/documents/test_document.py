import io
import sys
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any, NoReturn

import pytest

from mt.data.glossary import read_terms
from mt.decoding.load import StoredModel
from mt.decoding.torch_engine import TorchEngine
from mt.decoding.translator import Translation, Translator
from mt.documents.document import DocumentJob, read_document, translate_document
from mt.documents.segments import Format, Options, TranslatedLine
from mt.errors import DataError, UserError
from mt.special_ids import EOS
from tests.decoding.fakes import UpperCase, build_translator, text_of

MODEL: Any = None
"""Model of jobs whose translator is a fixture."""
PAGE = b"<p>First one. Second <b>one</b>.</p>\r\n<img alt='a dog'><pre>code</pre>\n"
UPPER = b"<p>FIRST ONE. SECOND <b>ONE</b>.</p>\r\n<img alt='A DOG'><pre>code</pre>\n"


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> UpperCase:
    engine = UpperCase()
    translator = build_translator(engine, longest=30, split_sentences="on", batch_size=1)

    def load(_: StoredModel, __: str, glossary: Path | None, ___: Path | None) -> Translator:
        translator.use_terms(read_terms(glossary))
        return translator

    monkeypatch.setattr("mt.documents.document.load_for_files", load)
    return engine


def test_document_with_report(
    engine: UpperCase, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    source, output, report = tmp_path / "page.html", tmp_path / "out.html", tmp_path / "report"
    source.write_bytes(PAGE.replace(b"a dog", b"A DOG OF 7"))
    output.write_bytes(b"old")
    translate_document(MODEL, DocumentJob(source, output, "html", report))
    assert output.read_bytes() == UPPER.replace(b"A DOG", b"A DOG OF 7")
    assert source.read_bytes() == PAGE.replace(b"a dog", b"A DOG OF 7")
    _, first, second = report.read_text().splitlines()
    assert first.startswith(
        "1\tok\t\tFirst one. Second one.\tFIRST ONE. SECOND ONE.\t\t2 sentences: "
    )
    assert second.startswith("2\tcopied\t")
    assert f"{report}: the translation is the line itself (1)" in caplog.messages
    assert len(engine.calls) == 2, "texts are translated in batches, not all at once"


def test_refused_translation_is_kept_in_the_report(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    translator = build_translator(UpperCase(), longest=30, repair="off")
    monkeypatch.setattr("mt.documents.document.load_for_files", lambda *_: translator)
    source, output, report = tmp_path / "in.jsonl", tmp_path / "out.jsonl", tmp_path / "report"
    source.write_text('{"t": "one"}\n{"t": "a {name} b"}\n')
    translate_document(MODEL, DocumentJob(source, output, "jsonl", report, column="t"))
    assert output.read_text() == '{"t": "ONE"}\n{"t": "a {name} b"}\n'
    _, first, second = report.read_text().splitlines()
    assert first == "1\tok\t\tone\tONE\t\t"
    assert second.startswith("2\tkept\t\ta {name} b\tA {NAME} B\t\tthe translation ")
    assert "`{name}`" in second
    assert any("text 2: keeps its source: " in message for message in caplog.messages)


PO = b"""msgid ""
msgstr ""
"Language: en\\n"

msgid "a cat"
msgstr ""

#, c-format
msgid "a dog"
msgid_plural "dogs"
msgstr[0] ""
msgstr[1] ""
"""
UNITS = b"""<xliff version="1.2"><file source-language="en" target-language="en">
<trans-unit id="1"><source>a cat</source></trans-unit>
<trans-unit id="2"><source>a dog</source><target state="new"/></trans-unit></file></xliff>"""
SEGMENTS = b"""<xliff version="2.0" srcLang="en" trgLang="en"><file id="f"><unit id="u">
<segment id="1"><source>a cat</source></segment>
<segment id="2"><source>a dog</source></segment></unit></file></xliff>"""


@pytest.mark.parametrize(
    ("format", "content", "marks"),
    [
        ("po", PO, [b'msgid "a cat"\nmsgstr "A CAT"', b"#, fuzzy, c-format"]),
        (
            "xliff",
            UNITS,
            [
                b'<target state="translated">A CAT',
                b'<target state="needs-review-translation">A DOG',
            ],
        ),
        (
            "xliff",
            SEGMENTS,
            [
                b'<segment id="1" state="translated">',
                b'<segment id="2" state="translated" subState="mt:needs-review-translation">',
            ],
        ),
    ],
)
def test_entry_with_a_missed_term_is_marked_for_review(
    format: Format,
    content: bytes,
    marks: list[bytes],
    engine: UpperCase,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    search = engine.n_best_ids

    def search_without_prefixes(sources: Any, *given: Any, prefixes: Any) -> Any:
        return search(sources, *given, prefixes=[()] * len(prefixes))

    monkeypatch.setattr(engine, "n_best_ids", search_without_prefixes)
    source, output, terms = tmp_path / "in", tmp_path / "out", tmp_path / "terms.tsv"
    source.write_bytes(content)
    terms.write_text("dog\tHund\ncat\tCat\n")
    report = tmp_path / "report"
    job = DocumentJob(source, output, format, report, glossary=terms)
    translate_document(MODEL, job)
    marked = output.read_bytes()
    assert all(marked.count(mark) == 1 for mark in marks)
    first, second = report.read_text().splitlines()[1:3]
    assert first.startswith("1\tok\t") and first.endswith("\tterms: cat → CAT: used (model)")
    missed = "terms not in the translation: `Hund` for `dog`; terms: dog → Hund: missed"
    assert second.startswith("2\tmissed-term\t") and second.endswith(f"\t{missed}")
    terms.write_text("cat\tCat\n")
    translate_document(MODEL, job)
    other, plain = output.read_bytes(), tmp_path / "plain"
    translate_document(MODEL, DocumentJob(source, plain, format))
    assert other == plain.read_bytes() != marked
    terms.write_text("cat\n")
    with pytest.raises(DataError):
        translate_document(MODEL, job)
    with pytest.raises(UserError):
        translate_document(MODEL, DocumentJob(source, terms, format, glossary=terms))


def test_only_texts_with_tags_are_aligned(
    finished_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    aligned: list[int] = []
    explain = TorchEngine.explain

    def counting(engine: TorchEngine, sources: Any, hypotheses: Any) -> Any:
        aligned.append(len(sources))
        return explain(engine, sources, hypotheses)

    monkeypatch.setattr(TorchEngine, "explain", counting)
    source, output = tmp_path / "in.md", tmp_path / "out.md"
    source.write_text("one *two* three\n\nfour five\n\n# one **two**\n\nfour  \nfive\n")
    translate_document(StoredModel.read(finished_run), DocumentJob(source, output, "markdown"))
    assert aligned == [2], "together, and without those that have no tags but line ends"
    assert output.read_text().count("*") == 6
    source.write_text("four five\n\none\n")
    translate_document(StoredModel.read(finished_run), DocumentJob(source, output, "markdown"))
    assert aligned == [2]


def test_stdin_to_stdout(
    engine: UpperCase,
    monkeypatch: pytest.MonkeyPatch,
    capsysbinary: pytest.CaptureFixture[bytes],
    caplog: pytest.LogCaptureFixture,
) -> None:
    for content, expected in {PAGE: UPPER, b"<hr>\n": b"<hr>\n", b"": b""}.items():
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content)))
        translate_document(MODEL, DocumentJob(None, None, "html"))
        assert capsysbinary.readouterr() == (expected, b"")
    assert caplog.messages == ["stdin: has no text to translate"] * 2


_SENTENCES = [
    "He said so.",
    "“Who is it?”",
    "Dr. Lee paid 3.50 for e.g. tea!",
    "Yes; no?",
    "It is so.",
]
_GAPS = [" ", "  ", "\t", " \u00a0", "\u3000"]
_ENDS = ["\n", "\r\n", "\r", "\n\n", "\r\n \t\r\n", "\n  \n\n"]
_EDGES = ["", "", " ", "    ", "\t", "\u3000\u3000"]


def _plain_text(random: Random) -> str:
    """Return paragraphs with indentation, white space at line ends, and mixed line ends."""
    text = random.choice(["", "\ufeff", *_ENDS])
    for _ in range(random.randint(1, 3)):
        text += random.choice(_EDGES)
        sentences = random.choices(_SENTENCES, k=random.randint(1, 3))
        text += sentences[0]
        for sentence in sentences[1:]:
            text += random.choice(_GAPS) + sentence
        text += random.choice(_EDGES) + random.choice(_ENDS)
    return text.rstrip() if random.random() < 0.3 else text


class Collapsing(UpperCase):
    """Loses white space around a sentence and doubled spaces inside, as models do."""

    def n_best_ids(self, sources: Any, decoding: Any, count: int, *, prefixes: Any = ()) -> Any:
        texts = [" ".join(text_of(source[:-1]).split()) for source in sources]
        short = [[*map(ord, text), EOS] for text in texts]
        return super().n_best_ids(short, decoding, count, prefixes=prefixes)


@pytest.mark.parametrize("count", [300, pytest.param(10_000, marks=pytest.mark.slow)])
def test_white_space_and_paragraphs_come_back(count: int) -> None:
    random = Random(1)
    translator = build_translator(Collapsing(), longest=100, split_sentences="on")
    options = Options("file", "en", "en")
    for _ in range(count):
        text = _plain_text(random)
        document = read_document(text.encode(), "text", "file")
        items = document.read_items(options)
        texts = [text for item in items for text in item.texts]
        lines = translator.stream(texts)
        translated = document.translate(items, (TranslatedLine(line.text) for line in lines))
        assert b"".join(translated).decode() == text.upper()


def test_bad_jobs_are_refused_before_the_run_is_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any, **__: Any) -> NoReturn:
        raise AssertionError("the run is loaded")

    monkeypatch.setattr("mt.documents.document.load_for_files", refuse)
    page, output = tmp_path / "page.html", tmp_path / "out.html"
    page.write_bytes(PAGE)
    broken = tmp_path / "broken.html"
    broken.write_bytes(b"\xff")
    html: Format = "html"
    for job, message in (
        (DocumentJob(page, page, html), "page.html: is named twice, and would be written over"),
        (DocumentJob(page, output, html, output), "out.html: is named twice"),
        (DocumentJob(tmp_path / "pag.html", output, html), "did you mean `page.html`"),
        (DocumentJob(page, tmp_path / "no" / "out", html), "there is no folder"),
        (DocumentJob(broken, output, html), "broken.html: line 1 is not UTF-8"),
        (DocumentJob(page, output, html, column="a"), "`--column` is for jsonl and tsv"),
        (DocumentJob(page, output, html, fuzzy=True), "`--fuzzy` is for po"),
        (DocumentJob(page, output, html, fuzzy_below=4), "`--fuzzy-below` is for po and xliff"),
    ):
        with pytest.raises(UserError, match=message):
            translate_document(MODEL, job)
    assert {path.name for path in tmp_path.iterdir()} == {"page.html", "broken.html"}


def doubt(translations: Iterable[Translation]) -> Iterator[Translation]:
    """Yield a low confidence for texts without the word GOOD, and a fault for BAD."""
    for line in translations:
        yield replace(
            line,
            confidence=90.0 if "GOOD" in line.text else 39.5,
            status="altered" if "BAD" in line.text else line.status,
        )


@pytest.fixture
def doubting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let all translations have the confidence of `doubt`."""
    stream = Translator.stream
    monkeypatch.setattr(
        Translator, "stream", lambda *texts, **named: doubt(stream(*texts, **named))
    )
    monkeypatch.setattr(Translator, "require_calibration", lambda *_: None)


PO_MESSAGES = """msgid "a good one"
msgstr ""

#, c-format
msgid "any"
msgstr ""

msgid "good or bad"
msgstr ""

#: a.c
msgid "good"
msgid_plural "some"
msgstr[0] ""
msgstr[1] ""
"""
PO_MARKED = """msgid "a good one"
msgstr "A GOOD ONE"

#, fuzzy, c-format
msgid "any"
msgstr "ANY"

#, fuzzy
msgid "good or bad"
msgstr "GOOD OR BAD"

#: a.c
#, fuzzy
msgid "good"
msgid_plural "some"
msgstr[0] "GOOD"
msgstr[1] "SOME"
"""
UNIT_1 = '<trans-unit id="1"><source>{0}</source>{1}</trans-unit>'
TARGET_1 = '<target state="{0}">{1}</target>'
UNIT_2 = '<segment id="1"{0}><source>{1}</source>{2}</segment>'
XLIFF_1 = '<xliff version="1.2"><file source-language="en" target-language="en">{}</file></xliff>'
XLIFF_2 = (
    '<xliff version="2.0" srcLang="en" trgLang="en"><file><unit id="u">{}</unit></file></xliff>'
)


@pytest.mark.parametrize(
    ("format", "text", "expected"),
    [
        ("po", PO_MESSAGES, PO_MARKED),
        (
            "xliff",
            XLIFF_1.format(UNIT_1.format("good", "") + UNIT_1.format("any", "<target/>")),
            XLIFF_1.format(
                UNIT_1.format("good", TARGET_1.format("translated", "GOOD"))
                + UNIT_1.format("any", TARGET_1.format("needs-review-translation", "ANY"))
            ),
        ),
        (
            "xliff",
            XLIFF_2.format(
                UNIT_2.format("", "good", "") + UNIT_2.format(' state="initial"', "any", "")
            ),
            XLIFF_2.format(
                UNIT_2.format(' state="translated"', "good", "<target>GOOD</target>")
                + UNIT_2.format(
                    ' state="translated" subState="mt:needs-review-translation"',
                    "any",
                    "<target>ANY</target>",
                )
            ),
        ),
    ],
)
def test_doubtful_entries_are_marked_for_review(
    format: Format, text: str, expected: str, engine: UpperCase, doubting: None, tmp_path: Path
) -> None:
    source, output = tmp_path / "in", tmp_path / "out"
    source.write_text(text)
    header = 'msgid ""\nmsgstr "Language: en\\nPlural-Forms: nplurals=2; plural=(n != 1);\\n"\n\n'
    if format == "po":
        source.write_text(header + text)
        expected = header + expected
    translate_document(MODEL, DocumentJob(source, output, format, fuzzy_below=40))
    assert output.read_text() == expected
    translate_document(MODEL, DocumentJob(source, output, format, fuzzy_below=20))
    marks = output.read_text().count("fuzzy") + output.read_text().count("needs-review")
    assert marks == (format == "po"), "a fault is marked whatever the confidence is"


def test_refused_entry_stays_empty_if_it_is_doubtful(
    doubting: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    translator = build_translator(UpperCase(), longest=30, repair="off")
    monkeypatch.setattr("mt.documents.document.load_for_files", lambda *_: translator)
    text = 'msgid ""\nmsgstr "Language: en\\n"\n\nmsgid "a {name} b"\nmsgstr ""\n'
    source, output = tmp_path / "in", tmp_path / "out"
    source.write_text(text)
    translate_document(MODEL, DocumentJob(source, output, "po", fuzzy_below=40))
    assert output.read_text() == text
