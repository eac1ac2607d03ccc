"""Formats and languages of corpora given by their places."""

import csv
import json
from pathlib import Path
from typing import Any

import datasets
import pytest

from mt.config.data import Direction, HubSource, JsonlSource, TsvSource
from mt.data.sources import open_source
from mt.errors import DataError
from mt.recipes.detection import choose_columns, detect_corpora, detect_languages, make_section

COMMIT = "0123456789" * 4
ENGLISH = "This is a longer sentence about the weather in the north of the country."
GERMAN = "Das ist ein längerer Satz über das Wetter im Norden des Landes, und er ist deutsch."
TMX = """<tmx version="1.4"><header srclang="en"/><body><tu>
<tuv xml:lang="EN-US"><seg>one</seg></tuv><tuv xml:lang="de"><seg>eins</seg></tuv></tu></body></tmx>
"""
XLIFF = """<xliff version="1.2"><file source-language="de" target-language="en"><body>
<trans-unit id="1"><source>eins</source><target>one</target></trans-unit></body></file></xliff>
"""
FILES = {
    "a.tsv": f"{GERMAN}\t{ENGLISH}\n" * 20,
    "a.tmx": TMX,
    "a.xliff": XLIFF,
    "a.jsonl": json.dumps({"translation": {"en": "one", "de": "eins"}}),
    "b.jsonl": json.dumps({"id": 7, "en": "one", "de": "eins"}),
    "d.jsonl": json.dumps({"id": "a7", "no": "12", "source_text": "eins", "target": "one"}),
    "e.jsonl": json.dumps({"id": "a7", "de": "eins", "no": "12", "en": "one"}),
    "c.jsonl": json.dumps({"left": "one", "right": "eins"}),
}


@pytest.fixture(autouse=True)
def _files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name, text in FILES.items():
        Path(name).write_text(text, encoding="utf-8")


def detect(*places: str, source: str | None = None, target: str | None = None) -> Any:
    """Return the languages and the section of the only corpus at some places."""
    (corpus,) = detect_corpora(places)
    languages = detect_languages(corpus, source, target)
    return *languages, make_section(corpus, languages)


@pytest.mark.parametrize(
    ("names", "name", "languages"),
    [
        ("train.zh train.en", "train", ("zh", "en")),
        ("train.zh.gz train.en.gz", "train", ("zh", "en")),
        ("corpus.zh-en.zh corpus.zh-en.en", "corpus.zh-en", ("zh", "en")),
        ("OpenSubtitles.en-zh_CN.zh_CN o.en", "OpenSubtitles.en-zh_CN", ("zh-CN", "en")),
        ("train_de.txt train_en.txt", "train", ("de", "en")),
        ("old.lzh new.zh", "old", ("lzh", "zh")),
    ],
)
def test_names_of_text_files_give_languages(
    names: str, name: str, languages: tuple[str, str]
) -> None:
    for path in names.split():
        Path(path).write_text("")
    (corpus,) = detect_corpora(names.split())
    assert corpus.name == name
    assert detect_languages(corpus, None, None) == languages


def test_text_gives_the_languages_that_names_do_not() -> None:
    pytest.importorskip("py3langid")
    assert detect("a.tsv")[:2] == ("de", "en")
    Path("a.src").write_text(f"{GERMAN}\n" * 20, encoding="utf-8")
    Path("a.tgt").write_text(f"{ENGLISH}\n" * 20, encoding="utf-8")
    assert detect("a.src", "a.tgt")[:2] == ("de", "en")
    assert detect("a.src", "a.tgt", source="lb")[:2] == ("lb", "en")


def test_without_the_identifier_the_options_are_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(texts: object) -> None:
        raise DataError("not installed")

    monkeypatch.setattr("mt.recipes.detection.language_of", missing)
    with pytest.raises(DataError, match=r"give --source-language and --target-language, or inst"):
        detect("a.tsv")
    assert detect("a.tsv", source="de", target="en")[:2] == ("de", "en")


