"""Warnings of corpora that one would not train on if one had looked at them."""

import hashlib
import json
import logging
import shlex
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from mt.config import Config
from mt.config.data import MixtureSource
from mt.data.batches import (
    Indices,
    Lengths,
    PaddingEfficiency,
    padding_efficiency,
    plan_updates,
    split_update,
)
from mt.data.corpora import cache_folder
from mt.data.filters import TrainingCorpus, cleaned_pairs, open_training_corpora
from mt.data.mixture import Mixture, joined, mix
from mt.data.pairs import Checksums
from mt.data.sources import SentencePair, open_source
from mt.data.store import Example, PairStore, prepare_store
from mt.data.subword_sampling import DrawnEpochs, Sampling
from mt.data.tokenizer import Tokenizer, provide_tokenizer
from mt.doctor.first_look import first_look
from mt.errors import ConfigError
from mt.files import write_json
from mt.training.initial_weights import check_initial_run
from mt.training.run_folder import RunFolder


@dataclass(frozen=True)
class Corpus:
    """The prepared data of a run."""

    tokenizer: Tokenizer
    store: PairStore
    """The training pairs, cleaned, in the tokens that their text has when it is translated."""
    parts: dict[str, PairStore]
    """The stores of the corpora that `store` is made of, by the keys of their corpora."""
    mixture: Mixture
    """What an epoch takes of each of them."""
    valid: tuple[SentencePair, ...]
    valid_examples: tuple[Example, ...]
    drawn: DrawnEpochs | None = None
    """Stores by epoch where `tokenizer.sampling` is on."""

    def epoch_store(self, epoch: int) -> PairStore:
        """Return the same pairs in the tokens of an epoch, waiting until they are drawn."""
        return self.drawn.open(epoch) if self.drawn else self.store

    def close(self) -> None:
        """Delete the drawn stores at the end of a run."""
        if self.drawn:
            self.drawn.close()

    @property
    def valid_lengths(self) -> Lengths:
        """Tokens of source and target of each validation pair [N 2], end marks included."""
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
    corpora = open_training_corpora(config.data)
    sources = {each.key: each.source for each in corpora}
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
    corpora = tuple(each.pinned(sums[each.key]) for each in corpora)
    tokenizer = provide_tokenizer(config, folder.tokenizer, pairs=lambda: cleaned_pairs(corpora))
    _check_layout(config, tokenizer)
    folder.record_tokenizer(tokenizer.fingerprint)
    if config.data.check and not folder.checkpoints.updates():
        warn_of(corpora, sums, folder)
    corpus = _corpus(config, tokenizer, corpora=corpora, sums=sums, valid=valid)
    left_out = {key: store.left_out for key, store in corpus.parts.items()}
    folder.record_cleaning({key: {**each.cleaned, **each.noisy} for key, each in left_out.items()})
    return corpus


def join(config: Config, folder: RunFolder) -> Corpus:
    """Return what another rank has prepared, apart from the validation pairs.

    On a host without that store, its pairs are encoded; they have to be the same text there.
    """
    tokenizer = Tokenizer.load(folder.tokenizer)
    sums = {key: folder.checksums(key) for key in config.data.train_corpora()}
    corpora = [each.pinned(sums[each.key]) for each in open_training_corpora(config.data)]
    return _corpus(config, tokenizer, corpora=corpora, sums=sums, valid=())


def _corpus(
    config: Config,
    tokenizer: Tokenizer,
    *,
    corpora: Sequence[TrainingCorpus],
    sums: Mapping[str, Checksums],
    valid: tuple[SentencePair, ...],
) -> Corpus:
    """Open the stores of all training corpora, encoding what is not in the cache."""
    parts = {
        each.key: prepare_store(
            each.source,
            tokenizer.tagged(each.tag),
            max_tokens=config.data.max_tokens,
            cache=cache_folder(),
            sums=sums[each.key],
            cleaning=each.cleaning,
        )
        for each in corpora
    }
    return Corpus(
        tokenizer,
        joined([*parts.values()]),
        parts,
        _mixture(config, [len(store) for store in parts.values()], corpora),
        valid,
        tuple(_examples(valid, tokenizer.tagged(config.split_tag("valid")))),
        _drawn(config, tokenizer, [*parts.values()]),
    )


def _mixture(config: Config, sizes: list[int], corpora: Sequence[TrainingCorpus]) -> Mixture:
    """Return what an epoch takes of the corpora; ConfigError where that is no pair at all."""
    train = config.data.train
    temperature = train.temperature if isinstance(train, MixtureSource) else 1.0
    mixture = mix(sizes, [each.weight for each in corpora], temperature=temperature)
    if not sum(mixture.counts(0)):
        raise ConfigError(
            f"`data.train`: of the {sum(sizes):,} pairs, the weights take none in the first epoch"
        )
    return mixture


def first_plan(corpus: Corpus, config: Config, *, epoch: int = 0) -> list[Indices]:
    """Return the updates of an epoch; the others have as many, or nearly where tokens are drawn."""
    return plan_store(corpus, corpus.epoch_store(epoch), config, epoch=epoch)


