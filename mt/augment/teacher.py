"""Teacher model: a finished run or an export that translates training text."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mt.config.data import chosen_direction
from mt.config.loading import load_config
from mt.data.lines import existing_file
from mt.decoding.translator import Alternative, Translator
from mt.errors import UserError
from mt.languages import base_language
from mt.model.device import keep_freed_memory
from mt.runs import (
    CONFIG_FILE,
    MODEL_FILE,
    check_finished,
    is_exported,
    read_description,
    read_exported,
)

_WINDOW_BATCHES = 8

BLANK, NOT_UTF_8, EMPTY, CUT = (
    "blank line",
    "line that is not UTF-8",
    "empty translation",
    "translation cut at its length limit",
)
"""Reasons for leaving a line out."""


@dataclass(frozen=True, slots=True)
class Teacher:
    """A translator with its languages and the hash of its weights."""

    run: Path
    translator: Translator
    source_language: str
    target_language: str
    model: str
    """SHA-256 of the weights; those of an ensemble are joined by `+`."""

    @classmethod
    def load(cls, run: Path, *, overrides: Sequence[str] = (), device: str = "auto") -> "Teacher":
        """Load a run as `mt translate` does; `overrides` are `decoding.KEY=VALUE`.

        Raises UserError if an exported model would have to sample.
        """
        if is_exported(run):
            decoding = load_config(run / CONFIG_FILE, overrides=overrides).decoding
            if decoding.search == "sample":
                raise UserError(
                    f"{run}: an exported model cannot sample; add `--set decoding.search=beam`, or "
                    "name the run that it was exported from"
                )
        else:
            check_finished(run)
        keep_freed_memory()
        translator = Translator.load(run, overrides=overrides, device=device)
        data = load_config(run / CONFIG_FILE).data
        direction = chosen_direction(data, translator.decoding.tag)
        model = "+".join(map(_weights, (run, *translator.decoding.ensemble)))
        return cls(run, translator, direction.source, direction.target, model)

    @property
    def window(self) -> int:
        """Lines to translate between two saves: many enough to sort by length."""
        return _WINDOW_BATCHES * self.translator.decoding.sentences_at_once

    @property
    def settings(self) -> dict[str, Any]:
        """Settings that determine the translations, by key.

        The batch size is left out: it affects only the last bits and may have to be lowered.
        """
        decoding = self.translator.decoding.model_dump(mode="json", exclude={"batch_size"})
        return {
            "model": self.model,
            "source_language": self.source_language,
            "target_language": self.target_language,
            **{f"decoding.{key}": value for key, value in decoding.items()},
        }

    def require_direction(self, source: str, target: str, *, of: str) -> None:
        """Raise UserError unless the teacher translates in this direction, that `of` something."""
        wanted = base_language(source), base_language(target)
        if wanted != (base_language(self.source_language), base_language(self.target_language)):
            raise UserError(
                f"{self.run}: translates from {self.source_language} into {self.target_language}, "
                f"{of} from {source} into {target}"
            )


def existing_text(path: Path) -> Path:
    """Return `path`; raise DataError if it does not exist and UserError if it is a pipe."""
    if not existing_file(path).is_file():
        raise UserError(f"{path}: is not a regular file; a pipe cannot be read several times")
    return path


def base_name(path: Path, language: str) -> str:
    """Return a file name without the suffixes of compression, `.txt` and `.LANGUAGE`."""
    name = path.name
    for ending in (".gz", ".xz", ".zst", ".txt", f".{language}"):
        name = name.removesuffix(ending)
    return name or "text"


def why_left_out(source: str, choice: Alternative | None = None) -> str | None:
    """Return why a line and its translation cannot be a training pair, or None."""
    if not source.strip():
        return BLANK
    try:
        source.encode()
    except UnicodeEncodeError:  # invalid bytes are lone surrogates
        return NOT_UTF_8
    if choice is None or not choice.text.strip():
        return EMPTY
    return None if all(part.hypothesis.finished for part in choice.parts) else CUT


def _weights(run: Path) -> str:
    if is_exported(run):
        return read_exported(run).model
    check_finished(run)
    return read_description(run / MODEL_FILE).weights
