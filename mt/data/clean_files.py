"""Cleaned training corpora as text files, and the removed pairs as a third file."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import TextIO

from tqdm import tqdm

from mt.config.data import DataConfig
from mt.data.filters import Judged, TrainingCorpus, open_training_corpora
from mt.errors import ConfigError, DataError
from mt.files import aside, put_in_place

REMOVED_FILE = "removed.tsv"


@dataclass(frozen=True, slots=True)
class CleanedFiles:
    """Files and counts of one cleaned corpus."""

    key: str
    """Key below `data`: `train`, or `train.corpora.NAME`."""
    files: tuple[Path, ...]
    total: int
    changed: int
    """Remaining pairs that a change of text or noise has altered."""
    taken: dict[str, int]
    """Removed pairs by filter, in their order, zeros included."""
    noisy: dict[str, int]
    """Sources with noise, by kind."""

    @property
    def left(self) -> int:
        """Remaining pairs."""
        return self.total - sum(self.taken.values())


def write_cleaned(
    data: DataConfig, folder: Path, *, removed_file: str | None = None
) -> tuple[CleanedFiles, ...]:
    """Write the cleaned training pairs into a new folder, which appears when all is written.

    The files are `train.<language>`, one text per line, or `NAME.<language>` for each corpus of a
    mixture. `removed_file`, prefixed by `NAME.` in a mixture, gets a tab-separated line for each
    removed pair: its number from 1, the filter, the original source and target with tabs replaced
    by spaces. Raises `ConfigError` if `data.cleaning` is off, `DataError` if the folder exists, a
    corpus is unreadable, or no pair of it remains.
    """
    corpora = open_training_corpora(data)
    if not all(corpus.cleaning.is_on for corpus in corpora):
        raise ConfigError(
            "`data.cleaning` asks for nothing: set one of its keys; `mt data check` suggests some"
        )
    names = [_names(corpus, removed_file) for corpus in corpora]
    _check_folder(folder)
    with aside(folder) as temporary:
        tallies = [
            _write_corpus(corpus, [temporary / name for name in each])
            for corpus, each in zip(corpora, names, strict=True)
        ]
        put_in_place(temporary, folder)
    return tuple(
        CleanedFiles(
            corpus.key,
            tuple(folder / name for name in each),
            tally.total,
            tally.changed,
            {name: tally.taken[name] for name in corpus.cleaning.filters},
            {name: tally.noisy[name] for name in corpus.cleaning.noises},
        )
        for corpus, each, tally in zip(corpora, names, tallies, strict=True)
    )


@dataclass(slots=True)
class _Tally:
    total: int
    changed: int
    taken: Counter[str]
    noisy: Counter[str]


def _write_corpus(corpus: TrainingCorpus, files: Sequence[Path]) -> _Tally:
    with _open(files) as (source, target, *removed):
        tally = _write(corpus.cleaning.judge(corpus.source.pairs()), [source, target], removed)
    if tally.total == tally.taken.total():
        raise DataError(
            f"{corpus.source.description}: the cleaning leaves no pair of {tally.total:,}"
        )
    return tally


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


def _names(corpus: TrainingCorpus, removed_file: str | None) -> list[str]:
    """Return the file names of a corpus: source, target, and removed pairs if asked for."""
    name = corpus.key.rpartition(".")[2]  # `train`, or the name in a mixture
    data = corpus.cleaning.data
    if data.source_language == data.target_language:
        raise ConfigError(
            f"`data.source_language` and `data.target_language` are both "
            f"{data.source_language}: the two files would have one name"
        )
    names = [f"{name}.{language}" for language in (data.source_language, data.target_language)]
    if removed_file:
        names.append(removed_file if corpus.key == "train" else f"{name}.{removed_file}")
    return names


def _check_folder(folder: Path) -> None:
    if folder.exists():
        raise DataError(f"{folder}: exists already; name a folder that is not there yet")
    if not folder.parent.is_dir():
        raise DataError(f"{folder}: there is no folder {folder.parent} to make it in")


@contextmanager
def _open(files: Iterable[Path]) -> Iterator[list[TextIO]]:
    with ExitStack() as stack:
        yield [
            stack.enter_context(path.open("w", encoding="utf-8", newline="\n")) for path in files
        ]
