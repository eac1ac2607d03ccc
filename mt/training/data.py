"""Training data of a run: checked corpora, tokenizer, encoded pairs and the updates of an epoch."""

import logging
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial

import numpy as np

from mt.config import Config
from mt.config.data import MixtureSource
from mt.config.loading import load_config
from mt.data.augmentation import AUGMENTATIONS
from mt.data.batches import Lengths, Update, plan_updates
from mt.data.corpus_files import cache_folder
from mt.data.pairs import Checksums, SentencePair
from mt.data.sentences import line_shape
from mt.data.splits import (
    CorpusScan,
    OpenedCorpus,
    SplitPairs,
    open_training_corpora,
    read_splits,
    scan_corpora,
)
from mt.data.store import Example, Mixture, PairStore, join_stores, mix, prepare_store
from mt.data.subword_sampling import EpochTokens, Sampling, open_drawn
from mt.data.tokenizer import Tokenizer
from mt.data.tokenizer_training import TokenizerText, copied_layout, provide_tokenizer
from mt.doctor.check import CorpusWatch, check_split
from mt.errors import ConfigError, RunError
from mt.model.device import available_memory
from mt.runs import CONFIG_FILE, LineStatistics, check_finished
from mt.training.initial_weights import read_initial_run
from mt.training.run_folder import RunFolder
from mt.training.shown_terms import TermDrawing
from mt.training.translation_table import TranslationTable, learn_table, learning_bytes

_SAMPLED_LINES = 200_000
"""Training sources that give the shape of lines."""
_logger = logging.getLogger(__name__)
QuickCheck = Callable[[], list[str]]
"""Returns warnings about a corpus, each a clause."""


@dataclass(frozen=True)
class TrainingData:
    """Prepared data of a run."""

    tokenizer: Tokenizer
    store: PairStore
    """Training pairs, cleaned and encoded without subword sampling, as in translation."""
    parts: dict[str, PairStore]
    """Stores of the single corpora that `store` joins, by corpus key."""
    mixture: Mixture
    valid: tuple[SentencePair, ...]
    split_pairs: Mapping[str, int]
    """Pairs of `valid` and the test splits, by key."""
    valid_examples: tuple[Example, ...]
    source_language: str
    target_tokens_per_update: int
    seed: int
    drawn: EpochTokens | None = None
    """Stores by epoch, if a key asks for other tokens in each."""

    def epoch_store(self, epoch: int) -> PairStore:
        """Return the training pairs in the tokens of an epoch, drawing them if necessary."""
        return self.drawn.open(epoch) if self.drawn else self.store

    def plan_epoch(self, epoch: int = 0, *, store: PairStore | None = None) -> list[Update]:
        """Return the updates of an epoch; all epochs have about the same number.

        `store` has the lengths to plan by, by default those of the tokens of that epoch.
        """
        lengths = (store or self.epoch_store(epoch)).lengths
        tokens, seed = self.target_tokens_per_update, self.seed
        if self.mixture.is_plain:
            return plan_updates(lengths, tokens, seed=seed, epoch=epoch)
        pairs = self.mixture.pairs(seed=seed, epoch=epoch)
        plan = plan_updates(lengths[pairs], tokens, seed=seed, epoch=epoch)
        return [[pairs[run] for run in update] for update in plan]

    def close(self) -> None:
        """Delete the drawn stores, after the end of the run."""
        if self.drawn:
            self.drawn.close()

    @cached_property
    def line_shape(self) -> LineStatistics:
        """Shape of the training sources, from a sample that is spread over them."""
        count = min(len(self.store), _SAMPLED_LINES)
        indices = np.linspace(0, len(self.store) - 1, count).astype(np.int64)
        examples = self.store.examples(indices)
        lines = [self.tokenizer.decode_source(example.source.tolist()) for example in examples]
        return line_shape(lines, self.source_language)

    @cached_property
    def translation_table(self) -> TranslationTable:
        """Table of token translations, for guided alignment, initial embeddings and terms."""
        needed, available = learning_bytes(self.store.lengths), available_memory()
        if available is not None and needed > available:
            _logger.warning(
                "warning: learning the table of token translations takes about %.2f GiB of memory, "
                "and %.2f GiB are available: `training.guided_alignment: 0` needs no table",
                needed / 2**30,
                available / 2**30,
            )
        return replace(learn_table(self.store), term_ids=self.tokenizer.term_ids)

    @property
    def vocabularies(self) -> tuple[int, int]:
        """Sizes of the source and the target vocabulary."""
        return self.tokenizer.source_size, self.tokenizer.target_size

    @property
    def pair_counts(self) -> dict[str, int]:
        """Number of pairs by use and reason, as the description of the model has them."""
        return {
            "train": len(self.store),
            **{key: len(store) for key, store in self.parts.items()},
            "too_long": self.store.left_out.too_long,
            "empty": self.store.left_out.empty,
            **self.split_pairs,
        }

    @property
    def valid_lengths(self) -> Lengths:
        """Source and target tokens of each validation pair [N 2], end marks included."""
        return example_lengths(self.valid_examples)


