"""Formats and languages of corpora that are named by their files alone, for `mt init`."""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path, PurePosixPath
from typing import Any

from pydantic import TypeAdapter

from mt.config.data import (
    DataConfig,
    PoSource,
    RecordSource,
    Source,
    TmxSource,
    XliffSource,
)
from mt.data.filters import language_of
from mt.data.formats import READERS
from mt.data.pairs import PairSource, SentencePair
from mt.data.sources import field_names, open_source
from mt.errors import DataError, did_you_mean, install_hint, listed
from mt.files import expanded, regular_file
from mt.languages import scripts_of

_COMPRESSED = {".gz", ".xz", ".zst"}
_FORMATS = {
    ".tsv": "tsv",
    ".tmx": "tmx",
    ".xliff": "xliff",
    ".xlf": "xliff",
    ".po": "po",
    ".jsonl": "jsonl",
    ".parquet": "parquet",
}
"""Format of a single file by suffix; every other file is one side of a pair of text files."""
_SOURCE: TypeAdapter[Source] = TypeAdapter(Source)
_HUB = re.compile(
    r"hub:(?P<name>[^/@:]+/[^/@:]+)(/(?P<subset>[^@:]+))?(@(?P<revision>[^:]*))?(:(?P<split>.+))?"
)
_HUB_FORM = "hub:OWNER/NAME[/SUBSET]@COMMIT[:SPLIT]"
_COMMIT = re.compile("[0-9a-f]{40}")
_LANGUAGE_SUFFIX = re.compile(r"(?:^|[._-])([a-z]{2,3}(?:[-_][A-Za-z]{2,4})?)$")
_CODE = re.compile(r"[a-z]{2,3}(-[A-Za-z0-9]+)*")
_SAMPLED = 1000
"""Pairs at the start of a corpus in which languages are looked for."""
_UNKNOWN = "und"
"""Language code for reading a corpus before its languages are known."""


@dataclass(frozen=True)
class Corpus:
    """Corpus in a format, before its languages are known."""

    section: Source
    name: str
    """Name of its file, dataset or folder, without suffixes."""
    description: str
    suffixes: tuple[str | None, str | None] = (None, None)
    """Languages in the names of two text files."""

    def first_pairs(self) -> list[SentencePair]:
        """Return the first pairs of a corpus whose format does not depend on the languages."""
        return list(islice(_opened(self.section).pairs(), _SAMPLED))


def corpora_at(places: Sequence[str]) -> list[Corpus]:
    """Return the corpora at some places: files, folders, URLs, datasets of the hub.

    Text files form pairs in their order. Raises DataError for a missing file, for a text file
    without its other side, and for a dataset without a commit.
    """
    found: list[Corpus] = []
    sides: list[str] = []
    for place in places:
        if single := _single_corpus(place):
            found.append(single)
            continue
        _check_existing(place)
        sides.append(place)
        if len(sides) == 2:
            found.append(_text_corpus(*sides))
            sides = []
    if sides:
        raise DataError(
            f"{sides[0]}: a text file is one side of a corpus: name the file with the other side "
            f"next to it; a corpus in one file ends in {listed(_FORMATS)}"
        )
    return found


def _single_corpus(place: str) -> Corpus | None:
    """Return the corpus of a single file, folder or dataset; None for a text file."""
    if place.startswith("hub:"):
        return _hub_corpus(place)
    bare = _uncompressed(place)
    if kind := _FORMATS.get(bare.suffix.lower()):
        _check_existing(place)
        return Corpus(_section(format=kind, path=place), bare.stem, place)
    folder = expanded(place)
    if folder.is_dir():
        return Corpus(_section(format="folder", path=place), folder.resolve().name, place)
    return None


def _hub_corpus(place: str) -> Corpus:
    parts = _HUB.fullmatch(place)
    if parts is None:
        raise DataError(f"{place}: write a dataset of the hub as {_HUB_FORM}")
    if not _COMMIT.fullmatch(parts["revision"] or ""):
        raise DataError(
            f"{place}: name a commit, 40 hexadecimal digits, so that the config always reads the "
            f"same rows: {_HUB_FORM}; the dataset's page lists its commits"
        )
    keys = {key: value for key, value in parts.groupdict().items() if value is not None}
    return Corpus(_section(format="hub", **keys), parts["name"].partition("/")[2], place)


def _text_corpus(source: str, target: str) -> Corpus:
    (name, left), (_, right) = _stem_and_language(source), _stem_and_language(target)
    section = _section(source=source, target=target)
    return Corpus(section, name, f"{source} and {target}", (left, right))


def _section(**keys: str) -> Source:
    return _SOURCE.validate_python(keys)


def _uncompressed(place: str) -> PurePosixPath:
    path = PurePosixPath(place.partition("?")[0])
    return path.with_suffix("") if path.suffix in _COMPRESSED else path


def _stem_and_language(place: str) -> tuple[str, str | None]:
    """Return the name of a text file without suffixes, and the language that it ends with."""
    path = _uncompressed(place)
    name = path.name.removesuffix(".txt")
    found = _LANGUAGE_SUFFIX.search(name)
    if found and scripts_of(code := found[1].replace("_", "-")):
        return name[: found.start()] or Path(place).resolve().parent.name, code
    return PurePosixPath(name).stem, None


