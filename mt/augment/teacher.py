"""The model that makes training pairs: a finished run, or what was exported of one."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mt.config.data import chosen_direction
from mt.config.loading import load_config
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
"""Why a line is left out."""


@dataclass(frozen=True, slots=True)
class Teacher:
    """A translator, and what is to be known of it."""

    run: Path
    translator: Translator
    source_language: str
    target_language: str
    model: str
    """The SHA-256 of its weights; those of an ensemble, with `+` between."""

    @classmethod
    def load(cls, run: Path, *, overrides: Sequence[str] = (), device: str = "auto") -> "Teacher":
        """Load a run as `mt translate` does; `overrides` are `decoding.KEY=VALUE`."""
        if is_exported(run):
            _refuse_sampling(run, overrides)
        keep_freed_memory()
        translator = Translator.load(run, overrides=overrides, device=device)
        data = load_config(run / CONFIG_FILE).data
        direction = chosen_direction(data, translator.decoding.tag)
        model = "+".join(map(_weights, (run, *translator.decoding.ensemble)))
        return cls(run, translator, direction.source, direction.target, model)

    @property
    def window(self) -> int:
        """Lines that are read together: enough to sort by length, few enough to lose in a kill."""
        return _WINDOW_BATCHES * self.translator.decoding.sentences_at_once

    @property
    def settings(self) -> dict[str, Any]:
        """What decides about its translations, by key.

        Not the batch size, which does so in the last bits alone, and may have to be less.
        """
        decoding = self.translator.decoding.model_dump(mode="json", exclude={"batch_size"})
        return {
            "model": self.model,
            "source_language": self.source_language,
            "target_language": self.target_language,
            **{f"decoding.{key}": value for key, value in decoding.items()},
        }

    def require_direction(self, source: str, target: str, *, of: str) -> None:
        """Raise UserError unless it translates between these languages, those `of` something."""
        wanted = base_language(source), base_language(target)
        if wanted != (base_language(self.source_language), base_language(self.target_language)):
            raise UserError(
                f"{self.run}: translates from {self.source_language} into {self.target_language}, "
                f"{of} from {source} into {target}"
            )


def read_twice(path: Path) -> Path:
    """Return the path of a plain file; raise UserError for a pipe, which can be read only once."""
    if path.exists() and not path.is_file() and not path.is_dir():
        raise UserError(f"{path}: is read several times, so it must be a file and no pipe")
    return path


def plain_name(path: Path, language: str) -> str:
    """Return the name of a text file without what tells its compression and its language."""
    name = path.name
    for ending in (".gz", ".xz", ".zst", ".txt", f".{language}"):
        name = name.removesuffix(ending)
    return name or "text"


def why_left_out(source: str, choice: Alternative | None) -> str | None:
    """Return the reason why a line and its translation are no training pair, or None."""
    if not source.strip():
        return BLANK
    try:
        source.encode()
    except UnicodeEncodeError:  # bytes that are not UTF-8, kept as lone surrogates
        return NOT_UTF_8
    if choice is None or not choice.text.strip():
        return EMPTY
    return None if all(part.hypothesis.finished for part in choice.parts) else CUT


def usable(source: str, choices: Sequence[Alternative]) -> Iterator[Alternative]:
    """Yield the translations of a line that may be trained on."""
    return (choice for choice in choices if why_left_out(source, choice) is None)


def _refuse_sampling(exported: Path, overrides: Sequence[str]) -> None:
    decoding = load_config(exported / CONFIG_FILE, overrides=overrides).decoding
    if decoding.search == "sample":
        raise UserError(
            f"{exported}: an exported model does not sample; add `--set decoding.search=beam`, or "
            "name the run that it was exported from"
        )


def _weights(run: Path) -> str:
    if is_exported(run):
        return read_exported(run).model
    check_finished(run)
    return read_description(run / MODEL_FILE).weights
