"""Translating with what a run folder holds, and nothing else."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from mt.config import Config
from mt.config.load import load_config, require_section
from mt.data.lines import existing_file
from mt.data.tokenizer import Tokenizer
from mt.decoding.line_files import (
    check_output,
    open_output,
    progress_bar,
    read_lines,
    stdin_lines,
)
from mt.decoding.torch_engine import TorchEngine
from mt.decoding.translator import Translator, log_notes
from mt.errors import RunError, did_you_mean
from mt.files import file_sha256
from mt.model.device import select_device
from mt.model.parameters import load_parameters
from mt.model.transformer import Transformer

MODEL_FORMAT = 1
CONFIG_FILE, MODEL_FILE, WEIGHTS_FILE, TOKENIZER_FOLDER = (
    "config.yaml",
    "model.json",
    "model.safetensors",
    "tokenizer",
)


@dataclass(frozen=True, slots=True)
class TranslatedLines:
    """How many lines were read and answered, and how many of them were not simply translated."""

    lines: int
    blank: int
    split: int


def translate_file(
    run: Path,
    *,
    input: Path | None = None,
    output: Path | None = None,
    overrides: Sequence[str] = (),
    device: str = "auto",
) -> TranslatedLines:
    """Translate a file (by default stdin) line by line into another (by default stdout).

    Lines end at a newline byte alone, the output is UTF-8; `overrides` are `decoding.KEY=VALUE`.
    What a user should know of a line is logged with its number. An existing output file is replaced
    when the new one is complete. Raises UserError before any work where input, output, device, run
    folder or overrides are not what they should be.
    """
    if input is not None:
        existing_file(input)
    if output is not None:
        check_output(output)
    lines = stdin_lines() if input is None else read_lines(input)
    translator = load_translator(run, overrides=overrides, device=device)
    counts = {"ok": 0, "blank": 0, "split": 0}
    with open_output(output) as out, progress_bar(input) as bar:
        for translation in translator.stream(lines):
            log_notes(translation)
            out.write(translation.text.encode("utf-8") + b"\n")
            counts[translation.status] += 1
            bar.update()
            if translation.line_number % translator.look_ahead == 0:
                out.flush()
    return TranslatedLines(sum(counts.values()), blank=counts["blank"], split=counts["split"])


def load_translator(
    run: Path, *, overrides: Sequence[str] = (), device: str = "auto"
) -> Translator:
    """Return a translator with the final model of a run and its decoding settings.

    `overrides` are `decoding.KEY=VALUE`. Raises RunError naming what is missing or damaged in the
    folder, ConfigError for its config or the overrides, UserError for a device that is not there.
    """
    where = select_device(device)
    finished = read_run(run, overrides=overrides)
    model = Transformer(
        finished.config.model,
        source_vocabulary=finished.tokenizer.source_size,
        target_vocabulary=finished.tokenizer.target_size,
    )
    load_parameters(model, finished.weights, str(run / WEIGHTS_FILE))
    return Translator(
        TorchEngine(model.to(where), where),
        finished.tokenizer,
        finished.config.decoding,
        longest_source=finished.longest_source,
        target_language=finished.config.data.target_language,
    )


@dataclass(frozen=True, slots=True)
class FinishedRun:
    """What the folder of a finished run holds."""

    config: Config
    tokenizer: Tokenizer
    weights: dict[str, Tensor]
    """The parameters by name, on the CPU."""
    weights_sha256: str
    longest_source: int
    """Pieces of the longest source side that the model was trained on, end mark included."""


def read_run(run: Path, *, overrides: Sequence[str] = ()) -> FinishedRun:
    """Read the folder of a finished run, and check that its files are those that were written.

    `overrides` are `decoding.KEY=VALUE`. Raises RunError naming what is missing or damaged,
    ConfigError for the run's config or the overrides.
    """
    _check_finished(run)
    require_section(overrides, "decoding")
    config = load_config(run / CONFIG_FILE, overrides=overrides)
    description = _read_description(run / MODEL_FILE)
    return FinishedRun(
        config,
        _load_tokenizer(run, description),
        _load_weights(run, description),
        weights_sha256=description.weights,
        longest_source=description.longest_source,
    )


@dataclass(frozen=True, slots=True)
class _Description:
    """What model.json says that translating needs; `tokenizer` and `weights` are SHA-256."""

    longest_source: int
    tokenizer: str
    weights: str


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


def _check_finished(run: Path) -> None:
    check_run_folder(run)
    if not (run / MODEL_FILE).is_file():
        raise RunError(
            f"{run}: its training has not finished, there is no {MODEL_FILE} yet; "
            f"`mt train {run / CONFIG_FILE} --run {run}` goes on with it"
        )
    if not (run / WEIGHTS_FILE).is_file():
        raise RunError(f"{run}: {WEIGHTS_FILE} is missing, the run folder is not complete")


def _read_description(path: Path) -> _Description:
    try:
        content = json.loads(path.read_bytes())
        if content["format"] != MODEL_FORMAT:
            raise RunError(
                f"{path}: of format {content['format']}, this version of mt knows {MODEL_FORMAT}"
            )
        return _Description(
            longest_source=int(content["longest_source"]),
            tokenizer=str(content["tokenizer"]),
            weights=str(content["weights"]),
        )
    except (ValueError, KeyError, TypeError) as error:
        raise RunError(f"{path}: damaged, or not written by mt") from error


def _load_tokenizer(run: Path, description: _Description) -> Tokenizer:
    tokenizer = Tokenizer.load(run / TOKENIZER_FOLDER)
    here, trained_with = tokenizer.fingerprint[:12], description.tokenizer[:12]
    if tokenizer.fingerprint != description.tokenizer:
        raise RunError(
            f"{run / TOKENIZER_FOLDER}: is the tokenizer of another run "
            f"(fingerprint {here}, the model was trained with {trained_with})"
        )
    return tokenizer


def _load_weights(run: Path, description: _Description) -> dict[str, Tensor]:
    path = run / WEIGHTS_FILE
    if file_sha256(path) != description.weights:
        raise RunError(f"{path}: damaged (its SHA-256 is not the one in {MODEL_FILE})")
    try:
        weights: dict[str, Tensor] = load_file(path)
    except SafetensorError as error:
        raise RunError(f"{path}: damaged ({error})") from error
    return weights
