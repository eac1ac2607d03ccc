"""`mt data`, a sub-command for each thing to do with a corpus before training."""

import typer

from mt.cli.data_check import check
from mt.cli.data_clean import clean
from mt.cli.data_tokenizer import tokenizer

data = typer.Typer(name="data", rich_markup_mode=None)


@data.callback(invoke_without_command=True)
def _data(context: typer.Context) -> None:
    """Look at a corpus or a tokenizer, and clean the corpus."""
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


data.command()(check)
data.command()(clean)
data.command()(tokenizer)
