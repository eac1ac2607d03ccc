"""The command line as a whole: which commands there are, and how Typer's own errors are told."""

from typing import Annotated

import typer

from mt import __version__
from mt.cli.augment import backtranslate, distill
from mt.cli.bench import bench
from mt.cli.compare import compare
from mt.cli.data import data
from mt.cli.evaluate import evaluate
from mt.cli.export import export, import_
from mt.cli.inspect import info, inspect, plot
from mt.cli.plan import plan
from mt.cli.train import ablate, average, reproduce, train
from mt.cli.translate import score, serve, translate
from mt.errors import UserError

COMMANDS = (
    train,
    translate,
    evaluate,
    compare,
    score,
    info,
    average,
    reproduce,
    ablate,
    inspect,
    plan,
    backtranslate,
    distill,
    export,
    serve,
)


def build_app() -> typer.Typer:
    """Return the program; it says everything in plain text and leaves exceptions alone."""
    app = typer.Typer(
        name="mt", add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False
    )
    app.callback(invoke_without_command=True)(_mt)
    for command in COMMANDS:
        app.command()(command)
    app.command("import")(import_)  # a word that Python keeps for itself
    app.add_typer(bench)
    app.add_typer(data)
    app.add_typer(plot)
    return app


def run_command_line() -> int:
    """Run what `sys.argv` asks for and return the exit status.

    Raises UserError, with the right usage, for a command or option that there is not, and lets
    whatever a command raises pass.
    """
    try:
        status = build_app()(prog_name="mt", standalone_mode=False)
    except typer.TyperException as error:
        raise UserError(_told(error)) from None
    except SystemExit as leaving:
        # What Typer makes of a reader who has gone; the status for that is not its 1.
        if isinstance(leaving.__context__, BrokenPipeError):
            raise leaving.__context__ from None
        raise
    return status if isinstance(status, int) else 0


def _mt(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Show the version and exit.")] = False,
) -> None:
    """From a parallel corpus to a machine-translation model in use."""
    if version:
        typer.echo(f"mt {__version__}")
    elif context.invoked_subcommand is None:
        typer.echo(context.get_help())


def _told(error: typer.TyperException) -> str:
    """Return one line: what is wrong, and the usage of the command that it is about."""
    # Typer has pydantic check choices, whose words begin with the name of a Python class.
    message = " ".join(error.format_message().split()).replace("Value error, ", "")
    message = message if message.endswith((".", "?")) else f"{message}."
    context = getattr(error, "ctx", None)  # only Typer's own subclasses have one
    usage = " ".join(context.get_usage().split()) if context else ""
    return f"{message} {usage}".strip()
