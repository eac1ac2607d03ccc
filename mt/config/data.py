"""Configuration of languages, corpora, splits and cleaning."""

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import AfterValidator, Discriminator, Field, Tag

from mt.config.base import LocalPath, Section, TaggedSection
from mt.languages import describe_country

Checksum = Annotated[str, Field(pattern=r"^([0-9a-f]{64}|unverified)$")]
"""SHA-256 of the decompressed text in hexadecimal, or `unverified`."""
Revision = Annotated[str, Field(pattern=r"^[0-9a-f]{40}$")]
"""A commit of a hub repository: 40 hexadecimal digits."""


def _refuse_country(code: str) -> str:
    if message := describe_country(code):
        raise ValueError(message)
    return code


Language = Annotated[
    str, Field(pattern=r"^[a-z]{2,3}(-[A-Za-z0-9]+)*$"), AfterValidator(_refuse_country)
]
"""A language code: `en`, `zh`, `pt-BR`."""
Text = Annotated[str, Field(min_length=1)]
Column = Annotated[int, Field(ge=0, le=10**6)]
SplitName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]*$")]
"""A split name that fits into `--split` and `--set data.tests.NAME.source`."""


BrokenText = Literal["mojibake", "tokens", "tokenized", "markup"]


class CleaningConfig(Section):
    """Steps applied to the training pairs, in this order; valid and test splits are not cleaned.

    The text is normalized first. The first filter that matches a pair removes it. Held-out splits
    are taken from the pairs that the filters leave.
    """

    control_characters: Literal["strip", "reject"] | None = None
    """Control characters but tab: `strip` deletes them, and makes line separators such as U+2028
    spaces; `reject` removes the pairs."""
    normalize_spaces: bool = False
    """Replace each run of white space by one space, and strip both ends."""

    identical_sides: bool = False
    """Remove pairs with identical sides that contain letters."""
    min_characters: Annotated[int, Field(ge=1, le=10**9)] | None = None
    """Remove pairs with a side shorter than this, outer white space not counted; 1: blank sides,
    which training skips in any case."""
    max_characters: Annotated[int, Field(ge=1, le=10**9)] | None = None
    """Remove pairs with a side longer than this, outer white space not counted."""
    max_length_ratio: Annotated[float, Field(ge=1, le=10**9)] | None = None
    """Remove pairs with a higher length ratio, counted in letters; 2.5 catches gross errors."""
    wrong_script: bool = False
    """Remove pairs with under 30% of a side's letters in the script of its language."""
    broken_text: Annotated[tuple[BrokenText, ...], Field(strict=False)] = ()
    """Remove pairs with any of these: `mojibake`: U+FFFD, UTF-8 misread as Latin-1 or Windows-1252;
    `tokens`: subword markers `▁`, `@@`, `##`; `tokenized`: `&apos;`, spaces before full stops;
    `markup`: tags or character references of HTML or XML."""
    numbers: bool = False
    """Remove pairs in which each side has a number, in digits, that the other side lacks."""
    language: bool = False
    """Remove pairs with a side clearly in another language; needs the extra `langid`."""
    overlap: Literal["exact", "normalized"] | None = None
    """Remove pairs with a side that also occurs, on either side, in `valid` or a test split."""
    duplicates: Literal["pair", "source", "target"] | None = None
    """Keep only the first of the pairs with the same text: both sides, or this one."""


class PairSection(TaggedSection):
    """Keys shared by corpora and held-out splits."""

    sha256_source: Checksum = "unverified"
    """SHA-256 of the decompressed source side; `unverified` records it in the run folder."""
    sha256_target: Checksum = "unverified"
    """SHA-256 of the decompressed target side; `unverified` records it in the run folder."""
    source_language: Language | None = None
    """Language code of its source side; null: as `data.source_language`."""
    target_language: Language | None = None
    """Language code of its target side; null: as `data.target_language`."""


class HeldOutSource(PairSection):
    """A validation or test split of pairs that training leaves out.

    The pairs come from the training corpora with the same languages and tag.
    """

    format: Literal["held_out"] = "held_out"
    """Held-out pairs, the default format if `held_out` is given."""
    held_out: Annotated[int, Field(ge=1, le=10**9)]
    """Number of pairs; held-out splits take at most half of the distinct pairs of the corpora. The
    choice depends on the name of the split and not on the order of the pairs."""


