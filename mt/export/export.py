"""Exporting a run to Hugging Face's Marian, with proof that it translates alike."""

import shutil
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from mt.config import Config
from mt.data.tokenizer import copy_tokenizer
from mt.decoding.engine import length_limit, why_not_decoded
from mt.decoding.load import FinishedRun, read_run, require_ctranslate2
from mt.decoding.translator import Translator, load_translator
from mt.errors import RunError, UserError, listed
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

# Enough for other decoding settings than those of the run; a table of them is small beside a model.
_FEWEST_POSITIONS = 1024


@dataclass(frozen=True, slots=True)
class ExportResult:
    """What became of an export."""

    parity: Parity
    failure: str | None
    """Why nothing was left behind; None where the folder is there."""


def export_ctranslate2(
    run: Path,
    output: Path,
    *,
    quantization: Quantization = "none",
    sample: Path | None = None,
    device: str = "auto",
) -> ExportResult:
    """Write a run as a CTranslate2 model into `output`, if it translates as the run does.

    Both translate `sample`, a text in the source language, or the run's valid split. A model that
    is not quantised must give the same translations (see `mt.export.parity`), else nothing is left
    behind; for a quantised one the difference is kept in export.json. `device` is where the run
    translates. An earlier export at `output` is replaced.

    Raises UserError, before anything is written, for what cannot be exported, an `output` that
    holds anything else, and a sample that is not at hand.
    """
    require_ctranslate2()
    check_output_folder(output)
    finished = read_run(run)
    if reason := why_not_decoded(finished.config.decoding):
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
    """Raise UserError unless there is nothing at `output`, or an earlier export and nothing else.

    Scores of the earlier export may be in it.
    """
    if not output.parent.is_dir():
        raise UserError(f"{output}: there is no folder {output.parent} to write it into")
    if not output.exists():
        return
    if not output.is_dir() or (any(output.iterdir()) and not is_exported(output)):
        raise UserError(f"{output}: exists already, and no `mt export` has written it")
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
        raise UserError(f"{output}: would be replaced, but holds also {listed(sorted(foreign))}")


def _write(
    finished: FinishedRun, run: Path, folder: Path, *, quantization: Quantization
) -> Exported:
    """Write all but the parity, which needs the folder to be there."""
    from mt.export.ctranslate2 import write_model

    config = finished.config
    positions = _positions(config, finished.longest_source)
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
    )
    write_exported(folder, exported)
    return exported


def _positions(config: Config, longest_source: int) -> int:
    if config.model.positional == "learned":
        return config.model.max_positions
    longest_target = length_limit(longest_source, config.decoding)
    return max(_FEWEST_POSITIONS, 2 * longest_source, 2 * longest_target)


PARITY_FILE = "parity.json"


def export_marian(
    run: Path, output: Path, *, sample: Path | None = None, device: str = "auto"
) -> ExportResult:
    """Write a run as Hugging Face's Marian into `output`, if what was written translates alike.

    The folder is read back as `mt import` reads it, so transformers need not be there, and
    translates `sample`, or the run's valid split, with the run's own settings of the search. Where
    the translations are not the same, nothing is left behind; else the comparison is kept in
    parity.json. Raises UserError, before anything is written, for what cannot be exported, an
    `output` that is there, a sample that is not at hand.
    """
    if output.exists():
        raise RunError(f"{output}: exists already; name a folder that is not there yet")
    if not output.parent.is_dir():
        raise UserError(f"{output}: there is no folder {output.parent} to write it into")
    finished = read_run(run)
    lines = read_sample(finished.config, sample)
    with aside(output) as temporary:
        folder, read_back = temporary / "marian", temporary / "read_back"
        write_marian(finished, folder)
        import_marian(folder, read_back)
        of_run = load_translator(run, overrides=PLAIN_SEARCH, device=device)
        exported = load_translator(read_back, device=device)
        same_search = Translator(
            exported.engine,
            exported.tokenizer,
            of_run.decoding,
            longest_source=finished.longest_source,
            target_language=finished.config.data.target_language,
        )
        parity = compare(of_run, same_search, lines)
        failure = parity.why_not_equal()
        if failure is None:
            write_json(folder / PARITY_FILE, asdict(parity))
            put_in_place(folder, output)
    return ExportResult(parity, failure)
