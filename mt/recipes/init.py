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
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from textwrap import wrap
from typing import Any

import torch
from pydantic import ValidationError
from tqdm import tqdm

from mt.config import Config, DataConfig, Source, TrainingConfig
from mt.config.base import Section
from mt.config.data import (
    AugmentationConfig,
    CleaningConfig,
    HeldOutSource,
    MixtureSource,
    TextSource,
    TsvSource,
)
from mt.config.document import parse_value
from mt.config.loading import dump_yaml
from mt.data.batches import plan_updates
from mt.data.filters import DUPLICATES, SeenTexts
from mt.data.sources import open_source
from mt.decoding.files import check_output
from mt.doctor.check import are_swapped, check_corpora, describe_misaligned
from mt.doctor.corpus_report import format_percent, make_rows
from mt.doctor.findings import KINDS, CorpusReport, SplitReport, find_reasons
from mt.errors import ConfigError, DataError, UserError
from mt.files import write_text
from mt.languages import base_language
from mt.model.device import select_device
from mt.recipes.detection import Corpus, check_code, corpora_at, languages_of, section_in
from mt.training.memory import estimate_memory, heaviest
from mt.training.resolve import (
    LONGEST_TRAINING,
    AutoSettings,
    CorpusStatistics,
    Setting,
    parameters,
    resolve,
)

_MIN_PAIRS = 500
_MIN_PAIRS_WITH_SPLITS = 100
"""Least number of different pairs if validation and test pairs are given."""
_MAX_CHECKED = 100_000
"""Pairs of a sample to check; checking takes 150 to 250 microseconds a pair."""
_BLOCK_PAIRS = 1000
"""Consecutive pairs in the sample; sides out of step show only between neighbouring lines."""
_MAX_WARNINGS = 5
_WIDTH = 100
_logger = logging.getLogger(__name__)
_AUGMENTATION = "typos, missing marks and the like in other pairs of each epoch"
_AUGMENTED_PASSES = 12
"""Passes over the corpus from which on a model has time for changed pairs as well.

With 13 passes over Multi30k they bring 1.2 BLEU; over Tatoeba en-zh 10 cost 3.3, 50 bring 0.6.
"""
_SAMPLED_PASSES = 40
"""Passes from which on BPE also cuts source words in other ways (Provilkov et al. 2020).

With 50 passes over Tatoeba en-zh, typos then cost 12 % of the BLEU in place of 18 %.
"""
_SAMPLED_TYPOS, _SAMPLING = 0.25, 0.05


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
    _check_options(request)
    train = corpora_at(request.train)
    output = request.output or Path(f"{train[0].name}.yaml")
    check_output(output)
    if output.exists():
        raise UserError(f"{output}: exists; delete it, or choose another --output")
    data = _given_data(request, train)
    size = _count(data)
    data = _with_held_out(data, size, request)
    report, is_sample = _check(data, size)
    data = data.model_copy(update={"cleaning": _cleaning(report, size)})
    _log_report(report, data, output, is_sample=is_sample)
    sections: dict[str, Any] = {"data": data}
    if request.budget:
        sections["training"] = TrainingConfig(budget=request.budget)
    config = Config(**sections)
    _logger.info("choosing settings; the speed of this machine is measured for some seconds")
    device = select_device(config.training.device)
    settings = resolve(config, device)
    if settings.passes >= _AUGMENTED_PASSES:
        settings = _augmented(settings)
    _log_cost(settings, device)
    comments = _comments(data, report, size, is_sample=is_sample)
    write_text(output, _as_yaml(settings, comments))
    run = shlex.quote(str(Path("runs") / output.stem))
    _logger.info(
        "next: mt train %s; then mt translate %s, and mt evaluate %s --split %s",
        shlex.quote(str(output)),
        run,
        run,
        next(iter(data.tests)),
    )
    return output


def _augmented(settings: AutoSettings) -> AutoSettings:
    """Return the settings of a training with changed pairs."""
    shares = AugmentationConfig()
    if settings.passes >= _SAMPLED_PASSES and settings.value("tokenizer.algorithm") == "bpe":
        shares = AugmentationConfig(typos=_SAMPLED_TYPOS)
        reason = "source words are cut in other ways in each epoch, so that typos cost less"
        settings.chosen["tokenizer.sampling"] = Setting(_SAMPLING, reason)
        settings.chosen["tokenizer.sampling_target"] = Setting(0.0, "")
    data = settings.given.data.model_copy(update={"augmentation": shares})
    return replace(settings, given=settings.given.model_copy(update={"data": data}))


