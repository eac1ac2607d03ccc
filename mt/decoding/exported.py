"""What a folder of `mt export` holds, and what it cannot do; without torch or CTranslate2."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

from mt.config import DecodingConfig
from mt.config.directions import chosen_direction
from mt.config.load import load_config, require_section
from mt.decoding.run_files import CONFIG_FILE, load_tokenizer
from mt.decoding.translator import Translator
from mt.errors import RunError, UserError, listed
from mt.files import file_sha256, write_json

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
    """Pieces of the longest source side that the model was trained on, end mark included."""
    positions: int
    """Pieces of the longest sequence that the exported model can do."""
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


def why_not_decoded(decoding: DecodingConfig) -> str | None:
    """Return which key of `decoding` CTranslate2 cannot follow, in one line, or None."""
    if decoding.ensemble:
        return "`decoding.ensemble`: an exported model translates alone; translate with the run"
    if decoding.mbr is not None:
        return "`decoding.mbr`: an exported model chooses by its score; translate with the run"
    if decoding.search == "sample":
        return (
            "`decoding.search: sample`: an exported model does not sample; translate with the run"
        )
    if decoding.coverage_penalty:
        return (
            "`decoding.coverage_penalty`: an exported model would follow another formula; "
            "translate with the run"
        )
    if decoding.repetition_penalty != 1.0:
        return (
            "`decoding.repetition_penalty`: an exported model would follow another formula; "
            "translate with the run, or use `decoding.no_repeat_ngram`"
        )
    return None


def load_exported(
    folder: Path, *, overrides: Sequence[str] = (), device: str = "auto"
) -> Translator:
    """Return a translator for an exported folder; `overrides` are `decoding.KEY=VALUE`.

    Raises RunError naming what is missing or damaged in the folder, ConfigError for its config or
    the overrides, UserError for a device that is not there and where CTranslate2 is missing.
    """
    require_ctranslate2()
    from mt.decoding.ctranslate2_engine import CTranslate2Engine

    exported = read_exported(folder)
    require_section(overrides, "decoding")
    config = load_config(folder / CONFIG_FILE, overrides=overrides)
    if reason := why_not_decoded(config.decoding):
        raise UserError(reason)
    tokenizer = load_tokenizer(folder, exported.tokenizer)
    check_exported_model(folder, exported)
    engine = CTranslate2Engine(
        folder, device=_device(device), tokenizer=tokenizer, positions=exported.positions
    )
    return Translator(
        engine,
        tokenizer,
        config.decoding,
        longest_source=exported.longest_source,
        target_language=chosen_direction(config.data, config.decoding.tag).target,
    )


def require_ctranslate2() -> None:
    """Raise UserError, with the remedy, where CTranslate2 is not installed."""
    if find_spec("ctranslate2") is None:
        raise UserError('exported models need CTranslate2: pip install "mt[ctranslate2]"')


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


def _device(name: str) -> str:
    """Return CTranslate2's name of a device; UserError where it is not there."""
    import ctranslate2

    there = ["cuda", "cpu"] if ctranslate2.get_cuda_device_count() else ["cpu"]
    if name == "auto":
        return there[0]
    if name not in there:
        raise UserError(f"device `{name}`: CTranslate2 has {listed(there)} on this machine")
    return name
