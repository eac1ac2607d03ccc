"""Commands `mt data check` and `mt data clean`."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mt.cli.options import AsJson, Overrides, command_group, load
from mt.cli.train import ConfigFile
from mt.tables import align_columns

if TYPE_CHECKING:
    from mt.data.splits import CleanedFiles

data = command_group("data", "Check and clean corpora.")


@data.command()
def check(
    subject: Annotated[
        Path,
        typer.Argument(metavar="CONFIG|RUN", help="Config; or run, to check its tokenizer too."),
    ],
    overrides: Overrides = None,
    as_json: AsJson = False,
) -> None:
    """Check the corpora of a config, and suggest cleaning.

    With a run, or a config that copies a tokenizer, the report has the tokens per word and the
    characters that the tokenizer loses. The exit status is 0 if the corpora could be read, whatever
    the result.
    """
    from mt.runs import CONFIG_FILE, check_run_folder

    config = subject
    if subject.is_dir():
        check_run_folder(subject)
        config = subject / CONFIG_FILE
    loaded = load(config, overrides)
    from mt.data.tokenizer import Tokenizer, find_tokenizer
    from mt.doctor.check import check_corpora
    from mt.doctor.corpus_report import as_text, dump_cleaning

    _, origin = loaded.tokenizer_origin or ("", subject)
    folder = find_tokenizer(subject if subject.is_dir() else origin)
    # Neither a run that has not trained its tokenizer yet, nor a config without one.
    tokenizer = Tokenizer.load(folder) if folder != subject else None
    report = check_corpora(loaded.data, tokenizer=tokenizer)
    if as_json:
        typer.echo(json.dumps(asdict(report), default=dump_cleaning, ensure_ascii=False))
    else:
        typer.echo(as_text(report))


@data.command()
def clean(
    config: ConfigFile,
    out: Annotated[
        Path, typer.Option(metavar="DIR", writable=True, help="New folder for the output.")
    ],
    overrides: Overrides = None,
) -> None:
    """Write the training corpora of a config, cleaned by `data.cleaning`.

    Training applies the same cleaning by itself; use this to inspect the result, or for other
    programs. removed.tsv has the pairs removed, each with the reason.
    """
    loaded = load(config, overrides)
    from mt.data.splits import write_cleaned

    corpora = write_cleaned(loaded.data, out)
    texts = [f"{corpus.key}:\n{_describe_cleaning(corpus)}" for corpus in corpora]
    typer.echo("\n\n".join(texts) if len(corpora) > 1 else _describe_cleaning(corpora[0]))


def _describe_cleaning(cleaned: "CleanedFiles") -> str:
    counts = {f"removed by `{name}`": count for name, count in cleaned.removed.items()}
    counts["pairs kept"] = cleaned.left
    rows = [("pairs read", f"{cleaned.total:,}", "")]
    rows += [(name, f"{n:,}", f"{n / cleaned.total:.3%}") for name, n in counts.items()]
    rows.append(("changed among these", f"{cleaned.changed:,}", ""))
    return "\n".join([align_columns(rows, right=(1, 2)), *map(str, cleaned.files)])
