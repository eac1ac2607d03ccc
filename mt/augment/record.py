"""What a work of `mt.augment` is, and how far it has come: a small JSON file beside its texts."""

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from mt.augment.shard import Shard
from mt.errors import DataError, UserError
from mt.files import write_json

UNFINISHED = ".part"
_FORMAT = 1
_SHOWN_CHARACTERS = 40


@dataclass(frozen=True, slots=True)
class Job:
    """What is to be written where, and all that decides about it."""

    folder: Path
    name: str
    languages: tuple[str, str]
    """Of the two sides of the corpus to write."""
    run: Path
    settings: Mapping[str, Any]
    """All that decides what is written, by key, as JSON has it."""
    total: int
    """Lines of the whole input."""
    window: int
    """Lines between two places to go on from; what is read together."""
    shard: Shard

    def __post_init__(self) -> None:
        if self.shard.of > self.total:
            raise UserError(f"--shard: {self.shard.of} parts of {self.total} lines are too many")
        if self.languages[0] == self.languages[1]:
            raise UserError(
                f"{self.run}: translates from {self.languages[0]} into the same language; the two "
                "files would have one name"
            )

    @property
    def texts(self) -> tuple[Path, Path]:
        """The two text files of the shard."""
        name, (left, right) = self.shard.named(self.name), self.languages
        return self.folder / f"{name}.{left}", self.folder / f"{name}.{right}"

    @property
    def record(self) -> Path:
        """The JSON file of the shard, which is there once the shard is finished."""
        return self.folder / f"{self.shard.named(self.name)}.json"

    @property
    def lines(self) -> range:
        """The places of the shard's lines in the input, from 0."""
        return self.shard.lines(self.total)

    def missing_shards(self) -> list[Shard]:
        """Return the shards that are not finished."""
        every = [replace(self, shard=shard) for shard in self.shard.all()]
        return [job.shard for job in every if not job.record.is_file()]


@dataclass(frozen=True, slots=True)
class Record:
    """The contents of the JSON file."""

    run: str
    settings: Mapping[str, Any]
    lines: int
    """Lines of the input that the shard is made of."""
    done: int = 0
    """How many of them are dealt with."""
    bytes: tuple[int, int] = (0, 0)
    """What the two texts had when so many were."""
    counts: Mapping[str, int] = field(default_factory=dict)
    """Pairs that were written, and lines that were left out, by reason."""


def unfinished(path: Path) -> Path:
    """Return the name that a file has as long as the work goes on."""
    return path.with_name(f"{path.name}{UNFINISHED}")


def write_record(path: Path, record: Record) -> None:
    """Write a record as a whole."""
    write_json(path, {"format": _FORMAT, **asdict(record)})


def read_record(path: Path) -> Record:
    """Read a record; raise DataError where it is damaged or none of ours."""
    try:
        content = json.loads(path.read_bytes())
        if content.pop("format") != _FORMAT:
            raise DataError(f"{path}: of another format than this version of mt knows")
        left, right = content.pop("bytes")
        return Record(**content, bytes=(int(left), int(right)))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DataError(f"{path}: damaged, or not of such a work; name another --out") from error


def check_folder(job: Job) -> None:
    """Raise UserError, naming what differs, where another work has been begun in the folder."""
    for path in sorted(job.folder.glob("*.json*")):
        if path.name.endswith((".json", f".json{UNFINISHED}")):
            with suppress(FileNotFoundError):  # another shard has just been finished
                _check_same(path, read_record(path), job)


def _check_same(path: Path, record: Record, job: Job) -> None:
    if not record.done:  # nothing would be lost
        return
    # Through JSON, which knows no tuples.
    old, new = record.settings, json.loads(json.dumps(dict(job.settings)))
    for key in [*old, *(key for key in new if key not in old)]:
        if old.get(key) == new.get(key):
            continue
        of = f" (of {record.run} and of {job.run})" if key == "model" else ""
        raise UserError(
            f"{path}: was begun with `{key}` {_shown(old.get(key))}, now it is "
            f"{_shown(new.get(key))}{of}; a folder holds one work: name another --out"
        )


def _shown(value: object) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}..."
