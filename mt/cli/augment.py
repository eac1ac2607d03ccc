"""Commands `mt backtranslate` and `mt distill`."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from mt.cli.options import (
    DecodingOverrides,
    Device,
    RunArgument,
    ShardOption,
    decoding_only,
    load,
)
from mt.errors import UserError
from mt.tables import aligned

if TYPE_CHECKING:
    from mt.augment.candidate_filters import Selection
    from mt.augment.collection import Collection
    from mt.augment.distill import BackTranslation, Distillation, Similarity
    from mt.augment.endpoint import Endpoint
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
        from mt.augment.distill import BackTranslation
        from mt.augment.teacher import Teacher
        from mt.data.augmentation import Noise

        options = [f"decoding.search={search}", *checked]
        teacher = Teacher.read(run, overrides=options, device=device)
        work = BackTranslation(teacher, mono, Noise(drop, mask, swap))
        _write(work, work.job(out, part or Shard()))


def distill(
    places: Annotated[
        list[Path],
        typer.Argument(
            metavar="[RUN] CONFIG",
            help="Run folder of the teacher, and a config with the training sources, or a text. "
            "With another teacher: the config, and perhaps a text to translate instead.",
        ),
    ],
    out: Out,
    n_best: Annotated[
        int,
        typer.Option(min=1, metavar="N", help="Of N translations, keep the best match."),
    ] = 1,
    similarity: Annotated[
        Literal["bleu", "chrf"],
        typer.Option(
            help="Similarity to the reference, or to the other translations of another teacher."
        ),
    ] = "bleu",
    teacher: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Translations by another program: source, tab, translation, perhaps further "
            'translations; or .jsonl: {"source": "...", "translations": ["..."]}.',
        ),
    ] = None,
    teacher_command: Annotated[
        str | None,
        typer.Option(
            metavar="CMD",
            help="Program that reads sources, one per line, and writes a translation per line; "
            'with --n-best above 1 a JSON array: ["...", "..."]. It starts anew every 1,000 lines.',
        ),
    ] = None,
    teacher_url: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="OpenAI-compatible endpoint, such as http://localhost:8000/v1; the environment "
            "variable MT_TEACHER_KEY has the key.",
        ),
    ] = None,
    model: Annotated[
        str | None, typer.Option(metavar="NAME", help="Model of the endpoint.")
    ] = None,
    prompt: Annotated[
        str | None,
        typer.Option(
            metavar="TEXT",
            help="Request to the endpoint, with {source_language}, {target_language} and {text}.",
        ),
    ] = None,
    temperature: Annotated[
        float | None,
        typer.Option(min=0, metavar="T", help="Temperature of the endpoint; default: 0."),
    ] = None,
    requests: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="Requests at once to the endpoint; default: 8."),
    ] = None,
    timeout: Annotated[
        float | None,
        typer.Option(
            min=0.01, metavar="SECONDS", help="Time for an answer of the endpoint; default: 60."
        ),
    ] = None,
    price: Annotated[
        str | None,
        typer.Option(
            metavar="IN/OUT", help="Price of a million tokens sent and received, to show the cost."
        ),
    ] = None,
    judge: Annotated[
        Path | None,
        typer.Option(metavar="RUN", help="Run that scores the translations of another teacher."),
    ] = None,
    choose: Annotated[
        Literal["agreement", "judge"] | None,
        typer.Option(
            help="Choice among several translations of another teacher; default: agreement."
        ),
    ] = None,
    allow: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Filter of translations to leave out; repeatable."),
    ] = None,
    shard: ShardOption = None,
    overrides: DecodingOverrides = None,
    device: Device = "auto",
) -> None:
    """Generate training pairs from the translations of a teacher.

    The sources are those that CONFIG trains on, and the targets are the translations of RUN, or of
    another program by one of the --teacher options. Translations of another program are filtered;
    NAME.rejected.tsv has those left out, with reasons.
    """
    checked = decoding_only(overrides)
    teachers = {"": teacher, "-command": teacher_command, "-url": teacher_url}
    named = [f"--teacher{name}" for name, value in teachers.items() if value is not None]
    if len(named) > 1:
        raise UserError(f"{named[0]} and {named[1]}: the pairs have one teacher; name one")
    keys = {"model": model, "prompt": prompt, "temperature": temperature, "timeout": timeout}
    rules = {"judge": judge, "choose": choose, "allow": allow}
    if teacher_url is None:
        _refuse({**keys, "requests": requests, "price": price}, "--teacher-url")
    if not named:
        _refuse(rules, "--teacher, --teacher-command or --teacher-url")
        run, origin = _given(places, "RUN and CONFIG", 2, 2)
        _distill_with_run(run, origin, out, (n_best, similarity), shard, checked, device)
        return
    _refuse({"set": overrides}, "a RUN as the teacher")
    config, *texts = _given(places, "CONFIG, or CONFIG and a text,", 1, 2)
    data = load(config).data
    from mt.augment.candidate_filters import Judge, Selection

    selection = Selection(
        teacher or out,
        config,
        (data.source_language, data.target_language),
        judge=Judge(judge, device) if judge else None,
        choice=choose or "agreement",
        similarity=similarity,
        allow=tuple(allow or ()),
    )
    if teacher is not None:
        _refuse({"shard": shard, "n-best": n_best if n_best > 1 else None}, "another teacher")
        _given(places, "CONFIG alone", 1, 1)
        _select(selection, out)
        return
    from mt.augment.collection import AnswerSource, Collection, Command
    from mt.augment.teacher import Sources

    source: AnswerSource = Command(teacher_command or "", n_best)
    if teacher_url is not None:
        source = _endpoint(teacher_url, n_best, {**keys, "at_once": requests})
    collection = Collection(
        source, Sources(texts[0] if texts else data), config, selection.languages, _prices(price)
    )
    selection.check()
    if collected := _collect(collection, selection, out, shard):
        _select(collected, out)


_CONFIGS = {".yaml", ".yml"}


def _refuse(options: Mapping[str, object], wanted: str) -> None:
    """Raise UserError for an option that is given, but goes with something else."""
    for name, value in options.items():
        if value is not None:
            raise UserError(f"--{name}: goes with {wanted} only")


def _given(places: list[Path], wanted: str, least: int, most: int) -> list[Path]:
    if not least <= len(places) <= most:
        names = " ".join(map(str, places))
        raise UserError(f"{names}: {wanted} must be named here")
    return places


def _distill_with_run(
    run: Path,
    origin: Path,
    out: Path,
    best: tuple[int, "Similarity"],
    shard: str | None,
    overrides: Sequence[str],
    device: str,
) -> None:
    from mt.decoding.shards import Shard, chosen_shard

    with chosen_shard(shard) as part:
        from mt.augment.distill import Distillation, Interpolation
        from mt.augment.teacher import Sources, Teacher

        data = load(origin).data if origin.suffix in _CONFIGS else origin
        interpolation = Interpolation(*best) if best[0] > 1 else None
        teacher = Teacher.read(run, overrides=overrides, device=device)
        work = Distillation(teacher, Sources(data), interpolation)
        _write(work, work.job(out, part or Shard()))


def _endpoint(url: str, n_best: int, options: Mapping[str, Any]) -> "Endpoint":
    from mt.augment.endpoint import Endpoint

    given = {name: value for name, value in options.items() if value is not None}
    if "model" not in given:
        raise UserError("--teacher-url: needs --model NAME, the model of the endpoint")
    return Endpoint(url, n_best=n_best, **given)


def _prices(text: str | None) -> tuple[float, float] | None:
    """Parse `IN/OUT`, prices of a million tokens."""
    if text is None:
        return None
    try:
        sent, received = map(float, text.split("/"))
    except ValueError:
        raise UserError(f"--price {text}: must be two numbers, such as 0.15/0.6") from None
    return sent, received


def _collect(
    collection: "Collection", selection: "Selection", out: Path, shard: str | None
) -> "Selection | None":
    """Collect candidates and return the selection from them; None if other shards are missing.

    Raises UserError for files in the way of the selection, before candidates are paid for.
    """
    from mt.decoding.shards import Shard, chosen_shard, complete, refuse_existing

    with chosen_shard(shard) as part:
        job = collection.job(out, part or Shard())
        selection = replace(selection, candidates=job.files[0])
        if not job.record.exists():
            refuse_existing(selection.files(out))
        result = complete(job, lambda: collection.windows)
    if result is None:
        return None
    if result.missing:
        typer.echo("\n".join([*map(str, result.files), result.missing]))
        return None
    if spent := collection.spent(result.record.counts):
        typer.echo(spent)
    return selection


def _select(selection: "Selection", out: Path) -> None:
    """Select pairs, and print the counts and the files written."""
    from mt.decoding.shards import Make, complete

    def start() -> Make:
        assert selection.norms  # learned before a file is made
        return selection.windows

    result = complete(selection.job(out), start)
    assert result is not None, "one process does all"
    counts = result.record.counts
    rows = [("lines read", f"{result.record.lines:,}")]
    rows += [(name, f"{count:,}") for name, count in sorted(counts.items(), key=_by_count)]
    typer.echo("\n".join([aligned(rows, right=[1]), *map(str, result.files)]))


def _by_count(item: tuple[str, float]) -> tuple[float, str]:
    return -item[1], item[0]


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
