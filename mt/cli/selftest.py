"""`mt selftest`, a sub-command for each promise that can be proved on the spot."""

import os
import signal
import sys
from pathlib import Path
from typing import Annotated

import typer

from mt.cli.options import DecodingOverrides, Device

selftest = typer.Typer(name="selftest", rich_markup_mode=None)


@selftest.callback(invoke_without_command=True)
def _selftest(context: typer.Context) -> None:
    """Prove on this machine what mt promises."""
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


@selftest.command()
def resume(
    kills: Annotated[
        int, typer.Option(min=2, max=1000, metavar="N", help="How often to kill the training.")
    ] = 12,
    seed: Annotated[
        int | None,
        typer.Option(min=0, metavar="S", help="Draws the moments; another one each time if unset."),
    ] = None,
) -> None:
    """Kill a small training over and over: is it still the same training?"""
    # Before libraries are loaded that start threads by it: trainings are forks of this process.
    os.environ["OMP_NUM_THREADS"] = "1"
    from mt.selftest.resume import selftest_resume

    # The system's own way to end leaves the trainings behind, and the folder that they are in.
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    proof = selftest_resume(kills, seed)
    typer.echo(proof.text)
    if not proof.passed:
        raise typer.Exit(1)


@selftest.command()
def batches(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The run folder.")],
    file: Annotated[
        Path | None,
        typer.Argument(metavar="FILE", help="Sentences; those of a test split by default."),
    ] = None,
    most: Annotated[
        int, typer.Option(min=1, metavar="N", help="Take so many sentences at most.")
    ] = 1000,
    overrides: DecodingOverrides = None,
    device: Device = "auto",
) -> None:
    """Translate in batches of 1, 7 and 64: are the translations the same?"""
    from mt.selftest.batches import selftest_batches

    proof = selftest_batches(run, file, most=most, overrides=overrides or (), device=device)
    typer.echo(proof.text)
    if not proof.passed:
        raise typer.Exit(1)
