"""Hugging Face folders: parts of their imports, and the export for `M2M100ForConditionalGeneration`.

The tokenizer of an exported folder is that of NLLB-200 or M2M-100, as where the run came from.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch
from pydantic import BaseModel, ConfigDict, PositiveInt, ValidationError
from safetensors import SafetensorError, safe_open
from torch import Tensor

from mt import files
from mt.config import Config, DataConfig, DecodingConfig, ModelConfig
from mt.config.data import NO_CORPUS, TextSource
from mt.config.loading import dump_config
from mt.config.tokenizer import TokenizerConfig
from mt.data.sentencepiece_model import SPECIAL, tokens_of, with_tokens
from mt.data.tokenizer import Tokenizer, Vocabulary
from mt.decoding.load import FinishedRun
from mt.errors import RunError, UserError, did_you_mean, listed
from mt.export.marian import (
    SHARED,
    alpha_of,
    generation_settings,
    layer_tensors,
    stack_settings,
)
from mt.files import replacing, validated, write_json, write_text
from mt.model.transformer import Transformer
from mt.model.weights import load_parameters
from mt.runs import LARGEST_MODEL, Provenance, write_description
from mt.special_ids import BOS, EOS, PAD, UNK
from mt.training.checkpoint import save_tensors
from mt.training.run_folder import RunFolder

ACTIVATIONS = {"relu": "relu", "gelu": "gelu", "swish": "swish", "silu": "swish"}
"""`model.feed_forward` by the name in transformers."""
B = TypeVar("B", bound=BaseModel)
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Imported:
    """Summary of an import."""

    languages: str
    parameters: int
    notes: tuple[str, ...]
    """Settings that could only be approximated, and tokens that were left out."""
    tokens: tuple[int, int] | None = None
    """Tokens of the folder and of the run, if some were left out."""
    full_parameters: int = 0
    """Parameters of the folder, if some were left out."""


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

    def model(self, **others: str) -> ModelConfig:
        """Return the shape of the model; `others` are further keys of `model`."""
        return ModelConfig.model_validate(
            {
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
        )


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
    settings = read_json(path / "config.json")
    found = settings.get("model_type") if isinstance(settings, dict) else None
    if found not in ("marian", "m2m_100"):
        near = did_you_mean(str(found), ("marian", "m2m_100"))
        raise RunError(
            f"{path / 'config.json'}: `model_type` is `{found}`; `mt import` reads `marian` "
            f"(OPUS-MT) and `m2m_100` (M2M-100, NLLB-200){near}"
        )
    return str(found)


def read_settings(path: Path, kind: type[B]) -> B:
    """Read a JSON file of settings; raise RunError if it is missing, damaged or unsuitable."""
    return validated(read_json(path), kind, path)


def read_generation(path: Path) -> GenerationSettings:
    """Read the search settings of a folder."""
    own = path / "generation_config.json"
    return read_settings(own if own.exists() else path / "config.json", GenerationSettings)


def read_bytes(path: Path) -> bytes:
    """Read a file; raise RunError if it is missing."""
    return files.read_bytes(_present(path), limit=LARGEST_MODEL)


def read_json(path: Path) -> Any:
    """Read a JSON file; raise RunError if it is missing or damaged."""
    return files.read_json(_present(path), Any)


def _present(path: Path) -> Path:
    if not path.is_file():
        raise RunError(f"{path}: missing; the model cannot be imported without it")
    return path


@contextmanager
def settings_in_range(path: Path) -> Iterator[None]:
    """Raise RunError where the settings of the folder `path` are outside those of a config."""
    try:
        yield
    except ValidationError as error:
        problem = files.first_problem(error)
        raise RunError(f"{path}: has settings that are out of range ({problem})") from None


_SAFETENSORS, _PICKLED = "model.safetensors", "pytorch_model.bin"
_INDEX = f"{_SAFETENSORS}.index.json"


def read_weights(path: Path) -> dict[str, Tensor]:
    """Read the weights of a folder as fp32: safetensors, in one file or several.

    Raises RunError if they are missing or damaged.
    """
    return _read_each(path, lambda file, name: file.get_tensor(name).float())


def read_shapes(path: Path) -> dict[str, list[int]]:
    """Read the shapes of the weights of a folder; raise RunError like `read_weights`."""
    return _read_each(path, lambda file, name: file.get_slice(name).get_shape())


def _read_each(path: Path, read: Callable[[Any, str], T]) -> dict[str, T]:
    if (path / _INDEX).is_file():
        return _read_shards(path, read)
    if (path / _SAFETENSORS).is_file():
        return _read_file(path / _SAFETENSORS, read)
    pickled = sorted(each.name for each in path.glob("pytorch_model*.bin"))
    if not pickled:
        raise RunError(f"{path}: has neither {_SAFETENSORS} nor {_PICKLED}")
    name = str(path)
    raise RunError(
        f"{path}: its weights are pickled ({listed(pickled)}); convert them with transformers: "
        'python -c "from transformers import AutoModelForSeq2SeqLM as M; '
        f'M.from_pretrained({name!r}).save_pretrained({name!r})"'
    )


def read_pickled_weights(path: Path) -> dict[str, Tensor]:
    """Read weights like `read_weights`, or pickled tensors without other objects."""
    pickled = path / _PICKLED
    if (path / _SAFETENSORS).is_file() or not pickled.is_file():
        return read_weights(path)
    try:
        tensors = torch.load(pickled, map_location="cpu", weights_only=True)
        return {name: tensor.float() for name, tensor in tensors.items()}
    except OSError:
        raise
    except Exception as error:  # of any type: the file decides which objects it has
        raise RunError(f"{pickled}: damaged, or contains objects other than tensors") from error


def _read_shards(path: Path, read: Callable[[Any, str], T]) -> dict[str, T]:
    index = read_json(path / _INDEX)
    places = index.get("weight_map") if isinstance(index, dict) else None
    if not isinstance(places, dict) or not all(isinstance(each, str) for each in places.values()):
        raise RunError(f"{path / _INDEX}: damaged, has no `weight_map`")
    shards = {name: path / Path(name).name for name in sorted({*places.values()})}
    if missing := [name for name, shard in shards.items() if not shard.is_file()]:
        raise RunError(
            f"{path}: {len(missing)} of {len(shards)} files of weights are missing: "
            f"{listed(missing[:3])}"
        )
    found: dict[str, T] = {}
    for name, shard in shards.items():
        found |= _read_file(shard, read, [key for key, place in places.items() if place == name])
    return found


def _read_file(
    path: Path, read: Callable[[Any, str], T], names: Iterable[str] | None = None
) -> dict[str, T]:
    try:
        with safe_open(path, "pt") as file:
            there = file.keys()
            names = there if names is None else names
            if absent := [name for name in names if name not in {*there}]:
                raise RunError(f"{path}: lacks {listed(absent[:3])}, which {_INDEX} says it has")
            return {name: read(file, name) for name in names}
    except SafetensorError as error:
        raise RunError(f"{path}: damaged ({error})") from error


def tensor_of(weights: dict[str, T], name: str, path: Path) -> T:
    """Return a tensor or its shape; raise RunError if the weights of the folder `path` lack it."""
    if name not in weights:
        raise RunError(f"{path}: damaged, the weights lack `{name}`")
    return weights[name]


def check_shape(path: Path, name: str, found: Sequence[int], wanted: tuple[int, int]) -> None:
    """Raise RunError if a tensor of the folder `path` has another shape than config.json gives."""
    if (*found,) != wanted:
        raise RunError(f"{path}: `{name}` has the shape {[*found]}, config.json gives {[*wanted]}")


def imported_config(
    model: ModelConfig,
    tokenizer: TokenizerConfig,
    decoding: DecodingConfig,
    source: str,
    target: str,
) -> Config:
    """Return the config of an imported run, which has languages but no corpora."""
    none = TextSource(source=NO_CORPUS, target=NO_CORPUS)
    data = DataConfig(source_language=source, target_language=target, train=none, valid=none)
    return Config(data=data, tokenizer=tokenizer, model=model, decoding=decoding)


def write_run(
    run: RunFolder,
    config: Config,
    tokenizer: Tokenizer,
    weights: dict[str, Tensor],
    *,
    longest_source: int,
    origin: Path,
) -> int:
    """Write the files of a run, its description last, and return the number of parameters."""
    with torch.device("meta"):  # only names and shapes are compared
        model = Transformer(
            config.model,
            source_vocabulary=tokenizer.source_size,
            target_vocabulary=tokenizer.target_size,
        )
    load_parameters(model, weights, str(origin))
    save_tensors(weights, run.weights)
    write_text(run.config, dump_config(config))
    provenance = Provenance(f"imported from {origin}")
    write_description(run.path, tokenizer, longest_source=longest_source, provenance=provenance)
    return sum(tensor.numel() for tensor in weights.values())


def decoding_of(
    generation: GenerationSettings, positions: int, **others: str
) -> tuple[DecodingConfig, tuple[str, ...]]:
    """Return the search settings, and notes on approximated ones; `others` are further keys.

    `positions` limits translations that the settings do not limit.
    """
    beams = generation.num_beams or 1
    exponent = 1.0 if generation.length_penalty is None else generation.length_penalty
    normalization = {0.0: "none", 1.0: "average"}.get(exponent, "gnmt")
    # transformers counts the decoder's start token.
    longest = generation.max_length or positions
    decoding = DecodingConfig.model_validate(
        {
            "search": "greedy" if beams == 1 else "beam",
            "beam": beams,
            "length_normalization": normalization,
            "length_penalty": min(max(alpha_of(exponent), 0.0), 10.0),
            "max_length_ratio": 0.0,
            "max_length_extra": max(longest - 1, 1),
            "no_repeat_ngram": generation.no_repeat_ngram_size or None,
            **others,
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


def is_language(token: str) -> bool:
    """Test for a language token: `deu_Latn` of NLLB or `__de__` of M2M-100."""
    return _LANGUAGE.fullmatch(token) is not None


def row_token(number: int) -> str:
    """Return the token of a row of the embedding that the tokenizer does not use."""
    return f"{_ROW}{number}>"


def tensor_names(model: ModelConfig) -> dict[str, str]:
    """Return the name in transformers of each parameter."""
    norms = {
        f"{side}_norm.{kind}": f"model.{side}.layer_norm.{kind}"
        for side in ("encoder", "decoder")
        for kind in ("weight", "bias")
    }
    layers = {named.ours: named.theirs for named in layer_tensors(model)}
    return {"target_embedding.weight": SHARED, **norms, **layers}


def why_not_m2m100(model: ModelConfig) -> str | None:
    """Return the key that M2M-100 cannot express, or None."""
    plain = ModelConfig(positional="fairseq", decoder_start="eos", residual="pre")
    sizes = {"d_model", "d_ff", "heads", "encoder_layers", "decoder_layers", "feed_forward"}
    for key in ModelConfig.model_fields:
        value, wanted = getattr(model, key), getattr(plain, key)
        if key not in sizes and "dropout" not in key and value != wanted:
            return f"`model.{key}: {value}`; M2M-100 has {wanted}"
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
    tokens = _Tokens.of(finished.tokenizer.target)
    folder.mkdir(parents=True, exist_ok=True)
    names = tensor_names(finished.config.model).items()
    weights = {theirs: finished.weights[ours] for ours, theirs in names}
    weights[SHARED] = weights[SHARED][tokens.order]
    with replacing(folder / "model.safetensors") as temporary:
        save_tensors(weights, temporary)
    _write_tokenizer(finished, tokens, folder, tags)
    ids = {f"{name}_token_id": number for number, name in enumerate(_ROLES[:3])}
    ids["decoder_start_token_id"] = ids["eos_token_id"]
    forced = {"forced_bos_token_id": tokens.names.index(tags[1]), "forced_eos_token_id": None}
    hidden = {"suppress_tokens": [SPECIAL_ORDER.index(each) for each in (PAD, UNK, BOS)]}
    generation = {**generation_settings(finished), **ids, **forced, **hidden}
    write_json(folder / "generation_config.json", generation)
    write_json(
        folder / "config.json",
        {
            "architectures": ["M2M100ForConditionalGeneration"],
            "model_type": "m2m_100",
            "vocab_size": len(tokens.order),
            "tie_word_embeddings": True,
            **stack_settings(finished),
            **ids,
        },
    )


_ROLES = ("bos", "pad", "eos", "unk")


@dataclass(frozen=True, slots=True)
class _Tokens:
    """Tokens of a run in the order of a folder: special, text, language and other ones."""

    order: list[int]
    """The run's id of each id of the folder."""
    names: list[str]
    """Token of each id of the folder."""
    texts: list[int]
    """Ids in the run of the tokens of the SentencePiece model."""
    entries: int
    """Number of special tokens and tokens of the vocabulary file."""
    code: str | None
    """`language_codes` of M2M-100; None for NLLB."""

    @classmethod
    def of(cls, vocabulary: Vocabulary) -> "_Tokens":
        processor = vocabulary.processor
        names = [processor.id_to_piece(number) for number in range(len(vocabulary))]
        others = range(FIRST_TEXT, len(names))
        languages = [names[each] for each in others if is_language(names[each])]
        texts = [each for each in others if not processor.is_control(each)]
        code = None
        entries = {*texts}
        if any(name.startswith("__") for name in languages):
            lists = {tuple(f"__{code}__" for code in CODES[name]): name for name in CODES}
            code = lists.get(tuple(languages))
            if code is None:
                raise UserError("transformers fixes the languages of M2M-100; this run has others")
            # Rows of the vocabulary file without a token of the SentencePiece model.
            entries |= {each for each in others if _is_entry(names[each])}
        rest = [each for each in others if each not in entries]
        order = [*SPECIAL_ORDER, *sorted(entries), *rest]
        in_order = [names[each] for each in order]
        return cls(order, in_order, texts, FIRST_TEXT + len(entries), code)


