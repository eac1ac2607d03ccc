"""`mt distill`."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from mt.cli.augment_options import Out, ShardOption, TeacherRun, summary
from mt.cli.options import DecodingOverrides, Device
from mt.config.load import load_config, require_section


def distill(
    run: TeacherRun,
    origin: Annotated[
        Path,
        typer.Argument(
            metavar="CONFIG", help="The recipe whose training sources to translate, or a text."
        ),
    ],
    out: Out,
    n_best: Annotated[
        int,
        typer.Option(
            min=1, metavar="N", help="Of N translations, take the one nearest to the reference."
        ),
    ] = 1,
    similarity: Annotated[
        Literal["bleu", "chrf"], typer.Option(help="What is near, where N is more than 1.")
    ] = "bleu",
    shard: ShardOption = "1/1",
    overrides: DecodingOverrides = None,
    device: Device = "auto",
) -> None:
    """Make training pairs of a teacher's translations.

    The sources are those that CONFIG trains on, and the targets what RUN makes of them.
    """
    require_section(overrides or (), "decoding")
    is_config = origin.suffix in {".yaml", ".yml"}
    data = load_config(origin).data if is_config else origin
    from mt.augment.distill import Distillation, Interpolation
    from mt.augment.resumable import write_pairs
    from mt.augment.shard import Shard
    from mt.augment.teacher import Teacher

    part = Shard.parse(shard)
    interpolation = Interpolation(n_best, similarity) if n_best > 1 else None
    teacher = Teacher.load(run, overrides=overrides or (), device=device)
    work = Distillation(teacher, data, interpolation)
    job = work.job(out, part)
    typer.echo(summary(job, write_pairs(job, work.make)))
