"""Initial weights: those of a finished run, of translations or zero, and what of them is trained.

With `training.init_from`, training starts at update 0 with a new optimizer. Rows of the embeddings
and of the output layer are mapped to the tokens of the new vocabulary; all other tensors are
copied.
"""

from collections.abc import Collection, Mapping
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from mt.config import ModelConfig, TrainingConfig
from mt.config.training import LORA_SCALE
from mt.data.tokenizer import Tokenizer
from mt.data.tokenizer_training import FormerRow, find_former_rows, list_tokens
from mt.decoding.load import FinishedRun, read_run
from mt.errors import RunError, did_you_mean
from mt.model.attention import Attention
from mt.model.sublayers import FeedForward, GatedFeedForward
from mt.model.transformer import Transformer
from mt.model.weights import add_low_rank, load_parameters
from mt.training.run_folder import find_differences
from mt.training.translation_table import TranslationTable

PARTS: dict[str, tuple[str, ...]] = {
    "source_embedding": ("source_embedding",),
    "target_embedding": ("target_embedding",),
    "output": ("output",),
    "encoder": ("encoder_positional", "encoder", "encoder_norm"),
    "decoder": ("decoder_positional", "decoder", "decoder_norm"),
}
"""Modules of the model by value of `training.freeze`."""


def choose_weights(
    model: Transformer, training: TrainingConfig, *, trains_embeddings: bool = False
) -> None:
    """Choose what is trained and in which type: freezing, low-rank matrices, recomputation.

    `trains_embeddings` adds the embeddings to low-rank matrices, for new tokens.
    """
    # The config requires naming all parts that share a tied matrix.
    for part in training.freeze:
        for name in PARTS[part]:
            model.get_submodule(name).requires_grad_(requires_grad=False)
    if training.lora:
        stacks = ("encoder", "decoder")
        add_low_rank(model, stacks, rank=training.lora, scale=LORA_SCALE)
        if trains_embeddings:
            for embedding in (model.source_embedding, model.target_embedding, model.output):
                embedding.requires_grad_(requires_grad=True)
    if training.precision == "pure_bf16":
        model.to(torch.bfloat16)
    if training.recompute == "on":
        # Chen et al. 2016, "Training Deep Nets with Sublinear Memory Cost".
        for layer in (*model.encoder, *model.decoder):
            layer.forward = partial(checkpoint, layer.forward, use_reentrant=False)


def describe_parameters(model: nn.Module) -> str:
    """Return the number of a model's parameters, and of the frozen ones among them."""
    frozen = sum(tensor.numel() for tensor in model.parameters() if not tensor.requires_grad)
    count = f"{sum(tensor.numel() for tensor in model.parameters()):,} parameters"
    return f"{count}, {frozen:,} of them frozen" if frozen else count


_ROWS = {
    "source_embedding.weight": "source",
    "target_embedding.weight": "target",
    "output.weight": "target",
}
"""Matrices [V D] with a row for each token of a side; tied matrices have one name."""
_LEAST_PROBABILITY = 0.02
"""Of a translation that counts for the initial embeddings; smaller ones are mostly noise."""
_TRANSLATED = 0.8
"""Share of the translations in a row that is moved."""


def load_initial_weights(
    model: Transformer, run: FinishedRun, init_tags: Mapping[str, str], tokenizer: Tokenizer
) -> list[str]:
    """Copy the weights of a finished run into `model`.

    The row of a new token is the mean of the rows of the tokens, bytes included, into which the
    run's tokenizer cuts it, and that of a tag may be another tag's (`init_tags`). Returns summary
    lines.
    """
    old, weights = run.tokenizer, dict(run.weights)
    vocabularies = {
        "source": (tokenizer.source, old.source),
        "target": (tokenizer.target, old.target),
    }
    rows = {side: find_former_rows(new, former) for side, (new, former) in vocabularies.items()}
    for tag, relative in init_tags.items():
        for side, (new, former) in vocabularies.items():
            if relative in former.tags and tag not in former.tags:
                rows[side][new.tags[tag]] = FormerRow(tag, (former.tags[relative],), is_new=True)
    for name, side in _ROWS.items():
        if name in weights:  # each row is the mean of its former rows
            sizes = [len(row.ids) for row in rows[side]]
            starts = torch.tensor([0, *sizes[:-1]]).cumsum(0)
            ids = torch.tensor([index for row in rows[side] for index in row.ids])
            weights[name] = F.embedding_bag(ids, weights[name], starts, mode="mean")
    load_parameters(model, weights, str(run.path))
    origin = f"begins with the weights of {run.path}"
    counts = {}
    for side, mapped in rows.items():
        new_tokens = [row.token for row in mapped if row.is_new]
        counts[side] = f"{len(mapped) - len(new_tokens):,} rows copied"
        if new_tokens:
            counts[side] += f", {len(new_tokens):,} new ones are means of the rows of their "
            counts[side] += f"tokens, such as {list_tokens(new_tokens)}"
    if counts["source"] == counts["target"]:
        return [origin, f"vocabulary: {counts['source']}"]
    return [origin, *(f"{side} vocabulary: {count}" for side, count in counts.items())]


