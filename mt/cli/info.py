"""`mt info`."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mt.config.directions import tags_as_text, trained_directions, trained_tags
from mt.evaluation.columns import aligned, printable

if TYPE_CHECKING:
    from mt.decoding.exported import Exported
    from mt.evaluation.run_info import CorpusInfo, RunInfo, ScoredSplit

_Row = tuple[str, ...]

_STATES = {
    "finished": "finished",
    "unfinished": "unfinished: there is no final model yet",
    "exported": "exported from a run",
}


def info(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The run folder, finished or not.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show and check what a run folder holds."""
    from mt.evaluation.read_info import read_info

    found = read_info(run)
    typer.echo(
        json.dumps(found.as_record(), indent=2, ensure_ascii=False) if as_json else _as_text(found)
    )


def _as_text(found: "RunInfo") -> str:
    tables = [
        [*_head_rows(found), *_model_rows(found), *_environment_rows(found)],
        [("split", "pairs", "SHA-256", "", "corpus"), *map(_corpus_row, found.corpora)],
    ]
    if found.scores:
        rows = [row for scored in found.scores for row in _score_rows(scored)]
        tables.append([("split", "sentences", "metric", "score", "signature", "decoding"), *rows])
    return "\n\n".join(aligned([tuple(map(printable, row)) for row in rows]) for rows in tables)


def _head_rows(found: "RunInfo") -> Iterator[_Row]:
    config = found.config
    decoding = config.decoding.model_dump(mode="json", exclude_none=True)
    set_keys = [f"{key}={value}" for key, value in decoding.items()]
    yield "run", f"{found.run}, {_STATES[found.state]}"
    yield "languages", ", ".join(map(str, trained_directions(config.data)))
    if tags := tags_as_text(trained_tags(config.data)):
        yield "tags", ", ".join(tags)
    if not found.exported:
        yield "updates", f"{found.updates:,}"
    yield "decoding", ", ".join(set_keys)


def _model_rows(found: "RunInfo") -> Iterator[_Row]:
    model, shape, tokenizer = found.model, found.config.model, found.tokenizer
    yield "model", f"{shape.residual} {shape.norm}, {shape.feed_forward}, {shape.positional}"
    yield (
        "sizes",
        f"{shape.encoder_layers} + {shape.decoder_layers} layers, d_model {shape.d_model}, "
        f"d_ff {shape.d_ff}, heads {shape.heads}, tied embeddings: {shape.tie_embeddings}",
    )
    if model:
        yield "parameters", f"{model.parameters:,} in {model.bytes / 2**20:,.1f} MiB"
        yield "mean of updates", ", ".join(map(str, model.averaged_updates))
        yield "longest source", f"{model.longest_source} pieces"
        yield "validation", model.validation
        yield "weights", f"SHA-256 {model.sha256}"
    if found.exported:
        yield from _exported_rows(found.exported)
    if tokenizer:
        yield (
            "tokenizer",
            f"{tokenizer.algorithm}, {tokenizer.vocabulary}, {tokenizer.source_size:,} / "
            f"{tokenizer.target_size:,} pieces",
        )
        yield "fingerprint", tokenizer.fingerprint


def _exported_rows(exported: "Exported") -> Iterator[_Row]:
    yield "format", f"{exported.kind}, quantization {exported.quantization}"
    yield "longest source", f"{exported.longest_source} pieces"
    yield "model file", f"SHA-256 {exported.model}"
    yield "weights of the run", f"SHA-256 {exported.weights}"
    parity = exported.parity
    if parity:
        yield "parity", f"{parity['identical']} of {parity['sentences']} lines as from the run"


def _environment_rows(found: "RunInfo") -> Iterator[_Row]:
    there = found.environment
    if there.started_at:
        yield "training began", there.started_at
    if there.mt:
        yield "versions", f"mt {there.mt}, Python {there.python}, torch {there.torch}"
        yield "machine", f"{there.device}, {there.precision}, {there.processor}, {there.system}"


def _corpus_row(corpus: "CorpusInfo") -> _Row:
    pairs = "" if corpus.pairs is None else f"{corpus.pairs:,}"
    sums = [(sha256 or "")[:12] for sha256 in (corpus.sha256_source, corpus.sha256_target)]
    return corpus.split, pairs, *sums, corpus.name or " ".join(corpus.places)


def _score_rows(scored: "ScoredSplit") -> Iterator[_Row]:
    decoding = ", ".join(scored.overrides) or "as configured"
    if not scored.current:
        decoding += "; with other weights than those here"
    first = (scored.split, f"{scored.sentences:,}")
    for score, (split, sentences), how in (
        (scored.bleu, first, decoding),
        (scored.chrf, ("", ""), ""),
    ):
        yield split, sentences, score.name, f"{score.value:.2f}", score.signature, how
