"""Commands `mt inspect`, `mt info` and `mt plot`."""

import json
from collections.abc import Iterator
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mt.cli.options import (
    AsJson,
    DecodingOverrides,
    Overrides,
    RunArgument,
    command_group,
    decoding_only,
    load,
)
from mt.cli.train import ConfigFile
from mt.errors import UserError, install_hint
from mt.tables import aligned, printable

if TYPE_CHECKING:
    from mt.config import Config
    from mt.evaluation.run_info import CorpusInfo, RunInfo, ScoredSplit
    from mt.profiling.cost import Cost
    from mt.runs import Exported

_TIED_NOTES = {
    "all": "Both embeddings and the output layer share one matrix, counted as the embedding.",
    "decoder": "The output layer shares the matrix of the target embedding, counted there.",
    "none": "",
}
"""Notes by `model.tie_embeddings`."""
_STATES = {
    "finished": "finished",
    "unfinished": "unfinished, without a final model",
    "exported": "exported from a run",
}
_Row = tuple[str, ...]


def inspect(
    config: ConfigFile,
    overrides: Overrides = None,
    source_length: Annotated[
        int,
        typer.Option(metavar="N", min=1, help="Source tokens of the counted pair."),
    ] = 25,
    target_length: Annotated[
        int,
        typer.Option(metavar="N", min=1, help="Target tokens of the pair, end marks included."),
    ] = 25,
    as_json: AsJson = False,
) -> None:
    """Show the parameters and FLOPs of each part of a model."""
    loaded = load(config, overrides)
    from mt.profiling.cost import PairLengths, model_cost

    size = loaded.tokenizer.vocabulary_size
    lengths = PairLengths(source_length, target_length)
    cost = model_cost(loaded.model, lengths, source_vocabulary=size, target_vocabulary=size)
    typer.echo(_cost_json(cost, loaded) if as_json else _cost_text(cost, loaded, config))


def _cost_json(cost: "Cost", config: "Config") -> str:
    """Return all counts; the FLOPs of a part are those of the forward pass of one pair."""
    record: dict[str, Any] = {
        "vocabulary": config.tokenizer.vocabulary,
        "vocabulary_size": config.tokenizer.vocabulary_size,
        "tie_embeddings": config.model.tie_embeddings,
        "source_length": cost.lengths.source,
        "target_length": cost.lengths.target,
        "parts": [asdict(part) for part in cost.parts],
        "parameters": cost.parameters,
        "flops": cost.flops,
        "flops_per_target_token": cost.flops_per_target_token,
        "training_flops_per_target_token": cost.training_flops_per_target_token,
        "step_flops": cost.step_flops,
        "weight_bytes": cost.weight_bytes,
        "cache_bytes_per_token": cost.cache_bytes_per_token,
    }
    return json.dumps(record, indent=2)


def _cost_text(cost: "Cost", config: "Config", path: Path) -> str:
    from mt.config.loading import automatic_keys

    lengths, size = cost.lengths, config.tokenizer.vocabulary_size
    joint = config.tokenizer.vocabulary == "joint"
    vocabulary = "a joint vocabulary" if joint else "two vocabularies"
    pair = f"{lengths.source:,} source and {lengths.target:,} target tokens, end marks included"
    heading = f"{path}\n{pair}\n{vocabulary} of {size:,} tokens"
    notes = [
        "FLOPs count matrix products only, two per multiply-add. The table shows the",
        "forward pass; training takes three times as many.",
        _TIED_NOTES[config.model.tie_embeddings],
    ]
    if origin := config.tokenizer_origin:
        notes.append(f"The tokenizer of `{origin[0]}` may have a different size.")
    chosen = [key for key in automatic_keys(config) if key.startswith(("model.", "tokenizer."))]
    if chosen:
        text = "Counted by their defaults; training may choose other values: "
        notes.append(fill(text + ", ".join(chosen), 80))
    tables = aligned(_part_rows(cost), right=range(1, 5)), aligned(_total_rows(cost), right=[1])
    return "\n\n".join((heading, *tables, "\n".join(filter(None, notes))))


def _part_rows(cost: "Cost") -> list[_Row]:
    def row(name: str, parameters: int, flops: float) -> _Row:
        shares = f"{parameters / cost.parameters:.1%}", f"{flops / cost.flops:.1%}"
        return name, f"{parameters:,}", shares[0], _mega(flops), shares[1]

    heading = ("part", "parameters", "share", "MFLOPs", "share")
    rows = [row(part.name, part.parameters, part.flops) for part in cost.parts]
    return [heading, *rows, row("total", cost.parameters, cost.flops)]


def _total_rows(cost: "Cost") -> list[_Row]:
    target = cost.lengths.target
    return [
        ("one target token, forward", _mega(cost.flops_per_target_token), "MFLOPs"),
        ("one target token, training", _mega(cost.training_flops_per_target_token), "MFLOPs"),
        (f"decoding token {target:,} of a row with a cache", _mega(cost.step_flops), "MFLOPs"),
        ("weights in fp32", f"{cost.weight_bytes / 2**20:,.1f}", "MiB"),
        ("keys and values per token and row in fp32", f"{cost.cache_bytes_per_token:,}", "bytes"),
    ]


def _mega(flops: float) -> str:
    return f"{flops / 1e6:,.2f}"


