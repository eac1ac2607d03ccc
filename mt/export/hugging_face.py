"""Hugging Face folders: parts of their imports, and the export of M2M-100 and NLLB-200.

An exported folder has the tokenizer of NLLB-200 or M2M-100, as the folder that the run came from.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch
from pydantic import BaseModel, ConfigDict, PositiveInt
from torch import Tensor

from mt.config import Config, DataConfig, DecodingConfig, ModelConfig
from mt.config.data import NO_CORPUS, TextSource
from mt.config.loading import dump_config
from mt.data.sentencepiece_model import SPECIAL, read_tokens, replace_tokens
from mt.data.tokenizer import Vocabulary, write_models
from mt.decoding.load import FinishedRun, read_tensors
from mt.errors import RunError, UserError, did_you_mean, listed
from mt.export.marian import (
    SHARED,
    build_generation_settings,
    build_stack_settings,
    compute_alpha,
    iterate_layer_tensors,
)
from mt.files import (
    open_aside,
    put_in_place,
    read_bytes,
    read_json,
    replace_file,
    validate_values,
    write_json,
    write_text,
)
from mt.model.transformer import Transformer
from mt.model.weights import load_parameters
from mt.runs import LARGEST_MODEL, Provenance, write_description
from mt.special_ids import BOS, EOS, PAD, UNK
from mt.training.checkpoint import save_tensors
from mt.training.run_folder import RunFolder

ACTIVATIONS = {"relu": "relu", "gelu": "gelu", "swish": "swish", "silu": "swish"}
"""`model.feed_forward` by the name in transformers."""
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
    activation_function: str
    pad_token_id: int
    eos_token_id: int
    decoder_start_token_id: int
    tie_word_embeddings: bool = True
    max_position_embeddings: PositiveInt = 1024
    dropout: float = 0.1
    attention_dropout: float = 0.0
    activation_dropout: float = 0.0

    def why_not_ours(self) -> str | None:
        """Return the reason why no Transformer of this project has these settings, or None."""
        for name in ("ffn_dim", "attention_heads"):
            encoder, decoder = (getattr(self, f"{side}_{name}") for side in ("encoder", "decoder"))
            if encoder != decoder:
                return f"`encoder_{name}` {encoder} differs from `decoder_{name}` {decoder}"
        if self.activation_function not in ACTIVATIONS:
            known = ", ".join(ACTIVATIONS)
            return f"`activation_function` {self.activation_function} is not one of {known}"
        if self.d_model % 2 or self.d_model % self.encoder_attention_heads:
            return f"`d_model` {self.d_model} is odd or not a multiple of the attention heads"
        return None

    def model(self, path: Path, **others: str) -> ModelConfig:
        """Return the shape of the model; `others` are further keys of `model`.

        Raises RunError, with the key, for a value of the folder `path` that is out of range.
        """
        values = {
            "d_model": self.d_model,
            "d_ff": self.encoder_ffn_dim,
            "heads": self.encoder_attention_heads,
            "encoder_layers": self.encoder_layers,
            "decoder_layers": self.decoder_layers,
            "feed_forward": ACTIVATIONS[self.activation_function],
            "dropout": self.dropout,
            "attention_dropout": self.attention_dropout,
            "feed_forward_dropout": self.activation_dropout,
            **others,
        }
        return validate_values(values, ModelConfig, path / "config.json")


class WeightsIndex(FolderSettings):
    """Index of several files of weights."""

    weight_map: dict[str, str]


class GenerationSettings(FolderSettings):
    """Search settings, from generation_config.json or, in older folders, config.json."""

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
    """Read a JSON file of settings; raise RunError if it is damaged or unsuitable.

    Without a file that is not required, all settings have their defaults.
    """
    if not required and not path.exists():
        return kind()
    return validate_values(read_json(path, Any), kind, path)


def read_generation(path: Path) -> GenerationSettings:
    """Read the search settings of a folder."""
    own = path / "generation_config.json"
    return read_settings(own if own.exists() else path / "config.json", GenerationSettings)


def read_spm(path: Path) -> bytes:
    """Read a SentencePiece model."""
    return read_bytes(path, limit=LARGEST_MODEL)


def read_weights(path: Path) -> dict[str, Tensor]:
    """Read the weights of a folder as fp32: safetensors, in one file or several.

    Raises RunError if they are missing or damaged.
    """
    tensors: dict[str, Tensor] = {}
    for file in _weight_files(path):
        tensors |= {name: tensor.float() for name, tensor in read_tensors(file).items()}
    return tensors


def _weight_files(path: Path) -> list[Path]:
    """Return the files of weights of a folder; raise RunError if one is missing or pickled."""
    whole, index = path / "model.safetensors", path / "model.safetensors.index.json"
    if index.is_file():
        settings = read_settings(index, WeightsIndex)
        files = [path / Path(name).name for name in sorted({*settings.weight_map.values()})]
        if missing := [file.name for file in files if not file.is_file()]:
            raise RunError(
                f"{path}: {len(missing)} of {len(files)} files of weights are missing: "
                f"{listed(missing[:3])}"
            )
        return files
    if whole.is_file():
        return [whole]
    pickled = sorted(file.name for file in path.glob("pytorch_model*.bin"))
    if not pickled:
        raise RunError(f"{path}: has no {whole.name}")
    raise RunError(
        f"{path}: its weights are pickled ({listed(pickled)}); convert them with transformers: "
        'python -c "from transformers import AutoModelForSeq2SeqLM as M; '
        f"M.from_pretrained('{path}').save_pretrained('{path}')\""
    )


def get_tensor(weights: dict[str, Tensor], name: str, path: Path) -> Tensor:
    """Return a tensor; raise RunError if the weights of the folder `path` lack it."""
    if name not in weights:
        raise RunError(f"{path}: damaged, the weights lack `{name}`")
    return weights[name]


def check_shape(path: Path, name: str, shape: Sequence[int], expected: tuple[int, int]) -> None:
    """Raise RunError if a tensor of the folder `path` has another shape than config.json gives."""
    if tuple(shape) != expected:
        raise RunError(
            f"{path}: `{name}` has the shape {list(shape)}, config.json gives {list(expected)}"
        )


def make_data(source_language: str, target_language: str) -> DataConfig:
    """Return the data of an imported run, which has languages but no corpora."""
    no_corpus = TextSource(source=NO_CORPUS, target=NO_CORPUS)
    return DataConfig(
        source_language=source_language,
        target_language=target_language,
        train=no_corpus,
        valid=no_corpus,
    )


def write_imported_run(
    run: Path,
    config: Config,
    vocabularies: dict[str, bytes],
    weights: dict[str, Tensor],
    *,
    longest_source: int,
    origin: Path,
) -> int:
    """Write a finished run with SentencePiece models by file name; return its parameters."""
    with open_aside(run) as temporary:
        folder = RunFolder(temporary)
        tokenizer = write_models(folder.tokenizer, vocabularies)
        with torch.device("meta"):  # only names and shapes are compared
            model = Transformer(
                config.model,
                source_vocabulary=tokenizer.source_size,
                target_vocabulary=tokenizer.target_size,
            )
        load_parameters(model, weights, str(origin))
        save_tensors(weights, folder.weights)
        write_text(folder.config, dump_config(config))
        write_description(
            temporary,
            vocabularies=(tokenizer.source_size, tokenizer.target_size),
            tokenizer=tokenizer.fingerprint,
            longest_source=longest_source,
            provenance=Provenance(f"imported from {origin}"),
        )
        put_in_place(temporary, run, is_new=True)
    return sum(tensor.numel() for tensor in weights.values())


def convert_search(
    generation: GenerationSettings, path: Path, *, positions: int, **others: str
) -> tuple[DecodingConfig, tuple[str, ...]]:
    """Return the search settings, and notes on approximated ones; `others` are further keys.

    `positions` limits translations that the settings do not limit. Raises RunError, with the key,
    for a value of the folder `path` that is out of range.
    """
    beams = generation.num_beams or 1
    exponent = 1.0 if generation.length_penalty is None else generation.length_penalty
    exact = {0.0: "none", 1.0: "average"}
    # transformers counts the decoder's start token.
    longest = generation.max_length or positions
    values = {
        "search": "greedy" if beams == 1 else "beam",
        "beam": beams,
        "length_normalization": exact.get(exponent, "gnmt"),
        "length_penalty": min(max(compute_alpha(exponent), 0.0), 10.0),
        "max_length_ratio": 0.0,
        "max_length_extra": max(longest - 1, 1),
        "no_repeat_ngram": generation.no_repeat_ngram_size or None,
        **others,
    }
    decoding = validate_values(values, DecodingConfig, path / "generation_config.json")
    if exponent in exact or beams == 1:
        return decoding, ()
    note = (
        f"`length_penalty` {exponent:g} divides by length ** {exponent:g} in transformers; "
        f"`decoding.length_normalization: gnmt` with `decoding.length_penalty: "
        f"{decoding.length_penalty:g}` approximates it, so some translations may differ"
    )
    return decoding, (note,)


SPM_FILE, VOCABULARY_FILE = "sentencepiece.bpe.model", "vocab.json"
SPECIAL_ORDER = (BOS, PAD, EOS, UNK)
"""The special tokens in the order of fairseq's ids 0 to 3."""
FIRST_TEXT = len(SPECIAL_ORDER)
"""First id of a text token, here and in fairseq."""
_OF_M2M100 = """
af am ar ast az ba be bg bn br bs ca ceb cs cy da de el en es et fa ff fi fr fy ga gd gl gu ha he
hi hr ht hu hy id ig ilo is it ja jv ka kk km kn ko lb lg ln lo lt lv mg mk ml mn mr ms my ne nl no
ns oc or pa pl ps pt ro ru sd si sk sl so sq sr ss su sv sw ta th tl tn tr uk ur uz vi wo xh yi yo
zh zu
"""
CODES = {"m2m100": _OF_M2M100.split(), "wmt21": ["en", "ha", "is", "ja", "cs", "ru", "zh", "de"]}
"""Languages of M2M-100 by `language_codes`, in the order of their ids, which no file states."""
_LANGUAGE = re.compile(r"__[a-z]{2,3}__|[a-z]{3}_[A-Z][a-z]{3}")
MASK = "<mask>"
_ROW = "<row "
_ROLES = ("bos", "pad", "eos", "unk")
_SIZES = {"d_model", "d_ff", "heads", "encoder_layers", "decoder_layers", "feed_forward"}


