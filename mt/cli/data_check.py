"""`mt data check`."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from mt.cli.options import Overrides
from mt.cli.train import ConfigFile
from mt.config.load import load_config


def check(
    config: ConfigFile,
    json: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="Write the report as JSON.")
    ] = None,
    html: Annotated[
        Path | None,
        typer.Option("--html", metavar="FILE", help="Write a page with examples and histograms."),
    ] = None,
    processes: Annotated[
        int, typer.Option(min=1, metavar="N", help="How many processes count side by side.")
    ] = 1,
    overrides: Overrides = None,
) -> None:
    """Tell what is wrong with the corpora of a config, and how to clean them.

    What is found is no failure: the exit status is 0 wherever the corpora could be read.
    """
    settings = load_config(config, overrides=overrides or ())
    from mt.decoding.line_files import check_outputs
    from mt.doctor.as_html import as_html
    from mt.doctor.as_text import as_text
    from mt.doctor.check import check_corpora
    from mt.files import write_json, write_text

    check_outputs([json, html], [config])
    report = check_corpora(settings.data, processes=processes)
    if json is not None:
        write_json(json, asdict(report))
    if html is not None:
        write_text(html, as_html(report))
    typer.echo(as_text(report))
