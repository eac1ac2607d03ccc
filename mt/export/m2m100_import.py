"""Import of an M2M-100 or NLLB-200 folder (Hugging Face `m2m_100`) as a finished run.

Fan et al. 2021, "Beyond English-Centric Multilingual Machine Translation"; NLLB Team 2022, "No
Language Left Behind". The run translates like the folder under transformers: a source begins with
the token of its language, and a translation with that of the target language.
"""

import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, islice, pairwise
from pathlib import Path
from typing import Any, Literal

from pydantic import Field
from torch import Tensor

from mt.config.data import language_of
from mt.config.tokenizer import TokenizerConfig
from mt.data.corpus_files import LineReader
from mt.data.sentencepiece_model import (
    CONTROL,
    SPECIAL,
    in_rank_order,
    is_bpe,
    new_token,
    tokens_of,
    with_tokens,
)
from mt.data.tokenizer import JOINT, TAG_LAST, Vocabulary, write_models
from mt.errors import DataError, RunError, UserError, did_you_mean, listed
from mt.export.hugging_face import (
    CODES,
    FIRST_TEXT,
    MASK,
    SPECIAL_ORDER,
    SPM_FILE,
    VOCABULARY_FILE,
    FolderSettings,
    GenerationSettings,
    Imported,
    StackSettings,
    check_shape,
    decoding_of,
    imported_config,
    is_language,
    read_bytes,
    read_generation,
    read_json,
    read_settings,
    read_shapes,
    read_weights,
    row_token,
    settings_in_range,
    tensor_names,
    tensor_of,
    write_run,
)
from mt.export.marian import DECODER_EMBEDDING, ENCODER_EMBEDDING, LM_HEAD, SHARED
from mt.files import aside, existing_file, put_in_place
from mt.languages import base_language
from mt.special_ids import BOS, EOS, PAD, UNK
from mt.training.run_folder import RunFolder

_LINES_AT_ONCE = 10_000


@dataclass(frozen=True, slots=True)
class Pruning:
    """Languages to keep, and texts in them whose tokens are kept."""

    languages: tuple[str, ...]
    samples: tuple[Path, ...]


def import_m2m100(
    path: Path,
    run: Path,
    *,
    source: str | None = None,
    target: str | None = None,
    pruning: Pruning | None = None,
) -> Imported:
    """Write the model in the folder `path` as the finished run `run`.

    `source` and `target` are language codes; by default those of the folder. Tokens are equal, and
    logits up to rounding. Raises UserError, and leaves no files, if the folder is damaged, the
    model cannot be expressed, a language is unknown, or `run` exists.
    """
    if run.exists():
        raise RunError(f"{run}: exists already; name a new folder")
    folder = read_m2m100_folder(path)
    tags = [
        folder.language(source or folder.tokenizer.src_lang, "--source-language"),
        folder.language(target or folder.tokenizer.tgt_lang, "--target-language"),
    ]
    ids = [*range(FIRST_TEXT, len(folder.tokens))]
    if pruning is not None:
        languages = [folder.language(code, "--languages") for code in pruning.languages]
        if missing := [tag for tag in tags if tag not in languages]:
            raise UserError(f"--languages lacks {listed(missing)}, a language of the translation")
        ids = folder.used(languages, pruning.samples)
    positions = folder.settings.max_position_embeddings
    given = {"tag": tags[0], "target_tag": tags[1]}
    with settings_in_range(path):
        decoding, notes = decoding_of(folder.generation, positions, **given)
        shape = folder.settings.model(positional="fairseq", decoder_start="eos", residual="pre")
    names = [str(language_of(tag)) for tag in tags]
    algorithm: Literal["bpe", "unigram"] = "bpe" if is_bpe(folder.spm) else "unigram"
    kept = [folder.tokens[number][0] for number in ids]
    tokens = TokenizerConfig(algorithm=algorithm, tags=tuple(filter(is_language, kept)))
    config = imported_config(shape, tokens, decoding, names[0], names[1])
    with aside(run) as temporary:
        new = RunFolder(temporary)
        name = TAG_LAST if folder.tokenizer.legacy_behaviour else JOINT
        tokenizer = write_models(new.tokenizer, {name: folder.model(ids)})
        weights = folder.weights(tensor_names(shape), ids)
        parameters = write_run(
            new, config, tokenizer, weights, longest_source=positions, origin=path
        )
        put_in_place(temporary, run)
    imported = Imported(" to ".join(names), parameters, (*folder.notes, *notes))
    if pruning is None:
        return imported
    before, after = len(folder.tokens), FIRST_TEXT + len(ids)
    full = parameters + (before - after) * folder.settings.d_model
    return replace(imported, tokens=(before, after), full_parameters=full)


