"""`mt train`."""

import json
from pathlib import Path
from typing import Annotated

import typer

from mt.cli.options import Overrides
from mt.config.load import load_config

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
    from mt.training.train import train as train_model

    if told := train_model(recipe, run or default_run(config)):
        typer.echo(told)


def default_run(config: Path) -> Path:
    """Return the run folder of a recipe where none is named."""
    return Path("runs") / config.stem
