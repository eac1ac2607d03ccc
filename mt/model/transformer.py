"""The Transformer encoder-decoder of "Attention Is All You Need" (Vaswani et al. 2017).

Axes: B sentences, S source positions (keys), T target positions (queries), D d_model, V target
vocabulary, H heads, G heads of keys and values, N a number of positions; widths d_k of a query or
key, d_v of a value; in the cached decoder, K rows (hypotheses) per sentence and R = B*K rows.
"""

import math
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mt.config import ModelConfig
from mt.model.attention import CAUSAL, EVERYWHERE, Attention, LayerCache, Mask
from mt.model.positional import POSITIONAL, Fairseq, Positional, SinusoidTable
from mt.model.sublayers import FEED_FORWARD, RESIDUALS, Dropout
from mt.model.weights import Gains
from mt.special_ids import BOS, EOS, PAD


@dataclass(frozen=True)
class Memory:
    """Output of the encoder [B S D], and a mask [B S] of real tokens.

    The mask is None for a batch that is known to have no padding.
    """

    states: Tensor
    source_mask: Tensor | None


class Transformer(nn.Module):
    """A Transformer from source ids to logits of target ids (figure 1)."""

    def __init__(
        self, config: ModelConfig, *, source_vocabulary: int, target_vocabulary: int
    ) -> None:
        super().__init__()
        if config.tie_embeddings == "all" and source_vocabulary != target_vocabulary:
            raise ValueError("one matrix for all embeddings needs one vocabulary")
        self.scale = math.sqrt(config.d_model)
        self.decoder_start = config.decoder_start
        self.target_embedding = Embedding(target_vocabulary, config.d_model)
        self.source_embedding = self.target_embedding
        if config.tie_embeddings != "all":
            self.source_embedding = Embedding(source_vocabulary, config.d_model)
        self.output = nn.Linear(config.d_model, target_vocabulary, bias=False)
        if config.tie_embeddings == "none":
            nn.init.normal_(self.output.weight, std=config.d_model**-0.5)
        else:
            self.output.weight = self.target_embedding.weight
        self.encoder_positional = POSITIONAL[config.positional](config, "encoder")
        self.decoder_positional = POSITIONAL[config.positional](config, "decoder")
        self.dropout = Dropout(config.dropout)
        self.encoder = nn.ModuleList(EncoderLayer(config) for _ in range(config.encoder_layers))
        self.decoder = nn.ModuleList(DecoderLayer(config) for _ in range(config.decoder_layers))
        self.encoder_norm = RESIDUALS[config.residual].final_norm(config)
        self.decoder_norm = RESIDUALS[config.residual].final_norm(config)

    @property
    def longest(self) -> int | None:
        """Maximum length of a sentence in tokens, EOS included; None if unlimited."""
        return self.decoder_positional.longest

    @property
    def encoder_layers(self) -> list["EncoderLayer"]:
        """Layers of the encoder."""
        return cast(list[EncoderLayer], [*self.encoder])

    @property
    def decoder_layers(self) -> list["DecoderLayer"]:
        """Layers of the decoder."""
        return cast(list[DecoderLayer], [*self.decoder])

    @property
    def alignment_attention(self) -> Attention:
        """Cross-attention of the `alignment_layer`."""
        return self.decoder_layers[alignment_layer(len(self.decoder))].cross_attention

    def reserve_positions(self, positions: int) -> None:
        """Compute position tables of this length, because no compiled graph can let them grow."""
        for module in self.modules():
            if isinstance(module, SinusoidTable) and positions + Fairseq.first > len(module.table):
                module.extend_to(positions + Fairseq.first)

    def forward(self, source: Tensor, target_in: Tensor) -> Tensor:
        """Return the logits [N V] of the N real target positions, row after row.

        `source` [B S] ends with EOS, `target_in` [B T] begins with BOS, both padded with PAD.
        """
        # `collate` pads target_in exactly where it pads the target.
        real = torch.nonzero(target_in.flatten() != PAD).flatten()
        return self.output(self.states(source, target_in, real))  # type: ignore[no-any-return]

    def states(
        self, source: Tensor, target_in: Tensor, real: Tensor, *, source_tokens: int | None = None
    ) -> Tensor:
        """Return the decoder states [N D] at the indices `real` [N] of target_in.flatten().

        Padding is left out: in the output layer it would cost as much as real positions.
        `source_tokens` counts those of `source` without padding, if the host knows them.
        """
        memory = self.encode(source, is_full=source_tokens == source.numel())
        states = self.decode(target_in, memory)
        return states.flatten(0, 1).index_select(0, real)

    def encode(self, source: Tensor, *, is_full: bool = False) -> Memory:
        """Encode source ids [B S]; `is_full` if they have no padding, so that no mask is needed."""
        source_mask = None if is_full else _padding_mask(source)
        positional, length = self.encoder_positional, source.shape[1]
        mask = _memory_mask(source_mask).with_bias(positional.bias(length, length))
        x = self.embed(self.source_embedding, source, positional, first=0)
        for index, layer in enumerate(self.encoder):
            x = layer(x, mask, positional.layer(index))
        return Memory(self.encoder_norm(x), source_mask)

    def decode(self, target_in: Tensor, memory: Memory) -> Tensor:
        """Return decoder states [B T D]; the state at t depends on target_in[:, :t + 1] only."""
        # Padding is at the end, so the causal mask already hides it from real positions.
        positional, length = self.decoder_positional, target_in.shape[1]
        mask = CAUSAL.with_bias(positional.bias(length, length))
        memory_mask = _memory_mask(memory.source_mask)
        x = self.embed(self.target_embedding, target_in, positional, first=0)
        for index, layer in enumerate(self.decoder):
            x = layer(x, mask, memory.states, memory_mask, positional.layer(index))
        return self.decoder_norm(x)  # type: ignore[no-any-return]

    def start(self, memory: Memory, rows_per_sentence: int) -> "DecoderState":
        """Return the state before the first step, with `rows_per_sentence` rows a sentence."""
        states = memory.states
        layers = [layer.start(states, rows_per_sentence) for layer in self.decoder_layers]
        shape = len(states), rows_per_sentence, 0
        ancestry = torch.empty(shape, dtype=torch.bool, device=states.device)
        return DecoderState(layers, memory.source_mask, ancestry)

    def step(self, last_ids: Tensor, state: "DecoderState") -> Tensor:
        """Append `last_ids` [R] to the state; return the logits [R V] of the next token.

        The first step takes BOS. While all rows of a sentence are equal, as in the first step, one
        row may stand for them: then `last_ids` and the logits have one row per sentence.
        """
        positional = self.decoder_positional
        x = self.embed(self.target_embedding, last_ids[:, None], positional, first=state.tokens)
        x = x.view(len(state.ancestry), -1, x.shape[-1])
        state.extend()
        mask = state.mask(x.shape[1]).with_bias(positional.bias(1, state.tokens))
        memory_mask = _memory_mask(state.source_mask)
        for index, layer in enumerate(self.decoder_layers):
            x = layer.step(x, state.layers[index], mask, memory_mask, positional.layer(index))
        return self.output(self.decoder_norm(x).flatten(0, 1))  # type: ignore[no-any-return]

    def embed(
        self, embedding: nn.Embedding, ids: Tensor, positional: Positional, *, first: int
    ) -> Tensor:
        """Return the scaled embeddings of ids [B S] at the positions from `first` on [B S D]."""
        if self.decoder_start == "eos":
            ids = ids.masked_fill(ids == BOS, EOS)
        x = F.embedding(ids, embedding.weight, padding_idx=PAD) * self.scale
        if self.decoder_start == "zeros":
            x = x.masked_fill((ids == BOS)[..., None], 0.0)
        return self.dropout(positional.embed(x, first))  # type: ignore[no-any-return]


