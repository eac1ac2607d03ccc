"""Tokenizer of a run: SentencePiece vocabularies, one per side, in a folder with checksums.

Conversion between text in its normal form and ids is lossless. SentencePiece (Kudo and Richardson
2018) marks a space by U+2581, so that character is escaped in text. Decoding is done here instead
of in SentencePiece, so that it is defined for all ids.
"""

import hashlib
import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import takewhile
from pathlib import Path
from typing import Any, Literal

import sentencepiece

from mt.config.data import TERM_TAGS
from mt.data.normalization import list_rules, normalize_source, normalize_target
from mt.data.sentencepiece_model import NORMAL_FORM, with_rules, without_space_in_front
from mt.data.words import is_unspaced
from mt.errors import ConfigError, RunError, did_you_mean, listed
from mt.files import read_bytes, read_json, replace_file, write_json
from mt.languages import script_of
from mt.runs import LARGEST_MODEL, TOKENIZER_FOLDER, TokenizerManifest
from mt.special_ids import BOS, EOS, PAD, UNK

SPACE_MARK = "\u2581"
_ESCAPE = "\U000f2581"
"""Private-use character; in text, it is escaped as well."""
_ESCAPED_MARK = _ESCAPE + "_"
_ESCAPED_ESCAPE = _ESCAPE + "="

UNREADABLE = "\N{REPLACEMENT CHARACTER}"
_LINES_WORTH_THREADS = 64
_SHOWN_TAGS = 8
_SCRIPT_SHARE = 0.02
"""Share of the letters of all tokens from which on the training text was in a script."""
_FORMAT = 1
_MANIFEST = "tokenizer.json"
JOINT, SOURCE, TARGET = "joint.model", "source.model", "target.model"
SOURCE_SPM, TARGET_SPM = "source.spm", "target.spm"
"""SentencePiece models for other programs, named as by OPUS-MT."""
TAG_LAST = "joint_tag_last.model"
LAYOUTS = ([JOINT], [SOURCE, TARGET], [TAG_LAST])


def escape(text: str) -> str:
    """Return `text` without U+2581; `unescape` is the inverse."""
    return text.replace(_ESCAPE, _ESCAPED_ESCAPE).replace(SPACE_MARK, _ESCAPED_MARK)


def unescape(text: str) -> str:
    """Undo `escape`; an escape character without a known escape is unchanged."""
    return text.replace(_ESCAPED_MARK, SPACE_MARK).replace(_ESCAPED_ESCAPE, _ESCAPE)


