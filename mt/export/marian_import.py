"""Import of a Hugging Face Marian folder, such as OPUS-MT, as a finished run.

OPUS-MT is described by Tiedemann and Thottingal 2020. The run translates like the folder under
transformers and can be fine-tuned with `training.init_from`.
"""

import json
import pickle
import re
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar

import torch
from pydantic import BaseModel, ConfigDict, PositiveInt, ValidationError
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from mt.config import Config, DataConfig, DecodingConfig, ModelConfig
from mt.config.data import TextSource
from mt.config.loading import dump_config
from mt.config.tokenizer import TokenizerConfig
from mt.data.tokenizer import Tokenizer, write_tokenizer
from mt.data.tokenizer_training import bytes_field, fields, number_field
from mt.data.vocabulary import Vocabulary
from mt.errors import RunError
from mt.export.marian import (
    DECODER_EMBEDDING,
    ENCODER_EMBEDDING,
    LM_HEAD,
    LOGITS_BIAS,
    OUTPUT,
    SHARED,
    SOURCE,
    TARGET,
    alpha_of,
    layer_tensors,
    sines_between,
    sines_first,
)
from mt.files import aside, put_in_place, write_text
from mt.model.positional import sinusoids
from mt.model.transformer import Transformer
from mt.model.weights import load_parameters
from mt.runs import Provenance, write_description
from mt.special_ids import BOS, EOS, PAD, UNK
from mt.training.checkpoint import save_tensors
from mt.training.run_folder import RunFolder

_SAFETENSORS, _PICKLED = "model.safetensors", "pytorch_model.bin"
B = TypeVar("B", bound=BaseModel)


@dataclass(frozen=True, slots=True)
class Imported:
    """Summary of an import."""

    languages: str
    parameters: int
    notes: tuple[str, ...]
    """Search settings that could only be approximated."""


def import_marian(path: Path, run: Path) -> Imported:
    """Write the Marian model in the folder `path` as the finished run `run`.

    Each side gets its own vocabulary; the output layer gets its own matrix, which absorbs Marian's
    bias of the logits. Tokens are equal, and logits up to rounding. Raises RunError, and leaves no
    files, if the folder is damaged, the model cannot be expressed, or `run` exists.
    """
    if run.exists():
        raise RunError(f"{run}: exists already; name a new folder")
    folder = read_marian_folder(path)
    if reason := _why_not_ours(folder.settings):
        raise RunError(f"{path}: {reason}")
    config, notes = _config(folder)
    with aside(run) as temporary:
        parameters = _write(RunFolder(temporary), folder, config)
        put_in_place(temporary, run)
    languages = f"{config.data.source_language}-{config.data.target_language}"
    return Imported(languages, parameters, notes)


class _Settings(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True)


class MarianSettings(_Settings):
    """Keys of config.json that determine the model, with the defaults of transformers."""

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
    """Search settings, from generation_config.json or, in older folders, config.json."""

    num_beams: PositiveInt | None = None
    length_penalty: float | None = None
    max_length: PositiveInt | None = None
    no_repeat_ngram_size: int | None = None


class TokenizerSettings(_Settings):
    """Keys of tokenizer_config.json, which old folders lack."""

    source_lang: str | None = None
    target_lang: str | None = None
    unk_token: str = "<unk>"
    separate_vocabs: bool = False


@dataclass(frozen=True, slots=True)
class MarianFolder:
    """Contents of a Marian folder."""

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
    """Read a Marian folder without running code from it.

    Raises RunError if a file is missing, damaged or of another kind of model.
    """
    if not path.is_dir():
        raise RunError(f"{path}: no such folder")
    settings = _read(path / "config.json", MarianSettings)
    generation = path / "generation_config.json"
    generation = generation if generation.exists() else path / "config.json"
    described = path / "tokenizer_config.json"
    tokenizer = _read(described, TokenizerSettings) if described.exists() else TokenizerSettings()
    target_ids = "target_vocab.json" if tokenizer.separate_vocabs else "vocab.json"
    return MarianFolder(
        path,
        settings,
        _read(generation, GenerationSettings),
        tokenizer,
        _read_weights(path),
        source_spm=_read_bytes(path / "source.spm"),
        target_spm=_read_bytes(path / "target.spm"),
        source_ids=_read_ids(path / "vocab.json", tokenizer.unk_token),
        target_ids=_read_ids(path / target_ids, tokenizer.unk_token),
    )


