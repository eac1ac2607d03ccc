"""The tokenizer of a run: its vocabularies, and the folder that holds them."""

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from mt.config import Config
from mt.config.tokenizer import TokenizerConfig
from mt.data.pairs import SentencePair
from mt.data.tokenizer_training import extend_model, train_model
from mt.data.vocabulary import Vocabulary
from mt.errors import ConfigError, RunError, listed
from mt.files import replacing, write_json

_FORMAT = 1
_MANIFEST = "tokenizer.json"
_JOINT, _SOURCE, _TARGET = "joint.model", "source.model", "target.model"
_LAYOUTS = ([_JOINT], [_SOURCE, _TARGET])
_LINES: dict[str, Callable[[Iterator[SentencePair]], Iterator[str]]] = {
    _JOINT: lambda pairs: (line for pair in pairs for line in (pair.source, pair.target)),
    _SOURCE: lambda pairs: (pair.source for pair in pairs),
    _TARGET: lambda pairs: (pair.target for pair in pairs),
}
"""What the vocabulary of each model file is learnt from."""


@dataclass(frozen=True)
class Tokenizer:
    """Text to ids and back, for both sides; with a joint vocabulary both are the same."""

    source: Vocabulary
    target: Vocabulary
    fingerprint: str
    """SHA-256 over the model files, and the tag: equal ids come of equal fingerprints."""
    tag: str | None = None
    """The token that stands in front of each source line."""

    @classmethod
    def load(cls, folder: Path) -> "Tokenizer":
        """Read a tokenizer folder; raise `RunError` where it is missing, damaged or foreign."""
        sums = _read_manifest(folder)
        vocabularies = [_read_vocabulary(folder / name, sums[name]) for name in sums]
        lines = "".join(f"{name} {checksum}\n" for name, checksum in sums.items())
        fingerprint = hashlib.sha256(lines.encode()).hexdigest()
        return cls(vocabularies[0], vocabularies[-1], fingerprint)

    def tagged(self, tag: str | None) -> "Tokenizer":
        """Return a tokenizer that sets a tag in front of each source line; None: sets none.

        Training, translation and what is exported all set tags in this way alone. Raises
        `ConfigError` where the tag has no token of its own.
        """
        known = self.source.tags
        if tag is None:
            return self
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
        """Tokens in the vocabulary of the source side."""
        return len(self.source)

    @property
    def target_size(self) -> int:
        """Tokens in the vocabulary of the target side."""
        return len(self.target)

    def encode_source(self, lines: Sequence[str]) -> list[list[int]]:
        """Return the ids of each source line, the tag first if there is one, EOS last."""
        encoded = self.source.encode(lines)
        if self.tag is None:
            return encoded
        number = self.source.tags[self.tag]
        return [[number, *ids] for ids in encoded]

    def encode_target(self, lines: Sequence[str]) -> list[list[int]]:
        """Return the ids of each target line, EOS last and no BOS."""
        return self.target.encode(lines)

    def decode_source(self, ids: Sequence[int]) -> str:
        """Return the source text of `ids`, up to the first EOS."""
        return self.source.decode(ids)

    def decode_target(self, ids: Sequence[int]) -> str:
        """Return the target text of `ids`, up to the first EOS; any ids of the vocabulary do."""
        return self.target.decode(ids)


def train_tokenizer(
    pairs: Callable[[], Iterator[SentencePair]],
    folder: Path,
    *,
    config: TokenizerConfig,
    seed: int,
) -> Tokenizer:
    """Learn the vocabularies from a corpus, write them into `folder` and load them.

    The same pairs, config and seed give the same files. Raises `DataError` where there is no
    text to learn from, `ConfigError` where the vocabulary cannot hold the characters.
    """
    names = _LAYOUTS[0] if config.vocabulary == "joint" else _LAYOUTS[1]
    return _write(
        folder,
        {name: train_model(_LINES[name](pairs()), config=config, seed=seed) for name in names},
    )


def provide_tokenizer(
    config: Config, folder: Path, *, pairs: Callable[[], Iterator[SentencePair]]
) -> Tokenizer:
    """Return the tokenizer that `folder` holds, else the one that a config asks for, put there.

    That is a copy where the config names an origin, extended if need be, else one trained on
    `pairs`. Raises what `copy_tokenizer`, `extend_tokenizer` and `train_tokenizer` do.
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


def copy_tokenizer(source: Path, folder: Path) -> Tokenizer:
    """Copy the tokenizer of a run folder or tokenizer folder into `folder` and load it.

    Raises `RunError` naming what is missing or damaged in `source`.
    """
    return _write(folder, _read_models(source))


def write_tokenizer(folder: Path, *, source: bytes, target: bytes) -> Tokenizer:
    """Write a tokenizer of two serialised SentencePiece models, one a side, and load it.

    Raises `RunError` where they are not such as `Vocabulary.from_model` takes.
    """
    return _write(folder, {_SOURCE: source, _TARGET: target})


def extend_tokenizer(
    source: Path,
    folder: Path,
    *,
    pairs: Callable[[], Iterator[SentencePair]],
    config: TokenizerConfig,
    seed: int,
) -> Tokenizer:
    """Copy a tokenizer as `copy_tokenizer` does, with the tags and `added_tokens` of a config.

    The same source, pairs, config and seed give the same files. Raises `RunError` as
    `copy_tokenizer` does, `DataError` where there is no text to learn from.
    """
    return _write(
        folder,
        {
            name: extend_model(model, _LINES[name](pairs()), config=config, seed=seed)
            for name, model in _read_models(source).items()
        },
    )


def _read_models(source: Path) -> dict[str, bytes]:
    """Return the model files of a run folder or tokenizer folder, once they are known to load."""
    inside = source / "tokenizer"
    original = inside if inside.is_dir() else source
    sums = _read_manifest(original)
    Tokenizer.load(original)
    return {name: (original / name).read_bytes() for name in sums}


def _write(folder: Path, models: dict[str, bytes]) -> Tokenizer:
    """Write the model files, and the manifest last: without it the folder holds no tokenizer."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, model in models.items():
        with replacing(folder / name) as temporary:
            temporary.write_bytes(model)
    sums = {name: hashlib.sha256(model).hexdigest() for name, model in models.items()}
    write_json(folder / _MANIFEST, {"format": _FORMAT, "sha256": sums})
    return Tokenizer.load(folder)


def _read_manifest(folder: Path) -> dict[str, str]:
    """Return the SHA-256 of each model file, source before target."""
    path = folder / _MANIFEST
    if not folder.is_dir():
        raise RunError(f"{folder}: no such folder")
    if not path.is_file():
        raise RunError(f"{folder}: no tokenizer is here (`{_MANIFEST}` is missing)")
    try:
        manifest = json.loads(path.read_bytes())
        version, sums = manifest["format"], dict(manifest["sha256"])
    except (ValueError, KeyError, TypeError) as error:
        raise RunError(f"{path}: damaged, or not of a tokenizer of ours") from error
    if version != _FORMAT or list(sums) not in _LAYOUTS:
        raise RunError(f"{path}: of a format that this version does not know")
    return sums


def _read_vocabulary(path: Path, checksum: str) -> Vocabulary:
    if not path.is_file():
        raise RunError(f"{path}: missing; its tokenizer is of no use without it")
    model = path.read_bytes()
    if hashlib.sha256(model).hexdigest() != checksum:
        raise RunError(f"{path}: damaged (its SHA-256 is not the one in `{_MANIFEST}`)")
    try:
        return Vocabulary.from_model(model)
    except ValueError as error:
        raise RunError(f"{path}: {error}") from error
