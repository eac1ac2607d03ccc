"""The passport of a score: JSON with all that it depends on, so that anyone can compute it again.

Every file is named by the SHA-256 of its bytes as they lie on the disk, and a seal over the whole
shows a change in the passport itself.
"""

import hashlib
import json
import logging
import os
import platform
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from mt import __version__
from mt.data.lines import regular_file
from mt.data.pairs import PairSource
from mt.data.sources import TextPairs
from mt.errors import UserError
from mt.evaluation.run_info import PASSPORT_SUFFIX
from mt.files import file_sha256, write_text
from mt.runs import (
    CONFIG_FILE,
    EXPORT_FILE,
    EXPORTED_MODEL,
    MODEL_FILE,
    TOKENIZER_FOLDER,
    WEIGHTS_FILE,
    exported_details,
    is_exported,
    read_description,
    read_exported,
)

PASSPORT_FORMAT = 2
"""1 named no config of a run."""

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Input:
    """What was read for a score."""

    role: str
    """`sources`, `references`, `hypotheses`, `model`, `description` (of a model), `config`,
    `tokenizer` or `variant` (sources that were changed)."""
    path: str
    """A relative one starts at the folder of the passport; of a corpus without files its name."""
    lines: int | None
    """None of what is no text."""
    sha256: str
    """Of the file, or of one side of a corpus that holds both in one place."""


def default_place(hypotheses: Path, others: Sequence[Path]) -> Path | None:
    """Return where the passport of a file of translations lies: beside it.

    None, which is told, where nothing can be written there, or one of the texts is a pipe.
    """
    texts = [hypotheses, *others]
    if not all(path.exists() for path in texts):
        return None  # whoever reads it says so
    if all(path.is_file() for path in texts) and os.access(hypotheses.parent, os.W_OK):
        return hypotheses.with_name(f"{hypotheses.name}{PASSPORT_SUFFIX}")
    _logger.warning("note: %s: no passport can be written beside it", hypotheses)
    return None


def file_input(role: str, path: Path, *, lines: int | None, beside: Path) -> Input:
    """Describe a file for a passport that lies in the folder `beside`."""
    return Input(role, str(place_beside(path, beside)), lines, file_sha256(regular_file(path)))


def corpus_inputs(source: PairSource, *, lines: int, beside: Path) -> tuple[Input, Input]:
    """Describe both sides of a corpus; the files of one that has a file for each."""
    if isinstance(source, TextPairs):
        return (
            file_input("sources", source.source, lines=lines, beside=beside),
            file_input("references", source.target, lines=lines, beside=beside),
        )
    sums = source.checksums()
    return (
        Input("sources", source.description, lines, sums.source),
        Input("references", source.target_description, lines, sums.target),
    )


def model_inputs(run: Path, ensemble: Sequence[Path], *, beside: Path) -> Iterator[Input]:
    """Describe the model of a run or of an exported folder, its config, ensemble and tokenizer.

    The weights are not read: translating has held them against their SHA-256 already.
    """
    for member in (run, *ensemble):
        if is_exported(member):
            name, sha256, description = EXPORTED_MODEL, read_exported(member).model, EXPORT_FILE
            for path in exported_details(member):
                yield file_input("description", path, lines=None, beside=beside)
        else:
            description = MODEL_FILE
            name, sha256 = WEIGHTS_FILE, read_description(member / MODEL_FILE).weights
        yield Input("model", str(place_beside(member / name, beside)), None, sha256)
        yield file_input("description", member / description, lines=None, beside=beside)
        yield file_input("config", member / CONFIG_FILE, lines=None, beside=beside)
    for path in sorted((run / TOKENIZER_FOLDER).glob("*")):
        yield file_input("tokenizer", path, lines=None, beside=beside)


def place_beside(path: Path, folder: Path) -> Path:
    """Return a relative path as seen from `folder`, an absolute one as it is.

    Where `folder` is reached through a symbolic link, `..` leads elsewhere than its name says.
    """
    if path.is_absolute():
        return path
    seen = Path(os.path.relpath(path, folder))
    if (folder / seen).resolve() == path.resolve():
        return seen
    return Path(os.path.relpath(path.resolve(), folder.resolve()))


def write_passport(path: Path, record: Mapping[str, Any], inputs: Sequence[Input]) -> None:
    """Write `record`, the inputs and the versions as sealed JSON."""
    whole = {
        "format": PASSPORT_FORMAT,
        **record,
        "inputs": [asdict(each) for each in inputs],
        "versions": _versions(),
    }
    write_text(path, _text({**whole, "seal": _seal(whole)}))


def check_place(path: Path) -> None:
    """Raise UserError where a file is there that is no passport: it is not written over."""
    if not path.parent.is_dir():
        raise UserError(f"{path}: there is no folder {path.parent}")
    if not path.exists():
        return
    try:
        known = "seal" in json.loads(path.read_bytes())
    except (ValueError, TypeError, IsADirectoryError):
        known = False
    if not known:
        raise UserError(f"{path}: exists and is no passport of mt, so it is not written over")


def read_passport(path: Path) -> dict[str, Any] | None:
    """Return what a passport holds, None where not every byte is as it was written."""
    content = path.read_bytes()
    if os.linesep != "\n":
        content = content.replace(os.linesep.encode(), b"\n")
    try:
        record = json.loads(content)
        seal = record.pop("seal")
    except (ValueError, TypeError, KeyError, AttributeError):
        return None
    whole = seal == _seal(record) and content == _text({**record, "seal": seal}).encode()
    return record if whole else None


def _seal(record: Mapping[str, Any]) -> str:
    return hashlib.sha256(_text(record).encode()).hexdigest()


def _text(record: Mapping[str, Any]) -> str:
    return json.dumps(record, ensure_ascii=False, indent=2) + "\n"


def _versions() -> dict[str, str]:
    return {
        "mt": __version__,
        "python": platform.python_version(),
        "sacrebleu": version("sacrebleu"),
    }
