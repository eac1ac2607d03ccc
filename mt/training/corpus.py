"""What a run trains and validates on: tokenizer, encoded pairs, validation pairs."""

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from mt.config import Config
from mt.data.batches import (
    Indices,
    Lengths,
    PaddingEfficiency,
    padding_efficiency,
    plan_updates,
    split_update,
)
from mt.data.cache import cache_folder
from mt.data.draw import Drawing
from mt.data.epochs import DrawnEpochs
from mt.data.sources import SentencePair, open_source
from mt.data.store import Example, PairStore, prepare_store
from mt.data.tokenizer import Tokenizer, copy_tokenizer, extend_tokenizer, train_tokenizer
from mt.errors import ConfigError
from mt.training.initial_weights import check_initial_run
from mt.training.run_folder import RunFolder


@dataclass(frozen=True)
class Corpus:
    """The prepared data of a run."""

    tokenizer: Tokenizer
    store: PairStore
    """The training pairs, in the pieces that their text has when it is translated."""
    valid: tuple[SentencePair, ...]
    valid_examples: tuple[Example, ...]
    drawn: DrawnEpochs | None = None
    """Their pieces in each epoch, where `tokenizer.sampling` draws them."""

    def epoch_store(self, epoch: int) -> PairStore:
        """Return the same pairs in the pieces of an epoch; drawn now if they are not yet."""
        return self.drawn.open(epoch) if self.drawn else self.store

    def close(self) -> None:
        """Delete what was drawn, once the run has ended for good."""
        if self.drawn:
            self.drawn.close()

    @property
    def valid_lengths(self) -> Lengths:
        """Pieces of source and target of each validation pair [N 2], end marks included."""
        return np.array([(len(e.source), len(e.target)) for e in self.valid_examples], np.int32)


def prepare(config: Config, folder: RunFolder) -> Corpus:
    """Check every corpus of the config, train the tokenizer if need be, encode the pairs.

    Validation and test splits come first, so that a mistake in them is told now and not after the
    training.
    """
    initial = config.training.init_from
    # A run that goes on has weights of its own, and does not ask for those it began with.
    if initial is not None and not folder.checkpoints.updates():
        folder.record_initial_weights(check_initial_run(config, initial))
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
    store = prepare_store(
        train,
        tokenizer,
        max_pieces=config.data.max_pieces,
        cache=cache_folder(),
        sums=sums["train"],
    )
    drawn = _drawn(config, folder, store)
    return Corpus(tokenizer, store, valid, tuple(_examples(valid, tokenizer)), drawn)


def join(config: Config, folder: RunFolder) -> Corpus:
    """Return what another rank has prepared, apart from the validation pairs.

    On a host without that store, its pairs are encoded; they have to be the same text there.
    """
    tokenizer = Tokenizer.load(folder.tokenizer)
    sums = folder.train_checksums()
    train = replace(open_source(config.data.train, config.data), expected=sums)
    limit, cache = config.data.max_pieces, cache_folder()
    store = prepare_store(train, tokenizer, max_pieces=limit, cache=cache, sums=sums)
    return Corpus(tokenizer, store, (), (), _drawn(config, folder, store))


def first_plan(corpus: Corpus, config: Config, *, epoch: int = 0) -> list[Indices]:
    """Return the updates of an epoch; the others have as many, or nearly where pieces are drawn."""
    tokens, seed = config.training.target_tokens_per_update, config.seed
    return plan_updates(corpus.epoch_store(epoch).lengths, tokens, seed=seed, epoch=epoch)


def describe(corpus: Corpus, config: Config, plan: list[Indices], *, epoch: int = 0) -> str:
    """Return what there is to train on and how much of a batch is padding, in two lines."""
    store, left_out = corpus.epoch_store(epoch), corpus.store.left_out
    efficiency = planned_padding(plan, store.lengths, config)
    about = "about " if corpus.drawn else ""
    return (
        f"{len(store):,} pairs to train on ({left_out.too_long:,} too long and "
        f"{left_out.empty:,} with an empty side left out of {left_out.total:,}), "
        f"{len(corpus.valid):,} to validate on; vocabulary "
        f"{corpus.tokenizer.source_size:,} / {corpus.tokenizer.target_size:,} pieces\n"
        f"{about}{len(plan):,} updates an epoch; padding efficiency "
        f"{efficiency.source:.1%} source, {efficiency.target:.1%} target"
    )


def planned_padding(plan: list[Indices], lengths: Lengths, config: Config) -> PaddingEfficiency:
    """Return how much of the batches of a plan is real; a sample of them is enough to see it."""
    most = config.training.max_tokens_per_batch
    batches = [
        batch
        for update in plan[:: max(1, len(plan) // 1000)]
        for batch in split_update(update, lengths, max_tokens_per_batch=most, ranks=1)[0]
    ]
    return padding_efficiency(batches, lengths)


def _drawn(config: Config, folder: RunFolder, store: PairStore) -> DrawnEpochs | None:
    sampling = config.tokenizer
    source = target = sampling.sampling
    if sampling.sampling_target is not None:
        target = sampling.sampling_target
    if not source and not target:
        return None
    drawing = Drawing(
        store=store.path,
        tokenizer=folder.tokenizer,
        source=source,
        target=target,
        max_pieces=config.data.max_pieces,
        seed=config.seed,
    )
    return DrawnEpochs(drawing, epochs=config.training.max_epochs)


def _tokenizer(
    config: Config, folder: RunFolder, pairs: Callable[[], Iterator[SentencePair]]
) -> Tokenizer:
    """Return the run's own tokenizer, else copy one and extend it if need be, else train one."""
    if any(folder.tokenizer.glob("*.json")):
        return Tokenizer.load(folder.tokenizer)
    settings, seed = config.tokenizer, config.seed
    if config.tokenizer_origin is None:
        return train_tokenizer(pairs, folder.tokenizer, config=settings, seed=seed)
    _, origin = config.tokenizer_origin
    if settings.added_pieces:
        return extend_tokenizer(origin, folder.tokenizer, pairs=pairs, config=settings, seed=seed)
    return copy_tokenizer(origin, folder.tokenizer)


def _check_layout(config: Config, tokenizer: Tokenizer) -> None:
    """Refuse a tokenizer from elsewhere whose vocabularies are not what the config builds on."""
    layout = "joint" if tokenizer.source is tokenizer.target else "separate"
    wanted = config.tokenizer.vocabulary
    if layout != wanted:
        assert config.tokenizer_origin is not None, "a tokenizer of our own is as the config says"
        key, origin = config.tokenizer_origin
        raise ConfigError(
            f"`{key}` {origin}: its vocabulary is {layout}, `tokenizer.vocabulary` says {wanted}"
        )


def _examples(pairs: tuple[SentencePair, ...], tokenizer: Tokenizer) -> Iterator[Example]:
    sources = tokenizer.encode_source([pair.source for pair in pairs])
    targets = tokenizer.encode_target([pair.target for pair in pairs])
    for index, (source, target) in enumerate(zip(sources, targets, strict=True)):
        yield Example(index, np.array(source, np.int32), np.array(target, np.int32))
