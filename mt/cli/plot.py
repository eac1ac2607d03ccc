"""`mt plot`, a sub-command for each kind of picture."""

from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from mt.cli.options import DecodingOverrides, Overrides
from mt.config.load import load_config, require_section
from mt.errors import UserError

Output = Annotated[
    Path,
    typer.Option(
        "--output",
        "-o",
        metavar="FILE",
        help="Where to, .png or .svg. A file there is replaced when all is done.",
    ),
]

plot = typer.Typer(name="plot", rich_markup_mode=None)


@plot.callback(invoke_without_command=True)
def _plot(context: typer.Context) -> None:
    """Draw positions, masks, attention or schedules."""
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


@plot.command()
def positions(
    source: Annotated[
        Path,
        typer.Argument(metavar="CONFIG|RUN", help="A recipe, or a run folder: what it learned."),
    ],
    output: Output,
    positions: Annotated[
        int, typer.Option(min=2, max=1024, metavar="N", help="How many to draw.")
    ] = 128,
    overrides: Overrides = None,
) -> None:
    """Draw the position encoding, and what it makes of distance."""
    if source.is_dir() and overrides:
        raise UserError("--set does not go with a run, whose model is what it is; name a config")
    recipe = None if source.is_dir() else load_config(source, overrides=overrides or ())
    _require_matplotlib()
    from mt.plotting.positions import plot_learned_positions, plot_positions

    if recipe is None:
        typer.echo(plot_learned_positions(source, output, positions=positions))
    else:
        typer.echo(plot_positions(recipe, output, name=str(source), positions=positions))


@plot.command()
def masks(output: Output) -> None:
    """Draw where the attention of encoder and decoder may look, on a small batch."""
    _require_matplotlib()
    from mt.plotting.masks import plot_masks

    typer.echo(plot_masks(output))


@plot.command()
def schedule(
    configs: Annotated[
        list[Path], typer.Argument(metavar="CONFIG", help="Recipes, a line for each.")
    ],
    output: Output,
    updates: Annotated[
        int | None,
        typer.Option(min=1, max=10**8, metavar="N", help="How far; to the end by default."),
    ] = None,
    overrides: Overrides = None,
) -> None:
    """Draw the learning rate over the updates."""
    recipes = {str(path): load_config(path, overrides=overrides or ()) for path in configs}
    _require_matplotlib()
    from mt.plotting.schedule import plot_schedules

    typer.echo(plot_schedules(recipes, output, updates=updates))


@plot.command()
def attention(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The run folder.")],
    sentence: Annotated[str, typer.Argument(metavar="SENTENCE", help="What to translate.")],
    output: Output,
    overrides: DecodingOverrides = None,
) -> None:
    """Draw what each head looks at in a sentence: FILE-encoder, FILE-decoder, FILE-cross."""
    require_section(overrides or (), "decoding")
    _require_matplotlib()
    from mt.plotting.attention import plot_attention

    for path in plot_attention(run, sentence, output=output, overrides=overrides or ()):
        typer.echo(path)


def _require_matplotlib() -> None:
    if find_spec("matplotlib") is None:
        raise UserError('pictures need matplotlib: pip install "mt[plot]"')
