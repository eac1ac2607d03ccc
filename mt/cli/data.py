"""`mt data`, a sub-command for each thing to do with a corpus before training."""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mt.cli.options import Overrides
from mt.cli.train import ConfigFile
from mt.config.loading import load_config
from mt.errors import ConfigError
from mt.tables import aligned

if TYPE_CHECKING:
    from mt.data.clean_files import CleanedFiles


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
    from mt.decoding.files import check_outputs
    from mt.doctor.check import check_corpora
    from mt.doctor.report import as_html, as_text, check_html_packages
    from mt.files import write_json, write_text

    check_outputs([json, html], [config])
    if html is not None:
        check_html_packages()
    report = check_corpora(settings.data, processes=processes)
    if json is not None:
        write_json(json, asdict(report))
    if html is not None:
        write_text(html, as_html(report))
    typer.echo(as_text(report))


def clean(
    config: ConfigFile,
    out: Annotated[Path, typer.Option(metavar="DIR", help="The folder to make and write into.")],
    removed: Annotated[
        bool, typer.Option("--removed", help="Also write removed.tsv: which pairs went, and why.")
    ] = False,
    overrides: Overrides = None,
) -> None:
    """Write the training corpora of a config as `data.cleaning` leaves them.

    Training with the config cleans by itself; this is for looking, and for other programs.
    """
    recipe = load_config(config, overrides=overrides or ())
    from mt.data.clean_files import REMOVED_FILE, write_cleaned

    removed_file = REMOVED_FILE if removed else None
    cleaned = write_cleaned(recipe.data, out, removed_file=removed_file)
    if len(cleaned) == 1:
        typer.echo(_as_text(cleaned[0]))
        return
    typer.echo("\n\n".join(f"{each.key}:\n{_as_text(each)}" for each in cleaned))


def _as_text(cleaned: "CleanedFiles") -> str:
    rows = [("pairs read", f"{cleaned.total:,}", "")]
    rows += [
        (f"taken out by `{name}`", f"{count:,}", f"{count / cleaned.total:.3%}")
        for name, count in cleaned.taken.items()
    ]
    rows.append(("pairs left", f"{cleaned.left:,}", f"{cleaned.left / cleaned.total:.3%}"))
    rows.append(("changed of those", f"{cleaned.changed:,}", ""))
    rows += [
        (f"changed by `{name}`", f"{count:,}", f"{count / cleaned.total:.3%}")
        for name, count in cleaned.noisy.items()
    ]
    return "\n".join([aligned(rows, right=(1, 2)), *map(str, cleaned.files)])


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
    from mt.decoding.files import check_outputs
    from mt.doctor.tokenizer import check_tokenizer, configured_tokenizer, tokenizer_as_text
    from mt.files import write_json
    from mt.runs import TOKENIZER_FOLDER

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
    from mt.runs import CONFIG_FILE, check_run_folder

    for override in overrides:
        if override.startswith("tokenizer"):
            raise ConfigError(
                f"--set {override.partition('=')[0]}: a run has its tokenizer already; name a "
                "config to try another"
            )
    check_run_folder(run)
    return run / CONFIG_FILE


data = typer.Typer(name="data", rich_markup_mode=None)


@data.callback(invoke_without_command=True)
def _data(context: typer.Context) -> None:
    """Look at a corpus or a tokenizer, and clean the corpus."""
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


data.command()(check)
data.command()(clean)
data.command()(tokenizer)
