"""Files of a run folder and of an export, and their verification; without torch or CTranslate2."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from mt.errors import RunError
from mt.files import (
    check_sha256,
    hash_file,
    read_json,
    read_versioned,
    require_run_file,
    validate_values,
    write_json,
)

CONFIG_FILE, MODEL_FILE, WEIGHTS_FILE = "config.yaml", "model.json", "model.safetensors"
ADAPTER_FILE = "adapter.safetensors"
"""Low-rank matrices of a run with `training.lora`."""
TOKENIZER_FOLDER, EVALUATIONS_FOLDER = "tokenizer", "evaluations"
CORPORA_FILE, ENVIRONMENT_FILE, JOURNAL_FILE = "corpora.json", "environment.json", "metrics.jsonl"
CHECKPOINTS_FOLDER, CHECKPOINT_STATE = "checkpoints", "state.json"
CHECKPOINT_MANIFEST = "manifest.json"
EXPORT_FILE, EXPORTED_MODEL = "export.json", "model.bin"
EXPORT_FOLDER = "ctranslate2"
"""Export in a run that `mt train` or `mt export` wrote."""
CONFIDENCE_FILE = "confidence.json"
MODEL_FORMAT = EXPORT_FORMAT = 1
CONFIDENCE_FORMAT = 2
LARGEST_MODEL = 256 << 20
"""Bytes of the largest SentencePiece model that is read."""
CorpusRecord = dict[str, dict[str, str | int]]
"""corpora.json: SHA-256 of corpora, tokenizer and initial weights, and counts of the cleaning."""


@dataclass(frozen=True, slots=True)
class LineStatistics:
    """Shape of the source lines of a training; None in its place: unknown."""

    sentences: float
    """Mean number of sentences in a line."""
    starts: tuple[str, ...] = ()
    """Words that begin a sentence even where the one before has no final mark."""
    capitals: float = 0.0
    """Share of the sentences that are in capitals."""
    small: float = 0.0
    """Share of the sentences that begin with a small letter."""
    inner: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    """Places of words and, as `0`, numbers with a full stop: inside sentences, and all."""

    @property
    def is_of_single_sentences(self) -> bool:
        """True if few lines have several sentences: a model has not learned them."""
        return self.sentences < 1.2


UNKNOWN_STATISTICS = LineStatistics(sentences=1.0)


@dataclass(frozen=True, slots=True)
class Description:
    """The part of model.json that translation needs; `tokenizer` and `weights` are SHA-256."""

    longest_source: int
    tokenizer: str
    weights: str
    line_shape: LineStatistics | None = None


@dataclass(frozen=True, slots=True)
class Provenance:
    """The origin of a model in model.json; an imported model has a score text only."""

    score: str
    """Score on the validation split, or the origin of an imported model."""
    updates: int = 0
    """Updates of the newest checkpoint in the mean."""
    averaged_updates: Sequence[int] = ()
    pairs: Mapping[str, int] = field(default_factory=dict)
    """Pairs trained on, left out and validated on."""
    ends: Mapping[str, int | None] = field(default_factory=dict)
    """The config keys that ended the run, and their values."""


@dataclass(frozen=True, slots=True)
class TokenizerManifest:
    """Contents of tokenizer.json."""

    format: int
    sha256: dict[str, str]
    """SHA-256 by file name, source before target."""


@dataclass(frozen=True, slots=True)
class ListedFile:
    """Entry of a checkpoint's manifest."""

    bytes: int
    sha256: str


def read_manifest(checkpoint: Path) -> dict[str, ListedFile]:
    """Return the files of a checkpoint by name; raise RunError for a damaged manifest."""
    return read_json(checkpoint / CHECKPOINT_MANIFEST, dict[str, ListedFile])


def check_run_folder(run: Path) -> None:
    """Raise RunError, with the nearest name, unless a folder is that of a run, finished or not."""
    require_run_file(run, CONFIG_FILE)


def is_finished(run: Path) -> bool:
    """Return True for the folder of a finished run."""
    return os.path.lexists(run / MODEL_FILE)


def check_finished(run: Path) -> None:
    """Raise RunError, with the missing file, unless a folder is that of a finished run."""
    ModelRecord.read(run, finished=True)


