"""`mt export`."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from mt.cli.options import Device
from mt.errors import UserError


def export(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a finished run.")],
    to: Annotated[
        Literal["ctranslate2", "huggingface"], typer.Option("--to", help="The format to write.")
    ],
    quantization: Annotated[
        Literal["none", "int8", "int8_float32", "int8_float16", "int16", "float16", "bfloat16"],
        typer.Option(help="With ctranslate2: the numbers that the weights are kept in."),
    ] = "none",
    output: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Where to; by default a folder in RUN."),
    ] = None,
    sample: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="The text that proves it, in the source language; the valid split by default.",
        ),
    ] = None,
    device: Device = "auto",
) -> None:
    """Write a run in another format, and prove it."""
    if to == "huggingface":
        _export_huggingface(run, output, quantization=quantization, sample=sample, device=device)
        return
    name = to if quantization == "none" else f"{to}-{quantization}"
    from mt.export.export import export_ctranslate2

    folder = output or run / name
    result = export_ctranslate2(
        run, folder, quantization=quantization, sample=sample, device=device
    )
    typer.echo(result.parity.as_text())
    if result.failure is not None:
        typer.echo(f"not exported: {result.failure}", err=True)
        raise typer.Exit(1)
    typer.echo(f"\n{folder}: `mt translate {folder}` translates with it")


def _export_huggingface(
    run: Path, output: Path | None, *, quantization: str, sample: Path | None, device: str
) -> None:
    if quantization != "none":
        raise UserError("--quantization does not go with --to huggingface")
    from mt.export.export import export_marian

    folder = output or run / "huggingface"
    result = export_marian(run, folder, sample=sample, device=device)
    typer.echo(result.parity.as_text())
    if result.failure is not None:
        typer.echo(f"not exported: {result.failure}", err=True)
        raise typer.Exit(1)
    typer.echo(f"\n{folder}: AutoModelForSeq2SeqLM and AutoTokenizer of transformers load it")


def import_(
    path: Annotated[
        Path,
        typer.Argument(metavar="PATH", help="A folder of a Hugging Face Marian, such as OPUS-MT."),
    ],
    run: Annotated[
        Path,
        typer.Option("--run", metavar="DIR", help="The run to make; not there yet."),
    ],
) -> None:
    """Make a run of a Hugging Face Marian (OPUS-MT) model."""
    from mt.export.marian_import import import_marian

    imported = import_marian(path, run)
    for note in imported.notes:
        typer.echo(f"{path}: {note}", err=True)
    typer.echo(f"{run}: {imported.languages}, {imported.parameters:,} parameters")
