"""Options of the commands that make training pairs, and what these commands print."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mt.evaluation.columns import aligned

if TYPE_CHECKING:
    from mt.augment.record import Job, Record

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
