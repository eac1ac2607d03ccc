"""Formats and languages of corpora that are named by their files alone, for `mt init`."""

import logging
import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import count, islice
from pathlib import Path, PurePosixPath

from pydantic import TypeAdapter

from mt.config.data import (
    DataConfig,
    Direction,
    HeldOutSource,
    MixtureSource,
    PoSource,
    RecordSource,
    Source,
    TextSource,
    TmxSource,
    TsvSource,
    XliffSource,
)
from mt.data.corpus_files import COMPRESSED, LineReader, require_unpacked
from mt.data.exchange_formats import READERS
from mt.data.filters import is_blank, is_metadata, language_of
from mt.data.pairs import PairSource, SentencePair
from mt.data.sources import DatasetPairs, JsonlPairs, TsvPairs, column_role, open_source
from mt.doctor.check import are_swapped
from mt.errors import DataError, did_you_mean, install_hint, listed
from mt.files import expand_home
from mt.languages import base_language, describe_country, scripts_of
from mt.tables import CORRECTION

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
_CODE = re.compile(r"[a-z]{2,3}(-[A-Za-z0-9]+)*")
_MARKUP_LINE = re.compile(r"\s*(?:<.*>|[\d:.,]+\s*-->.*)\s*")
_SAMPLED = 1000
"""Pairs at the start of a corpus in which languages are looked for."""
_BEGINNING, _FEW = 20, 0.2
_SHOWN = 30
_logger = logging.getLogger(__name__)
_UNKNOWN = "und"
"""Language code for reading a corpus before its languages are known."""


@dataclass(frozen=True)
class DetectedCorpus:
    """Corpus in a format, before its languages are known."""

    section: Source
    name: str
    """Name of its file, dataset or folder, without suffixes."""
    description: str
    suffixes: tuple[str | None, str | None] = (None, None)
    """Languages in the names of two text files or of two columns."""

    def first_pairs(self) -> list[SentencePair]:
        """Return the first pairs of a corpus whose format does not depend on the languages."""
        return list(islice(_open(self.section).pairs(), _SAMPLED))


def detect_data(
    train: Sequence[DetectedCorpus],
    *,
    valid: Sequence[DetectedCorpus],
    tests: Sequence[DetectedCorpus],
    given: tuple[str | None, str | None],
) -> DataConfig:
    """Return the data of some corpora, with a held-out pair for validation if `valid` is empty.

    The user may have `given` languages. Raises DataError unless languages and columns are clear.
    """
    for side, code in zip(("source", "target"), given, strict=True):
        if code and (message := describe_country(code)):
            raise DataError(f"--{side}-language {message}")
        if code and not _CODE.fullmatch(code):
            raise DataError(
                f"--{side}-language {code}: write a language code such as `en`, `zh` or `pt-BR`"
            )
    if len(valid) > 1:
        raise DataError(f"--valid {valid[1].description}: there is one validation split")
    trained = {corpus.description for corpus in train}
    for corpus in (*valid, *tests):
        if corpus.description in trained:
            raise DataError(f"{corpus.description}: is a training corpus as well")
    train = [choose_columns(corpus, given) for corpus in train]
    languages = detect_languages(train[0], *given)
    valid = [choose_columns(corpus, languages) for corpus in valid]
    tests = [choose_columns(corpus, languages) for corpus in tests]
    _logger.info("languages: %s to %s", *languages)

    def orient(corpus: DetectedCorpus) -> Source:
        """Return the section with the sides of text files and columns in the direction."""
        section, suffixes = make_section(corpus, languages), corpus.suffixes
        if isinstance(section, TextSource) and suffixes == languages[::-1]:
            return section.changed(source=section.target, target=section.source)
        if isinstance(section, TsvSource) and are_swapped(corpus.first_pairs(), languages):
            columns = section.columns[::-1]
            _logger.info("%s: column %d is the source side", corpus.description, columns[0])
            return section.changed(columns=columns)
        for code, language in zip(suffixes, languages, strict=True):
            if code and base_language(code) != base_language(language) and None in given:
                raise DataError(
                    f"{corpus.description}: a side is in `{code}`, but the first corpus is in "
                    f"`{languages[0]}` and `{languages[1]}`; a config has one direction"
                )
        return section

    def name(corpora: Sequence[DetectedCorpus], taken: Collection[str]) -> dict[str, Source]:
        sections: dict[str, Source] = {}
        for corpus in corpora:
            stem = re.sub(r"[^A-Za-z0-9_-]+", "-", corpus.name).strip("-_") or "corpus"
            names = (stem if index == 1 else f"{stem}-{index}" for index in count(1))
            sections[next(n for n in names if n not in {*sections, *taken})] = orient(corpus)
        return sections

    if len(tests) == 1:
        tests = [replace(tests[0], name="test")]
    mixture = name(train, ())
    return DataConfig(
        source_language=languages[0],
        target_language=languages[1],
        train=MixtureSource(corpora=mixture) if len(mixture) > 1 else mixture.popitem()[1],
        valid=orient(valid[0]) if valid else HeldOutSource(held_out=1),
        tests={**name(tests, {"train", "valid"})},
    )


