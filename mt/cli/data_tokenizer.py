"""`mt data tokenizer`."""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from mt.cli.options import Overrides
from mt.config.load import load_config
from mt.errors import ConfigError


def tokenizer(
    subject: Annotated[
        Path, typer.Argument(metavar="RUN|CONFIG", help="A run folder, or a recipe to train with.")
    ],
    json: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="Write the report as JSON.")
    ] = None,
    overrides: Overrides = None,
) -> None:
    """Tell what a tokenizer loses, and if its size fits.

    Also how it cuts the text, and what it keeps a perfect model from reaching in BLEU. For a
    config, the tokenizer is trained as `mt train` would, and not kept.
    """
    is_run = subject.is_dir()
    config = _config_of_run(subject, overrides or ()) if is_run else subject
    settings = load_config(config, overrides=overrides or ())
    from mt.data.tokenizer import Tokenizer
    from mt.decoding.line_files import check_outputs
    from mt.decoding.run_files import TOKENIZER_FOLDER
    from mt.doctor.tokenizer_check import check_tokenizer, configured_tokenizer
    from mt.doctor.tokenizer_text import tokenizer_as_text
    from mt.files import write_json

    check_outputs([json], [subject])
    if is_run:
        report = check_tokenizer(settings, Tokenizer.load(subject / TOKENIZER_FOLDER))
    else:
        with configured_tokenizer(settings) as trained:
            report = check_tokenizer(settings, trained)
    if json is not None:
        write_json(json, asdict(report))
    typer.echo(tokenizer_as_text(report))


def _config_of_run(run: Path, overrides: Sequence[str]) -> Path:
    from mt.decoding.run_files import CONFIG_FILE, check_run_folder

    for override in overrides:
        if override.startswith("tokenizer"):
            raise ConfigError(
                f"--set {override.partition('=')[0]}: a run has its tokenizer already; name a "
                "config to try another"
            )
    check_run_folder(run)
    return run / CONFIG_FILE
