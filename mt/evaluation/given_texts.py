"""Texts that a run is scored on though its config does not know them."""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from mt.config import Config
from mt.config.data import TextSource
from mt.config.directions import chosen_direction
from mt.data.lines import regular_file
from mt.decoding.run_files import EVALUATIONS_FOLDER
from mt.errors import DataError, UserError
from mt.evaluation.guard import Text, check_named_once
from mt.evaluation.run_info import ROBUSTNESS_SUFFIX
from mt.files import file_sha256


@dataclass(frozen=True, slots=True)
class GivenTexts:
    """A test set of the user's own, line N of each file answering line N of the sources."""

    sources: Path
    references: tuple[Path, ...]
    """One at least; the first is the target side of the split that `with_texts` makes."""

    def files(self) -> tuple[Path, ...]:
        """Return all of them."""
        return self.sources, *self.references

    def further(self, lines: int) -> tuple[Text, ...]:
        """Read the other references; DataError where one has not as many lines as the sources."""
        texts = tuple(Text.of_file(path) for path in self.references[1:])
        for text in texts:
            if len(text.lines) != lines:
                raise DataError(
                    f"{text.name} has {len(text.lines)} lines, {self.sources} has {lines}: line N "
                    "of one must answer line N of the other"
                )
        return texts


def with_texts(
    config: Config, run: Path, split: str | None, texts: GivenTexts, *, tag: str | None
) -> tuple[Config, str]:
    """Return the config with sources and first references as one more test split, and its name.

    Its direction is that of `tag` where the run has learnt several. Without `split` the name is
    what that of the sources begins with: `news` of `news.en.gz`. Raises UserError where the config
    has a split of that name, or other texts were scored under it, and DataError where a file is
    not there or cannot be read twice.
    """
    for path in texts.files():
        regular_file(path)
    check_named_once(texts.references)
    name = split or re.sub(r"[^\w-]+", "-", texts.sources.name.split(".")[0]) or "texts"
    another = "give these texts another name with --split NAME"
    if name in config.data.split_names():
        raise UserError(f"split `{name}` is one of the run's config; {another}")
    if re.fullmatch(r"[\w-]+", name) is None:
        raise UserError(f"split `{name}`: only letters, digits, `-` and `_` make a name")
    if lost := _would_be_lost(run / EVALUATIONS_FOLDER, name, texts.files()):
        raise UserError(f"{lost}; {another}")
    direction = chosen_direction(config.data, tag)
    source = TextSource(
        source=str(texts.sources),
        target=str(texts.references[0]),
        source_language=direction.source,
        target_language=direction.target,
        tag=tag,
    )
    data = config.data.model_copy(update={"tests": {**config.data.tests, name: source}})
    return config.model_copy(update={"data": data}), name


def _would_be_lost(folder: Path, name: str, files: Sequence[Path]) -> str:
    """Return what would be written over by a score of this name, or ""."""
    for written in (folder / f"{name}.json", folder / f"{name}{ROBUSTNESS_SUFFIX}"):
        if written.exists() and not _is_of(written, files):
            return f"{written}: is the score of other texts"
    made = {
        (folder / f"{name}.hypotheses.txt").resolve(),
        (folder / f"{name}.robustness").resolve(),
    }
    for path in files:
        if made & {path.resolve(), path.resolve().parent}:
            return f"{path}: the translations would be written over it"
    return ""


def _is_of(written: Path, files: Sequence[Path]) -> bool:
    """Say whether a score is of these files, or of others that hold the same."""
    try:
        inputs = json.loads(written.read_bytes())["inputs"]
        scored = [
            ((written.parent / each["path"]).resolve(), each["sha256"])
            for each in inputs
            if each["role"] in {"sources", "references"}
        ]
    except (ValueError, TypeError, KeyError):
        return False  # whatever it is, it is not written over
    return len(scored) == len(files) and all(
        file.resolve() == place or file_sha256(file) == sha256
        for file, (place, sha256) in zip(files, scored, strict=True)
    )
