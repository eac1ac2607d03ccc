"""Tokenizer of a run: one vocabulary per side, stored in a folder with checksums."""

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from mt.config import Config
from mt.config.tokenizer import TokenizerConfig
from mt.data.pairs import SentencePair
from mt.data.tokenizer_training import extend_model, train_model
from mt.data.vocabulary import Vocabulary
from mt.errors import ConfigError, RunError, listed
from mt.files import read_bytes, read_json, replacing, write_json
from mt.runs import LARGEST_MODEL, TokenizerManifest

Pairs = Callable[[], Iterator[SentencePair]]
"""Opens a corpus from its first pair."""
_FORMAT = 1
_MANIFEST = "tokenizer.json"
_JOINT, _SOURCE, _TARGET = "joint.model", "source.model", "target.model"
_LAYOUTS = ([_JOINT], [_SOURCE, _TARGET])
_LINES: dict[str, Callable[[Iterator[SentencePair]], Iterator[str]]] = {
    _JOINT: lambda pairs: (line for pair in pairs for line in (pair.source, pair.target)),
    _SOURCE: lambda pairs: (pair.source for pair in pairs),
    _TARGET: lambda pairs: (pair.target for pair in pairs),
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

    @classmethod
    def load(cls, folder: Path) -> "Tokenizer":
        """Read a tokenizer folder; raise `RunError` if it is missing, damaged or foreign."""
        sums = _read_manifest(folder)
        vocabularies = [_read_vocabulary(folder / name, sums[name]) for name in sums]
        lines = "".join(f"{name} {checksum}\n" for name, checksum in sums.items())
        fingerprint = hashlib.sha256(lines.encode()).hexdigest()
        return cls(vocabularies[0], vocabularies[-1], fingerprint)

    def tagged(self, tag: str | None) -> "Tokenizer":
        """Return a tokenizer that puts `tag` in front of each source line.

        Raises `ConfigError` if the vocabulary has no token for it.
        """
        if tag is None:
            return self
        known = self.source.tags
        if tag not in known:
            there = f"only {listed(known)}" if known else "none"
            raise ConfigError(
                f"the tag `{tag}` has no token: of tags, the tokenizer has {there}; "
                "`tokenizer.tags` reserves them before a training"
            )
        fingerprint = hashlib.sha256(f"{self.fingerprint} {tag}".encode()).hexdigest()
        return replace(self, fingerprint=fingerprint, tag=tag)

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
        number = self.source.tags[self.tag]
        return [[number, *ids] for ids in encoded]

    def encode_target(self, lines: Sequence[str]) -> list[list[int]]:
        """Return the ids of each target line, with EOS and without BOS."""
        return self.target.encode(lines)

    def decode_source(self, ids: Sequence[int]) -> str:
        """Return the source text of `ids` up to the first EOS."""
        return self.source.decode(ids)

    def decode_target(self, ids: Sequence[int]) -> str:
        """Return the target text of `ids` up to the first EOS; any sequence of ids is valid.

        Bytes that form no character are left out.
        """
        return self.target.decode(ids, errors="ignore")


def provide_tokenizer(config: Config, folder: Path, *, pairs: Pairs) -> Tokenizer:
    """Return the tokenizer in `folder`; create it as the config says if it does not exist.

    It is trained on `pairs`, or copied from `tokenizer.from` or an initial run, and extended if the
    config adds tokens or tags. Raises ConfigError or DataError if it cannot be created.
    """
    if any(folder.glob("*.json")):
        return Tokenizer.load(folder)
    settings, seed = config.tokenizer, config.seed
    if config.tokenizer_origin is None:
        return train_tokenizer(pairs, folder, config=settings, seed=seed)
    _, origin = config.tokenizer_origin
    if settings.added_tokens or settings.tags:
        return extend_tokenizer(origin, folder, pairs=pairs, config=settings, seed=seed)
    return copy_tokenizer(origin, folder)


def train_tokenizer(pairs: Pairs, folder: Path, *, config: TokenizerConfig, seed: int) -> Tokenizer:
    """Train the vocabularies, write them into `folder` and load them.

    Equal pairs, config and seed give equal files. Raises `DataError` if there is no text,
    `ConfigError` if the vocabulary is too small for the characters.
    """
    names = _LAYOUTS[0] if config.vocabulary == "joint" else _LAYOUTS[1]
    models = {name: train_model(_LINES[name](pairs()), config=config, seed=seed) for name in names}
    return _write(folder, models)


def extend_tokenizer(
    source: Path, folder: Path, *, pairs: Pairs, config: TokenizerConfig, seed: int
) -> Tokenizer:
    """Copy a tokenizer like `copy_tokenizer`, and add the config's `tags` and `added_tokens`.

    Equal source, pairs, config and seed give equal files. Raises also `DataError` if there is no
    text to learn from.
    """
    models = {
        name: extend_model(model, _LINES[name](pairs()), config=config, seed=seed)
        for name, model in _read_models(source).items()
    }
    return _write(folder, models)


def copy_tokenizer(source: Path, folder: Path) -> Tokenizer:
    """Copy the tokenizer of a run folder or tokenizer folder into `folder` and load it.

    Raises `RunError` if a file in `source` is missing or damaged.
    """
    return _write(folder, _read_models(source))


def write_tokenizer(folder: Path, *, source: bytes, target: bytes) -> Tokenizer:
    """Write a tokenizer of two serialized SentencePiece models and load it.

    Raises `RunError` if `Vocabulary.from_model` rejects one.
    """
    return _write(folder, {_SOURCE: source, _TARGET: target})


def _read_models(source: Path) -> dict[str, bytes]:
    """Return the model files of a run folder or tokenizer folder after loading them."""
    inside = source / "tokenizer"
    original = inside if inside.is_dir() else source
    Tokenizer.load(original)
    return {name: (original / name).read_bytes() for name in _read_manifest(original)}


def copied_layout(source: Path) -> Literal["joint", "separate"]:
    """Return the layout of the vocabularies of a run folder or tokenizer folder."""
    return "joint" if len(_read_models(source)) == 1 else "separate"


def _write(folder: Path, models: dict[str, bytes]) -> Tokenizer:
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
