"""Arguments, options and helpers shared by several commands.

`mt.config` is imported on use: pydantic and YAML would double the time of `mt --help`.
"""

import functools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_type_hints

import typer

from mt.errors import UserError
from mt.files import check_outputs, is_same
from mt.runs import CONFIG_FILE

if TYPE_CHECKING:
    from mt.config import Config

RunArgument = Annotated[Path, typer.Argument(metavar="RUN", help="Run folder.")]

Overrides = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Override a config key, such as training.max_updates=500; repeatable.",
    ),
]

DecodingOverrides = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="decoding.KEY=VALUE",
        help="Override a key of `decoding`, such as decoding.beam=4; repeatable.",
    ),
]

Device = Annotated[
    Literal["auto", "cuda", "mps", "cpu"],
    typer.Option(help="Device to compute on; auto takes the best available."),
]

GlossaryFile = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Use these terms; a line has source term, tab, target term."),
]

MemoryFile = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Take whole texts from TMX, or TSV: source, tab, target."),
]

ShardOption = Annotated[
    str | None,
    typer.Option(
        "--shard",
        metavar="K/N",
        help="Process only part K of N; the last one to finish joins the parts.",
    ),
]

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def load(config: Path, overrides: Sequence[str] | None = None) -> "Config":
    """Load a config with the overrides of `--set`."""
    from mt.config.loading import load_config

    return load_config(config, overrides=overrides or ())


def decoding_only(overrides: Sequence[str] | None) -> Sequence[str]:
    """Return the overrides of `--set`; raise ConfigError unless all are keys of `decoding`."""
    from mt.config.loading import require_section

    require_section(overrides or (), "decoding")
    return overrides or ()


def refuse_given(options: Mapping[str, object], reason: str) -> None:
    """Raise UserError, with the name and a reason, for an option that is given."""
    for name, value in options.items():
        if value is not None and value is not False:
            raise UserError(f"{name} {reason}")


def check_paths(command: Callable[..., None]) -> Callable[..., None]:
    """Return a command that refuses, before all else, an output that is one of its inputs.

    Outputs are the paths that are declared `writable`, and stdout. Inputs are all other paths, also
    those in `--set`, and stdin. The name `-` is stdin or stdout where these are the default.
    """

    @functools.wraps(command)
    def checked(**values: Any) -> None:
        outputs: list[Path] = []
        inputs = [Path("/dev/stdin")]
        for name, hint in get_type_hints(command, include_extras=True).items():
            for info in getattr(hint, "__metadata__", ()):
                if values.get(name) == Path("-") and "default: std" in (info.help or ""):
                    values[name] = None
                paths = _list_paths(values.get(name), info.metavar or "")
                (outputs if info.writable else inputs).extend(paths)
        check_outputs(outputs, inputs)
        stdout = Path("/dev/stdout")
        if stdout.is_file() and any(is_same(stdout, path) for path in inputs):
            raise UserError("stdout is a file that the command reads; name another")
        command(**values)

    return checked


def _list_paths(value: object, metavar: str) -> Iterator[Path]:
    """Yield the paths in the value of a parameter, also in texts if its name in the help is one."""
    for item in value if isinstance(value, list | tuple) else (value,):
        if isinstance(item, Path):
            yield item
        elif isinstance(item, str) and re.search("FILE|CORPUS", metavar):
            yield Path(item)
        elif isinstance(item, str) and metavar.endswith("KEY=VALUE"):
            named = map(Path, re.split(r"[][, ]+", item.partition("=")[2]))
            yield from (path for path in named if path.is_file() or (path / CONFIG_FILE).is_file())


def command_group(name: str, summary: str) -> typer.Typer:
    """Return a group of commands that prints its help if no command is given."""
    group = typer.Typer(name=name, short_help=summary)

    @group.callback(help=summary, invoke_without_command=True)
    def show(context: typer.Context) -> None:
        if context.invoked_subcommand is None:
            print_help(context)

    return group


def print_help(context: typer.Context) -> None:
    """Print the help of the current command."""
    if text := context.get_help():  # empty with Rich, which prints by itself
        typer.echo(text)
