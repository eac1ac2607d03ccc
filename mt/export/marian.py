"""Marian as a Hugging Face folder, such as OPUS-MT: export of a run, and import as a finished run.

Marian is described by Junczys-Dowmunt et al. 2018, OPUS-MT by Tiedemann and Thottingal 2020. An
exported folder works with transformers 4 and 5. An imported run translates like the folder under
transformers and can be fine-tuned with `training.init_from`.
"""

import re
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Literal

import torch
from pydantic import NonNegativeInt, PositiveInt
from torch import Tensor

from mt.config import ModelConfig
from mt.config.data import language_of
from mt.config.model import MARIAN
from mt.data.sentencepiece_model import (
    LAST,
    SPECIAL,
    UNUSED,
    USER_DEFINED,
    encode_token,
    read_text_tokens,
    replace_tokens,
)
from mt.data.tokenizer import SOURCE as SOURCE_FILE
from mt.data.tokenizer import SOURCE_SPM, TARGET_SPM
from mt.data.tokenizer import TARGET as TARGET_FILE
from mt.decoding.load import FinishedRun
from mt.errors import RunError, UserError, listed
from mt.export import hf_folder as hf
from mt.files import read_bytes, read_json, write_json
from mt.languages import base_language, describe_country
from mt.model.positional import Marian
from mt.runs import LARGEST_MODEL
from mt.special_ids import BOS, EOS, PAD, UNK

FORM = {"positional": "sinusoidal", "decoder_start": "bos", "residual": "post"}
"""Keys of a model that MarianMT can express: not DeepNorm, as the ε of its first norm differs."""
_POSITIONS = [f"model.{side}.embed_positions.weight" for side in ("encoder", "decoder")]


def why_not_marian(model: ModelConfig) -> str | None:
    """Return the keys that MarianMT cannot express, or None."""
    # The weights of a folder can express Marian's own values.
    own = {key: value for key, value in MARIAN.items() if getattr(model, key) == value}
    return hf.find_other_keys(model, **(FORM | own))


def write_marian(finished: FinishedRun, folder: Path) -> None:
    """Write a finished run into `folder` as a Hugging Face Marian model.

    Logits are equal up to rounding, except that of BOS if the decoder starts with zeros. The
    tokenizer of transformers still strips translations and reads a leading `>>word<<` as a
    language. Raises UserError before anything is written if `why_not_marian` returns keys.
    """
    model, data, tokenizer = finished.config.model, finished.config.data, finished.tokenizer
    if reason := why_not_marian(model):
        raise UserError(
            f"MarianMT cannot express {reason}; `mt init --for huggingface` writes its form"
        )
    if tags := tokenizer.source.tags:
        raise UserError(f"MarianMT cannot express {listed(tags)}: it reads tags as text")
    special = (PAD, UNK, BOS, EOS)
    pad, unk, bos, eos = map(tokenizer.target.processor.id_to_piece, special)
    separate = tokenizer.source is not tokenizer.target
    task = f"translation_{data.source_language}_to_{data.target_language}"
    ids: dict[str, object] = {
        "pad_token_id": PAD,
        "bos_token_id": BOS,
        "eos_token_id": EOS,
        "decoder_start_token_id": BOS,
        "forced_eos_token_id": None,
    }
    settings = {
        "generation_config.json": ids,
        "config.json": {
            "architectures": ["MarianMTModel"],
            "model_type": "marian",
            "vocab_size": tokenizer.source_size,
            "decoder_vocab_size": tokenizer.target_size,
            "share_encoder_decoder_embeddings": model.tie_embeddings == "all",
            "tie_word_embeddings": model.tie_embeddings != "none",
            "static_position_embeddings": True,
            **ids,
            # Overrides the 4 beams of the translation pipeline of transformers 4.
            "task_specific_params": {task: {"num_beams": hf.count_beams(finished.config.decoding)}},
        },
        "tokenizer_config.json": {
            "tokenizer_class": "MarianTokenizer",
            "source_lang": data.source_language,
            "target_lang": data.target_language,
            "separate_vocabs": separate,
            "pad_token": pad,
            "unk_token": unk,
            "bos_token": bos,
            "eos_token": eos,
            "model_max_length": hf.count_positions(finished),
            # Keep `</s>` in a text as text, and spaces before full stops.
            "split_special_tokens": True,
            "clean_up_tokenization_spaces": False,
        },
    }
    weights = finished.weights
    if model.decoder_start == "zeros":
        weights = weights | {TARGET: weights[TARGET].index_fill(0, torch.tensor(BOS), 0.0)}
    names = {hf.SHARED: TARGET}
    if model.tie_embeddings != "all":
        names = {hf.ENCODER_EMBEDDING: SOURCE, hf.DECODER_EMBEDDING: TARGET}
    if model.tie_embeddings == "none":
        names[hf.LM_HEAD] = OUTPUT
    order = partial(put_sines_first, positional=model.positional)
    converted = {theirs: order(weights[ours], 1) for theirs, ours in names.items()}
    if model.positional == "marian":
        positions = list_positions(hf.count_positions(finished), model.d_model)
        converted |= {name: positions.clone() for name in _POSITIONS}
    converted[hf.LOGITS_BIAS] = torch.zeros(1, len(weights[TARGET]))
    for ours, theirs, axis in hf.iterate_layer_tensors(model):
        converted[theirs] = order(hf.parameter_or_zeros(weights, ours), axis)
    hf.write_folder(finished, folder, converted, settings)
    target_ids = "target_vocab.json" if separate else "vocab.json"
    tokenizer.write_for_others(folder)
    for file, vocabulary in (("vocab.json", tokenizer.source), (target_ids, tokenizer.target)):
        tokens = map(vocabulary.processor.id_to_piece, range(len(vocabulary)))
        write_json(folder / file, {token: index for index, token in enumerate(tokens)})


