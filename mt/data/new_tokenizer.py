"""Tokenizer of a new run: trained, copied, or copied and extended."""

import logging
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

from mt.config import Config
from mt.config.tokenizer import TokenizerConfig
from mt.data.batches import SOURCE, TARGET
from mt.data.filters import TrainingCorpus, cleaned_pairs
from mt.data.pairs import SentencePair
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
from mt.data.vocabulary import SPACE_MARK, Vocabulary

_logger = logging.getLogger(__name__)


def provide_tokenizer(
    config: Config, folder: Path, *, corpora: Sequence[TrainingCorpus]
) -> Tokenizer:
    """Return the tokenizer in `folder`; create it as the config says if it does not exist.

    It is trained on `corpora`, or copied from `tokenizer.from` or an initial run, and extended by
    their `new_text` if the config adds tokens or tags. Raises ConfigError or DataError if it cannot
    be created.
    """
    if any(folder.glob("*.json")):
        return Tokenizer.load(folder)
    settings, seed = config.tokenizer, config.seed
    if config.tokenizer_origin is None:
        return train_tokenizer(lambda: cleaned_pairs(corpora), folder, config=settings, seed=seed)
    _, origin = config.tokenizer_origin
    if not (settings.added_tokens or settings.tags):
        return copy_tokenizer(origin, folder)
    old = [Vocabulary.from_model(model) for model in read_models(origin).values()]
    languages = new_languages(corpora, {tag for each in old for tag in each.tags})
    if languages and settings.added_tokens:
        _logger.info("tokenizer: new tokens are learnt from text in %s", " and ".join(languages))

    def pairs() -> Iterator[SentencePair]:
        return new_text(corpora, old, languages) if languages else cleaned_pairs(corpora)

    return extend_tokenizer(origin, folder, pairs=pairs, config=settings, seed=seed)


def new_languages(corpora: Sequence[TrainingCorpus], old_tags: set[str]) -> tuple[str, ...]:
    """Return the languages that only corpora with a new tag have, in order."""
    new: dict[str, None] = {}
    replayed: set[str] = set()
    for corpus in corpora:
        if {corpus.tag, corpus.target_tag} - {None, *old_tags}:
            new |= dict.fromkeys(corpus.languages)
        else:
            replayed.update(corpus.languages)
    return tuple(language for language in new if language not in replayed)


def new_text(
    corpora: Sequence[TrainingCorpus], old: Sequence[Vocabulary], languages: Sequence[str]
) -> Iterator[SentencePair]:
    """Stream the cleaned pairs; a side in another language is empty.

    Tokens learnt from it would change the segmentation of text that the old model translates. The
    side stays if it has a character that its old vocabulary lacks; `old` has one vocabulary for
    both sides, or one for each.
    """
    processors = [each.processor for each in (old[0], old[-1])]
    known = [{SPACE_MARK, *each.texts().values()} for each in (old[0], old[-1])]

    def kept(text: str, language: str, side: int) -> str:
        is_new = language in languages
        return text if is_new or {*processors[side].normalize(text)} - known[side] else ""

    for corpus in corpora:
        source, target = corpus.languages
        for pair in corpus.cleaned():
            yield replace(
                pair,
                source=kept(pair.source, source, SOURCE),
                target=kept(pair.target, target, TARGET),
            )


def extend_tokenizer(
    source: Path, folder: Path, *, pairs: Pairs, config: TokenizerConfig, seed: int
) -> Tokenizer:
    """Copy a tokenizer like `copy_tokenizer`, and add the config's `tags` and `added_tokens`.

    Empty lines do not count. Equal source, pairs, config and seed give equal files. Raises also
    `DataError` if all lines are blank.
    """
    models = {
        name: extend_model(
            model, filter(None, TRAINING_TEXT[name](pairs())), config=config, seed=seed
        )
        for name, model in read_models(source).items()
    }
    return write_models(folder, models)


def copied_layout(source: Path) -> Literal["joint", "separate"]:
    """Return the layout of the vocabularies of a run folder or tokenizer folder."""
    return "joint" if len(read_models(source)) == 1 else "separate"