def example_lengths(examples: Iterable[Example]) -> Lengths:
    """Return the source and target tokens of encoded pairs [N 2], end marks included."""
    sizes = [(len(example.source), len(example.target)) for example in examples]
    return np.array(sizes, np.int32).reshape(-1, 2)


@dataclass(frozen=True)
class ReadCorpora:
    """Corpora of a config after their first reading, on which a training begins."""

    training: tuple[OpenedCorpus, ...]
    splits: dict[str, SplitPairs]
    checksums: dict[str, Checksums]
    """By key below `data`."""
    scan: CorpusScan | None
    """None for a run that is resumed."""
    text: TokenizerText | None
    """Sample to learn the tokenizer from; None if no token is learnt."""
    checks: dict[str, QuickCheck]
    """Quick checks of the training corpora and of `valid`, by key; empty without `data.check`."""


def read_corpora(config: Config, *, resuming: bool = False) -> ReadCorpora:
    """Read all corpora once; the training corpora of a resumed run for their checksums alone.

    A run or tokenizer that the config names is looked for first. Splits with files of their own are
    read next, so that their faults show before those of the training corpora. Raises DataError if
    a corpus is unreadable, and RunError for a run or tokenizer that is missing.
    """
    data = config.data
    origin = None if config.tokenizer_origin is None else config.tokenizer_origin[1]
    if not resuming and (run := config.training.init_from) is not None:
        check_finished(run)
        start = load_config(run / CONFIG_FILE).data
        has_tags = any(source.tag or source.target_tag for source in data.train_corpora().values())
        reverse = data.target_language, data.source_language
        if (start.source_language, start.target_language) == reverse and not has_tags:
            there, here = " to ".join(reverse), " to ".join(reversed(reverse))
            raise RunError(
                f"`training.init_from`: {run} translates {there}, and the config is for {here}; "
                "exchange its sides, or train a new model"
            )
    if not resuming and origin is not None:
        copied_layout(origin)
    corpora, splits = open_training_corpora(data), read_splits(data, are_held_out=False)
    scan, text, checks = None, None, dict[str, QuickCheck]()
    verdicts: Mapping[str, bytes] = {}
    if resuming:
        checksums = {corpus.key: corpus.source.checksums() for corpus in corpora}
    else:
        text = TokenizerText.for_run(config.tokenizer, data, origin=origin)
        watches: dict[str, CorpusWatch] = {}
        if data.check:
            pairs = {name: split.pairs for name, split in splits.items()}
            watches = {corpus.key: CorpusWatch(pairs, corpus.cleaning) for corpus in corpora}
            checks = {key: watch.warnings for key, watch in watches.items()}
            for split in splits.values():
                checks[split.key] = partial(check_split, split.pairs, split.direction)
        watchers = {key: watch.read for key, watch in watches.items()}
        scan = scan_corpora(corpora, text=text, watchers=watchers)
        checksums, verdicts = dict(scan.checksums), scan.verdicts
    splits |= read_splits(data, are_held_out=True)
    checksums |= {split.key: split.checksums for split in splits.values()}
    pinned = tuple(
        corpus.pinned(checksums[corpus.key], verdicts.get(corpus.key)) for corpus in corpora
    )
    return ReadCorpora(pinned, splits, checksums, scan, text, checks)


def prepare(config: Config, folder: RunFolder, corpora: ReadCorpora | None = None) -> TrainingData:
    """Check the corpora of a config, train the tokenizer if necessary and encode the pairs.

    `corpora` are those of `read_corpora`, which are read here if they are not given.
    """
    resuming = bool(folder.checkpoints.updates())
    read = read_corpora(config, resuming=resuming) if corpora is None else corpora
    training, tags, initial = config.training, config.reserved_tags, None
    # A resumed run has weights of its own; the initial ones may be gone.
    if training.init_from is not None and not resuming:
        run = read_initial_run(training.init_from, config.model, tags, training.init_tags)
        initial = run.record.sha256
    folder.record_corpora(read.checksums, initial_weights=initial)
    if resuming:
        tokenizer = Tokenizer.load(folder.tokenizer)
    else:
        tokenizer = provide_tokenizer(
            config.tokenizer.changed(tags=tags),
            folder.tokenizer,
            origin=config.tokenizer_origin,
            text=read.text,
        )
    if config.data.check and not resuming:
        warn_about_corpora(read.checks, folder)
        are_tagged = all(corpus.tags[0] for corpus in read.training)
        for name, split in read.splits.items():
            if are_tagged and not config.split_tags(name)["tag"]:
                text = f"{split.key}: has no tag, but every training corpus has one; set "
                _logger.warning("warning: data.%s", f"{text}`data.{split.key}.tag`")
    data = _open_data(
        config, tokenizer, corpora=read.training, sums=read.checksums, splits=read.splits
    )
    folder.record_prepared(
        tokenizer.fingerprint, {key: store.left_out.removed for key, store in data.parts.items()}
    )
    return data


