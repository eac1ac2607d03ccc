"""What a folder of `mt export` holds, and what it cannot do; without torch or CTranslate2."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

from mt.errors import RunError, did_you_mean
from mt.files import file_sha256, write_json

MODEL_FORMAT = 1
CONFIG_FILE, MODEL_FILE, WEIGHTS_FILE, TOKENIZER_FOLDER = (
    "config.yaml",
    "model.json",
    "model.safetensors",
    "tokenizer",
)
CORPORA_FILE, ENVIRONMENT_FILE, JOURNAL_FILE = "corpora.json", "environment.json", "metrics.jsonl"
EVALUATIONS_FOLDER = "evaluations"


class TokenizerFacts(Protocol):
    """The facts about a tokenizer that model.json records."""

    @property
    def source_size(self) -> int:
        """Number of source tokens."""

    @property
    def target_size(self) -> int:
        """Number of target tokens."""

    @property
    def fingerprint(self) -> str:
        """SHA-256 of the tokenizer files."""


@dataclass(frozen=True, slots=True)
class Description:
    """What model.json says that translating needs; `tokenizer` and `weights` are SHA-256."""

    longest_source: int
    tokenizer: str
    weights: str


@dataclass(frozen=True, slots=True)
class Provenance:
    """What model.json says of where a model comes from; that of an imported one has no training."""

    score: str
    """What it has reached on the valid split, or where else it is from."""
    updates: int = 0
    """How many updates its newest checkpoint had."""
    averaged_updates: Sequence[int] = ()
    pairs: Mapping[str, int] = field(default_factory=dict)
    """How many pairs it has learnt from, and how many were left out or validated."""
    ends: Mapping[str, int | None] = field(default_factory=dict)
    """The keys of its config that said when to stop."""


def check_run_folder(run: Path) -> None:
    """Raise RunError, with the nearest name, unless a folder is that of a run, finished or not."""
    if not run.is_dir():
        if run.exists():
            raise RunError(f"{run}: is a file, a run folder was expected")
        beside = run.parent.iterdir() if run.parent.is_dir() else ()
        near = did_you_mean(run.name, [entry.name for entry in beside if entry.is_dir()])
        raise RunError(f"{run}: no such run folder{near}")
    if not (run / CONFIG_FILE).is_file():
        raise RunError(f"{run}: is no run folder, it holds no {CONFIG_FILE}")


def check_finished(run: Path) -> None:
    """Raise RunError, saying what is missing, unless a folder is that of a finished run."""
    check_run_folder(run)
    if not (run / MODEL_FILE).is_file():
        raise RunError(
            f"{run}: its training has not finished, there is no {MODEL_FILE} yet; "
            f"`mt train {run / CONFIG_FILE} --run {run}` goes on with it"
        )
    if not (run / WEIGHTS_FILE).is_file():
        raise RunError(f"{run}: {WEIGHTS_FILE} is missing, the run folder is not complete")


def read_description(path: Path) -> Description:
    """Read a model.json; raise RunError where it is damaged or of another format."""
    try:
        content = json.loads(path.read_bytes())
        if content["format"] != MODEL_FORMAT:
            raise RunError(
                f"{path}: of format {content['format']}, this version of mt knows {MODEL_FORMAT}"
            )
        return Description(
            longest_source=int(content["longest_source"]),
            tokenizer=str(content["tokenizer"]),
            weights=str(content["weights"]),
        )
    except (ValueError, KeyError, TypeError) as error:
        raise RunError(f"{path}: damaged, or not written by mt") from error


def write_description(
    run: Path, tokenizer: TokenizerFacts, *, longest_source: int, provenance: Provenance
) -> None:
    """Write the model.json of a folder that holds its weights already."""
    write_json(
        run / MODEL_FILE,
        {
            "format": MODEL_FORMAT,
            "source_vocabulary": tokenizer.source_size,
            "target_vocabulary": tokenizer.target_size,
            "longest_source": longest_source,
            "tokenizer": tokenizer.fingerprint,
            "weights": file_sha256(run / WEIGHTS_FILE),
            **asdict(provenance),
        },
    )


def check_weights(run: Path, sha256: str) -> None:
    """Raise RunError unless the weights of a run are those that its model.json names."""
    path = run / WEIGHTS_FILE
    if file_sha256(path) != sha256:
        raise RunError(f"{path}: damaged (its SHA-256 is not the one in {MODEL_FILE})")


EXPORT_FORMAT = 1
EXPORT_FILE, EXPORTED_MODEL = "export.json", "model.bin"
Quantization = Literal[
    "none", "int8", "int8_float32", "int8_float16", "int16", "float16", "bfloat16"
]


@dataclass(frozen=True, slots=True)
class Exported:
    """The contents of export.json; `weights`, `tokenizer` and `model` are SHA-256."""

    kind: Literal["ctranslate2"]
    quantization: Quantization
    longest_source: int
    """Tokens of the longest source side that the model was trained on, end mark included."""
    positions: int
    """Tokens of the longest sequence that the exported model can do."""
    weights: str
    """Of the run that was exported."""
    tokenizer: str
    model: str
    """Of model.bin."""
    details: dict[str, str] = field(default_factory=dict)
    """The SHA-256 of each further file that CTranslate2 reads, by its name."""
    parity: dict[str, Any] = field(default_factory=dict)
    """What the comparison with the run has shown."""


def is_exported(folder: Path) -> bool:
    """Tell whether `mt export` has written a folder."""
    return (folder / EXPORT_FILE).is_file()


def write_exported(folder: Path, exported: Exported) -> None:
    """Write export.json."""
    write_json(folder / EXPORT_FILE, {"format": EXPORT_FORMAT, **asdict(exported)})


def read_exported(folder: Path) -> Exported:
    """Read export.json; raise RunError where it is damaged or of another format."""
    path = folder / EXPORT_FILE
    try:
        content = json.loads(path.read_bytes())
        version = content.pop("format")
        if version != EXPORT_FORMAT:
            raise RunError(f"{path}: of format {version}, this version of mt knows {EXPORT_FORMAT}")
        return Exported(**content)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise RunError(f"{path}: damaged, or not written by mt") from error


def check_exported_model(folder: Path, exported: Exported) -> None:
    """Raise RunError unless the model of a folder is the one that its export.json names."""
    for name, sha256 in {EXPORTED_MODEL: exported.model, **exported.details}.items():
        path = folder / name
        if not path.is_file():
            raise RunError(f"{path}: missing, the exported folder is not complete")
        if file_sha256(path) != sha256:
            raise RunError(f"{path}: damaged (its SHA-256 is not the one in {EXPORT_FILE})")


def exported_details(folder: Path) -> list[Path]:
    """Return the files that CTranslate2 reads besides model.bin: its config and vocabularies."""
    return [folder / "config.json", *sorted(folder.glob("*_vocabulary.json"))]
