"""Where sentence pairs come from."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag, model_validator

from mt.config.base import LocalPath, Section, TagText

Share = Annotated[float, Field(ge=0.0, le=1.0)]


class CleaningConfig(Section):
    """What is done to the training pairs, in this order; validation and test stay as they are.

    First both texts are changed, then each pair is taken out by the first filter that objects; the
    sources of those that stay get noise.
    """

    strip_control: bool = False
    """Drop control characters but tab; one that ends a line, as U+2028 or U+0085, gives a space."""
    normalize_spaces: bool = False
    """Make white space of every kind and length one space, and drop it at both ends."""

    empty_sides: bool = False
    """Take out pairs with a side of nothing but white space; training leaves them out anyway."""
    identical_sides: bool = False
    """Take out pairs whose two sides are the same text, if it has letters."""
    min_characters: Annotated[int, Field(ge=1)] | None = None
    """Take out pairs with fewer characters than this on a side, white space around it aside."""
    max_characters: Annotated[int, Field(ge=1)] | None = None
    """Take out pairs with more characters than this on a side, white space around it aside."""
    max_length_ratio: Annotated[float, Field(ge=1)] | None = None
    """Take out pairs with a longer quotient of lengths, in letters; 2.5 takes the grossest ones."""
    wrong_script: bool = False
    """Take out pairs with less than 30% of a side's letters in the script of its language."""
    mojibake: bool = False
    """Take out pairs with U+FFFD, or with UTF-8 that was once read as Latin-1 or Windows-1252."""
    tokens: bool = False
    """Take out pairs with marks of subwords: `▁`, `@@`, `##`."""
    tokenized: bool = False
    """Take out pairs that were cut into words for a machine: `&apos;`, spaces before points."""
    control_characters: bool = False
    """Take out pairs with NUL, another control character but tab, U+2028 or U+2029."""
    markup: bool = False
    """Take out pairs with tags or character references of HTML or XML."""
    numbers: bool = False
    """Take out pairs where each side has a number in digits that the other has not."""
    language: bool = False
    """Take out pairs with a side surely in another language; needs the extra `langid`."""
    overlap: Literal["exact", "normalized"] | None = None
    """Take out pairs with a side that also stands in `valid` or a test split, on that side."""
    duplicates: Literal["pair", "source", "target"] | None = None
    """Take out all but the first of the pairs that are the same, or have this side in common."""

    noise_case: Share = 0.0
    """Put this share of the sources, from 0 to 1, into capital letters."""
    noise_punctuation: Share = 0.0
    """Take the punctuation out of this share of the sources."""
    noise_typos: Share = 0.0
    """Put typos into a word or more of this share of the sources."""
    noise_seed: Annotated[int, Field(ge=0)] = 1
    """Together with the number of its line, decides which noise a source gets."""


Checksum = Annotated[str, Field(pattern=r"^([0-9a-f]{64}|unverified)$")]
"""SHA-256 of the decompressed text in hexadecimal, or `unverified`."""
Revision = Annotated[str, Field(pattern=r"^[0-9a-f]{40}$")]
"""A commit of a hub repository: 40 hexadecimal digits."""
Language = Annotated[str, Field(pattern=r"^[a-z]{2,3}(-[A-Za-z0-9]+)*$")]
"""A language code: `en`, `zh`, `pt-BR`."""
Text = Annotated[str, Field(min_length=1)]
SplitName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]*$")]
"""A name that `--split` and `--set data.tests.NAME.source` can hold."""


class CorpusSource(Section):
    """What all kinds of corpus share."""

    format: str
    """Which kind of corpus it is."""
    corpus: Annotated[str, Field(pattern=r"^[A-Za-z0-9_.-]+(/[A-Za-z0-9_.-]+)+$")] | None = None
    """`name/split`, as $MT_CORPORA/name/split.<language>[.gz]: first unless `--set` names data."""
    sha256_source: Checksum = "unverified"
    """SHA-256 of the decompressed source side; `unverified` records it in the run folder."""
    sha256_target: Checksum = "unverified"
    """SHA-256 of the decompressed target side; `unverified` records it in the run folder."""
    weight: Annotated[float, Field(gt=0, le=1000)] = 1.0
    """How often an epoch of training passes over it: 2 takes each pair twice, 0.5 another half."""
    source_language: Language | None = None
    """Language code of its source side; null: as `data.source_language`."""
    target_language: Language | None = None
    """Language code of its target side; null: as `data.target_language`."""
    tag: TagText | None = None
    """A token in front of each source line, of `tokenizer.tags`: `<bt>`, `<2de>`; null: none."""