class CorpusSource(PairSection):
    """Keys shared by all corpus formats."""

    corpus: Annotated[str, Field(pattern=r"^[A-Za-z0-9_.-]+(/[A-Za-z0-9_.-]+)+$")] | None = None
    """`name/split`, found as $MT_CORPORA/name/split.<language>[.gz]; precedes the other keys."""
    weight: Annotated[float, Field(gt=0, le=1000)] = 1.0
    """Passes over the corpus per epoch: 2 takes each pair twice, 0.5 every second pair."""


class TextSource(CorpusSource):
    """Two line-aligned text files, plain, .gz, .xz, .zst or .bz2; a path or a URL."""

    format: Literal["text"] = "text"
    """Line-aligned plain text, the default format."""
    source: Text | None = None
    """Path or URL of the source side; optional if `corpus` finds the files."""
    target: Text | None = None
    """Path or URL of the target side; optional if `corpus` finds the files."""
    sacrebleu: Text | None = None
    """Test set that sacreBLEU downloads, such as `wmt22`, instead of `source` and `target`."""

    def _broken_rules(self) -> Iterator[str]:
        if (self.source is None) != (self.target is None):
            missing = "source" if self.source is None else "target"
            yield f"`{missing}` is missing: `source` and `target` go together"
        elif self.source and self.sacrebleu:
            yield "`sacrebleu` names both sides; remove `source` and `target`"
        elif not (self.source or self.corpus or self.sacrebleu):
            yield "needs `corpus`, `sacrebleu`, or both `source` and `target`"


class PathSource(CorpusSource):
    """Keys shared by the formats of one file with both languages."""

    path: Text
    """Path or URL; plain, .gz, .xz, .zst or .bz2."""


class TsvSource(PathSource):
    """One file with a pair per row in tab-separated columns.

    Quotation marks around cells are left out if all rows have them as in CSV, and a first line if
    it names both columns.
    """

    format: Literal["tsv"]
    """Tab-separated values."""
    columns: Annotated[tuple[Column, Column], Field(strict=False)] = (0, 1)
    """Columns of the source and the target side, from 0."""


class TmxSource(PathSource):
    """A translation memory; `en` also matches `EN` and `en-US`."""

    format: Literal["tmx"]
    """Translation Memory eXchange."""


class XliffSource(PathSource):
    """An XLIFF file of version 1.2 or 2, without the texts marked as untranslated."""

    format: Literal["xliff"]
    """XML Localization Interchange File Format."""


class PoSource(PathSource):
    """A gettext file; its header names the language of the translations."""

    format: Literal["po"]
    """Gettext messages, without fuzzy and obsolete ones."""


class RecordSource(CorpusSource):
    """Keys shared by the formats with named fields."""

    columns: Annotated[tuple[Text, Text], Field(strict=False)] | None = None
    """Fields of both sides, dots for nesting; null: `translation.<language>`."""


class LocalSource(RecordSource):
    """Keys shared by the formats with named fields on the disk."""

    path: LocalPath
    """Path of the file or folder."""


class DatasetSource(RecordSource):
    """Keys shared by the formats that `datasets` loads."""

    split: Text = "train"
    """Split of the dataset."""


class JsonlSource(LocalSource):
    """A file with one JSON object per line."""

    format: Literal["jsonl"]
    """JSON lines."""


class ParquetSource(LocalSource):
    """A Parquet file."""

    format: Literal["parquet"]
    """Parquet."""


class FolderSource(LocalSource, DatasetSource):
    """A local folder that `datasets` can load without a loading script."""

    format: Literal["folder"]
    """A dataset folder."""


class HubSource(DatasetSource):
    """A dataset of the Hugging Face hub at a pinned commit, without a loading script."""

    format: Literal["hub"]
    """A hub dataset."""
    name: Text
    """Name of the dataset on the hub, `owner/name`."""
    revision: Revision
    """Commit, 40 hexadecimal digits, so that a recipe always reads the same rows."""
    subset: Text | None = None
    """Configuration of the dataset, if it has several."""
    folder: Text | None = None
    """Folder of the repository with the files, if the dataset does not describe it."""