@pytest.mark.parametrize("name", ["a.tmx", "a.jsonl", "b.jsonl"])
def test_marked_languages_need_a_direction(name: str) -> None:
    assert detect(name, source="de")[:2] == detect("a.xliff")[:2] == ("de", "en")
    assert detect(name, target="de")[:2] == ("en", "de")
    with pytest.raises(DataError, match="choose the direction with --source-language"):
        detect(name)
    with pytest.raises(DataError, match=f"--source-language fr: {name} has texts in"):
        detect(name, source="fr", target="de")


def test_fields_named_after_languages_are_found() -> None:
    columns = "translation.de", "translation.en"
    section = JsonlSource(format="jsonl", path=Path("a.jsonl"), columns=columns)
    assert detect("a.jsonl", source="de")[2] == section
    assert detect("b.jsonl", source="de")[2].columns == ("de", "en")
    assert detect("d.jsonl", source="de", target="en")[2].columns == ("source_text", "target")
    assert detect("e.jsonl", source="de")[2].columns == ("de", "en")
    with pytest.raises(DataError, match=r"no field `translation.de` or `de`; there are `left`"):
        detect("c.jsonl", source="de", target="en")


def test_dataset_of_the_hub_is_read_at_its_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def load(name: str, subset: str | None, **rest: Any) -> Any:
        asked.append((name, subset, rest["revision"], rest["split"]))
        return datasets.Dataset.from_list([{"translation": {"de": "eins", "en": "one"}}])

    monkeypatch.setattr(datasets, "load_dataset", load)
    source, target, section = detect(f"hub:o/n/de-en@{COMMIT}:dev", source="en")
    assert (source, target) == ("en", "de")
    assert set(asked) == {("o/n", "de-en", COMMIT, "dev")}
    columns = "translation.en", "translation.de"
    assert section == HubSource(
        format="hub", name="o/n", subset="de-en", revision=COMMIT, split="dev", columns=columns
    )


SENTENCES = {
    "en": ["We missed the last bus.", "My brother repairs old radios.", "It rained all night."],
    "de": ["Wir haben den Bus verpasst.", "Mein Bruder repariert Radios.", "Es regnete die Nacht."],
    "zh": ["我们没赶上末班车。", "我哥哥修旧收音机。", "整夜都在下雨。"],
}
EN, DE, ZH = ([f"{n}: {text}" for n in range(9) for text in texts] for texts in SENTENCES.values())
ROWS = range(len(EN))
SCORES, URLS = [f"{n / 7:.3f}" for n in ROWS], [f"https://example.org/{n}.html" for n in ROWS]
IDS, FILES_ = [f"doc-{n}" for n in ROWS], [f"a/b{n}.xml" for n in ROWS]
DAYS, FLAGS = [f"2020-03-{n:02} 10:{n:02}" for n in ROWS], ["true", "null", "false"] * 9
CODES, KINDS = ["en", "EN", "eng_Latn"] * 9, ["news", "law", "talks"] * 9
LICENCES = [f"CC-BY 2.0 (France), sentence {n} by Anna" for n in ROWS]
TABLES: dict[str, tuple[list[list[str]], str, str]] = {
    "two": ([EN, ZH], "", "0 1 en zh"),
    "score": ([SCORES, EN, ZH], "", "1 2 en zh"),
    "ids": ([IDS, EN, IDS, ZH], "", "1 3 en zh"),
    "urls and dates": ([URLS, DAYS, EN, FLAGS, DE], "", "2 4 en de"),
    "files and codes": ([FILES_, CODES, DE, CODES, EN], "", "2 4 de en"),
    "kinds": ([KINDS, DE, EN], "", "1 2 de en"),
    "licences": ([EN, DE, LICENCES], "", "0 1 en de"),
    "empty": ([[""] * len(EN), EN, ZH], "", "1 2 en zh"),
    "copy": ([EN, EN, ZH], "", "0 2 en zh"),
    "header of roles": ([ZH, EN, DE], "mt\tsource\tsegment", "1 0 en zh"),
    "header of codes": ([IDS, ZH, EN], "id\tzh\ten", "1 2 zh en"),
    "header and languages": ([EN, DE, ZH], "en\tde\tzh", "2 1 zh de"),
    "three languages": ([EN, DE, ZH], "", "1 2 de zh"),
    "words that are codes": ([["it", "dog"] * 9, ["es", "Hund"] * 9], "", "0 1 en de"),
}


