"""Multi-head attention."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mt.config import ModelConfig
from mt.model.sublayers import Dropout
from mt.model.weights import Gains, glorot

_FIRST_ROOM = 16


class LayerCache:
    """The keys and values of a layer, for B sentences of K rows each.

    Those of the tokens so far are [B G T*K K'], in G heads: the K rows of a position stand side by
    side. They lie in memory with room for more, and none is moved again: where a row of beam search
    continues another one, a mask tells which of the sentence's keys are of its beginning. (Moving
    them took twice the time of the attention itself.) Those of the encoder's output, `memory_keys`
    and `memory_values` [B G S K'], are held once a sentence: all of its rows look at the same.
    """

    def __init__(self, memory_keys: Tensor, memory_values: Tensor, rows: int) -> None:
        self.memory_keys = memory_keys
        self.memory_values = memory_values
        self.rows = rows
        self.tokens = 0
        self.watched = False
        self.attention: Tensor | None = None
        """Where it is watched, how much each row's newest token looks at the memory [B K S].

        It is the mean over the heads, after a step and before `keep`.
        """
        self._keys = self._room(memory_keys, 0)
        self._values = self._room(memory_values, 0)

    @property
    def keys(self) -> Tensor:
        """Return the keys of the tokens so far [B G T*K K']."""
        return self._keys[:, :, : self.tokens].flatten(2, 3)

    @property
    def values(self) -> Tensor:
        """Return the values of the tokens so far [B G T*K K']."""
        return self._values[:, :, : self.tokens].flatten(2, 3)

    def append(self, keys: Tensor, values: Tensor) -> None:
        """Put keys and values of one more token at the end: [B G K K'], or [B G 1 K'] for all."""
        if self.tokens == self._keys.shape[2]:
            more = max(_FIRST_ROOM, self.tokens)
            self._keys, self._values = (
                torch.cat((each, self._room(each, more)), dim=2)
                for each in (self._keys, self._values)
            )
        self._keys[:, :, self.tokens] = keys
        self._values[:, :, self.tokens] = values
        self.tokens += 1

    def keep(self, sentences: Tensor) -> None:
        """Drop all sentences, with all of their rows, but these."""
        self._keys, self._values, self.memory_keys, self.memory_values = (
            each.index_select(0, sentences)
            for each in (self._keys, self._values, self.memory_keys, self.memory_values)
        )

    def _room(self, like: Tensor, tokens: int) -> Tensor:
        """Return memory for keys or values of so many more tokens [B G T K K']."""
        return like.new_empty(*like.shape[:2], tokens, self.rows, like.shape[-1])


@dataclass(frozen=True)
class Mask:
    """Which keys a query may look at: all of them, unless a field says otherwise.

    No mask is materialised where causality or full length makes it unnecessary, and the kernels
    are faster without one.
    """

    scores: Tensor | None = None
    """Broadcasts to [B H T S]: True where a query may look, or a float that is added."""
    causal: bool = False
    """Queries and keys are the same positions, and none looks at a later one; `scores` is None."""
    rows: int = 1
    """So many keys stand side by side at each position, and as many queries at the last one."""

    def with_bias(self, bias: Tensor | None) -> "Mask":
        """Return a mask that allows the same and adds `bias` [1 H T S] to the scores, if any.

        The bias of a causal mask hides later keys by itself.
        """
        if bias is None:
            return self
        bias = bias.repeat_interleave(self.rows, dim=-1) if self.rows > 1 else bias
        if self.scores is not None:
            bias = bias.masked_fill(~self.scores, float("-inf"))
        return Mask(bias, rows=self.rows)


EVERYWHERE = Mask()
CAUSAL = Mask(causal=True)


class AttentionWeights(nn.Module):
    """softmax(Q K^T scale), step by step, for whoever needs the weights themselves."""

    def __init__(self, scale: float, dropout: float) -> None:
        super().__init__()
        self.scale = scale
        self.dropout = Dropout(dropout)

    def forward(self, q: Tensor, k: Tensor, mask: Mask, added: Tensor | None = None) -> Tensor:
        """Return the weights [B H T S] of keys [B H S K] for queries [B H T K].

        `added` [B H T S] joins the products before they are scaled.
        """
        products = q @ k.transpose(-2, -1)
        scores = self.scale * (products if added is None else products + added)
        allowed = mask.scores
        if mask.causal:
            allowed = torch.ones_like(scores[0, 0], dtype=torch.bool).tril()
        if allowed is not None and allowed.dtype == torch.bool:
            scores = scores.masked_fill(~allowed, float("-inf"))
        elif allowed is not None:
            scores = scores + allowed
        return self.dropout(scores.softmax(-1))  # type: ignore[no-any-return]


class Attention(nn.Module):
    """softmax(Q K^T / (temperature sqrt(d_head))) V in parallel heads.

    Vaswani et al. 2017, section 3.2; a head of keys and values may serve several heads of queries
    (Shazeer 2019; Ainslie et al. 2023). The steps are separate, so that whoever owns the attention
    can keep keys and values (caches), turn them (rotary) or share them between rows.
    """

    def __init__(self, config: ModelConfig, gains: Gains) -> None:
        super().__init__()
        self.heads, self.key_heads = config.heads, config.key_heads
        self.gains = gains
        key_width, value_width, bias = config.key_width, config.value_width, config.bias
        self.query = nn.Linear(config.d_model, self.heads * key_width, bias=bias)
        self.key = nn.Linear(config.d_model, self.key_heads * key_width, bias=bias)
        self.value = nn.Linear(config.d_model, self.key_heads * value_width, bias=bias)
        self.output = nn.Linear(self.heads * value_width, config.d_model, bias=bias)
        self.scale = 1 / (config.attention_temperature * key_width**0.5)
        self.dropout = config.attention_dropout
        self.weights = AttentionWeights(self.scale, self.dropout)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the matrices by Glorot's rule, times the gains; biases begin at zero."""
        glorot(self.query, self.gains.query_key)
        glorot(self.key, self.gains.query_key)
        glorot(self.value, self.gains.value)
        glorot(self.output, self.gains.output)

    def queries(self, x: Tensor) -> Tensor:
        """Project x [B T D] to queries [B H T K]."""
        return _split(self.query(x), self.heads)

    def keys_values(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Project x [B S D] to keys [B G S K] and values [B G S V] in G heads."""
        return _split(self.key(x), self.key_heads), _split(self.value(x), self.key_heads)

    def forward(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask) -> Tensor:
        """Attend with queries [B H T K] to keys [B G S K] and values [B G S V]; return [B T D]."""
        if q.device.type == "cpu" and torch.is_autocast_enabled("cpu"):
            # A CPU takes 8 times as long for the gradient of this in bf16 as in fp32.
            with torch.autocast("cpu", enabled=False):
                heads = self._attend(q.float(), k.float(), v.float(), mask)
        else:
            heads = self._attend(q, k, v, mask)
        return self.join(heads)

    def _attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask) -> Tensor:
        """Return the heads' results [B H T V], in the precision of their arguments."""
        return F.scaled_dot_product_attention(
            q,
            self.for_queries(k),
            self.for_queries(v),
            attn_mask=mask.scores,
            dropout_p=self.dropout if self.training else 0.0,
            is_causal=mask.causal,
            scale=self.scale,
        )

    def for_queries(self, heads: Tensor) -> Tensor:
        """Repeat the heads of keys or values [B G S K] for the queries' heads: [B H S K]."""
        if self.key_heads == self.heads:
            return heads
        return heads.repeat_interleave(self.heads // self.key_heads, dim=1)

    def join(self, heads: Tensor) -> Tensor:
        """Concatenate the heads' results [B H T V] and project them to [B T D]."""
        return self.output(heads.transpose(1, 2).flatten(2))  # type: ignore[no-any-return]


def _split(x: Tensor, heads: int) -> Tensor:
    return x.view(*x.shape[:2], heads, -1).transpose(1, 2)
