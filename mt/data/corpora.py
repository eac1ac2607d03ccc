"""Corpora by name in the folder $MT_CORPORA: `<name>/<split>.<language>[.gz]`."""

import os
from dataclasses import dataclass
from pathlib import Path

from mt.config.data import CorpusSource, DataConfig
from mt.errors import DataError


@dataclass(frozen=True, slots=True)
class CorpusFiles:
    """The two sides of a corpus."""

    source: Path
    target: Path


def supplied_files(source: CorpusSource, data: DataConfig) -> CorpusFiles | None:
    """Return the files that $MT_CORPORA holds for `source.corpus`, or None where it holds none.

    Raises `DataError` where it holds one side only, or names a folder that is not there.
    """
    named = os.environ.get("MT_CORPORA")
    if not named or source.corpus is None:
        return None
    root = Path(named).expanduser()
    if not root.is_dir():
        raise DataError(f"{root}: $MT_CORPORA names this folder, but there is none")
    stem = root / source.corpus
    left = _plain_or_gz(stem, data.source_language)
    right = _plain_or_gz(stem, data.target_language)
    if left and right:
        return CorpusFiles(left, right)
    if left or right:
        missing = data.target_language if left else data.source_language
        raise DataError(f"{stem}.{missing}[.gz]: no such file, though {left or right} is there")
    return None


def _plain_or_gz(stem: Path, language: str) -> Path | None:
    names = (f"{stem.name}.{language}", f"{stem.name}.{language}.gz")
    paths = (stem.with_name(name) for name in names)
    return next((path for path in paths if path.is_file()), None)


def where_looked(corpus: str, language: str) -> str:
    """Say where one side of a corpus was looked for in vain."""
    named = os.environ.get("MT_CORPORA")
    if not named:
        return f"`{corpus}.{language}[.gz]` is looked for in $MT_CORPORA, which is not set"
    return f"{Path(named).expanduser() / corpus}.{language}[.gz] ($MT_CORPORA) is not there"


def supply_hint(source: CorpusSource) -> str:
    """Say how $MT_CORPORA can stand in for a corpus out of reach; "" where it has no name."""
    return f"; $MT_CORPORA can supply it as {source.corpus}.<language>[.gz]" * bool(source.corpus)