@dataclass(frozen=True)
class Vocabulary:
    """Tokens of one side, or of both."""

    processor: Any
    token_bytes: tuple[bytes, ...]
    is_normal: bool = False
    """True if `Tokenizer` encodes the normal form of a text, and not the text itself."""

    @classmethod
    def from_model(cls, model: bytes) -> "Vocabulary":
        """Read a serialized SentencePiece model.

        Raises `ValueError` if it is not one, or its special ids are not those of `mt.special_ids`.
        """
        try:
            processor = sentencepiece.SentencePieceProcessor(model_proto=model)
            special = tuple(
                getattr(processor, name)() for name in ("pad_id", "unk_id", "bos_id", "eos_id")
            )
        except RuntimeError as error:
            raise ValueError("is no SentencePiece model") from error
        if special != (PAD, UNK, BOS, EOS):
            raise ValueError("is a SentencePiece model of other special ids")
        token_bytes = []
        for token in range(processor.get_piece_size()):
            text: str = processor.id_to_piece(token)
            if processor.is_byte(token):
                token_bytes.append(bytes([int(text[1:-1], base=16)]))
            elif processor.is_control(token):
                token_bytes.append(b"")
            elif processor.is_unknown(token):
                token_bytes.append(UNREADABLE.encode())
            else:
                token_bytes.append(text.replace(SPACE_MARK, " ").encode())
        return cls(processor, tuple(token_bytes), NORMAL_FORM in model)

    def __len__(self) -> int:
        return len(self.token_bytes)

    @property
    def algorithm(self) -> str:
        """`bpe` if the scores are ranks 0, -1, -2 and so on, in any order, else `unigram`."""
        scores = sorted(map(self.processor.get_score, self.texts()), reverse=True)
        return "bpe" if scores == [-rank for rank in range(len(scores))] else "unigram"

    @cached_property
    def tags(self) -> dict[str, int]:
        """Ids of the tags, tokens that no text produces and that decode to nothing."""
        ids = range(max(PAD, UNK, BOS, EOS) + 1, len(self))
        return {
            self.processor.id_to_piece(token): token
            for token in ids
            if self.processor.is_control(token)
        }

    def tag_id(self, tag: str) -> int:
        """Return the id of a tag; raise ConfigError if the vocabulary has no token for it."""
        known = self.tags
        if tag in known:
            return known[tag]
        there = f"only {listed([*known][:_SHOWN_TAGS])}" if known else "none"
        more = f" and {len(known) - _SHOWN_TAGS} more" if len(known) > _SHOWN_TAGS else ""
        raise ConfigError(
            f"the tag `{tag}` has no token: of tags, the tokenizer has {there}{more}; "
            f"`tokenizer.tags` reserves them before a training{did_you_mean(tag, known)}"
        )

    def texts(self) -> dict[int, str]:
        """Return the tokens that are text, in SentencePiece's notation, by id."""
        processor = self.processor
        return {
            token: processor.id_to_piece(token)
            for token in range(len(self))
            if not (
                processor.is_control(token)
                or processor.is_unknown(token)
                or processor.is_byte(token)
            )
        }

    @cached_property
    def characters(self) -> frozenset[str]:
        """Characters of the text tokens; all others become bytes or UNK."""
        return frozenset("".join(self.texts().values()))

    @cached_property
    def byte_ids(self) -> frozenset[int]:
        """Ids of the tokens of one byte; the bytes of all others form characters."""
        return frozenset(filter(self.processor.is_byte, range(len(self))))

    @cached_property
    def inside(self) -> Any:
        """Processor that adds no space in front of a text."""
        model = without_space_in_front(self.processor.serialized_model_proto())
        return sentencepiece.SentencePieceProcessor(model_proto=model)

    @cached_property
    def scripts(self) -> frozenset[str]:
        """Scripts of the tokens whose other letters are spelled in bytes; see `script_of`."""
        counts = Counter[str]()
        if self.byte_ids:
            for letter, count in Counter("".join(self.texts().values())).items():
                if letter.isalpha():
                    counts[script_of(letter)] += count
        return frozenset(s for s, n in counts.items() if n > _SCRIPT_SHARE * counts.total())

    def encode(self, lines: Sequence[str]) -> list[list[int]]:
        """Return the ids of each line, with EOS at the end."""
        threads = -1 if len(lines) >= _LINES_WORTH_THREADS else 1  # -1: all cores
        escaped = [escape(line) for line in lines]
        ids: list[list[int]] = self.processor.encode(escaped, add_eos=True, num_threads=threads)
        return ids

    def decode(
        self, ids: Sequence[int], *, errors: Literal["replace", "ignore"] = "replace"
    ) -> str:
        """Return the text of `ids` up to the first EOS, without PAD and BOS.

        UNK becomes U+FFFD; `errors` says what becomes of invalid UTF-8.
        """
        if EOS in ids:
            ids = [*takewhile(EOS.__ne__, ids)]
        assert min(ids, default=0) >= 0, "an id is never negative"
        content = b"".join([self.token_bytes[token] for token in ids])
        # Encoding adds one space in front, so that a word has the same token everywhere.
        return unescape(content.decode("utf-8", errors=errors).removeprefix(" "))

    def has_invalid_bytes(self, ids: Sequence[int]) -> bool:
        """Return whether some bytes of the text of `ids` form no character."""
        has_bytes = not self.byte_ids.isdisjoint(ids)
        return has_bytes and self.decode(ids) != self.decode(ids, errors="ignore")


