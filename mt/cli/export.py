"""Commands `mt export` and `mt import`."""

import re
from pathlib import Path
from typing import Annotated, Literal

import typer

from mt.cli.options import Device
from mt.errors import UserError
from mt.runs import Quantization


def export(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a finished run.")],
    to: Annotated[
        Literal["ctranslate2", "huggingface", "argos", "bergamot"],
        typer.Option("--to", help="Format to write."),
    ],
    quantization: Annotated[
        Quantization,
        typer.Option(help="With ctranslate2, argos and bergamot: number format of the weights."),
    ] = "none",
    output: Annotated[
        Path | None,
        typer.Option(
            metavar="PATH",
            writable=True,
            help="Output folder, or with argos the file; default: in RUN.",
        ),
    ] = None,
    sample: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Source text for the proof of parity; default: the valid split."
        ),
    ] = None,
    program: Annotated[
        str | None,
        typer.Option("--proof", metavar="COMMAND", help="With bergamot: program that translates."),
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Keep a quantized export that costs more.")
    ] = False,
    license: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="License for the model card, as `apache-2.0`."),
    ] = None,
    device: Device = "auto",
) -> None:
    """Export a run to another format, and prove that it translates alike.

    The exit status is 1, and no export is kept, if the translations differ too much: with a
    quantization, if it costs more than 1 BLEU or chrF2 on the valid split and more than chance.
    """
    if to == "huggingface" and quantization != "none":
        raise UserError("--quantization cannot be combined with --to huggingface; leave it out")
    if force and quantization == "none":
        raise UserError("--force keeps a quantized export that costs more; add --quantization")
    if program is not None and to != "bergamot":
        raise UserError(f"--proof cannot be combined with --to {to}; leave it out")
    library = {"ctranslate2": "ctranslate2", "huggingface": "transformers"}.get(to)
    if license and library is None:
        raise UserError(f"--license cannot be combined with --to {to}, which has no model card")
    if license is not None and not re.fullmatch(r"[a-z0-9][a-z0-9.+-]*", license):
        raise UserError(f"--license {license}: write it as the hub does, as `apache-2.0` or `mit`")
    from mt.decoding.load import read_run
    from mt.evaluation.run_info import render_card
    from mt.export import export as exports
    from mt.export.argos import SUFFIX, export_argos
    from mt.export.bergamot import SEARCH, check_form, export_bergamot

    name = to if quantization == "none" else f"{to}-{quantization}"
    folder = output or run / (f"{name}{SUFFIX}" if to == "argos" else name)
    formats = {
        "ctranslate2": (exports.export_ctranslate2, f"`mt translate {folder}` translates with it"),
        "huggingface": (exports.export_huggingface, "transformers loads model and tokenizer"),
        "argos": (export_argos, "`argostranslate.package.install_from_path` installs it"),
        "bergamot": (export_bergamot, "the page in examples/browser translates with it"),
    }
    export_model, usage = formats[to]
    limit = 0.0 if force else exports.MIN_IDENTICAL
    card = library and render_card(run, library, license, with_scores=quantization == "none")
    options = exports.ExportOptions(quantization, sample, device, limit, card=card, program=program)
    finished = read_run(run)
    if to == "bergamot":
        check_form(finished.config.model)  # before texts are read
    proof = exports.Proof.read(finished, options, **(SEARCH if to == "bergamot" else {}))
    result = export_model(proof.run, folder, proof, options)
    typer.echo(result.parity.as_text())
    if result.note:
        typer.echo(result.note)
    if result.failure is not None:
        typer.echo(f"not exported: {result.failure}", err=True)
        raise typer.Exit(1)
    typer.echo(f"\n{folder}: {usage}")


def import_(
    path: Annotated[
        Path,
        typer.Argument(metavar="PATH", help="Hugging Face folder of OPUS-MT, M2M-100 or NLLB-200."),
    ],
    run: Annotated[
        Path, typer.Option("--run", metavar="DIR", writable=True, help="New run folder.")
    ],
    source_language: Annotated[
        str | None,
        typer.Option(
            metavar="CODE", help="Source language, as `en` or `eng_Latn`; default: by the model."
        ),
    ] = None,
    target_language: Annotated[
        str | None,
        typer.Option(
            metavar="CODE", help="Target language, as `de` or `deu_Latn`; default: by the model."
        ),
    ] = None,
    languages: Annotated[
        str | None,
        typer.Option(
            metavar="CODES",
            help="M2M-100, NLLB-200: keep the tokens of these languages, as `eng_Latn,deu_Latn`.",
        ),
    ] = None,
    sample: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FILE", help="With --languages: text in these languages; may be repeated."
        ),
    ] = None,
) -> None:
    """Import an OPUS-MT (MarianMT), M2M-100 or NLLB-200 model of Hugging Face as a run."""
    from mt.export.hf_folder import model_type

    if (languages is None) != (sample is None):
        raise UserError("--languages and --sample go together: the tokens of the sample are kept")
    if run.exists():
        raise UserError(f"{run}: exists already; name a new folder")
    if model_type(path) == "marian":
        from mt.export.marian import import_marian

        if languages:
            raise UserError("--languages is for M2M-100 and NLLB-200; leave it out")
        imported = import_marian(path, run, source=source_language, target=target_language)
    else:
        from mt.export.m2m100 import import_m2m100

        imported = import_m2m100(
            path,
            run,
            source=source_language,
            target=target_language,
            languages=languages.split(",") if languages is not None else (),
            samples=sample or (),
        )
    for note in imported.notes:
        typer.echo(f"{path}: {note}", err=True)
    typer.echo(f"{run}: {imported.languages}, {imported.parameters:,} parameters")
