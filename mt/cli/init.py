"""Command `mt init`."""

from pathlib import Path
from typing import Annotated

import typer


def init(
    corpora: Annotated[
        list[str],
        typer.Argument(
            metavar="CORPUS...",
            help="Source file and target file, line by line, or one .tsv, .tmx, .xliff, .po, "
            ".jsonl or .parquet file, a folder, or hub:OWNER/NAME@COMMIT; several form a mixture.",
        ),
    ],
    valid: Annotated[
        list[str] | None,
        typer.Option(metavar="FILE", help="Validation pairs; give it twice for two text files."),
    ] = None,
    test: Annotated[
        list[str] | None,
        typer.Option(metavar="FILE", help="Test pairs, in the same way; repeatable."),
    ] = None,
    source_language: Annotated[
        str | None, typer.Option(metavar="CODE", help="Source language, such as zh.")
    ] = None,
    target_language: Annotated[
        str | None, typer.Option(metavar="CODE", help="Target language, such as en.")
    ] = None,
    budget: Annotated[
        str | None, typer.Option(metavar="TIME", help="Time for the training, such as 30m or 2h.")
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Config to write; default: NAME-OF-CORPUS.yaml."),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace an existing config.")] = False,
) -> None:
    """Write a config for a corpus, with cleaning and settings chosen for it.

    Languages come from the file names, such as train.zh and train.en, or from the text. Without
    --valid or --test, pairs of the corpus are held out of the training for them.
    """
    from mt.recipes.init import Request, write_new_config

    request = Request(
        train=corpora,
        valid=valid or (),
        test=test or (),
        source_language=source_language,
        target_language=target_language,
        budget=budget,
        output=output,
        replace=force,
    )
    typer.echo(write_new_config(request))