def _check_options(request: Request) -> None:
    """Raise UserError for an option with a wrong form."""
    check_code("--source-language", request.source_language)
    check_code("--target-language", request.target_language)
    try:
        TrainingConfig(budget=request.budget)
    except ValidationError:
        raise ConfigError(
            f"--budget {request.budget}: write a number and a unit, such as 90s, 30m, 2h or 1d"
        ) from None


def _given_data(request: Request, train: Sequence[Corpus]) -> DataConfig:
    """Return the data of the files of a request, without held-out splits."""
    valid, tests = corpora_at(request.valid), corpora_at(request.test)
    if len(valid) > 1:
        raise DataError(f"--valid {valid[1].description}: there is one validation split")
    trained = {each.description for each in train}
    for each in (*valid, *tests):
        if each.description in trained:
            raise DataError(f"{each.description}: is a training corpus as well")
    source, target = request.source_language, request.target_language
    languages = languages_of(train[0], source, target)
    is_given = bool(source and target)
    _logger.info("languages: %s to %s%s", *languages, "" if is_given else _evidence(train[0]))

    def section(corpus: Corpus) -> Source:
        return _in_direction(corpus, languages, is_given=is_given)

    names = ["test"] if len(tests) == 1 else _distinct_names(tests, taken={"train", "valid"})
    sections = [section(each) for each in train]
    only, *others = sections
    mixture = dict(zip(_distinct_names(train), sections, strict=True))
    return DataConfig(
        source_language=languages[0],
        target_language=languages[1],
        train=MixtureSource(corpora=mixture) if others else only,
        valid=section(valid[0]) if valid else HeldOutSource(held_out=1),
        tests={name: section(each) for name, each in zip(names, tests, strict=True)},
    )


def _evidence(corpus: Corpus) -> str:
    if isinstance(corpus.section, TextSource | TsvSource) and None in corpus.suffixes:
        return ", identified by the text; --source-language and --target-language set others"
    return ""


def _distinct_names(corpora: Sequence[Corpus], *, taken: Collection[str] = ()) -> list[str]:
    """Return a name for each corpus that is valid as a key of the config."""
    names: list[str] = []
    for corpus in corpora:
        name = re.sub(r"[^A-Za-z0-9_-]+", "-", corpus.name).strip("-_") or "corpus"
        numbered = (name if number == 1 else f"{name}-{number}" for number in count(1))
        names.append(next(each for each in numbered if each not in {*names, *taken}))
    return names


def _in_direction(corpus: Corpus, languages: tuple[str, str], *, is_given: bool) -> Source:
    """Return the section of a corpus, with the sides of text files and columns in the direction.

    Raises DataError if the corpus is in other languages, unless the direction `is_given`.
    """
    section, found = corpus.section, corpus.suffixes
    if isinstance(section, TextSource) and found == languages[::-1]:
        return section.model_copy(update={"source": section.target, "target": section.source})
    if isinstance(section, TsvSource) and are_swapped(corpus.first_pairs(), languages):
        _logger.info("%s: the second column is the source side", corpus.description)
        return section.model_copy(update={"source_column": 1, "target_column": 0})
    for code, language in zip(found, languages, strict=True):
        if code and base_language(code) != base_language(language) and not is_given:
            raise DataError(
                f"{corpus.description}: a side is in `{code}`, but the first corpus is in "
                f"`{languages[0]}` and `{languages[1]}`; a config has one direction"
            )
    return section_in(corpus, languages)


@dataclass(frozen=True)
class _Size:
    """Size of the training corpora."""

    pairs: int
    distinct: int
    """Pairs without the repetitions within each corpus."""


def _count(data: DataConfig) -> _Size:
    """Read the training corpora; raise DataError if one is unreadable, or its sides differ."""
    pairs = distinct = 0
    for section in data.train_corpora().values():
        seen = SeenTexts()
        read = open_source(section, data).pairs()
        for pair in tqdm(read, "counting", unit=" pairs", leave=False, disable=None):
            seen.add(DUPLICATES["pair"](pair))
            pairs += 1
        distinct += len(seen)
    return _Size(pairs, distinct)


