"""The Transformer encoder-decoder of "Attention Is All You Need"."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mt.config import ModelConfig
from mt.model.attention import CAUSAL, EVERYWHERE, Mask
from mt.model.cache import LayerCache
from mt.model.dropout import Dropout
from mt.model.layers import DecoderLayer, EncoderLayer
from mt.model.positional import POSITIONAL, Positional
from mt.model.residual import RESIDUALS
from mt.model.side import Side
from mt.special_ids import PAD


def alignment_layer(layers: int) -> int:
    """Return the number of the decoder layer whose attention says what a piece translates.

    It is the last but one of several (Garg et al. 2019, "Jointly Learning to Align and Translate
    with Transformer Models").
    """
    return max(0, layers - 2)


@dataclass(frozen=True)
class Memory:
    """The encoder's output: states [B S D], and source_mask [B S], True at real pieces.

    No mask stands for a batch without padding.
    """

    states: Tensor
    source_mask: Tensor | None


@dataclass
class DecoderState:
    """What the decoder keeps between steps for B sentences of K rows each.

    Row r belongs to sentence r // K.
    """

    layers: list[LayerCache]
    source_mask: Tensor | None
    beginnings: Tensor
    """[B K T*K], True at the keys that a row's beginning is made of: one of K at each position."""

    @property
    def rows_per_sentence(self) -> int:
        """K."""
        return self.beginnings.shape[1]

    @property
    def pieces(self) -> int:
        """T, the pieces that each row has read."""
        return self.beginnings.shape[2] // self.rows_per_sentence

    @property
    def watched(self) -> LayerCache:
        """The cache of the layer whose attention says what a piece translates."""
        return self.layers[alignment_layer(len(self.layers))]

    def attention(self) -> Tensor:
        """Return how much the rows of the last step looked at the source [R S]; 1 at padding.

        Someone has set `watched.watched` before the step.
        """
        found = self.watched.attention
        assert found is not None, "nobody watches"
        if self.source_mask is not None:
            found = found.masked_fill(~self.source_mask[:, None], 1.0)
        return found.flatten(0, 1)

    def grow(self) -> None:
        """Take in one more position, where each row goes on with its own key."""
        rows = self.rows_per_sentence
        own = torch.eye(rows, dtype=torch.bool, device=self.beginnings.device)
        own = own.expand(len(self.beginnings), -1, -1)
        self.beginnings = torch.cat((self.beginnings, own), dim=2)

    def mask(self, rows: int) -> Mask:
        """Return which keys of a sentence its first `rows` rows look at."""
        if self.rows_per_sentence == 1:
            return EVERYWHERE
        return Mask(self.beginnings[:, None, :rows], rows=self.rows_per_sentence)

    def reorder(self, parents: Tensor) -> None:
        """Let row k of sentence b go on from what was its row `parents[b, k]` [B K]."""
        former = parents[:, :, None].expand_as(self.beginnings)
        self.beginnings = self.beginnings.gather(1, former)

    def keep(self, sentences: Tensor) -> None:
        """Drop all sentences but those numbered in `sentences`, with all of their rows."""
        self.beginnings = self.beginnings.index_select(0, sentences)
        if self.source_mask is not None:
            self.source_mask = self.source_mask.index_select(0, sentences)
        for cache in self.layers:
            cache.keep(sentences)


class Embedding(nn.Embedding):
    """Piece embeddings, drawn with variance 1 / d_model; the padding row is zero.

    Multiplied by sqrt(d_model) on the way in (section 3.4), they have unit variance there, while
    the same matrix used as output layer yields logits of unit variance.
    """

    def __init__(self, vocabulary: int, d_model: int) -> None:
        super().__init__(vocabulary, d_model, padding_idx=PAD)

    def reset_parameters(self) -> None:
        """Draw the rows; called by the constructor of the base class."""
        nn.init.normal_(self.weight, std=self.embedding_dim**-0.5)
        with torch.no_grad():
            self.weight[PAD].zero_()


class Transformer(nn.Module):
    """A Transformer from source ids to logits of target ids (Vaswani et al. 2017, figure 1).

    Axes: B sentences, S source and T target positions, V target vocabulary, D d_model.
    """

    def __init__(
        self, config: ModelConfig, *, source_vocabulary: int, target_vocabulary: int
    ) -> None:
        super().__init__()
        if config.tie_embeddings == "all" and source_vocabulary != target_vocabulary:
            raise ValueError("one matrix for all embeddings needs one vocabulary")
        self.scale = math.sqrt(config.d_model)
        self.target_embedding = Embedding(target_vocabulary, config.d_model)
        self.source_embedding = (
            self.target_embedding
            if config.tie_embeddings == "all"
            else Embedding(source_vocabulary, config.d_model)
        )
        self.output = nn.Linear(config.d_model, target_vocabulary, bias=False)
        if config.tie_embeddings == "none":
            nn.init.normal_(self.output.weight, std=config.d_model**-0.5)
        else:
            self.output.weight = self.target_embedding.weight
        self.encoder_positional = POSITIONAL[config.positional](config, "encoder")
        self.decoder_positional = POSITIONAL[config.positional](config, "decoder")
        self.dropout = Dropout(config.dropout)
        self.encoder = nn.ModuleList(EncoderLayer(each) for each in _layers(config, "encoder"))
        self.decoder = nn.ModuleList(DecoderLayer(each) for each in _layers(config, "decoder"))
        self.encoder_norm = RESIDUALS[config.residual].final_norm(config)
        self.decoder_norm = RESIDUALS[config.residual].final_norm(config)

    @property
    def longest(self) -> int | None:
        """The most pieces of a sentence, end mark included; None where there is no limit."""
        return self.decoder_positional.longest

    def forward(self, source: Tensor, target_in: Tensor) -> Tensor:
        """Return the logits [N V] of the N real target positions, row after row.

        `source` [B S] ends with EOS, `target_in` [B T] begins with BOS, both padded with PAD.
        """
        real = torch.nonzero(target_in.flatten() != PAD).flatten()
        return self.output(self.states(source, target_in, real))  # type: ignore[no-any-return]

    def states(self, source: Tensor, target_in: Tensor, real: Tensor) -> Tensor:
        """Return the decoder's last states [N D] at the places `real` [N] of target_in.flatten().

        Padding is left out: at the output layer it would cost as much as real positions.
        """
        states = self.decode(target_in, self.encode(source))
        return states.flatten(0, 1).index_select(0, real)

    def encode(self, source: Tensor) -> Memory:
        """Encode source ids [B S]."""
        source_mask = _padding_mask(source)
        positional = self.encoder_positional
        x = self._embed(self.source_embedding, source, positional, first=0)
        length = source.shape[1]
        mask = _memory_mask(source_mask).with_bias(positional.bias(length, length))
        for number, layer in enumerate(self.encoder):
            x = layer(x, mask, positional.layer(number))
        return Memory(self.encoder_norm(x), source_mask)

    def decode(self, target_in: Tensor, memory: Memory) -> Tensor:
        """Return decoder states [B T D]; the state at t has seen target_in[:, :t + 1] only."""
        # Padding stands at the end, so no real position ever looks at it: causality is enough.
        positional, length = self.decoder_positional, target_in.shape[1]
        x = self._embed(self.target_embedding, target_in, positional, first=0)
        mask = CAUSAL.with_bias(positional.bias(length, length))
        memory_mask = _memory_mask(memory.source_mask)
        for number, layer in enumerate(self.decoder):
            x = layer(x, mask, memory.states, memory_mask, positional.layer(number))
        return self.decoder_norm(x)  # type: ignore[no-any-return]

    def start(self, memory: Memory, rows_per_sentence: int) -> DecoderState:
        """Return the state before the first step, with `rows_per_sentence` rows a sentence."""
        states = memory.states
        layers = [layer.start(states, rows_per_sentence) for layer in self._decoder_layers()]
        nothing = torch.empty(
            len(states), rows_per_sentence, 0, dtype=torch.bool, device=states.device
        )
        return DecoderState(layers, memory.source_mask, nothing)

    def step(self, last_ids: Tensor, state: DecoderState) -> Tensor:
        """Return the logits [R V] of the piece after `last_ids` [R]; the first step is given BOS.

        `state` takes in the new piece. While all rows of a sentence are alike, as at the first
        step, one can stand for them: then `last_ids` and the logits have as many rows as sentences.
        """
        positional = self.decoder_positional
        x = self._embed(self.target_embedding, last_ids[:, None], positional, first=state.pieces)
        x = x.view(len(state.beginnings), -1, x.shape[-1])
        state.grow()
        mask = state.mask(x.shape[1]).with_bias(positional.bias(1, state.pieces))
        memory_mask = _memory_mask(state.source_mask)
        for number, layer in enumerate(self._decoder_layers()):
            x = layer.step(x, state.layers[number], mask, memory_mask, positional.layer(number))
        return self.output(self.decoder_norm(x).flatten(0, 1))  # type: ignore[no-any-return]

    def _embed(
        self, embedding: Embedding, ids: Tensor, positional: Positional, *, first: int
    ) -> Tensor:
        x = F.embedding(ids, embedding.weight, padding_idx=PAD) * self.scale
        return self.dropout(positional.embed(x, first))  # type: ignore[no-any-return]

    def _decoder_layers(self) -> list[DecoderLayer]:
        return [layer for layer in self.decoder if isinstance(layer, DecoderLayer)]


def _layers(config: ModelConfig, side: Side) -> list[ModelConfig]:
    """Return the config of each layer of a stack, with its own rate in the place of `dropout`."""
    if side == "encoder":
        layers, rates = config.encoder_layers, config.encoder_dropout
    else:
        layers, rates = config.decoder_layers, config.decoder_dropout
    each = rates or [config.dropout] * layers
    return [config.model_copy(update={"dropout": rate}) for rate in each]


def _padding_mask(ids: Tensor) -> Tensor | None:
    """Return where the real pieces of ids [B S] are.

    None, for all, is told on a CPU alone: elsewhere the host would have to wait for the answer,
    and a compiled graph would end here.
    """
    real = ids != PAD
    waits = ids.device.type != "cpu" or torch.compiler.is_compiling()
    return None if not waits and bool(real.all()) else real


def _memory_mask(source_mask: Tensor | None) -> Mask:
    return EVERYWHERE if source_mask is None else Mask(source_mask[:, None, None, :])
