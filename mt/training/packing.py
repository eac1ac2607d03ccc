"""Batches without padding: the sentences side by side, with attention of variable length.

PyTorch's `varlen_attn` gets the beginning of each sentence in place of a mask. Its signature is the
same from torch 2.11 on, for the arguments used here.
"""

from collections.abc import Callable
from dataclasses import dataclass
from inspect import signature
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mt.errors import UserError
from mt.model.attention import Mask
from mt.model.positional import Positional, Rotary, rotated
from mt.model.transformer import Transformer
from mt.special_ids import PAD
from mt.training.loss import compute_dtype

VarlenAttention = Callable[..., Any]
"""Type of `torch.nn.attention.varlen.varlen_attn`."""
_TYPES = {torch.bfloat16, torch.float16}
_LEAST_CAPABILITY = (8, 0)
"""Of a GPU that the kernel runs on."""


def pack_batches(model: Transformer, device: torch.device) -> None:
    """Let a model compute training batches without padding where the device can.

    Batches in fp32 stay rectangles, as do those without labels. Raises UserError if PyTorch is too
    old.
    """
    if device.type != "cuda" or torch.cuda.get_device_capability(device) < _LEAST_CAPABILITY:
        return
    attention, rectangles = _varlen_attention(), model.states

    def states(
        source: Tensor, target_in: Tensor, real: Tensor, *, source_tokens: int | None = None
    ) -> Tensor:
        if not source_tokens or compute_dtype(model.output.weight) not in _TYPES:
            return rectangles(source, target_in, real, source_tokens=source_tokens)
        packed = pack(source, source_tokens), pack(target_in, len(real))
        return packed_states(model, *packed, attention)

    model.states = states  # type: ignore[method-assign]


def _varlen_attention() -> VarlenAttention:
    try:
        from torch.nn.attention.varlen import varlen_attn
    except ImportError:
        is_known = False
    else:
        is_known = {"scale", "window_size"} <= signature(varlen_attn).parameters.keys()
    if not is_known:
        raise UserError(
            f"`training.packing: on` needs torch 2.11 or later, but {torch.__version__} is "
            "installed; update it, or set `training.packing: off`"
        )
    return varlen_attn


@dataclass(frozen=True)
class Packed:
    """N tokens of B sentences side by side."""

    ids: Tensor
    """[1 N]."""
    positions: Tensor
    """[N] place of each token in its sentence."""
    starts: Tensor
    """[B+1] int32: index of the first token of each sentence, and N."""
    longest: int
    """Tokens of the longest sentence."""


def pack(ids: Tensor, tokens: int) -> Packed:
    """Return ids [B T], padded on the right, without padding; the device is not asked.

    `tokens` is the number of ids that are not PAD.
    """
    lengths = (ids != PAD).sum(dim=1)
    starts = F.pad(lengths.cumsum(0), (1, 0))
    rows = torch.repeat_interleave(lengths, output_size=tokens)
    positions = torch.arange(tokens, device=ids.device) - starts[rows]
    return Packed(ids[rows, positions][None], positions, starts.int(), ids.shape[1])


def packed_states(
    model: Transformer, source: Packed, target_in: Packed, attention: VarlenAttention
) -> Tensor:
    """Return the decoder states [N D], as `Transformer.states` does for a rectangle."""
    memory = model.encoder_states(
        source.ids,
        PackedMask(queries=source, keys=source, attention=attention),
        PackedPositions(model.encoder_positional, source),
    )
    masks = (
        PackedMask(causal=True, queries=target_in, keys=target_in, attention=attention),
        PackedMask(queries=target_in, keys=source, attention=attention),
    )
    positions = PackedPositions(model.decoder_positional, target_in)
    return model.decoder_states(target_in.ids, masks, memory, positions)[0]


@dataclass(frozen=True, kw_only=True)
class PackedMask(Mask):
    """Keys of the same sentence, earlier ones alone if causal; weights are not dropped."""

    queries: Packed
    keys: Packed
    attention: VarlenAttention

    def attend(self, q: Tensor, k: Tensor, v: Tensor, *, scale: float, dropout: float) -> Tensor:
        """Return the output of each head [1 H N V], for N queries and M keys [1 H M K]."""
        assert dropout == 0.0, "the config excludes it"
        heads: Tensor = self.attention(
            *(each[0].transpose(0, 1) for each in (q, k, v)),
            self.queries.starts,
            self.keys.starts,
            self.queries.longest,
            self.keys.longest,
            scale=scale,
            window_size=(-1, 0) if self.causal else (-1, -1),
        )
        return heads.transpose(0, 1)[None]


class PackedPositions(Positional):
    """An encoding whose positions begin anew in each sentence; one without effect on scores."""

    def __init__(self, encoding: Positional, packed: Packed) -> None:
        nn.Module.__init__(self)
        self.encoding = encoding
        self.packed = packed
        self.rows: Tensor | None = None
        if isinstance(encoding, Rotary):
            self.rows = encoding.table.rows(0, packed.longest)[packed.positions]

    def embed(self, x: Tensor, first: int) -> Tensor:
        """Add positions to embeddings x [1 N D]."""
        added = self.encoding.embed(x.new_zeros(1, self.packed.longest, x.shape[-1]), first)
        return x + added[0, self.packed.positions]

    def rotate(self, heads: Tensor, first: int) -> Tensor:
        """Rotate queries or keys [1 H N K]."""
        del first  # 0 in training
        return heads if self.rows is None else rotated(heads, self.rows)
