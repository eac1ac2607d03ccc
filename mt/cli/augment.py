"""`mt distill`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from mt.cli.options import DecodingOverrides, Device
from mt.config.loading import load_config, require_section
from mt.tables import aligned

if TYPE_CHECKING:
    from mt.augment.resumable import Job, Record


TeacherRun = Annotated[
    Path, typer.Argument(metavar="RUN", help="The run folder of the translator.")
]
Out = Annotated[
    Path,
    typer.Option(metavar="DIR", help="Where to write; the same call goes on with what is there."),
]
ShardOption = Annotated[
    str,
    typer.Option("--shard", metavar="K/N", help="Do part K of N alone; others do the others."),
]


def summary(job: "Job", record: "Record") -> str:
    """Return what was done in all, the files, and which shards are still to come."""
    rows = [("lines read", f"{record.lines:,}")]
    rows += [
        (f"left out: {reason}" if reason != "written" else "pairs written", f"{count:,}")
        for reason, count in sorted(record.counts.items())
    ]
    lines = [aligned(rows, right=[1]), *map(str, job.texts)]
    if job.shard.of > 1:
        missing = [f"{shard.number}/{shard.of}" for shard in job.missing_shards()]
        lines.append(
            f"still to be done: {', '.join(missing)}"
            if missing
            else f"all {job.shard.of} parts are there; `cat` joins them in the order of their names"
        )
    return "\n".join(lines)


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
    from mt.augment.resumable import Shard, write_pairs
    from mt.augment.teacher import Teacher
    from mt.data.noise import Noise

    part, noise = Shard.parse(shard), Noise(drop, mask, swap)
    settings = [f"decoding.search={search}", *(overrides or ())]
    work = BackTranslation(Teacher.load(run, overrides=settings, device=device), mono, noise)
    job = work.job(out, part)
    typer.echo(summary(job, write_pairs(job, work.make)))


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
    from mt.augment.resumable import Shard, write_pairs
    from mt.augment.teacher import Teacher

    part = Shard.parse(shard)
    interpolation = Interpolation(n_best, similarity) if n_best > 1 else None
    teacher = Teacher.load(run, overrides=overrides or (), device=device)
    work = Distillation(teacher, data, interpolation)
    job = work.job(out, part)
    typer.echo(summary(job, write_pairs(job, work.make)))
