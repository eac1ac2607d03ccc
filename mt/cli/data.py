"""Commands `mt data check`, `mt data clean` and `mt data tokenizer`."""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mt.cli.options import JsonFile, Overrides, command_group, load
from mt.cli.train import ConfigFile
from mt.errors import ConfigError
from mt.files import write_json, write_text
from mt.tables import aligned

if TYPE_CHECKING:
    from mt.data.splits import CleanedFiles

data = command_group("data", "Check and clean corpora, and check tokenizers.")


@data.command()
def check(
    config: ConfigFile,
    json: JsonFile = None,
    html: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write a page with examples and histograms."),
    ] = None,
    processes: Annotated[
        int, typer.Option(min=1, metavar="N", help="Number of parallel processes.")
    ] = 1,
    overrides: Overrides = None,
) -> None:
    """Check the corpora of a config, and suggest cleaning.

    The exit status is 0 if the corpora could be read, whatever the result.
    """
    loaded = load(config, overrides)
    from mt.decoding.files import check_outputs
    from mt.doctor.check import check_corpora
    from mt.doctor.report import as_html, as_text, check_html_packages

    check_outputs([json, html], [config])
    if html is not None:
        check_html_packages()
    report = check_corpora(loaded.data, processes=processes)
    if json is not None:
        write_json(json, asdict(report))
    if html is not None:
        write_text(html, as_html(report))
    typer.echo(as_text(report))


@data.command()
def clean(
    config: ConfigFile,
    out: Annotated[Path, typer.Option(metavar="DIR", help="New folder for the output.")],
    removed: Annotated[
        bool, typer.Option("--removed", help="Also write removed.tsv: pairs removed, and why.")
    ] = False,
    overrides: Overrides = None,
) -> None:
    """Write the training corpora of a config, cleaned by `data.cleaning`.

    Training applies the same cleaning by itself; use this to inspect the result, or for other
    programs.
    """
    loaded = load(config, overrides)
    from mt.data.splits import REMOVED_FILE, write_cleaned

    removed_file = REMOVED_FILE if removed else None
    cleaned = write_cleaned(loaded.data, out, removed_file=removed_file)
    texts = (f"{each.key}:\n{_cleaning_text(each)}" for each in cleaned)
    typer.echo("\n\n".join(texts) if len(cleaned) > 1 else _cleaning_text(cleaned[0]))


def _cleaning_text(cleaned: "CleanedFiles") -> str:
    def row(name: str, count: int) -> tuple[str, str, str]:
        return name, f"{count:,}", f"{count / cleaned.total:.3%}"

    rows = [
        ("pairs read", f"{cleaned.total:,}", ""),
        *(row(f"removed by `{name}`", count) for name, count in cleaned.taken.items()),
        row("pairs kept", cleaned.left),
        ("changed among these", f"{cleaned.changed:,}", ""),
    ]
    return "\n".join([aligned(rows, right=(1, 2)), *map(str, cleaned.files)])


@data.command()
def tokenizer(
    subject: Annotated[
        Path, typer.Argument(metavar="RUN|CONFIG", help="Run folder, or config to train with.")
    ],
    json: JsonFile = None,
    overrides: Overrides = None,
) -> None:
    """Check a tokenizer for lost characters and a suitable vocabulary size.

    The report also shows how it splits the text, and the highest BLEU that a perfect model could
    reach with it. The tokenizer of a config is trained as by `mt train`, and not kept.
    """
    is_run = subject.is_dir()
    config = _config_of_run(subject, overrides or ()) if is_run else subject
    loaded = load(config, overrides)
    from mt.data.tokenizer import Tokenizer
    from mt.decoding.files import check_outputs
    from mt.doctor.tokenizer import check_tokenizer, configured_tokenizer, tokenizer_as_text
    from mt.runs import TOKENIZER_FOLDER

    check_outputs([json], [subject])
    if is_run:
        report = check_tokenizer(loaded, Tokenizer.load(subject / TOKENIZER_FOLDER))
    else:
        from mt.model.device import select_device
        from mt.training.automatic import choose_settings

        device = select_device(loaded.training.device)
        loaded = choose_settings(loaded, device).applied()
        with configured_tokenizer(loaded) as trained:
            report = check_tokenizer(loaded, trained)
    if json is not None:
        write_json(json, asdict(report))
    typer.echo(tokenizer_as_text(report))


def _config_of_run(run: Path, overrides: Sequence[str]) -> Path:
    from mt.runs import CONFIG_FILE, check_run_folder

    for override in overrides:
        if override.startswith("tokenizer"):
            raise ConfigError(
                f"--set {override.partition('=')[0]}: the tokenizer of a run is fixed; name a "
                "config to try another"
            )
    check_run_folder(run)
    return run / CONFIG_FILE
