"""Conversion of a run to a Hugging Face folder for `MarianMTModel` and `MarianTokenizer`.

Marian is described by Junczys-Dowmunt et al. 2018. The folder works with transformers 4 and 5.
"""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from mt.config import DecodingConfig, ModelConfig
from mt.data.normalization import list_rules, normalize_source, normalize_target
from mt.data.sentencepiece_model import with_rules
from mt.decoding.engine import length_limit
from mt.decoding.load import FinishedRun
from mt.errors import UserError, listed
from mt.files import replace_file, write_json
from mt.special_ids import BOS, EOS, PAD, UNK
from mt.training.checkpoint import save_tensors

_FIXED = {
    "positional": ("sinusoidal",),
    "decoder_start": ("bos",),
    "norm": ("layernorm",),
    "residual": ("post",),
    "feed_forward": ("relu", "gelu", "swish"),
    "attention_temperature": (1.0,),
}
"""Values Marian supports. DeepNorm is not one: the ε of its first norm would differ."""
_MIN_POSITIONS = 512
_SPECIAL_IDS = {
    "pad_token_id": PAD,
    "bos_token_id": BOS,
    "eos_token_id": EOS,
    "decoder_start_token_id": BOS,
    "forced_eos_token_id": None,
}


def why_not_marian(model: ModelConfig) -> str | None:
    """Return the key that Marian cannot express and the reason, or None.

    Any tying of embeddings and models without biases can be expressed.
    """
    for key, supported in _FIXED.items():
        if (value := getattr(model, key)) not in supported:
            return f"`model.{key}: {value}`; Marian supports {' or '.join(map(str, supported))}"
    if model.d_model % model.heads:
        return f"`model.heads: {model.heads}`; in Marian it must divide `model.d_model`"
    width = model.d_model // model.heads
    for key, value, expected in (
        ("kv_heads", model.key_heads, model.heads),
        ("d_head", model.key_width, width),
        ("d_value", model.value_width, width),
    ):
        if value != expected:
            return f"`model.{key}: {value}`; Marian supports {expected} (CTranslate2 any)"
    return None


def write_marian(finished: FinishedRun, folder: Path) -> None:
    """Write a finished run into `folder` as a Hugging Face Marian model.

    Logits are equal up to rounding. The tokenizer of transformers still strips translations and
    reads a leading `>>word<<` as a language. Raises UserError before anything is written if
    `why_not_marian` returns a reason.
    """
    if reason := why_not_marian(finished.config.model):
        raise UserError(f"Marian cannot express {reason}")
    if tags := finished.tokenizer.source.tags:
        raise UserError(f"Marian cannot express {listed(tags)}: it reads tags as text")
    folder.mkdir(parents=True, exist_ok=True)
    with replace_file(folder / "model.safetensors") as temporary:
        save_tensors(convert_tensors(finished.weights, finished.config.model), temporary)
    _write_tokenizer(finished, folder)
    write_json(folder / "generation_config.json", build_generation_settings(finished))
    model, tokenizer, data = finished.config.model, finished.tokenizer, finished.config.data
    task = f"translation_{data.source_language}_to_{data.target_language}"
    write_json(
        folder / "config.json",
        {
            "architectures": ["MarianMTModel"],
            "model_type": "marian",
            "vocab_size": tokenizer.source_size,
            "decoder_vocab_size": tokenizer.target_size,
            "share_encoder_decoder_embeddings": model.tie_embeddings == "all",
            "tie_word_embeddings": model.tie_embeddings != "none",
            "static_position_embeddings": True,
            **build_stack_settings(finished),
            **_SPECIAL_IDS,
            # Overrides the 4 beams of the translation pipeline of transformers 4.
            "task_specific_params": {task: {"num_beams": _beams(finished.config.decoding)}},
        },
    )


