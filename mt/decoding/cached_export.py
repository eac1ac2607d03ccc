"""Exported models: opening a folder, and a cache of exports that `mt` makes itself. No torch."""

import hashlib
import json
import logging
import shutil
import subprocess
import sys
from dataclasses import dataclass
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from mt.config import ModelConfig
from mt.data.corpus_files import cache_folder
from mt.data.tokenizer import Tokenizer
from mt.errors import UserError, install_hint, listed
from mt.files import locked, sync_folder, write_text
from mt.runs import check_exported_model, read_exported

if TYPE_CHECKING:
    from mt.decoding.ctranslate2_engine import CTranslate2Engine

_logger = logging.getLogger(__name__)
_FORMAT = 1
"""To be raised where the export of a run changes."""
NOT_EXPORTED = "not exported: "
"""Beginning of the message of `mt export` where the translations differ."""


def require_ctranslate2() -> None:
    """Raise UserError with an install command if CTranslate2 is not installed."""
    if find_spec("ctranslate2") is None:
        raise UserError(f"exported models need CTranslate2: {install_hint('ctranslate2')}")


def open_export(folder: Path, tokenizer: Tokenizer, device: str) -> "CTranslate2Engine":
    """Load an exported model after a check of its files; `device` is auto, cuda or cpu."""
    from mt.decoding.ctranslate2_engine import CTranslate2Engine

    exported = read_exported(folder)
    check_exported_model(folder, exported)
    where, positions = _ctranslate2_device(device), exported.positions
    return CTranslate2Engine(folder, device=where, tokenizer=tokenizer, positions=positions)


def _ctranslate2_device(name: str) -> str:
    import ctranslate2

    available = ["cuda", "cpu"] if ctranslate2.get_cuda_device_count() else ["cpu"]
    if name == "auto":
        return available[0]
    if name not in available:
        raise UserError(f"device `{name}`: CTranslate2 has {listed(available)} on this machine")
    return name


@dataclass(frozen=True, slots=True)
class CachedExport:
    """Export of a finished run to CTranslate2 in fp32, in the folder of $MT_CACHE."""

    run: Path
    model: ModelConfig
    weights: str
    """SHA-256."""
    tokenizer: Tokenizer
    device: str
    """Device to load it on: auto, cuda or cpu."""

    @property
    def folder(self) -> Path:
        """Folder for this model and this version of CTranslate2."""
        model = self.weights, self.tokenizer.fingerprint, self.model.model_dump(mode="json")
        key = json.dumps([_FORMAT, version("ctranslate2"), *model])
        name = hashlib.sha256(key.encode()).hexdigest()[:32]
        return cache_folder() / "ctranslate2" / name

    def exists(self) -> bool:
        """Return True if CTranslate2 is installed and the export has been made."""
        return find_spec("ctranslate2") is not None and self.folder.is_dir()

    def open(self) -> "CTranslate2Engine":
        """Load the export; make it first if it is missing.

        Raises UserError without CTranslate2, and if the run cannot be exported or the export
        translates differently, which is recorded, so that it is not made again. The folder appears
        when it is complete; other processes wait meanwhile.
        """
        require_ctranslate2()
        folder = self.folder
        failure = folder.with_name(f"{folder.name}.failure")
        try:
            folder.parent.mkdir(parents=True, exist_ok=True)
            if not folder.is_dir():
                with locked(folder.with_name(f"{folder.name}.lock")):
                    if not folder.is_dir() and not failure.is_file():
                        self._make(folder, failure)
        except OSError as error:
            raise UserError(f"{error.filename or folder}: {error.strerror or error}") from error
        if failure.is_file():
            raise UserError(
                f"{self.run}: {failure.read_text(encoding='utf-8').strip()} (recorded in {failure})"
            )
        return open_export(folder, self.tokenizer, self.device)

    def _make(self, folder: Path, failure: Path) -> None:
        """Run `mt export` and move its result to `folder`, or record in `failure` why it failed."""
        for left in folder.parent.glob(f".{folder.name}.*"):  # by a process that was killed
            shutil.rmtree(left, ignore_errors=True)
        _logger.info("%s: exporting to CTranslate2 once, for faster searches", self.run)
        with TemporaryDirectory(prefix=f".{folder.name}.", dir=folder.parent) as temporary:
            made = Path(temporary) / "model"
            status, message = run_export(self.run, made)
            if status and message.startswith(NOT_EXPORTED):
                write_text(failure, f"{message}\n")
            elif status:
                raise UserError(f"{self.run}: {message}")
            elif differing := _differing_lines(made):
                write_text(failure, f"{differing} lines of the sample differ from the run's\n")
            else:
                made.rename(folder)
                sync_folder(folder.parent)


def _differing_lines(folder: Path) -> int:
    """Return how many lines of the sample an export translates differently: a few are allowed."""
    parity = read_exported(folder).parity
    return int(parity["sentences"] - parity["identical"])


def run_export(run: Path, output: Path) -> tuple[int, str]:
    """Run `mt export` on the CPU; return its exit status and the last line of its messages.

    In a process of its own, whose memory is returned, and whose crash is an exit status.
    """
    command = [sys.executable, "-m", "mt", "export", str(run), "--to", "ctranslate2"]
    command += ["--device", "cpu", "--output", str(output)]
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )
    *_, message = ["`mt export` failed", *done.stderr.strip().splitlines()]
    return done.returncode, message
