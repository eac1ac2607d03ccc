"""Commands `mt export` and `mt import`."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from mt.cli.options import Device
from mt.errors import UserError


def export(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a finished run.")],
    to: Annotated[
        Literal["ctranslate2", "huggingface"], typer.Option("--to", help="Format to write.")
    ],
    quantization: Annotated[
        Literal["none", "int8", "int8_float32", "int8_float16", "int16", "float16", "bfloat16"],
        typer.Option(help="With ctranslate2: number format of the weights."),
    ] = "none",
    output: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Output folder; default: a folder in RUN."),
    ] = None,
    sample: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Source text for the proof of parity; default: the valid split."
        ),
    ] = None,
    device: Device = "auto",
) -> None:
    """Export a run to another format, and prove that it translates alike.

    The exit status is 1, and no export is kept, if the translations differ too much.
    """
    if to == "huggingface" and quantization != "none":
        raise UserError("--quantization cannot be combined with --to huggingface; leave it out")
    from mt.decoding.cached_export import NOT_EXPORTED
    from mt.export.export import export_ctranslate2, export_marian

    folder = output or run / (to if quantization == "none" else f"{to}-{quantization}")
    if to == "huggingface":
        result = export_marian(run, folder, sample=sample, device=device)
        usage = "AutoModelForSeq2SeqLM and AutoTokenizer of transformers load it"
    else:
        result = export_ctranslate2(
            run, folder, quantization=quantization, sample=sample, device=device
        )
        usage = f"`mt translate {folder}` translates with it"
    typer.echo(result.parity.as_text())
    if result.failure is not None:
        typer.echo(f"{NOT_EXPORTED}{result.failure}", err=True)
        raise typer.Exit(1)
    typer.echo(f"\n{folder}: {usage}")


def import_(
    path: Annotated[
        Path,
        typer.Argument(metavar="PATH", help="Folder of a Hugging Face Marian model: OPUS-MT."),
    ],
    run: Annotated[Path, typer.Option("--run", metavar="DIR", help="New run folder.")],
) -> None:
    """Import a Hugging Face Marian (OPUS-MT) model as a run."""
    from mt.export.marian_import import import_marian

    imported = import_marian(path, run)
    for note in imported.notes:
        typer.echo(f"{path}: {note}", err=True)
    typer.echo(f"{run}: {imported.languages}, {imported.parameters:,} parameters")
