"""Where sentence pairs come from."""

from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag, model_validator

from mt.config.base import LocalPath, Section

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
    """`name/split`: looked for as $MT_CORPORA/name/split.<language>[.gz] before anything else."""
    sha256_source: Checksum = "unverified"
    """SHA-256 of the decompressed source side; `unverified` records it in the run folder."""
    sha256_target: Checksum = "unverified"
    """SHA-256 of the decompressed target side; `unverified` records it in the run folder."""


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
        return str(source.get("format", "text"))
    return str(source.format) if isinstance(source, CorpusSource) else None


Source = Annotated[
    Annotated[TextSource, Tag("text")]
    | Annotated[TsvSource, Tag("tsv")]
    | Annotated[JsonlSource, Tag("jsonl")]
    | Annotated[ParquetSource, Tag("parquet")]
    | Annotated[FolderSource, Tag("folder")]
    | Annotated[HubSource, Tag("hub")],
    Discriminator(_format_of),
]
"""Any of the kinds of corpus, told apart by `format`."""


class DataConfig(Section):
    """Languages, corpora and their splits."""

    source_language: Language
    """Language code of the source side, such as `en`."""
    target_language: Language
    """Language code of the target side, such as `de`; it selects the tokenizer of BLEU."""
    train: Source
    """The pairs to learn from."""
    valid: Source
    """The pairs that choose the checkpoint."""
    tests: dict[SplitName, Source] = Field(default_factory=dict)
    """The pairs to score, by name; `mt evaluate RUN --split NAME`."""
    max_pieces: Annotated[int, Field(ge=2)] = 256
    """Training pairs with more pieces on a side, end mark included, are left out and counted."""

    @model_validator(mode="after")
    def _tests_have_names_of_their_own(self) -> "DataConfig":
        if taken := sorted({"train", "valid"} & set(self.tests)):
            raise ValueError(f"`data.tests.{taken[0]}`: `{taken[0]}` is the name of another split")
        return self

    def split(self, name: str) -> Source | None:
        """Return the source of `valid` or of a test split, or None where no such split is."""
        return self.valid if name == "valid" else self.tests.get(name)

    def first_split(self) -> tuple[str, Source]:
        """Return name and source of the first test split, or of `valid` where there is none."""
        return next(iter(self.tests.items()), ("valid", self.valid))

    def split_names(self) -> list[str]:
        """Return the names that `split` knows."""
        return ["valid", *self.tests]
