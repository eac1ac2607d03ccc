"""`mt compare`."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from mt.cli.evaluate import Allow, Metric, References
from mt.cli.options import Device
from mt.files import write_json, write_text

_Systems = Annotated[
    list[Path] | None,
    typer.Argument(
        metavar="SYSTEM",
        help="Two or more runs, exported models or files of translations; the first is the "
        "baseline.",
    ),
]
_Splits = Annotated[
    list[str] | None,
    typer.Option(metavar="NAME", help="Of runs: which split; further ones show their scores."),
]
_Sources = Annotated[
    Path | None, typer.Option(metavar="FILE", help="What was translated; runs are compared on it.")
]
_TargetLanguage = Annotated[
    str | None, typer.Option(metavar="CODE", help="With files: their language, such as zh.")
]
_BleuTokenizer = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="With files: BLEU's tokenizer, else that of the language."),
]
_Test = Annotated[
    Literal["bootstrap", "randomization"], typer.Option(help="How significance is tested.")
]
_Samples = Annotated[
    int | None,
    typer.Option(metavar="N", min=100, max=100_000, help="Else 1000, or 10,000 for randomization."),
]
_Examples = Annotated[
    int,
    typer.Option(metavar="N", min=0, help="Sentences that gain most and lose most, to show."),
]
_Json = Annotated[Path | None, typer.Option(metavar="FILE", help="Write everything as JSON.")]
_Html = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Write a page with plots and examples.")
]


def compare(
    systems: _Systems = None,
    split: _Splits = None,
    references: References = None,
    target_language: _TargetLanguage = None,
    sources: _Sources = None,
    bleu_tokenizer: _BleuTokenizer = None,
    metric: Metric = None,
    test: _Test = "bootstrap",
    samples: _Samples = None,
    examples: _Examples = 5,
    allow: Allow = None,
    json: _Json = None,
    html: _Html = None,
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
