"""Command `mt distill`."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mt.cli.options import DecodingOverrides, Device, ShardOption, decoding_only, load, refuse_given
from mt.errors import UserError
from mt.tables import align_columns

if TYPE_CHECKING:
    from mt.augment.candidate_filters import Selection
    from mt.decoding.shards import Result


def distill(
    inputs: Annotated[
        list[Path],
        typer.Argument(
            metavar="RUN CONFIG|TEXT",
            help="Run folder of the teacher, and a config with the training sources, or a text in "
            "its source language. With --from: the config, and a text for an endpoint.",
        ),
    ],
    out: Annotated[
        Path,
        typer.Option(
            metavar="DIR",
            writable=True,
            help="Output folder; the same command resumes stopped work.",
        ),
    ],
    origin: Annotated[
        str | None,
        typer.Option(
            "--from",
            metavar="FILE|URL",
            help="Translations by another program: source, tab, translation, perhaps further "
            'translations; or .jsonl: {"source": "...", "translations": ["..."]}. Or the address '
            "of an OpenAI-compatible endpoint, such as http://localhost:8000/v1; the environment "
            "variable MT_TEACHER_KEY has the key.",
        ),
    ] = None,
    n_best: Annotated[
        int,
        typer.Option(
            min=1,
            metavar="N",
            help="Of N translations, keep the one most similar to the reference, or to the others "
            "of an endpoint, by sentence BLEU.",
        ),
    ] = 1,
    noise: Annotated[
        bool,
        typer.Option(
            "--noise", help="Drop, mask and move words of the translations, for back-translation."
        ),
    ] = False,
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
    allow: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="With --from: disable this filter; repeatable."),
    ] = None,
    shard: ShardOption = None,
    overrides: DecodingOverrides = None,
    device: Device = "auto",
) -> None:
    """Generate training pairs from the translations of a teacher.

    The teacher is a run, or with --from another program. Translations of another program are
    filtered; NAME.rejected.tsv has those left out, with reasons. For back-translation, RUN
    translates a text in the target language of the new system.
    """
    if out.exists() and not out.is_dir():
        raise UserError(f"{out}: is a file; name a folder")
    checked = decoding_only(overrides)
    request = {"--model": model, "--prompt": prompt, "--temperature": temperature}
    if origin is None:
        refuse_given({**request, "--allow": allow}, "requires --from")
        run, sources = _expect(inputs, "RUN, and CONFIG or a text", 2, 2)
        from mt.decoding.shards import ProduceWindows, Shard, chosen_shard, run_shard

        with chosen_shard(shard) as part:
            from mt.augment.distill import NOISE, PAIRS, WRITTEN, Distillation, Sources, Teacher

            text = load(sources).data if sources.suffix in {".yaml", ".yml"} else sources
            teacher = Teacher.read(run, overrides=checked, device=device)
            distillation = Distillation(teacher, Sources(text), n_best, NOISE if noise else None)

            def start() -> ProduceWindows:
                assert teacher.translator  # loaded before a file is made
                return distillation.make_windows

            result = run_shard(distillation.plan_job(out, part or Shard()), start)
            if result is not None:
                counts = {
                    PAIRS if reason == WRITTEN else f"skipped: {reason}": count
                    for reason, count in sorted(result.record.counts.items())
                }
                _print_result(result, counts)
        return
    refuse_given({"--set": overrides, "--noise": noise}, "requires a RUN as the teacher")
    is_endpoint = "://" in origin
    config, *texts = _expect(inputs, "CONFIG", 1, 2 if is_endpoint else 1)
    data = load(config).data
    from mt.augment.candidate_filters import Selection

    languages = (data.source_language, data.target_language)
    selection = Selection(Path(origin), languages, tuple(allow or ()))
    if not is_endpoint:
        refuse_given({**request, "--shard": shard, "--n-best": n_best > 1}, "requires a URL")
        _select(selection, out)
        return
    selection.check()
    from mt.augment.distill import Sources
    from mt.augment.endpoint import PROMPT, Collection, Endpoint
    from mt.decoding.shards import Shard, chosen_shard, refuse_existing, run_shard

    if model is None:
        raise UserError("--from URL: needs --model NAME, the model of the endpoint")
    endpoint = Endpoint(origin, model, languages, prompt or PROMPT, temperature or 0.0, n_best)
    collection = Collection(endpoint, Sources(texts[0] if texts else data))
    with chosen_shard(shard) as part:
        job = collection.plan_job(out, part or Shard())
        selection = replace(selection, candidates=job.outputs[0])
        if not job.outputs[-1].exists():  # before candidates are paid for
            refuse_existing(selection.list_files(out))
        result = run_shard(job, lambda: collection.make_windows)
    if result is None:
        return
    if result.missing:
        typer.echo("\n".join([*map(str, result.files), result.missing]))
    else:
        _select(selection, out)


def _expect(inputs: list[Path], names: str, least: int, most: int) -> list[Path]:
    if not least <= len(inputs) <= most:
        raise UserError(f"expected {names}, got: {' '.join(map(str, inputs))}")
    return inputs


def _select(selection: "Selection", out: Path) -> None:
    """Select pairs, and print the result."""
    from mt.decoding.shards import run_shard

    result = run_shard(selection.plan_job(out), lambda: selection.make_windows)
    assert result is not None, "one process does all"
    counts = sorted(result.record.counts.items(), key=lambda item: (-item[1], item[0]))
    _print_result(result, dict(counts))


def _print_result(result: "Result", counts: Mapping[str, int | float]) -> None:
    """Print the counts and the files written; raise UserError if all is done without a pair."""
    from mt.augment.distill import PAIRS

    lines = f"{result.record.lines:,}"
    rows = [("lines read", lines), *((name, f"{count:,}") for name, count in counts.items())]
    texts = [align_columns(rows, right=[1]), *map(str, result.files), result.missing]
    typer.echo("\n".join(filter(None, texts)))
    if not (result.missing or counts.get(PAIRS)):
        raise UserError(f"no pair is left of {lines} lines; the counts above have the reasons")
