"""A commented config for some corpus files, for `mt init`.

The corpora are checked, the splits are given or held out, and training's automatic settings are
written as explicit keys with their reasons.
"""

import logging
import math
import re
import shlex
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from textwrap import wrap
from typing import Any

import torch
from pydantic import ValidationError

from mt.config import Config, DataConfig, Source, TrainingConfig
from mt.config.base import Section
from mt.config.data import CleaningConfig, HeldOutSource, MixtureSource, TextSource, TsvSource
from mt.config.loading import dump_yaml, open_keys
from mt.config.yaml_reader import parse_value
from mt.data.batches import plan_updates
from mt.data.filters import DUPLICATES, SeenTexts, normalized
from mt.data.pairs import SentencePair
from mt.data.sources import open_source
from mt.data.splits import (
    CorpusScan,
    HeldOutPairs,
    open_split,
    open_splits,
    open_training_corpora,
    scan_corpora,
)
from mt.doctor.check import are_swapped, check_corpora, describe_misaligned
from mt.doctor.corpus_report import format_percent, make_rows
from mt.doctor.findings import KINDS, CorpusReport, find_reasons
from mt.errors import ConfigError, DataError, UserError
from mt.files import check_output, write_text
from mt.languages import base_language
from mt.model.device import select_device
from mt.recipes.detection import (
    DetectedCorpus,
    check_code,
    choose_columns,
    detect_corpora,
    detect_languages,
    make_section,
)
from mt.training.automatic import CorpusStatistics, Forecast, measure_corpora
from mt.training.distributed import World
from mt.training.loader import heaviest
from mt.training.resolve import Setting, Settings, choose_sizes, with_settings
from mt.training.resources import estimate_memory, measure_speed
from mt.training.setup import count_parameters

_MIN_PAIRS = 500
_MIN_PAIRS_WITH_SPLITS = 100
"""Least number of different pairs if validation and test pairs are given."""
MAX_CHECKED = 100_000
"""Pairs of a sample to check; checking takes 150 to 250 microseconds a pair."""
_BLOCK_PAIRS = 1000
"""Consecutive pairs in the sample; sides out of step show only between neighbouring lines."""
_MAX_WARNINGS = 5
_WIDTH = 100
_logger = logging.getLogger(__name__)
_AUGMENTATION = "typos, missing marks and the like in other pairs of each epoch"
AUGMENTED_PASSES = 12
"""Passes over the corpus from which on a model has time for changed pairs as well.

With 13 passes over Multi30k they bring 1.2 BLEU; over Tatoeba en-zh 10 cost 3.3, 50 bring 0.6.
"""
_TERMS = "  # terms: 0.3  # obey `--glossary`; needs `vocabulary: joint`"
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
    output: Path | None = None
    """None: NAME.yaml in the current folder, named after the first corpus."""


