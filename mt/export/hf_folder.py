"""Hugging Face folders of `marian` and `m2m_100`: settings, names of weights, and the new run."""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Self, TypeVar

import torch
from pydantic import BaseModel, ConfigDict, PositiveInt, model_validator
from torch import Tensor

from mt.config import Config, DataConfig, DecodingConfig, ModelConfig, TokenizerConfig
from mt.config.data import NO_CORPUS, TextSource
from mt.config.loading import dump_config
from mt.data.tokenizer import write_models
from mt.decoding.engine import length_limit
from mt.decoding.load import FinishedRun, read_tensors
from mt.errors import RunError, did_you_mean, listed
from mt.files import open_aside, put_in_place, read_json, validate_values, write_json, write_text
from mt.model.transformer import Transformer
from mt.model.weights import load_parameters
from mt.runs import Provenance, write_description
from mt.special_ids import BOS, PAD, UNK
from mt.training.checkpoint import save_tensors
from mt.training.run_folder import RunFolder

_MIN_POSITIONS = 512
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
Settings = TypeVar("Settings", bound=BaseModel)


@dataclass(frozen=True, slots=True)
class Imported:
    """Summary of an import."""

    languages: str
    parameters: int
    notes: tuple[str, ...]
    """Settings that could only be approximated, and tokens that were left out."""


class FolderSettings(BaseModel):
    """Base of the settings in a JSON file, whose other keys are ignored."""

    model_config = ConfigDict(extra="ignore", frozen=True)


class StackSettings(FolderSettings):
    """Keys of config.json that Marian and M2M-100 share, with the defaults of transformers."""

    vocab_size: PositiveInt
    d_model: PositiveInt
    encoder_layers: PositiveInt
    decoder_layers: PositiveInt
    encoder_ffn_dim: PositiveInt
    decoder_ffn_dim: PositiveInt
    encoder_attention_heads: PositiveInt
    decoder_attention_heads: PositiveInt
    activation_function: Literal["relu", "gelu", "swish", "silu"]
    pad_token_id: int
    eos_token_id: int
    decoder_start_token_id: int
    tie_word_embeddings: bool = True
    max_position_embeddings: PositiveInt = 1024
    dropout: float = 0.1
    attention_dropout: float = 0.0
    activation_dropout: float = 0.0

    @model_validator(mode="after")
    def _check_shape(self) -> Self:
        for name in ("ffn_dim", "attention_heads"):
            encoder, decoder = (getattr(self, f"{side}_{name}") for side in ("encoder", "decoder"))
            if encoder != decoder:
                raise ValueError(f"`encoder_{name}` {encoder}, `decoder_{name}` {decoder}")
        if self.d_model % 2 or self.d_model % self.encoder_attention_heads:
            raise ValueError(f"`d_model` {self.d_model} is odd or no multiple of the heads")
        return self


class GenerationSettings(FolderSettings):
    """Search settings, of generation_config.json."""

    num_beams: PositiveInt | None = None
    length_penalty: float | None = None
    max_length: PositiveInt | None = None
    no_repeat_ngram_size: int | None = None


def model_type(path: Path) -> str:
    """Return the `model_type` of a folder; raise RunError unless `mt import` reads such models."""
    if not path.is_dir():
        raise RunError(f"{path}: no such folder")
    kind = read_json(path / "config.json", dict[str, Any]).get("model_type")
    if kind not in ("marian", "m2m_100"):
        near = did_you_mean(str(kind), ("marian", "m2m_100"))
        raise RunError(
            f"{path / 'config.json'}: `model_type` is `{kind}`; `mt import` reads `marian` "
            f"(OPUS-MT) and `m2m_100` (M2M-100, NLLB-200){near}"
        )
    return str(kind)


def read_settings(path: Path, kind: type[Settings], *, required: bool = True) -> Settings:
    """Read a JSON file of settings, or defaults if none is required; raise RunError for damage."""
    if not required and not path.exists():
        return kind()
    return validate_values(read_json(path, Any), kind, path)


def read_weights(path: Path) -> dict[str, Tensor]:
    """Read the weights of a folder as fp32; raise RunError for missing, damaged or pickled ones."""
    file, index = path / "model.safetensors", path / "model.safetensors.index.json"
    files = [file]
    if index.is_file():
        names = read_json(index, dict[str, dict[str, Any]]).get("weight_map", {}).values()
        files = [path / Path(name).name for name in sorted({*map(str, names)})]
        if missing := [part.name for part in files if not part.is_file()]:
            raise RunError(
                f"{path}: {len(missing)} of {len(files)} files of weights are missing: "
                f"{listed(missing[:3])}"
            )
    elif not file.is_file():
        pickled = sorted(file.name for file in path.glob("pytorch_model*.bin"))
        if not pickled:
            raise RunError(f"{path}: has no {file.name}")
        raise RunError(
            f"{path}: its weights are pickled ({listed(pickled)}); convert them with transformers: "
            'python -c "from transformers import AutoModelForSeq2SeqLM as M; '
            f"M.from_pretrained('{path}').save_pretrained('{path}')\""
        )
    tensors = [tensor for part in files for tensor in read_tensors(part).items()]
    return {name: tensor.float() for name, tensor in tensors}


