"""Teacher model: a finished run or an export that translates training text."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from mt.config import DecodingConfig
from mt.config.data import DataConfig
from mt.data.corpus_files import COMPRESSED, scan
from mt.data.filters import TrainingCorpus, read_cleaned_pairs
from mt.data.pairs import SentencePair
from mt.data.splits import open_training_corpora
from mt.decoding.load import StoredModel
from mt.decoding.text_files import read_lines
from mt.decoding.translator import LOOK_AHEAD_BATCHES, RankedTranslation, Translator
from mt.errors import UserError
from mt.files import require_file
from mt.languages import base_language
from mt.runs import check_finished, is_exported

BLANK, NOT_UTF_8, EMPTY, CUT = (
    "blank line",
    "line that is not UTF-8",
    "empty translation",
    "translation cut at its length limit",
)
"""Reasons for leaving a line out."""


@dataclass(frozen=True)
class Teacher:
    """A run with its languages and settings; the model is loaded on first use."""

    run: Path
    overrides: Sequence[str]
    device: str
    decoding: DecodingConfig
    source_language: str
    target_language: str
    settings: dict[str, Any]
    """Settings that determine the translations, by key."""

    @classmethod
    def read(cls, run: Path, *, overrides: Sequence[str] = (), device: str = "auto") -> "Teacher":
        """Read the config of a run; `overrides` are `decoding.KEY=VALUE`.

        Raises UserError if an exported model would have to sample.
        """
        is_export = is_exported(run)
        stored = StoredModel.read(run, overrides, finished=not is_export)
        decoding = stored.config.decoding
        if is_export and decoding.search == "sample":
            raise UserError(
                f"{run}: an exported model cannot sample; add `--set decoding.search=beam`, or "
                "name the run that it was exported from"
            )
        for member in decoding.ensemble:
            check_finished(member)
        direction = stored.config.direction
        settings = {
            "source_language": direction.source,
            "target_language": direction.target,
            **stored.settings,
        }
        languages = direction.source, direction.target
        return cls(run, overrides, device, decoding, *languages, settings)

    @cached_property
    def translator(self) -> Translator:
        """The model, loaded as `mt translate` does."""
        from mt.model.device import keep_freed_memory  # torch takes seconds to import

        keep_freed_memory()
        return Translator.load(self.run, overrides=self.overrides, device=self.device)

    @property
    def window(self) -> int:
        """Lines to translate between two saves: as many as `mt translate` reads ahead."""
        return LOOK_AHEAD_BATCHES * self.decoding.sentences_at_once

    def require_direction(self, source: str, target: str, *, of: str) -> None:
        """Raise UserError unless the teacher translates in this direction, that `of` something."""
        direction = base_language(source), base_language(target)
        if direction != (base_language(self.source_language), base_language(self.target_language)):
            raise UserError(
                f"{self.run}: translates from {self.source_language} into {self.target_language}, "
                f"{of} from {source} into {target}"
            )


def require_text(path: Path) -> Path:
    """Return `path`; raise DataError if it does not exist and UserError if it is a pipe."""
    if not require_file(path).is_file():
        raise UserError(f"{path}: is not a regular file; a pipe cannot be read several times")
    return path


def strip_suffixes(path: Path, language: str) -> str:
    """Return a file name without the suffixes of compression, `.txt` and `.LANGUAGE`."""
    name = path.name
    for ending in (*COMPRESSED, ".txt", f".{language}"):
        name = name.removesuffix(ending)
    return name or "text"


def find_source_fault(source: str) -> str | None:
    """Return the reason for not translating a line, or None."""
    if not source.strip():
        return BLANK
    try:
        source.encode()
    except UnicodeEncodeError:  # invalid bytes are lone surrogates
        return NOT_UTF_8
    return None


def find_pair_fault(source: str, choice: RankedTranslation | None = None) -> str | None:
    """Return the reason for leaving out a line and its translation, or None."""
    if reason := find_source_fault(source):
        return reason
    if choice is None or not choice.text.strip():
        return EMPTY
    return None if all(part.hypothesis.finished for part in choice.parts) else CUT


@dataclass(frozen=True)
class Sources:
    """Sources, with references if they come from a config."""

    origin: DataConfig | Path
    """Corpora of a config, or a text in the source language."""

    def choose_name(self, language: str) -> str:
        """Return the base name of output files."""
        return strip_suffixes(self.origin, language) if isinstance(self.origin, Path) else "train"

    def read_settings(self) -> dict[str, Any]:
        """Return the values that determine the sources; raise DataError if they are unreadable."""
        if isinstance(self.origin, Path):
            return {"input": scan(require_text(self.origin)).sha256}
        corpora = _open_corpora(self.origin)
        sums = {corpus.key: asdict(corpus.source.checksums()) for corpus in corpora}
        return {"input": sums, "cleaning": corpora[0].cleaning.fingerprint}

    def read_pairs(self) -> Iterator[SentencePair]:
        """Stream the sources and references; a text has the reference ""."""
        if isinstance(self.origin, Path):
            return (SentencePair(line, "") for line in read_lines(self.origin))
        return read_cleaned_pairs(_open_corpora(self.origin))


def _open_corpora(data: DataConfig) -> list[TrainingCorpus]:
    """Return the training corpora with the languages of the config; raise UserError without any."""
    direction = data.source_language, data.target_language
    corpora = [corpus for corpus in open_training_corpora(data) if corpus.languages == direction]
    if not corpora:
        raise UserError(f"no training corpus of the config is {' to '.join(direction)}")
    return corpora