class TextSource(CorpusSource):
    """Two files whose line N translate each other: plain, .gz, .xz or .zst; a path or a URL."""

    format: Literal["text"] = "text"
    """Aligned plain text; the format where none is named."""
    source: Text | None = None
    """Path or URL of the source side; may be left out where `corpus` finds the files."""
    target: Text | None = None
    """Path or URL of the target side; may be left out where `corpus` finds the files."""

    @model_validator(mode="after")
    def _has_both_sides(self) -> "TextSource":
        if (self.source is None) != (self.target is None):
            lacking = "source" if self.source is None else "target"
            raise ValueError(f"`{lacking}` is missing: `source` and `target` go together")
        if self.source is None and self.corpus is None:
            raise ValueError("needs `corpus`, or both `source` and `target`")
        return self


class TsvSource(CorpusSource):
    """One file with a pair per line, columns separated by a tab; no quoting, no header."""

    format: Literal["tsv"]
    """Tab-separated values."""
    path: Text
    """Path or URL; plain, .gz, .xz or .zst."""
    source_column: Annotated[int, Field(ge=0)] = 0
    """Column of the source side, from 0."""
    target_column: Annotated[int, Field(ge=0)] = 1
    """Column of the target side, from 0."""


class ExchangeSource(CorpusSource):
    """What the formats share whose units are found by the code of their language."""

    path: Text
    """Path or URL; plain, .gz, .xz or .zst."""


class TmxSource(ExchangeSource):
    """A translation memory; `en` also finds what it calls `EN` or `en-US`."""

    format: Literal["tmx"]
    """Translation Memory eXchange."""


class XliffSource(ExchangeSource):
    """An XLIFF file of version 1.2 or 2; texts marked as untranslated are left out."""

    format: Literal["xliff"]
    """XML Localization Interchange File Format."""


class PoSource(ExchangeSource):
    """A gettext file, whose header names the language of its translations."""

    format: Literal["po"]
    """Messages of gettext; fuzzy and obsolete ones are left out."""


class RecordSource(CorpusSource):
    """What the kinds of corpus that hold named fields share."""

    source_field: Text | None = None
    """Field of the source side, dots for nesting; default `translation.<language>`."""
    target_field: Text | None = None
    """Field of the target side, dots for nesting; default `translation.<language>`."""


class JsonlSource(RecordSource):
    """One JSON object per line."""

    format: Literal["jsonl"]
    """JSON lines."""
    path: LocalPath
    """The file."""


class ParquetSource(RecordSource):
    """A Parquet file."""

    format: Literal["parquet"]
    """Parquet."""
    path: LocalPath
    """The file."""


class FolderSource(RecordSource):
    """A local folder that `datasets` can load; one that needs a script is refused."""

    format: Literal["folder"]
    """A dataset folder."""
    path: LocalPath
    """The folder."""
    split: Text = "train"
    """Which split of it."""


class HubSource(RecordSource):
    """A dataset of the Hugging Face hub at a pinned commit; one that needs a script is refused."""

    format: Literal["hub"]
    """A hub dataset."""
    name: Text
    """The dataset's name on the hub, `owner/name`."""
    revision: Revision
    """The commit, 40 hexadecimal digits, so that the same recipe reads the same rows for ever."""
    subset: Text | None = None
    """The configuration of the dataset, where it has several."""
    folder: Text | None = None
    """The folder of the repository that holds the files, where they are not described by it."""
    split: Text = "train"
    """Which split of it."""


def _format_of(source: Any) -> str | None:
    """Return the tag that selects the kind of source, or None for what is no section at all."""
    if isinstance(source, dict):
        return str(source.get("format", "mixture" if "corpora" in source else "text"))
    return str(source.format) if isinstance(source, CorpusSource | MixtureSource) else None


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
"""Any of the kinds of corpus, told apart by `format`."""


class MixtureSource(Section):
    """Several corpora that are trained on together."""

    format: Literal["mixture"] = "mixture"
    """A mixture; the format where `corpora` is given and no format is named."""
    corpora: Annotated[dict[SplitName, Source], Field(min_length=1)]
    """The corpora by name, each with the `weight` that it has in an epoch."""
    temperature: Annotated[float, Field(ge=1, le=1000)] = 1.0
    """T makes shares proportional to size^(1/T), in epochs as long as all pairs; 1: as they are."""


TrainSource = Annotated[
    _Corpus | Annotated[MixtureSource, Tag("mixture")], Discriminator(_format_of)
]
"""What can be trained on: one corpus of any kind, or a mixture of several."""