def _with_held_out(data: DataConfig, size: _Size, request: Request) -> DataConfig:
    """Return the data with held-out splits in place of those that are not given.

    Raises DataError if there are too few pairs.
    """
    missing = [name for name in ("valid", "test") if not getattr(request, name)]
    least = _MIN_PAIRS if missing else _MIN_PAIRS_WITH_SPLITS
    if size.distinct < least:
        why = ", because validation and test pairs are held out of them" * bool(missing)
        raise DataError(
            f"{open_source(data.train, data).description}: {size.distinct:,} different pairs are "
            f"too few; at least {least} are needed{why}"
        )
    number = held_out_pairs(size.distinct)
    split = HeldOutSource(held_out=number)
    changed: dict[str, Any] = {"valid": split} if "valid" in missing else {}
    changed |= {"tests": {"test": split}} if "test" in missing else {}
    left = f"; {number:,} are held out for {' and as many for '.join(missing)}"
    _logger.info("training pairs: %s%s", f"{size.pairs:,}", left if missing else "")
    return data.model_copy(update=changed)


def held_out_pairs(pairs: int) -> int:
    """Return the size of a held-out split: 1 % of the pairs, 1,000 to 2,000, at most 2.5 %."""
    return min(max(pairs // 100, 1000), 2000, pairs // 40)


def _check(data: DataConfig, size: _Size) -> tuple[CorpusReport, bool]:
    """Check the corpora, large ones by a sample; return the report, and True for a sample."""
    every = math.ceil(size.pairs / _MAX_CHECKED)
    if every == 1:
        return check_corpora(data), False
    with TemporaryDirectory(prefix="mt-init-") as folder:
        samples: list[Source] = [
            _sample(section, data, Path(folder) / str(number), every=every)
            for number, section in enumerate(data.train_corpora().values())
        ]
        train: Source | MixtureSource = samples[0]
        if isinstance(data.train, MixtureSource):
            train = MixtureSource(corpora=dict(zip(data.train.corpora, samples, strict=True)))
        return check_corpora(data.model_copy(update={"train": train})), True


def _sample(section: Source, data: DataConfig, stem: Path, *, every: int) -> TextSource:
    """Write one of `every` blocks of consecutive pairs to text files."""
    source, target = stem.with_suffix(".source"), stem.with_suffix(".target")
    with source.open("w", encoding="utf-8") as left, target.open("w", encoding="utf-8") as right:
        for number, pair in enumerate(open_source(section, data).pairs()):
            if number // _BLOCK_PAIRS % every == 0:
                left.write(f"{pair.source}\n")
                right.write(f"{pair.target}\n")
    return TextSource(source=str(source), target=str(target))


def _cleaning(report: CorpusReport, size: _Size) -> CleaningConfig:
    """Return the advised cleaning; a sample shows few of the duplicates."""
    advised = parse_value(report.cleaning)["data"]["cleaning"] if report.cleaning else {}
    if size.distinct < size.pairs:
        advised["duplicates"] = "pair"
    return CleaningConfig.model_validate(advised)


def _log_report(report: CorpusReport, data: DataConfig, output: Path, *, is_sample: bool) -> None:
    """Log the worst warnings of the check, and notes on checks that were skipped."""
    splits = _given_splits(report, data)
    train = [each for each in splits if each.name in data.train_corpora()]
    if is_sample:
        _logger.info("checked: an even sample of %s pairs", f"{sum(s.pairs for s in train):,}")
    rows = [(split.name, row) for split in splits for row in make_rows(split.findings)]
    for name, row in rows[:_MAX_WARNINGS]:
        _logger.info(
            "  %s: %s (%s) %s", name, f"{row.count:,}", format_percent(row.share), row.words
        )
    check = f"`mt data check {shlex.quote(str(output))}`"
    if rows:
        _logger.info("  %s shows the lines%s", check, " of all" * (len(rows) > _MAX_WARNINGS))
    out_of_step = set(describe_misaligned(train))
    for note in report.notes:
        if note not in out_of_step:
            _logger.warning("warning: %s", note)
    if out_of_step:  # the note has a line number, which in a sample is another
        _logger.warning("warning: repair the sides before training; %s shows the lines", check)


def _given_splits(report: CorpusReport, data: DataConfig) -> list[SplitReport]:
    """Return the reports of all splits that are not held out."""
    held_out = {name for name in data.split_names() if isinstance(data.split(name), HeldOutSource)}
    return [split for split in report.splits if split.name not in held_out]


def _log_cost(settings: AutoSettings, device: torch.device) -> None:
    """Log size, time and memory of a training."""
    config, statistics = settings.config, settings.statistics
    assert statistics is not None, "a new config has open keys"
    model, passes = config.model, settings.tokens / statistics.target_tokens
    _logger.info(
        "model: %d + %d layers of width %d, %.1f million parameters",
        model.encoder_layers,
        model.decoder_layers,
        model.d_model,
        parameters(config) / 1e6,
    )
    minutes = LONGEST_TRAINING / 60
    expected = f"until validation BLEU stops improving, in about {minutes:.0f} minutes"
    memory = f", {_memory(config, statistics) / 2**30:.1f} GiB" * (device.type == "cpu")
    _logger.info(
        "training on %s: %s; about %s passes over the corpus%s",
        device.type,
        config.training.budget or expected,
        f"{passes:.1f}" if passes < 10 else f"{passes:,.0f}",
        memory,
    )
    if passes < 1:
        _logger.warning(
            "warning: the time allows about %.0f%% of one pass over the corpus; allow more with "
            "--budget",
            100 * passes,
        )


def _memory(config: Config, statistics: CorpusStatistics) -> int:
    """Estimate the bytes that training takes on a CPU, from the sample of lengths."""
    training, lengths, size = config.training, statistics.lengths, config.tokenizer.vocabulary_size
    plan = plan_updates(lengths, training.target_tokens_per_update, seed=config.seed, epoch=0)
    batch = heaviest(plan, lengths, max_tokens_per_batch=training.max_tokens_per_batch)
    return estimate_memory(config, lengths[batch], source_vocabulary=size, target_vocabulary=size)


def _comments(
    data: DataConfig, report: CorpusReport, size: _Size, *, is_sample: bool
) -> dict[str, str]:
    """Return how many pairs or lines each key of the cleaning concerns."""
    train = [split for split in report.splits if split.name in data.train_corpora()]
    of = f" of {sum(split.pairs for split in train):,} checked" * is_sample
    comments = {}
    for key in data.cleaning.model_dump(exclude_defaults=True):
        if key == "duplicates":
            comments[key] = f"{size.pairs - size.distinct:,}: {KINDS['duplicate_pair']}"
        elif key == "overlap":
            comments[key] = "; ".join(_overlaps(report, trained={split.name for split in train}))
        else:
            counts: Counter[str] = Counter()
            for finding in find_reasons(key, train):
                counts[KINDS[finding.kind]] += finding.count
            comments[key] = "; ".join(f"{n:,}{of}: {words}" for words, n in counts.items())
    return comments


def _overlaps(report: CorpusReport, *, trained: set[str]) -> Iterator[str]:
    """Yield for each split how many of its texts are also in the training corpora."""
    for split in report.splits:
        counts = [each.count for each in split.findings if each.other in trained]
        if counts:
            yield f"{max(counts):,} of {split.pairs:,} in `{split.name}`"


def _as_yaml(settings: AutoSettings, comments: Mapping[str, str]) -> str:
    """Return the config with its settings as YAML; comments give the reasons."""
    config = settings.given
    data = config.data.model_dump(mode="json", exclude_defaults=True)
    cleaning = data.pop("cleaning", {})
    lines = [
        "# Written by `mt init`. A removed key is chosen again when training starts, or is off.",
        "data:",
        *_entries(data, {"augmentation": _AUGMENTATION}, indent=2),
    ]
    if cleaning:
        lines += ["  cleaning:", *_entries(cleaning, comments, indent=4)]
    for name, section in config:
        if name != "data" and isinstance(section, Section):
            lines += _section(name, section, settings)
    return "\n".join(lines) + "\n"


def _section(name: str, section: Section, settings: AutoSettings) -> Iterator[str]:
    """Yield the lines of a section with given and chosen keys; nothing if there are none."""
    values, reasons, later = {}, {}, []
    for key in type(section).model_fields:
        choice = settings.chosen.get(f"{name}.{key}")
        if choice is not None:
            values[key], reasons[key] = choice.value, choice.reason
        elif key in section.model_fields_set:
            values[key] = getattr(section, key)
        elif name == "training" and f"{name}.{key}" in settings.open_keys:
            later.append(key)
    if values:
        yield from (f"{name}:", *_entries(values, reasons, indent=2))
    if values and later:
        text = f"Chosen when training starts, by its number of updates: {', '.join(later)}"
        yield from (f"  # {line}" for line in wrap(text, _WIDTH - 4))


def _entries(
    values: Mapping[str, Any], comments: Mapping[str, str], *, indent: int
) -> Iterator[str]:
    """Yield the lines of some keys with their comments."""
    space = " " * indent
    for key, value in values.items():
        lines = [f"{space}{line}" for line in dump_yaml({key: value}).splitlines()]
        if comment := comments.get(key):
            if len(lines[0]) + len(comment) + 4 <= _WIDTH:
                lines[0] += f"  # {comment}"
            else:
                yield from (f"{space}# {line}" for line in wrap(comment, _WIDTH - indent - 2))
        yield from lines
