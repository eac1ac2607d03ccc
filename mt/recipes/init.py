"""A commented config for some corpus files, for `mt init`.

The corpora are checked, the splits are given or held out, and training's automatic settings are
written as explicit keys with their reasons.
"""

import logging
import math
import shlex
from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain, islice
from pathlib import Path
from tempfile import TemporaryDirectory
from textwrap import wrap
from typing import Any

import numpy as np
from pydantic import ValidationError

from mt.config import Config, DataConfig, DecodingConfig, ModelConfig, Source, TrainingConfig
from mt.config.base import Section
from mt.config.data import (
    TAG_KEYS,
    CleaningConfig,
    Direction,
    HeldOutSource,
    MixtureSource,
    TextSource,
)
from mt.config.loading import dump_yaml, load_config
from mt.data.filters import DUPLICATES, hash_pair, hash_text
from mt.data.pairs import EvenSample, SentencePair, spread
from mt.data.processes import count_processes
from mt.data.splits import (
    CorpusScan,
    OpenedCorpus,
    open_split,
    open_splits,
    open_training_corpora,
    read_splits,
    scan_corpora,
)
from mt.decoding.translator import Translator
from mt.doctor.check import check_corpora
from mt.doctor.corpus_report import Row, format_percent, make_rows
from mt.doctor.findings import CLEANING, IDENTIFYING_SECONDS, KINDS, RARE, CorpusReport
from mt.doctor.tally import LineBlock
from mt.errors import ConfigError, DataError, UserError
from mt.files import check_output, open_aside, put_in_place, write_text
from mt.languages import base_language
from mt.model.device import select_device
from mt.recipes.detection import DetectedCorpus, detect_corpora, detect_data
from mt.runs import CONFIG_FILE, check_finished
from mt.training import automatic
from mt.training.automatic import estimate_parameters, measure_corpora
from mt.training.distributed import World
from mt.training.resolve import Setting, Settings, choose_settings, expect_updates, with_settings
from mt.training.resources import measure_speed

_MIN_PAIRS_WITH_SPLITS = 100
"""Least number of different pairs if validation and test pairs are given."""
MAX_CHECKED = 100_000
"""Pairs of a sample to check; checking takes 150 to 250 microseconds a pair."""
_BLOCK_PAIRS = 1000
"""Consecutive pairs in the sample; sides out of step show only between neighbouring lines."""
_MAX_WARNINGS = 8
_WIDTH = 100
_logger = logging.getLogger(__name__)
_AUGMENTATION = "typos, missing marks and the like in other pairs of each epoch"
AUGMENTED_PASSES = 12
"""Passes over the corpus from which on a model has time for changed pairs as well.

With 13 passes over Multi30k they bring 1.2 BLEU; over Tatoeba en-zh 10 cost 3.3, 50 bring 0.6.
"""
_TERMS = "  # terms: 0.3  # obey `--glossary`; needs `vocabulary: joint`"
ADAPTATION = ((10_000, 1.0, 1 / 8, "17m"), (1000, 2.0, 1 / 8, "5m"), (0, 4.0, 1 / 16, "2m"))
"""Least number of new pairs, their weight, share of the rate of a new model, and budget."""
_OLD_PER_NEW = 4
"""Old pairs drawn for each new one."""
_LEAST_OLD = 20_000
"""Old pairs to write, where a run has them, for few new ones."""
_LEAST_UNSEEN = 0.05
"""Share of the new pairs that a run must not have seen in its corpora or test splits."""
_TRANSLATED = 2000
"""New sources that a run translates if its corpora are missing."""
_MOST_HELD_OUT = 500
"""Pairs of a held-out split of an adaptation: a tenth of the new ones, and no more than this."""
SAMPLED_PASSES = 40
"""Passes from which on BPE also cuts source words in other ways (Provilkov et al. 2020).

With 50 passes over Tatoeba en-zh, typos then cost 12 % of the BLEU in place of 18 %.
"""
_SOURCE_DROPOUT = 0.05


@dataclass(frozen=True)
class Request:
    """Arguments of `mt init`; places are files, folders, URLs and datasets of the hub."""

    train: Sequence[str]
    valid: Sequence[str] = ()
    test: Sequence[str] = ()
    source_language: str | None = None
    target_language: str | None = None
    budget: str | None = None
    size: str | None = None
    """A name of `WIDTHS`; None: the best size for corpus and time."""
    form: Mapping[str, object] = field(default_factory=dict)
    """Keys of `model` that an export needs."""
    start: Path | None = None
    """Finished run to adapt; None for a new model."""
    output: Path | None = None
    """None: NAME.yaml in the current folder, named after the first corpus."""


