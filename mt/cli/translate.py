"""`mt translate`."""

from pathlib import Path
from typing import Annotated

import typer

from mt.cli.options import DecodingOverrides, Device
from mt.config.load import require_section


def translate(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The run folder.")],
    file: Annotated[
        Path | None,
        typer.Argument(metavar="FILE", help="The text, a sentence per line; stdin by default."),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE",
            help="Where to; stdout by default. A file there is replaced when all is done.",
        ),
    ] = None,
    overrides: DecodingOverrides = None,
    device: Device = "auto",
) -> None:
    """Translate a text, line by line."""
    require_section(overrides or (), "decoding")
    from mt.decoding.run import translate_file

    translate_file(run, input=file, output=output, overrides=overrides or (), device=device)