def open_prepared(config: Config, folder: RunFolder) -> TrainingData:
    """Return the corpus that another rank has prepared, without validation pairs.

    A host without that store encodes the pairs again, from the same text.
    """
    tokenizer = Tokenizer.load(folder.tokenizer)
    sums = {key: folder.checksums(key) for key in config.data.train_corpora()}
    opened = open_training_corpora(config.data)
    corpora = [corpus.pinned(sums[corpus.key]) for corpus in opened]
    return _open_data(config, tokenizer, corpora=corpora, sums=sums, splits={})


def _open_data(
    config: Config,
    tokenizer: Tokenizer,
    *,
    corpora: Sequence[OpenedCorpus],
    sums: Mapping[str, Checksums],
    splits: Mapping[str, SplitPairs],
) -> TrainingData:
    """Open the stores of all training corpora, encoding the pairs that are not in the cache.

    Raises ConfigError if the mixture takes no pair in the first epoch.
    """
    parts = {
        corpus.key: prepare_store(
            corpus.source,
            tokenizer.tagged(*corpus.tags),
            max_tokens=config.data.max_tokens,
            cache=cache_folder(),
            sums=sums[corpus.key],
            cleaning=corpus.cleaning,
        )
        for corpus in corpora
    }
    train, sizes = config.data.train, [len(store) for store in parts.values()]
    temperature = train.temperature if isinstance(train, MixtureSource) else 1.0
    mixture = mix(sizes, [corpus.weight for corpus in corpora], temperature=temperature)
    if not sum(mixture.counts(0)):
        raise ConfigError(
            f"`data.train`: the weights take none of the {sum(sizes):,} pairs in the first epoch; "
            "raise them"
        )
    valid = splits["valid"].pairs if splits else ()
    tagged = tokenizer.tagged(**config.split_tags("valid"))
    encoded = zip(
        tagged.encode_source([pair.source for pair in valid]),
        tagged.encode_target([pair.target for pair in valid]),
        strict=True,
    )
    examples = tuple(
        Example(index, np.array(source, np.int32), np.array(target, np.int32))
        for index, (source, target) in enumerate(encoded)
    )
    stores = [*parts.values()]
    store = join_stores(stores)
    share, limit, show_terms = config.data.terms, config.data.max_tokens, None
    if share:
        names = tuple(part.path.name for part in stores)
        show_terms = TermDrawing(share, names, limit, tokenizer, lambda: data.translation_table)
    sampling = Sampling(
        *config.tokenizer.subword_dropout,
        limit,
        config.seed,
        AUGMENTATIONS[config.data.augmentation],
        show_terms,
    )
    data = TrainingData(
        tokenizer=tokenizer,
        store=store,
        parts=parts,
        mixture=mixture,
        valid=valid,
        split_pairs={split.key: len(split.pairs) for split in splits.values()},
        valid_examples=examples,
        source_language=config.data.source_language,
        target_tokens_per_update=config.training.target_tokens_per_update,
        seed=config.seed,
        drawn=open_drawn(stores, tokenizer, sampling, epochs=config.training.max_epochs),
    )
    return data


def warn_about_corpora(checks: Mapping[str, QuickCheck], folder: RunFolder) -> None:
    """Log each fault that the quick checks find, with the keys of the corpora that have it."""
    command = f"mt data check {shlex.quote(str(folder.config))}"
    clauses_by_fault: dict[str, dict[str, str]] = {}
    for key, check in checks.items():
        try:
            clauses = check()
        except Exception as error:  # a failed check must not end the training
            clauses = [f"not checked ({error})"]
        for clause in clauses:
            fault = clause.partition("% of ")[2].partition(": ")[2] or clause
            clauses_by_fault.setdefault(fault, {})[f"data.{key}"] = clause
    for fault, places in clauses_by_fault.items():
        clause = fault if len(places) > 1 else next(iter(places.values()))
        _logger.warning("warning: %s: %s; run `%s`", ", ".join(places), clause, command)