def write_new_config(request: Request) -> Path:
    """Write a config for the corpora of a request, and return its path.

    Languages, faults of the corpora and the expected cost are logged. Raises UserError for a
    request that gives no config which can be trained, before anything is written.
    """
    check_code("--source-language", request.source_language)
    check_code("--target-language", request.target_language)
    try:
        TrainingConfig(budget=request.budget)
    except ValidationError:
        raise ConfigError(
            f"--budget {request.budget}: write a number and a unit, such as 90s, 30m, 2h or 1d"
        ) from None
    train = detect_corpora(request.train)
    output = request.output or Path(f"{train[0].name}.yaml")
    check_output(output)
    if output.exists():
        raise UserError(f"{output}: exists; delete it, or choose another --output")
    data = _make_data(request, train)
    scan = _scan(data)
    data = _hold_out(data, scan, request)
    with _open_sample(data, scan.corpora.pairs) as checked:
        report = check_corpora(checked)
        cleaning = _choose_cleaning(report, scan)
        _try_to_hold_out(data.changed(cleaning=cleaning), checked.changed(cleaning=cleaning))
    is_sample = checked is not data
    data = data.changed(cleaning=cleaning)
    _log_findings(report, data, output, scan, is_sample=is_sample)
    sections: dict[str, Any] = {"data": data}
    if request.budget:
        sections["training"] = TrainingConfig(budget=request.budget)
    config = Config(**sections)
    device = select_device(config.training.device)
    takes = "some seconds" if device.type == "cpu" else "some minutes"
    _logger.info("choosing settings; the speed of this machine is measured for %s", takes)
    measure = partial(measure_speed, world=World(device_name=config.training.device))
    corpus = measure_corpora(scan.corpora, data.max_tokens)
    settings, forecast = choose_sizes(config, corpus, device, measure)
    assert forecast is not None, "a new config has open keys"
    passes = forecast.tokens / corpus.target_tokens
    if passes >= AUGMENTED_PASSES:
        augmentation = "on"
        if passes >= SAMPLED_PASSES and settings["tokenizer.algorithm"].value == "bpe":
            augmentation = "strong"
            reason = "source words are cut in other ways in each epoch, so that typos cost less"
            settings["tokenizer.subword_dropout"] = Setting([_SOURCE_DROPOUT, 0.0], reason)
        config = config.changed(data=data.changed(augmentation=augmentation))
    _log_cost(with_settings(config, settings), corpus, forecast, device)
    comments = _explain_cleaning(data, report, scan, is_sample=is_sample)
    offers_terms = passes >= AUGMENTED_PASSES
    write_text(output, _format_config(config, settings, comments, offers_terms=offers_terms))
    run = shlex.quote(str(Path("runs") / output.stem))
    _logger.info(
        "next: mt train %s; then mt translate %s, and mt evaluate %s --split %s",
        shlex.quote(str(output)),
        run,
        run,
        next(iter(data.tests)),
    )
    return output


def _make_data(request: Request, train: Sequence[DetectedCorpus]) -> DataConfig:
    """Return the data of the files of a request, without held-out splits."""
    valid, tests = detect_corpora(request.valid), detect_corpora(request.test)
    if len(valid) > 1:
        raise DataError(f"--valid {valid[1].description}: there is one validation split")
    trained = {corpus.description for corpus in train}
    for corpus in (*valid, *tests):
        if corpus.description in trained:
            raise DataError(f"{corpus.description}: is a training corpus as well")
    source, target = request.source_language, request.target_language
    train = [choose_columns(corpus, (source, target)) for corpus in train]
    languages = detect_languages(train[0], source, target)
    valid, tests = (
        [choose_columns(corpus, languages) for corpus in corpora] for corpora in (valid, tests)
    )
    is_given = bool(source and target)
    evidence = ""
    if (
        not is_given
        and isinstance(train[0].section, TextSource | TsvSource)
        and None in train[0].suffixes
    ):
        evidence = ", identified by the text; --source-language and --target-language set others"
    _logger.info("languages: %s to %s%s", *languages, evidence)

    def orient(corpus: DetectedCorpus) -> Source:
        """Return the section with the sides of text files and columns in the direction."""
        section, suffixes = corpus.section, corpus.suffixes
        if isinstance(section, TextSource) and suffixes == languages[::-1]:
            return section.changed(source=section.target, target=section.source)
        if isinstance(section, TsvSource) and are_swapped(corpus.first_pairs(), languages):
            columns = section.columns[::-1]
            _logger.info("%s: column %d is the source side", corpus.description, columns[0])
            return section.changed(columns=columns)
        for code, language in zip(suffixes, languages, strict=True):
            if code and base_language(code) != base_language(language) and not is_given:
                raise DataError(
                    f"{corpus.description}: a side is in `{code}`, but the first corpus is in "
                    f"`{languages[0]}` and `{languages[1]}`; a config has one direction"
                )
        return make_section(corpus, languages)

    names = ["test"] if len(tests) == 1 else _make_names(tests, taken={"train", "valid"})
    sections = [orient(corpus) for corpus in train]
    only, *others = sections
    mixture = dict(zip(_make_names(train), sections, strict=True))
    return DataConfig(
        source_language=languages[0],
        target_language=languages[1],
        train=MixtureSource(corpora=mixture) if others else only,
        valid=orient(valid[0]) if valid else HeldOutSource(held_out=1),
        tests={name: orient(corpus) for name, corpus in zip(names, tests, strict=True)},
    )


