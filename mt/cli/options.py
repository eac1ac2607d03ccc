"""Arguments, options and helpers shared by several commands."""

from pathlib import Path
from typing import Annotated, Literal

import typer

RunArgument = Annotated[Path, typer.Argument(metavar="RUN", help="Run folder.")]

Overrides = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Override a config key, such as training.max_updates=500; repeatable.",
    ),
]

DecodingOverrides = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Override a key of `decoding`, such as decoding.beam=4; repeatable.",
    ),
]

Device = Annotated[
    Literal["auto", "cuda", "mps", "cpu"],
    typer.Option(help="Device to compute on; auto takes the best available."),
]

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def command_group(name: str, summary: str) -> typer.Typer:
    """Return a group of commands that prints its help if no command is given."""
    group = typer.Typer(name=name, short_help=summary)

    @group.callback(help=summary, invoke_without_command=True)
    def show(context: typer.Context) -> None:
        if context.invoked_subcommand is None:
            print_help(context)

    return group


def print_help(context: typer.Context) -> None:
    """Print the help of the current command."""
    if text := context.get_help():  # empty with Rich, which prints by itself
        typer.echo(text)