IMPLIED_FORMATS = {"corpora": "mixture", "held_out": "held_out"}
"""Format by the key that implies it; other sections without `format` are `text`."""


def _format_of(source: Any) -> str | None:
    """Return the tag that selects the corpus format, or None for a value that is no section."""
    if isinstance(source, dict):
        implied = (IMPLIED_FORMATS[key] for key in source if key in IMPLIED_FORMATS)
        return str(source.get("format", next(implied, "text")))
    return getattr(source, "format", None)


_Corpus = (
    Annotated[TextSource, Tag("text")]
    | Annotated[TsvSource, Tag("tsv")]
    | Annotated[JsonlSource, Tag("jsonl")]
    | Annotated[ParquetSource, Tag("parquet")]
    | Annotated[FolderSource, Tag("folder")]
    | Annotated[HubSource, Tag("hub")]
    | Annotated[TmxSource, Tag("tmx")]
    | Annotated[XliffSource, Tag("xliff")]
    | Annotated[PoSource, Tag("po")]
)
Source = Annotated[_Corpus, Discriminator(_format_of)]
"""A corpus of any format, selected by `format`."""
SplitSource = Annotated[
    _Corpus | Annotated[HeldOutSource, Tag("held_out")], Discriminator(_format_of)
]
"""A validation or test split: a corpus of any format, or held-out pairs."""


class MixtureSource(Section):
    """Several training corpora."""

    format: Literal["mixture"] = "mixture"
    """A mixture, the default format if `corpora` is given."""
    corpora: Annotated[dict[SplitName, Source], Field(min_length=1)]
    """Corpora by name, each with its `weight` in an epoch."""
    temperature: Annotated[float, Field(ge=1, le=1000)] = 1.0
    """T samples corpora in proportion to size^(1/T), over epochs as long as all pairs; 1: off."""


TrainSource = Annotated[
    _Corpus | Annotated[MixtureSource, Tag("mixture")], Discriminator(_format_of)
]
"""Training data: one corpus of any format, or a mixture."""


TERM_TAGS = "<term>", "<term-end>"
"""Tags around a target term that stands in a source text behind its source term."""
NO_CORPUS = "an imported model has no corpus"
"""Files of the corpora in the config of an imported run."""


class Direction(NamedTuple):
    """A source and a target language."""

    source: str
    target: str

    def __str__(self) -> str:
        return f"{self.source} to {self.target}"