def _read_bytes(path: Path) -> bytes:
    if not path.is_file():
        raise RunError(f"{path}: missing from the Marian folder")
    return path.read_bytes()


def _read_json(path: Path) -> Any:
    try:
        return json.loads(_read_bytes(path))
    except ValueError as error:
        raise RunError(f"{path}: damaged, not valid JSON") from error


def _read(path: Path, kind: type[B]) -> B:
    try:
        return kind.model_validate(_read_json(path))
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(map(str, first["loc"]))
        raise RunError(f"{path}: not of a Marian model: `{key}`: {first['msg']}") from None


def _read_ids(path: Path, unk: str) -> dict[str, int]:
    ids = _read_json(path)
    right = isinstance(ids, dict) and all(type(number) is int for number in ids.values())
    if not right or unk not in ids:
        raise RunError(f"{path}: damaged, or lacks `{unk}`")
    return dict(ids)


def _read_weights(path: Path) -> dict[str, Tensor]:
    safe, pickled = path / _SAFETENSORS, path / _PICKLED
    try:
        if safe.is_file():
            tensors = load_file(safe)
        elif pickled.is_file():
            tensors = torch.load(pickled, map_location="cpu", weights_only=True)
        else:
            raise RunError(f"{path}: has neither {_SAFETENSORS} nor {_PICKLED}")
    except SafetensorError as error:
        raise RunError(f"{safe}: damaged ({error})") from error
    except (pickle.UnpicklingError, RuntimeError, EOFError) as error:
        raise RunError(f"{pickled}: damaged, or contains objects other than tensors") from error
    return {name: tensor.float() for name, tensor in tensors.items()}


# Fields of ModelProto, TrainerSpec and SentencePiece in sentencepiece_model.proto.
_TOKENS, _TRAINER, _SELF_TEST = 1, 2, 4
_VOCABULARY_SIZE = 4
_SPECIAL_FIELDS = {UNK: (40, 45), BOS: (41, 46), EOS: (42, 47), PAD: (43, 48)}  # id and text
_TEXT, _SCORE, _TYPE = 1, b"\x15", 3
_UNKNOWN, _CONTROL, _USER_DEFINED, _UNUSED = 2, 3, 4, 5
_LAST = -1e6
"""Score below all others, so that BPE merges unused tokens last."""
_SPECIAL = {PAD: "<pad>", UNK: "<unk>", BOS: "<s>", EOS: "</s>"}


def source_vocabulary(
    model: bytes, ids: dict[str, int], special: list[int]
) -> tuple[bytes, list[int]]:
    """Return a SentencePiece model with this project's special ids, and Marian's row of each id.

    It segments as `model` does. A token missing from Marian's vocabulary `ids` gets the row of the
    unknown token. A language token such as `>>deu<<` is one token at the start of a text. `special`
    has the rows of PAD, UNK, the decoder's start token (often that of PAD) and EOS. Raises
    ValueError if `model` is not a SentencePiece model.
    """
    tokens = _text_tokens(model)
    languages = [text for text in ids if text.startswith(">>") and text.endswith("<<")]
    # SentencePiece puts its space mark before a text.
    named = [_token(f"\u2581{text}", _USER_DEFINED) for text in languages]
    rows = [ids.get(text, special[UNK]) for text in tokens] + [ids[text] for text in languages]
    return _model(model, [*tokens.values(), *named]), [*special, *rows]


