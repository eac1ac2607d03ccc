"""Options of `mt evaluate`."""

from pathlib import Path
from typing import Annotated

import typer

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
