"""Commands `mt translate`, `mt score` and `mt serve`."""

import signal
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, get_args

import typer

from mt.cli.options import (
    DecodingOverrides,
    Device,
    GlossaryFile,
    MemoryFile,
    RunArgument,
    ShardOption,
    decoding_only,
    refuse_given,
)
from mt.documents.segments import Format
from mt.errors import UserError, install_hint
from mt.languages import base_language

if TYPE_CHECKING:
    from mt.decoding.text_files import Form

_FORMAT_HELP = f"{', '.join(get_args(Format))}; default: by suffix, or text."


def translate(
    run: RunArgument,
    file: Annotated[
        Path | None,
        typer.Argument(metavar="FILE", help="Text by line, or a document; default: stdin."),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE",
            writable=True,
            help="Output file, replaced once the translation is complete; default: stdout.",
        ),
    ] = None,
    format: Annotated[Format | None, typer.Option(metavar="FORMAT", help=_FORMAT_HELP)] = None,
    column: Annotated[
        str | None,
        typer.Option(
            metavar="NAME|NUMBER", help="Column of TSV or field of JSON lines to translate."
        ),
    ] = None,
    fuzzy: Annotated[
        bool, typer.Option("--fuzzy", help="Mark the filled entries of a PO file as fuzzy.")
    ] = False,
    fuzzy_below: Annotated[
        float | None,
        typer.Option(min=0, max=100, metavar="N", help="Mark entries of less confidence."),
    ] = None,
    prefixes: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Start the translation of line N with its line N."),
    ] = None,
    glossary: GlossaryFile = None,
    memory: MemoryFile = None,
    n_best: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="N",
            help="Print N translations per line: number (from 0) ||| text ||| score.",
        ),
    ] = None,
    json: Annotated[
        bool, typer.Option("--json", help="Print a JSON object per line, with tokens and scores.")
    ] = False,
    report: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            writable=True,
            help="Write a spreadsheet (TSV) with status, confidence and notes of each line.",
        ),
    ] = None,
    unbuffered: Annotated[
        bool, typer.Option("--unbuffered", help="Print each translation before reading on.")
    ] = False,
    shard: ShardOption = None,
    overrides: DecodingOverrides = None,
    device: Device = "auto",
) -> None:
    """Translate text line by line, or the texts of a document.

    In a document, everything but its text is kept byte for byte.
    """
    checked = decoding_only(overrides)
    from mt.decoding.load import StoredModel
    from mt.decoding.shards import chosen_shard
    from mt.decoding.text_files import FileJob, translate_file, translate_shard
    from mt.documents.document import DocumentJob, find_format, translate_document

    for_text: dict[str, object] = {
        "--json": json,
        "--n-best": n_best,
        "--prefixes": prefixes,
        "--unbuffered": unbuffered,
        "--shard": shard,
    }
    for_documents = {"--column": column, "--fuzzy": fuzzy, "--fuzzy-below": fuzzy_below}
    given = glossary, memory
    with chosen_shard(shard) as part:
        model = StoredModel.read(run, checked)
        language = base_language(model.config.direction.source)
        kind = format or find_format(file, language)
        if kind != "text":
            for_text["torchrun"] = part is not None
            reason = f"is for text, the format is {kind}; `--format text` reads lines"
            refuse_given(for_text, reason)
            document = DocumentJob(file, output, kind, report, column, fuzzy, fuzzy_below, *given)
            translate_document(model, document, device=device)
            return
        refuse_given(for_documents, "is not for text; name the format with `--format`")
        form: Form = "json" if json else "text" if n_best is None else "n-best"
        look_ahead = 1 if unbuffered else None
        job = FileJob(file, output, form, n_best or 1, report, look_ahead, prefixes, *given)
        if part is None:
            translate_file(model, job, device=device)
        else:
            translate_shard(model, job, part, device=device)


def score(
    run: RunArgument,
    sources: Annotated[Path, typer.Option(metavar="FILE", help="Sources, one sentence per line.")],
    targets: Annotated[Path, typer.Option(metavar="FILE", help="Translations, one per line.")],
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", metavar="FILE", writable=True, help="Output file; default: stdout."
        ),
    ] = None,
    json: Annotated[
        bool, typer.Option("--json", help="Print a JSON object per line, with token scores.")
    ] = False,
    shard: ShardOption = None,
    overrides: DecodingOverrides = None,
    device: Device = "auto",
) -> None:
    """Print the log-probabilities of given translations.

    Each line has the natural log-probability, the number of tokens with the end mark, and the mean
    per token, separated by tabs. The perplexity of the whole text goes to stderr.
    """
    checked = decoding_only(overrides)
    from mt.decoding.shards import chosen_shard

    with chosen_shard(shard) as part:
        from mt.decoding.scoring import ScoreJob, write_scores

        job = ScoreJob(sources, targets, output, json)
        totals = write_scores(run, job, overrides=checked, device=device, shard=part)
    if totals is not None:
        typer.echo(totals.as_text(), err=True)


def serve(
    runs: Annotated[
        list[Path],
        typer.Argument(metavar="RUN...", help="Run folders, one for each pair of languages."),
    ],
    host: Annotated[
        str,
        typer.Option(metavar="HOST", help="Address to listen on; the default is local only."),
    ] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(min=0, max=65535, metavar="PORT", help="Port; 0 takes a free one.")
    ] = 8000,
    keep: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="Models that stay in memory; default: all."),
    ] = None,
    glossary: GlossaryFile = None,
    memory: MemoryFile = None,
    max_sentences: Annotated[
        int, typer.Option(min=1, metavar="N", help="Maximum number of lines per request.")
    ] = 256,
    max_characters: Annotated[
        int, typer.Option(min=1, metavar="N", help="Maximum number of characters per request.")
    ] = 20_000,
    api_key_file: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Ask for an API key; the file has one per line."),
    ] = None,
    allow_origin: Annotated[
        list[str] | None,
        typer.Option(
            metavar="URL",
            help="Let web pages of another origin use the server; * for all; repeatable.",
        ),
    ] = None,
    quantization: Annotated[
        Literal["none", "int8"] | None,
        typer.Option(help="The same as --set decoding.quantization=..."),
    ] = None,
    overrides: DecodingOverrides = None,
    device: Device = "auto",
) -> None:
    """Serve translations over HTTP: a JSON API, the API of LibreTranslate, a web page.

    A request to several runs names its languages; two runs join through a language between them.
    """
    checked = decoding_only(overrides)
    if quantization is not None:
        checked = [*checked, f"decoding.quantization={quantization}"]
    modules = ("fastapi", "uvicorn", "prometheus_client", "python_multipart")
    if any(find_spec(module) is None for module in modules):
        raise UserError(f"`mt serve` needs FastAPI and uvicorn: {install_hint('serve')}")
    if len(runs) > 1 and glossary is not None:
        raise UserError("--glossary is for one run; send terms with the requests, as `glossary`")
    if len(runs) > 1 and memory is not None and ".tmx" not in memory.suffixes:
        raise UserError(f"--memory {memory}: several runs need a TMX file, which names languages")
    from mt.data.glossary import read_terms
    from mt.serving.requests import Limits, read_access
    from mt.serving.served_runs import ModelOptions
    from mt.serving.server import serve_runs

    access = read_access(api_key_file, allow_origin or ())
    waiting = max(1024, max_sentences)
    limits = Limits(sentences=max_sentences, characters=max_characters, waiting=waiting)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # uvicorn handles it, and ends by it
    options = ModelOptions(checked, device, read_terms(glossary), memory)
    serve_runs(runs, (host, port), options, limits=limits, access=access, keep=keep)
