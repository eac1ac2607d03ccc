"""What is compared: translations of one test set, by runs, exported models, or from files."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mt.config import Config
from mt.config.data import needed_tags
from mt.data.lines import LineReader, existing_file
from mt.errors import DataError, UserError
from mt.evaluation.checks import Guard, Text
from mt.evaluation.evaluate import (
    EvaluationJob,
    GivenTexts,
    choose_split,
    evaluate_run,
    open_split,
    read_config,
    with_texts,
)
from mt.evaluation.passport import read_passport
from mt.evaluation.passport_check import check_passport
from mt.files import file_sha256
from mt.languages import base_language
from mt.runs import (
    EVALUATIONS_FOLDER,
    MODEL_FILE,
    check_finished,
    is_exported,
    read_description,
    read_exported,
)


def kept_translations(passport: Path) -> Path:
    """Return the file of the translations that the passport of a split names."""
    return passport.with_name(f"{passport.stem}.hypotheses.txt")


def why_not_kept(folder: Path, passport: Path, *, allow: Sequence[str] = ()) -> str:
    """Return why the translations of a passport are not those of this model, "" where they are.

    `allow` are the reasons of the guard that a score may have been forced against.
    """
    if not passport.is_file():
        return f"{folder}: is not scored yet"
    try:
        check = check_passport(passport)
    except UserError as error:
        return str(error)
    if not check.passed:
        return check.text.partition("\n")[0].removeprefix("FAIL: ")
    record = read_passport(passport)
    assert record is not None, "it has passed"
    if {*record["settings"]["forced"].split(",")} - {"", *allow}:
        return f"{passport}: was forced against {record['settings']['forced']}"
    if record["weights"] != _weights(folder):
        return f"{passport}: is of other weights"
    # A copied run may name the files of the first one, so that its own are looked at here.
    sums = {each["sha256"] for each in record["inputs"] if each["role"] == "hypotheses"}
    hypotheses = kept_translations(passport)
    if not hypotheses.is_file() or file_sha256(hypotheses) not in sums:
        return f"{hypotheses}: is not what the passport names"
    return ""


def _weights(folder: Path) -> str:
    if is_exported(folder):
        return read_exported(folder).weights
    return read_description(folder / MODEL_FILE).weights


_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class EvaluationSet:
    """What was to be translated, and the right translations."""

    name: str
    """The split, or the files of references."""
    sources: tuple[str, ...]
    """Empty where none are known."""
    references: tuple[tuple[str, ...], ...]
    """A tuple for each set, line N answers line N."""
    source_language: str | None
    target_language: str
    tokenizer: str
    """BLEU's."""


@dataclass(frozen=True, slots=True)
class System:
    """One of those that are compared."""

    name: str
    translations: tuple[str, ...]
    folder: Path | None = None
    """Of a run or an exported model."""
    decoding: Mapping[str, Any] = field(default_factory=dict)
    """With which settings the translations were made, as far as is known."""
    forced: str = ""
    """The reasons of the guard that the scores were forced against."""


@dataclass(frozen=True, slots=True)
class Texts:
    """A test set in files, as in `mt evaluate`; a run has the last two by itself."""

    references: tuple[Path, ...] = ()
    sources: Path | None = None
    target_language: str | None = None
    tokenizer: str | None = None


NO_TEXTS = Texts()


def is_folder(place: Path) -> bool:
    """Tell a run or an exported model from a file of translations, which has to be there."""
    if place.is_dir():
        if not is_exported(place):
            check_finished(place)
        return True
    existing_file(place)
    return False


def read_systems(
    places: Sequence[Path],
    texts: Texts,
    *,
    split: str | None = None,
    allow: Sequence[str] = (),
    device: str = "auto",
) -> tuple[EvaluationSet, tuple[System, ...]]:
    """Return the test set that all of `places` share, and the translations of each.

    Those of a run or an exported model are read where a valid passport of the split names them,
    else they are made as `mt evaluate` does. Everything that can be refused is, before that.

    Raises UserError, with the one line that says what differs, where the test sets are not the
    same; DataError and RunError as `mt evaluate` does.
    """
    folders = [place for place in places if is_folder(place)]
    guard = Guard(allow)
    given = _given(texts) if folders else None
    if folders:
        sets = [_set_of_run(folder, split, guard, given) for folder in folders]
        for folder, other in zip(folders, sets, strict=True):
            check_same(str(folders[0]), sets[0], str(folder), other)
        common = sets[0]
    else:
        common = _set_of_files(texts, guard)
    files = {place: _of_file(place, common, allow) for place in places if place not in set(folders)}
    job = EvaluationJob(allow=tuple(allow), texts=given)
    return common, tuple(
        files.get(place) or _of_run(place, split, device=device, job=job) for place in places
    )


def check_same(name: str, one: EvaluationSet, other_name: str, other: EvaluationSet) -> None:
    """Raise UserError, naming what differs, unless two test sets are the same."""
    for what, left, right in (
        ("sources", (one.sources,), (other.sources,)),
        ("references", one.references, other.references),
    ):
        for lines, beside in zip(left, right, strict=True):
            _check_same_lines(what, (name, one.name, lines), (other_name, other.name, beside))
    languages = base_language(one.target_language), base_language(other.target_language)
    for what, mine, its in (
        ("target languages", *languages),
        ("signatures", f"tok:{one.tokenizer}", f"tok:{other.tokenizer}"),
    ):
        if mine != its:
            raise UserError(
                f"the {what} differ: `{mine}` in {name}, `{its}` in {other_name}; such scores do "
                "not compare"
            )


