"""Commands `mt evaluate` and `mt compare`."""

from collections.abc import Callable, Mapping
from functools import partial
from json import dumps
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from mt.cli.options import (
    AsJson,
    DecodingOverrides,
    Device,
    GlossaryFile,
    ReportFiles,
    check_report_files,
    decoding_only,
    write_reports,
)
from mt.errors import UserError

References = Annotated[
    list[Path] | None,
    typer.Option(metavar="FILE", help="Reference translations; repeatable."),
]
Metrics = Annotated[
    list[str] | None,
    typer.Option(metavar="NAME", help="Further metric, chrf++ or ter; repeatable."),
]
Allow = Annotated[
    list[str] | None,
    typer.Option(metavar="REASON", help="Score despite this error; repeatable."),
]


def evaluate(
    target: Annotated[
        Path,
        typer.Argument(
            metavar="RUN|FILE",
            help="Run folder, file of translations, or the .json passport of a score to verify.",
        ),
    ],
    split: Annotated[
        str | None, typer.Option(metavar="NAME", help="With RUN: split, or a name for --sources.")
    ] = None,
    references: References = None,
    sources: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Sources; with RUN, the text to translate."),
    ] = None,
    target_language: Annotated[
        str | None, typer.Option(metavar="CODE", help="With FILE: its language, such as zh.")
    ] = None,
    bleu_tokenizer: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="With FILE: BLEU tokenizer; default: by language."),
    ] = None,
    metric: Metrics = None,
    glossary: GlossaryFile = None,
    bootstrap: Annotated[
        int | None,
        typer.Option(metavar="N", min=100, help="Add 95 % intervals from N samples, such as 1000."),
    ] = None,
    allow: Allow = None,
    calibrate: Annotated[
        bool,
        typer.Option("--calibrate", help="With RUN: learn the confidence of lines from a split."),
    ] = False,
    overrides: DecodingOverrides = None,
    as_json: AsJson = False,
    device: Device = "auto",
) -> None:
    """Score a run or a file of translations, or verify a score.

    A run with --sources alone translates them and projects their chrF from the confidence of lines.
    """
    tasks = {"--calibrate": calibrate, "--glossary": glossary}
    run_options = {"--split": split, "--set": overrides, **tasks}
    file_options = {"--target-language": target_language, "--bleu-tokenizer": bleu_tokenizer}
    texts = {"--references": references, "--sources": sources}
    scoring = {"--metric": metric, "--bootstrap": bootstrap}
    if target.suffix == ".json":
        _refuse({**run_options, **file_options, **texts, **scoring, "--allow": allow}, "a passport")
        from mt.evaluation.passport import check_passport

        problems = check_passport(target)
        for problem in problems:
            typer.echo(f"FAIL: {problem}")
        if problems:
            raise typer.Exit(1)
        typer.echo(f"{target}: all inputs are unchanged")
        return
    is_run = target.is_dir() or not (references and target_language)
    if is_run and target.is_file():
        raise UserError(f"{target}: a file is scored with --references and --target-language")
    _refuse(file_options if is_run else run_options, "a run" if is_run else "a file")
    decoding_only(overrides)
    unscored = None if references or calibrate or not is_run else sources
    if is_run and bool(sources) != bool(references) and not unscored:
        raise UserError("a run is scored on --sources and --references; give both")
    if calibrate or unscored:
        others = {"--allow": allow, "--split": unscored and split}
        task = "--calibrate" if calibrate else "--sources without --references"
        _refuse({**scoring, **others, "--glossary": glossary}, task)
    from mt.evaluation import calibration
    from mt.evaluation import evaluate as evaluation

    job = evaluation.EvaluationJob(
        tuple(metric or ()),
        bootstrap or 0,
        tuple(allow or ()),
        evaluation.GivenTexts(sources, tuple(references or ())) if is_run and sources else None,
        glossary=glossary,
    )
    result: Any
    if unscored:
        result = calibration.project_run(target, unscored, overrides=overrides or (), device=device)
    elif not is_run:
        result = evaluation.evaluate_files(
            target,
            references or (),
            target_language=target_language or "",
            tokenizer=bleu_tokenizer or "auto",
            sources=sources,
            job=job,
        )
    else:
        score: Callable[..., Any] = (
            calibration.calibrate_run if calibrate else evaluation.evaluate_run
        )
        result = score(target, split=split, overrides=overrides or (), device=device, job=job)
    record = dumps(result.as_record(), indent=2, ensure_ascii=False)
    typer.echo(record if as_json else result.as_text())


def compare(
    systems: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="SYSTEM",
            help="Two or more runs, exported models or files of translations, the baseline first.",
        ),
    ] = None,
    split: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="With runs: split; further splits only show scores."),
    ] = None,
    references: References = None,
    target_language: Annotated[
        str | None, typer.Option(metavar="CODE", help="With files: their language, such as zh.")
    ] = None,
    sources: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Sources, one sentence per line.")
    ] = None,
    bleu_tokenizer: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="With files: BLEU tokenizer; default: by language."),
    ] = None,
    metric: Metrics = None,
    test: Annotated[
        Literal["bootstrap", "randomization"], typer.Option(help="Significance test.")
    ] = "bootstrap",
    samples: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=100,
            max=100_000,
            help="Samples of the test; default: 1000, or 10,000 for randomization.",
        ),
    ] = None,
    allow: Allow = None,
    output: ReportFiles = None,
    device: Device = "auto",
) -> None:
    """Compare systems: significance, slices, most different sentences."""
    from mt.compare.compare import CompareOptions
    from mt.compare.compare import compare as compare_systems
    from mt.compare.report import as_html, as_text
    from mt.compare.systems import GivenTestSet

    check_report_files(output or (), [*(systems or ()), *(references or ()), sources])
    options = CompareOptions(
        tuple(split or ()),
        GivenTestSet(tuple(references or ()), sources, target_language, bleu_tokenizer),
        metrics=tuple(metric or ()),
        allow=tuple(allow or ()),
        test=test,
        samples=samples,
        device=device,
    )
    comparison = compare_systems(systems or (), options)
    write_reports(output or (), comparison.as_record, partial(as_html, comparison))
    typer.echo(as_text(comparison))


def _refuse(options: Mapping[str, object], other: str) -> None:
    for name, value in options.items():
        if value:
            raise UserError(
                f"{name} cannot be combined with {other}; score RUN with --split, or with "
                "--sources and --references; or FILE with --references and --target-language"
            )
