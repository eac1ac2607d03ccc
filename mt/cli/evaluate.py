"""`mt evaluate`."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import typer

from mt.cli import evaluate_options as options
from mt.cli.options import DecodingOverrides, Device
from mt.config.load import require_section
from mt.errors import UserError

if TYPE_CHECKING:
    from mt.evaluation.job import EvaluationJob
    from mt.evaluation.robustness import RobustnessCard
    from mt.evaluation.scores import Evaluation


def evaluate(
    run: options.Run = None,
    split: options.Split = None,
    hypotheses: options.Hypotheses = None,
    references: options.References = None,
    target_language: options.TargetLanguage = None,
    sources: options.Sources = None,
    bleu_tokenizer: options.BleuTokenizer = None,
    metric: options.Metric = None,
    bootstrap: options.Bootstrap = None,
    allow: options.Allow = None,
    write_comet: options.WriteComet = None,
    robustness: options.Robustness = False,
    passport: options.Passport = None,
    check: options.CheckFile = None,
    overrides: DecodingOverrides = None,
    json: options.Json = False,
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
        from mt.evaluation.given_texts import GivenTexts
        from mt.evaluation.job import EvaluationJob

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
    from mt.evaluation.check import check_passport

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
    from mt.evaluation.robustness import evaluate_robustness

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
    from mt.evaluation.evaluate_files import evaluate_files
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
        from mt.evaluation.comet import comet_commands

        # JSON stays JSON: what to do next goes where it does not get in the way.
        typer.echo(comet_commands(comet, len(references) or 1), err=form == "json")
