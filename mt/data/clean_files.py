"""Cleaned training corpora as text files, and the removed pairs as a third file."""

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import astuple, dataclass, replace
from pathlib import Path

from tqdm import tqdm

from mt.config.data import DataConfig
from mt.data.filters import TrainingCorpus
from mt.data.held_out import open_training_corpora
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
    """Remaining pairs that a change of text has altered."""
    taken: dict[str, int]
    """Removed pairs by filter, in their order, zeros included."""

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
    if folder.exists():
        raise DataError(f"{folder}: exists already; name a folder that is not there yet")
    if not folder.parent.is_dir():
        raise DataError(f"{folder}: there is no folder {folder.parent} to make it in")
    with aside(folder) as temporary:
        cleaned = [
            _write(corpus, [temporary / name for name in each])
            for corpus, each in zip(corpora, names, strict=True)
        ]
        put_in_place(temporary, folder)
    return tuple(
        replace(each, files=tuple(folder / path.name for path in each.files)) for each in cleaned
    )


def _write(corpus: TrainingCorpus, files: Sequence[Path]) -> CleanedFiles:
    total = changed = 0
    taken = dict.fromkeys(corpus.cleaning.filters, 0)
    judged = corpus.cleaning.judge(corpus.source.pairs())
    with ExitStack() as stack:
        sources, targets, *removed = (
            stack.enter_context(path.open("w", encoding="utf-8", newline="\n")) for path in files
        )
        for each in tqdm(judged, desc="cleaning", unit=" pairs", unit_scale=True, disable=None):
            total += 1
            if each.taken_by is None:
                changed += each.pair != each.original
                sources.write(f"{each.pair.source}\n")
                targets.write(f"{each.pair.target}\n")
                continue
            taken[each.taken_by] += 1
            texts = (text.replace("\t", " ") for text in astuple(each.original))
            for file in removed:
                file.write("\t".join([str(total), each.taken_by, *texts]) + "\n")
    if total == sum(taken.values()):
        raise DataError(f"{corpus.source.description}: the cleaning leaves no pair of {total:,}")
    return CleanedFiles(corpus.key, tuple(files), total, changed, taken)


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
