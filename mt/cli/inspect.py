"""`mt inspect`."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mt.cli.options import Overrides
from mt.cli.train import ConfigFile
from mt.config import Config
from mt.config.load import load_config
from mt.evaluation.columns import aligned

if TYPE_CHECKING:
    from mt.model.cost import Cost

_TIED = {
    "all": "Both embeddings and the output layer are one matrix, counted as the embedding.",
    "decoder": "The output layer's matrix is the target embedding, counted there.",
    "none": "",
}
"""What to say of `model.tie_embeddings`."""


def inspect(
    config: ConfigFile,
    overrides: Overrides = None,
    source_length: Annotated[
        int,
        typer.Option(metavar="N", min=1, help="Source pieces of the pair that is counted."),
    ] = 25,
    target_length: Annotated[
        int,
        typer.Option(metavar="N", min=1, help="Its target pieces; both with the end mark."),
    ] = 25,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show parameters and FLOPs of each part of a model."""
    recipe = load_config(config, overrides=overrides or ())
    from mt.model.cost import PairLengths, model_cost

    size = recipe.tokenizer.vocabulary_size
    lengths = PairLengths(source_length, target_length)
    cost = model_cost(recipe.model, lengths, source_vocabulary=size, target_vocabulary=size)
    typer.echo(_as_json(cost, recipe) if as_json else _as_text(cost, recipe, config))


def _as_json(cost: "Cost", recipe: Config) -> str:
    """Return every count in full; FLOPs of a part are those of one pair, forward."""
    record: dict[str, Any] = {
        "vocabulary": recipe.tokenizer.vocabulary,
        "vocabulary_size": recipe.tokenizer.vocabulary_size,
        "tie_embeddings": recipe.model.tie_embeddings,
        "source_length": cost.lengths.source,
        "target_length": cost.lengths.target,
        "parts": [
            {
                "name": part.name,
                "parameters": part.parameters,
                "flops": part.flops,
                "step_flops": part.step_flops,
            }
            for part in cost.parts
        ],
        "parameters": cost.parameters,
        "flops": cost.flops,
        "flops_per_target_piece": cost.flops_per_target_piece,
        "training_flops_per_target_piece": cost.training_flops_per_target_piece,
        "step_flops": cost.step_flops,
        "weight_bytes": cost.weight_bytes,
        "cache_bytes_per_piece": cost.cache_bytes_per_piece,
    }
    return json.dumps(record, indent=2)


def _as_text(cost: "Cost", recipe: Config, config: Path) -> str:
    table = aligned(_part_rows(cost), right=range(1, 5))
    totals = aligned(_total_rows(cost), right=[1])
    return "\n\n".join((_head(cost, recipe, config), table, totals, _notes(recipe)))


def _head(cost: "Cost", recipe: Config, config: Path) -> str:
    lengths, size = cost.lengths, recipe.tokenizer.vocabulary_size
    joint = recipe.tokenizer.vocabulary == "joint"
    vocabulary = "a joint vocabulary" if joint else "two vocabularies"
    return (
        f"{config}\n{lengths.source:,} source and {lengths.target:,} target pieces, end marks "
        f"included\n{vocabulary} of {size:,} pieces"
    )


def _part_rows(cost: "Cost") -> list[tuple[str, ...]]:
    counts = [(part.name, part.parameters, part.flops) for part in cost.parts]
    counts.append(("total", cost.parameters, cost.flops))
    rows = [
        (
            name,
            f"{parameters:,}",
            f"{parameters / cost.parameters:.1%}",
            _mega(flops),
            f"{flops / cost.flops:.1%}",
        )
        for name, parameters, flops in counts
    ]
    return [("part", "parameters", "share", "MFLOPs", "share"), *rows]


def _total_rows(cost: "Cost") -> list[tuple[str, ...]]:
    target = cost.lengths.target
    return [
        ("one target piece, forward", _mega(cost.flops_per_target_piece), "MFLOPs"),
        ("one target piece, training", _mega(cost.training_flops_per_target_piece), "MFLOPs"),
        (f"decoding piece {target:,} with a cache, one row", _mega(cost.step_flops), "MFLOPs"),
        ("weights in fp32", f"{cost.weight_bytes / 2**20:,.1f}", "MiB"),
        ("keys and values of a piece and row in fp32", f"{cost.cache_bytes_per_piece:,}", "bytes"),
    ]


def _notes(recipe: Config) -> str:
    notes = [
        "FLOPs are those of matrix products alone, a multiply-add being two; the table",
        "has the forward pass. Training is three times it: backward costs twice as much.",
        _TIED[recipe.model.tie_embeddings],
    ]
    if recipe.tokenizer_origin:
        key, _ = recipe.tokenizer_origin
        notes.append(f"The tokenizer of `{key}` may have another size than is counted here.")
    return "\n".join(filter(None, notes))


def _mega(flops: float) -> str:
    return f"{flops / 1e6:,.2f}"
