"""Commands `mt backtranslate` and `mt distill`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from mt.cli.options import (
    DecodingOverrides,
    Device,
    RunArgument,
    ShardOption,
    decoding_only,
    load,
)
from mt.tables import aligned

if TYPE_CHECKING:
    from mt.augment.backtranslate import BackTranslation
    from mt.augment.distill import Distillation
    from mt.decoding.shards import Job

Out = Annotated[
    Path,
    typer.Option(metavar="DIR", help="Output folder; the same command resumes stopped work."),
]


def backtranslate(
    run: RunArgument,
    mono: Annotated[
        Path, typer.Argument(metavar="MONO", help="Text in the source language of RUN.")
    ],
    out: Out,
    search: Annotated[
        Literal["sample", "beam", "greedy"],
        typer.Option(help="Search; samples help most unless data is scarce."),
    ] = "sample",
    drop: Annotated[
        float, typer.Option(metavar="P", help="Probability of dropping a word; try 0.1.")
    ] = 0.0,
    mask: Annotated[
        float, typer.Option(metavar="P", help="Probability of masking a word by <blank>; try 0.1.")
    ] = 0.0,
    swap: Annotated[
        int, typer.Option(metavar="N", help="Maximum distance of word shuffling; try 3.")
    ] = 0,
    shard: ShardOption = None,
    overrides: DecodingOverrides = None,
    device: Device = "auto",
) -> None:
    """Generate training pairs from monolingual text.

    The text is in the target language of the new system, and RUN translates in the opposite
    direction: its translation becomes the source of a pair, and the text the target.
    """
    checked = decoding_only(overrides)
    from mt.decoding.shards import Shard, chosen_shard

    with chosen_shard(shard) as part:
        from mt.augment.backtranslate import BackTranslation
        from mt.augment.teacher import Teacher
        from mt.data.noise import Noise

        options = [f"decoding.search={search}", *checked]
        teacher = Teacher.read(run, overrides=options, device=device)
        work = BackTranslation(teacher, mono, Noise(drop, mask, swap))
        _write(work, work.job(out, part or Shard()))


def distill(
    run: RunArgument,
    origin: Annotated[
        Path,
        typer.Argument(metavar="CONFIG", help="Config with the training sources, or a text file."),
    ],
    out: Out,
    n_best: Annotated[
        int,
        typer.Option(min=1, metavar="N", help="Of N translations, keep the best match."),
    ] = 1,
    similarity: Annotated[
        Literal["bleu", "chrf"], typer.Option(help="Similarity to the reference if N is above 1.")
    ] = "bleu",
    shard: ShardOption = None,
    overrides: DecodingOverrides = None,
    device: Device = "auto",
) -> None:
    """Generate training pairs from the translations of a teacher.

    The sources are those that CONFIG trains on, and the targets are the translations of RUN.
    """
    checked = decoding_only(overrides)
    from mt.decoding.shards import Shard, chosen_shard

    with chosen_shard(shard) as part:
        from mt.augment.distill import Distillation, Interpolation
        from mt.augment.teacher import Teacher

        data = load(origin).data if origin.suffix in {".yaml", ".yml"} else origin
        interpolation = Interpolation(n_best, similarity) if n_best > 1 else None
        teacher = Teacher.read(run, overrides=checked, device=device)
        work = Distillation(teacher, data, interpolation)
        _write(work, work.job(out, part or Shard()))


def _write(work: "BackTranslation | Distillation", job: "Job") -> None:
    """Do a job, and print the counts, the files written, and the shards still missing."""
    from mt.decoding.shards import Make, complete

    def start() -> Make:
        teacher = work.teacher
        assert teacher.translator  # loaded before a file is made
        return lambda lines: teacher.windows(work.make(lines))

    if (result := complete(job, start)) is None:
        return
    rows = [("lines read", f"{result.record.lines:,}")]
    rows += [
        (f"skipped: {reason}" if reason != "written" else "pairs written", f"{count:,}")
        for reason, count in sorted(result.record.counts.items())
    ]
    lines = [aligned(rows, right=[1]), *map(str, result.files), result.missing]
    typer.echo("\n".join(filter(None, lines)))
