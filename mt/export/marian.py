"""A run as a Marian folder of Hugging Face: what `MarianMTModel` and `MarianTokenizer` load.

Junczys-Dowmunt et al. 2018 for Marian; the folder is that of transformers 4 and 5.
"""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from mt.config import DecodingConfig, ModelConfig
from mt.data.vocabulary import Vocabulary
from mt.decoding.engine import length_limit
from mt.decoding.load import FinishedRun
from mt.errors import UserError, listed
from mt.files import replacing, write_json
from mt.special_ids import BOS, EOS, PAD, UNK
from mt.training.checkpoint import save_tensors

# A sentence of so many tokens, end mark included, is a common one. There both rise at one rate.
_COMMON_LENGTH = 20
# d log(((5 + length) / 6) ** alpha) / d log(length), for alpha 1.
_RATE = _COMMON_LENGTH / (5 + _COMMON_LENGTH)


def exponent_of(decoding: DecodingConfig) -> float:
    """Return the exponent of transformers that ranks hypotheses most as `decoding` does.

    GNMT's penalty (Wu et al. 2016, equation 14) rises more slowly, above all at short lengths. Only
    ratios of penalties decide, so the exponent is GNMT's rate of growth at a common length. The
    other two normalizations are exact.
    """
    exponents = {"gnmt": _RATE * decoding.length_penalty, "average": 1.0, "none": 0.0}
    return round(exponents[decoding.length_normalization], 6)


def alpha_of(exponent: float) -> float:
    """Return GNMT's alpha for an exponent of transformers: the inverse of `exponent_of`."""
    return round(exponent / _RATE, 6)


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
_READERS = ("query", "key", "value", "inner")


@dataclass(frozen=True, slots=True)
class Named:
    """A tensor of a layer under both names."""

    ours: str
    theirs: str
    part: str
    """The last word of the part's name: `query`, `norm` and so on."""
    states_axis: int | None
    """The axis that is one of the states; None: it has none."""


def layer_tensors(model: ModelConfig) -> Iterator[Named]:
    """Yield every tensor of the layers of both stacks, biases included."""
    stacks = (("encoder", model.encoder_layers), ("decoder", model.decoder_layers))
    layers = [f"{side}.{number}" for side, count in stacks for number in range(count)]
    for layer, (ours, theirs) in itertools.product(layers, _NAMES.items()):
        if layer.startswith("decoder") or not ours.startswith("cross"):
            yield _named(f"{layer}.{ours}", theirs, kind="weight")
            yield _named(f"{layer}.{ours}", theirs, kind="bias")


def sines_first(tensor: Tensor, axis: int | None) -> Tensor:
    """Return a tensor of ours with the features of an axis in Marian's order."""
    return tensor if axis is None else tensor.index_select(axis, _order(tensor.shape[axis]))


def sines_between(tensor: Tensor, axis: int | None) -> Tensor:
    """Return a tensor of Marian's with the features of an axis in our order."""
    if axis is None:
        return tensor
    return tensor.index_select(axis, _order(tensor.shape[axis]).argsort())


def _order(width: int) -> Tensor:
    return torch.cat((torch.arange(0, width, 2), torch.arange(1, width, 2)))


def _named(ours: str, theirs: str, *, kind: Literal["weight", "bias"]) -> Named:
    side, number, name = ours.split(".", maxsplit=2)
    part = name.rsplit(".", maxsplit=1)[1]
    reader_axis = 1 if kind == "weight" else None
    return Named(
        f"{ours}.{kind}",
        f"model.{side}.layers.{number}.{theirs}.{kind}",
        part,
        states_axis=reader_axis if part in _READERS else 0,
    )


_FIXED = {
    "positional": ("sinusoidal",),
    "norm": ("layernorm",),
    "norm_epsilon": (1e-5,),
    "residual": ("post",),
    "feed_forward": ("relu", "gelu", "swish"),
}
"""What Marian has, by key. DeepNorm is not among it: its ε of the first sublayer would differ."""
_FEWEST_POSITIONS = 512