SOURCE, TARGET, OUTPUT = "source_embedding.weight", "target_embedding.weight", "output.weight"
SHARED, ENCODER_EMBEDDING, DECODER_EMBEDDING, LM_HEAD, LOGITS_BIAS = (
    "model.shared.weight",
    "model.encoder.embed_tokens.weight",
    "model.decoder.embed_tokens.weight",
    "lm_head.weight",
    "final_logits_bias",
)
_NAMES = {
    "self_attention.attention.query": "self_attn.q_proj",
    "self_attention.attention.key": "self_attn.k_proj",
    "self_attention.attention.value": "self_attn.v_proj",
    "self_attention.attention.output": "self_attn.out_proj",
    "self_residual.norm": "self_attn_layer_norm",
    "cross_attention.query": "encoder_attn.q_proj",
    "cross_attention.key": "encoder_attn.k_proj",
    "cross_attention.value": "encoder_attn.v_proj",
    "cross_attention.output": "encoder_attn.out_proj",
    "cross_residual.norm": "encoder_attn_layer_norm",
    "feed_forward.inner": "fc1",
    "feed_forward.outer": "fc2",
    "feed_forward_residual.norm": "final_layer_norm",
}
_READERS = (".query", ".key", ".value", ".inner")


@dataclass(frozen=True, slots=True)
class TensorName:
    """A tensor of a layer, named here and in Marian."""

    ours: str
    theirs: str
    states_axis: int | None
    """Axis of size d_model that indexes the features of a state, or None."""


def iterate_layer_tensors(model: ModelConfig) -> Iterator[TensorName]:
    """Yield every tensor of the layers of both stacks, biases included."""
    stacks = (("encoder", model.encoder_layers), ("decoder", model.decoder_layers))
    layers = [(side, layer) for side, count in stacks for layer in range(count)]
    for (side, layer), (ours, theirs) in itertools.product(layers, _NAMES.items()):
        if side == "encoder" and ours.startswith("cross"):
            continue
        for kind, reader_axis in (("weight", 1), ("bias", None)):
            yield TensorName(
                f"{side}.{layer}.{ours}.{kind}",
                f"model.{side}.layers.{layer}.{theirs}.{kind}",
                states_axis=reader_axis if ours.endswith(_READERS) else 0,
            )


def put_sines_first(tensor: Tensor, axis: int | None) -> Tensor:
    """Reorder an axis of features from alternating sines and cosines to sines first (Marian)."""
    return tensor if axis is None else tensor.index_select(axis, _order(tensor.shape[axis]))


def interleave_sines(tensor: Tensor, axis: int | None) -> Tensor:
    """Reorder an axis of features from sines first (Marian) to alternating sines and cosines."""
    if axis is None:
        return tensor
    return tensor.index_select(axis, _order(tensor.shape[axis]).argsort())


def _order(width: int) -> Tensor:
    return torch.cat((torch.arange(0, width, 2), torch.arange(1, width, 2)))


def convert_tensors(weights: dict[str, Tensor], model: ModelConfig) -> dict[str, Tensor]:
    """Return the weights under Marian's names; missing biases are zero."""
    if model.tie_embeddings == "all":
        names = {SHARED: TARGET}
    else:
        names = {ENCODER_EMBEDDING: SOURCE, DECODER_EMBEDDING: TARGET}
        if model.tie_embeddings == "none":
            names[LM_HEAD] = OUTPUT
    converted = {theirs: put_sines_first(weights[ours], 1) for theirs, ours in names.items()}
    converted[LOGITS_BIAS] = torch.zeros(1, len(weights[TARGET]))
    for name in iterate_layer_tensors(model):
        tensor = weights.get(name.ours)
        if tensor is None:  # `model.bias: false`
            tensor = torch.zeros(len(weights[name.ours.removesuffix("bias") + "weight"]))
        converted[name.theirs] = put_sines_first(tensor, name.states_axis).contiguous()
    return converted


