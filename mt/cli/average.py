"""`mt average`."""

from pathlib import Path
from typing import Annotated

import typer

from mt.cli.options import Device
from mt.errors import UserError


def average(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The run folder.")],
    output: Annotated[
        Path,
        typer.Option("--output", metavar="DIR", help="Where to; a folder that is not there yet."),
    ],
    best: Annotated[
        int | None,
        typer.Option(min=1, metavar="K", help="The K best; all that are kept by default."),
    ] = None,
    last: Annotated[int | None, typer.Option(min=1, metavar="K", help="The K newest.")] = None,
    updates: Annotated[
        str | None,
        typer.Option(metavar="N,N", help="Those after these updates, such as 1000,2000."),
    ] = None,
    device: Device = "auto",
) -> None:
    """Make a model of the mean of a run's checkpoints."""
    if sum(option is not None for option in (best, last, updates)) > 1:
        raise UserError("--best, --last and --updates exclude each other; give one of them")
    named = _numbers(updates) if updates is not None else ()
    from mt.training.averaging import Choice, average_run

    choice = Choice(best=best, last=last, updates=named)
    typer.echo(average_run(run, output, choice=choice, device=device))


def _numbers(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise UserError(
            f"--updates {text}: write numbers with a comma between them, such as 1000,2000"
        ) from None
