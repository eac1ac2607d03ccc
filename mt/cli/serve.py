"""`mt serve`."""

from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from mt.cli.options import DecodingOverrides, Device
from mt.config.load import require_section
from mt.errors import UserError


def serve(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The run folder.")],
    host: Annotated[
        str,
        typer.Option(metavar="HOST", help="Where to listen; for this machine alone unless set."),
    ] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(min=0, max=65535, metavar="PORT", help="0 takes one that is free.")
    ] = 8000,
    max_sentences: Annotated[
        int, typer.Option(min=1, metavar="N", help="Lines that a request may hold.")
    ] = 256,
    max_characters: Annotated[
        int, typer.Option(min=1, metavar="N", help="Characters that a request may hold.")
    ] = 20_000,
    max_waiting: Annotated[
        int, typer.Option(min=1, metavar="N", help="Lines of all requests that may wait.")
    ] = 1024,
    overrides: DecodingOverrides = None,
    device: Device = "auto",
) -> None:
    """Answer over HTTP: a JSON API, and a page to type into."""
    require_section(overrides or (), "decoding")
    if any(find_spec(name) is None for name in ("fastapi", "uvicorn", "prometheus_client")):
        raise UserError('serving needs FastAPI and uvicorn: pip install "mt[serve]"')
    from mt.serving.messages import Limits
    from mt.serving.server import Address, serve_run

    limits = Limits(sentences=max_sentences, characters=max_characters, waiting=max_waiting)
    serve_run(run, Address(host, port), limits=limits, overrides=overrides or (), device=device)