def plan_store(corpus: Corpus, store: PairStore, config: Config, *, epoch: int) -> list[Indices]:
    """Return the updates of an epoch with the tokens that its pairs have in a store."""
    tokens, seed = config.training.target_tokens_per_update, config.seed
    if corpus.mixture.is_plain:
        return plan_updates(store.lengths, tokens, seed=seed, epoch=epoch)
    pairs = corpus.mixture.pairs(seed=seed, epoch=epoch)
    plan = plan_updates(store.lengths[pairs], tokens, seed=seed, epoch=epoch)
    return [pairs[update] for update in plan]


def describe(corpus: Corpus, config: Config, plan: list[Indices], *, epoch: int = 0) -> str:
    """Return what there is to train on and how much of a batch is padding, in two lines.

    Where corpora have been cleaned, a line for each before them tells what that has taken out;
    where there are several or one has a weight, a line tells what an epoch takes of each.
    """
    store, left_out = corpus.epoch_store(epoch), corpus.store.left_out
    efficiency = planned_padding(plan, store.lengths, config)
    about = "about " if corpus.drawn or not corpus.mixture.is_plain else ""
    return (
        f"{_cleaned(corpus)}{len(store):,} pairs to train on ({left_out.too_long:,} too long and "
        f"{left_out.empty:,} with an empty side left out of {left_out.total:,}), "
        f"{len(corpus.valid):,} to validate on; vocabulary "
        f"{corpus.tokenizer.source_size:,} / {corpus.tokenizer.target_size:,} tokens\n"
        f"{_mixed(corpus, epoch)}{about}{len(plan):,} updates an epoch; padding efficiency "
        f"{efficiency.source:.1%} source, {efficiency.target:.1%} target"
    )


def _cleaned(corpus: Corpus) -> str:
    lines = []
    for key, store in corpus.parts.items():
        taken, total = store.left_out.cleaned, store.left_out.total
        each = _by_name(taken)
        whose = f" of `{_name(key)}`" if len(corpus.parts) > 1 else ""
        if taken:
            told = f"{sum(taken.values()):,} of {total:,} pairs{whose}"
            lines.append(f"cleaning took out {told}: {each}\n")
        if noisy := store.left_out.noisy:
            lines.append(f"noise has changed sources{whose}: {_by_name(noisy)}\n")
    return "".join(lines)


def _by_name(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count:,} by `{name}`" for name, count in counts.items())


def _mixed(corpus: Corpus, epoch: int) -> str:
    mixture = corpus.mixture
    if mixture.is_plain and len(corpus.parts) == 1:
        return ""
    counts = mixture.counts(epoch)
    each = ", ".join(
        f"{count:,} from the {size:,} of `{_name(key)}` (weight {weight:.4g})"
        for key, count, size, weight in zip(
            corpus.parts, counts, mixture.sizes, mixture.weights, strict=True
        )
    )
    return f"epoch {epoch + 1} takes {sum(counts):,} pairs: {each}\n"


def _name(key: str) -> str:
    return key.rpartition(".")[2]


def planned_padding(plan: list[Indices], lengths: Lengths, config: Config) -> PaddingEfficiency:
    """Return how much of the batches of a plan is real; a sample of them is enough to see it."""
    most = config.training.max_tokens_per_batch
    batches = [
        batch
        for update in plan[:: max(1, len(plan) // 1000)]
        for batch in split_update(update, lengths, max_tokens_per_batch=most, ranks=1)[0]
    ]
    return padding_efficiency(batches, lengths)


def _drawn(config: Config, tokenizer: Tokenizer, stores: Sequence[PairStore]) -> DrawnEpochs | None:
    source, target = config.tokenizer.sampling, config.tokenizer.sampling_target
    target = source if target is None else target
    if not source and not target:
        return None
    sampling = Sampling(source, target, max_tokens=config.data.max_tokens, seed=config.seed)
    return DrawnEpochs(stores, tokenizer, sampling, epochs=config.training.max_epochs)


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


_FORMAT = 1
_logger = logging.getLogger(__name__)


def warn_of(
    corpora: Iterable[TrainingCorpus], sums: Mapping[str, Checksums], folder: RunFolder
) -> None:
    """Log what is alarming in the corpora of a run, and where to learn more; raises nothing.

    A corpus is looked at once: what was found lies in the cache, by the checksums of all splits.
    """
    more = f"mt data check {shlex.quote(str(folder.config))}"
    for corpus in corpora:
        try:
            alarms = _looked_at(corpus, _memory(corpus, sums))
        except Exception as error:  # no look is worth a training
            _logger.warning("data.%s: not looked at (%s); see `%s`", corpus.key, error, more)
            continue
        for alarm in alarms:
            _logger.warning("data.%s: %s; see `%s`", corpus.key, alarm, more)


def _looked_at(corpus: TrainingCorpus, memory: Path) -> list[str]:
    """Return what was found when the same text was looked at before, else what is found now."""
    try:
        return list(json.loads(memory.read_bytes())["alarms"])
    except FileNotFoundError:
        alarms = first_look(corpus)
        memory.parent.mkdir(parents=True, exist_ok=True)
        write_json(memory, {"alarms": alarms})
        return alarms


def _memory(corpus: TrainingCorpus, sums: Mapping[str, Checksums]) -> Path:
    data = corpus.cleaning.data
    key = [_FORMAT, asdict(sums[corpus.key]), {name: asdict(each) for name, each in sums.items()}]
    key += [data.source_language, data.target_language, corpus.cleaning.fingerprint]
    key += [find_spec("py3langid") is not None]  # without it languages are not looked at
    name = hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()[:32]
    return cache_folder() / "looks" / f"{name}.json"
