"""Formats and languages of corpora given by their places."""

import json
from pathlib import Path
from typing import Any

import datasets
import pytest

from mt.config.data import HubSource, JsonlSource, Source
from mt.errors import DataError
from mt.recipes.detection import detect_corpora, detect_languages, make_section

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
    assert detect(name, source="de")[:2] == ("de", "en")
    assert detect(name, target="de")[:2] == ("en", "de")
    with pytest.raises(DataError, match="choose the direction with --source-language"):
        detect(name)
    with pytest.raises(DataError, match=f"--source-language fr: {name} has texts in"):
        detect(name, source="fr", target="de")


def test_xliff_has_a_direction() -> None:
    assert detect("a.xliff")[:2] == ("de", "en")


def test_fields_named_after_languages_are_found() -> None:
    assert detect("a.jsonl", source="de")[2] == JsonlSource(format="jsonl", path=Path("a.jsonl"))
    section: Source = detect("b.jsonl", source="de")[2]
    assert isinstance(section, JsonlSource)
    assert section.columns == ("de", "en")
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
    assert section == HubSource(
        format="hub", name="o/n", subset="de-en", revision=COMMIT, split="dev"
    )
