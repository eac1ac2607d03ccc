"""Conversion of a Transformer of any variant to a CTranslate2 model.

CTranslate2 has fewer options than `mt.config.model`, so several variants are expressed by others
that compute the same: see `stream_scale` (DeepNorm), `_fill_attention` (shared heads, unequal
widths) and `_fill_relative_positions` (ALiBi of encoders).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch
from ctranslate2.specs import TransformerSpec
from ctranslate2.specs.attention_spec import MultiHeadAttentionSpec
from ctranslate2.specs.common_spec import Activation, LayerNormSpec, LinearSpec
from ctranslate2.specs.transformer_spec import TransformerDecoderSpec, TransformerEncoderSpec
from numpy.typing import NDArray

from mt.config import ModelConfig
from mt.config.model import Side
from mt.data.tokenizer import Tokenizer
from mt.model.positional import MAX_DISTANCE, POSITIONAL, ROTARY_BASE, alibi_slopes
from mt.model.sublayers import NORM_EPSILON, deepnorm_constants
from mt.model.transformer import alignment_layer
from mt.special_ids import BOS, EOS, UNK

Array: TypeAlias = NDArray[np.float32]
Linear: TypeAlias = dict[str, Array]
"""`weight` [out in], and `bias` [out] if there is one."""


_ACTIVATIONS = {
    "relu": Activation.RELU,
    "gelu": Activation.GELU,
    "swish": Activation.SWISH,
    "glu": Activation.Sigmoid,
    "swiglu": Activation.SWISH,
    "geglu": Activation.GELU,
}
_GATED = frozenset({"glu", "swiglu", "geglu"})
_NORMS = {
    "self": ("self_attention.layer_norm", "input_layer_norm", "post_attention_layer_norm"),
    "feed_forward": (
        "ffn.layer_norm",
        "pre_feedforward_layer_norm",
        "post_feedforward_layer_norm",
    ),
    "cross": (
        "attention.layer_norm",
        "external_pre_encoder_attention_layer_norm",
        "external_post_encoder_attention_layer_norm",
    ),
}
"""Norm of each sublayer, and the norms before and after it in a sandwich."""


def write_model(
    folder: Path,
    config: ModelConfig,
    weights: dict[str, Array],
    *,
    tokenizer: Tokenizer,
    positions: int,
    quantization: str | None,
) -> None:
    """Write model.bin, config.json and the vocabularies into `folder`.

    `weights` has the parameters by name, `positions` is the length of the longest sequence, and
    `quantization` is a CTranslate2 type, or None for float32.
    """
    # Forced scoring appends an end mark to translations cut at the limit.
    spec = build_spec(config, weights, positions=positions + 1)
    source, target = (
        [vocabulary.processor.id_to_piece(index) for index in range(len(vocabulary))]
        for vocabulary in (tokenizer.source, tokenizer.target)
    )
    spec.register_source_vocabulary(source)
    spec.register_target_vocabulary(target)
    spec.config.add_source_eos = not tokenizer.tag_is_last
    spec.config.bos_token = target[BOS]
    spec.config.decoder_start_token = target[EOS if config.decoder_start == "eos" else BOS]
    spec.config.eos_token = target[EOS]
    spec.config.unk_token = target[UNK]
    spec.validate()
    spec.optimize(quantization=quantization)
    spec.save(str(folder))


def build_spec(
    config: ModelConfig, weights: dict[str, Array], *, positions: int
) -> TransformerSpec:
    """Return the CTranslate2 specification of a model, with its weights, without vocabularies."""
    common: dict[str, Any] = {
        "pre_norm": config.residual in {"pre", "sandwich"},
        "pre_post_layer_norm": config.residual == "sandwich",
        "activation": _ACTIVATIONS[config.feed_forward],
        "ffn_glu": config.feed_forward in _GATED,
        "rms_norm": config.norm == "rmsnorm",
        "relative_position": config.positional == "relative",
        "rotary_dim": config.key_width if config.positional == "rotary" else None,
        "rotary_interleave": True,
        "rotary_base": ROTARY_BASE,
    }
    encoder = TransformerEncoderSpec(
        config.encoder_layers,
        config.heads,
        # CTranslate2 has ALiBi only in decoders: see `_fill_relative_positions`.
        relative_attention_bias=config.positional in {"relative_bias", "alibi"},
        **common,
    )
    decoder = TransformerDecoderSpec(
        config.decoder_layers,
        config.heads,
        relative_attention_bias=config.positional == "relative_bias",
        alibi=config.positional == "alibi",
        alignment_layer=alignment_layer(config.decoder_layers),
        alignment_heads=config.heads,
        external_pre_post_encoder_layers=config.residual == "sandwich",
        **common,
    )
    spec = TransformerSpec(encoder, decoder)
    spec.config.layer_norm_epsilon = NORM_EPSILON
    _fill_stack(spec.encoder, _Stack(config, weights, "encoder", positions))
    _fill_stack(spec.decoder, _Stack(config, weights, "decoder", positions))
    # Copies, because CTranslate2 quantizes in place.
    target = weights["target_embedding.weight"].copy()
    if config.decoder_start == "zeros":
        target[BOS] = 0
    spec.encoder.embeddings[0].weight = weights.get("source_embedding.weight", target).copy()
    spec.decoder.embeddings.weight = target
    spec.decoder.projection.weight = weights.get("output.weight", target).copy()
    return spec


@dataclass(frozen=True)
class _Stack:
    """Encoder or decoder to convert."""

    config: ModelConfig
    weights: dict[str, Array]
    side: Side
    positions: int

    @property
    def head_width(self) -> int:
        """Common width of the queries, keys and values of a head."""
        return max(self.config.key_width, self.config.value_width)

    @property
    def stream_scale(self) -> float:
        """Factor of the states between layers, relative to the original model.

        CTranslate2 lacks DeepNorm's Norm(alpha x + f(x)). With y = alpha x as the state, it equals
        Norm(y + f(y / alpha)) with the same epsilon: the outputs of embeddings and norms are
        multiplied by alpha, and the matrices that read a state are divided by it.
        """
        if self.config.residual != "deepnorm":
            return 1.0
        return deepnorm_constants(self.config, self.side)[0]

    def linear(self, name: str, *, reads_stream: bool) -> Linear:
        """Return matrix and bias; the matrix undoes the scale of the stream it reads."""
        scale = self.stream_scale if reads_stream else 1.0
        name = f"{self.side}.{name}"
        linear = {"weight": (self.weights[f"{name}.weight"] / scale).astype(np.float32)}
        if f"{name}.bias" in self.weights:
            linear["bias"] = self.weights[f"{name}.bias"]
        return linear


def _fill_stack(spec: Any, stack: _Stack) -> None:
    config = stack.config
    spec.scale_embeddings = np.float32(config.d_model**0.5 * stack.stream_scale)
    encodings: Array | None = None
    if config.positional == "learned":
        encodings = _pad(stack.weights[f"{stack.side}_positional.table"], stack.positions, axis=0)
    elif config.positional in {"sinusoidal", "marian", "fairseq"}:
        added = POSITIONAL[config.positional](config, stack.side)
        encodings = added.embed(torch.zeros(1, stack.positions, config.d_model), 0)[0].numpy()
    elif config.positional == "none":
        # Without a table CTranslate2 uses its own sinusoids.
        encodings = np.zeros((stack.positions, config.d_model), np.float32)
    if encodings is not None:
        spec.position_encodings.encodings = (encodings * stack.stream_scale).astype(np.float32)
    if f"{stack.side}_norm.weight" in stack.weights:
        _fill_norm(spec.layer_norm, stack, f"{stack.side}_norm")
    is_sandwich = config.residual == "sandwich"
    for index, layer in enumerate(spec.layer):
        _fill_attention(layer.self_attention, stack, f"{index}.self_attention.attention")
        _fill_relative_positions(layer.self_attention, stack, index)
        if stack.side == "decoder":
            _fill_attention(layer.attention, stack, f"{index}.cross_attention")
        inner = stack.linear(f"{index}.feed_forward.inner", reads_stream=True)
        if config.feed_forward in _GATED:
            gate = stack.linear(f"{index}.feed_forward.gate", reads_stream=True)
            _fill_linear(layer.ffn.linear_0, gate)
            _fill_linear(layer.ffn.linear_0_noact, inner)
        else:
            _fill_linear(layer.ffn.linear_0, inner)
        outer = stack.linear(f"{index}.feed_forward.outer", reads_stream=False)
        _fill_linear(layer.ffn.linear_1, outer)
        for name, (plain, before, after) in _NORMS.items():
            if name == "cross" and stack.side == "encoder":
                continue
            # The output of the stack is not scaled.
            is_output = index == len(spec.layer) - 1 and name == "feed_forward"
            norm = f"{stack.side}.{index}.{name}_residual.norm"
            norm_spec = attrgetter(before if is_sandwich else plain)(layer)
            _fill_norm(norm_spec, stack, norm, scale=1.0 if is_output else stack.stream_scale)
            if is_sandwich:
                _fill_norm(getattr(layer, after), stack, f"{norm}_after")


def _fill_relative_positions(spec: MultiHeadAttentionSpec, stack: _Stack, index: int) -> None:
    """Fill the tables of the self-attention of a layer, if the positions have any."""
    config, tables = stack.config, f"{stack.side}_positional"
    if config.positional == "relative":
        rows = 2 * config.relative_clip + 1  # zeros for the later keys of a decoder
        for kind in ("keys", "values"):
            table = stack.weights[f"{tables}.layers.{index}.{kind}"]
            wide = _pad(_pad(table, stack.head_width, axis=1), rows, axis=0)
            setattr(spec, f"relative_position_{kind}", wide)
    elif config.positional == "relative_bias":
        spec.relative_attention_bias = stack.weights[f"{tables}.table"]
        spec.relative_attention_max_distance = np.int32(MAX_DISTANCE)
    elif config.positional == "alibi" and stack.side == "encoder":
        # ALiBi as relative position biases, one bucket per offset: one half of the buckets is for
        # keys after the query, and half of each half holds one distance per bucket.
        distances = np.tile(np.arange(2 * stack.positions, dtype=np.float32), 2)
        spec.relative_attention_bias = -distances[:, None] * alibi_slopes(config.heads).numpy()
        spec.relative_attention_max_distance = np.int32(4 * stack.positions)


def _fill_norm(spec: LayerNormSpec, stack: _Stack, name: str, *, scale: float = 1.0) -> None:
    gain = stack.weights[f"{name}.weight"]
    spec.gamma = (gain * scale).astype(np.float32)
    if stack.config.norm == "layernorm":
        # CTranslate2 reads a norm without `beta` as an RMSNorm.
        bias = stack.weights.get(f"{name}.bias", np.zeros_like(gain))
        spec.beta = (bias * scale).astype(np.float32)


def _fill_attention(spec: MultiHeadAttentionSpec, stack: _Stack, name: str) -> None:
    """Fill an attention with equally many heads of one width for queries, keys and values.

    Shared key and value heads are repeated. Narrow heads are padded with zeros, which add nothing
    to the scores and, in the values, meet zeros of the output matrix.
    """
    config = stack.config
    spec.queries_scale = np.float32(1 / (config.attention_temperature * config.key_width**0.5))
    if "self_attention" in name:
        parts = ("query", "key", "value")
        _fill_linear(spec.linear[0], _project(stack, name, parts, reads_stream=True))
    else:
        _fill_linear(spec.linear[0], _project(stack, name, ("query",), reads_stream=True))
        _fill_linear(spec.linear[1], _project(stack, name, ("key", "value"), reads_stream=False))
    output = stack.linear(f"{name}.output", reads_stream=False)
    by_head = output["weight"].reshape(config.d_model, config.heads, config.value_width)
    wide = _pad(by_head, stack.head_width, axis=2).reshape(config.d_model, -1)
    _fill_linear(spec.linear[-1], {**output, "weight": wide})


def _project(stack: _Stack, name: str, parts: Sequence[str], *, reads_stream: bool) -> Linear:
    """Return one projection to the heads of some parts of an attention, such as keys and values."""
    config = stack.config
    joined: dict[str, list[Array]] = {}
    for part in parts:
        heads = config.heads if part == "query" else config.key_heads
        for kind, rows in stack.linear(f"{name}.{part}", reads_stream=reads_stream).items():
            by_head = rows.reshape(heads, -1, *rows.shape[1:]).repeat(config.heads // heads, axis=0)
            wide = _pad(by_head, stack.head_width, axis=1).reshape(-1, *rows.shape[1:])
            joined.setdefault(kind, []).append(wide)
    return {kind: np.concatenate(arrays) for kind, arrays in joined.items()}


def _pad(array: Array, size: int, *, axis: int) -> Array:
    missing = [(0, 0)] * array.ndim
    missing[axis] = (0, size - array.shape[axis])
    return np.pad(array, missing)


def _fill_linear(spec: LinearSpec, linear: Linear) -> None:
    for kind, array in linear.items():
        setattr(spec, kind, array)