def get_tensor(
    weights: dict[str, Tensor], name: str, path: Path, *, shape: tuple[int, int] | None = None
) -> Tensor:
    """Return a tensor; raise RunError if it is missing, or has another shape than `shape`."""
    if name not in weights:
        raise RunError(f"{path}: damaged, the weights lack `{name}`")
    tensor = weights[name]
    if shape and tensor.shape != shape:
        raise RunError(
            f"{path}: `{name}` has the shape {list(tensor.shape)}, config.json gives {list(shape)}"
        )
    return tensor


def parameter_or_zeros(weights: dict[str, Tensor], name: str) -> Tensor:
    """Return a parameter, or zeros in place of a bias that the model lacks."""
    matrix = name.removesuffix("bias") + "weight"
    return weights[name] if name in weights else torch.zeros(len(weights[matrix]))


def write_imported_run(
    origin: Path,
    run: Path,
    settings: StackSettings,
    config: dict[str, dict[str, Any]],
    *,
    vocabularies: dict[str, bytes],
    weights: dict[str, Tensor],
) -> Imported:
    """Write a finished run without corpora from the parts of a folder.

    `config` are keys that `settings` do not determine, by section. `vocabularies` are SentencePiece
    models by file name. Raises RunError, with the key, for a setting that is out of range.
    """
    shape = {
        "d_model": settings.d_model,
        "d_ff": settings.encoder_ffn_dim,
        "heads": settings.encoder_attention_heads,
        "encoder_layers": settings.encoder_layers,
        "decoder_layers": settings.decoder_layers,
        "feed_forward": settings.activation_function.replace("silu", "swish"),
        "dropout": settings.dropout,
        "attention_dropout": settings.attention_dropout,
        "feed_forward_dropout": settings.activation_dropout,
        **config["model"],
    }
    positions = settings.max_position_embeddings
    no_corpus = TextSource(source=NO_CORPUS, target=NO_CORPUS)
    decoding, notes = read_search(origin, positions, config["decoding"])
    whole = Config(
        data=DataConfig(train=no_corpus, valid=no_corpus, **config["data"]),
        tokenizer=TokenizerConfig(**config["tokenizer"]),
        model=validate_values(shape, ModelConfig, origin / "config.json"),
        decoding=decoding,
    )
    with open_aside(run) as temporary:
        folder = RunFolder(temporary)
        tokenizer = write_models(folder.tokenizer, vocabularies)
        sizes = tokenizer.source_size, tokenizer.target_size
        with torch.device("meta"):  # only names and shapes are compared
            model = Transformer(whole.model, source_vocabulary=sizes[0], target_vocabulary=sizes[1])
        load_parameters(model, weights, str(origin))
        save_tensors(weights, folder.weights)
        write_text(folder.config, dump_config(whole))
        write_description(
            temporary,
            vocabularies=sizes,
            tokenizer=tokenizer.fingerprint,
            longest_source=positions,
            provenance=Provenance(f"imported from {origin}"),
        )
        put_in_place(temporary, run, is_new=True)
    languages = f"{whole.data.source_language} to {whole.data.target_language}"
    return Imported(languages, sum(tensor.numel() for tensor in weights.values()), notes)


def read_search(
    path: Path, positions: int, keys: dict[str, str]
) -> tuple[DecodingConfig, tuple[str, ...]]:
    """Return the search settings of a folder, and notes on approximated ones.

    `positions` limits translations that the settings do not limit; `keys` are further ones of
    `decoding`. Raises RunError, with the key, for a value that is out of range.
    """
    file = path / "generation_config.json"
    if not file.exists():  # older folders
        file = path / "config.json"
    generation = read_settings(file, GenerationSettings)
    beams = generation.num_beams or 1
    exponent = 1.0 if generation.length_penalty is None else generation.length_penalty
    exact = {0.0: "none", 1.0: "average"}
    values = {
        "search": "greedy" if beams == 1 else "beam",
        "beam": beams,
        "length_normalization": exact.get(exponent, "gnmt"),
        "length_penalty": min(max(round(exponent / _RATE, 6), 0.0), 10.0),
        "max_length_ratio": 0.0,
        # transformers counts the start token of the decoder.
        "max_length_extra": max((generation.max_length or positions) - 1, 1),
        "no_repeat_ngram": generation.no_repeat_ngram_size or None,
        **keys,
    }
    decoding = validate_values(values, DecodingConfig, file)
    if exponent in exact or beams == 1:
        return decoding, ()
    note = (
        f"`length_penalty` {exponent:g} divides by length ** {exponent:g} in transformers; "
        f"`decoding.length_normalization: gnmt` with `decoding.length_penalty: "
        f"{decoding.length_penalty:g}` approximates it, so some translations may differ"
    )
    return decoding, (note,)


