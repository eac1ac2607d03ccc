"""`mt backtranslate`."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from mt.cli.augment_options import Out, ShardOption, TeacherRun, summary
from mt.cli.options import DecodingOverrides, Device
from mt.config.load import require_section


def backtranslate(
    run: TeacherRun,
    mono: Annotated[
        Path, typer.Argument(metavar="MONO", help="Text in the language that RUN reads.")
    ],
    out: Out,
    search: Annotated[
        Literal["sample", "beam", "greedy"],
        typer.Option(help="How RUN translates; samples teach most where data is not scarce."),
    ] = "sample",
    drop: Annotated[
        float, typer.Option(metavar="P", help="Drop words of the translation so often; try 0.1.")
    ] = 0.0,
    mask: Annotated[
        float, typer.Option(metavar="P", help="Put <blank> for words so often; try 0.1.")
    ] = 0.0,
    swap: Annotated[
        int, typer.Option(metavar="N", help="Move words by up to so many places; try 3.")
    ] = 0,
    shard: ShardOption = "1/1",
    overrides: DecodingOverrides = None,
    device: Device = "auto",
) -> None:
    """Make training pairs of text in one language.

    The text is in the target language of a system to come, and RUN translates the other way round:
    its translation is the source of a pair, and the text is the target.
    """
    require_section(overrides or (), "decoding")
    from mt.augment.backtranslate import BackTranslation
    from mt.augment.noise import Noise
    from mt.augment.resumable import write_pairs
    from mt.augment.shard import Shard
    from mt.augment.teacher import Teacher

    part, noise = Shard.parse(shard), Noise(drop, mask, swap)
    settings = [f"decoding.search={search}", *(overrides or ())]
    work = BackTranslation(Teacher.load(run, overrides=settings, device=device), mono, noise)
    job = work.job(out, part)
    typer.echo(summary(job, write_pairs(job, work.make)))
