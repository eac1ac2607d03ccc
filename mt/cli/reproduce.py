"""`mt reproduce`."""

import typer

from mt.cli.train import ConfigFile, RunOption, default_run
from mt.config.load import load_config


def reproduce(config: ConfigFile, run: RunOption = None) -> None:
    """Train a recipe, score it and judge the scores."""
    recipe = load_config(config)
    from mt.training.reproduce import reproduce as reproduce_recipe

    verdict = reproduce_recipe(recipe, run or default_run(config))
    typer.echo(verdict.text)
    if not verdict.passed:
        raise typer.Exit(1)
