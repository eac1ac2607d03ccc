"""Multi-head attention, its masks, and the decoder's cache of keys and values."""

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mt.config import ModelConfig
from mt.model.device import device_traits
from mt.model.sublayers import Dropout
from mt.model.weights import Gains, glorot

_INITIAL_CAPACITY = 16


@dataclass(frozen=True)
class Mask:
    """Keys that a query may attend to; by default all, without a tensor for the faster kernels."""

    allowed: Tensor | None = None
    """Boolean, broadcasts to [B H T S]: True where a query may attend to a key."""
    bias: Tensor | None = None
    """Float, broadcasts to [B H T S]: added to the scores; -inf in place of an `allowed` False."""
    causal: bool = False
    """Hide later keys; queries and keys are the same positions, and there is no tensor."""
    rows: int = 1
    """Beam search: rows of a sentence, and so keys at each position and queries at the last one."""

    def with_bias(self, bias: Tensor | None) -> "Mask":
        """Return a mask that adds `bias` [1 H T S] to the scores.

        The bias of a causal mask must itself be -inf at later keys.
        """
        if bias is None:
            return self
        bias = bias.repeat_interleave(self.rows, dim=-1) if self.rows > 1 else bias
        if self.allowed is not None:
            bias = bias.masked_fill(~self.allowed, float("-inf"))
        return Mask(bias=bias, rows=self.rows)


EVERYWHERE = Mask()
CAUSAL = Mask(causal=True)