def _write_tokenizer(finished: FinishedRun, folder: Path) -> None:
    tokenizer, data = finished.tokenizer, finished.config.data
    separate = tokenizer.source is not tokenizer.target
    target_ids = "target_vocab.json" if separate else "vocab.json"
    sides = (
        ("source.spm", "vocab.json", tokenizer.source, normalize_source),
        ("target.spm", target_ids, tokenizer.target, normalize_target),
    )
    for model, ids, vocabulary, normalize in sides:
        processor = vocabulary.processor
        content: bytes = processor.serialized_model_proto()
        if vocabulary.is_normal:
            content = with_rules(content, list_rules(normalize))
        with replace_file(folder / model) as temporary:
            temporary.write_bytes(content)
        tokens = map(processor.id_to_piece, range(len(vocabulary)))
        write_json(folder / ids, {token: index for index, token in enumerate(tokens)})
    pad, unk, bos, eos = map(tokenizer.target.processor.id_to_piece, (PAD, UNK, BOS, EOS))
    write_json(
        folder / "tokenizer_config.json",
        {
            "tokenizer_class": "MarianTokenizer",
            "source_lang": data.source_language,
            "target_lang": data.target_language,
            "separate_vocabs": separate,
            "pad_token": pad,
            "unk_token": unk,
            "bos_token": bos,
            "eos_token": eos,
            "model_max_length": _positions(finished),
            # Keep `</s>` in a text as text, and spaces before full stops.
            "split_special_tokens": True,
            "clean_up_tokenization_spaces": False,
        },
    )


def build_stack_settings(finished: FinishedRun) -> dict[str, object]:
    """Return the keys of config.json for the shape of both stacks, with the embeddings scaled."""
    model = finished.config.model
    of_both = {"ffn_dim": model.d_ff, "attention_heads": model.heads, "layerdrop": 0.0}
    sides = {f"{side}_{key}": of_both[key] for side in ("encoder", "decoder") for key in of_both}
    return {
        "is_encoder_decoder": True,
        "d_model": model.d_model,
        "encoder_layers": model.encoder_layers,
        "decoder_layers": model.decoder_layers,
        **sides,
        "activation_function": model.feed_forward,
        "scale_embedding": True,
        "max_position_embeddings": _positions(finished),
        "dropout": model.dropout,
        "attention_dropout": model.attention_dropout,
        "activation_dropout": model.feed_forward_dropout,
        "dtype": "float32",
    }


_COMMON_LENGTH = 20  # tokens, end mark included
# d log(((5 + length) / 6) ** alpha) / d log(length) for alpha = 1.
_RATE = _COMMON_LENGTH / (5 + _COMMON_LENGTH)


def compute_exponent(decoding: DecodingConfig) -> float:
    """Return the `length_penalty` of transformers that ranks hypotheses most like `decoding`.

    GNMT's penalty (Wu et al. 2016, equation 14) grows more slowly, especially at short lengths.
    Only ratios of penalties matter, so the exponent is GNMT's growth rate at 20 tokens. The other
    normalizations are exact.
    """
    exponents = {"gnmt": _RATE * decoding.length_penalty, "average": 1.0, "none": 0.0}
    return round(exponents[decoding.length_normalization], 6)


def compute_alpha(exponent: float) -> float:
    """Return GNMT's alpha for a `length_penalty` of transformers; inverse of `compute_exponent`."""
    return round(exponent / _RATE, 6)


def build_generation_settings(finished: FinishedRun) -> dict[str, object]:
    """Return the generation settings of transformers; GNMT's penalty is approximated.

    Its beam search stops once no open hypothesis scores above the worst finished one kept; here,
    above the best one. Results differ in about 1 % of Multi30k. `early_stopping: true` would stop
    earlier still, at `num_beams` finished hypotheses.
    """
    decoding = finished.config.decoding
    settings: dict[str, object] = {
        **_SPECIAL_IDS,
        "num_beams": _beams(decoding),
        "length_penalty": compute_exponent(decoding),
        "early_stopping": False,
        "max_length": 1 + length_limit(finished.longest_source, decoding),  # counts BOS
        "suppress_tokens": [PAD, UNK, BOS],
        "do_sample": decoding.search == "sample",
    }
    if decoding.no_repeat_ngram is not None:
        settings["no_repeat_ngram_size"] = decoding.no_repeat_ngram
    if decoding.search == "sample":
        settings |= {"temperature": decoding.temperature, "top_p": decoding.top_p}
        settings["top_k"] = decoding.top_k or 0
    return settings


def _beams(decoding: DecodingConfig) -> int:
    return decoding.beam if decoding.search == "beam" else 1


def _positions(finished: FinishedRun) -> int:
    longest_target = length_limit(finished.longest_source, finished.config.decoding)
    return max(_MIN_POSITIONS, finished.longest_source, longest_target)
