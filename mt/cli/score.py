"""`mt score`."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from mt.cli.options import DecodingOverrides, Device
from mt.config.load import require_section


def score(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The run folder.")],
    sources: Annotated[
        Path, typer.Option(metavar="FILE", help="What was translated, a sentence per line.")
    ],
    targets: Annotated[
        Path, typer.Option(metavar="FILE", help="The translations to score, one per line.")
    ],
    json: Annotated[
        bool, typer.Option("--json", help="Print JSON, a line each, with pieces and their scores.")
    ] = False,
    overrides: DecodingOverrides = None,
    device: Device = "auto",
) -> None:
    """Tell how likely a run finds given translations.

    Prints a line for each: natural log-probability, pieces with the end mark, mean per piece, tabs
    between. The perplexity of all together goes to stderr.
    """
    require_section(overrides or (), "decoding")
    from mt.decoding.scoring import Totals, score_files

    totals = Totals()
    settings = overrides or ()
    for each in score_files(
        run, sources=sources, targets=targets, overrides=settings, device=device
    ):
        sys.stdout.write(f"{each.as_json() if json else each.as_text()}\n")
        totals.add(each)
    sys.stdout.flush()
    typer.echo(totals.as_text(), err=True)
