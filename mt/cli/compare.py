"""Command `mt compare`."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from mt.cli.evaluate import Allow, Metrics, References
from mt.cli.options import Device, JsonFile
from mt.files import write_json, write_text


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
    html: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write a page with plots and examples.")
    ] = None,
    device: Device = "auto",
) -> None:
    """Compare systems: significance, slices, differences."""
    from mt.compare import compare as comparing
    from mt.compare.report import as_html, as_text, require_html
    from mt.compare.systems import Texts
    from mt.decoding.files import check_outputs

    check_outputs([json, html], [*(systems or ()), *(references or ()), sources])
    if html:
        require_html()
    options = comparing.CompareOptions(
        tuple(split or ()),
        Texts(tuple(references or ()), sources, target_language, bleu_tokenizer),
        metrics=tuple(metric or ()),
        allow=tuple(allow or ()),
        test=test,
        samples=samples,
        examples=examples,
        device=device,
    )
    comparison = comparing.compare(systems or (), options)
    if json:
        write_json(json, comparison.as_record())
    if html:
        write_text(html, as_html(comparison))
    typer.echo(as_text(comparison))
