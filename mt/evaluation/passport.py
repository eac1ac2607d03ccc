"""Passport of a score: JSON with the scores, the settings and the SHA-256 of every input.

A relative path in a passport starts at the folder of the passport.
"""

import logging
import os
import platform
from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from mt import __version__
from mt.errors import RunError, UserError
from mt.evaluation.run_info import PASSPORT_SUFFIX
from mt.files import hash_file, read_json, require_regular_file, write_json
from mt.runs import (
    CONFIG_FILE,
    EXPORT_FILE,
    EXPORTED_MODEL,
    MODEL_FILE,
    TOKENIZER_FOLDER,
    WEIGHTS_FILE,
    ModelRecord,
    exported_details,
    is_exported,
)

PASSPORT_FORMAT = 3
InputPath = tuple[str, Path]
"""Role of a file (`sources`, `references`, `hypotheses`, `model`, `config`, `tokenizer`), path."""

_logger = logging.getLogger(__name__)


def passport_beside(hypotheses: Path, others: Sequence[Path]) -> Path | None:
    """Return the path of the passport of a file of translations: next to it.

    Return None with a warning if a text is a pipe or the folder is not writable. Raises UserError
    if the path is another file.
    """
    if not all(path.is_file() for path in (hypotheses, *others)) or not os.access(
        hypotheses.parent, os.W_OK
    ):
        _logger.warning("note: %s: no passport can be written next to this file", hypotheses)
        return None
    path = hypotheses.with_name(f"{hypotheses.name}{PASSPORT_SUFFIX}")
    if path.exists():
        _read_passport(path)
    return path


def list_model_files(run: Path, ensemble: Sequence[Path] = ()) -> Iterator[InputPath]:
    """Yield the models, configs and tokenizer of a run or export, and of its ensemble."""
    for member in (run, *ensemble):
        if is_exported(member):
            paths = [member / EXPORTED_MODEL, member / EXPORT_FILE, *exported_details(member)]
        else:
            weights = ModelRecord.read(member).folder / WEIGHTS_FILE
            paths = [weights, member / MODEL_FILE]
        yield from (("model", path) for path in paths)
        yield "config", member / CONFIG_FILE
    yield from (("tokenizer", path) for path in sorted((run / TOKENIZER_FOLDER).glob("*")))


def write_passport(path: Path, record: Mapping[str, Any], inputs: Sequence[InputPath]) -> None:
    """Write `record`, the hashes of the inputs and the versions of the programs."""
    files = [
        {"role": role, "path": _from_folder(path.parent, file), "sha256": hash_file(file)}
        for role, file in inputs
    ]
    versions = {"mt": __version__, "python": platform.python_version()}
    write_json(
        path,
        {
            "format": PASSPORT_FORMAT,
            **record,
            "inputs": files,
            "versions": {**versions, "sacrebleu": version("sacrebleu")},
        },
    )


def check_passport(path: Path) -> list[str]:
    """Return one line for each input of a passport that is missing or has changed.

    Raises DataError if the passport is missing, UserError if it is another file or format.
    """
    problems = []
    for name, stated in _read_passport(require_regular_file(path)).items():
        file = Path(os.path.normpath(path.resolve().parent / name))
        if not file.is_file():
            problems.append(f"{file}: no such file")
        elif (sha256 := hash_file(file)) != stated:
            problems.append(
                f"{file}: has changed; its SHA-256 is {sha256}, in the passport {stated}"
            )
    return problems


def _read_passport(path: Path) -> dict[str, str]:
    """Return the SHA-256 of each file; raise UserError for another file or format."""
    try:
        record = read_json(path, dict[str, Any])
        if record["format"] != PASSPORT_FORMAT:
            raise UserError(
                f"{path}: has format {record['format']}, but this version of mt reads format "
                f"{PASSPORT_FORMAT}; evaluate again"
            )
        return {item["path"]: item["sha256"] for item in record["inputs"]}
    except (RunError, KeyError, TypeError):
        raise UserError(f"{path}: is not a passport of mt") from None


def _from_folder(folder: Path, path: Path) -> str:
    """Return a path relative to a folder, through no symbolic link; `..` would lead elsewhere."""
    folder, path = folder.resolve(), path.resolve()
    return os.path.relpath(path, folder) if path.anchor == folder.anchor else str(path)
