"""`mt import`."""

from pathlib import Path
from typing import Annotated

import typer


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