def is_language(token: str) -> bool:
    """Test for a language token: `deu_Latn` of NLLB or `__de__` of M2M-100."""
    return _LANGUAGE.fullmatch(token) is not None


def name_row(row: int) -> str:
    """Return the token of a row of the embedding that the tokenizer does not use."""
    return f"{_ROW}{row}>"


def map_tensor_names(model: ModelConfig) -> dict[str, str]:
    """Return the name in transformers of each parameter."""
    norms = {
        f"{side}_norm.{kind}": f"model.{side}.layer_norm.{kind}"
        for side in ("encoder", "decoder")
        for kind in ("weight", "bias")
    }
    layers = {tensor.ours: tensor.theirs for tensor in iterate_layer_tensors(model)}
    return {"target_embedding.weight": SHARED, **norms, **layers}


def why_not_m2m100(model: ModelConfig) -> str | None:
    """Return the key that M2M-100 cannot express, or None."""
    plain = ModelConfig(positional="fairseq", decoder_start="eos", residual="pre")
    for key in ModelConfig.model_fields:
        value, expected = getattr(model, key), getattr(plain, key)
        if key not in _SIZES and "dropout" not in key and value != expected:
            return f"`model.{key}: {value}`; M2M-100 has {expected}"
    if model.feed_forward not in ("relu", "gelu", "swish"):
        return f"`model.feed_forward: {model.feed_forward}`; M2M-100 has relu, gelu or swish"
    return None


