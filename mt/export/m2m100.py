"""Conversion of a run to a Hugging Face folder for `M2M100ForConditionalGeneration`.

The tokenizer is that of NLLB-200 or M2M-100, as in the folder that the run came from.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from mt.config import ModelConfig
from mt.data.sentencepiece_model import SPECIAL, tokens_of, with_tokens
from mt.data.tokenizer import Vocabulary
from mt.decoding.load import FinishedRun
from mt.errors import UserError
from mt.export.marian import SHARED, generation_settings, layer_tensors, stack_settings
from mt.files import replacing, write_json
from mt.special_ids import BOS, EOS, PAD, UNK
from mt.training.checkpoint import save_tensors

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
