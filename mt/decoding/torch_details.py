"""Log-probabilities and alignments of translations, by a second, teacher-forced pass."""

import copy
import math
from collections.abc import Iterator, Sequence
from itertools import chain, islice

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.utils.rnn import pad_sequence

from mt.decoding.details import PieceDetails
from mt.decoding.engine import Hypothesis
from mt.decoding.length_batches import length_batches
from mt.model.layers import DecoderLayer
from mt.model.recording import recording
from mt.model.transformer import Transformer, alignment_layer
from mt.special_ids import BOS, PAD

# Padded positions of a batch; a longer hypothesis is alone.
_POSITIONS_AT_ONCE = 1024


def explain(
    models: Sequence[Transformer],
    sources: Sequence[Sequence[int]],
    hypotheses: Sequence[Hypothesis],
    *,
    device: torch.device,
) -> list[PieceDetails]:
    """Return the details of a hypothesis for each source; the models are in evaluation mode.

    Several models speak as one, by the means of their probabilities and of their attention. A
    target piece belongs to the source piece that it looks at most, EOS aside, in the mean over the
    heads of the last decoder layer but one (Garg et al. 2019, "Jointly Learning to Align and
    Translate with Transformer Models"); with one layer, of that one.
    """
    assert not any(model.training for model in models), "dropout would make the numbers random"
    models = [_with_modules_of_its_own(model) for model in models]
    targets = [hypothesis.ids for hypothesis in hypotheses]
    pairs = zip(sources, targets, strict=True)
    lengths = {number: max(map(len, pair)) for number, pair in enumerate(pairs) if pair[1]}
    details = {number: PieceDetails((), ()) for number, ids in enumerate(targets) if not ids}
    for numbers in length_batches(lengths, positions=_POSITIONS_AT_ONCE):
        some_sources = [sources[number] for number in numbers]
        some_targets = [targets[number] for number in numbers]
        found = _explain_batch(models, some_sources, some_targets, device=device)
        details.update(zip(numbers, found, strict=True))
    return [details[number] for number in range(len(targets))]


def _with_modules_of_its_own(model: Transformer) -> Transformer:
    """Return a model over the same tensors, whose hooks no other thread runs into."""
    tensors = chain(model.parameters(), model.buffers())
    return copy.deepcopy(model, {id(tensor): tensor for tensor in tensors})


def _explain_batch(
    models: Sequence[Transformer],
    sources: Sequence[Sequence[int]],
    targets: Sequence[Sequence[int]],
    *,
    device: torch.device,
) -> Iterator[PieceDetails]:
    source = _padded(sources).to(device)
    target_in = _padded([[BOS, *target[:-1]] for target in targets]).to(device)
    target_out = torch.tensor([*chain.from_iterable(targets)], device=device)
    passes = [_teacher_forced(model, source, target_in, target_out) for model in models]
    log_probs = torch.stack([log_probs for log_probs, _ in passes]).logsumexp(0)
    each = iter((log_probs - math.log(len(models))).tolist())
    attention = torch.stack([weights for _, weights in passes]).mean(0).float()
    looked_at = attention.argmax(-1).tolist()
    weights = attention.cpu().numpy()
    for number, target in enumerate(targets):
        end = len(sources[number]) - 1
        its_own = weights[number, : len(target), : end + 1]
        pairs = enumerate(looked_at[number][: len(target)])
        alignment = tuple((place, piece) for piece, place in pairs if place < end)
        yield PieceDetails(tuple(islice(each, len(target))), alignment, its_own)


def _teacher_forced(
    model: Transformer, source: Tensor, target_in: Tensor, target_out: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the log-probabilities [N] of the real target pieces, and the attention [B T S]."""
    layers = [layer for layer in model.decoder if isinstance(layer, DecoderLayer)]
    attention = layers[alignment_layer(len(layers))].cross_attention.weights
    with torch.inference_mode(), recording(model) as weights:
        log_probs = F.log_softmax(model(source, target_in).float(), dim=-1)
        return log_probs.gather(1, target_out[:, None])[:, 0], weights[attention].mean(dim=1)


def _padded(rows: Sequence[Sequence[int]]) -> Tensor:
    return pad_sequence([torch.tensor(row) for row in rows], batch_first=True, padding_value=PAD)