def list_positions(count: int, width: int) -> Tensor:
    """Return the first rows of Marian's own positions [T D]."""
    model = ModelConfig(d_model=width, heads=1, positional="marian")
    return Marian(model, "encoder").embed(torch.zeros(1, count, width), 0)[0]


def find_positional(weights: dict[str, Tensor], settings: "MarianSettings") -> str:
    """Return the positions of a folder; those that transformers computes are the paper's."""
    table = weights.get(_POSITIONS[0], torch.empty(0))
    own = list_positions(table.numel() // settings.d_model, settings.d_model)
    is_own = own.shape == table.shape and torch.allclose(own, table, atol=1e-2)
    return "marian" if is_own else "sinusoidal"


SOURCE, TARGET, OUTPUT = "source_embedding.weight", "target_embedding.weight", "output.weight"


def put_sines_first(
    tensor: Tensor, axis: int | None, *, positional: str, back: bool = False
) -> Tensor:
    """Reorder an axis of features, alternating sines and cosines, to sines first (Marian); or back.

    Without an axis, or with Marian's own positions, the tensor stays as it is.
    """
    if axis is None or positional == "marian":
        return tensor.clone(memory_format=torch.contiguous_format)
    width = tensor.shape[axis]
    order = torch.cat((torch.arange(0, width, 2), torch.arange(1, width, 2)))
    return tensor.index_select(axis, order.argsort() if back else order)


class MarianSettings(hf.StackSettings):
    """Keys of config.json that determine the model, with the defaults of transformers."""

    model_type: Literal["marian"]
    decoder_vocab_size: PositiveInt | None = None
    scale_embedding: bool = False
    share_encoder_decoder_embeddings: bool = True


class MarianTokenizerSettings(hf.FolderSettings):
    """Keys of tokenizer_config.json, which old folders lack."""

    source_lang: str | None = None
    target_lang: str | None = None
    unk_token: str = "<unk>"
    separate_vocabs: bool = False


def import_marian(
    path: Path, run: Path, *, source: str | None = None, target: str | None = None
) -> hf.Imported:
    """Write the Marian model in the folder `path` as the finished run `run`.

    `source` and `target` are its languages, if the folder does not name them.
    Each side gets its own vocabulary; the output layer gets its own matrix, which absorbs Marian's
    bias of the logits. Tokens are equal, and logits up to rounding. Raises RunError, and leaves no
    files, if the folder is damaged or the model cannot be expressed.
    """
    settings = hf.read_settings(path / "config.json", MarianSettings)
    tokenizer = hf.read_settings(
        path / "tokenizer_config.json", MarianTokenizerSettings, required=False
    )
    languages = (
        _choose_language(path, tokenizer.source_lang, source, "--source-language"),
        _choose_language(path, tokenizer.target_lang, target, "--target-language"),
    )
    stored = hf.read_weights(path)
    tables = find_tables(stored, settings, path)  # before a token is made for each row
    target_ids = "target_vocab.json" if tokenizer.separate_vocabs else "vocab.json"
    start, unk, sides = settings.decoder_start_token_id, tokenizer.unk_token, []
    for file, ids_file in ((SOURCE_SPM, "vocab.json"), (TARGET_SPM, target_ids)):
        ids = read_json(path / ids_file, dict[str, NonNegativeInt])
        if unk not in ids:
            raise RunError(f"{path / ids_file}: damaged, or lacks `{unk}`")
        special = [settings.pad_token_id, ids[unk], start, settings.eos_token_id]
        sides.append((read_bytes(path / file, limit=LARGEST_MODEL), ids, special))
    try:
        source_spm, source_rows = build_source_vocabulary(*sides[0])
        target_spm, target_rows = build_target_vocabulary(*sides[1], count=len(tables[1]))
    except ValueError as error:
        raise RunError(f"{path}: {SOURCE_SPM} or {TARGET_SPM}: {error}") from error
    if max(source_rows) >= len(tables[0]) or max(target_rows) >= len(tables[1]):
        raise RunError(f"{path}: vocab.json has more ids than the model has rows")
    positional = find_positional(stored, settings)
    config = {
        "data": {"source_language": languages[0], "target_language": languages[1]},
        "tokenizer": {"vocabulary": "separate"},
        "model": {"tie_embeddings": "none", "positional": positional},
        "decoding": {},
    }
    weights = convert_weights(
        stored, tables, settings, (source_rows, target_rows), path, positional
    )
    spm = {SOURCE_FILE: source_spm, TARGET_FILE: target_spm}
    return hf.write_imported_run(path, run, settings, config, vocabularies=spm, weights=weights)


def build_source_vocabulary(
    model: bytes, ids: dict[str, int], special: list[int]
) -> tuple[bytes, list[int]]:
    """Return a SentencePiece model with this project's special ids, and Marian's row of each id.

    It segments as `model` does. A token missing from Marian's vocabulary `ids` gets the row of the
    unknown token. A language token such as `>>deu<<` is one token at the start of a text. `special`
    has the rows of PAD, UNK, the decoder's start token (often that of PAD) and EOS. Raises
    ValueError if `model` is not a SentencePiece model.
    """
    tokens = read_text_tokens(model)
    languages = [text for text in ids if text.startswith(">>") and text.endswith("<<")]
    # SentencePiece puts its space mark before a text.
    named = [encode_token(f"\u2581{text}", USER_DEFINED) for text in languages]
    rows = [ids.get(text, special[UNK]) for text in tokens] + [ids[text] for text in languages]
    return replace_tokens(model, [*tokens.values(), *named]), [*special, *rows]


def build_target_vocabulary(
    model: bytes, ids: dict[str, int], special: list[int], *, count: int
) -> tuple[bytes, list[int]]:
    """Return a SentencePiece model of all `count` rows of Marian, and the row of each id.

    Tokens of `model` without a row are left out. Rows without a token of `model` are decoded to
    their text but never produced by segmentation. Raises ValueError if `model` is not a
    SentencePiece model.
    """
    tokens = {text: token for text, token in read_text_tokens(model).items() if text in ids}
    rows = [ids[text] for text in tokens]
    taken = {*tokens, *SPECIAL.values()}
    texts = {row: text for text, row in ids.items()}
    unused = []
    for row in sorted({*range(count)} - {*rows, *special}):
        text = texts.get(row, f"<row {row}>")
        unused.append(encode_token(text if text not in taken else f"{text} {row}", UNUSED, LAST))
        rows.append(row)
    return replace_tokens(model, [*tokens.values(), *unused]), [*special, *rows]


_LANGUAGE = re.compile(r"[a-z]{2,3}(-[A-Za-z0-9]+)*")
_UNKNOWN_LANGUAGE = "und"  # ISO 639-2
_IMPOSSIBLE = -100.0
"""Logit of a token without a row in Marian; its probability is negligible."""


def find_tables(
    weights: dict[str, Tensor], settings: MarianSettings, path: Path
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the embeddings of both sides and the output matrix; raise RunError for bad shapes."""
    ties, shares = settings.tie_word_embeddings, settings.share_encoder_decoder_embeddings

    def find(name: str, rows: int) -> Tensor:
        # With `tie_word_embeddings: false`, transformers 4 still shares the embedding between the
        # sides and writes no other; transformers 5 shares nothing.
        is_shared = name != hf.LM_HEAD and shares and (ties or name not in weights)
        shape = (rows, settings.d_model)
        return hf.get_tensor(weights, hf.SHARED if is_shared else name, path, shape=shape)

    target_rows = settings.decoder_vocab_size or settings.vocab_size
    source = find(hf.ENCODER_EMBEDDING, settings.vocab_size)
    target = find(hf.DECODER_EMBEDDING, target_rows)
    return source, target, target if ties else find(hf.LM_HEAD, target_rows)


def convert_weights(
    weights: dict[str, Tensor],
    tables: tuple[Tensor, Tensor, Tensor],
    settings: MarianSettings,
    rows: Sequence[list[int]],
    path: Path,
    positional: str,
) -> dict[str, Tensor]:
    """Return Marian's weights under this project's names; `rows` has Marian's row of each id."""
    (encoder, decoder, head), (source_rows, target_rows) = tables, rows
    bias = weights.get(hf.LOGITS_BIAS, torch.zeros(1, len(head)))[0]
    last = f"model.decoder.layers.{settings.decoder_layers - 1}.final_layer_norm"
    gain = hf.get_tensor(weights, f"{last}.weight", path)
    shift = hf.get_tensor(weights, f"{last}.bias", path)
    if bool((gain == 0).any()):
        raise RunError(f"{path}: the decoder's last norm has a gain of zero")
    output = absorb_bias(head, bias, gain=gain, shift=shift)[target_rows]
    if settings.pad_token_id == settings.decoder_start_token_id:
        # One row of Marian became two tokens; only one may have its probability.
        output[PAD] = _IMPOSSIBLE / (len(gain) * gain)
    scale = 1.0 if settings.scale_embedding else settings.d_model**-0.5
    order = partial(put_sines_first, positional=positional, back=True)
    converted = {
        SOURCE: order(scale * encoder[source_rows], 1),
        TARGET: order(scale * decoder[target_rows], 1),
        OUTPUT: order(output, 1),
    }
    for ours, theirs, axis in hf.iterate_layer_tensors(settings):
        # `absorb_bias` replaces the shift of the last norm.
        tensor = gain if theirs == f"{last}.bias" else hf.get_tensor(weights, theirs, path)
        converted[ours] = order(tensor, axis)
    return converted


def absorb_bias(output: Tensor, bias: Tensor, *, gain: Tensor, shift: Tensor) -> Tensor:
    """Return an output matrix [V D] equal to output @ x + bias if the last norm's shift is `gain`.

    The last norm computes x = gain * n + shift, and the features of n sum to zero. With the shift
    set to the gain, x' = gain * (n + 1), so x' / gain always sums to D: adding c / gain to a row of
    the matrix adds c D to its logit.
    """
    output, bias, gain, shift = output.double(), bias.double(), gain.double(), shift.double()
    added = bias - output @ (gain - shift)
    return (output + added[:, None] / (len(gain) * gain)).float()


def _choose_language(path: Path, stated: str | None, given: str | None, option: str) -> str:
    """Return the language that the folder `path` states, or the given one, or `und`.

    Raises UserError for a given one that is a country, or another than the folder states.
    """
    is_known = stated and _LANGUAGE.fullmatch(stated) and not describe_country(stated)
    if given is None:
        return stated if stated and is_known else _UNKNOWN_LANGUAGE
    if message := describe_country(given):
        raise UserError(f"{option} {message}")
    if stated and is_known and base_language(stated) != base_language(given):
        raise UserError(
            f"{option} `{given}`: {path} is an OPUS-MT model of `{stated}`; leave it out"
        )
    return str(language_of(given))