class M2M100Settings(StackSettings):
    """Keys of config.json that determine the model, with the defaults of transformers."""

    model_type: Literal["m2m_100"]
    bos_token_id: int = 0
    scale_embedding: bool = True

    def why_not_ours(self) -> str | None:
        """Return the reason why no Transformer of this project has these settings, or None."""
        ids = {f"{SPECIAL[each]}": number for number, each in enumerate(SPECIAL_ORDER)}
        for key, wanted in (
            ("scale_embedding", True),
            ("tie_word_embeddings", True),
            ("bos_token_id", ids[SPECIAL[BOS]]),
            ("pad_token_id", ids[SPECIAL[PAD]]),
            ("eos_token_id", ids[SPECIAL[EOS]]),
            ("decoder_start_token_id", ids[SPECIAL[EOS]]),
        ):
            if (value := getattr(self, key)) != wanted:
                return f"`{key}` is {value}; `mt import` reads models in which it is {wanted}"
        return StackSettings.why_not_ours(self)


class TokenizerSettings(FolderSettings):
    """Keys of tokenizer_config.json and special_tokens_map.json."""

    src_lang: str | None = None
    tgt_lang: str | None = None
    language_codes: Literal["m2m100", "wmt21"] = "m2m100"
    legacy_behaviour: bool = False
    """True for sources that end with EOS and the language, instead of beginning with it."""
    additional_special_tokens: tuple[Any, ...] | None = None
    extra_special_tokens: Any = None
    added_tokens_decoder: dict[int, Any] = Field(default_factory=dict)

    @property
    def special_tokens(self) -> list[str]:
        """Further special tokens in the order of their ids."""
        extra = self.extra_special_tokens
        named = self.additional_special_tokens or (extra if isinstance(extra, list) else ())
        return [_content(each) for each in named]


class AddedToken(FolderSettings):
    """Token of tokenizer.json that is not from its model."""

    id: int
    content: str


class TokenizerFile(FolderSettings):
    """Keys of tokenizer.json."""

    added_tokens: tuple[AddedToken, ...] = ()


def _content(token: Any) -> str:
    """Return the text of a token, which is an object of one or its text."""
    return str(token.get("content") if isinstance(token, dict) else token)