def best_checkpoint(run: Path) -> tuple[Path, str]:
    """Return the folder of the best checkpoint of a run and the recorded SHA-256 of its weights.

    The newest checkpoint has the ranking; it is returned itself if none has been validated. Raises
    RunError if there is no checkpoint, or if a file of it is damaged.
    """
    # A hidden checkpoint is newer than a named one of the same update, and sorts first.
    manifests = (run / CHECKPOINTS_FOLDER).glob(f"*update-*/{CHECKPOINT_MANIFEST}")
    folders: dict[int, Path] = {}
    for manifest in sorted(manifests):
        update = manifest.parent.name.rpartition("-")[2]
        if update.isdecimal():
            folders.setdefault(int(update), manifest.parent)
    if not folders:
        raise RunError(
            f"{run}: the training has not finished, and there is no checkpoint yet; "
            f"`mt train {run}` continues it"
        )
    path = folders[max(folders)] / CHECKPOINT_STATE
    try:
        ranking = [ranked["update"] for ranked in read_json(path, dict[str, Any])["state"]["best"]]
        best = next((update for update in ranking if update in folders), max(folders))
        path = folders[best] / CHECKPOINT_MANIFEST
        return path.parent, read_manifest(path.parent)[WEIGHTS_FILE].sha256
    except (OSError, KeyError, TypeError) as error:
        raise RunError(f"{path}: damaged, or not written by mt") from error


def read_description(path: Path) -> Description:
    """Read a model.json; raise RunError where it is damaged or has another format."""
    return read_versioned(path, Description, MODEL_FORMAT)


def write_description(
    run: Path,
    *,
    vocabularies: tuple[int, int],
    tokenizer: str,
    longest_source: int,
    provenance: Provenance,
    line_shape: LineStatistics | None = None,
) -> None:
    """Write model.json beside the weights; `vocabularies` are sizes, `tokenizer` is a SHA-256."""
    description = {
        "format": MODEL_FORMAT,
        "source_vocabulary": vocabularies[0],
        "target_vocabulary": vocabularies[1],
        "longest_source": longest_source,
        "line_shape": line_shape and asdict(line_shape),
        "tokenizer": tokenizer,
        "weights": hash_file(run / WEIGHTS_FILE),
        **asdict(provenance),
    }
    write_json(run / MODEL_FILE, description)


Quantization = Literal[
    "none", "int8", "int8_float32", "int8_float16", "int16", "float16", "bfloat16"
]


@dataclass(frozen=True, slots=True)
class _Lines:
    """Lines of the comparison of an export with its run: translated, and translated alike."""

    sentences: int
    identical: int


@dataclass(frozen=True, slots=True)
class Exported:
    """The contents of export.json; `weights`, `tokenizer` and `model` are SHA-256."""

    kind: Literal["ctranslate2"]
    quantization: Quantization
    longest_source: int
    """Tokens of the longest source side in training, end mark included."""
    positions: int
    """Tokens of the longest sequence that the exported model supports."""
    weights: str
    """Weights of the exported run."""
    tokenizer: str
    model: str
    """The file model.bin."""
    details: dict[str, str] = field(default_factory=dict)
    """SHA-256 of each further file that CTranslate2 reads, by name."""
    parity: dict[str, Any] = field(default_factory=dict)
    """Result of the comparison with the run."""
    card: str = ""
    """SHA-256 of README.md as it was written; an edited one is kept."""
    line_shape: LineStatistics | None = None


def export_folder(run: Path, quantization: Quantization = "none") -> Path:
    """Return the folder of an export in its run."""
    return run / (EXPORT_FOLDER if quantization == "none" else f"{EXPORT_FOLDER}-{quantization}")


def is_exported(folder: Path) -> bool:
    """Return True for a folder of `mt export`."""
    return os.path.lexists(folder / EXPORT_FILE)


def write_exported(folder: Path, exported: Exported) -> None:
    """Write export.json."""
    write_json(folder / EXPORT_FILE, {"format": EXPORT_FORMAT, **asdict(exported)})


def read_exported(folder: Path) -> Exported:
    """Read export.json; raise RunError where it is damaged or has another format."""
    exported = read_versioned(folder / EXPORT_FILE, Exported, EXPORT_FORMAT)
    if exported.parity:
        validate_values(exported.parity, _Lines, folder / EXPORT_FILE)
    return exported


