"""M2M-100 and NLLB-200 as a Hugging Face folder (`m2m_100`): import as a finished run, and export.

Fan et al. 2021, "Beyond English-Centric Multilingual Machine Translation"; NLLB Team 2022, "No
Language Left Behind". The run translates like the folder under transformers: a source begins with
the token of its language, and a translation with that of the target language.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, islice, pairwise
from pathlib import Path
from typing import Any, Literal

from pydantic import Field
from torch import Tensor

from mt.config import ModelConfig
from mt.config.data import language_of
from mt.data.corpus_files import LineReader
from mt.data.sentencepiece_model import (
    CONTROL,
    SPECIAL,
    encode_token,
    is_bpe,
    rank_tokens,
    read_tokens,
    replace_tokens,
)
from mt.data.tokenizer import JOINT, TAG_LAST, Vocabulary
from mt.decoding.load import FinishedRun
from mt.errors import DataError, RunError, UserError, did_you_mean, listed
from mt.export import hf_folder as hf
from mt.files import read_bytes, read_json, require_file, write_json
from mt.languages import base_language, describe_country, script_of
from mt.runs import LARGEST_MODEL
from mt.special_ids import BOS, EOS, PAD, UNK

_LINES_AT_ONCE = 10_000
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
"""Start of the token of a row of the embedding that the tokenizer does not use."""
_ROLES = ("bos", "pad", "eos", "unk")
_FORM: dict[str, object] = {"positional": "fairseq", "decoder_start": "eos", "residual": "pre"}
"""Keys of `model` with one value in M2M-100."""


def import_m2m100(
    path: Path,
    run: Path,
    *,
    source: str | None = None,
    target: str | None = None,
    languages: Sequence[str] = (),
    samples: Sequence[Path] = (),
) -> hf.Imported:
    """Write the model in the folder `path` as the finished run `run`.

    `source` and `target` are language codes; by default those of the folder. With `languages`, only
    their tokens in `samples`, texts in them, are kept. Tokens are equal, and logits up to rounding.
    Raises UserError, and leaves no files, if the folder is damaged, the model cannot be expressed,
    or a language is unknown.
    """
    folder = read_m2m100_folder(path)
    tags = [
        folder.language(source or folder.tokenizer.src_lang, "--source-language"),
        folder.language(target or folder.tokenizer.tgt_lang, "--target-language"),
    ]
    if tags[0] == tags[1]:
        raise UserError(f"{path}: `{tags[0]}` is the source and the target; give another language")
    ids = [*range(FIRST_TEXT, len(folder.tokens))]
    if languages:
        kept_tags = [folder.language(code, "--languages") for code in languages]
        if missing := [tag for tag in tags if tag not in kept_tags]:
            raise UserError(f"--languages lacks {listed(missing)}, a language of the translation")
        ids = folder.find_used_tokens(kept_tags, samples)
    config: dict[str, dict[str, Any]] = {
        "data": {
            "source_language": str(language_of(tags[0])),
            "target_language": str(language_of(tags[1])),
        },
        "tokenizer": {
            "algorithm": "bpe" if is_bpe(folder.spm) else "unigram",
            "tags": tuple(filter(is_language, (folder.tokens[row][0] for row in ids))),
        },
        "model": _FORM,
        "decoding": {"tag": tags[0], "target_tag": tags[1]},
    }
    special = [SPECIAL_ORDER.index(special_id) for special_id in sorted(SPECIAL_ORDER)]
    theirs = {**folder.weights, hf.SHARED: folder.weights[hf.SHARED][[*special, *ids]]}
    names = map_tensor_names(folder.settings).items()
    file = TAG_LAST if folder.tokenizer.legacy_behaviour else JOINT
    imported = hf.write_imported_run(
        path,
        run,
        folder.settings,
        config,
        vocabularies={file: folder.build_spm(ids)},
        weights={ours: hf.get_tensor(theirs, name, path) for ours, name in names},
    )
    notes = (*folder.notes, *imported.notes)
    if languages:
        before, after = len(folder.tokens), FIRST_TEXT + len(ids)
        full = imported.parameters + (before - after) * folder.settings.d_model
        notes = (*notes, f"{before:,} tokens, {full:,} parameters; kept: {after:,} tokens")
    return replace(imported, notes=notes)


class M2M100Settings(hf.StackSettings):
    """Keys of config.json that determine the model, with the defaults of transformers."""

    model_type: Literal["m2m_100"]
    scale_embedding: Literal[True] = True
    tie_word_embeddings: Literal[True] = True
    bos_token_id: Literal[0] = 0
    pad_token_id: Literal[1]
    eos_token_id: Literal[2]
    decoder_start_token_id: Literal[2]


class AddedToken(hf.FolderSettings):
    """Token of tokenizer.json or tokenizer_config.json that is not from the model of the text."""

    id: int = 0
    content: str
    special: bool = True


class M2M100TokenizerSettings(hf.FolderSettings):
    """Keys of tokenizer_config.json."""

    src_lang: str | None = None
    tgt_lang: str | None = None
    language_codes: Literal["m2m100", "wmt21"] = "m2m100"
    legacy_behaviour: bool = False
    """True for sources that end with EOS and the language, instead of beginning with it."""
    added_tokens_decoder: dict[int, AddedToken] = Field(default_factory=dict)


class TokenizerModel(hf.FolderSettings):
    """Model of tokenizer.json."""

    vocab: dict[str, int] | list[tuple[str, float]] = Field(default_factory=dict)
    """Ids by token; or, of a unigram model, tokens and scores by id."""


class TokenizerFile(hf.FolderSettings):
    """Keys of tokenizer.json."""

    added_tokens: tuple[AddedToken, ...] = ()
    model: TokenizerModel = TokenizerModel()


@dataclass(frozen=True, slots=True)
class M2M100Folder:
    """Contents of a folder."""

    path: Path
    settings: M2M100Settings
    tokenizer: M2M100TokenizerSettings
    spm: bytes
    tokens: list[tuple[str, bytes]]
    """Text and SentencePiece message of each id."""
    weights: dict[str, Tensor]
    """Weights; the embedding matrix is `model.shared.weight`."""
    languages: dict[str, str]
    """Language tokens by code."""
    notes: tuple[str, ...]

    def language(self, code: str | None, option: str) -> str:
        """Return the token of a language; raise UserError if the model has none for `code`."""
        if code is None:
            raise UserError(f"{self.path}: names no language; give {option} CODE")
        known = self.languages
        if code.strip("_") in known:
            return known[code.strip("_")]
        if message := describe_country(code):
            raise UserError(f"{option} {message}")
        near = [name for name in known if base_language(name) == base_language(code)]
        guess = f"; did you mean `{near[0]}`?" if near else did_you_mean(code, known)
        raise UserError(f"{option} `{code}`: is not one of the {len(known)} languages{guess}")

    def build_spm(self, ids: Sequence[int]) -> bytes:
        """Return the SentencePiece model of the special tokens and some of the others."""
        messages = [self.tokens[row][1] for row in ids]
        return replace_tokens(self.spm, rank_tokens(messages) if is_bpe(self.spm) else messages)

    def find_used_tokens(self, languages: Sequence[str], samples: Sequence[Path]) -> list[int]:
        """Return the ids of the text tokens of some texts and of the special tokens to keep.

        Single characters of the scripts of these texts are kept too, and for BPE the tokens by
        whose merges the others are formed. So the segmentation of the texts stays the same. The
        languages of M2M-100 are all kept, because transformers has a fixed list of them.
        """
        vocabulary = Vocabulary.from_model(self.build_spm(range(FIRST_TEXT, len(self.tokens))))
        ids = {text: index for index, text in vocabulary.texts().items()}
        used_ids: set[int] = set()
        lines = chain.from_iterable(LineReader(require_file(path)) for path in samples)
        while block := list(islice(lines, _LINES_AT_ONCE)):
            used_ids |= set().union(*vocabulary.encode(block))
        used = {text for text, index in ids.items() if index in used_ids}
        if not used:
            raise DataError(f"{', '.join(map(str, samples))}: has no text; give a larger sample")
        scripts = {script_of(letter) for letter in set().union(*used) if letter.isalpha()}
        used |= {
            text
            for text in ids
            if len(text) == 1 and (not text.isalpha() or script_of(text) in scripts)
        }
        if is_bpe(self.spm):
            scores = {text: vocabulary.processor.get_score(index) for text, index in ids.items()}
            used |= {part for text in used for part in _split_merges(text, scores)}
        return [
            row
            for row, (text, _) in enumerate(self.tokens)
            if text in used
            or vocabulary.processor.is_byte(row)
            or (row >= FIRST_TEXT and (text in {*languages, MASK} or text.startswith("__")))
        ]


def _split_merges(text: str, scores: dict[str, float]) -> Iterator[str]:
    """Yield the tokens by whose merges BPE forms a token, characters included."""
    parts = list(text)
    yield from parts
    while len(parts) > 1:
        pairs = [left + right for left, right in pairwise(parts)]
        best = max(range(len(pairs)), key=lambda index: scores.get(pairs[index], float("-inf")))
        if pairs[best] not in scores:
            return
        parts[best : best + 2] = [pairs[best]]
        yield pairs[best]


def read_m2m100_folder(path: Path) -> M2M100Folder:
    """Read a folder; raise RunError if a file is missing or damaged."""
    settings = hf.read_settings(path / "config.json", M2M100Settings)
    weights = hf.read_weights(path)
    shared = (hf.SHARED, hf.ENCODER_EMBEDDING, hf.DECODER_EMBEDDING, hf.LM_HEAD)
    embedding = next((name for name in shared if name in weights), hf.SHARED)
    # Before a token is made for each row of config.json.
    shape = settings.vocab_size, settings.d_model
    weights[hf.SHARED] = hf.get_tensor(weights, embedding, path, shape=shape)
    tokenizer = hf.read_settings(
        path / "tokenizer_config.json", M2M100TokenizerSettings, required=False
    )
    if not (path / SPM_FILE).exists():
        raise RunError(
            f"{path / SPM_FILE}: missing, because transformers 5 does not write it; copy it from "
            "the folder of the model that this one was trained from"
        )
    spm = read_bytes(path / SPM_FILE, limit=LARGEST_MODEL)
    try:
        spm_tokens = list(read_tokens(spm))
    except ValueError as error:
        raise RunError(f"{path / SPM_FILE}: is no SentencePiece model") from error
    first = [SPECIAL[special_id] for special_id in (UNK, BOS, EOS)]
    if [text for text, _ in spm_tokens[: len(first)]] != first:
        raise RunError(f"{path / SPM_FILE}: does not begin with {listed(first)}")
    texts = dict(spm_tokens[len(first) :])
    notes: tuple[str, ...] = ()
    ids = {SPECIAL[special_id]: index for index, special_id in enumerate(SPECIAL_ORDER)}
    if (path / VOCABULARY_FILE).exists():
        entries = read_json(path / VOCABULARY_FILE, dict[str, int])
        if any(entries.get(text) != row for text, row in ids.items()):
            raise RunError(f"{path / VOCABULARY_FILE}: does not begin with {listed([*ids])}")
        if missing := [text for text in texts if text not in entries]:
            notes = (
                f"{len(missing)} tokens of {SPM_FILE} are not in {VOCABULARY_FILE} and are left "
                f"out, such as {listed(missing[:3])}; transformers reads them as unknown",
            )
        ids = entries
    else:
        ids |= {text: index for index, text in enumerate(texts, start=FIRST_TEXT)}
    listing = hf.read_settings(path / "tokenizer.json", TokenizerFile, required=False)
    known = listing.model.vocab
    if isinstance(known, list):
        known = {text: row for row, (text, _) in enumerate(known)}
    for text, row in known.items():
        if ids.get(text, row) != row:
            raise RunError(
                f"{path / SPM_FILE}: is of another model; `{text}` has the id {ids[text]} in it, "
                f"and {row} in tokenizer.json"
            )
    added = _read_added_tokens(path, tokenizer, listing, ids)
    by_row: dict[int, str] = {}
    rows = settings.vocab_size
    for text, row in {**ids, **added}.items():
        if not 0 <= row < rows:
            raise RunError(f"{path}: `{text}` has the id {row}, and the model has {rows} rows")
        if row in by_row:
            raise RunError(f"{path}: `{by_row[row]}` and `{text}` have the same id, {row}")
        by_row[row] = text
    names = [by_row.get(row, f"{_ROW}{row}>") for row in range(rows)]
    messages = [
        (text, texts[text] if text in texts and text not in added else encode_token(text, CONTROL))
        for text in names
    ]
    languages = {text.strip("_"): text for text in names if is_language(text)}
    if not languages:
        raise RunError(f"{path}: tokenizer.json and tokenizer_config.json name no language")
    return M2M100Folder(path, settings, tokenizer, spm, messages, weights, languages, notes)


def _read_added_tokens(
    path: Path, tokenizer: M2M100TokenizerSettings, listing: TokenizerFile, ids: dict[str, int]
) -> dict[str, int]:
    """Return the ids of language and mask tokens, by tokenizer.json or tokenizer_config.json.

    The languages of M2M-100 follow the other tokens in the order that transformers fixes. Raises
    RunError for added tokens that are text.
    """
    tokens = {token.id: token for token in listing.added_tokens}
    if not any(is_language(token.content) for token in tokens.values()):
        tokens = tokenizer.added_tokens_decoder
    if texts := [
        token.content
        for token in tokens.values()
        if not (token.special or is_language(token.content) or token.content in {*ids, MASK})
    ]:
        raise RunError(
            f"{path}: {len(texts)} added tokens are text, such as {listed(texts[:3])}; `mt import` "
            "reads models whose added tokens are special"
        )
    added = {token.content: row for row, token in tokens.items()}
    if (path / VOCABULARY_FILE).exists() and not any(map(is_language, added)):
        names = [f"__{code}__" for code in CODES[tokenizer.language_codes]]
        return {text: row for row, text in enumerate(names, start=max(ids.values()) + 1)}
    return {text: row for text, row in added.items() if text not in SPECIAL.values()}


def is_language(token: str) -> bool:
    """Test for a language token: `deu_Latn` of NLLB or `__de__` of M2M-100."""
    return _LANGUAGE.fullmatch(token) is not None


def map_tensor_names(model: ModelConfig | hf.StackSettings) -> dict[str, str]:
    """Return the name in transformers of each parameter."""
    norms = {
        f"{side}_norm.{kind}": f"model.{side}.layer_norm.{kind}"
        for side in ("encoder", "decoder")
        for kind in ("weight", "bias")
    }
    layers = {ours: theirs for ours, theirs, _ in hf.iterate_layer_tensors(model)}
    return {"target_embedding.weight": hf.SHARED, **norms, **layers}


def write_m2m100(finished: FinishedRun, folder: Path) -> None:
    """Write a finished run into `folder` as a Hugging Face `m2m_100` model.

    It has the tokenizer of NLLB-200 or M2M-100, as the folder that the run came from. The tensors
    are those of the run, in fp32. Raises UserError before anything is written if the model has
    another form or the run has no language tokens.
    """
    shared = {"tie_embeddings": "all", "bias": True}
    if reason := hf.find_other_keys(finished.config.model, **_FORM, **shared):
        raise UserError(f"M2M-100 cannot express {reason}")
    tags = [str(tag) for tag in finished.config.split_tags("valid").values() if tag]
    if len(tags) < 2:
        raise UserError("M2M-100 needs languages: set `decoding.tag` and `decoding.target_tag`")
    processor = finished.tokenizer.target.processor
    tokens = [processor.id_to_piece(index) for index in range(len(finished.tokenizer.target))]
    indices = range(FIRST_TEXT, len(tokens))
    languages = [token for token in tokens[FIRST_TEXT:] if is_language(token)]
    texts = [index for index in indices if not processor.is_control(index)]
    entries, code = {*texts}, None
    if any(token.startswith("__") for token in languages):
        lists = {tuple(f"__{code}__" for code in codes): name for name, codes in CODES.items()}
        code = lists.get(tuple(languages))
        if code is None:
            raise UserError("transformers fixes the languages of M2M-100; this run has others")
        # Rows of the vocabulary file without a token of the SentencePiece model.
        left_out = {*languages, MASK}
        entries |= {
            index
            for index in indices
            if not (tokens[index] in left_out or tokens[index].startswith(_ROW))
        }
    # The run's id of each id of the folder: special, text, and then language and other tokens.
    order = [*SPECIAL_ORDER, *sorted(entries)]
    after_entries = len(order)
    order += [index for index in indices if index not in entries]
    names = [tokens[index] for index in order]

    ids: dict[str, object] = {f"{role}_token_id": index for index, role in enumerate(_ROLES[:3])}
    ids["decoder_start_token_id"] = ids["eos_token_id"]
    tokenizer: dict[str, object] = {
        "src_lang": tags[0].strip("_"),
        "tgt_lang": tags[1].strip("_"),
        **{f"{role}_token": names[index] for index, role in enumerate(_ROLES)},
        "sep_token": SPECIAL[EOS],
        "clean_up_tokenization_spaces": False,
    }
    if code is not None:
        tokenizer |= {"tokenizer_class": "M2M100Tokenizer", "language_codes": code}
    else:
        flags = {"normalized": False, "rstrip": False, "single_word": False, "special": True}
        tokenizer |= {
            "tokenizer_class": "NllbTokenizer",
            "legacy_behaviour": finished.tokenizer.tag_is_last,
            "cls_token": SPECIAL[BOS],
            "mask_token": MASK,
            # Of transformers 4 and 5; the ids are needed because 5 puts the mask token first.
            "additional_special_tokens": languages,
            "extra_special_tokens": languages,
            "added_tokens_decoder": {
                str(index): {"content": name, "lstrip": name == MASK, **flags}
                for index, name in enumerate(names)
                if index < FIRST_TEXT or (index >= after_entries and not name.startswith(_ROW))
            },
        }
    settings = {
        "config.json": {
            "architectures": ["M2M100ForConditionalGeneration"],
            "model_type": "m2m_100",
            "vocab_size": len(order),
            "tie_word_embeddings": True,
            **ids,
        },
        "generation_config.json": {
            **ids,
            "forced_bos_token_id": names.index(tags[1]),
            "suppress_tokens": [SPECIAL_ORDER.index(special) for special in (PAD, UNK, BOS)],
        },
        "tokenizer_config.json": tokenizer,
    }
    tensors = map_tensor_names(finished.config.model).items()
    weights = {theirs: finished.weights[ours] for ours, theirs in tensors}
    weights[hf.SHARED] = weights[hf.SHARED][order]
    hf.write_folder(finished, folder, weights, settings)
    if code is not None:
        vocabulary = {name: index for index, name in enumerate(names[:after_entries])}
        write_json(folder / VOCABULARY_FILE, vocabulary)
    model: bytes = processor.serialized_model_proto()
    messages = [message for _, message in read_tokens(model)]
    spm = replace_tokens(model, [messages[index] for index in texts], (UNK, BOS, EOS))
    (folder / SPM_FILE).write_bytes(spm)