def detect_corpora(locations: Sequence[str], *, option: str = "") -> list[DetectedCorpus]:
    """Return the corpora at some locations: files, folders, URLs, datasets of the hub.

    Text files form pairs in their order. Raises DataError for a missing file, for a text file
    without its other side or of markup, and for a dataset without a commit.
    """
    corpora: list[DetectedCorpus] = []
    sides: list[str] = []
    for location in locations:
        bare, path = _strip_compression(location), expand_home(location)
        place, left, right = location, None, None
        if location.startswith("hub:"):
            parts = _HUB.fullmatch(location)
            if parts is None or not re.fullmatch("[0-9a-f]{40}", parts["revision"] or ""):
                raise DataError(
                    f"{location}: write a dataset of the hub as hub:OWNER/NAME[/SUBSET]@COMMIT"
                    "[:SPLIT]; name a commit, 40 hexadecimal digits, so that the config always "
                    "reads the same rows"
                )
            present = {key: part for key, part in parts.groupdict().items() if part}
            keys = {"format": "hub"} | present
            name = parts["name"].partition("/")[2]
        elif kind := _FORMATS.get(bare.suffix.lower(), "folder" if path.is_dir() else ""):
            if kind != "folder" and "://" not in location:
                require_unpacked(path)
            keys = {"format": kind, "path": location}
            name = path.resolve().name if kind == "folder" else bare.stem
        else:
            if "://" not in location:
                lines = [*islice(LineReader(require_unpacked(path)), _SAMPLED)]
                marked = sum(_MARKUP_LINE.fullmatch(line) is not None for line in lines)
                if marked > sum(map(bool, map(str.strip, lines))) / 4:
                    raise DataError(
                        f"{location}: its lines are markup or times, as of XML and of subtitles; a "
                        "side of a corpus is plain text, one sentence a line"
                    )
            sides.append(location)
            if len(sides) < 2:
                continue
            (name, left), (_, right) = map(_split_language, sides)
            keys = {"source": sides[0], "target": sides[1]}
            place, sides = " and ".join(sides), []
        section = _SOURCE.validate_python(keys)
        corpora.append(DetectedCorpus(section, name, place, (left, right)))
    if sides:
        where = f"as well, as in `{option} {sides[0]} {option} FILE`" if option else "next to it"
        raise DataError(
            f"{sides[0]}: a text file is one side of a corpus: name the file with the other side "
            f"{where}; a corpus in one file ends in {listed(_FORMATS)}"
        )
    return corpora


def _strip_compression(location: str) -> PurePosixPath:
    path = PurePosixPath(location.partition("?")[0])
    return path.with_suffix("") if path.suffix.lower() in COMPRESSED else path


def _split_language(location: str) -> tuple[str, str | None]:
    """Return the name of a text file without suffixes, and the language that it ends with."""
    name = _strip_compression(location).name.removesuffix(".txt")
    suffix = re.search(r"(?:^|[._-])([a-z]{2,3}(?:[-_][A-Za-z]{2,4})?)$", name)
    code = suffix[1].replace("_", "-") if suffix else ""
    if suffix and scripts_of(code):
        return name[: suffix.start()] or Path(location).resolve().parent.name, code
    return PurePosixPath(name).stem, None