def write_m2m100(finished: FinishedRun, folder: Path) -> None:
    """Write a finished run into `folder` as a Hugging Face `m2m_100` model.

    The tensors are those of the run, in fp32. Raises UserError before anything is written if the
    model has another form or the run has no language tokens.
    """
    if reason := why_not_m2m100(finished.config.model):
        raise UserError(f"M2M-100 cannot express {reason}")
    tags = [str(tag) for tag in finished.config.split_tags("valid").values() if tag]
    if len(tags) < 2:
        raise UserError("M2M-100 needs languages: set `decoding.tag` and `decoding.target_tag`")
    tokens = _order_tokens(finished.tokenizer.target)
    folder.mkdir(parents=True, exist_ok=True)
    names = map_tensor_names(finished.config.model).items()
    weights = {theirs: finished.weights[ours] for ours, theirs in names}
    weights[SHARED] = weights[SHARED][tokens.order]
    with replace_file(folder / "model.safetensors") as temporary:
        save_tensors(weights, temporary)
    _write_tokenizer(finished, tokens, folder, tags)
    ids: dict[str, object] = {f"{role}_token_id": index for index, role in enumerate(_ROLES[:3])}
    ids["decoder_start_token_id"] = ids["eos_token_id"]
    generation = {
        **build_generation_settings(finished),
        **ids,
        "forced_bos_token_id": tokens.names.index(tags[1]),
        "forced_eos_token_id": None,
        "suppress_tokens": [SPECIAL_ORDER.index(special) for special in (PAD, UNK, BOS)],
    }
    write_json(folder / "generation_config.json", generation)
    settings = {
        "architectures": ["M2M100ForConditionalGeneration"],
        "model_type": "m2m_100",
        "vocab_size": len(tokens.order),
        "tie_word_embeddings": True,
        **build_stack_settings(finished),
        **ids,
    }
    write_json(folder / "config.json", settings)


