"""`mt evaluate`."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mt.cli.options import DecodingOverrides, Device
from mt.config.load import require_section
from mt.errors import UserError

if TYPE_CHECKING:
    from mt.evaluation.scores import Evaluation


def evaluate(
    run: Annotated[
        Path | None,
        typer.Argument(metavar="RUN", help="The run folder, unless --hypotheses is given."),
    ] = None,
    split: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="With RUN: which split of its config."),
    ] = None,
    hypotheses: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Translations to score, one per line."),
    ] = None,
    references: Annotated[
        list[Path] | None,
        typer.Option(metavar="FILE", help="Right translations; repeat it for further ones."),
    ] = None,
    target_language: Annotated[
        str | None,
        typer.Option(metavar="CODE", help="The language of --hypotheses, such as zh."),
    ] = None,
    sources: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="With --hypotheses: what was translated."),
    ] = None,
    overrides: DecodingOverrides = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    device: Device = "auto",
) -> None:
    """Score a run, or a file of translations, by BLEU and chrF."""
    files = {"--hypotheses": hypotheses, "--references": references, "--sources": sources}
    if run is not None:
        _refuse({**files, "--target-language": target_language}, beside="a run")
        result = _score_run(run, split, overrides=overrides or (), device=device)
    else:
        _refuse({"--split": split, "--set": overrides}, beside="--hypotheses")
        result = _score_files(
            hypotheses, references or (), target_language=target_language, sources=sources
        )
    typer.echo(result.as_json() if json else result.as_text())


def _refuse(options: Mapping[str, object], *, beside: str) -> None:
    for name, value in options.items():
        if value:
            raise UserError(
                f"{name} does not go with {beside}; score either RUN with --split, or "
                "--hypotheses with --references and --target-language"
            )


def _score_run(
    run: Path, split: str | None, *, overrides: Sequence[str], device: str
) -> "Evaluation":
    require_section(overrides, "decoding")
    from mt.evaluation.evaluate import evaluate_run

    return evaluate_run(run, split=split, overrides=overrides, device=device)


def _score_files(
    hypotheses: Path | None,
    references: Sequence[Path],
    *,
    target_language: str | None,
    sources: Path | None,
) -> "Evaluation":
    if hypotheses is None:
        raise UserError("name what to score: RUN, or --hypotheses with --references")
    if not references:
        raise UserError("--hypotheses needs --references, the right translations")
    if target_language is None:
        raise UserError("--hypotheses needs --target-language, such as zh")
    from mt.evaluation.evaluate import evaluate_files

    return evaluate_files(hypotheses, references, target_language=target_language, sources=sources)
