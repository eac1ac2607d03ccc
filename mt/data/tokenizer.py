"""Tokenizer of a run: one vocabulary per side, stored in a folder with checksums."""

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from mt.config.tokenizer import TokenizerConfig
from mt.data.pairs import SentencePair
from mt.data.tokenizer_training import train_model
from mt.data.vocabulary import Vocabulary
from mt.errors import RunError
from mt.files import read_bytes, read_json, replacing, write_json
from mt.runs import LARGEST_MODEL, TokenizerManifest

Pairs = Callable[[], Iterator[SentencePair]]
"""Opens a corpus from its first pair."""
_FORMAT = 1
_MANIFEST = "tokenizer.json"
JOINT, SOURCE, TARGET = "joint.model", "source.model", "target.model"
TAG_LAST = "joint_tag_last.model"
_LAYOUTS = ([JOINT], [SOURCE, TARGET], [TAG_LAST])
TRAINING_TEXT: dict[str, Callable[[Iterator[SentencePair]], Iterator[str]]] = {
    JOINT: lambda pairs: (line for pair in pairs for line in (pair.source, pair.target)),
    TAG_LAST: lambda pairs: TRAINING_TEXT[JOINT](pairs),
    SOURCE: lambda pairs: (pair.source for pair in pairs),
    TARGET: lambda pairs: (pair.target for pair in pairs),
}
"""Training text of each model file."""


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
    def load(cls, folder: Path) -> "Tokenizer":
        """Read a tokenizer folder; raise `RunError` if it is missing, damaged or foreign."""
        sums = _read_manifest(folder)
        vocabularies = [_read_vocabulary(folder / name, sums[name]) for name in sums]
        lines = "".join(f"{name} {checksum}\n" for name, checksum in sums.items())
        fingerprint = hashlib.sha256(lines.encode()).hexdigest()
        last = TAG_LAST in sums
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

    def encode_source(self, lines: Sequence[str]) -> list[list[int]]:
        """Return the ids of each source line: the tag if there is one, the text, EOS."""
        encoded = self.source.encode(lines)
        if self.tag is None:
            return encoded
        number = self.source.tag_id(self.tag)
        return [[*ids, number] if self.tag_is_last else [number, *ids] for ids in encoded]

    def encode_target(self, lines: Sequence[str]) -> list[list[int]]:
        """Return the ids of each target line: its tag if there is one, the text, EOS."""
        encoded, prefix = self.target.encode(lines), self.target_prefix
        return [[*prefix, *ids] for ids in encoded] if prefix else encoded

    def decode_source(self, ids: Sequence[int]) -> str:
        """Return the source text of `ids` up to the first EOS."""
        return self.source.decode(ids)

    def decode_target(self, ids: Sequence[int]) -> str:
        """Return the target text of `ids` up to the first EOS; any sequence of ids is valid.

        Bytes that form no character are left out.
        """
        return self.target.decode(ids, errors="ignore")


def train_tokenizer(pairs: Pairs, folder: Path, *, config: TokenizerConfig, seed: int) -> Tokenizer:
    """Train the vocabularies, write them into `folder` and load them.

    Equal pairs, config and seed give equal files. Raises `DataError` if there is no text,
    `ConfigError` if the vocabulary is too small for the characters.
    """
    names = _LAYOUTS[0] if config.vocabulary == "joint" else _LAYOUTS[1]
    models = {
        name: train_model(TRAINING_TEXT[name](pairs()), config=config, seed=seed) for name in names
    }
    return write_models(folder, models)


def copy_tokenizer(source: Path, folder: Path) -> Tokenizer:
    """Copy the tokenizer of a run folder or tokenizer folder into `folder` and load it.

    Raises `RunError` if a file in `source` is missing or damaged.
    """
    return write_models(folder, read_models(source))


def read_models(source: Path) -> dict[str, bytes]:
    """Return the model files of a run folder or tokenizer folder after loading them."""
    inside = source / "tokenizer"
    original = inside if inside.is_dir() else source
    Tokenizer.load(original)
    return {name: (original / name).read_bytes() for name in _read_manifest(original)}


def write_models(folder: Path, models: dict[str, bytes]) -> Tokenizer:
    """Write a tokenizer of serialized SentencePiece models by file name, and load it.

    Raises `RunError` if `Vocabulary.from_model` rejects one.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for name, model in models.items():
        with replacing(folder / name) as temporary:
            temporary.write_bytes(model)
    sums = {name: hashlib.sha256(model).hexdigest() for name, model in models.items()}
    # Last, since a folder without manifest is no tokenizer.
    write_json(folder / _MANIFEST, {"format": _FORMAT, "sha256": sums})
    return Tokenizer.load(folder)


def _read_manifest(folder: Path) -> dict[str, str]:
    """Return the SHA-256 of each model file, source before target."""
    path = folder / _MANIFEST
    if not folder.is_dir():
        raise RunError(f"{folder}: no such folder")
    if not path.is_file():
        raise RunError(f"{folder}: no tokenizer is here (`{_MANIFEST}` is missing)")
    manifest = read_json(path, TokenizerManifest)
    if manifest.format != _FORMAT or list(manifest.sha256) not in _LAYOUTS:
        raise RunError(f"{path}: this version of mt cannot read its format")
    return manifest.sha256


def _read_vocabulary(path: Path, checksum: str) -> Vocabulary:
    if not path.is_file():
        raise RunError(f"{path}: missing; restore it, the tokenizer cannot be used without it")
    model = read_bytes(path, limit=LARGEST_MODEL)
    if hashlib.sha256(model).hexdigest() != checksum:
        raise RunError(f"{path}: damaged (its SHA-256 is not the one in `{_MANIFEST}`)")
    try:
        return Vocabulary.from_model(model)
    except ValueError as error:
        raise RunError(f"{path}: {error}") from error
