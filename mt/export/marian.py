"""Marian as a Hugging Face folder, such as OPUS-MT: export of a run, and import as a finished run.

Marian is described by Junczys-Dowmunt et al. 2018, OPUS-MT by Tiedemann and Thottingal 2020. An
exported folder works with transformers 4 and 5. An imported run translates like the folder under
transformers and can be fine-tuned with `training.init_from`.
"""

import re
from dataclasses import dataclass
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
    SPECIAL_IDS,
    FolderSettings,
    GenerationSettings,
    Imported,
    StackSettings,
    build_generation_settings,
    build_stack_settings,
    check_shape,
    convert_search,
    count_beams,
    count_positions,
    get_tensor,
    iterate_layer_tensors,
    make_data,
    read_generation,
    read_settings,
    read_spm,
    read_weights,
    write_imported_run,
)
from mt.files import read_json, replace_file, write_json
from mt.languages import base_language, describe_country
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
            **SPECIAL_IDS,
            # Overrides the 4 beams of the translation pipeline of transformers 4.
            "task_specific_params": {task: {"num_beams": count_beams(finished.config.decoding)}},
        },
    )


SOURCE, TARGET, OUTPUT = "source_embedding.weight", "target_embedding.weight", "output.weight"


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
            "model_max_length": count_positions(finished),
            # Keep `</s>` in a text as text, and spaces before full stops.
            "split_special_tokens": True,
            "clean_up_tokenization_spaces": False,
        },
    )


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
    folder = read_marian_folder(path)
    if reason := folder.settings.why_not_ours():
        raise RunError(f"{path}: {reason}")
    _check_embeddings(folder)
    config, notes = _convert_settings(folder, source, target)
    spm, source_rows, target_rows = _build_vocabularies(folder)
    weights = convert_weights(
        folder, config.model, source_rows=source_rows, target_rows=target_rows
    )
    longest = folder.settings.max_position_embeddings
    parameters = write_imported_run(run, config, spm, weights, longest_source=longest, origin=path)
    languages = f"{config.data.source_language}-{config.data.target_language}"
    return Imported(languages, parameters, notes)


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


@dataclass(frozen=True, slots=True)
class MarianFolder:
    """Contents of a Marian folder."""

    path: Path
    settings: MarianSettings
    generation: GenerationSettings
    tokenizer: MarianTokenizerSettings
    weights: dict[str, Tensor]
    source_spm: bytes
    target_spm: bytes
    source_ids: dict[str, int]
    target_ids: dict[str, int]


def read_marian_folder(path: Path) -> MarianFolder:
    """Read a Marian folder without running code from it.

    Raises RunError if a file is missing, damaged or of another kind of model.
    """
    settings = read_settings(path / "config.json", MarianSettings)
    tokenizer = read_settings(
        path / "tokenizer_config.json", MarianTokenizerSettings, required=False
    )
    target_ids = "target_vocab.json" if tokenizer.separate_vocabs else "vocab.json"
    return MarianFolder(
        path,
        settings,
        read_generation(path),
        tokenizer,
        read_weights(path),
        source_spm=read_spm(path / "source.spm"),
        target_spm=read_spm(path / "target.spm"),
        source_ids=_read_ids(path / "vocab.json", tokenizer.unk_token),
        target_ids=_read_ids(path / target_ids, tokenizer.unk_token),
    )


def _read_ids(path: Path, unk: str) -> dict[str, int]:
    ids = read_json(path, dict[str, NonNegativeInt])
    if unk not in ids:
        raise RunError(f"{path}: damaged, or lacks `{unk}`")
    return ids


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
    others = []
    for row in sorted({*range(count)} - {*rows, *special}):
        text = texts.get(row, f"<row {row}>")
        others.append(encode_token(text if text not in taken else f"{text} {row}", UNUSED, LAST))
        rows.append(row)
    return replace_tokens(model, [*tokens.values(), *others]), [*special, *rows]


_LANGUAGE = re.compile(r"[a-z]{2,3}(-[A-Za-z0-9]+)*")
_UNKNOWN_LANGUAGE = "und"  # ISO 639-2
_IMPOSSIBLE = -100.0
"""Logit of a token without a row in Marian; its probability is negligible."""