def why_not_marian(model: ModelConfig) -> str | None:
    """Say with the key's name why Marian cannot express a model; None where it can.

    Any sharing of embeddings can be expressed, grouped and narrow heads, any attention
    temperature, and a model without biases.
    """
    for key, known in _FIXED.items():
        if (value := getattr(model, key)) not in known:
            return f"`model.{key}: {value}`; Marian has {' or '.join(map(str, known))}"
    if model.d_model % model.heads:
        return f"`model.heads: {model.heads}`; in Marian it divides `model.d_model`"
    width = model.d_model // model.heads
    for key, wanted in (("d_head", model.key_width), ("d_value", model.value_width)):
        if wanted > width:
            return f"`model.{key}: {wanted}`; in Marian a head has `model.d_model / model.heads`"
    return None


def write_marian(finished: FinishedRun, folder: Path) -> None:
    """Write a finished run into `folder` as Hugging Face's Marian.

    The model's logits are the same but for rounding. What the tokenizer of transformers does with
    a text on its own account stays: it strips translations, and takes `>>word<<` in front for a
    language. Raises UserError, before anything is written, where `why_not_marian` has an answer.
    """
    if reason := why_not_marian(finished.config.model):
        raise UserError(f"Marian cannot express {reason}")
    if tags := finished.tokenizer.source.tags:
        raise UserError(f"Marian cannot express {listed(tags)}: it would read a tag as text")
    folder.mkdir(parents=True, exist_ok=True)
    with replacing(folder / "model.safetensors") as temporary:
        save_tensors(marian_tensors(finished.weights, finished.config.model), temporary)
    _write_tokenizer(finished, folder)
    write_json(folder / "generation_config.json", _generation(finished))
    write_json(folder / "config.json", _config(finished))


def marian_tensors(weights: dict[str, Tensor], model: ModelConfig) -> dict[str, Tensor]:
    """Return the weights of ours by Marian's names; what a model without biases lacks is zero."""
    embeddings = {
        "all": {SHARED: TARGET},
        "decoder": {ENCODER_EMBEDDING: SOURCE, DECODER_EMBEDDING: TARGET},
        "none": {ENCODER_EMBEDDING: SOURCE, DECODER_EMBEDDING: TARGET, LM_HEAD: OUTPUT},
    }[model.tie_embeddings]
    found = {theirs: sines_first(weights[ours], 1) for theirs, ours in embeddings.items()}
    found[LOGITS_BIAS] = torch.zeros(1, len(weights[TARGET]))
    for named in layer_tensors(model):
        tensor = weights.get(named.ours)
        if tensor is None:  # `model.bias: false`
            tensor = torch.zeros(len(weights[named.ours.removesuffix("bias") + "weight"]))
        tensor = _with_marians_heads(tensor, named, model)
        found[named.theirs] = sines_first(tensor, named.states_axis).contiguous()
    return found


