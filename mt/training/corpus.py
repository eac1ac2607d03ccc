"""What a run trains and validates on: tokenizer, encoded pairs, validation pairs."""

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from mt.config import Config
from mt.data.batches import Indices, Lengths, padding_efficiency, plan_updates, split_update
from mt.data.cache import cache_folder
from mt.data.sources import SentencePair, open_source
from mt.data.store import Example, PairStore, prepare_store
from mt.data.tokenizer import Tokenizer, copy_tokenizer, train_tokenizer
from mt.errors import ConfigError
from mt.training.run_folder import RunFolder


@dataclass(frozen=True)
class Corpus:
    """The prepared data of a run."""

    tokenizer: Tokenizer
    store: PairStore
    valid: tuple[SentencePair, ...]
    valid_examples: tuple[Example, ...]

    @property
    def valid_lengths(self) -> Lengths:
        """Pieces of source and target of each validation pair [N 2], end marks included."""
        return np.array([(len(e.source), len(e.target)) for e in self.valid_examples], np.int32)


def prepare(config: Config, folder: RunFolder) -> Corpus:
    """Check every corpus of the config, train the tokenizer if need be, encode the pairs.

    Validation and test splits come first, so that a mistake in them is told now and not after the
    training.
    """
    sources = {"train": open_source(config.data.train, config.data)}
    for name in config.data.split_names():
        source = config.data.split(name)
        assert source is not None
        sources[name if name == "valid" else f"tests.{name}"] = open_source(source, config.data)
    sums = {name: source.checksums() for name, source in sources.items()}
    folder.record_corpora(
        {name: {"source": each.source, "target": each.target} for name, each in sums.items()}
    )
    valid = tuple(sources["valid"].pairs())
    for name in config.data.tests:
        deque(sources[f"tests.{name}"].pairs(), maxlen=0)  # checksums do not look at characters
    # From here on the corpus must stay what it was when its checksums were taken.
    train = replace(sources["train"], expected=sums["train"])
    tokenizer = _tokenizer(config, folder, train.pairs)
    _check_layout(config, tokenizer)
    folder.record_tokenizer(tokenizer.fingerprint)
    store = prepare_store(train, tokenizer, max_pieces=config.data.max_pieces, cache=cache_folder())
    return Corpus(tokenizer, store, valid, tuple(_examples(valid, tokenizer)))


def first_plan(corpus: Corpus, config: Config) -> list[Indices]:
    """Return the updates of the first epoch; every epoch has as many."""
    tokens, seed = config.training.target_tokens_per_update, config.seed
    return plan_updates(corpus.store.lengths, tokens, seed=seed, epoch=0)


def describe(corpus: Corpus, config: Config, plan: list[Indices]) -> str:
    """Return what there is to train on and how much of a batch is padding, in two lines."""
    store, training = corpus.store, config.training
    shown = plan[:: max(1, len(plan) // 1000)]  # a sample is enough to see the padding
    batches = [
        batch
        for update in shown
        for batch in split_update(
            update, store.lengths, max_tokens_per_batch=training.max_tokens_per_batch, ranks=1
        )[0]
    ]
    efficiency = padding_efficiency(batches, store.lengths)
    left_out = store.left_out
    return (
        f"{len(store):,} pairs to train on ({left_out.too_long:,} too long and "
        f"{left_out.empty:,} with an empty side left out of {left_out.total:,}), "
        f"{len(corpus.valid):,} to validate on; vocabulary "
        f"{corpus.tokenizer.source_size:,} / {corpus.tokenizer.target_size:,} pieces\n"
        f"{len(plan):,} updates an epoch; padding efficiency {efficiency.source:.1%} source, "
        f"{efficiency.target:.1%} target"
    )


def _tokenizer(
    config: Config, folder: RunFolder, pairs: Callable[[], Iterator[SentencePair]]
) -> Tokenizer:
    """Return the run's own tokenizer, else copy the one of `tokenizer.from`, else train one."""
    if any(folder.tokenizer.glob("*.json")):
        return Tokenizer.load(folder.tokenizer)
    if config.tokenizer.from_ is not None:
        return copy_tokenizer(config.tokenizer.from_, folder.tokenizer)
    return train_tokenizer(pairs, folder.tokenizer, config=config.tokenizer, seed=config.seed)


def _check_layout(config: Config, tokenizer: Tokenizer) -> None:
    """Refuse a tokenizer from elsewhere whose vocabularies are not what the config builds on."""
    layout = "joint" if tokenizer.source is tokenizer.target else "separate"
    wanted = config.tokenizer.vocabulary
    if layout != wanted:
        raise ConfigError(
            f"`tokenizer.from` {config.tokenizer.from_}: its vocabulary is {layout}, "
            f"`tokenizer.vocabulary` says {wanted}"
        )


def _examples(pairs: tuple[SentencePair, ...], tokenizer: Tokenizer) -> Iterator[Example]:
    sources = tokenizer.encode_source([pair.source for pair in pairs])
    targets = tokenizer.encode_target([pair.target for pair in pairs])
    for index, (source, target) in enumerate(zip(sources, targets, strict=True)):
        yield Example(index, np.array(source, np.int32), np.array(target, np.int32))