@dataclass(frozen=True, slots=True)
class FolderTokens:
    """Tokens of a run in the order of a folder: special, text, language and other ones."""

    order: list[int]
    """The run's id of each id of the folder."""
    names: list[str]
    texts: list[int]
    """Ids in the run of the tokens of the SentencePiece model."""
    entries: int
    """Number of special tokens and tokens of the vocabulary file."""
    code: str | None
    """`language_codes` of M2M-100; None for NLLB."""


def _order_tokens(vocabulary: Vocabulary) -> FolderTokens:
    processor = vocabulary.processor
    names = [processor.id_to_piece(index) for index in range(len(vocabulary))]
    others = range(FIRST_TEXT, len(names))
    languages = [names[index] for index in others if is_language(names[index])]
    texts = [index for index in others if not processor.is_control(index)]
    code = None
    entries = {*texts}
    if any(name.startswith("__") for name in languages):
        lists = {tuple(f"__{code}__" for code in codes): name for name, codes in CODES.items()}
        code = lists.get(tuple(languages))
        if code is None:
            raise UserError("transformers fixes the languages of M2M-100; this run has others")
        # Rows of the vocabulary file without a token of the SentencePiece model.
        entries |= {
            index
            for index in others
            if not (is_language(names[index]) or names[index].startswith(_ROW))
            and names[index] != MASK
        }
    rest = [index for index in others if index not in entries]
    order = [*SPECIAL_ORDER, *sorted(entries), *rest]
    in_order = [names[index] for index in order]
    return FolderTokens(order, in_order, texts, FIRST_TEXT + len(entries), code)


def _write_tokenizer(
    finished: FinishedRun, tokens: FolderTokens, folder: Path, tags: Sequence[str]
) -> None:
    model: bytes = finished.tokenizer.target.processor.serialized_model_proto()
    messages = [message for _, message in read_tokens(model)]
    spm = replace_tokens(model, [messages[index] for index in tokens.texts], (UNK, BOS, EOS))
    with replace_file(folder / SPM_FILE) as temporary:
        temporary.write_bytes(spm)
    source, target = (tag.strip("_") for tag in tags)
    settings: dict[str, object] = {
        "src_lang": source,
        "tgt_lang": target,
        **{f"{role}_token": tokens.names[index] for index, role in enumerate(_ROLES)},
        "sep_token": SPECIAL[EOS],
        "clean_up_tokenization_spaces": False,
    }
    if tokens.code is not None:
        entries = {name: index for index, name in enumerate(tokens.names[: tokens.entries])}
        write_json(folder / VOCABULARY_FILE, entries)
        settings |= {"tokenizer_class": "M2M100Tokenizer", "language_codes": tokens.code}
    else:
        added = {
            index: name
            for index, name in enumerate(tokens.names)
            if index < FIRST_TEXT or (index >= tokens.entries and not name.startswith(_ROW))
        }
        languages = [name for name in added.values() if is_language(name)]
        flags = {"normalized": False, "rstrip": False, "single_word": False, "special": True}
        settings |= {
            "tokenizer_class": "NllbTokenizer",
            "legacy_behaviour": finished.tokenizer.tag_is_last,
            "cls_token": SPECIAL[BOS],
            "mask_token": MASK,
            # Of transformers 4 and 5; the ids are needed because 5 puts the mask token first.
            "additional_special_tokens": languages,
            "extra_special_tokens": languages,
            "added_tokens_decoder": {
                str(index): {"content": name, "lstrip": name == MASK, **flags}
                for index, name in added.items()
            },
        }
    write_json(folder / "tokenizer_config.json", settings)