def is_export_of(folder: Path, weights: str) -> bool:
    """Return True for an export of weights with a SHA-256, False for none and a damaged one."""
    try:
        return read_exported(folder).weights == weights
    except (RunError, OSError):
        return False


def read_verified_export(
    folder: Path, run: "ModelRecord | None" = None, quantization: Quantization = "none"
) -> Exported:
    """Read export.json and verify the files of the model.

    Raises RunError where one is damaged, and unless the export is that of `run`, if given, in a
    quantization. Without one, all lines of its proof must be translated alike. Of an export alone,
    `none` stands for any quantization.
    """
    if not is_exported(folder):
        raise RunError(f"there is no export in {folder}")
    exported = read_exported(folder)
    if exported.quantization != quantization and (run is not None or quantization != "none"):
        raise RunError(f"{folder} is quantized as `{exported.quantization}`, not `{quantization}`")
    if run is not None:
        if (exported.weights, exported.tokenizer) != (run.sha256, run.tokenizer):
            raise RunError(f"{folder} is an export of other weights")
        lines, same = (exported.parity.get(key) for key in ("sentences", "identical"))
        if quantization == "none" and (lines is None or same != lines):
            raise RunError(f"{folder} translates some lines otherwise than the run")
        check_sha256(run.folder / WEIGHTS_FILE, run.sha256, run.listed_in)
    for name, sha256 in {EXPORTED_MODEL: exported.model, **exported.details}.items():
        path = folder / name
        if not os.path.lexists(path):
            raise RunError(f"{path}: missing, the exported folder is not complete")
        check_sha256(path, sha256, EXPORT_FILE)
    return exported


def exported_details(folder: Path) -> list[Path]:
    """Return the files that CTranslate2 reads besides model.bin: config and vocabularies."""
    return [folder / "config.json", *sorted(folder.glob("*_vocabulary.json"))]


@dataclass(frozen=True, slots=True)
class ModelRecord:
    """The model of a finished run, of the best checkpoint of an unfinished one, or of an export."""

    folder: Path
    """Folder of the weights."""
    sha256: str
    """SHA-256 of the weights, of model.bin for an export."""
    listed_in: str
    """Name of the file that records `sha256`."""
    tokenizer: str | None = None
    """SHA-256; None: not recorded before the end of a training."""
    longest_source: int | None = None
    """Tokens of the longest source side in training, end mark included; None as above."""
    line_shape: LineStatistics | None = None

    @property
    def is_of_export(self) -> bool:
        """True for an export."""
        return self.listed_in == EXPORT_FILE

    @property
    def is_of_checkpoint(self) -> bool:
        """True for the checkpoint of an unfinished run."""
        return self.listed_in == CHECKPOINT_MANIFEST

    @classmethod
    def read(cls, path: Path, *, finished: bool = False) -> "ModelRecord":
        """Read the record of a model, with `finished` of such a run; raise RunError for damage."""
        has_config, has_model = os.path.lexists(path / CONFIG_FILE), is_finished(path)
        is_export = is_exported(path) and not finished
        if has_config and not (has_model or is_export or finished):
            return cls(*best_checkpoint(path), CHECKPOINT_MANIFEST)
        if is_export:
            exported = read_exported(path)
            length, shape = exported.longest_source, exported.line_shape
            return cls(path, exported.model, EXPORT_FILE, exported.tokenizer, length, shape)
        if has_config and has_model and os.path.lexists(path / WEIGHTS_FILE):
            description = read_description(path / MODEL_FILE)
            length, shape = description.longest_source, description.line_shape
            return cls(path, description.weights, MODEL_FILE, description.tokenizer, length, shape)
        require_run_file(path, CONFIG_FILE)
        if has_model:
            raise RunError(f"{path}: the run folder is not complete, {WEIGHTS_FILE} is missing")
        if is_exported(path):
            raise RunError(f"{path}: is an export, a run folder was expected")
        raise RunError(
            f"{path}: the training has not finished, {MODEL_FILE} is missing; "
            f"`mt train {path}` continues it"
        )
