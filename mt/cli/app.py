"""Command line of `mt`: commands, help panels and usage errors."""

import re
from collections.abc import Callable
from typing import Annotated

import typer

from mt import __version__
from mt.cli.augment import distill
from mt.cli.data import data
from mt.cli.evaluate import compare, evaluate
from mt.cli.export import export, import_
from mt.cli.inspect import bench, info, plan, plot
from mt.cli.options import check_paths, print_help
from mt.cli.train import ablate, average, init, reproduce, train
from mt.cli.translate import score, serve, translate
from mt.errors import UserError

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

REMOVED: dict[str, str] = {
    "mt ablate --json": "each run folder has its scores in metrics.jsonl and evaluations/",
    "mt ablate --runs": "the runs are in runs/ablation-NAME-OF-FILE",
    "mt backtranslate": (
        "`mt distill RUN MONO --set decoding.search=sample` writes the same pairs; --noise drops, "
        "masks and moves words"
    ),
    "mt average --best": "use --checkpoints best:K",
    "mt average --last": "use --checkpoints last:K",
    "mt average --updates": "use --checkpoints N,N",
    "mt bench decode --batch-size": "use --set decoding.batch_size=N",
    "mt compare --examples": "the five sentences of most gain and of most loss are shown",
    "mt compare --html": "use --output FILE.html",
    "mt compare --json": "use --output FILE.json",
    "mt data check --html": "use --output FILE.html",
    "mt data check --json": "use --output FILE.json",
    "mt data clean --removed": "removed.tsv is always written",
    "mt data tokenizer": (
        "`mt data check RUN` reports tokens per word and the characters that its tokenizer loses"
    ),
    "mt distill --choose": "of several translations the one most similar to the others is taken",
    "mt distill --price": "the tokens sent and received are printed",
    "mt distill --requests": "an endpoint gets 8 requests at once",
    "mt distill --similarity": "sentence BLEU is the measure",
    "mt distill --teacher": "mt distill CONFIG --from FILE",
    "mt distill --teacher-command": "let the program write a file for --from FILE",
    "mt distill --teacher-url": "mt distill CONFIG --from URL",
    "mt distill --timeout": "an answer of an endpoint may take 120 seconds",
    "mt evaluate --check": "give the passport as the argument: mt evaluate PASSPORT.json",
    "mt evaluate --hypotheses": "give the file of translations as the argument: mt evaluate FILE",
    "mt evaluate --passport": "the passport is written next to the translations",
    "mt evaluate --write-comet": "score evaluations/SPLIT.*.txt with comet-score; see the docs",
    "mt init --force": "delete the existing config, or choose another --output",
    "mt inspect": "`mt info CONFIG` counts parameters and FLOPs",
    "mt plot masks": "the notebook docs/quickstart.ipynb draws masks",
    "mt plot positions --positions": "128 positions are drawn",
    "mt plot schedule": "the notebook docs/quickstart.ipynb draws the learning rate",
    "mt serve --max-waiting": "1,024 lines wait, or those of one request of --max-sentences",
    "mt train --budget": "use --set training.budget=TIME",
    "mt train --init-from": "use --set training.init_from=RUN",
}
"""Replacement by removed command or option, such as "mt plot masks" or "mt bench --phases"."""


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


PANELS: dict[str, tuple[typer.Typer | Callable[..., None], ...]] = {
    "Train": (init, train, plan, average, reproduce, ablate),
    "Use": (translate, score, serve, export, import_),
    "Evaluate": (evaluate, compare),
    "Data": (data, distill),
    "Study": (info, plot, bench),
}
for panel, commands in PANELS.items():
    for command in commands:
        if isinstance(command, typer.Typer):
            for member in command.registered_commands:
                member.callback = member.callback and check_paths(member.callback)
            app.add_typer(command, rich_help_panel=panel)
        else:
            # Typer cuts a summary that is not given explicitly.
            summary = (command.__doc__ or "").partition("\n")[0]
            name = command.__name__.rstrip("_")
            app.command(name, short_help=summary, rich_help_panel=panel)(check_paths(command))


def run_command_line() -> int:
    """Run the command in `sys.argv` and return its exit status.

    Raises UserError, with the usage, for an unknown command or option; exceptions of the command
    propagate.
    """
    try:
        status = app(prog_name="mt", standalone_mode=False)
    except typer.TyperException as error:
        raise UserError(_usage_error(error)) from None
    except SystemExit as leaving:
        # Typer exits with status 1 on a closed pipe; `run_reporting_errors` has its own status.
        if isinstance(leaving.__context__, BrokenPipeError):
            raise leaving.__context__ from None
        raise
    return status if isinstance(status, int) else 0


def _usage_error(error: typer.TyperException) -> str:
    """Return the message of a usage error and the usage of its command, on one line."""
    # Typer validates choices with pydantic, which prefixes its messages.
    message = " ".join(error.format_message().split()).replace("Value error, ", "")
    message = message if message.endswith((".", "?")) else f"{message}."
    context = getattr(error, "ctx", None)  # not every exception has one
    unknown = re.match(r"No such (?:command|option):? '?([^\s'.]+)", message)
    name = f"{context.command_path} {unknown[1]}" if context and unknown else ""
    if name in REMOVED:
        return f"`{name}` was removed; {REMOVED[name]}"
    usage = " ".join(context.get_usage().split()) if context else ""
    return f"{message} {usage}".strip()