def _with_marians_heads(tensor: Tensor, named: Named, model: ModelConfig) -> Tensor:
    """Give each query head its own keys and values, d_model / heads wide, zero in what is new.

    Marian divides the scores by the root of that width, so queries make up for it.
    """
    width = model.d_model // model.heads
    if named.part == "output" and named.ours.endswith("weight"):
        heads = tensor.view(len(tensor), model.heads, model.value_width)
        return _widened(heads, 2, width).flatten(1)
    if named.part not in {"query", "key", "value"}:
        return tensor
    count = model.heads if named.part == "query" else model.key_heads
    split = tensor.view(count, len(tensor) // count, *tensor.shape[1:])
    heads = split.repeat_interleave(model.heads // count, dim=0)
    if named.part == "query":
        heads = heads * ((width / model.key_width) ** 0.5 / model.attention_temperature)
    return _widened(heads, 1, width).flatten(0, 1)


def _widened(tensor: Tensor, axis: int, width: int) -> Tensor:
    shape = [*tensor.shape]
    shape[axis] = width - shape[axis]
    return torch.cat((tensor, tensor.new_zeros(shape)), dim=axis)


def _write_tokenizer(finished: FinishedRun, folder: Path) -> None:
    tokenizer, data = finished.tokenizer, finished.config.data
    separate = tokenizer.source is not tokenizer.target
    for name, vocabulary in (("source", tokenizer.source), ("target", tokenizer.target)):
        with replacing(folder / f"{name}.spm") as temporary:
            temporary.write_bytes(vocabulary.processor.serialized_model_proto())
    write_json(folder / "vocab.json", _ids(tokenizer.source))
    if separate:
        write_json(folder / "target_vocab.json", _ids(tokenizer.target))
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
            # A `</s>` in a text is text, and no space before a full stop is taken away.
            "split_special_tokens": True,
            "clean_up_tokenization_spaces": False,
        },
    )


def _ids(vocabulary: Vocabulary) -> dict[str, int]:
    return {vocabulary.processor.id_to_piece(number): number for number in range(len(vocabulary))}


def _config(finished: FinishedRun) -> dict[str, object]:
    model, tokenizer, data = finished.config.model, finished.tokenizer, finished.config.data
    task = f"translation_{data.source_language}_to_{data.target_language}"
    sides = {
        f"{side}_{name}": value
        for side, layers in (("encoder", model.encoder_layers), ("decoder", model.decoder_layers))
        for name, value in (
            ("layers", layers),
            ("ffn_dim", model.d_ff),
            ("attention_heads", model.heads),
            ("layerdrop", 0.0),
        )
    }
    return {
        "architectures": ["MarianMTModel"],
        "model_type": "marian",
        "is_encoder_decoder": True,
        "vocab_size": tokenizer.source_size,
        "decoder_vocab_size": tokenizer.target_size,
        "share_encoder_decoder_embeddings": model.tie_embeddings == "all",
        "tie_word_embeddings": model.tie_embeddings != "none",
        "d_model": model.d_model,
        **sides,
        "activation_function": model.feed_forward,
        "scale_embedding": True,
        "static_position_embeddings": True,
        "max_position_embeddings": _positions(finished),
        "dropout": model.dropout,
        "attention_dropout": model.attention_dropout,
        "activation_dropout": model.feed_forward_dropout,
        **_special_ids(),
        "dtype": "float32",
        # For nothing else the pipeline of transformers 4 gives up the four beams of its own.
        "task_specific_params": {task: {"num_beams": _beams(finished.config.decoding)}},
    }


def _generation(finished: FinishedRun) -> dict[str, object]:
    """Return how transformers is to search; GNMT's penalty has only a similar one there.

    Beam search ends there once no row, scored as it stands, is ahead of the worst hypothesis kept,
    here of the best one; so theirs may find another one, seen with one sentence in a hundred of
    Multi30k. `early_stopping: true` would end before ours, as soon as `num_beams` have ended.
    """
    decoding = finished.config.decoding
    settings: dict[str, object] = {
        **_special_ids(),
        "num_beams": _beams(decoding),
        "length_penalty": exponent_of(decoding),
        "early_stopping": False,
        "max_length": 1 + _longest_target(finished, decoding),  # it counts BOS
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


def _special_ids() -> dict[str, object]:
    return {
        "pad_token_id": PAD,
        "bos_token_id": BOS,
        "eos_token_id": EOS,
        "decoder_start_token_id": BOS,
        "forced_eos_token_id": None,
    }


def _longest_target(finished: FinishedRun, decoding: DecodingConfig) -> int:
    return length_limit(finished.longest_source, decoding)


def _positions(finished: FinishedRun) -> int:
    longest = max(finished.longest_source, _longest_target(finished, finished.config.decoding))
    return max(_FEWEST_POSITIONS, longest)