def target_vocabulary(
    model: bytes, ids: dict[str, int], special: list[int], *, count: int
) -> tuple[bytes, list[int]]:
    """Return a SentencePiece model of all `count` rows of Marian, and the row of each id.

    Tokens of `model` without a row are left out. Rows without a token of `model` are decoded to
    their text but never produced by segmentation. Raises ValueError if `model` is not a
    SentencePiece model.
    """
    tokens = {text: token for text, token in _text_tokens(model).items() if text in ids}
    rows = [ids[text] for text in tokens]
    taken = {*tokens, *_SPECIAL.values()}
    texts = {row: text for text, row in ids.items()}
    others = []
    for row in sorted({*range(count)} - {*rows, *special}):
        text = texts.get(row, f"<row {row}>")
        others.append(_token(text if text not in taken else f"{text} {row}", _UNUSED, _LAST))
        rows.append(row)
    return _model(model, [*tokens.values(), *others]), [*special, *rows]


def _text_tokens(model: bytes) -> dict[str, bytes]:
    """Return the message of each token, by text, other than unknown and control tokens."""
    tokens = {}
    for field, content in fields(model):
        found = dict(fields(content)) if field == _TOKENS else {}
        if found and found.get(_TYPE, b"\x01")[0] not in {_UNKNOWN, _CONTROL}:
            tokens[found[_TEXT].decode()] = content
    return tokens


def _token(text: str, kind: int, score: float = 0.0) -> bytes:
    scored = bytes_field(_TEXT, text.encode()) + _SCORE + struct.pack("<f", score)
    return scored + number_field(_TYPE, kind)


def _model(model: bytes, tokens: list[bytes]) -> bytes:
    """Return `model` with its tokens replaced by the special tokens and `tokens`."""
    special = [
        _token(text, _UNKNOWN if number == UNK else _CONTROL)
        for number, text in sorted(_SPECIAL.items())
    ]
    every = [*special, *tokens]
    replaced = {_TOKENS, _SELF_TEST}
    kept = [bytes_field(*each) for each in fields(model) if each[0] not in replaced]
    trainer = number_field(_VOCABULARY_SIZE, len(every))
    for number, (id_field, text_field) in _SPECIAL_FIELDS.items():
        trainer += number_field(id_field, number)
        trainer += bytes_field(text_field, _SPECIAL[number].encode())
    # The last occurrence of a protobuf field counts.
    written = b"".join([*(bytes_field(_TOKENS, token) for token in every), *kept])
    ours = Vocabulary.from_model(written + bytes_field(_TRAINER, trainer))
    return bytes(ours.processor.serialized_model_proto())


_ACTIVATIONS = {"relu": "relu", "gelu": "gelu", "swish": "swish", "silu": "swish"}
_LANGUAGE = re.compile(r"[a-z]{2,3}(-[A-Za-z0-9]+)*")
_UNKNOWN_LANGUAGE = "und"  # ISO 639-2
_NO_CORPUS = "an imported model has no corpus"
_IMPOSSIBLE = -100.0
"""Logit of a token without a row in Marian; its probability is negligible."""
_TABLE_TOLERANCE = 1e-4


def our_weights(
    folder: MarianFolder, *, source_rows: list[int], target_rows: list[int]
) -> dict[str, Tensor]:
    """Return Marian's weights under this project's names; `..._rows` has Marian's row of each id.

    Raises RunError if a tensor is missing or the positions are not sinusoids.
    """
    settings, model = folder.settings, _model_config(folder.settings)
    _check_positions(folder)
    encoder = _embedding(folder, ENCODER_EMBEDDING)
    decoder = _embedding(folder, DECODER_EMBEDDING)
    head = decoder if settings.tie_word_embeddings else _tensor(folder, LM_HEAD)
    bias = folder.weights.get(LOGITS_BIAS, torch.zeros(1, len(head)))[0]
    last = f"model.decoder.layers.{settings.decoder_layers - 1}.final_layer_norm"
    gain = _tensor(folder, f"{last}.weight")
    output = _with_bias(head, bias, gain=gain, shift=_tensor(folder, f"{last}.bias"), folder=folder)
    output = output[target_rows]
    if settings.pad_token_id == settings.decoder_start_token_id:
        # One row of Marian became two tokens; only one may have its probability.
        output[PAD] = _IMPOSSIBLE / (len(gain) * gain)
    scale = 1.0 if settings.scale_embedding else settings.d_model**-0.5
    found = {
        SOURCE: sines_between(scale * encoder[source_rows], 1),
        TARGET: sines_between(scale * decoder[target_rows], 1),
        OUTPUT: sines_between(output, 1),
    }
    for named in layer_tensors(model):
        # `_with_bias` replaces the shift of the last norm.
        tensor = gain if named.theirs == f"{last}.bias" else _tensor(folder, named.theirs)
        found[named.ours] = sines_between(tensor, named.states_axis).contiguous()
    return found