def write_new_config(request: Request) -> Path:
    """Write a config for the corpora of a request, and return its path.

    Languages, faults of the corpora and the expected cost are logged. Raises UserError for a
    request that gives no config which can be trained, before anything is written.
    """
    try:
        training = TrainingConfig(budget=request.budget) if request.budget else TrainingConfig()
    except ValidationError:
        raise ConfigError(
            f"--budget {request.budget}: write a number and a unit, such as 90s, 30m, 2h or 1d"
        ) from None
    valid = detect_corpora(request.valid, option="--valid")
    tests = detect_corpora(request.test, option="--test")
    train = detect_corpora(request.train)
    given = request.source_language, request.target_language
    if request.start is not None:
        given = _languages_of(request.start, train[0], given)
    data = detect_data(train, valid=valid, tests=tests, given=given)
    output = request.output or Path(f"{train[0].name}.yaml")
    folder = output.with_suffix(".data")  # of the texts of an adaptation
    for path in (output, folder) if request.start else (output,):
        check_output(path)
        if path.exists():
            raise UserError(f"{path}: exists; delete it, or choose another --output")
    scan = _scan(data)
    data = _hold_out(data, scan, adapts=request.start is not None)
    with TemporaryDirectory(prefix="mt-init-") as sampled:
        checked = _write_sample(data, scan, Path(sampled)) if scan.is_sampled else data
        report = check_corpora(checked, pairs=scan.corpora.pairs)
        for split in report.splits:
            blocks = scan.blocks.get(split.name, ())
            name_line = partial(_name_line, blocks) if scan.is_sampled and blocks else "{:,}".format
            if errors := split.errors(name_line):
                description = scan.descriptions.get(split.name, split.description)
                raise DataError(f"{description}: {errors[0]}")
            for one in split.findings:
                if one.kind == "overlap_pair" and one.share == 1 and one.other not in scan.blocks:
                    message = f"all pairs are also in `{one.other}`; give `{split.name}` others"
                    raise DataError(f"{split.description}: {message}")
        cleaning = report.cleaning  # a sample shows few of the duplicates and overlaps
        if scan.is_sampled and scan.distinct < (1 - RARE) * scan.corpora.pairs:
            cleaning = cleaning.changed(duplicates="pair")
        if any(shared for shared, _ in scan.overlaps.values()):
            cleaning = cleaning.changed(overlap="normalized")
        try:
            read_splits(checked.changed(cleaning=cleaning), are_held_out=True)
        except DataError as error:
            raise DataError(f"{error}; give splits with --valid and --test") from None
    trained = [split for split in report.splits if split.name in scan.blocks]
    of = f" of {sum(split.pairs for split in trained):,} checked" if scan.is_sampled else ""
    comments = _explain_cleaning(cleaning, report.removed, scan, of)
    _log_findings(report, comments, scan, f"`mt data check {shlex.quote(str(output))}`")
    if request.start is not None:
        data = data.changed(cleaning=cleaning.changed(overlap="normalized"))
        comments["overlap"] = "keeps the texts of the splits out of training"
        config = _adapt(request.start, data, training, scan, folder)
        data, text = config.data, _format_config(config, {}, comments, offers_terms=False)
    else:
        model = ModelConfig.model_validate(request.form)
        config = Config(data=data.changed(cleaning=cleaning), model=model, training=training)
        text = _format_new_model(config, scan, request.size, comments)
    write_text(output, text)
    run = shlex.quote(str(Path("runs") / output.stem))
    then = f"mt translate {run}, and mt evaluate {run} --split {next(iter(data.tests))}"
    _logger.info("next: mt train %s; then %s", shlex.quote(str(output)), then)
    return output


