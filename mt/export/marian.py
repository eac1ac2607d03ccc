"""Marian as a Hugging Face folder, such as OPUS-MT: export of a run, and import as a finished run.

Marian is described by Junczys-Dowmunt et al. 2018, OPUS-MT by Tiedemann and Thottingal 2020. An
exported folder works with transformers 4 and 5. An imported run translates like the folder under
transformers and can be fine-tuned with `training.init_from`.
"""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import torch
from pydantic import NonNegativeInt, PositiveInt
from torch import Tensor

from mt.config import Config, ModelConfig, TokenizerConfig
from mt.config.data import language_of
from mt.data.normalization import list_rules, normalize_source, normalize_target
from mt.data.sentencepiece_model import (
    LAST,
    SPECIAL,
    UNUSED,
    USER_DEFINED,
    encode_token,
    read_text_tokens,
    replace_tokens,
    with_rules,
)
from mt.data.tokenizer import SOURCE as SOURCE_FILE
from mt.data.tokenizer import TARGET as TARGET_FILE
from mt.decoding.load import FinishedRun
from mt.errors import RunError, UserError, listed
from mt.export.hf_folder import (
    DECODER_EMBEDDING,
    ENCODER_EMBEDDING,
    LM_HEAD,
    LOGITS_BIAS,
    SHARED,
    FolderSettings,
    Imported,
    StackSettings,
    convert_search,
    count_beams,
    count_positions,
    get_tensor,
    iterate_layer_tensors,
    make_data,
    read_generation,
    read_settings,
    read_weights,
    write_folder,
    write_imported_run,
)
from mt.files import read_bytes, read_json, write_json
from mt.languages import base_language, describe_country
from mt.runs import LARGEST_MODEL
from mt.special_ids import BOS, EOS, PAD, UNK

_FIXED = {
    "positional": ("sinusoidal",),
    "decoder_start": ("bos",),
    "norm": ("layernorm",),
    "residual": ("post",),
    "feed_forward": ("relu", "gelu", "swish"),
    "attention_temperature": (1.0,),
}
"""Values Marian supports. DeepNorm is not one: the ε of its first norm would differ."""


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
    model, data, tokenizer = finished.config.model, finished.config.data, finished.tokenizer
    if reason := why_not_marian(model):
        raise UserError(f"Marian cannot express {reason}")
    if tags := tokenizer.source.tags:
        raise UserError(f"Marian cannot express {listed(tags)}: it reads tags as text")
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
            "task_specific_params": {task: {"num_beams": count_beams(finished.config.decoding)}},
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
            "model_max_length": count_positions(finished),
            # Keep `</s>` in a text as text, and spaces before full stops.
            "split_special_tokens": True,
            "clean_up_tokenization_spaces": False,
        },
    }
    write_folder(finished, folder, convert_tensors(finished.weights, model), settings)
    target_ids = "target_vocab.json" if separate else "vocab.json"
    for name, file, vocabulary, normalize in (
        ("source.spm", "vocab.json", tokenizer.source, normalize_source),
        ("target.spm", target_ids, tokenizer.target, normalize_target),
    ):
        spm: bytes = vocabulary.processor.serialized_model_proto()
        if vocabulary.is_normal:
            spm = with_rules(spm, list_rules(normalize))
        (folder / name).write_bytes(spm)
        tokens = map(vocabulary.processor.id_to_piece, range(len(vocabulary)))
        write_json(folder / file, {token: index for index, token in enumerate(tokens)})


SOURCE, TARGET, OUTPUT = "source_embedding.weight", "target_embedding.weight", "output.weight"


def convert_tensors(weights: dict[str, Tensor], model: ModelConfig) -> dict[str, Tensor]:
    """Return the weights of a run under Marian's names; missing biases are zero."""
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
        converted[name.theirs] = put_sines_first(tensor, name.states_axis)
    return converted


def put_sines_first(tensor: Tensor, axis: int | None, *, back: bool = False) -> Tensor:
    """Reorder an axis of features, alternating sines and cosines, to sines first (Marian); or back.

    Without an axis the tensor stays as it is.
    """
    if axis is None:
        return tensor.contiguous()
    width = tensor.shape[axis]
    order = torch.cat((torch.arange(0, width, 2), torch.arange(1, width, 2)))
    return tensor.index_select(axis, order.argsort() if back else order)


class MarianSettings(StackSettings):
    """Keys of config.json that determine the model, with the defaults of transformers."""

    model_type: Literal["marian"]
    decoder_vocab_size: PositiveInt | None = None
    scale_embedding: bool = False
    share_encoder_decoder_embeddings: bool = True

    @property
    def target_rows(self) -> int:
        """Rows of the decoder's embedding and of the output matrix."""
        return self.decoder_vocab_size or self.vocab_size


class MarianTokenizerSettings(FolderSettings):
    """Keys of tokenizer_config.json, which old folders lack."""

    source_lang: str | None = None
    target_lang: str | None = None
    unk_token: str = "<unk>"
    separate_vocabs: bool = False