@torch.no_grad()
def translate_embeddings(model: Transformer, table: TranslationTable) -> None:
    """Give tokens that translate each other, and tokens with the same translations, similar rows.

    The target rows move towards the means of the source rows that they translate, then the source
    rows towards those of their translations, then the target rows again. Means are weighted by the
    probability of the target token given the source token. Each row keeps its length and a part of
    its random direction, so that tokens with the same translations differ. A decoder that passes on
    what it attends to then translates words from the start. Minixhofer et al. 2022 ("WECHSEL")
    initialise a language model of another language in a similar way.
    """
    is_likely = table.probabilities > _LEAST_PROBABILITY
    weights = table.probabilities[is_likely, None]
    sources, targets = (ids[is_likely] for ids in table.ids())
    source, target = model.source_embedding.weight, model.target_embedding.weight
    _move_rows(target, targets, weights * source.cpu()[sources])
    _move_rows(source, sources, weights * target.cpu()[targets])
    moving = weights * source.cpu()[sources]
    _move_rows(target, targets, moving)
    if model.output.weight is not target:
        _move_rows(model.output.weight, targets, moving)


@torch.no_grad()
def clear_sublayers(model: Transformer) -> None:
    """Set the last matrix of each attention and feed-forward layer to zero.

    A layer then passes its input on, so the first updates train the embeddings. Zhang et al. 2019
    ("Fixup") clear the last matrix of a residual branch, De and Smith 2020 ("SkipInit") its factor.
    """
    for layer in (*model.encoder, *model.decoder):
        for module in layer.modules():
            if isinstance(module, Attention):
                nn.init.zeros_(module.output.weight)
            elif isinstance(module, FeedForward | GatedFeedForward):
                nn.init.zeros_(module.outer.weight)


def _move_rows(matrix: Tensor, rows: Tensor, vectors: Tensor) -> None:
    """Turn the rows of a matrix [V D] towards the sums of vectors [N D], by their indices [N]."""
    before = matrix.cpu()
    sums = torch.zeros_like(before).index_add_(0, rows, vectors)
    mixed = _TRANSLATED * F.normalize(sums) + (1 - _TRANSLATED) * F.normalize(before)
    moved = F.normalize(mixed) * before.norm(dim=1, keepdim=True)
    matrix.copy_(torch.where(sums.any(dim=1, keepdim=True), moved, before))


def read_initial_run(
    run: Path, model: ModelConfig, tags: Collection[str], init_tags: Mapping[str, str]
) -> FinishedRun:
    """Read a run whose weights fit a model, and whose tags `init_tags` names.

    Raises RunError if the run is missing, unfinished, damaged or of another model. Dropout and
    vocabulary may differ. `tags` are those of the new tokenizer.
    """
    finished = read_run(run)
    before, after = finished.config.model.model_dump(), model.model_dump()
    differing = [
        f"`model.{key}`: {here} here, {there} in {run}"
        for key, (there, here) in find_differences(before, after).items()
        if "dropout" not in key
    ]
    if differing:
        raise RunError(f"{run}: its model differs from the config: {'; '.join(differing)}")
    known = finished.tokenizer.source.tags
    for tag, relative in init_tags.items():
        if relative not in known:
            near = did_you_mean(relative, known)
            raise RunError(f"`training.init_tags`: {run} has no tag `{relative}`{near}")
        if tag not in tags:
            near = did_you_mean(tag, tags)
            raise RunError(f"`training.init_tags`: `tokenizer.tags` does not name `{tag}`{near}")
    return finished