def _make_names(corpora: Sequence[DetectedCorpus], *, taken: Collection[str] = ()) -> list[str]:
    names: list[str] = []
    for corpus in corpora:
        name = re.sub(r"[^A-Za-z0-9_-]+", "-", corpus.name).strip("-_") or "corpus"
        candidates = (name if index == 1 else f"{name}-{index}" for index in count(1))
        names.append(next(new for new in candidates if new not in {*names, *taken}))
    return names


@dataclass(frozen=True)
class _Scan:
    """Counts of all training pairs."""

    corpora: CorpusScan
    distinct: int
    """Pairs without repetitions within a corpus."""
    overlaps: Mapping[str, tuple[int, int]]
    """Pairs with a text that is also in a training corpus, and all pairs, of each given split."""

    @property
    def repeated(self) -> int:
        """Pairs that occur before in their corpus."""
        return self.corpora.pairs - self.distinct


def _scan(data: DataConfig) -> _Scan:
    """Read the given splits and the training corpora.

    Raises DataError if a corpus is unreadable, or its sides differ.
    """
    corpora = open_training_corpora(data)
    seen = {corpus.key: SeenTexts() for corpus in corpora}
    splits = {
        name: [_normalize(pair) for pair in open_split(data, name).pairs()]
        for name in data.split_names()
        if not isinstance(data.split(name), HeldOutSource)
    }
    wanted = {text for pairs in splits.values() for texts in pairs for text in texts if text}
    common = set[str]()

    def watch(texts: SeenTexts, pairs: Iterator[SentencePair]) -> Iterator[SentencePair]:
        for pair in pairs:
            texts.add(DUPLICATES["pair"](pair))
            if wanted:
                common.update(wanted.intersection(_normalize(pair)))
            yield pair

    watchers = {key: partial(watch, texts) for key, texts in seen.items()}
    scan = scan_corpora(corpora, watchers=watchers)
    overlaps = {
        name: (sum(not common.isdisjoint(texts) for texts in pairs), len(pairs))
        for name, pairs in splits.items()
    }
    return _Scan(scan, sum(map(len, seen.values())), overlaps)


def _normalize(pair: SentencePair) -> tuple[str, str]:
    return normalized(pair.source), normalized(pair.target)


