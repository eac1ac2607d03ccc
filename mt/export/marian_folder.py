"""What a Marian folder of Hugging Face holds: its settings, its weights and its vocabularies."""

import json
import pickle
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar

import torch
from pydantic import BaseModel, ConfigDict, PositiveInt, ValidationError
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from mt.errors import RunError

_SAFETENSORS, _PICKLED = "model.safetensors", "pytorch_model.bin"
B = TypeVar("B", bound=BaseModel)


class _Settings(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True)


class MarianSettings(_Settings):
    """config.json, as far as the model depends on it; the defaults are those of transformers."""

    model_type: Literal["marian"]
    vocab_size: PositiveInt
    d_model: PositiveInt
    encoder_layers: PositiveInt
    decoder_layers: PositiveInt
    encoder_ffn_dim: PositiveInt
    decoder_ffn_dim: PositiveInt
    encoder_attention_heads: PositiveInt
    decoder_attention_heads: PositiveInt
    activation_function: str
    pad_token_id: int
    eos_token_id: int
    decoder_start_token_id: int
    decoder_vocab_size: PositiveInt | None = None
    scale_embedding: bool = False
    share_encoder_decoder_embeddings: bool = True
    tie_word_embeddings: bool = True
    max_position_embeddings: PositiveInt = 1024
    dropout: float = 0.1
    attention_dropout: float = 0.0
    activation_dropout: float = 0.0


class GenerationSettings(_Settings):
    """generation_config.json, or in older folders config.json: how transformers searches."""

    num_beams: PositiveInt | None = None
    length_penalty: float | None = None
    max_length: PositiveInt | None = None
    no_repeat_ngram_size: int | None = None


class TokenizerSettings(_Settings):
    """tokenizer_config.json; old folders may lack it."""

    source_lang: str | None = None
    target_lang: str | None = None
    unk_token: str = "<unk>"
    separate_vocabs: bool = False


@dataclass(frozen=True, slots=True)
class MarianFolder:
    """All of a folder, read and nothing more."""

    path: Path
    settings: MarianSettings
    generation: GenerationSettings
    tokenizer: TokenizerSettings
    weights: dict[str, Tensor]
    source_spm: bytes
    target_spm: bytes
    source_ids: dict[str, int]
    target_ids: dict[str, int]


def read_marian_folder(path: Path) -> MarianFolder:
    """Read a Marian folder, and nothing of it that could run code.

    Raises RunError naming what is missing, damaged, or of another kind of model.
    """
    if not path.is_dir():
        raise RunError(f"{path}: no such folder")
    settings = _read(path / "config.json", MarianSettings)
    generation = path / "generation_config.json"
    tokenizer = path / "tokenizer_config.json"
    described = _read(tokenizer, TokenizerSettings) if tokenizer.exists() else TokenizerSettings()
    source_ids = _read_ids(path / "vocab.json", described)
    separate = described.separate_vocabs
    return MarianFolder(
        path,
        settings,
        _read(generation if generation.exists() else path / "config.json", GenerationSettings),
        described,
        _read_weights(path),
        source_spm=_read_bytes(path / "source.spm"),
        target_spm=_read_bytes(path / "target.spm"),
        source_ids=source_ids,
        target_ids=_read_ids(path / "target_vocab.json", described) if separate else source_ids,
    )


def _read_bytes(path: Path) -> bytes:
    if not path.is_file():
        raise RunError(f"{path}: missing; a Marian folder of Hugging Face holds it")
    return path.read_bytes()


def _read_json(path: Path) -> Any:
    try:
        return json.loads(_read_bytes(path))
    except ValueError as error:
        raise RunError(f"{path}: damaged, it is no JSON") from error


def _read(path: Path, kind: type[B]) -> B:
    try:
        return kind.model_validate(_read_json(path))
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(map(str, first["loc"]))
        raise RunError(f"{path}: is not that of a Marian model: `{key}`: {first['msg']}") from None


def _read_ids(path: Path, described: TokenizerSettings) -> dict[str, int]:
    ids = _read_json(path)
    right = isinstance(ids, dict) and all(type(number) is int for number in ids.values())
    if not right or described.unk_token not in ids:
        raise RunError(f"{path}: damaged, or without `{described.unk_token}`")
    return dict(ids)


def _read_weights(path: Path) -> dict[str, Tensor]:
    safe, pickled = path / _SAFETENSORS, path / _PICKLED
    try:
        if safe.is_file():
            tensors = load_file(safe)
        elif pickled.is_file():
            tensors = torch.load(pickled, map_location="cpu", weights_only=True)
        else:
            raise RunError(f"{path}: holds neither {_SAFETENSORS} nor {_PICKLED}")
    except SafetensorError as error:
        raise RunError(f"{safe}: damaged ({error})") from error
    except (pickle.UnpicklingError, RuntimeError, EOFError) as error:
        raise RunError(f"{pickled}: damaged, or holds more than tensors") from error
    return {name: tensor.float() for name, tensor in tensors.items()}
