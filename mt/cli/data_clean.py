"""`mt data clean`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mt.cli.options import Overrides
from mt.cli.train import ConfigFile
from mt.config.load import load_config
from mt.evaluation.columns import aligned

if TYPE_CHECKING:
    from mt.data.clean_files import CleanedFiles


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