def detect_languages(
    corpus: DetectedCorpus, source: str | None, target: str | None
) -> tuple[str, str]:
    """Return the source and target language of a corpus.

    `source` and `target` are those given by the user. Others come from the names of text files,
    from the marks of formats that have them, or else from the text, by py3langid. Raises DataError
    if a language remains unknown, or both are the same.
    """
    section, languages = corpus.section, (source, target)
    if isinstance(section, TmxSource | RecordSource):
        languages = _choose_direction(corpus, _list_marked_languages(section), source, target)
    elif isinstance(section, XliffSource | PoSource):
        marked = [*_list_marked_languages(section), "", ""]
        languages = source or marked[0], target or marked[1]
    else:
        languages = source or corpus.suffixes[0], target or corpus.suffixes[1]
        if None in languages:
            pairs = corpus.first_pairs()
            try:
                languages = (
                    languages[0] or language_of([pair.source for pair in pairs]),
                    languages[1] or language_of([pair.target for pair in pairs]),
                )
            except DataError:
                raise DataError(
                    f"{corpus.description}: the names of the files give no languages; give "
                    "--source-language and --target-language, or install the package that "
                    f"identifies them: {install_hint('langid')}"
                ) from None
    first, second = languages
    for message in filter(None, map(describe_country, filter(None, languages))):
        raise DataError(f"{corpus.description} marks a language with a wrong code: {message}")
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


def choose_columns(
    corpus: DetectedCorpus, languages: tuple[str | None, str | None]
) -> DetectedCorpus:
    """Return a TSV corpus with the columns of its two texts; other corpora unchanged.

    Columns of numbers, codes, addresses and the like are no texts. Of more than two columns, the
    names in a first line decide, or else the languages; some `languages` may be known.
    Raises DataError, with a sample of each column, if the two texts are not clear.
    """
    section, suffixes = corpus.section, corpus.suffixes
    if not isinstance(section, TsvSource):
        return corpus
    opened = _open(section)
    assert isinstance(opened, TsvPairs)
    rows = [*islice(opened.rows(), _SAMPLED)]
    width = Counter(map(len, rows)).most_common(1)[0][0] if rows else 0
    first, *rest = [cells[:width] for cells in rows if len(cells) >= width] or [[]]
    columns = [*zip(*(rest or [first]), strict=True)]  # a single row is no header
    names = [name.strip().lower() for name in first]
    texts = [n for n, cells in enumerate(columns) if names[n] == CORRECTION or _are_texts(cells)]
    codes = {
        n: names[n] for n in texts if _is_code(names[n]) and not any(map(_is_code, columns[n]))
    }
    sides = [[n for n in texts if column_role(names[n]) == side] for side in ("source", "target")]
    sides[1].sort(key=lambda n: names[n] != CORRECTION)
    chosen = [side[0] for side in sides if side]
    if len(chosen) < 2 and len(codes) > 1:
        chosen = _match_languages(codes, languages)
        suffixes = (codes[chosen[0]], codes[chosen[1]]) if chosen else suffixes
    if len(chosen) < 2:
        # Kinds, names and licences have few beginnings.
        counts = {n: len({cell[:_BEGINNING] for cell in columns[n]}) for n in texts}
        varied = [n for n in texts if counts[n] > _FEW * max(counts.values())]
        chosen = varied if len(varied) > 1 else texts
    if len(chosen) > 2:
        labels: dict[int, str | None] = dict.fromkeys(chosen)
        with suppress(DataError):  # without the identifier
            for n in chosen:
                labels[n] = language_of([cell for cell in columns[n] if not is_blank(cell)])
        chosen = _match_languages(labels, languages)
    samples = (next(filter(str.strip, cells), "")[:_SHOWN] for cells in columns)
    shown = ", ".join(f"{index}: `{sample}`" for index, sample in enumerate(samples)) or "empty"
    if len(texts) < 2:
        raise DataError(f"{corpus.description}: has no two columns of text; they are {shown}")
    if len(chosen) != 2:
        raise DataError(
            f"{corpus.description}: which columns are the two texts is not clear; choose them with "
            "--source-language and --target-language, or write a config with "
            f"`columns: [SOURCE, TARGET]`; the columns are {shown}"
        )
    _logger.info("%s: columns: %s, of %s", corpus.description, chosen, shown)
    section = section.changed(columns=tuple(chosen))
    return replace(corpus, section=section, suffixes=suffixes)


def _is_code(cell: str) -> bool:
    return _CODE.fullmatch(cell) is not None and bool(scripts_of(cell))