def _hold_out(data: DataConfig, scan: _Scan, request: Request) -> DataConfig:
    """Return the data with held-out splits in place of those that are not given.

    Raises DataError if there are too few pairs.
    """
    pairs, distinct = scan.corpora.pairs, scan.distinct
    missing = [name for name in ("valid", "test") if not getattr(request, name)]
    least = _MIN_PAIRS if missing else _MIN_PAIRS_WITH_SPLITS
    if distinct < least:
        why = ", because validation and test pairs are held out of them" if missing else ""
        corpora = ", ".join(c.source.description for c in open_training_corpora(data))
        raise DataError(
            f"{corpora}: {distinct:,} different pairs are too few; at least {least} are needed{why}"
        )
    # 1 % of the pairs, 1,000 to 2,000, at most 2.5 %.
    held_out = min(max(distinct // 100, 1000), 2000, distinct // 40)
    split = HeldOutSource(held_out=held_out)
    changed: dict[str, Any] = {"valid": split} if "valid" in missing else {}
    changed |= {"tests": {"test": split}} if "test" in missing else {}
    left = f"; {held_out:,} are held out for {' and as many for '.join(missing)}"
    _logger.info("training pairs: %s%s", f"{pairs:,}", left if missing else "")
    return data.changed(**changed)


@contextmanager
def _open_sample(data: DataConfig, pairs: int) -> Iterator[DataConfig]:
    """Yield the data to check: the same, or with a sample of large training corpora."""
    every = math.ceil(pairs / MAX_CHECKED)
    if every == 1:
        yield data
        return
    with TemporaryDirectory(prefix="mt-init-") as folder:
        samples: list[Source] = [
            _write_sample(section, data, Path(folder) / str(index), every=every)
            for index, section in enumerate(data.train_corpora().values())
        ]
        train: Source | MixtureSource = samples[0]
        if isinstance(data.train, MixtureSource):
            train = MixtureSource(corpora=dict(zip(data.train.corpora, samples, strict=True)))
        yield data.changed(train=train)


def _try_to_hold_out(data: DataConfig, sample: DataConfig) -> None:
    """Choose the held-out splits from a sample, or else from all pairs; raise DataError if none."""
    try:
        for split in open_splits(sample).values():
            if isinstance(split.source, HeldOutPairs):
                split.source.checksums()
    except DataError as error:
        if sample == data:
            raise DataError(f"{error}; give splits with --valid and --test") from None
        _try_to_hold_out(data, data)


def _write_sample(section: Source, data: DataConfig, stem: Path, *, every: int) -> TextSource:
    source, target = stem.with_suffix(".source"), stem.with_suffix(".target")
    with source.open("w", encoding="utf-8") as left, target.open("w", encoding="utf-8") as right:
        for index, pair in enumerate(open_source(section, data.direction_of(section)).pairs()):
            if index // _BLOCK_PAIRS % every == 0:
                left.write(f"{pair.source}\n")
                right.write(f"{pair.target}\n")
    return TextSource(source=str(source), target=str(target))


def _choose_cleaning(report: CorpusReport, scan: _Scan) -> CleaningConfig:
    """Return the advised cleaning; a sample shows few of the duplicates and overlaps."""
    advised = parse_value(report.cleaning)["data"]["cleaning"] if report.cleaning else {}
    if scan.repeated:
        advised["duplicates"] = "pair"
    if scan.overlaps:
        advised["overlap"] = "normalized"
    return CleaningConfig.model_validate(advised)


def _log_findings(
    report: CorpusReport, data: DataConfig, output: Path, scan: _Scan, *, is_sample: bool
) -> None:
    """Log the worst warnings of the check, and notes on checks that were skipped."""
    for name, (shared, pairs) in scan.overlaps.items():
        if shared:
            _logger.info(
                "%s: %s of all %s pairs have a text that is also in the training corpora; "
                "`overlap: normalized` leaves it out of training",
                name,
                f"{shared:,}",
                f"{pairs:,}",
            )
    held_out = {name for name in data.split_names() if isinstance(data.split(name), HeldOutSource)}
    splits = [split for split in report.splits if split.name not in held_out]
    train = [split for split in splits if split.name in data.train_corpora()]
    if is_sample:
        _logger.info("checked: an even sample of %s pairs", f"{sum(s.pairs for s in train):,}")
    rows = [
        (split.name, row)
        for split in splits
        for row in make_rows(f for f in split.findings if f.other not in data.train_corpora())
    ]
    trained = [row for row in rows if row[0] in data.train_corpora()]
    for name, row in [*trained[:_MAX_WARNINGS], *rows[len(trained) :]]:
        _logger.info(
            "  %s: %s (%s) %s", name, f"{row.count:,}", format_percent(row.share), row.words
        )
    check = f"`mt data check {shlex.quote(str(output))}`"
    if rows:
        _logger.info("  %s shows all lines", check)
    out_of_step = set(describe_misaligned(train))
    for note in report.notes:
        if note not in out_of_step:
            _logger.warning("warning: %s", note)
    if out_of_step:  # the note has a line number, which in a sample is another
        _logger.warning("warning: repair the sides before training; %s shows the lines", check)


def _log_cost(
    config: Config, corpus: CorpusStatistics, forecast: Forecast, device: torch.device
) -> None:
    model, passes = config.model, forecast.tokens / corpus.target_tokens
    _logger.info(
        "model: %d + %d layers of width %d, %.1f million parameters",
        model.encoder_layers,
        model.decoder_layers,
        model.d_model,
        count_parameters(config.model, config.tokenizer.vocabulary_size) / 1e6,
    )
    if model.positional == "rotary":
        _logger.info(
            "  `mt export --to huggingface` needs `model.positional: sinusoidal` and "
            "`model.feed_forward: relu`, to be set before training"
        )
    expected = f"until validation BLEU stops improving, in about {_format_time(forecast.seconds)}"
    expected += ", or earlier or later"
    memory = ""
    if device.type == "cpu":
        training, lengths = config.training, corpus.lengths
        plan = plan_updates(lengths, training.target_tokens_per_update, seed=config.seed, epoch=0)
        batch = heaviest(plan, lengths, max_tokens_per_batch=training.max_tokens_per_batch)
        size = config.tokenizer.vocabulary_size
        needed = estimate_memory(config.model, training, lengths[batch], vocabularies=(size, size))
        memory = f", {needed / 2**30:.1f} GiB"
    _logger.info(
        "training on %s: %s; about %s updates, %s passes over the corpus%s",
        device.type,
        config.training.budget or expected,
        f"{forecast.updates:,.0f}",
        f"{passes:.1f}" if passes < 10 else f"{passes:,.0f}",
        memory,
    )
    if passes < 1:
        _logger.warning(
            "warning: the time allows about %.0f%% of one pass over the corpus; allow more with "
            "--budget",
            100 * passes,
        )


def _format_time(seconds: float) -> str:
    """Return a time in minutes, or in hours from 90 minutes on."""
    minutes = max(1, round(seconds / 60))
    return f"{minutes} minutes" if minutes < 90 else f"{seconds / 3600:.1f} hours"


def _explain_cleaning(
    data: DataConfig, report: CorpusReport, scan: _Scan, *, is_sample: bool
) -> dict[str, str]:
    """Return how many pairs or lines each key of the cleaning concerns."""
    train = [split for split in report.splits if split.name in data.train_corpora()]
    of = f" of {sum(split.pairs for split in train):,} checked" if is_sample else ""
    comments = {}
    for key in data.cleaning.model_dump(exclude_defaults=True):
        if key == "duplicates":
            comments[key] = f"{scan.repeated:,}: {KINDS['duplicate_pair']}"
        elif key == "overlap":
            counted = [f"{n:,} of {m:,} in `{name}`" for name, (n, m) in scan.overlaps.items() if n]
            comments[key] = "; ".join(counted) or "keeps the texts of the splits out of training"
        else:
            counts: Counter[str] = Counter()
            for finding in find_reasons(key, data.cleaning, train):
                counts[KINDS[finding.kind]] += finding.count
            comments[key] = "; ".join(f"{n:,}{of}: {words}" for words, n in counts.items())
    return comments


def _format_config(
    config: Config, settings: Settings, comments: Mapping[str, str], *, offers_terms: bool
) -> str:
    """Return the config with settings as YAML; comments give the reasons."""
    open_ = open_keys(with_settings(config, settings))
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
        if name != "data" and isinstance(section, Section):
            lines += _format_section(name, section, settings, open_)
    return "\n".join(lines) + "\n"


def _format_section(
    name: str, section: Section, settings: Settings, open_: Sequence[str]
) -> Iterator[str]:
    values, reasons, later = {}, {}, []
    for key in type(section).model_fields:
        setting = settings.get(f"{name}.{key}")
        if setting is not None:
            values[key], reasons[key] = setting.value, setting.reason
        elif key in section.model_fields_set:
            values[key] = getattr(section, key)
        elif name == "training" and f"{name}.{key}" in open_:
            later.append(key)
    if values:
        yield from (f"{name}:", *_format_entries(values, reasons, indent=2))
    if values and later:
        text = f"Chosen when training starts, by its number of updates: {', '.join(later)}"
        yield from (f"  # {line}" for line in wrap(text, _WIDTH - 4))


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