def _padding_mask(ids: Tensor) -> Tensor | None:
    """Return a mask of the real tokens of ids [B S], or None for a batch without padding."""
    real = ids != PAD
    # Elsewhere the host would have to wait for the device, and a compiled graph would break.
    can_ask = ids.device.type == "cpu" and not torch.compiler.is_compiling()
    return None if can_ask and bool(real.all()) else real


def _memory_mask(source_mask: Tensor | None) -> Mask:
    return EVERYWHERE if source_mask is None else Mask(source_mask[:, None, None, :])


class Embedding(nn.Embedding):
    """Token embeddings, drawn with variance 1 / d_model; the padding row starts at zero.

    The model multiplies them by sqrt(d_model) (section 3.4), which gives unit variance, while the
    same matrix as output layer gives logits of unit variance.
    """

    def __init__(self, vocabulary: int, d_model: int) -> None:
        super().__init__(vocabulary, d_model, padding_idx=PAD)

    def reset_parameters(self) -> None:
        """Draw the rows; the base class calls this in its constructor."""
        nn.init.normal_(self.weight, std=self.embedding_dim**-0.5)
        with torch.no_grad():
            self.weight[PAD].zero_()


class EncoderLayer(nn.Module):
    """Self-attention and feed-forward (section 3.1)."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        residual = RESIDUALS[config.residual]
        gains = residual.gains(config, "encoder")
        self.self_attention = SelfAttention(config, gains)
        self.self_residual = residual(config, "encoder")
        self.feed_forward = FEED_FORWARD[config.feed_forward](config, gains.feed_forward)
        self.feed_forward_residual = residual(config, "encoder")

    def forward(self, x: Tensor, mask: Mask, positional: Positional) -> Tensor:
        """Map x [B S D] to [B S D]."""
        x = self.self_residual(x, self.self_attention, mask, positional)
        return self.feed_forward_residual(x, self.feed_forward)  # type: ignore[no-any-return]


class DecoderLayer(nn.Module):
    """Masked self-attention, cross-attention to the memory, feed-forward (section 3.1)."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        residual = RESIDUALS[config.residual]
        gains = residual.gains(config, "decoder")
        self.self_attention = SelfAttention(config, gains)
        self.self_residual = residual(config, "decoder")
        self.cross_attention = Attention(config, gains)
        self.cross_residual = residual(config, "decoder")
        self.feed_forward = FEED_FORWARD[config.feed_forward](config, gains.feed_forward)
        self.feed_forward_residual = residual(config, "decoder")

    def forward(
        self, x: Tensor, mask: Mask, memory: Tensor, memory_mask: Mask, positional: Positional
    ) -> Tensor:
        """Map x [B T D], with the memory [B S D], to [B T D]."""
        keys, values = self.cross_attention.project_keys_values(memory)
        x = self.self_residual(x, self.self_attention, mask, positional)
        x = self.cross_residual(x, self._attend_to_memory, keys, values, memory_mask)
        return self.feed_forward_residual(x, self.feed_forward)  # type: ignore[no-any-return]

    def start(self, memory: Tensor, rows_per_sentence: int) -> LayerCache:
        """Return the cache before the first step over a memory [B S D]."""
        keys, values = self.cross_attention.project_keys_values(memory)
        return LayerCache(keys, values, rows_per_sentence)

    def step(
        self, x: Tensor, cache: LayerCache, mask: Mask, memory_mask: Mask, positional: Positional
    ) -> Tensor:
        """Map the newest tokens x [B K D] to [B K D], and append them to the cache."""
        keys, values = cache.memory_keys, cache.memory_values
        x = self.self_residual(x, self.self_attention.step, cache, mask, positional)
        x = self.cross_residual(x, self._attend_to_memory, keys, values, memory_mask)
        return self.feed_forward_residual(x, self.feed_forward)  # type: ignore[no-any-return]

    def _attend_to_memory(self, x: Tensor, keys: Tensor, values: Tensor, mask: Mask) -> Tensor:
        attention = self.cross_attention
        queries = attention.project_queries(x)
        return attention(queries, keys, values, mask)  # type: ignore[no-any-return]


