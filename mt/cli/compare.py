"""`mt compare`."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

import typer

from mt.cli.evaluate_options import Allow, Metric, References
from mt.cli.options import Device
from mt.errors import UserError
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
    Path | None, typer.Option(metavar="FILE", help="With files: what was translated.")
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
    given = [*(systems or ()), *(references or ()), *([sources] if sources else [])]
    _check_outputs([each for each in (json, html) if each is not None], given)
    from mt.comparing import compare as comparing
    from mt.comparing.as_html import as_html
    from mt.comparing.as_text import as_text
    from mt.comparing.systems import Texts

    texts = Texts(tuple(references or ()), sources, target_language, bleu_tokenizer)
    wishes = comparing.Wishes(
        tuple(split or ()),
        texts,
        metrics=tuple(metric or ()),
        allow=tuple(allow or ()),
        test=test,
        samples=samples,
        examples=examples,
        device=device,
    )
    comparison = comparing.compare(systems or (), wishes)
    if json is not None:
        write_json(json, comparison.as_record())
    if html is not None:
        write_text(html, as_html(comparison))
    typer.echo(as_text(comparison))


def _check_outputs(files: Sequence[Path], given: Sequence[Path]) -> None:
    """Refuse, before work starts, what cannot be written or would cost a file that is compared."""
    taken = {each.resolve() for each in given}
    for file in files:
        if not file.parent.is_dir():
            raise UserError(f"{file}: there is no folder {file.parent}")
        if file.is_dir():
            raise UserError(f"{file}: is a folder, a file was expected")
        place = file.resolve()
        if place in taken:
            raise UserError(f"{file}: is named twice; what is compared is not written over")
        if place.exists() and not taken.isdisjoint(place.parents):
            raise UserError(f"{file}: is a file of a run that is compared, and not written over")
        taken.add(place)