@pytest.mark.parametrize("quoting", [csv.QUOTE_NONE, csv.QUOTE_MINIMAL, csv.QUOTE_ALL])
@pytest.mark.parametrize("table", TABLES)
def test_columns_of_text_are_found(table: str, quoting: Any) -> None:
    pytest.importorskip("py3langid")
    columns, header, expected = TABLES[table]
    *chosen, source, target = expected.split()
    with Path("x.tsv").open("w", encoding="utf-8", newline="") as file:
        rows = csv.writer(file, delimiter="\t", quoting=quoting, lineterminator="\n")
        rows.writerows([*([header.split("\t")] if header else []), *zip(*columns, strict=True)])
    (corpus,) = detect_corpora(["x.tsv"])
    # Of three languages two are given.
    given = (source, target) if "languages" in table else (None, None)
    corpus = choose_columns(corpus, given)
    assert isinstance(corpus.section, TsvSource)
    assert corpus.section.columns == tuple(map(int, chosen))
    if "words" not in table:
        assert detect_languages(corpus, *given) == (source, target)
    opened = open_source(corpus.section, Direction(source, target))
    read = [(pair.source, pair.target) for pair in opened.pairs()]
    assert read == list(zip(*(columns[int(n)] for n in chosen), strict=True))


def test_languages_of_a_report_are_those_of_its_corrections() -> None:
    pytest.importorskip("py3langid")
    rows = [("source", "translation", "correction")]
    rows += [
        (en, zh, de if n > len(EN) - 9 else "")
        for n, (en, zh, de) in enumerate(zip(EN, ZH, DE, strict=True))
    ]
    Path("x.tsv").write_text("".join("\t".join(row) + "\n" for row in rows), encoding="utf-8")
    (corpus,) = detect_corpora(["x.tsv"])
    corpus = choose_columns(corpus, (None, None))
    assert detect_languages(corpus, None, None) == ("en", "de")
    rows[1:] = [(source, translation, "") for source, translation, _ in rows[1:]]
    Path("x.tsv").write_text("".join("\t".join(row) + "\n" for row in rows), encoding="utf-8")
    with pytest.raises(DataError, match="x.tsv: no row has a text in the column `correction`"):
        detect_languages(choose_columns(corpus, (None, None)), None, None)


@pytest.mark.parametrize("columns", [[EN, DE, ZH], [EN, SCORES, IDS], [EN]])
def test_unclear_columns_are_shown(columns: list[list[str]]) -> None:
    rows = ["\t".join(row) for row in zip(*columns, strict=True)]
    Path("x.tsv").write_text("\n".join(rows), encoding="utf-8")
    (corpus,) = detect_corpora(["x.tsv"])
    with pytest.raises(DataError, match=f"^x.tsv: .* 0: `{EN[1][:30]}`"):
        choose_columns(corpus, (None, None))


@pytest.mark.parametrize(
    "text",
    [
        '<doc id="a">\n<seg id="1"> One. </seg>\n<seg id="2"> Two. </seg>\n</doc>\n',
        "1\n00:00:01,000 --> 00:00:02,000\nOne.\n\n2\n00:00:03,000 --> 00:00:04,000\nTwo.\n",
    ],
)
def test_document_is_no_side_of_a_corpus(text: str) -> None:
    Path("a.en.sgm").write_text(text, encoding="utf-8")
    Path("a.en.txt").write_text("One.\n<b>Two</b>\nA --> B.\nFour.\n" * 2, encoding="utf-8")
    with pytest.raises(DataError, match="^a.en.sgm: "):
        detect_corpora(["a.en.txt", "a.en.sgm"])
    assert detect_corpora(["a.en.txt", "a.en.txt"])[0].name == "a"