class DataConfig(Section):
    """Languages, corpora and their splits."""

    source_language: Language
    """Language code of the source side, such as `en`."""
    target_language: Language
    """Language code of the target side, such as `de`; it selects the tokenizer of BLEU."""
    train: TrainSource
    """The pairs to learn from: a corpus, or several under `corpora`."""
    valid: Source
    """The pairs that choose the checkpoint."""
    tests: dict[SplitName, Source] = Field(default_factory=dict)
    """The pairs to score, by name; `mt evaluate RUN --split NAME`."""
    max_tokens: Annotated[int, Field(ge=2)] = 256
    """Training pairs with more tokens on a side, end mark included, are left out and counted."""
    check: bool = True
    """Look for what is alarming in the pairs before a training; `mt data check` sees all."""
    cleaning: CleaningConfig = CleaningConfig()
    """What is done to the training pairs before anything is learnt from them."""

    @model_validator(mode="after")
    def _tests_have_names_of_their_own(self) -> "DataConfig":
        if taken := sorted({"train", "valid"} & set(self.tests)):
            raise ValueError(f"`data.tests.{taken[0]}`: `{taken[0]}` is the name of another split")
        return self

    @model_validator(mode="after")
    def _only_training_is_weighted(self) -> "DataConfig":
        for name in self.split_names():
            source = self.split(name)
            if source is not None and source.weight != 1:
                key = f"data.{'' if name == 'valid' else 'tests.'}{name}.weight"
                raise ValueError(f"`{key}`: only corpora that are trained on have a weight")
        return self

    def of(self, source: Source) -> "DataConfig":
        """Return the same data with the languages of one corpus; the splits keep their own."""
        if source.source_language is None and source.target_language is None:
            return self
        splits = {name: self._with_languages(split) for name, split in self.tests.items()}
        languages = self._languages(source)
        update = {**languages, "valid": self._with_languages(self.valid), "tests": splits}
        return self.model_copy(update=update)

    @property
    def is_multilingual(self) -> bool:
        """Whether there is more than one target language."""
        sources = (*self.train_corpora().values(), self.valid, *self.tests.values())
        return len({self._languages(each)["target_language"] for each in sources}) > 1

    def _languages(self, source: Source) -> dict[str, str]:
        return {
            "source_language": source.source_language or self.source_language,
            "target_language": source.target_language or self.target_language,
        }

    def _with_languages(self, source: Source) -> Source:
        return source.model_copy(update=self._languages(source))

    def train_corpora(self) -> dict[str, Source]:
        """Return the corpora to train on by the key below `data` that each stands under."""
        if isinstance(self.train, MixtureSource):
            return {f"train.corpora.{name}": each for name, each in self.train.corpora.items()}
        return {"train": self.train}

    def split(self, name: str) -> Source | None:
        """Return the source of `valid` or of a test split, or None where no such split is."""
        return self.valid if name == "valid" else self.tests.get(name)

    def first_split(self) -> tuple[str, Source]:
        """Return name and source of the first test split, or of `valid` where there is none."""
        return next(iter(self.tests.items()), ("valid", self.valid))

    def split_names(self) -> list[str]:
        """Return the names that `split` knows."""
        return ["valid", *self.tests]


@dataclass(frozen=True, slots=True)
class Direction:
    """From one language into another."""

    source: str
    target: str

    def __str__(self) -> str:
        return f"{self.source} to {self.target}"


def trained_directions(data: DataConfig) -> tuple[Direction, ...]:
    """Return the directions of the training corpora, each once, in their order."""
    return tuple(dict.fromkeys(direction for direction, _ in _corpora(data)))


def trained_tags(data: DataConfig) -> dict[str | None, tuple[Direction, ...]]:
    """Return the tags of the training corpora with the directions of each; None: without a tag."""
    corpora = dict.fromkeys(_corpora(data))
    tags = dict.fromkeys(tag for _, tag in corpora)
    return {tag: tuple(each for each, its in corpora if its == tag) for tag in tags}


def needed_tags(data: DataConfig) -> dict[str | None, tuple[Direction, ...]]:
    """Return the tags of which each line must have one; none where a line may go without."""
    tags = trained_tags(data)
    return {} if None in tags else tags


def tags_as_text(tags: Mapping[str | None, tuple[Direction, ...]]) -> list[str]:
    """Return each tag with its directions in words, but for None."""
    return [f"`{tag}` ({' and '.join(map(str, of))})" for tag, of in tags.items() if tag]


def chosen_direction(data: DataConfig, tag: str | None) -> Direction:
    """Return the direction that a tag stands for, or that of the config where it tells no one."""
    found = trained_tags(data).get(tag, ())
    return found[0] if len(found) == 1 else Direction(data.source_language, data.target_language)


def _corpora(data: DataConfig) -> Iterable[tuple[Direction, str | None]]:
    for source in data.train_corpora().values():
        own = data.of(source)
        yield Direction(own.source_language, own.target_language), source.tag
