"""`mt train`."""

import json
from pathlib import Path
from typing import Annotated

import typer

from mt.cli.options import Device, Overrides
from mt.config.ablation import load_ablation
from mt.config.loading import load_config
from mt.errors import UserError

ConfigFile = Annotated[Path, typer.Argument(metavar="CONFIG", help="The recipe, a YAML file.")]
RunOption = Annotated[
    Path | None,
    typer.Option("--run", metavar="DIR", help="The run folder; runs/<name of CONFIG> by default."),
]


def train(
    config: ConfigFile,
    run: RunOption = None,
    init_from: Annotated[
        Path | None,
        typer.Option(
            metavar="RUN",
            help="Fine-tune a finished run: begin with its weights and its tokenizer.",
        ),
    ] = None,
    overrides: Overrides = None,
) -> None:
    """Train a model, or go on with a run that was stopped."""
    settings = list(overrides or ())
    if init_from is not None:
        # Quoted as JSON, and so as YAML: a folder may be called 2024 or null.
        settings.append(f"training.init_from={json.dumps(str(init_from), ensure_ascii=False)}")
    recipe = load_config(config, overrides=settings)
    from mt.training.trainer import train as train_model

    if told := train_model(recipe, run or default_run(config)):
        typer.echo(told)


def default_run(config: Path) -> Path:
    """Return the run folder of a recipe where none is named."""
    return Path("runs") / config.stem


def reproduce(config: ConfigFile, run: RunOption = None) -> None:
    """Train a recipe, score it and judge the scores."""
    recipe = load_config(config)
    from mt.experiments.reproduce import reproduce as reproduce_recipe

    verdict = reproduce_recipe(recipe, run or default_run(config))
    typer.echo(verdict.text)
    if not verdict.passed:
        raise typer.Exit(1)


def ablate(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The ablation, a YAML file.")],
    runs: Annotated[
        Path | None,
        typer.Option(
            "--runs",
            metavar="DIR",
            help="Where the runs lie; runs/ablation-<name of FILE> by default.",
        ),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Train a config with one change at a time, and compare."""
    ablation = load_ablation(file)
    from mt.experiments.ablation import run_ablation

    results = run_ablation(ablation, runs or Path("runs") / f"ablation-{file.stem}")
    typer.echo(results.as_json() if json else results.as_text())
    if results.exit_status:
        raise typer.Exit(results.exit_status)


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
    from mt.training.final_model import Choice, average_run

    choice = Choice(best=best, last=last, updates=named)
    typer.echo(average_run(run, output, choice=choice, device=device))


def _numbers(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise UserError(
            f"--updates {text}: write numbers with a comma between them, such as 1000,2000"
        ) from None