def _are_texts(cells: Sequence[str]) -> bool:
    """Return True if most cells that are not blank are texts."""
    filled = [cell for cell in cells if not is_blank(cell)]
    return 2 * sum(map(is_metadata, filled)) < len(filled)


def _match_languages(
    labels: Mapping[int, str | None], languages: tuple[str | None, str | None]
) -> list[int]:
    """Return the first columns of the source and the target language; [] if that is not clear.

    An unknown language is that of the only other columns.
    """
    firsts: dict[str, int] = {}
    for column, label in labels.items():
        if label:
            firsts.setdefault(base_language(label), column)
    matching = [firsts.get(base_language(code)) if code else None for code in languages]
    remaining = [column for column in firsts.values() if column not in matching]
    if len(remaining) < matching.count(None):
        remaining = [n for n, label in labels.items() if label is None]
    if matching.count(None) not in {0, len(remaining)}:
        return []
    return [remaining.pop(0) if column is None else column for column in matching]


def _choose_direction(
    corpus: DetectedCorpus, marked: Sequence[str], source: str | None, target: str | None
) -> tuple[str | None, str | None]:
    """Return the direction between marked languages, which have no order."""
    for side, code in (("source", source), ("target", target)):
        if code and marked and {code, code.partition("-")[0]}.isdisjoint(marked):
            raise DataError(
                f"--{side}-language {code}: {corpus.description} has texts in {listed(marked)}"
                f"{did_you_mean(code, marked)}"
            )
    if source and target:
        return source, target
    remaining = [code for code in marked if code not in {source, target}]
    if len(remaining) == 1 and (source or target):
        return source or remaining[0], target or remaining[0]
    there = f"has texts in {listed(marked)}" if marked else "does not name its languages"
    raise DataError(
        f"{corpus.description}: {there}; choose the direction with --source-language and "
        "--target-language"
    )


def _list_marked_languages(section: Source) -> list[str]:
    """Return the languages that a format marks, those of most units first."""
    if isinstance(section, RecordSource):
        return [*_find_language_fields(section, _list_fields(section))]
    assert isinstance(section, TmxSource | XliffSource | PoSource)
    units = islice(READERS[section.format](expand_home(section.path)), _SAMPLED)
    counts = Counter(code for texts in units for code in texts)
    return [re.split("[-_@]", code.lower())[0] for code, _ in counts.most_common()]


def _find_language_fields(section: Source, names: Sequence[str]) -> dict[str, str]:
    """Return those of the fields of a corpus that are named after a language, by language.

    They are `translation.en` and the like, or else `en`. A field of numbers or ids is no language,
    nor is `id` beside two others.
    """
    nested = {name.removeprefix("translation."): name for name in names if "translation." in name}
    known = {code: name for code, name in nested.items() if _CODE.fullmatch(code)}
    for code in () if known else filter(_is_code, names):
        pairs = _open(section.changed(columns=(code, code))).pairs()
        with suppress(DataError):  # of numbers
            if _are_texts([pair.source for pair in islice(pairs, _SAMPLED)]):
                known[code] = code
    return {code: name for code, name in known.items() if code != "id" or len(known) == 2}


def make_section(corpus: DetectedCorpus, languages: tuple[str, str]) -> Source:
    """Return the config section of a corpus in (source, target) `languages`.

    Raises DataError if a corpus with named fields has none for a language.
    """
    section = corpus.section
    if not isinstance(section, RecordSource):
        return section
    names = _list_fields(section)
    fields = _find_language_fields(section, names)
    roles = {column_role(name): name for name in reversed(names)}
    if fields.keys().isdisjoint(languages) and {"source", "target"} <= roles.keys():
        return section.changed(columns=(roles["source"], roles["target"]))
    for language in languages:
        if language not in fields:
            raise DataError(
                f"{corpus.description}: no field `translation.{language}` or `{language}`; there "
                f"are {listed(names)}"
            )
    return section.changed(columns=(fields[languages[0]], fields[languages[1]]))


def _list_fields(section: Source) -> list[str]:
    opened = _open(section)
    assert isinstance(opened, JsonlPairs | DatasetPairs)
    return opened.list_fields()


def _open(section: Source) -> PairSource:
    """Open a corpus whose languages are not known yet."""
    return open_source(section, Direction(_UNKNOWN, _UNKNOWN))
