"""`mt train`."""

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


def train(config: ConfigFile, run: RunOption = None, overrides: Overrides = None) -> None:
    """Train a model, or go on with a run that was stopped."""
    recipe = load_config(config, overrides=overrides or ())
    from mt.training.train import train as train_model

    typer.echo(train_model(recipe, run or default_run(config)))


def default_run(config: Path) -> Path:
    """Return the run folder of a recipe where none is named."""
    return Path("runs") / config.stem
