"""Where sentence pairs come from."""

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from mt.config.base import Section

Checksum = Annotated[str, Field(pattern=r"^([0-9a-f]{64}|unverified)$")]
"""SHA-256 of the decompressed text in hexadecimal, or `unverified`."""

Revision = Annotated[str, Field(pattern=r"^[0-9a-f]{40}$")]
"""A commit of a hub repository: 40 hexadecimal digits."""


class CorpusSource(Section):
    """What all kinds of corpus share."""

    corpus: Annotated[str, Field(pattern=r"^[\w.-]+(/[\w.-]+)+$")] | None = None
    """`name/split`: looked for as $MT_CORPORA/name/split.<language>[.gz] before anything else."""
    sha256_source: Checksum = "unverified"
    """SHA-256 of the decompressed source side; `unverified` records it in the run folder."""
    sha256_target: Checksum = "unverified"
    """SHA-256 of the decompressed target side; `unverified` records it in the run folder."""


class TextSource(CorpusSource):
    """Two files whose line N translate each other: plain, .gz, .xz or .zst; a path or a URL."""

    format: Literal["text"] = "text"
    """Aligned plain text."""
    source: str | None = None
    """Path or URL of the source side; may be left out where `corpus` finds the files."""
    target: str | None = None
    """Path or URL of the target side; may be left out where `corpus` finds the files."""


class TsvSource(CorpusSource):
    """One file with a pair per line, columns separated by a tab; no quoting, no header."""

    format: Literal["tsv"]
    """Tab-separated values."""
    path: str
    """Path or URL; plain, .gz, .xz or .zst."""
    source_column: Annotated[int, Field(ge=0)] = 0
    """Column of the source side, from 0."""
    target_column: Annotated[int, Field(ge=0)] = 1
    """Column of the target side, from 0."""


class RecordSource(CorpusSource):
    """What the kinds of corpus that hold named fields share."""

    source_field: str | None = None
    """Field of the source side, dots for nesting; default `translation.<language>`."""
    target_field: str | None = None
    """Field of the target side, dots for nesting; default `translation.<language>`."""


class JsonlSource(RecordSource):
    """One JSON object per line."""

    format: Literal["jsonl"]
    """JSON lines."""
    path: Path
    """The file."""


class ParquetSource(RecordSource):
    """A Parquet file."""

    format: Literal["parquet"]
    """Parquet."""
    path: Path
    """The file."""


class FolderSource(RecordSource):
    """A local folder that `datasets` can load; one that needs a script is refused."""

    format: Literal["folder"]
    """A dataset folder."""
    path: Path
    """The folder."""
    split: str = "train"
    """Which split of it."""


class HubSource(RecordSource):
    """A dataset of the Hugging Face hub at a pinned commit; one that needs a script is refused."""

    format: Literal["hub"]
    """A hub dataset."""
    name: str
    """`owner/name`."""
    revision: Revision
    """The commit, so that the same recipe reads the same rows for ever."""
    subset: str | None = None
    """The configuration of the dataset, where it has several."""
    split: str = "train"
    """Which split of it."""


Source = Annotated[
    TextSource | TsvSource | JsonlSource | ParquetSource | FolderSource | HubSource,
    Field(discriminator="format"),
]


class DataConfig(Section):
    """Languages, corpora and their splits."""

    source_language: Annotated[str, Field(pattern=r"^[a-z]{2,3}(-[A-Za-z0-9]+)*$")]
    """Language code of the source side, such as `en`."""
    target_language: Annotated[str, Field(pattern=r"^[a-z]{2,3}(-[A-Za-z0-9]+)*$")]
    """Language code of the target side; it selects the tokenizer of BLEU."""
    train: Source
    """The pairs to learn from."""
    valid: Source
    """The pairs that choose the checkpoint."""
    tests: dict[str, Source] = {}
    """The pairs to score, by name; `mt evaluate RUN --split NAME`."""
    max_pieces: Annotated[int, Field(ge=2)] = 256
    """Training pairs with more pieces on a side, end mark included, are left out and counted."""

    def split(self, name: str) -> Source | None:
        """Return the source of `valid` or of a test split, or None where no such split is."""
        return self.valid if name == "valid" else self.tests.get(name)

    def split_names(self) -> list[str]:
        """Return the names that `split` knows."""
        return ["valid", *self.tests]