_Side = tuple[str, str, Sequence[str]]


def _check_same_lines(what: str, one: _Side, other: _Side) -> None:
    (name, split, lines), (other_name, other_split, beside) = one, other
    where = f"`{split}` of {name} and `{other_split}` of {other_name}"
    if len(lines) != len(beside):
        raise UserError(
            f"the {what} differ: {len(lines)} lines and {len(beside)} lines in {where}; only "
            "translations of one test set compare"
        )
    for number, (line, its) in enumerate(zip(lines, beside, strict=True), 1):
        if line != its:
            raise UserError(
                f"the {what} differ from line {number} on in {where}; only translations of one "
                "test set compare"
            )


def _given(texts: Texts) -> GivenTexts | None:
    """Return the test set that runs are compared on instead of a split of their configs."""
    for name, value in (
        ("--target-language", texts.target_language),
        ("--bleu-tokenizer", texts.tokenizer),
    ):
        if value:
            raise UserError(f"{name} does not go with a run, whose config has it")
    if texts.sources and texts.references:
        return GivenTexts(texts.sources, texts.references)
    if texts.sources or texts.references:
        lacking = "--references" if texts.sources else "--sources"
        raise UserError(f"{lacking} is missing: runs are compared on --sources and --references")
    return None


def _config_and_split(
    folder: Path, split: str | None, given: GivenTexts | None
) -> tuple[Config, str]:
    config = read_config(folder)
    if given:
        if needed_tags(config.data) and not config.decoding.tag:
            raise UserError(
                f"{folder}: each line that it has learnt from begins with a tag, and the texts "
                "have none; translate them with `mt translate`, tag and all, and compare the files"
            )
        return with_texts(config, folder, split, given, tag=config.decoding.tag)
    return config, choose_split(config.data, split)


def _set_of_run(
    folder: Path, split: str | None, guard: Guard, given: GivenTexts | None
) -> EvaluationSet:
    config, name = _config_and_split(folder, split, given)
    opened = config.data.split(name)
    assert opened is not None, "choose_split returns only what is there"
    data = config.data.of(opened)
    pairs = tuple(open_split(config.data, name)[1].pairs())
    further = given.further(len(pairs)) if given else ()
    return EvaluationSet(
        name,
        sources=tuple(pair.source for pair in pairs),
        references=(
            tuple(pair.target for pair in pairs),
            *(tuple(text.lines) for text in further),
        ),
        source_language=data.source_language,
        target_language=data.target_language,
        tokenizer=guard.check_tokenizer(data.target_language, config.evaluation.bleu_tokenizer),
    )


def _set_of_files(texts: Texts, guard: Guard) -> EvaluationSet:
    if not texts.references:
        raise UserError("files of translations need --references, the right translations")
    if texts.target_language is None:
        raise UserError("files of translations need --target-language, such as zh")
    tokenizer = guard.check_tokenizer(texts.target_language, texts.tokenizer or "auto")
    return EvaluationSet(
        ", ".join(map(str, texts.references)),
        sources=_sources(texts.sources) if texts.sources else (),
        references=tuple(map(_lines, texts.references)),
        source_language=None,
        target_language=texts.target_language,
        tokenizer=tokenizer,
    )


def _lines(path: Path) -> tuple[str, ...]:
    return tuple(LineReader(existing_file(path)))


def _sources(path: Path) -> tuple[str, ...]:
    lines = _lines(path)
    if not lines:  # they would count as not given
        raise DataError(f"{path}: is empty, there is nothing that was translated")
    return lines


def _of_file(place: Path, common: EvaluationSet, allow: Sequence[str]) -> System:
    """Read a file of translations, once the guard has seen it beside the test set."""
    guard = Guard(allow)
    made = _lines(place)
    for what, lines in (("sources", common.sources or made), *_named(common.references)):
        if len(lines) != len(made):
            raise DataError(
                f"{place} has {len(made)} lines, the {what} of {common.name} have {len(lines)}: "
                "line N of one must answer line N of the other"
            )
    references = [
        Text(f"{common.name} ({what})", lines) for what, lines in _named(common.references)
    ]
    sources = Text(f"{common.name} (sources)", common.sources) if common.sources else None
    guard.check_tokenizer(common.target_language, common.tokenizer)
    guard.check_texts(Text(str(place), made), references, sources, language=common.target_language)
    return System(str(place), made, forced=guard.forced)


def _named(references: Sequence[tuple[str, ...]]) -> list[tuple[str, tuple[str, ...]]]:
    many = len(references) > 1
    return [
        (f"references {number}" if many else "references", lines)
        for number, lines in enumerate(references, 1)
    ]


def _of_run(folder: Path, split: str | None, *, device: str, job: EvaluationJob) -> System:
    """Read the translations that a valid passport names, or have them made."""
    _, split = _config_and_split(folder, split, job.texts)
    passport = folder / EVALUATIONS_FOLDER / f"{split}.json"
    if reason := why_not_kept(folder, passport, allow=job.allow):
        _logger.warning("note: %s, so %s is translated now", reason, split)
        evaluate_run(folder, split=split, device=device, job=job)
    record = read_passport(passport)
    assert record is not None, "it was held against its seal, or just written"
    return System(
        str(folder),
        _lines(kept_translations(passport)),
        folder=folder,
        decoding=record["decoding"],
        forced=record["settings"]["forced"],
    )