class SelfAttention(nn.Module):
    """Attention of a sequence to itself, with its positions."""

    def __init__(self, config: ModelConfig, gains: Gains) -> None:
        super().__init__()
        self.attention = Attention(config, gains)

    def forward(self, x: Tensor, mask: Mask, positional: Positional) -> Tensor:
        """Map x [B T D] to [B T D]."""
        keys, values, queries = self.attention.project_all(x)
        keys, queries = positional.rotate(keys, 0), positional.rotate(queries, 0)
        attend = positional.choose_attention(self.attention)
        return attend(queries, keys, values, mask)

    def step(self, x: Tensor, cache: LayerCache, mask: Mask, positional: Positional) -> Tensor:
        """Append the newest tokens x [B K D] to the cache and attend to it where `mask` allows.

        x is [B 1 D] where one row stands for all rows of a sentence.
        """

        def side_by_side(heads: Tensor) -> Tensor:
            # From one position for each row, [B*K G 1 d], to one for each sentence, [B G K d].
            return heads.view(-1, x.shape[1], heads.shape[1], heads.shape[3]).transpose(1, 2)

        rows = x.reshape(-1, 1, x.shape[-1])  # all rows are at the same position
        keys, values = self.attention.project_keys_values(rows)
        keys = positional.rotate(keys, cache.tokens)
        queries = positional.rotate(self.attention.project_queries(rows), cache.tokens)
        cache.append(side_by_side(keys), side_by_side(values))
        attend = positional.choose_attention(self.attention)
        return attend(side_by_side(queries), cache.keys, cache.values, mask)