def _format_new_model(
    config: Config, scan: "_Scan", size: str | None, comments: Mapping[str, str]
) -> str:
    """Return the config of a new model with chosen settings, whose cost is logged."""
    data, training = config.data, config.training
    device = select_device(training.device)
    takes = "some seconds" if device.type == "cpu" else "some minutes"
    _logger.info("choosing settings; the speed of this machine is measured for %s", takes)
    measure = partial(measure_speed, world=World(device_name=training.device))
    corpus = measure_corpora(scan.corpora, data.max_tokens)
    if data.cleaning.language:
        identifying = corpus.pairs * IDENTIFYING_SECONDS / count_processes()
        corpus = replace(corpus, cleaning_seconds=identifying)
    width = automatic.WIDTHS[size] if size else None
    settings, forecast = choose_settings(config, corpus, device, measure, width)
    assert forecast is not None, "a new config has open keys"
    sized = with_settings(config, settings)
    updates = expect_updates(sized.training, forecast, corpus)
    passes = updates * forecast.update_tokens / corpus.target_tokens
    if passes >= AUGMENTED_PASSES:
        augmentation = "on"
        if passes >= SAMPLED_PASSES and settings["tokenizer.algorithm"].value == "bpe":
            augmentation = "strong"
            reason = "source words are cut in other ways in each epoch, so that typos cost less"
            settings["tokenizer.subword_dropout"] = Setting([_SOURCE_DROPOUT, 0.0], reason)
        config = config.changed(data=config.data.changed(augmentation=augmentation))
    shape = sized.model
    layers = f"{shape.encoder_layers} + {shape.decoder_layers} layers"
    millions = estimate_parameters(shape, sized.tokenizer.vocabulary_size) / 1e6
    _logger.info("model: %s of width %d, %.1f million parameters", layers, shape.d_model, millions)
    minutes = max(1, round(forecast.seconds / 60))
    time = f"{minutes} minutes" if minutes < 90 else f"{forecast.seconds / 3600:.1f} hours"
    expected = f"until validation BLEU stops improving, in about {time}, or earlier or later"
    _logger.info(
        "training on %s: %s; about %s updates, %s passes over the corpus",
        device.type,
        training.budget or expected,
        f"{updates:,.0f}",
        f"{passes:.1f}" if passes < 10 else f"{passes:,.0f}",
    )
    automatic.warn_of_weakness(scan.distinct, passes)
    return _format_config(config, settings, comments, offers_terms=passes >= AUGMENTED_PASSES)


@dataclass(frozen=True)
class _Scan:
    """Facts from one reading of all training pairs."""

    descriptions: Mapping[str, str]
    """Files or name of each training corpus, by key."""
    corpora: CorpusScan
    distinct: int
    """Pairs without repetitions within a corpus."""
    overlaps: Mapping[str, tuple[int, int]]
    """Pairs with a text that is also in a training corpus, and all pairs, of each given split."""
    blocks: Mapping[str, Sequence[LineBlock]]
    """Sample of each corpus, by key: consecutive pairs, evenly spread."""

    @property
    def is_sampled(self) -> bool:
        """True if there are too many pairs to check all of them."""
        return self.corpora.pairs > MAX_CHECKED