def iterate_layer_tensors(
    model: ModelConfig | StackSettings,
) -> Iterator[tuple[str, str, int | None]]:
    """Yield every tensor of the layers of both stacks, biases included: its name here and there.

    The third value is the axis of size d_model that indexes the features of a state, if any.
    """
    stacks = (("encoder", model.encoder_layers), ("decoder", model.decoder_layers))
    layers = [(side, layer) for side, count in stacks for layer in range(count)]
    for (side, layer), (ours, theirs) in itertools.product(layers, _NAMES.items()):
        if side == "encoder" and ours.startswith("cross"):
            continue
        ours, theirs = f"{side}.{layer}.{ours}", f"model.{side}.layers.{layer}.{theirs}"
        is_reader = ours.endswith(_READERS)
        yield f"{ours}.weight", f"{theirs}.weight", 1 if is_reader else 0
        yield f"{ours}.bias", f"{theirs}.bias", None if is_reader else 0


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


def find_other_keys(model: ModelConfig, **supported: object) -> str | None:
    """Return the keys of a model that a plain Transformer of another program lacks, or None.

    `supported` are the values by key that differ between these programs.
    """
    if model.d_model % model.heads:
        return f"`model.heads: {model.heads}`; it must divide `model.d_model`"
    width = model.d_model // model.heads
    supported |= {"norm": "layernorm", "attention_temperature": 1.0}
    keys = [(key, getattr(model, key), value) for key, value in supported.items()]
    keys.append(("kv_heads", model.key_heads, model.heads))
    keys += [("d_head", model.key_width, width), ("d_value", model.value_width, width)]
    if model.feed_forward.endswith("glu") and "feed_forward" not in supported:
        keys.append(("feed_forward", model.feed_forward, "relu, gelu or swish"))
    other = [f"`model.{key}: {value}` (only {only})" for key, value, only in keys if value != only]
    return ", ".join(other) or None


def write_folder(
    finished: FinishedRun,
    folder: Path,
    weights: dict[str, Tensor],
    settings: dict[str, dict[str, object]],
) -> None:
    """Write weights and settings of a run into a new folder; `settings` are those of a format.

    They are keys of config.json and generation_config.json, besides the common ones, and of
    tokenizer_config.json, each by the name of its file.
    GNMT's length penalty is approximated. The beam search of transformers stops once no open
    hypothesis scores above the worst finished one kept; here, above the best one. Results differ in
    about 1 % of Multi30k. `early_stopping: true` would stop earlier still, at `num_beams` finished
    hypotheses.
    """
    model, decoding = finished.config.model, finished.config.decoding
    search: dict[str, object] = {
        "num_beams": count_beams(decoding),
        "length_penalty": compute_exponent(decoding),
        "early_stopping": False,
        "max_length": 1 + length_limit(finished.longest_source, decoding),  # counts BOS
        "suppress_tokens": [PAD, UNK, BOS],
        "do_sample": decoding.search == "sample",
        "forced_eos_token_id": None,
    }
    if decoding.no_repeat_ngram is not None:
        search["no_repeat_ngram_size"] = decoding.no_repeat_ngram
    if decoding.search == "sample":
        search |= {"temperature": decoding.temperature, "top_p": decoding.top_p}
        search["top_k"] = decoding.top_k or 0
    shape: dict[str, object] = {
        "is_encoder_decoder": True,
        "d_model": model.d_model,
        "activation_function": model.feed_forward,
        "scale_embedding": True,
        "max_position_embeddings": count_positions(finished),
        "dropout": model.dropout,
        "attention_dropout": model.attention_dropout,
        "activation_dropout": model.feed_forward_dropout,
        "dtype": "float32",
    }
    for side, layers in (("encoder", model.encoder_layers), ("decoder", model.decoder_layers)):
        shape |= {f"{side}_layers": layers, f"{side}_attention_heads": model.heads}
        shape |= {f"{side}_ffn_dim": model.d_ff, f"{side}_layerdrop": 0.0}
    folder.mkdir(parents=True, exist_ok=True)
    save_tensors(weights, folder / "model.safetensors")
    common = {"config.json": shape, "generation_config.json": search, "tokenizer_config.json": {}}
    for file, keys in common.items():
        write_json(folder / file, {**keys, **settings[file]})


def count_beams(decoding: DecodingConfig) -> int:
    """Return the beam of a search, 1 without one."""
    return decoding.beam if decoding.search == "beam" else 1


def count_positions(finished: FinishedRun) -> int:
    """Return the length of the longest sequence, `max_position_embeddings`."""
    longest_target = length_limit(finished.longest_source, finished.config.decoding)
    return max(_MIN_POSITIONS, finished.longest_source, longest_target)
