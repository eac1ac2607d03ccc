"""`mt evaluate`."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from mt.cli.options import DecodingOverrides, Device
from mt.config.loading import require_section
from mt.errors import UserError

if TYPE_CHECKING:
    from mt.evaluation.evaluate import EvaluationJob
    from mt.evaluation.robustness import RobustnessCard
    from mt.evaluation.scores import Evaluation


Run = Annotated[
    Path | None,
    typer.Argument(metavar="RUN", help="The run folder, unless --hypotheses is given."),
]
Split = Annotated[
    str | None, typer.Option(metavar="NAME", help="With RUN: which split; of --sources its name.")
]
Hypotheses = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Translations to score, one per line.")
]
References = Annotated[
    list[Path] | None,
    typer.Option(metavar="FILE", help="Right translations; repeat it for further ones."),
]
TargetLanguage = Annotated[
    str | None, typer.Option(metavar="CODE", help="The language of --hypotheses, such as zh.")
]
Sources = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="What was translated; with RUN, what to translate."),
]
BleuTokenizer = Annotated[
    str | None,
    typer.Option(
        metavar="NAME", help="With --hypotheses: BLEU's tokenizer, else that of the language."
    ),
]
Metric = Annotated[
    list[str] | None, typer.Option(metavar="NAME", help="Also by chrf++ or ter; may be repeated.")
]
Bootstrap = Annotated[
    int | None,
    typer.Option(metavar="N", min=100, help="Give 95 % intervals by N samples, such as 1000."),
]
Allow = Annotated[
    list[str] | None,
    typer.Option(metavar="REASON", help="Score what is refused for this; may be repeated."),
]
WriteComet = Annotated[
    Path | None, typer.Option(metavar="DIR", help="Write the files that COMET reads.")
]
Robustness = Annotated[
    bool,
    typer.Option("--robustness", help="With RUN: also on sources with typos, in capitals and so."),
]
Passport = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="With --hypotheses: the passport, else beside them."),
]
CheckFile = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Compute the scores of a passport again, and nothing else."),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def evaluate(
    run: Run = None,
    split: Split = None,
    hypotheses: Hypotheses = None,
    references: References = None,
    target_language: TargetLanguage = None,
    sources: Sources = None,
    bleu_tokenizer: BleuTokenizer = None,
    metric: Metric = None,
    bootstrap: Bootstrap = None,
    allow: Allow = None,
    write_comet: WriteComet = None,
    robustness: Robustness = False,
    passport: Passport = None,
    check: CheckFile = None,
    overrides: DecodingOverrides = None,
    json: Json = False,
    device: Device = "auto",
) -> None:
    """Score a run, or a file of translations, or check a score."""
    both: dict[str, object] = {"--sources": sources, "--references": references, "--json": json}
    both |= {"--metric": metric, "--bootstrap": bootstrap, "--allow": allow}
    of_files: dict[str, object] = {"--hypotheses": hypotheses, "--passport": passport}
    of_files |= {"--target-language": target_language, "--bleu-tokenizer": bleu_tokenizer}
    of_run = {"--split": split, "--set": overrides, "--robustness": robustness}
    if check is not None:
        _refuse({"RUN": run, "--write-comet": write_comet, **both, **of_files, **of_run}, "--check")
        _check(check)
        return
    wishes = _Wishes(metric or (), bootstrap or 0, allow or (), write_comet, passport)
    if run is not None:
        _refuse(of_files, "a run")
        wishes = replace(wishes, texts=_both_sides(sources, references or ()))
        score = _score_robustness if robustness else _score_run
        result = score(run, split, overrides=overrides or (), device=device, wishes=wishes)
    else:
        _refuse(of_run, "--hypotheses")
        scored = _Texts(hypotheses, references or (), sources, target_language, bleu_tokenizer)
        result = _score_files(scored, wishes)
    _print(result, write_comet, references or (), form="json" if json else "text")


@dataclass(frozen=True, slots=True)
class _Texts:
    hypotheses: Path | None
    references: Sequence[Path]
    sources: Path | None
    language: str | None
    tokenizer: str | None


@dataclass(frozen=True, slots=True)
class _Wishes:
    metrics: Sequence[str]
    resamples: int
    allow: Sequence[str]
    comet: Path | None
    passport: Path | None
    texts: tuple[Path, Sequence[Path]] | None = None
    """Sources and references to score a run on."""

    def job(self, passport: Path | None) -> "EvaluationJob":
        """Return the job, once its module may be imported."""
        from mt.evaluation.evaluate import EvaluationJob, GivenTexts

        given = GivenTexts(self.texts[0], tuple(self.texts[1])) if self.texts else None
        return EvaluationJob(
            tuple(self.metrics),
            self.resamples,
            tuple(self.allow),
            self.comet,
            given,
            passport,
        )


def _refuse(options: Mapping[str, object], beside: str) -> None:
    for name, value in options.items():
        if value:
            raise UserError(
                f"{name} does not go with {beside}; score either RUN with --split, or with "
                "--sources and --references, or --hypotheses with --references and "
                "--target-language"
            )


def _both_sides(
    sources: Path | None, references: Sequence[Path]
) -> tuple[Path, Sequence[Path]] | None:
    """Return the texts that a run is scored on; None for a split of its config."""
    if sources is None and not references:
        return None
    if sources is None or not references:
        lacking = "--references" if sources else "--sources"
        raise UserError(f"{lacking} is missing: a run is scored on --sources and --references")
    return sources, references


def _check(passport: Path) -> None:
    from mt.evaluation.passport import check_passport

    check = check_passport(passport)
    typer.echo(check.text)
    if not check.passed:
        raise typer.Exit(1)


def _score_run(
    run: Path, split: str | None, *, overrides: Sequence[str], device: str, wishes: _Wishes
) -> "Evaluation":
    require_section(overrides, "decoding")
    from mt.evaluation.evaluate import evaluate_run

    job = wishes.job(None)
    return evaluate_run(run, split=split, overrides=overrides, device=device, job=job)


def _score_robustness(
    run: Path, split: str | None, *, overrides: Sequence[str], device: str, wishes: _Wishes
) -> "RobustnessCard":
    require_section(overrides, "decoding")
    given = {"--metric": wishes.metrics, "--bootstrap": wishes.resamples}
    for name, value in {**given, "--write-comet": wishes.comet}.items():
        if value:
            raise UserError(f"{name} does not go with --robustness, which is by BLEU and chrF2")
    from mt.evaluation.evaluate import evaluate_robustness

    job = wishes.job(None)
    return evaluate_robustness(run, split=split, overrides=overrides, device=device, job=job)


def _score_files(texts: _Texts, wishes: _Wishes) -> "Evaluation":
    if texts.hypotheses is None:
        raise UserError("name what to score: RUN, or --hypotheses with --references")
    if not texts.references:
        raise UserError("--hypotheses needs --references, the right translations")
    if texts.language is None:
        raise UserError("--hypotheses needs --target-language, such as zh")
    others = [*texts.references, *([texts.sources] if texts.sources else [])]
    from mt.evaluation.evaluate import evaluate_files
    from mt.evaluation.passport import default_place

    return evaluate_files(
        texts.hypotheses,
        texts.references,
        target_language=texts.language,
        tokenizer=texts.tokenizer or "auto",
        sources=texts.sources,
        job=wishes.job(wishes.passport or default_place(texts.hypotheses, others)),
    )


def _print(
    result: "Evaluation | RobustnessCard",
    comet: Path | None,
    references: Sequence[Path],
    *,
    form: Literal["json", "text"],
) -> None:
    typer.echo(result.as_json() if form == "json" else result.as_text())
    if comet is not None:
        from mt.evaluation.evaluate import comet_commands

        # JSON stays JSON: what to do next goes where it does not get in the way.
        typer.echo(comet_commands(comet, len(references) or 1), err=form == "json")