def _scan(data: DataConfig) -> _Scan:
    """Read the given splits and the training corpora once each.

    Raises DataError if a corpus is unreadable, or its sides differ.
    """

    given = read_splits(data, are_held_out=False)
    splits = {name: [*map(hash_pair, split.pairs)] for name, split in given.items()}
    wanted = {hashed for pairs in splits.values() for hashes in pairs for hashed in hashes}
    wanted.discard(hash_text(""))
    common = set[int]()
    # The number of pairs to hold out is not known yet.
    corpora = [
        replace(corpus, cleaning=replace(corpus.cleaning, held_out=()))
        for corpus in open_training_corpora(data)
    ]
    hashes = {corpus.key: array("Q") for corpus in corpora}
    most = max(2, MAX_CHECKED // _BLOCK_PAIRS)
    samples = {corpus.key: EvenSample[LineBlock](most) for corpus in corpora}

    def watch(key: str, pairs: Iterator[SentencePair]) -> Iterator[SentencePair]:
        while block := list(islice(pairs, _BLOCK_PAIRS)):
            sides = [pair.source for pair in block], [pair.target for pair in block]
            samples[key].add([LineBlock(len(hashes[key]), *sides)])
            hashes[key].extend(hash_text(DUPLICATES["pair"](pair)) for pair in block)
            if wanted:
                common.update(wanted.intersection(chain.from_iterable(map(hash_pair, block))))
            yield from block

    scan = scan_corpora(corpora, watchers={key: partial(watch, key) for key in hashes})
    every = max(1, math.ceil(sum(len(sample.items) for sample in samples.values()) / most))
    return _Scan(
        {corpus.key: corpus.source.description for corpus in corpora},
        scan,
        distinct=sum(len(np.unique(np.asarray(of_corpus))) for of_corpus in hashes.values()),
        overlaps={
            name: (sum(not common.isdisjoint(hashes) for hashes in pairs), len(pairs))
            for name, pairs in splits.items()
        },
        blocks={key: sample.items[::every] for key, sample in samples.items()},
    )


def _hold_out(data: DataConfig, scan: _Scan, *, adapts: bool) -> DataConfig:
    """Return the data with held-out splits in place of those that are not given.

    A split has 1 % of the pairs, 1,000 to 2,000, at most 2.5 %; for a model that `adapts`, 10 %.
    Raises DataError if there are too few pairs.
    """
    count = min(max(scan.distinct // 100, 1000), 2000, scan.distinct // 40)
    if adapts:
        count = min(scan.distinct // 10, _MOST_HELD_OUT)
    split = HeldOutSource(held_out=max(count, 1))
    changed: dict[str, Any] = {}
    if isinstance(data.valid, HeldOutSource):
        changed["valid"] = split
    if not data.tests:
        changed["tests"] = {"test": split}
    least = automatic.LEAST_PAIRS if changed and not adapts else _MIN_PAIRS_WITH_SPLITS
    if scan.distinct < least:
        why = ", because validation and test pairs are held out of them" if changed else ""
        raise DataError(
            f"{', '.join(scan.descriptions.values())}: {scan.distinct:,} different pairs are too "
            f"few; at least {least} are needed{why}"
        )
    names = " and as many for ".join(key.removesuffix("s") for key in changed)
    left = f"; {count:,} are held out for {names}" if changed else ""
    _logger.info("training pairs: %s%s", f"{scan.corpora.pairs:,}", left)
    return data.changed(**changed)


def _write_sample(data: DataConfig, scan: _Scan, folder: Path) -> DataConfig:
    """Write a sample of each training corpus, and return the data with these files."""
    samples: list[Source] = []
    for index, blocks in enumerate(scan.blocks.values()):
        source, target = (folder / f"{index}.{side}" for side in ("source", "target"))
        write_text(source, "".join(f"{text}\n" for block in blocks for text in block.sources))
        write_text(target, "".join(f"{text}\n" for block in blocks for text in block.targets))
        samples.append(TextSource(source=str(source), target=str(target)))
    train: Source | MixtureSource = samples[0]
    if isinstance(data.train, MixtureSource):
        train = MixtureSource(corpora=dict(zip(data.train.corpora, samples, strict=True)))
    return data.changed(train=train)


def _name_line(blocks: Sequence[LineBlock], line: int) -> str:
    """Return the place in a corpus of a line of its sample."""
    block, index = divmod(line - 1, _BLOCK_PAIRS)
    return f"{blocks[block].first + index + 1:,} or before"


def _log_findings(
    report: CorpusReport, removed: Mapping[str, str], scan: _Scan, check: str
) -> None:
    """Log what training removes and the worst of what it leaves; `check` shows all of it."""
    if scan.is_sampled:
        number = sum(len(block.sources) for blocks in scan.blocks.values() for block in blocks)
        _logger.info("checked: an even sample of %s pairs", f"{number:,}")
    _logger.info("removed in training:%s", "" if removed else " nothing")
    for key, comment in removed.items():
        _logger.info("  %s (`%s`)", comment, key)
    left = list[tuple[str, Row]]()
    for split in report.splits:
        gone = report.removed if split.name in scan.blocks else {}
        rows = make_rows(
            one for one in split.findings if one.kind not in gone and one.other not in scan.blocks
        )
        left += [(split.name, row) for row in rows]
    left.sort(key=lambda named: list(KINDS).index(named[1].kind))
    if left:
        _logger.info("left as it is (%s shows all lines):", check)
    for name, row in left[:_MAX_WARNINGS]:
        share = f"{row.count:,} ({format_percent(row.share)})"
        _logger.info("  %s: %s %s", name, share, row.words)
    for note in report.notes:
        _logger.warning("note: %s", note)


def _explain_cleaning(
    cleaning: CleaningConfig, removed: Mapping[str, int], scan: _Scan, of: str
) -> dict[str, str]:
    """Return how many pairs or lines each key of the cleaning concerns."""
    comments = {}
    for key in cleaning.model_dump(exclude_defaults=True):
        kinds = [kind for kind in removed if CLEANING.get(kind, ("",))[0] == key]
        if key == "duplicates" and scan.is_sampled:
            comments[key] = f"{scan.corpora.pairs - scan.distinct:,}: {KINDS['duplicate_pair']}"
        elif key == "overlap":
            counted = [f"{n:,} of {m:,} in `{name}`" for name, (n, m) in scan.overlaps.items() if n]
            comments[key] = f"{', '.join(counted)}: pairs with a text that is also in training"
        else:
            comments[key] = "; ".join(f"{removed[kind]:,}{of}: {KINDS[kind]}" for kind in kinds)
    return comments


def _languages_of(
    run: Path, corpus: DetectedCorpus, given: tuple[str | None, str | None]
) -> Direction:
    """Return the languages of a finished run, by its validation split.

    Raises RunError for a missing run, DataError if those `given` or of the file names are others.
    """
    check_finished(run)
    data = load_config(run / CONFIG_FILE).data
    direction = data.direction_of(data.valid)
    named = [code or suffix for code, suffix in zip(given, corpus.suffixes, strict=True)]
    for code, language in zip(named, direction, strict=True):
        if code and base_language(code) != base_language(language):
            raise DataError(
                f"{corpus.description}: a side is in `{code}` in place of `{language}`; {run} "
                f"translates {direction}, and the first file is the source side"
            )
    return direction


def _adapt(
    run: Path, data: DataConfig, training: TrainingConfig, scan: _Scan, folder: Path
) -> Config:
    """Return the config that adapts a run to data; write its other texts into a new `folder`.

    Those are all splits, with the test splits of the run, and old pairs, which keep what the run
    has learnt.
    """
    start = load_config(run / CONFIG_FILE)
    tags = start.split_tags("valid")
    weight, share, budget = next(row[1:] for row in ADAPTATION if scan.distinct >= row[0])
    new = data.train.corpora if isinstance(data.train, MixtureSource) else {"new": data.train}
    train = {name: section.changed(weight=weight, **tags) for name, section in new.items()}
    data = data.changed(
        train=MixtureSource(corpora=train),
        valid=data.valid.changed(**tags),
        tests={name: section.changed(**tags) for name, section in data.tests.items()},
        **{key: getattr(start.data, key) for key in ("max_tokens", "terms", "augmentation")},
    )
    texts = {name: (split, [*split.pairs()]) for name, split in open_splits(data).items()}
    given = (pair for corpus in open_training_corpora(data) for pair in corpus.pairs())
    unseen = {*islice(given, MAX_CHECKED)}
    count = len(unseen)

    def free_name(name: str) -> str:
        return free_name(f"old-{name}") if name in {*texts, *train} else name

    for name in start.data.tests or ("valid",):
        try:
            split = open_split(start.data, name)
            guard = [*split.pairs()]
        except UserError as error:
            _logger.warning("warning: `%s` of %s is left out: %s", name, run, error)
            continue
        texts[free_name(f"old-{name}")] = split, guard
        held_out = {hashed for pair in guard for hashed in hash_pair(pair)}
        unseen = {pair for pair in unseen if held_out.isdisjoint(hash_pair(pair))}
    splits, total, old = [*texts], 0.0, _sample_old_pairs(run, start, scan.distinct, unseen)
    if len(unseen) <= _LEAST_UNSEEN * count:
        raise DataError(
            f"{', '.join(scan.descriptions.values())}: {count - len(unseen):,} of {count:,} pairs "
            f"are in the training corpora or the test splits of {run}; give it new pairs"
        )
    keys = {"init_from": run, "budget": training.budget or budget}
    if old:
        keys["learning_rate"] = automatic.choose_learning_rate(start.model.d_model, share)
    for corpus, pairs in old or _translate_new_sources(run, start, data):
        total += corpus.weight * len(pairs)
        name = "old" if corpus.key == "train" else corpus.key.rpartition(".")[2]
        texts[free_name(name)] = corpus, pairs
    drawn = _OLD_PER_NEW * weight * scan.distinct / max(total, 1.0)
    sections = dict[str, TextSource]()
    with open_aside(folder) as temporary:
        for name, (corpus, pairs) in texts.items():
            section = dict[str, Any](zip(TAG_KEYS, corpus.tags, strict=True))
            for side, code in corpus.direction._asdict().items():
                lines = "".join(f"{getattr(pair, side)}\n" for pair in pairs)
                write_text(temporary / f"{name}.{code}", lines)
                section |= {side: str(folder / f"{name}.{code}"), f"{side}_language": code}
            if name not in splits:
                section["weight"] = float(f"{drawn * corpus.weight:.2g}")
            sections[name] = TextSource(**section)
        put_in_place(temporary, folder, is_new=True)
    tests = {name: sections.pop(name) for name in splits}
    data = data.changed(
        train=MixtureSource(corpora=train | sections), valid=tests.pop("valid"), tests=tests
    )
    decoding = start.decoding.model_dump(exclude_defaults=True, exclude={"ensemble", "adapter"})
    training = training.changed(**keys)
    return Config(data=data, training=training, decoding=DecodingConfig(**decoding))


OldPairs = list[tuple[OpenedCorpus, list[SentencePair]]]


def _sample_old_pairs(
    run: Path, start: Config, new_pairs: int, unseen: set[SentencePair]
) -> OldPairs:
    """Return an even sample of a run's cleaned corpora, or []; take all pairs out of `unseen`."""
    most = max(_OLD_PER_NEW * new_pairs, _LEAST_OLD)
    old, sample = OldPairs(), EvenSample[tuple[str, SentencePair]](most)
    try:
        corpora = open_training_corpora(start.data)
        for corpus in corpora:
            keyed = ((corpus.key, pair) for pair in corpus.pairs())
            while block := list(islice(keyed, _BLOCK_PAIRS)):
                sample.add(block)
                unseen.difference_update(pair for _, pair in block)
    except UserError as error:
        _logger.warning("warning: %s cannot show its old pairs: %s", run, error)
        return []
    for corpus in corpora:
        pairs = (pair for key, pair in sample.items if key == corpus.key)
        old.append((corpus, [*corpus.cleaning.clean(pairs)]))
    _logger.info("old pairs: %s of the corpora of %s", f"{len(sample.items):,}", run)
    return old


def _translate_new_sources(run: Path, start: Config, data: DataConfig) -> OldPairs:
    """Return sources of new pairs with the translations of a run, which resist a change of it."""
    new = open_training_corpora(data)[0]
    sources = [pair.source for pair in spread([*new.cleaned()], _TRANSLATED)]
    _logger.info("old pairs: %s new sources with the translations of %s", f"{len(sources):,}", run)
    overrides = [*start.tag_overrides("valid"), "decoding.search=greedy"]
    lines = Translator.load(run, overrides=overrides).translate(sources)
    return [(replace(new, key="train", weight=1.0), [*map(SentencePair, sources, lines)])]


def _format_config(
    config: Config, settings: Settings, comments: Mapping[str, str], *, offers_terms: bool
) -> str:
    """Return the config with settings as YAML; comments give the reasons."""
    data = config.data.model_dump(mode="json", exclude_defaults=True)
    cleaning = data.pop("cleaning", {})
    lines = [
        "# Written by `mt init`. A removed key is chosen again when training starts, or is off.",
        "data:",
        *_format_entries(data, {"augmentation": _AUGMENTATION}, indent=2),
    ]
    if offers_terms:
        lines.append(_TERMS)
    if cleaning:
        lines += ["  cleaning:", *_format_entries(cleaning, comments, indent=4)]
    for name, section in config:
        if name == "data" or not isinstance(section, Section):
            continue
        values, reasons, given = {}, {}, section.model_dump(mode="json", exclude_unset=True)
        for key in type(section).model_fields:
            setting = settings.get(f"{name}.{key}")
            if setting is not None:
                values[key], reasons[key] = setting.value, setting.reason
            elif key in given:
                values[key] = given[key]
        if values:
            lines += [f"{name}:", *_format_entries(values, reasons, indent=2)]
    return "\n".join(lines) + "\n"


def _format_entries(
    values: Mapping[str, Any], comments: Mapping[str, str], *, indent: int
) -> Iterator[str]:
    space = " " * indent
    for key, value in values.items():
        lines = [f"{space}{line}" for line in dump_yaml({key: value}).splitlines()]
        if comment := comments.get(key):
            if len(lines[0]) + len(comment) + 4 <= _WIDTH:
                lines[0] += f"  # {comment}"
            else:
                yield from (f"{space}# {line}" for line in wrap(comment, _WIDTH - indent - 2))
        yield from lines
