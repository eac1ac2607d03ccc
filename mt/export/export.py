"""Export of a run to CTranslate2 or a Hugging Face folder, kept only if it translates equally."""

import shutil
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from mt.data.tokenizer import copy_tokenizer
from mt.decoding.engine import describe_unsupported, length_limit
from mt.decoding.load import FinishedRun, read_run, require_ctranslate2
from mt.decoding.translator import Translator, load_translator
from mt.errors import RunError, UserError, listed
from mt.export.m2m100 import write_m2m100
from mt.export.m2m100_import import import_m2m100
from mt.export.marian import write_marian
from mt.export.marian_import import import_marian
from mt.export.parity import PLAIN_SEARCH, Parity, compare, read_sample
from mt.files import aside, file_sha256, put_in_place, write_json
from mt.runs import (
    CONFIG_FILE,
    EVALUATIONS_FOLDER,
    EXPORT_FILE,
    EXPORTED_MODEL,
    TOKENIZER_FOLDER,
    Exported,
    Quantization,
    exported_details,
    is_exported,
    write_exported,
)

PARITY_FILE = "parity.json"
# Leaves room for other decoding settings; the table is small compared with a model.
_MIN_POSITIONS = 1024


@dataclass(frozen=True, slots=True)
class ExportResult:
    """Comparison of run and export."""

    parity: Parity
    failure: str | None
    """Reason for keeping no export, or None."""


def export_ctranslate2(
    run: Path,
    output: Path,
    *,
    quantization: Quantization = "none",
    sample: Path | None = None,
    device: str = "auto",
) -> ExportResult:
    """Export a run to the CTranslate2 model `output`.

    Run, on `device`, and export translate `sample`, a text in the source language, or the run's
    valid split. Without quantization the export is kept only if the translations are equal (see
    `mt.export.parity`); with it, export.json records the difference. An earlier export at `output`
    is replaced. Raises UserError before anything is written if the run cannot be exported, `output`
    holds other files, or there is no sample.
    """
    require_ctranslate2()
    check_output_folder(output)
    finished = read_run(run)
    if reason := describe_unsupported(finished.config.decoding):
        raise UserError(reason)
    lines = read_sample(finished.config, sample)
    with aside(output) as folder:
        exported = _write(finished, run, folder, quantization=quantization)
        of_run = load_translator(run, overrides=PLAIN_SEARCH, device=device)
        parity = compare(of_run, load_translator(folder, overrides=PLAIN_SEARCH), lines)
        failure = parity.why_not_equal() if quantization == "none" else None
        if failure is None:
            write_exported(folder, replace(exported, parity=asdict(parity)))
            put_in_place(folder, output)
    return ExportResult(parity, failure)


def check_output_folder(output: Path) -> None:
    """Raise UserError unless `output` is free, or an earlier export, with or without its scores."""
    _check_parent(output)
    if not output.exists():
        return
    if not output.is_dir() or (any(output.iterdir()) and not is_exported(output)):
        raise UserError(f"{output}: exists already and is not an export; name another --output")
    written = {
        *(EXPORT_FILE, EXPORTED_MODEL, CONFIG_FILE, TOKENIZER_FOLDER, EVALUATIONS_FOLDER),
        *("config.json", "README.md"),
    }
    foreign = [
        entry.name
        for entry in output.iterdir()
        if entry.name not in written and not entry.name.endswith("_vocabulary.json")
    ]
    if foreign:
        raise UserError(f"{output}: also holds {listed(sorted(foreign))}; name another --output")


def _check_parent(output: Path) -> None:
    if not output.parent.is_dir():
        raise UserError(f"{output}: there is no folder {output.parent} to write it into")


def _write(
    finished: FinishedRun, run: Path, folder: Path, *, quantization: Quantization
) -> Exported:
    """Write the export without its parity, which is measured on the folder."""
    from mt.export.ctranslate2 import write_model

    config = finished.config
    longest = 2 * max(
        finished.longest_source, length_limit(finished.longest_source, config.decoding)
    )
    positions = max(_MIN_POSITIONS, longest)
    if config.model.positional == "learned":
        positions = config.model.max_positions
    write_model(
        folder,
        config.model,
        {name: tensor.numpy() for name, tensor in finished.weights.items()},
        tokenizer=finished.tokenizer,
        positions=positions,
        quantization=None if quantization == "none" else quantization,
    )
    copy_tokenizer(run, folder / TOKENIZER_FOLDER)
    shutil.copyfile(run / CONFIG_FILE, folder / CONFIG_FILE)
    exported = Exported(
        kind="ctranslate2",
        quantization=quantization,
        longest_source=finished.longest_source,
        positions=positions,
        weights=finished.weights_sha256,
        tokenizer=finished.tokenizer.fingerprint,
        model=file_sha256(folder / EXPORTED_MODEL),
        details={path.name: file_sha256(path) for path in exported_details(folder)},
        line_shape=finished.line_shape,
    )
    write_exported(folder, exported)
    return exported


def export_huggingface(
    run: Path, output: Path, *, sample: Path | None = None, device: str = "auto"
) -> ExportResult:
    """Export a run to the Hugging Face folder `output`: M2M-100 with its positions, else Marian.

    The folder is read back as by `mt import`, without transformers, and translates `sample`, or
    the run's valid split, with the run's search settings. It is kept, with the comparison in
    parity.json, only if the translations are equal. Raises UserError before anything is written
    if the run cannot be exported, `output` exists, or there is no sample.
    """
    if output.exists():
        raise RunError(f"{output}: exists already; name a new folder")
    _check_parent(output)
    finished = read_run(run)
    lines = read_sample(finished.config, sample)
    with aside(output) as temporary:
        folder, read_back = temporary / "model", temporary / "read_back"
        if finished.config.model.positional == "fairseq":
            write_m2m100(finished, folder)
            import_m2m100(folder, read_back)
        else:
            write_marian(finished, folder)
            import_marian(folder, read_back)
        tags = finished.config.split_tags("valid").items()
        chosen = [f"decoding.{key}={tag}" for key, tag in tags if tag]
        of_run = load_translator(run, overrides=[*PLAIN_SEARCH, *chosen], device=device)
        exported = load_translator(read_back, overrides=PLAIN_SEARCH, device=device)
        same_search = Translator(
            exported.engine,
            exported.tokenizer,
            of_run.decoding,
            longest_source=finished.longest_source,
            direction=of_run.direction,
            line_shape=finished.line_shape,
        )
        parity = compare(of_run, same_search, lines)
        failure = parity.why_not_equal()
        if failure is None:
            write_json(folder / PARITY_FILE, asdict(parity))
            put_in_place(folder, output)
    return ExportResult(parity, failure)