@dataclass(frozen=True)
class Tokenizer:
    """Conversion between text and ids; a joint vocabulary serves both sides."""

    source: Vocabulary
    target: Vocabulary
    fingerprint: str
    """SHA-256 over the model files and the tag; equal fingerprints give equal ids."""
    tag: str | None = None
    """Token in front of each source line."""
    tag_is_last: bool = False
    """True if the tag follows EOS instead, as in early folders of NLLB."""
    target_prefix: tuple[int, ...] = ()
    """Ids in front of each target line: its tag, or none."""

    @classmethod
    def load(cls, folder: Path, expected: str | None = None) -> "Tokenizer":
        """Read a tokenizer folder; raise `RunError` if it is missing, damaged or foreign.

        `expected` is the recorded fingerprint, if there is one.
        """
        models = _read_files(folder)
        sums = {name: hashlib.sha256(model).hexdigest() for name, model in models.items()}
        lines = "".join(f"{name} {checksum}\n" for name, checksum in sums.items())
        fingerprint = hashlib.sha256(lines.encode()).hexdigest()
        if expected not in (None, fingerprint):
            raise RunError(
                f"{folder}: is the tokenizer of another run (fingerprint {fingerprint[:12]}, the "
                f"model was trained with {expected[:12]})"
            )
        vocabularies = []
        for name, model in models.items():
            try:
                vocabularies.append(Vocabulary.from_model(model))
            except ValueError as error:
                raise RunError(f"{folder / name}: {error}") from error
        last = TAG_LAST in models
        return cls(vocabularies[0], vocabularies[-1], fingerprint, tag_is_last=last)

    def tagged(self, tag: str | None, target_tag: str | None = None) -> "Tokenizer":
        """Return a tokenizer that puts tags in front of the lines of a side.

        Raises `ConfigError` if the vocabulary has no token for one.
        """
        if tag is None and target_tag is None:
            return self
        prefix = () if target_tag is None else (self.target.tag_id(target_tag),)
        if tag is not None:
            self.source.tag_id(tag)
        tags = f"{tag}" if target_tag is None else f"{tag} {target_tag}"
        fingerprint = hashlib.sha256(f"{self.fingerprint} {tags}".encode()).hexdigest()
        return replace(self, fingerprint=fingerprint, tag=tag, target_prefix=prefix)

    @property
    def tags_in_front(self) -> int:
        """Number of tags before the text of a source."""
        return int(self.tag is not None and not self.tag_is_last)

    @property
    def source_size(self) -> int:
        """Tokens in the source vocabulary."""
        return len(self.source)

    @property
    def target_size(self) -> int:
        """Tokens in the target vocabulary."""
        return len(self.target)

    def normalize_source(self, text: str) -> str:
        """Return a source text as its vocabulary encodes it: in its normal form, or unchanged."""
        return normalize_source(text) if self.source.is_normal else text

    def encode_source(self, lines: Sequence[str]) -> list[list[int]]:
        """Return the ids of each source line: the tag if there is one, the text, EOS."""
        encoded = self.source.encode([*map(self.normalize_source, lines)])
        if self.tag is None:
            return encoded
        tag_id = self.source.tag_id(self.tag)
        return [[*ids, tag_id] if self.tag_is_last else [tag_id, *ids] for ids in encoded]

    @cached_property
    def term_ids(self) -> tuple[int, int] | None:
        """Ids of `TERM_TAGS` in the source vocabulary, or None if it lacks them."""
        first, last = map(self.source.tags.get, TERM_TAGS)
        return None if first is None or last is None else (first, last)

    def encode_term(self, term: str) -> list[int]:
        """Return the source tokens of a target term, cut as inside a target text.

        A space is in front, but for scripts without spaces between words.
        """
        processor = self.source.inside if is_unspaced(term[0]) else self.source.processor
        ids: list[int] = processor.encode(escape(normalize_target(term)))
        return ids

    def encode_target(self, lines: Sequence[str]) -> list[list[int]]:
        """Return the ids of each target line: its tag if there is one, the text, EOS."""
        if self.target.is_normal:
            lines = [*map(normalize_target, lines)]
        encoded, prefix = self.target.encode(lines), self.target_prefix
        return [[*prefix, *ids] for ids in encoded] if prefix else encoded

    def write_for_others(self, folder: Path) -> None:
        """Write SOURCE_SPM and TARGET_SPM, which normalize a text themselves."""
        for name, vocabulary, normalize in (
            (SOURCE_SPM, self.source, normalize_source),
            (TARGET_SPM, self.target, normalize_target),
        ):
            model: bytes = vocabulary.processor.serialized_model_proto()
            if vocabulary.is_normal:
                model = with_rules(model, list_rules(normalize))
            (folder / name).write_bytes(model)

    def decode_source(self, ids: Sequence[int]) -> str:
        """Return the source text of `ids` up to the first EOS."""
        return self.source.decode(ids)

    def decode_target(self, ids: Sequence[int]) -> str:
        """Return the target text of `ids` up to the first EOS, without invalid bytes."""
        return self.target.decode(ids, errors="ignore")


def copy_tokenizer(source: Path, folder: Path) -> Tokenizer:
    """Copy the tokenizer of a run folder or tokenizer folder into `folder` and load it."""
    return write_models(folder, read_models(source))


def read_models(source: Path) -> dict[str, bytes]:
    """Return the model files of a run folder or tokenizer folder after loading them."""
    original = find_tokenizer(source)
    Tokenizer.load(original)
    return _read_files(original)


def find_tokenizer(source: Path) -> Path:
    """Return the tokenizer folder in a run folder, or the folder itself if it has none."""
    inside = source / TOKENIZER_FOLDER
    return inside if inside.is_dir() else source


def write_models(folder: Path, models: dict[str, bytes]) -> Tokenizer:
    """Write a tokenizer of serialized SentencePiece models by file name, and load it.

    Raises `RunError` if `Vocabulary.from_model` rejects one.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for name, model in models.items():
        with replace_file(folder / name) as temporary:
            temporary.write_bytes(model)
    sums = {name: hashlib.sha256(model).hexdigest() for name, model in models.items()}
    # Last, since a folder without manifest is no tokenizer.
    write_json(folder / _MANIFEST, {"format": _FORMAT, "sha256": sums})
    return Tokenizer.load(folder)


def _read_files(folder: Path) -> dict[str, bytes]:
    """Return the contents of the model files by name, verified, source before target."""
    path = folder / _MANIFEST
    if not folder.is_dir():
        raise RunError(f"{folder}: no such folder")
    if not os.path.lexists(path):
        raise RunError(f"{folder}: no tokenizer is here (`{_MANIFEST}` is missing)")
    manifest = read_json(path, TokenizerManifest)
    if manifest.format != _FORMAT or list(manifest.sha256) not in LAYOUTS:
        raise RunError(f"{path}: this version of mt cannot read its format")
    models = {}
    for name, checksum in manifest.sha256.items():
        path = folder / name
        if not os.path.lexists(path):
            raise RunError(f"{path}: missing; restore it, the tokenizer cannot be used without it")
        models[name] = read_bytes(path, limit=LARGEST_MODEL)
        if hashlib.sha256(models[name]).hexdigest() != checksum:
            raise RunError(f"{path}: damaged (its SHA-256 is not the one in `{_MANIFEST}`)")
    return models