def convert_weights(
    folder: MarianFolder, model: ModelConfig, *, source_rows: list[int], target_rows: list[int]
) -> dict[str, Tensor]:
    """Return Marian's weights under this project's names; `..._rows` has Marian's row of each id.

    Raises RunError if a tensor is missing.
    """
    settings = folder.settings
    encoder = _embedding(folder, ENCODER_EMBEDDING)
    decoder = _embedding(folder, DECODER_EMBEDDING)
    head = decoder if settings.tie_word_embeddings else _tensor(folder, LM_HEAD)
    bias = folder.weights.get(LOGITS_BIAS, torch.zeros(1, len(head)))[0]
    last = f"model.decoder.layers.{settings.decoder_layers - 1}.final_layer_norm"
    gain = _tensor(folder, f"{last}.weight")
    shift = _tensor(folder, f"{last}.bias")
    output = _absorb_bias(head, bias, gain=gain, shift=shift, folder=folder)[target_rows]
    if settings.pad_token_id == settings.decoder_start_token_id:
        # One row of Marian became two tokens; only one may have its probability.
        output[PAD] = _IMPOSSIBLE / (len(gain) * gain)
    scale = 1.0 if settings.scale_embedding else settings.d_model**-0.5
    converted = {
        SOURCE: interleave_sines(scale * encoder[source_rows], 1),
        TARGET: interleave_sines(scale * decoder[target_rows], 1),
        OUTPUT: interleave_sines(output, 1),
    }
    for name in iterate_layer_tensors(model):
        # `_absorb_bias` replaces the shift of the last norm.
        tensor = gain if name.theirs == f"{last}.bias" else _tensor(folder, name.theirs)
        converted[name.ours] = interleave_sines(tensor, name.states_axis).contiguous()
    return converted


def _absorb_bias(
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


def _check_embeddings(folder: MarianFolder) -> None:
    settings, path = folder.settings, folder.path
    source, target = (
        (rows, settings.d_model) for rows in (settings.vocab_size, settings.target_rows)
    )
    check_shape(path, ENCODER_EMBEDDING, _embedding(folder, ENCODER_EMBEDDING).shape, source)
    check_shape(path, DECODER_EMBEDDING, _embedding(folder, DECODER_EMBEDDING).shape, target)
    if not settings.tie_word_embeddings:
        check_shape(path, LM_HEAD, _tensor(folder, LM_HEAD).shape, target)


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
    return get_tensor(folder.weights, name, folder.path)


def _build_vocabularies(folder: MarianFolder) -> tuple[dict[str, bytes], list[int], list[int]]:
    """Return both SentencePiece models, and Marian's rows of source and of target ids."""
    settings, unk = folder.settings, folder.tokenizer.unk_token
    start, eos, count = settings.decoder_start_token_id, settings.eos_token_id, settings.target_rows
    of_source, of_target = (
        [settings.pad_token_id, ids[unk], start, eos]
        for ids in (folder.source_ids, folder.target_ids)
    )
    try:
        source, source_rows = build_source_vocabulary(
            folder.source_spm, folder.source_ids, of_source
        )
        target, target_rows = build_target_vocabulary(
            folder.target_spm, folder.target_ids, of_target, count=count
        )
    except ValueError as error:
        raise RunError(f"{folder.path}: source.spm or target.spm: {error}") from error
    if max(source_rows) >= settings.vocab_size or max(target_rows) >= count:
        raise RunError(f"{folder.path}: vocab.json has more ids than the model has rows")
    return {SOURCE_FILE: source, TARGET_FILE: target}, source_rows, target_rows


def _convert_settings(
    folder: MarianFolder, source: str | None, target: str | None
) -> tuple[Config, tuple[str, ...]]:
    positions = folder.settings.max_position_embeddings
    decoding, notes = convert_search(folder.generation, folder.path, positions=positions)
    source = _choose_language(folder, folder.tokenizer.source_lang, source, "--source-language")
    target = _choose_language(folder, folder.tokenizer.target_lang, target, "--target-language")
    tokenizer = TokenizerConfig(vocabulary="separate")
    model = folder.settings.model(folder.path, tie_embeddings="none")
    data = make_data(source, target)
    return Config(data=data, tokenizer=tokenizer, model=model, decoding=decoding), notes


def _choose_language(
    folder: MarianFolder, stated: str | None, given: str | None, option: str
) -> str:
    """Return the language that the folder states, or the given one, or `und`.

    Raises UserError for a given one that is a country, or another than the folder states.
    """
    is_known = stated and _LANGUAGE.fullmatch(stated) and not describe_country(stated)
    if given is None:
        return stated if stated and is_known else _UNKNOWN_LANGUAGE
    if message := describe_country(given):
        raise UserError(f"{option} {message}")
    if stated and is_known and base_language(stated) != base_language(given):
        raise UserError(
            f"{option} `{given}`: {folder.path} is an OPUS-MT model of `{stated}`; leave it out"
        )
    return str(language_of(given))
