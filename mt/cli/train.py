"""Commands `mt train`, `mt reproduce`, `mt ablate` and `mt average`."""

import json
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mt.cli.options import AsJson, Device, Overrides, RunArgument, load
from mt.errors import UserError
from mt.runs import CONFIG_FILE

if TYPE_CHECKING:
    from mt.config import Config

ConfigFile = Annotated[Path, typer.Argument(metavar="CONFIG", help="Config, a YAML file.")]
RunOption = Annotated[
    Path | None,
    typer.Option("--run", metavar="DIR", help="Run folder; default: runs/NAME-OF-CONFIG."),
]


def train(
    config: Annotated[
        Path, typer.Argument(metavar="CONFIG|RUN", help="Config, or run folder to resume.")
    ],
    run: RunOption = None,
    budget: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="Time for the whole run, such as 30m or 2h."),
    ] = None,
    init_from: Annotated[
        Path | None,
        typer.Option(
            metavar="RUN", help="Finished run to fine-tune, with its weights and tokenizer."
        ),
    ] = None,
    overrides: Overrides = None,
) -> None:
    """Train a model, or resume a stopped run."""
    if (config / CONFIG_FILE).is_file():
        config, run = config / CONFIG_FILE, run or config
    settings = list(overrides or ())
    if budget is not None:
        settings.append(f"training.budget={budget}")
    if init_from is not None:
        # Quoted as JSON, hence as YAML: a folder name may look like a number or null.
        settings.append(f"training.init_from={json.dumps(str(init_from), ensure_ascii=False)}")
    loaded = load(config, settings)
    from mt.training.trainer import train as train_model

    run = run or default_run(config)
    if summary := train_model(loaded, run):
        typer.echo(f"{summary}\n{_next_commands(loaded, run)}")


def _next_commands(config: "Config", run: Path) -> str:
    """Return commands that use a finished run, one a line."""
    choices = [f"decoding.{key}={next(iter(of))}" for key, of in config.tags_to_choose().items()]
    tag = "".join(f" --set {shlex.quote(choice)}" for choice in choices)
    folder, split = shlex.quote(str(run)), [*config.data.tests, "valid"][0]
    commands = [f"translate {folder}{tag} < FILE", f"evaluate {folder} --split {split}"]
    return "\n".join(f"  mt {command}" for command in [*commands, f"serve {folder}{tag}"])


def default_run(config: Path) -> Path:
    """Return the default run folder of a config."""
    return Path("runs") / config.stem


def reproduce(config: ConfigFile, run: RunOption = None) -> None:
    """Train a recipe, score it, and compare with the expected scores.

    The exit status is 1 if a score is outside its expected range.
    """
    loaded = load(config)
    from mt.recipes.reproduce import reproduce as reproduce_recipe

    verdict = reproduce_recipe(loaded, run or default_run(config))
    typer.echo(verdict.text)
    if not verdict.passed:
        raise typer.Exit(1)


def ablate(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Ablation, a YAML file.")],
    runs: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="Folder of the run folders; default: runs/ablation-NAME-OF-FILE."
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Train a config with one change at a time, and compare the results."""
    from mt.config.ablation import load_ablation

    ablation = load_ablation(file)
    from mt.recipes.ablation import run_ablation

    results = run_ablation(ablation, runs or Path("runs") / f"ablation-{file.stem}")
    typer.echo(results.as_json() if as_json else results.as_text())
    if results.exit_status:
        raise typer.Exit(results.exit_status)


def average(
    run: RunArgument,
    output: Annotated[Path, typer.Option(metavar="DIR", help="New folder for the model.")],
    best: Annotated[
        int | None,
        typer.Option(min=1, metavar="K", help="Average the K best; default: all that are kept."),
    ] = None,
    last: Annotated[
        int | None, typer.Option(min=1, metavar="K", help="Average the K newest.")
    ] = None,
    updates: Annotated[
        str | None,
        typer.Option(metavar="N,N", help="Average the checkpoints of these updates: 1000,2000."),
    ] = None,
    device: Device = "auto",
) -> None:
    """Average the weights of a run's checkpoints."""
    if sum(option is not None for option in (best, last, updates)) > 1:
        raise UserError("--best, --last and --updates exclude each other; give one of them")
    try:
        chosen = tuple(int(part) for part in updates.split(",")) if updates is not None else ()
    except ValueError:
        raise UserError(
            f"--updates {updates}: write numbers separated by commas, such as 1000,2000"
        ) from None
    from mt.training.final_model import Choice, average_run

    choice = Choice(best=best, last=last, updates=chosen)
    typer.echo(average_run(run, output, choice=choice, device=device))