def _with_bias(
    output: Tensor, bias: Tensor, *, gain: Tensor, shift: Tensor, folder: MarianFolder
) -> Tensor:
    """Return an output matrix [V D] equal to output @ x + bias if the last norm's shift is `gain`.

    The last norm computes x = gain * n + shift, and the features of n sum to zero. With the shift
    set to the gain, x' = gain * (n + 1), so x' / gain always sums to D: adding c / gain to a row of
    the matrix adds c D to its logit.
    """
    if bool((gain == 0).any()):
        raise RunError(f"{folder.path}: the decoder's last norm has a gain of zero")
    output, bias, gain, shift = output.double(), bias.double(), gain.double(), shift.double()
    added = bias - output @ (gain - shift)
    return (output + added[:, None] / (len(gain) * gain)).float()


def _why_not_ours(settings: MarianSettings) -> str | None:
    for name in ("ffn_dim", "attention_heads"):
        encoder, decoder = (getattr(settings, f"{side}_{name}") for side in ("encoder", "decoder"))
        if encoder != decoder:
            return f"`encoder_{name}` {encoder} differs from `decoder_{name}` {decoder}"
    if settings.activation_function not in _ACTIVATIONS:
        known = ", ".join(_ACTIVATIONS)
        return f"`activation_function` {settings.activation_function} is not one of {known}"
    if settings.d_model % 2 or settings.d_model % settings.encoder_attention_heads:
        return f"`d_model` {settings.d_model} is odd or not a multiple of the attention heads"
    return None


def _check_positions(folder: MarianFolder) -> None:
    for name in ("model.encoder.embed_positions.weight", "model.decoder.embed_positions.weight"):
        if (table := folder.weights.get(name)) is not None:  # else transformers computes it
            expected = sines_first(sinusoids(len(table), folder.settings.d_model), 1)
            if float((table - expected).abs().max()) > _TABLE_TOLERANCE:
                raise RunError(f"{folder.path}: `{name}` is not a table of sinusoids")


def _embedding(folder: MarianFolder, name: str) -> Tensor:
    """Return the embedding of a side: its own or the shared one.

    With `tie_word_embeddings: false`, transformers 4 still shares it between the sides and writes
    no other; transformers 5 shares nothing.
    """
    settings = folder.settings
    shared = settings.share_encoder_decoder_embeddings
    if shared and (settings.tie_word_embeddings or name not in folder.weights):
        return _tensor(folder, SHARED)
    return _tensor(folder, name)


def _tensor(folder: MarianFolder, name: str) -> Tensor:
    if name not in folder.weights:
        raise RunError(f"{folder.path}: damaged, the weights lack `{name}`")
    return folder.weights[name]


def _write(run: RunFolder, folder: MarianFolder, config: Config) -> int:
    """Write the files of a run, its description last, and return the number of parameters."""
    tokenizer, rows = _write_tokenizer(run, folder)
    weights = our_weights(folder, source_rows=rows[0], target_rows=rows[1])
    sizes = {"source_vocabulary": len(rows[0]), "target_vocabulary": len(rows[1])}
    load_parameters(Transformer(config.model, **sizes), weights, str(folder.path))
    save_tensors(weights, run.weights)
    write_text(run.config, dump_config(config))
    write_description(
        run.path,
        tokenizer,
        longest_source=folder.settings.max_position_embeddings,
        provenance=Provenance(f"imported from {folder.path}"),
    )
    return sum(tensor.numel() for tensor in weights.values())