class DataConfig(Section):
    """Languages, corpora and their splits."""

    source_language: Language
    """Language code of the source side, such as `en`."""
    target_language: Language
    """Language code of the target side, such as `de`; selects the BLEU tokenizer."""
    train: TrainSource
    """Training pairs: a corpus, or several under `corpora`."""
    valid: SplitSource
    """Validation pairs, which rank the checkpoints."""
    tests: dict[SplitName, SplitSource] = Field(default_factory=dict)
    """Test splits by name; `mt evaluate RUN --split NAME` scores one."""
    max_tokens: Annotated[int, Field(ge=2, le=10**6)] = 256
    """Longest side of a training pair, end mark included; longer pairs are skipped and counted."""
    check: bool = True
    """Warn of suspicious data before training; `mt data check` gives the full report."""
    cleaning: CleaningConfig = CleaningConfig()
    """Cleaning of the training pairs."""
    terms: Annotated[float, Field(ge=0, le=1)] = 0.0
    """Share of the training pairs that show target words beside their source words, so that the
    model writes the terms of a glossary; other ones in each epoch."""
    augmentation: Literal["off", "on", "strong"] = "off"
    """Change some training pairs, other ones in each epoch: capitals, typos, joined pairs,
    addresses; `strong`: with more typos."""

    def _broken_rules(self) -> Iterator[str]:
        for name in sorted({"train", "valid"} & set(self.tests)):
            yield f"`data.tests.{name}`: `{name}` is the name of another split"
        tests = {f"tests.{name}": source for name, source in self.tests.items()}
        for key, source in {"valid": self.valid, **tests}.items():
            if isinstance(source, CorpusSource) and source.weight != 1:
                yield f"`data.{key}.weight`: only training corpora have a weight; remove it"
            if isinstance(source, HeldOutSource) and not self.matching_corpora(source):
                known = dict.fromkeys(map(self._kind, self.train_corpora().values()))
                yield (
                    f"`data.{key}.held_out`: no training corpus is {self._kind(source)}; they are "
                    f"{', '.join(known)}"
                )

    @property
    def has_corpora(self) -> bool:
        """False for an imported run."""
        return not isinstance(self.train, TextSource) or self.train.source != NO_CORPUS

    def direction_of(self, source: PairSection) -> Direction:
        """Return the languages of a corpus or split: its own, or else those of the data."""
        return Direction(
            source.source_language or self.source_language,
            source.target_language or self.target_language,
        )

    def _kind(self, source: SplitSource) -> str:
        """Return languages and tag as text: `en to de, tag <bt>`."""
        tags = [tag for tag in (source.tag, source.target_tag) if tag]
        return ", tag ".join([str(self.direction_of(source)), *tags])

    def train_corpora(self) -> dict[str, Source]:
        """Return the training corpora by their key below `data`."""
        if isinstance(self.train, MixtureSource):
            corpora = self.train.corpora.items()
            return {f"train.corpora.{name}": corpus for name, corpus in corpora}
        return {"train": self.train}

    def matching_corpora(self, split: HeldOutSource) -> dict[str, Source]:
        """Return the training corpora with the languages and tag of a split, by key."""
        corpora, kind = self.train_corpora().items(), self._kind(split)
        return {key: corpus for key, corpus in corpora if self._kind(corpus) == kind}

    def split(self, name: str) -> SplitSource | None:
        """Return the source of `valid` or of a test split, or None for an unknown name."""
        return self.valid if name == "valid" else self.tests.get(name)

    def split_names(self) -> list[str]:
        """Return `valid` and the names of the test splits."""
        return ["valid", *self.tests]


def trained_directions(data: DataConfig) -> tuple[Direction, ...]:
    """Return the distinct directions of the training corpora, in order."""
    return tuple(dict.fromkeys(direction for direction, _ in _directions(data)))


TagKey = Literal["tag", "target_tag"]
TAG_KEYS: tuple[TagKey, ...] = ("tag", "target_tag")
"""Keys of the tokens in front of source and target lines."""


def trained_tags(data: DataConfig, key: TagKey = "tag") -> dict[str | None, tuple[Direction, ...]]:
    """Return the directions of the training corpora by tag; None is the key of untagged ones."""
    directions: dict[str | None, dict[Direction, None]] = {}
    for direction, source in _directions(data):
        directions.setdefault(getattr(source, key), {})[direction] = None
    return {tag: tuple(of_tag) for tag, of_tag in directions.items()}


def needed_tags(data: DataConfig, key: TagKey = "tag") -> dict[str | None, tuple[Direction, ...]]:
    """Return the tags of which each line needs one; empty if a training corpus has no tag."""
    tags = trained_tags(data, key)
    return {} if None in tags else tags


def tags_as_text(tags: Mapping[str | None, tuple[Direction, ...]]) -> list[str]:
    """Return each tag with its directions as text, without the untagged ones."""
    return [f"`{tag}` ({' and '.join(map(str, of))})" for tag, of in tags.items() if tag]


def language_of(tag: str | None) -> str | None:
    """Return the language that a tag names, such as `deu-Latn` for `deu_Latn`; else None."""
    return None if tag is None or tag[0] == "<" else tag.strip("_").replace("_", "-")


def chosen_direction(data: DataConfig, tag: str | None, target_tag: str | None = None) -> Direction:
    """Return the direction of the tags: that of the corpora with both, or the tags' own languages.

    The languages of the config fill in what the tags do not determine.
    """
    both = dict.fromkeys(
        direction
        for direction, source in _directions(data)
        if (source.tag, source.target_tag) == (tag, target_tag)
    )
    if len(both) == 1:
        return next(iter(both))
    named = [language_of(tag), language_of(target_tag)]
    return Direction(named[0] or data.source_language, named[1] or data.target_language)


def _directions(data: DataConfig) -> Iterator[tuple[Direction, Source]]:
    for source in data.train_corpora().values():
        yield data.direction_of(source), source
