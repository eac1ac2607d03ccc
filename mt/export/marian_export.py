"""Exporting a run to Hugging Face's Marian, with proof that it translates alike."""

from dataclasses import asdict
from pathlib import Path

from mt.decoding.run import load_translator, read_run
from mt.decoding.translator import Translator
from mt.errors import RunError, UserError
from mt.export.folder import ExportResult
from mt.export.marian import write_marian
from mt.export.marian_import import import_marian
from mt.export.parity import PLAIN_SEARCH, compare, read_sample
from mt.files import aside, put_in_place, write_json

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
