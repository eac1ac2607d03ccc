"""Commands `mt evaluate` and `mt compare`."""

from collections.abc import Callable
from json import dumps
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from mt.cli.options import (
    AsJson,
    DecodingOverrides,
    Device,
    GlossaryFile,
    decoding_only,
    refuse_given,
)
from mt.errors import UserError

References = Annotated[
    list[Path] | None, typer.Option(metavar="FILE", help="Reference translations; repeatable.")
]
Metrics = Annotated[
    list[str] | None,
    typer.Option(metavar="NAME", help="Further metric, chrf++ or ter; repeatable."),
]
MetricCommands = Annotated[
    list[str] | None,
    typer.Option(metavar="NAME=COMMAND", help="Metric of another program; repeatable."),
]
TargetLanguage = Annotated[
    str | None, typer.Option(metavar="CODE", help="With files: their language, such as zh.")
]
Tokenizer = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="With files: BLEU tokenizer; default: by language."),
]
Allow = Annotated[
    list[str] | None, typer.Option(metavar="REASON", help="Score despite this error; repeatable.")
]
_USAGE = (
    "score RUN with --split, or with --sources and --references; or FILE with --references and "
    "--target-language"
)


def evaluate(
    target: Annotated[
        Path, typer.Argument(metavar="RUN|FILE", help="Run folder, or file of translations.")
    ],
    split: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="With RUN: split, sacrebleu:NAME, or name of --sources."),
    ] = None,
    references: References = None,
    sources: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Sources; with RUN, the text to translate.")
    ] = None,
    target_language: TargetLanguage = None,
    bleu_tokenizer: Tokenizer = None,
    metric: Metrics = None,
    metric_command: MetricCommands = None,
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
    """Score a run or a file of translations.

    A run with --sources alone translates them and projects their chrF from the confidence of lines.
    """
    tasks = {"--calibrate": calibrate, "--glossary": glossary}
    run_options = {"--split": split, "--set": overrides, **tasks}
    file_options = {"--target-language": target_language, "--bleu-tokenizer": bleu_tokenizer}
    scoring = {"--metric": metric, "--metric-command": metric_command, "--bootstrap": bootstrap}
    is_run = target.is_dir() or not (references and target_language)
    if is_run and target.is_file() and target.suffix != ".yaml":
        raise UserError(f"{target}: a file is scored with --references and --target-language")
    refused, by = (file_options, "a run") if is_run else (run_options, "a file")
    refuse_given(refused, f"cannot be combined with {by}; {_USAGE}")
    decoding_only(overrides)
    unscored = None if references or calibrate or not is_run else sources
    if is_run and bool(sources) != bool(references) and not unscored:
        raise UserError("a run is scored on --sources and --references; give both")
    if calibrate or unscored:
        others = {"--allow": allow, "--split": unscored and split, "--glossary": glossary}
        task = "--calibrate" if calibrate else "--sources without --references"
        refuse_given({**scoring, **others}, f"cannot be combined with {task}; {_USAGE}")
    from mt.evaluation import calibration
    from mt.evaluation import evaluate as evaluation
    from mt.evaluation.scores import parse_metrics

    job = evaluation.EvaluationJob(
        parse_metrics(metric or (), metric_command or ()),
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
        typer.Option(metavar="NAME", help="With runs: split, or sacrebleu:NAME; repeatable."),
    ] = None,
    references: References = None,
    target_language: TargetLanguage = None,
    sources: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Sources, one sentence per line.")
    ] = None,
    bleu_tokenizer: Tokenizer = None,
    metric: Metrics = None,
    metric_command: MetricCommands = None,
    test: Annotated[
        Literal["bootstrap", "randomization"], typer.Option(help="Significance test.")
    ] = "bootstrap",
    samples: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=100,
            max=10_000,
            help="Samples of the test; default: 1000, or 10,000 for randomization.",
        ),
    ] = None,
    allow: Allow = None,
    overrides: DecodingOverrides = None,
    as_json: AsJson = False,
    device: Device = "auto",
) -> None:
    """Compare systems: scores, significance, scores by length.

    One run with --set is compared with itself: as it is, and with these settings.
    """
    decoding_only(overrides)
    from mt.evaluation.compare import CompareOptions
    from mt.evaluation.compare import compare as compare_systems
    from mt.evaluation.scores import parse_metrics

    options = CompareOptions(
        tuple(split or ()),
        tuple(references or ()),
        sources,
        target_language,
        bleu_tokenizer,
        parse_metrics(metric or (), metric_command or ()),
        tuple(allow or ()),
        test,
        samples,
        device,
        tuple(overrides or ()),
    )
    comparisons = compare_systems(systems or (), options)
    if as_json:
        records = [comparison.as_record() for comparison in comparisons]
        typer.echo(dumps(records, indent=2, ensure_ascii=False))
    else:
        typer.echo("\n\n".join(comparison.as_text() for comparison in comparisons))