def _write_tokenizer(
    run: RunFolder, folder: MarianFolder
) -> tuple[Tokenizer, tuple[list[int], list[int]]]:
    """Write both vocabularies; return the tokenizer and Marian's rows of source and target ids."""
    settings, ids = folder.settings, (folder.source_ids, folder.target_ids)
    pad, unk = settings.pad_token_id, folder.tokenizer.unk_token
    start, eos = settings.decoder_start_token_id, settings.eos_token_id
    special = [[pad, each[unk], start, eos] for each in ids]
    count = settings.decoder_vocab_size or settings.vocab_size
    try:
        source, source_rows = source_vocabulary(folder.source_spm, ids[0], special[0])
        target, target_rows = target_vocabulary(folder.target_spm, ids[1], special[1], count=count)
    except ValueError as error:
        raise RunError(f"{folder.path}: source.spm or target.spm {error}") from error
    if max(source_rows) >= settings.vocab_size or max(target_rows) >= count:
        raise RunError(f"{folder.path}: vocab.json has more ids than the model has rows")
    tokenizer = write_tokenizer(run.tokenizer, source, target)
    return tokenizer, (source_rows, target_rows)


def _config(folder: MarianFolder) -> tuple[Config, tuple[str, ...]]:
    """Return the config of the run, and notes on approximated settings."""
    decoding, notes = _decoding(folder)
    none = TextSource(source=_NO_CORPUS, target=_NO_CORPUS)
    source, target = (
        code if code and _LANGUAGE.fullmatch(code) else _UNKNOWN_LANGUAGE
        for code in (folder.tokenizer.source_lang, folder.tokenizer.target_lang)
    )
    data = DataConfig(source_language=source, target_language=target, train=none, valid=none)
    model, tokenizer = _model_config(folder.settings), TokenizerConfig(vocabulary="separate")
    return Config(data=data, tokenizer=tokenizer, model=model, decoding=decoding), notes


def _model_config(settings: MarianSettings) -> ModelConfig:
    return ModelConfig.model_validate(
        {
            "d_model": settings.d_model,
            "d_ff": settings.encoder_ffn_dim,
            "heads": settings.encoder_attention_heads,
            "encoder_layers": settings.encoder_layers,
            "decoder_layers": settings.decoder_layers,
            "feed_forward": _ACTIVATIONS[settings.activation_function],
            "dropout": settings.dropout,
            "attention_dropout": settings.attention_dropout,
            "feed_forward_dropout": settings.activation_dropout,
            "tie_embeddings": "none",
        }
    )


def _decoding(folder: MarianFolder) -> tuple[DecodingConfig, tuple[str, ...]]:
    generation = folder.generation
    beams = generation.num_beams or 1
    exponent = 1.0 if generation.length_penalty is None else generation.length_penalty
    normalization = {0.0: "none", 1.0: "average"}.get(exponent, "gnmt")
    # transformers counts the decoder's start token.
    longest = generation.max_length or folder.settings.max_position_embeddings
    decoding = DecodingConfig.model_validate(
        {
            "search": "greedy" if beams == 1 else "beam",
            "beam": beams,
            "length_normalization": normalization,
            "length_penalty": min(max(alpha_of(exponent), 0.0), 10.0),
            "max_length_ratio": 0.0,
            "max_length_extra": max(longest - 1, 1),
            "no_repeat_ngram": generation.no_repeat_ngram_size or None,
        }
    )
    if normalization != "gnmt" or beams == 1:
        return decoding, ()
    note = (
        f"`length_penalty` {exponent:g} divides by length ** {exponent:g} in transformers; "
        f"`decoding.length_normalization: gnmt` with `decoding.length_penalty: "
        f"{decoding.length_penalty:g}` approximates it, so some translations may differ"
    )
    return decoding, (note,)