@dataclass
class DecoderState:
    """State of the decoder between steps; row r belongs to sentence r // K."""

    layers: list[LayerCache]
    source_mask: Tensor | None
    ancestry: Tensor
    """[B K T*K], True at the keys of a row's prefix: one of K at each position."""

    @property
    def rows_per_sentence(self) -> int:
        """K."""
        return self.ancestry.shape[1]

    @property
    def tokens(self) -> int:
        """T, the tokens of each row so far."""
        return self.ancestry.shape[2] // self.rows_per_sentence

    def extend(self) -> None:
        """Add a position, at which the prefix of each row goes through its own key."""
        rows = self.rows_per_sentence
        own = torch.eye(rows, dtype=torch.bool, device=self.ancestry.device)
        own = own.expand(len(self.ancestry), -1, -1)
        self.ancestry = torch.cat((self.ancestry, own), dim=2)

    def mask(self, rows: int) -> Mask:
        """Return the mask that restricts the first `rows` rows to the keys of their prefixes."""
        if self.rows_per_sentence == 1:
            return EVERYWHERE
        return Mask(self.ancestry[:, None, :rows], rows=self.rows_per_sentence)

    def reorder(self, parents: Tensor) -> None:
        """Let row k of sentence b continue the prefix of row `parents[b, k]` [B K]."""
        former = parents[:, :, None].expand_as(self.ancestry)
        self.ancestry = self.ancestry.gather(1, former)

    def keep(self, sentences: Tensor) -> None:
        """Drop all sentences but those with the indices `sentences`, with all of their rows."""
        self.ancestry = self.ancestry.index_select(0, sentences)
        if self.source_mask is not None:
            self.source_mask = self.source_mask.index_select(0, sentences)
        for cache in self.layers:
            cache.keep(sentences)


def alignment_layer(layers: int) -> int:
    """Return the index of the decoder layer whose cross-attention aligns source and target.

    Of six layers and more it is the last but one (Garg et al. 2019, "Jointly Learning to Align and
    Translate ..."). Of fewer it is the last one, which aligns far better in models of three.
    """
    return layers - 2 if layers >= 6 else layers - 1