def _is_entry(name: str) -> bool:
    return not is_language(name) and not name.startswith(_ROW) and name != MASK


def _write_tokenizer(
    finished: FinishedRun, tokens: _Tokens, folder: Path, tags: Sequence[str]
) -> None:
    model: bytes = finished.tokenizer.target.processor.serialized_model_proto()
    messages = [message for _, message in tokens_of(model)]
    spm = with_tokens(model, [messages[each] for each in tokens.texts], (UNK, BOS, EOS))
    with replacing(folder / SPM_FILE) as temporary:
        temporary.write_bytes(spm)
    source, target = (tag.strip("_") for tag in tags)
    settings: dict[str, object] = {
        "src_lang": source,
        "tgt_lang": target,
        **{f"{role}_token": tokens.names[number] for number, role in enumerate(_ROLES)},
        "sep_token": SPECIAL[EOS],
        "clean_up_tokenization_spaces": False,
    }
    if tokens.code is not None:
        entries = {name: number for number, name in enumerate(tokens.names[: tokens.entries])}
        write_json(folder / VOCABULARY_FILE, entries)
        settings |= {"tokenizer_class": "M2M100Tokenizer", "language_codes": tokens.code}
    else:
        added = {
            number: name
            for number, name in enumerate(tokens.names)
            if number < FIRST_TEXT or (number >= tokens.entries and not name.startswith(_ROW))
        }
        languages = [name for name in added.values() if is_language(name)]
        settings |= {
            "tokenizer_class": "NllbTokenizer",
            "legacy_behaviour": finished.tokenizer.tag_is_last,
            "cls_token": SPECIAL[BOS],
            "mask_token": MASK,
            # Of transformers 4 and 5; the ids are needed because 5 puts the mask token first.
            "additional_special_tokens": languages,
            "extra_special_tokens": languages,
            "added_tokens_decoder": {str(number): _added(added[number]) for number in added},
        }
    write_json(folder / "tokenizer_config.json", settings)


def _added(name: str) -> dict[str, object]:
    """Return an entry of `added_tokens_decoder`."""
    flags = {"normalized": False, "rstrip": False, "single_word": False, "special": True}
    return {"content": name, "lstrip": name == MASK, **flags}