def _check_existing(place: str) -> None:
    if "://" not in place:
        regular_file(expanded(place))


def languages_of(corpus: Corpus, source: str | None, target: str | None) -> tuple[str, str]:
    """Return the source and target language of a corpus.

    `source` and `target` are those given by the user. Others come from the names of text files,
    from the marks of formats that have them, or else from the text, by py3langid. Raises DataError
    if a language remains unknown, or both are the same.
    """
    if isinstance(corpus.section, TmxSource | RecordSource):
        found = _chosen(corpus, _marked_languages(corpus), source, target)
    elif isinstance(corpus.section, XliffSource | PoSource):
        marked = [*_marked_languages(corpus), "", ""]
        found = source or marked[0], target or marked[1]
    else:
        found = source or corpus.suffixes[0], target or corpus.suffixes[1]
        if None in found:
            found = _identified(corpus, found)
    first, second = found
    if not first or not second:
        side = "target" if first else "source"
        raise DataError(
            f"{corpus.description}: its {side} language is unknown; give --{side}-language"
        )
    if first == second:
        raise DataError(
            f"{corpus.description}: source and target language are both `{first}`; the first file "
            "or column is the source side, and --source-language and --target-language name others"
        )
    return first, second


def check_code(option: str, code: str | None) -> None:
    """Raise DataError unless the value of an option is a well-formed language code or None."""
    if code is not None and not _CODE.fullmatch(code):
        raise DataError(f"{option} {code}: write a language code such as `en`, `zh` or `pt-BR`")


def _chosen(
    corpus: Corpus, marked: Sequence[str], source: str | None, target: str | None
) -> tuple[str | None, str | None]:
    """Return the direction between marked languages, which have no order."""
    for option, code in (("--source-language", source), ("--target-language", target)):
        if code and marked and {code, code.partition("-")[0]}.isdisjoint(marked):
            near = did_you_mean(code, marked)
            raise DataError(
                f"{option} {code}: {corpus.description} has texts in {listed(marked)}{near}"
            )
    if source and target:
        return source, target
    others = [each for each in marked if each not in {source, target}]
    if len(others) == 1 and (source or target):
        return source or others[0], target or others[0]
    there = f"has texts in {listed(marked)}" if marked else "does not name its languages"
    raise DataError(
        f"{corpus.description}: {there}; choose the direction with --source-language and "
        "--target-language"
    )


def _marked_languages(corpus: Corpus) -> list[str]:
    """Return the languages that a format marks, those of most units first."""
    section = corpus.section
    if isinstance(section, RecordSource):
        return [*_language_fields(section)]
    assert isinstance(section, TmxSource | XliffSource | PoSource)
    units = islice(READERS[section.format](expanded(section.path)), _SAMPLED)
    counts = Counter(code for texts in units for code in texts)
    return [re.split("[-_@]", code.lower())[0] for code, _ in counts.most_common()]


def _language_fields(section: Source) -> dict[str, str]:
    """Return the fields that are named after a language, by language.

    They are `translation.en` and the like, or else `en`; `id` beside two others is no language.
    """
    names = field_names(_opened(section))
    nested = {each.removeprefix("translation."): each for each in names if "translation." in each}
    known = {code: each for code, each in nested.items() if _CODE.fullmatch(code)}
    known = known or {each: each for each in names if _CODE.fullmatch(each) and scripts_of(each)}
    return {code: each for code, each in known.items() if code != "id" or len(known) == 2}


def section_in(corpus: Corpus, languages: tuple[str, str]) -> Source:
    """Return the config section of a corpus in (source, target) `languages`.

    Raises DataError if a corpus with named fields has none for a language.
    """
    section = corpus.section
    if not isinstance(section, RecordSource):
        return section
    fields, keys = _language_fields(section), {}
    for side, language in zip(("source", "target"), languages, strict=True):
        if language not in fields:
            raise DataError(
                f"{corpus.description}: no field `translation.{language}` or `{language}`; there "
                f"are {listed(field_names(_opened(section)))}"
            )
        if fields[language] != f"translation.{language}":
            keys[f"{side}_field"] = fields[language]
    return section.model_copy(update=keys)


def _identified(
    corpus: Corpus, known: tuple[str | None, str | None]
) -> tuple[str | None, str | None]:
    """Return the languages of both sides, by their text where they are not known."""
    pairs = corpus.first_pairs()
    sides = [pair.source for pair in pairs], [pair.target for pair in pairs]
    try:
        return known[0] or language_of(sides[0]), known[1] or language_of(sides[1])
    except DataError:
        raise DataError(
            f"{corpus.description}: the names of the files give no languages; give "
            "--source-language and --target-language, or install the package that identifies "
            f"them: {install_hint('langid')}"
        ) from None


def _opened(section: Source) -> PairSource:
    """Open a corpus whose languages are not known yet."""
    keys: dict[str, Any] = {"train": section, "valid": section}
    data = DataConfig(source_language=_UNKNOWN, target_language=_UNKNOWN, **keys)
    return open_source(section, data)
