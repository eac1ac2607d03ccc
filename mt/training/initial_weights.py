"""Fine-tuning: the weights of a finished run as the first weights of another.

A run begins with them at update 0, with a fresh optimiser. Rows of the embeddings and of the output
layer follow the tokens of the vocabulary; everything else is copied as it is.
"""

from collections.abc import Iterable
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mt.config import Config
from mt.data.tokenizer import Tokenizer
from mt.data.tokenizer_training import FormerRow, former_rows, shown_tokens
from mt.decoding.load import FinishedRun, read_run
from mt.errors import RunError
from mt.model.transformer import Transformer
from mt.model.weights import load_parameters
from mt.training.run_folder import differences

PARTS: dict[str, tuple[str, ...]] = {
    "source_embedding": ("source_embedding",),
    "target_embedding": ("target_embedding",),
    "output": ("output",),
    "encoder": ("encoder_positional", "encoder", "encoder_norm"),
    "decoder": ("decoder_positional", "decoder", "decoder_norm"),
}
"""The modules of the model that the words of `training.freeze` stand for."""


def freeze(model: nn.Module, parts: Iterable[str]) -> None:
    """Let the named parts of a Transformer have no gradient.

    A matrix that several parts share is frozen in all of them; the config asks for that to be said.
    """
    for part in parts:
        for name in PARTS[part]:
            model.get_submodule(name).requires_grad_(requires_grad=False)


def describe_parameters(model: nn.Module) -> str:
    """Return how many parameters a model has, and how many of them are frozen."""
    sizes = {each: each.numel() for each in model.parameters()}
    frozen = sum(size for each, size in sizes.items() if not each.requires_grad)
    return f"{sum(sizes.values()):,} parameters" + (
        f", {frozen:,} of them frozen" if frozen else ""
    )


_ROWS = {
    "source_embedding.weight": "source",
    "target_embedding.weight": "target",
    "output.weight": "target",
}
"""The matrices [V D] with a row for each token of a side; those that are tied have one name."""
_SHOWN_KEYS = 3


def load_initial_weights(model: Transformer, config: Config, tokenizer: Tokenizer) -> list[str]:
    """Give `model` the weights of the run `training.init_from`; without one, leave it as it is.

    The row of a token that the run has is copied. The row of a new token is the mean of the rows
    of those tokens into which the run's tokenizer cuts it, bytes included. Returns lines that say
    what was copied. Raises RunError as `check_initial_run` does.
    """
    if config.training.init_from is None:
        return []
    run = _read(config, config.training.init_from)
    old, weights = run.tokenizer, dict(run.weights)
    rows = {
        "source": former_rows(tokenizer.source, old.source),
        "target": former_rows(tokenizer.target, old.target),
    }
    for name, side in _ROWS.items():
        if name in weights:
            weights[name] = _mean_rows(weights[name], rows[side])
    load_parameters(model, weights, str(config.training.init_from))
    told = [f"begins with the weights of {config.training.init_from}"]
    counts = {side: _counts(found) for side, found in rows.items()}
    if counts["source"] == counts["target"]:
        return [*told, f"vocabulary: {counts['source']}"]
    return [*told, *(f"{side} vocabulary: {count}" for side, count in counts.items())]


def check_initial_run(config: Config, run: Path) -> str:
    """Return the SHA-256 of the weights of `run`, once it is known that they fit the config.

    Raises RunError where the run is missing, unfinished, damaged, or of another model. Dropout may
    differ, and the vocabulary.
    """
    return _read(config, run).weights_sha256


def _read(config: Config, run: Path) -> FinishedRun:
    finished = read_run(run)
    differing = [
        f"`{key}`: {here} here, {there} in {run}"
        for key, (there, here) in differences(finished.config, config).items()
        if key.startswith("model.") and "dropout" not in key
    ]
    if differing:
        more = len(differing) - _SHOWN_KEYS
        raise RunError(
            f"{run}: is of another model than the config: {'; '.join(differing[:_SHOWN_KEYS])}"
            + (f"; and {more} more" if more > 0 else "")
        )
    return finished


def _mean_rows(matrix: Tensor, rows: list[FormerRow]) -> Tensor:
    """Return [V D] with the mean of the former rows as each row; of a single one, itself."""
    counts = [len(row.ids) for row in rows]
    starts = torch.tensor([0, *counts[:-1]]).cumsum(0)
    ids = torch.tensor([number for row in rows for number in row.ids])
    return F.embedding_bag(ids, matrix, starts, mode="mean")


def _counts(rows: list[FormerRow]) -> str:
    new = [row.token for row in rows if row.is_new]
    copied = f"{len(rows) - len(new):,} rows copied"
    if not new:
        return copied
    return (
        f"{copied}, {len(new):,} new ones are the mean of their tokens' rows, such as "
        f"{shown_tokens(new)}"
    )