def info(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Run folder, finished or not.")],
    as_json: AsJson = False,
) -> None:
    """Show the content of a run folder, and verify its files."""
    from mt.evaluation.run_info import read_info

    found = read_info(run)
    if as_json:
        typer.echo(json.dumps(found.as_record(), indent=2, ensure_ascii=False))
    else:
        typer.echo(_info_text(found))


def _info_text(found: "RunInfo") -> str:
    tables = [
        [*_head_rows(found), *_model_rows(found), *_environment_rows(found)],
        [("split", "pairs", "SHA-256", "", "corpus"), *map(_corpus_row, found.corpora)],
    ]
    if found.scores:
        rows = [row for scored in found.scores for row in _score_rows(scored)]
        tables.append([("split", "sentences", "metric", "score", "signature", "decoding"), *rows])
    return "\n\n".join(aligned([tuple(map(printable, row)) for row in rows]) for rows in tables)


def _head_rows(found: "RunInfo") -> Iterator[_Row]:
    from mt.config.data import tags_as_text, trained_directions, trained_tags

    config = found.config
    decoding = config.decoding.model_dump(mode="json", exclude_none=True)
    yield "run", f"{found.run}, {_STATES[found.state]}"
    yield "languages", ", ".join(map(str, trained_directions(config.data)))
    if tags := tags_as_text(trained_tags(config.data)):
        yield "tags", ", ".join(tags)
    if not found.exported:
        yield "updates", f"{found.updates:,}"
    yield "decoding", ", ".join(f"{key}={value}" for key, value in decoding.items())


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
        yield "averaged updates", ", ".join(map(str, model.averaged_updates))
        yield "longest source", f"{model.longest_source} tokens"
        yield "validation", model.validation
        yield "weights", f"SHA-256 {model.sha256}"
    if found.exported:
        yield from _exported_rows(found.exported)
    if tokenizer:
        yield (
            "tokenizer",
            f"{tokenizer.algorithm}, {tokenizer.vocabulary}, {tokenizer.source_size:,} / "
            f"{tokenizer.target_size:,} tokens",
        )
        yield "fingerprint", tokenizer.fingerprint


def _exported_rows(exported: "Exported") -> Iterator[_Row]:
    yield "format", f"{exported.kind}, quantization {exported.quantization}"
    yield "longest source", f"{exported.longest_source} tokens"
    yield "model file", f"SHA-256 {exported.model}"
    yield "weights of the run", f"SHA-256 {exported.weights}"
    if parity := exported.parity:
        yield "parity", f"{parity['identical']} of {parity['sentences']} lines as from the run"


def _environment_rows(found: "RunInfo") -> Iterator[_Row]:
    its = found.environment
    if its.started_at:
        yield "training started", its.started_at
    if its.mt:
        yield "versions", f"mt {its.mt}, Python {its.python}, torch {its.torch}"
        yield "machine", f"{its.device}, {its.precision}, {its.processor}, {its.system}"


def _corpus_row(corpus: "CorpusInfo") -> _Row:
    pairs = "" if corpus.pairs is None else f"{corpus.pairs:,}"
    sums = [(sha256 or "")[:12] for sha256 in (corpus.sha256_source, corpus.sha256_target)]
    return corpus.split, pairs, *sums, corpus.name or " ".join(corpus.places)


def _score_rows(scored: "ScoredSplit") -> Iterator[_Row]:
    decoding = ", ".join(scored.overrides) or "as configured"
    if not scored.current:
        decoding += "; with different weights"
    scores = scored.bleu, scored.chrf
    bleu, chrf = [(score.name, f"{score.value:.2f}", score.signature) for score in scores]
    yield scored.split, f"{scored.sentences:,}", *bleu, decoding
    yield "", "", *chrf, ""


Output = Annotated[
    Path,
    typer.Option(
        "--output",
        "-o",
        metavar="FILE",
        help="Output file, .png or .svg; an existing file is replaced.",
    ),
]
plot = command_group("plot", "Draw position encodings or attention.")


@plot.command()
def positions(
    source: Annotated[
        Path,
        typer.Argument(metavar="CONFIG|RUN", help="Config, or run folder with learned positions."),
    ],
    output: Output,
    positions: Annotated[
        int, typer.Option(min=2, max=1024, metavar="N", help="Number of positions.")
    ] = 128,
    overrides: Overrides = None,
) -> None:
    """Draw the position encoding, and the similarity of positions by distance."""
    if source.is_dir() and overrides:
        raise UserError("--set cannot be combined with a run, whose model is fixed; name a config")
    config = None if source.is_dir() else load(source, overrides)
    _require_matplotlib()
    from mt.plotting.positions import plot_learned_positions, plot_positions

    if config is None:
        picture = plot_learned_positions(source, output, positions=positions)
    else:
        model, seed, title = config.model, config.seed, str(source)
        picture = plot_positions(model, output, seed=seed, title=title, positions=positions)
    typer.echo(picture)


@plot.command()
def attention(
    run: RunArgument,
    sentence: Annotated[str, typer.Argument(metavar="SENTENCE", help="Sentence to translate.")],
    output: Output,
    overrides: DecodingOverrides = None,
) -> None:
    """Draw the attention of each head for a sentence: FILE-encoder, FILE-decoder, FILE-cross."""
    checked = decoding_only(overrides)
    _require_matplotlib()
    from mt.plotting.attention import plot_attention

    for path in plot_attention(run, sentence, output=output, overrides=checked):
        typer.echo(path)


def _require_matplotlib() -> None:
    if find_spec("matplotlib") is None:
        raise UserError(f"plots need matplotlib: {install_hint('plot')}")
