"""Tokenizer of a new run: trained, copied, or copied and extended."""

from pathlib import Path
from typing import Literal

from mt.config import Config
from mt.config.tokenizer import TokenizerConfig
from mt.data.tokenizer import (
    TRAINING_TEXT,
    Pairs,
    Tokenizer,
    copy_tokenizer,
    read_models,
    train_tokenizer,
    write_models,
)
from mt.data.tokenizer_training import extend_model


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


def extend_tokenizer(
    source: Path, folder: Path, *, pairs: Pairs, config: TokenizerConfig, seed: int
) -> Tokenizer:
    """Copy a tokenizer like `copy_tokenizer`, and add the config's `tags` and `added_tokens`.

    Equal source, pairs, config and seed give equal files. Raises also `DataError` if there is no
    text to learn from.
    """
    models = {
        name: extend_model(model, TRAINING_TEXT[name](pairs()), config=config, seed=seed)
        for name, model in read_models(source).items()
    }
    return write_models(folder, models)


def copied_layout(source: Path) -> Literal["joint", "separate"]:
    """Return the layout of the vocabularies of a run folder or tokenizer folder."""
    return "joint" if len(read_models(source)) == 1 else "separate"
