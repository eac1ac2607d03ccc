"""Options that several commands share."""

from typing import Annotated, Literal

import typer

Overrides = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Set a key of the config, such as training.max_updates=500; may be repeated.",
    ),
]

DecodingOverrides = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Set a key of `decoding`, such as decoding.beam=4; may be repeated.",
    ),
]

Device = Annotated[
    Literal["auto", "cuda", "mps", "cpu"],
    typer.Option(help="Where to compute; auto takes the best that is there."),
]
