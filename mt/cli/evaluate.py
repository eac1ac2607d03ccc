"""Commands `mt evaluate` and `mt compare`."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Literal

import typer

from mt.cli.options import AsJson, DecodingOverrides, Device, JsonFile, decoding_only
from mt.errors import UserError
from mt.files import write_json, write_text

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
    run: Annotated[
        Path | None,
        typer.Argument(metavar="RUN", help="Run folder, unless --hypotheses is given."),
    ] = None,
    split: Annotated[
        str | None, typer.Option(metavar="NAME", help="With RUN: split, or a name for --sources.")
    ] = None,
    hypotheses: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Translations to score, one per line.")
    ] = None,
    references: References = None,
    target_language: Annotated[
        str | None, typer.Option(metavar="CODE", help="Language of --hypotheses, such as zh.")
    ] = None,
    sources: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Sources; with RUN, the text to translate."),
    ] = None,
    bleu_tokenizer: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="With --hypotheses: BLEU tokenizer; default: by language."
        ),
    ] = None,
    metric: Metrics = None,
    bootstrap: Annotated[
        int | None,
        typer.Option(metavar="N", min=100, help="Add 95 % intervals from N samples, such as 1000."),
    ] = None,
    allow: Allow = None,
    write_comet: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Write input files for COMET.")
    ] = None,
    robustness: Annotated[
        bool,
        typer.Option("--robustness", help="With RUN: also score sources with typos, capitals etc."),
    ] = False,
    passport: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="With --hypotheses: score passport to write; default: next to them.",
        ),
    ] = None,
    check: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Verify the scores of a passport, and nothing else."),
    ] = None,
    overrides: DecodingOverrides = None,
    as_json: AsJson = False,
    device: Device = "auto",
) -> None:
    """Score a run or a file of translations, or verify a score."""
    shared: dict[str, object] = {"--sources": sources, "--references": references}
    shared |= {"--metric": metric, "--bootstrap": bootstrap, "--allow": allow, "--json": as_json}
    of_files: dict[str, object] = {"--hypotheses": hypotheses, "--passport": passport}
    of_files |= {"--target-language": target_language, "--bleu-tokenizer": bleu_tokenizer}
    of_run = {"--split": split, "--set": overrides, "--robustness": robustness}
    if check is not None:
        alone = {"RUN": run, "--write-comet": write_comet, **shared, **of_files, **of_run}
        _refuse(alone, "--check")
        _verify(check)
        return
    if run is not None:
        _refuse(of_files, "a run")
        _check_run_options(overrides, sources, references)
        if robustness:
            other = {"--metric": metric, "--bootstrap": bootstrap, "--write-comet": write_comet}
            _refuse(other, "--robustness, which scores by BLEU and chrF2")
    else:
        _refuse(of_run, "--hypotheses")
        _check_file_options(hypotheses, references, target_language)
    from mt.evaluation import evaluate as scoring
    from mt.evaluation.passport import default_place
    from mt.evaluation.robustness import RobustnessCard
    from mt.evaluation.scores import Evaluation

    references = references or []
    job = scoring.EvaluationJob(
        tuple(metric or ()), bootstrap or 0, tuple(allow or ()), write_comet
    )
    result: Evaluation | RobustnessCard
    if run is not None:
        if sources is not None:
            job = replace(job, texts=scoring.GivenTexts(sources, tuple(references)))
        score = scoring.evaluate_robustness if robustness else scoring.evaluate_run
        result = score(run, split=split, overrides=overrides or (), device=device, job=job)
    else:
        assert hypotheses is not None
        assert target_language is not None
        other_files = [*references, *([sources] if sources else [])]
        passport = passport or default_place(hypotheses, other_files)
        result = scoring.evaluate_files(
            hypotheses,
            references,
            target_language=target_language,
            tokenizer=bleu_tokenizer or "auto",
            sources=sources,
            job=replace(job, passport=passport),
        )
    typer.echo(result.as_json() if as_json else result.as_text())
    if write_comet is not None:
        # With --json, stdout is JSON only.
        typer.echo(scoring.comet_commands(write_comet, len(references) or 1), err=as_json)


def _refuse(options: Mapping[str, object], other: str) -> None:
    for name, value in options.items():
        if value:
            raise UserError(f"{name} cannot be combined with {other}; {_USAGE}")


_USAGE = (
    "score RUN with --split, or with --sources and --references; or score --hypotheses with "
    "--references and --target-language"
)


def _check_run_options(
    overrides: list[str] | None, sources: Path | None, references: list[Path] | None
) -> None:
    decoding_only(overrides)
    if bool(sources) != bool(references):
        missing = "--references" if sources else "--sources"
        raise UserError(f"{missing} is missing; to score a run on files, give both sides")


def _check_file_options(
    hypotheses: Path | None, references: list[Path] | None, language: str | None
) -> None:
    if hypotheses is None:
        raise UserError(f"nothing to score; {_USAGE}")
    if not references:
        raise UserError("--hypotheses needs --references, the reference translations")
    if language is None:
        raise UserError("--hypotheses needs --target-language, such as zh")


def _verify(passport: Path) -> None:
    from mt.evaluation.passport import check_passport

    check = check_passport(passport)
    typer.echo(check.text)
    if not check.passed:
        raise typer.Exit(1)


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
    examples: Annotated[
        int,
        typer.Option(metavar="N", min=0, help="Sentences to show with the most gain and loss."),
    ] = 5,
    allow: Allow = None,
    json: JsonFile = None,
    html: Annotated[Path | None, typer.Option(metavar="FILE", help="Write an HTML page.")] = None,
    device: Device = "auto",
) -> None:
    """Compare systems: significance, slices, most different sentences."""
    from mt.compare.compare import CompareOptions
    from mt.compare.compare import compare as compare_systems
    from mt.compare.report import as_html, as_text
    from mt.compare.systems import GivenTestSet
    from mt.decoding.files import check_outputs
    from mt.doctor.page import check_html_package

    check_outputs([json, html], [*(systems or ()), *(references or ()), sources])
    if html:
        check_html_package()
    options = CompareOptions(
        tuple(split or ()),
        GivenTestSet(tuple(references or ()), sources, target_language, bleu_tokenizer),
        metrics=tuple(metric or ()),
        allow=tuple(allow or ()),
        test=test,
        samples=samples,
        examples=examples,
        device=device,
    )
    comparison = compare_systems(systems or (), options)
    if json:
        write_json(json, comparison.as_record())
    if html:
        write_text(html, as_html(comparison))
    typer.echo(as_text(comparison))
