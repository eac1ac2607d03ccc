"""Command line of `mt`: commands, help panels and usage errors."""

import re
import shlex
import sys
from collections.abc import Callable
from difflib import get_close_matches
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperOption

from mt import __version__
from mt.cli.augment import distill
from mt.cli.data import data
from mt.cli.evaluate import compare, evaluate
from mt.cli.export import export, import_
from mt.cli.inspect import info, plan, plot
from mt.cli.options import check_paths, print_help
from mt.cli.train import average, init, reproduce, train
from mt.cli.translate import score, serve, translate
from mt.errors import UserError, listed

app = typer.Typer(
    name="mt",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
EXAMPLES = """\
 Begin with:
   mt init train.de train.en
   mt train train.yaml
   echo "Guten Morgen." | mt translate runs/train"""


@app.callback(invoke_without_command=True)
def mt(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Show the version and exit.")] = False,
) -> None:
    """Train, evaluate and use machine-translation models."""
    if version:
        typer.echo(f"mt {__version__}")
    elif context.invoked_subcommand is None:
        print_help(context)
        typer.echo(EXAMPLES)


class _Command(TyperCommand):
    """Command that refuses an option that is given twice, of which Typer would take the last."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Return the arguments left over; raise UserError for the option."""
        _, _, given = self.make_parser(ctx).parse_args(args=[*args])
        for option in given:
            takes_one = isinstance(option, TyperOption) and not (option.multiple or option.is_flag)
            if takes_one and given.count(option) > 1:
                raise UserError(f"{option.opts[0]} is given twice; `{ctx.command_path}` takes one")
        return super().parse_args(ctx, args)


PANELS: dict[str, tuple[typer.Typer | Callable[..., None], ...]] = {
    "Train": (init, train, plan, average, reproduce),
    "Use": (translate, score, serve, export, import_),
    "Evaluate": (evaluate, compare),
    "Data": (data, distill),
    "Study": (info, plot),
}
for panel, commands in PANELS.items():
    for command in commands:
        if isinstance(command, typer.Typer):
            for member in command.registered_commands:
                member.callback = member.callback and check_paths(member.callback)
                member.cls = _Command
            app.add_typer(command, rich_help_panel=panel)
        else:
            # Typer cuts a summary that is not given explicitly.
            summary = (command.__doc__ or "").partition("\n")[0]
            name = command.__name__.rstrip("_")
            make = app.command(name, cls=_Command, short_help=summary, rich_help_panel=panel)
            make(check_paths(command))


def _name_settings(context: typer.Context, option: str) -> str:
    """Return the `--set` in place of an unknown option that is named like config keys, or ""."""
    from mt.config.problems import ANY_NAME, all_places, sections_at
    from mt.config.root import Config

    places = {place.keys for place in all_places(Config) if not sections_at(Config, place.keys)}
    dotted = sorted(".".join(keys) for keys in places if ANY_NAME not in keys)
    forms = [known.metavar or "" for known in context.command.params if "--set" in known.opts]
    prefixes = tuple(form.removesuffix("KEY=VALUE") for form in forms)  # `decoding.KEY=VALUE`
    ends = {key: key.rpartition(".")[2] for key in dotted if key.startswith(prefixes)}
    word = option.lstrip("-").replace("-", "_")
    near = get_close_matches(word, ends.values(), n=1, cutoff=0.8)
    value = re.search(rf" {re.escape(option)}[= ](?!--)(\S+)", " ".join(sys.argv))
    text = value[1] if value else "VALUE"
    settings = [f"--set {key}={text}" for key, end in ends.items() if end in near]
    return f" Did you mean {listed(settings)}?" if settings else ""


def run_command_line() -> int:
    """Run the command in `sys.argv`; raise UserError, with the usage, for an unknown one."""
    try:
        status = app(prog_name="mt", standalone_mode=False)
    except typer.TyperException as error:
        # Typer validates choices with pydantic, which prefixes its messages.
        message = " ".join(error.format_message().split()).replace("Value error, ", "")
        message = message if message.endswith((".", "?")) else f"{message}."
        context: Any = getattr(error, "ctx", None)  # not every exception has one
        usage = " ".join(context.get_usage().split()) if context else ""
        if "unexpected extra" in message and "CONFIG" in usage:
            words = sys.argv[len(context.command_path.split()) :]
            message += f" `mt init {shlex.join(words)}` writes a config for a corpus."
        if "No such option" in message:
            message += _name_settings(context, getattr(error, "option_name", ""))
        raise UserError(f"{message} {usage}".strip()) from None
    except SystemExit as leaving:
        # Typer exits with status 1 on a closed pipe; `run_reporting_errors` has its own status.
        if isinstance(leaving.__context__, BrokenPipeError):
            raise leaving.__context__ from None
        raise
    return status if isinstance(status, int) else 0
