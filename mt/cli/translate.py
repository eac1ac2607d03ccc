"""`mt translate`."""

import sys
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mt.cli.options import DecodingOverrides, Device
from mt.config.loading import require_section
from mt.errors import UserError, install_hint

if TYPE_CHECKING:
    from mt.decoding.files import Form


NBest = Annotated[
    int | None,
    typer.Option(
        min=1, metavar="N", help="Print N translations a line: number (from 0) ||| text ||| score."
    ),
]
Prefixes = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Begin the translation of line N with line N of this file."),
]
Report = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Write number, status and notes of each line there."),
]


def translate(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The run folder.")],
    file: Annotated[
        Path | None,
        typer.Argument(metavar="FILE", help="The text, a sentence per line; stdin by default."),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE",
            help="Where to; stdout by default. A file there is replaced when all is done.",
        ),
    ] = None,
    prefixes: Prefixes = None,
    n_best: NBest = None,
    json: Annotated[
        bool, typer.Option("--json", help="Print a JSON object a line, with tokens and scores.")
    ] = False,
    report: Report = None,
    unbuffered: Annotated[
        bool, typer.Option("--unbuffered", help="Answer each line before the next is read.")
    ] = False,
    overrides: DecodingOverrides = None,
    device: Device = "auto",
) -> None:
    """Translate a text, line by line."""
    require_section(overrides or (), "decoding")
    from mt.decoding.files import FileJob, translate_file

    form: Form = "json" if json else "text" if n_best is None else "n-best"
    look_ahead = 1 if unbuffered else None
    job = FileJob(file, output, form, n_best or 1, report, look_ahead, prefixes)
    translate_file(run, job, overrides=overrides or (), device=device)


def score(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The run folder.")],
    sources: Annotated[
        Path, typer.Option(metavar="FILE", help="What was translated, a sentence per line.")
    ],
    targets: Annotated[
        Path, typer.Option(metavar="FILE", help="The translations to score, one per line.")
    ],
    json: Annotated[
        bool, typer.Option("--json", help="Print JSON, a line each, with tokens and their scores.")
    ] = False,
    overrides: DecodingOverrides = None,
    device: Device = "auto",
) -> None:
    """Tell how likely a run finds given translations.

    Prints a line for each: natural log-probability, tokens with the end mark, mean per token, tabs
    between. The perplexity of all together goes to stderr.
    """
    require_section(overrides or (), "decoding")
    from mt.decoding.scoring import Totals, score_files

    totals = Totals()
    settings = overrides or ()
    for each in score_files(
        run, sources=sources, targets=targets, overrides=settings, device=device
    ):
        sys.stdout.write(f"{each.as_json() if json else each.as_text()}\n")
        totals.add(each)
    sys.stdout.flush()
    typer.echo(totals.as_text(), err=True)


def serve(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The run folder.")],
    host: Annotated[
        str,
        typer.Option(metavar="HOST", help="Where to listen; for this machine alone unless set."),
    ] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(min=0, max=65535, metavar="PORT", help="0 takes one that is free.")
    ] = 8000,
    max_sentences: Annotated[
        int, typer.Option(min=1, metavar="N", help="Lines that a request may hold.")
    ] = 256,
    max_characters: Annotated[
        int, typer.Option(min=1, metavar="N", help="Characters that a request may hold.")
    ] = 20_000,
    max_waiting: Annotated[
        int, typer.Option(min=1, metavar="N", help="Lines of all requests that may wait.")
    ] = 1024,
    overrides: DecodingOverrides = None,
    device: Device = "auto",
) -> None:
    """Answer over HTTP: a JSON API, and a page to type into."""
    require_section(overrides or (), "decoding")
    if any(find_spec(name) is None for name in ("fastapi", "uvicorn", "prometheus_client")):
        raise UserError(f"`mt serve` needs FastAPI and uvicorn: {install_hint('serve')}")
    from mt.serving.app import Limits
    from mt.serving.server import Address, serve_run

    limits = Limits(sentences=max_sentences, characters=max_characters, waiting=max_waiting)
    serve_run(run, Address(host, port), limits=limits, overrides=overrides or (), device=device)
