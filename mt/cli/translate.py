"""`mt translate`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mt.cli.options import DecodingOverrides, Device
from mt.config.load import require_section

if TYPE_CHECKING:
    from mt.decoding.report import Form

NBest = Annotated[
    int | None,
    typer.Option(
        min=1, metavar="N", help="Print N translations a line: number (from 0) ||| text ||| score."
    ),
]

Prefixes = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Begin the translation of line N with line N of this file."),
]
Report = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Write number, status and notes of each line there."),
]


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
    prefixes: Prefixes = None,
    n_best: NBest = None,
    json: Annotated[
        bool, typer.Option("--json", help="Print a JSON object a line, with pieces and scores.")
    ] = False,
    report: Report = None,
    unbuffered: Annotated[
        bool, typer.Option("--unbuffered", help="Answer each line before the next is read.")
    ] = False,
    overrides: DecodingOverrides = None,
    device: Device = "auto",
) -> None:
    """Translate a text, line by line."""
    require_section(overrides or (), "decoding")
    from mt.decoding.translate_file import FileJob, translate_file

    form: Form = "json" if json else "text" if n_best is None else "n-best"
    look_ahead = 1 if unbuffered else None
    job = FileJob(file, output, form, n_best or 1, report, look_ahead, prefixes)
    translate_file(run, job, overrides=overrides or (), device=device)