class Attention(nn.Module):
    """softmax(q k^T / (temperature sqrt(d_k))) v in H parallel heads.

    Vaswani et al. 2017, section 3.2; their Q, K and V are q, k and v here. A head of keys and
    values may serve several heads of queries (Shazeer 2019; Ainslie et al. 2023), so there are
    G <= H of them. Projection and attention are separate steps, so that callers can cache, rotate
    or share keys and values in between.
    """

    def __init__(self, config: ModelConfig, gains: Gains) -> None:
        super().__init__()
        self.heads, self.key_heads = config.heads, config.key_heads
        key_width, value_width, bias = config.key_width, config.value_width, config.bias
        self.query = nn.Linear(config.d_model, self.heads * key_width, bias=bias)
        self.key = nn.Linear(config.d_model, self.key_heads * key_width, bias=bias)
        self.value = nn.Linear(config.d_model, self.key_heads * value_width, bias=bias)
        self.output = nn.Linear(self.heads * value_width, config.d_model, bias=bias)
        self.scale = 1 / (config.attention_temperature * key_width**0.5)
        self.dropout = config.attention_dropout
        self.weights = AttentionWeights(self.scale, self.dropout)
        glorot(self.query, gains.query_key)
        glorot(self.key, gains.query_key)
        glorot(self.value, gains.value)
        glorot(self.output, gains.output)

    def project_all(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Project x [B T D] to keys [B G T d_k], values [B G T d_v] and queries [B H T d_k]."""
        k, v, q = _products(x, self.key, self.value, self.query)
        return _split(k, self.key_heads), _split(v, self.key_heads), _split(q, self.heads)

    def project_queries(self, x: Tensor) -> Tensor:
        """Project x [B T D] to queries [B H T d_k]."""
        return _split(self.query(x), self.heads)

    def project_keys_values(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Project x [B S D] to keys [B G S d_k] and values [B G S d_v]."""
        k, v = _products(x, self.key, self.value)
        return _split(k, self.key_heads), _split(v, self.key_heads)

    def forward(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask) -> Tensor:
        """Attend with q [B H T d_k] to k [B G S d_k] and v [B G S d_v]; return [B T D]."""
        # On a CPU the backward pass of attention is 8 times as slow in bf16 as in fp32.
        in_fp32 = q.device.type == "cpu" and torch.is_autocast_enabled("cpu")
        if in_fp32:
            q, k, v = q.float(), k.float(), v.float()
        with torch.autocast("cpu", enabled=False) if in_fp32 else nullcontext():
            heads = F.scaled_dot_product_attention(
                q,
                self.for_queries(k),
                self.for_queries(v),
                attn_mask=mask.allowed if mask.bias is None else mask.bias,
                dropout_p=self.dropout * self.training,
                is_causal=mask.causal,
                scale=self.scale,
            )
        return self.join(heads)

    def for_queries(self, heads: Tensor) -> Tensor:
        """Repeat keys or values [B G S ...] for each head of queries: [B H S ...]."""
        if self.key_heads == self.heads:
            return heads
        return heads.repeat_interleave(self.heads // self.key_heads, dim=1)

    def join(self, heads: Tensor) -> Tensor:
        """Concatenate the heads' outputs [B H T d_v] and project them to [B T D]."""
        return self.output(heads.transpose(1, 2).flatten(2))  # type: ignore[no-any-return]


def _products(x: Tensor, *layers: nn.Linear) -> Sequence[Tensor]:
    """Return the results of some layers; in training on a GPU, from one product for all of them."""
    are_plain = all(type(layer) is nn.Linear for layer in layers)
    if not (device_traits(x.device).joins_products and layers[0].training and are_plain):
        return [layer(x) for layer in layers]
    # Copying the small matrices takes less time than further products.
    weight = torch.cat([layer.weight for layer in layers])
    bias = None if layers[0].bias is None else torch.cat([layer.bias for layer in layers])
    return torch.split(F.linear(x, weight, bias), [layer.out_features for layer in layers], dim=-1)


def _split(x: Tensor, heads: int) -> Tensor:
    return x.view(*x.shape[:2], heads, -1).transpose(1, 2)


class AttentionWeights(nn.Module):
    """softmax(q k^T scale) as explicit steps, where the weights themselves are needed."""

    def __init__(self, scale: float, dropout: float) -> None:
        super().__init__()
        self.scale = scale
        self.dropout = Dropout(dropout)

    def forward(self, q: Tensor, k: Tensor, mask: Mask, added: Tensor | None = None) -> Tensor:
        """Return the weights [B H T S] of keys [B H S d_k] for queries [B H T d_k].

        `added` [B H T S] is added to the products before they are scaled.
        """
        products = q @ k.transpose(-2, -1)
        scores = self.scale * (products if added is None else products + added)
        allowed = mask.allowed
        if mask.causal:
            allowed = torch.ones_like(scores[0, 0], dtype=torch.bool).tril()
        if allowed is not None:
            scores = scores.masked_fill(~allowed, float("-inf"))
        if mask.bias is not None:
            scores = scores + mask.bias
        return self.dropout(scores.softmax(-1))  # type: ignore[no-any-return]


class LayerCache:
    """Keys and values of one decoder layer, for B sentences of K rows (hypotheses) each.

    Those of the T target tokens so far are [B G T*K d_k] and [B G T*K d_v], the K rows of each
    position side by side. They are never moved: when a row of beam search continues another row, a
    mask selects the keys of its prefix. (Moving them took twice as long as the attention itself.)
    Those of the encoder's output, `memory_keys` [B G S d_k] and `memory_values` [B G S d_v], are
    shared by the rows of a sentence.
    """

    def __init__(self, memory_keys: Tensor, memory_values: Tensor, rows: int) -> None:
        self.memory_keys = memory_keys
        self.memory_values = memory_values
        self.rows = rows
        self.tokens = 0
        self._keys = self._empty(memory_keys, 0)
        self._values = self._empty(memory_values, 0)

    @property
    def keys(self) -> Tensor:
        """Keys of the tokens so far [B G T*K d_k]."""
        return self._keys[:, :, : self.tokens].flatten(2, 3)

    @property
    def values(self) -> Tensor:
        """Values of the tokens so far [B G T*K d_v]."""
        return self._values[:, :, : self.tokens].flatten(2, 3)

    def append(self, keys: Tensor, values: Tensor) -> None:
        """Append keys [B G K d_k], values [B G K d_v] of one token; [B G 1 ...] is for all rows."""
        if self.tokens == self._keys.shape[2]:
            more = max(_INITIAL_CAPACITY, self.tokens)
            self._keys, self._values = (
                torch.cat((heads, self._empty(heads, more)), dim=2)
                for heads in (self._keys, self._values)
            )
        self._keys[:, :, self.tokens] = keys
        self._values[:, :, self.tokens] = values
        self.tokens += 1

    def keep(self, sentences: Tensor) -> None:
        """Drop all sentences but these, with all of their rows."""
        self._keys, self._values, self.memory_keys, self.memory_values = (
            heads.index_select(0, sentences)
            for heads in (self._keys, self._values, self.memory_keys, self.memory_values)
        )

    def _empty(self, like: Tensor, tokens: int) -> Tensor:
        """Return uninitialised memory for keys or values of more tokens [B G T K ...]."""
        return like.new_empty(*like.shape[:2], tokens, self.rows, like.shape[-1])