def import_marian(
    path: Path, run: Path, *, source: str | None = None, target: str | None = None
) -> Imported:
    """Write the Marian model in the folder `path` as the finished run `run`.

    `source` and `target` are its languages, if the folder does not name them.
    Each side gets its own vocabulary; the output layer gets its own matrix, which absorbs Marian's
    bias of the logits. Tokens are equal, and logits up to rounding. Raises RunError, and leaves no
    files, if the folder is damaged, the model cannot be expressed, or `run` exists.
    """
    if run.exists():
        raise RunError(f"{run}: exists already; name a new folder")
    settings = read_settings(path / "config.json", MarianSettings)
    if reason := settings.unsupported_key():
        raise RunError(f"{path}: {reason}")
    tokenizer = read_settings(
        path / "tokenizer_config.json", MarianTokenizerSettings, required=False
    )
    languages = (
        _choose_language(path, tokenizer.source_lang, source, "--source-language"),
        _choose_language(path, tokenizer.target_lang, target, "--target-language"),
    )
    positions, count = settings.max_position_embeddings, settings.target_rows
    decoding, notes = convert_search(read_generation(path), path, positions=positions)
    model = settings.model(path, tie_embeddings="none")
    stored = read_weights(path)
    tables = find_tables(stored, settings, path)  # before a token is made for each row
    target_ids = "target_vocab.json" if tokenizer.separate_vocabs else "vocab.json"
    spm, rows = {}, []
    for file, name, ids_file, build in (
        (SOURCE_FILE, "source.spm", "vocab.json", build_source_vocabulary),
        (TARGET_FILE, "target.spm", target_ids, build_target_vocabulary),
    ):
        ids = read_json(path / ids_file, dict[str, NonNegativeInt])
        if tokenizer.unk_token not in ids:
            raise RunError(f"{path / ids_file}: damaged, or lacks `{tokenizer.unk_token}`")
        unk, start = ids[tokenizer.unk_token], settings.decoder_start_token_id
        special = [settings.pad_token_id, unk, start, settings.eos_token_id]
        try:
            content = read_bytes(path / name, limit=LARGEST_MODEL)
            spm[file], side_rows = build(content, ids, special, count)
        except ValueError as error:
            raise RunError(f"{path / name}: {error}") from error
        rows.append(side_rows)
    if max(rows[0]) >= settings.vocab_size or max(rows[1]) >= count:
        raise RunError(f"{path}: vocab.json has more ids than the model has rows")
    weights = convert_weights(stored, tables, settings, rows, path)
    config = Config(
        data=make_data(*languages),
        tokenizer=TokenizerConfig(vocabulary="separate"),
        model=model,
        decoding=decoding,
    )
    parameters = write_imported_run(
        run, config, spm, weights, longest_source=positions, origin=path
    )
    return Imported("-".join(languages), parameters, notes)


def build_source_vocabulary(
    model: bytes, ids: dict[str, int], special: list[int], _: int
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
    model: bytes, ids: dict[str, int], special: list[int], count: int
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
    """Return the embeddings of both sides and the output matrix.

    Raises RunError if one is missing or has another shape than config.json of the folder `path`.
    """
    ties, shares = settings.tie_word_embeddings, settings.share_encoder_decoder_embeddings

    def find(name: str, rows: int) -> Tensor:
        # With `tie_word_embeddings: false`, transformers 4 still shares the embedding between the
        # sides and writes no other; transformers 5 shares nothing.
        is_shared = name != LM_HEAD and shares and (ties or name not in weights)
        shape = (rows, settings.d_model)
        return get_tensor(weights, SHARED if is_shared else name, path, shape=shape)

    source = find(ENCODER_EMBEDDING, settings.vocab_size)
    target = find(DECODER_EMBEDDING, settings.target_rows)
    return source, target, target if ties else find(LM_HEAD, settings.target_rows)


def convert_weights(
    weights: dict[str, Tensor],
    tables: tuple[Tensor, Tensor, Tensor],
    settings: MarianSettings,
    rows: Sequence[list[int]],
    path: Path,
) -> dict[str, Tensor]:
    """Return Marian's weights under this project's names; `rows` has Marian's row of each id.

    Raises RunError if a tensor of the folder `path` is missing.
    """
    (encoder, decoder, head), (source_rows, target_rows) = tables, rows
    bias = weights.get(LOGITS_BIAS, torch.zeros(1, len(head)))[0]
    last = f"model.decoder.layers.{settings.decoder_layers - 1}.final_layer_norm"
    gain = get_tensor(weights, f"{last}.weight", path)
    shift = get_tensor(weights, f"{last}.bias", path)
    if bool((gain == 0).any()):
        raise RunError(f"{path}: the decoder's last norm has a gain of zero")
    output = absorb_bias(head, bias, gain=gain, shift=shift)[target_rows]
    if settings.pad_token_id == settings.decoder_start_token_id:
        # One row of Marian became two tokens; only one may have its probability.
        output[PAD] = _IMPOSSIBLE / (len(gain) * gain)
    scale = 1.0 if settings.scale_embedding else settings.d_model**-0.5
    converted = {
        SOURCE: put_sines_first(scale * encoder[source_rows], 1, back=True),
        TARGET: put_sines_first(scale * decoder[target_rows], 1, back=True),
        OUTPUT: put_sines_first(output, 1, back=True),
    }
    for name in iterate_layer_tensors(settings.model(path)):
        # `absorb_bias` replaces the shift of the last norm.
        is_last = name.theirs == f"{last}.bias"
        tensor = gain if is_last else get_tensor(weights, name.theirs, path)
        converted[name.ours] = put_sines_first(tensor, name.states_axis, back=True)
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
