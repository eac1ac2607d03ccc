"""The cleaned training split as two plain text files, and what was taken out as a third."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import TextIO

from tqdm import tqdm

from mt.config.data import DataConfig, MixtureSource
from mt.data.cleaning import Cleaning, Judged
from mt.data.sources import open_source
from mt.errors import ConfigError, DataError, listed
from mt.files import aside, put_in_place

REMOVED_FILE = "removed.tsv"


@dataclass(frozen=True, slots=True)
class CleanedFiles:
    """What `write_cleaned` has written, and counts of pairs."""

    files: tuple[Path, ...]
    total: int
    changed: int
    """Pairs that stay, in another form."""
    taken: dict[str, int]
    """By filter, in the order in which they are asked; 0 where one found nothing."""
    noisy: dict[str, int]
    """By kind of noise: sources that have got it."""

    @property
    def left(self) -> int:
        """Pairs that stay."""
        return self.total - sum(self.taken.values())


def write_cleaned(
    data: DataConfig, folder: Path, *, removed_file: str | None = None
) -> CleanedFiles:
    """Write the training pairs as `data.cleaning` leaves them into a new folder.

    The files are `train.<language>`, a text a line. `removed_file` in the same folder gets a line
    for each pair that is taken out: its number from 1, the filter, source and target as they were,
    with tabs between, and spaces for tabs in them. The folder appears when all is written. Raises
    `ConfigError` where the config asks for nothing, and `DataError` where the folder is there
    already, nothing is left, or the corpus cannot be read.
    """
    cleaning, corpus = Cleaning(data), open_source(data.train, data)
    if not cleaning.is_on:
        raise ConfigError("`data.cleaning` asks for nothing: set one of its keys")
    if isinstance(data.train, MixtureSource):
        raise ConfigError(
            f"`data.train` is a mixture of {listed(data.train.corpora)}: give one of them with "
            "`--set data.train={...}`, and clean it by itself, as training does"
        )
    names = _names(data)
    _check_folder(folder)
    with aside(folder) as temporary:
        with _open(temporary, names) as sides, _open(temporary, [removed_file]) as removed:
            tally = _write(cleaning.judge(corpus.pairs()), sides, removed)
        if tally.total == tally.taken.total():
            raise DataError(f"{corpus.description}: the cleaning leaves no pair of {tally.total:,}")
        put_in_place(temporary, folder)
    taken = {name: tally.taken[name] for name in cleaning.filters}
    written = tuple(folder / name for name in (*names, removed_file) if name)
    noisy = {name: tally.noisy[name] for name in cleaning.noises}
    return CleanedFiles(written, tally.total, tally.changed, taken, noisy)


@dataclass(slots=True)
class _Tally:
    total: int
    changed: int
    taken: Counter[str]
    noisy: Counter[str]


def _write(judged: Iterable[Judged], sides: list[TextIO], removed: list[TextIO]) -> _Tally:
    tally = _Tally(0, 0, Counter(), Counter())
    for each in tqdm(judged, desc="cleaning", unit=" pairs", unit_scale=True, disable=None):
        tally.total += 1
        if each.taken_by is None:
            tally.changed += each.pair != each.original
            tally.noisy.update(each.noise)
            for file, text in zip(sides, (each.pair.source, each.pair.target), strict=True):
                file.write(f"{text}\n")
            continue
        tally.taken[each.taken_by] += 1
        texts = (text.replace("\t", " ") for text in astuple(each.original))
        for file in removed:
            file.write("\t".join([str(tally.total), each.taken_by, *texts]) + "\n")
    return tally


def _names(data: DataConfig) -> list[str | None]:
    names: list[str | None] = [
        f"train.{language}" for language in (data.source_language, data.target_language)
    ]
    if names[0] == names[1]:
        raise ConfigError(
            f"`data.source_language` and `data.target_language` are both "
            f"{data.source_language}: the two files would have one name"
        )
    return names


def _check_folder(folder: Path) -> None:
    if folder.exists():
        raise DataError(f"{folder}: exists already; name a folder that is not there yet")
    if not folder.parent.is_dir():
        raise DataError(f"{folder}: there is no folder {folder.parent} to make it in")


@contextmanager
def _open(folder: Path, names: Sequence[str | None]) -> Iterator[list[TextIO]]:
    """Open the files that have a name for writing."""
    with ExitStack() as stack:
        paths = [folder / name for name in names if name]
        yield [
            stack.enter_context(path.open("w", encoding="utf-8", newline="\n")) for path in paths
        ]