@dataclass(frozen=True, slots=True)
class M2M100Folder:
    """Contents of a folder, without its weights."""

    path: Path
    settings: M2M100Settings
    generation: GenerationSettings
    tokenizer: TokenizerSettings
    spm: bytes
    tokens: list[tuple[str, bytes]]
    """Text and SentencePiece message of each id."""
    embedding: str
    """Name of the embedding matrix among the weights."""
    notes: tuple[str, ...]

    @property
    def languages(self) -> list[str]:
        """Language tokens."""
        return [text for text, _ in self.tokens if is_language(text)]

    def language(self, code: str | None, option: str) -> str:
        """Return the token of a language; raise UserError if the model has none for `code`."""
        if code is None:
            raise UserError(f"{self.path}: names no language; give {option} CODE")
        known = {tag.strip("_"): tag for tag in self.languages}
        if code.strip("_") in known:
            return known[code.strip("_")]
        near = [each for each in known if base_language(each) == base_language(code)]
        near.sort(key=lambda each: not each.startswith(code[:2]))
        guess = f"; did you mean `{near[0]}`?" if near else did_you_mean(code, known)
        raise UserError(f"{option} `{code}`: is not one of the {len(known)} languages{guess}")

    def model(self, ids: Sequence[int]) -> bytes:
        """Return the SentencePiece model of the special tokens and some of the others."""
        messages = [self.tokens[number][1] for number in ids]
        return with_tokens(self.spm, in_rank_order(messages) if is_bpe(self.spm) else messages)

    def weights(self, names: dict[str, str], ids: Sequence[int]) -> dict[str, Tensor]:
        """Return the weights under this project's names, with the rows of some tokens."""
        theirs = read_weights(self.path)
        special = [SPECIAL_ORDER.index(each) for each in sorted(SPECIAL_ORDER)]
        theirs[SHARED] = theirs[self.embedding][[*special, *ids]]
        return {ours: tensor_of(theirs, names[ours], self.path) for ours in names}

    def used(self, languages: Sequence[str], samples: Sequence[Path]) -> list[int]:
        """Return the ids of the text tokens of some texts and of the special tokens to keep.

        Single characters of the scripts of these texts are kept too, and for BPE the tokens by
        whose merges the others are formed. So the segmentation of the texts stays the same. The
        languages of M2M-100 are all kept, because transformers has a fixed list of them.
        """
        vocabulary = Vocabulary.from_model(self.model(range(FIRST_TEXT, len(self.tokens))))
        ids = {text: number for number, text in vocabulary.texts().items()}
        used: set[int] = set()
        lines = chain.from_iterable(LineReader(existing_file(path)) for path in samples)
        while some := list(islice(lines, _LINES_AT_ONCE)):
            used |= set().union(*vocabulary.encode(some))
        kept = {text for text, number in ids.items() if number in used}
        if not kept:
            raise DataError(f"{', '.join(map(str, samples))}: has no text; give a larger sample")
        letters = {_script(each) for each in set().union(*kept) if each.isalpha()}
        kept |= {text for text in ids if len(text) == 1 and _is_of(text, letters)}
        if is_bpe(self.spm):
            scores = {text: vocabulary.processor.get_score(number) for text, number in ids.items()}
            kept |= {part for text in kept for part in merged_parts(text, scores)}
        special = {
            text
            for text, _ in self.tokens[FIRST_TEXT:]
            if text in languages or text.startswith("__") or text == MASK
        }
        return [
            number
            for number, (text, _) in enumerate(self.tokens)
            if text in kept or text in special or vocabulary.processor.is_byte(number)
        ]


def _script(letter: str) -> str:
    return unicodedata.name(letter, "").split(" ")[0]


def _is_of(character: str, scripts: set[str]) -> bool:
    return not character.isalpha() or _script(character) in scripts


def merged_parts(text: str, scores: dict[str, float]) -> Iterator[str]:
    """Yield the tokens by whose merges BPE forms a token, characters included."""
    parts = list(text)
    yield from parts
    while len(parts) > 1:
        pairs = [left + right for left, right in pairwise(parts)]
        best = max(range(len(pairs)), key=lambda place: scores.get(pairs[place], float("-inf")))
        if pairs[best] not in scores:
            return
        parts[best : best + 2] = [pairs[best]]
        yield pairs[best]


