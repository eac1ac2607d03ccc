"""Sources to translate: those of the training corpora of a config, or a text."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from mt.augment.teacher import base_name, existing_text
from mt.config.data import DataConfig
from mt.data.corpus_files import scan
from mt.data.filters import TrainingCorpus, read_cleaned_pairs
from mt.data.pairs import SentencePair
from mt.data.splits import open_training_corpora
from mt.decoding.files import read_lines
from mt.errors import UserError


@dataclass(frozen=True)
class Sources:
    """Sources, with references if they come from a config."""

    origin: DataConfig | Path
    """Corpora of a config, or a text in the source language."""

    def name(self, language: str) -> str:
        """Return the base name of output files."""
        return base_name(self.origin, language) if isinstance(self.origin, Path) else "train"

    def settings(self) -> dict[str, Any]:
        """Return the values that determine the sources; raise DataError if they are unreadable."""
        if isinstance(self.origin, Path):
            return {"input": scan(existing_text(self.origin)).sha256}
        corpora = _in_direction(self.origin)
        sums = {corpus.key: asdict(corpus.source.checksums()) for corpus in corpora}
        return {"input": sums, "cleaning": corpora[0].cleaning.fingerprint}

    def pairs(self) -> Iterator[SentencePair]:
        """Stream the sources and references; a text has the reference ""."""
        if isinstance(self.origin, Path):
            return (SentencePair(line, "") for line in read_lines(self.origin))
        return read_cleaned_pairs(_in_direction(self.origin))


def _in_direction(data: DataConfig) -> list[TrainingCorpus]:
    """Return the training corpora with the languages of the config; raise UserError without any."""
    direction = data.source_language, data.target_language
    found = [each for each in open_training_corpora(data) if each.languages == direction]
    if not found:
        raise UserError(f"no training corpus of the config is {' to '.join(direction)}")
    return found
