"""`mt ablate`."""

from pathlib import Path
from typing import Annotated

import typer

from mt.config.ablation import load_ablation


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
    from mt.training.ablation import run_ablation

    results = run_ablation(ablation, runs or Path("runs") / f"ablation-{file.stem}")
    typer.echo(results.as_json() if json else results.as_text())
    if results.exit_status:
        raise typer.Exit(results.exit_status)