def read_m2m100_folder(path: Path) -> M2M100Folder:
    """Read a folder without its weights; raise RunError if a file is missing or damaged."""
    settings = read_settings(path / "config.json", M2M100Settings)
    if reason := settings.why_not_ours():
        raise RunError(f"{path}: {reason}")
    shapes = read_shapes(path)
    shared = (SHARED, ENCODER_EMBEDDING, DECODER_EMBEDDING, LM_HEAD)
    embedding = next((name for name in shared if name in shapes), SHARED)
    shape = tensor_of(shapes, embedding, path)
    # Before a token is made for each row of config.json.
    check_shape(path, embedding, shape, (settings.vocab_size, settings.d_model))
    described = path / "tokenizer_config.json"
    tokenizer = TokenizerSettings()
    if described.exists():
        tokenizer = read_settings(described, TokenizerSettings)
    spm = read_bytes(path / SPM_FILE)
    try:
        given = list(tokens_of(spm))
    except ValueError as error:
        raise RunError(f"{path / SPM_FILE}: is no SentencePiece model") from error
    first = [SPECIAL[each] for each in (UNK, BOS, EOS)]
    if [text for text, _ in given[: len(first)]] != first:
        raise RunError(f"{path / SPM_FILE}: does not begin with {listed(first)}")
    texts = dict(given[len(first) :])
    notes: tuple[str, ...] = ()
    ids = {SPECIAL[each]: number for number, each in enumerate(SPECIAL_ORDER)}
    if (path / VOCABULARY_FILE).exists():
        entries = _read_entries(path / VOCABULARY_FILE, ids)
        if missing := [text for text in texts if text not in entries]:
            notes = (
                f"{len(missing)} tokens of {SPM_FILE} are not in {VOCABULARY_FILE} and are left "
                f"out, such as {listed(missing[:3])}; transformers reads them as unknown",
            )
        ids = entries
    else:
        ids |= {text: number for number, text in enumerate(texts, start=FIRST_TEXT)}
    added = _added_tokens(path, tokenizer, ids)
    tokens = _by_id(path, {**ids, **added}, settings.vocab_size)
    messages = [
        (text, texts[text] if text in texts and text not in added else new_token(text, CONTROL))
        for text in tokens
    ]
    folder = M2M100Folder(
        path, settings, read_generation(path), tokenizer, spm, messages, embedding, notes
    )
    if not folder.languages:
        raise RunError(f"{path}: tokenizer_config.json and the files beside it name no language")
    return folder


def _read_entries(path: Path, special: dict[str, int]) -> dict[str, int]:
    ids = read_json(path)
    if not isinstance(ids, dict) or not all(type(number) is int for number in ids.values()):
        raise RunError(f"{path}: damaged, does not map tokens to ids")
    for text, number in special.items():
        if ids.get(text) != number:
            raise RunError(f"{path}: `{text}` has the id {ids.get(text)}, not {number}")
    return dict(ids)


def _added_tokens(path: Path, tokenizer: TokenizerSettings, ids: dict[str, int]) -> dict[str, int]:
    """Return the ids of language and mask tokens.

    The first of these files that has ids counts: tokenizer.json, tokenizer_config.json,
    added_tokens.json. Without ids, languages follow the other tokens, in the order of the list of
    special tokens or, for M2M-100, of transformers; the mask token is the last one.
    """
    found: dict[str, int] = {}
    if (path / "tokenizer.json").exists():
        listing = read_settings(path / "tokenizer.json", TokenizerFile)
        found = {token.content: token.id for token in listing.added_tokens}
    if not any(map(is_language, found)):
        found = {_content(each): number for number, each in tokenizer.added_tokens_decoder.items()}
    if not any(map(is_language, found)) and (path / "added_tokens.json").exists():
        found = _read_entries(path / "added_tokens.json", {})
    if any(map(is_language, found)):
        return {text: number for text, number in found.items() if text not in SPECIAL.values()}
    if (path / VOCABULARY_FILE).exists():
        names = [f"__{code}__" for code in CODES[tokenizer.language_codes]]
    else:
        others = path / "special_tokens_map.json"
        lists = [tokenizer.special_tokens]
        if others.exists():
            lists.append(read_settings(others, TokenizerSettings).special_tokens)
        names = [text for text in next(filter(None, lists), []) if text not in {*ids, MASK}]
        names = [*names, MASK] if names else []
    return {text: number for number, text in enumerate(names, start=max(ids.values()) + 1)}


def _by_id(path: Path, ids: dict[str, int], rows: int) -> list[str]:
    """Return the token of each row; raise RunError if a token has no row or not one of its own."""
    tokens: dict[int, str] = {}
    for text, number in ids.items():
        if not 0 <= number < rows:
            raise RunError(
                f"{path}: token `{text}` has the id {number}, and the model has {rows} rows"
            )
        if number in tokens:
            raise RunError(f"{path}: `{tokens[number]}` and `{text}` have the same id, {number}")
        tokens[number] = text
    return [tokens.get(number, row_token(number)) for number in range(rows)]
