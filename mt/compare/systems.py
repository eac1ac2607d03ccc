"""Test set and translations to compare: of runs, of exports, or from files."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mt.config import Config, DataConfig
from mt.data.corpus_files import LineReader
from mt.data.splits import open_split
from mt.errors import DataError, UserError
from mt.evaluation.checks import Text, TextChecks
from mt.evaluation.evaluate import EvaluationJob, GivenTexts, evaluate_run, with_texts
from mt.evaluation.passport import PASSPORT_FORMAT, changed_inputs, read_passport
from mt.evaluation.run_info import choose_split, read_config, weights_sha256
from mt.files import existing_file, file_sha256
from mt.languages import base_language
from mt.runs import EVALUATIONS_FOLDER, check_finished, is_exported

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class EvaluationSet:
    """Sources and references of a test set."""

    name: str
    """Name of the split, or the files of references."""
    sources: tuple[str, ...]
    """Source lines; empty if unknown."""
    references: tuple[tuple[str, ...], ...]
    """One tuple for each reference set; line N answers line N."""
    source_language: str | None
    target_language: str
    tokenizer: str
    """BLEU's tokenizer."""


@dataclass(frozen=True, slots=True)
class System:
    """Translations of one system."""

    name: str
    translations: tuple[str, ...]
    folder: Path | None = None
    """Folder of the run or export; None for a file of translations."""
    decoding: Mapping[str, Any] = field(default_factory=dict)
    """Decoding settings of the translations, if known."""
    forced: str = ""
    """Reasons of `TextChecks` that applied and were allowed."""


@dataclass(frozen=True, slots=True)
class Texts:
    """Test set in files, as in `mt evaluate`; the last two fields do not go with runs."""

    references: tuple[Path, ...] = ()
    sources: Path | None = None
    target_language: str | None = None
    tokenizer: str | None = None


NO_TEXTS = Texts()


def is_folder(place: Path) -> bool:
    """Return True for a finished run or export, False for a file; raise if it is missing."""
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
    """Return the test set of `places` and the translations of each system.

    A run or export is translated unless its translations of the split were kept. An imported run
    translates the split of the first run that has corpora. All checks come before translation.

    Raises UserError, naming the first difference, if the test sets differ; DataError and RunError
    as `evaluate_run` does.
    """
    folders = [place for place in places if is_folder(place)]
    checks = TextChecks(allow)
    job = EvaluationJob(
        allow=tuple(allow),
        texts=_given(texts) if folders else None,
        data=corpora_of(folders),
    )
    if folders:
        common, *others = (_set_of_run(folder, split, checks, job) for folder in folders)
        for folder, other in zip(folders[1:], others, strict=True):
            check_same(str(folders[0]), common, str(folder), other)
    else:
        common = _set_of_files(texts, checks)
    files = {place: _of_file(place, common, allow) for place in places if place not in folders}
    return common, tuple(
        files.get(place) or _of_run(place, split, device=device, job=job) for place in places
    )


def corpora_of(folders: Sequence[Path]) -> DataConfig | None:
    """Return the corpora of the first run that has some; imported runs have none."""
    found = (read_config(folder).data for folder in folders)
    return next((data for data in found if data.has_corpora), None)


def check_same(name: str, one: EvaluationSet, other_name: str, other: EvaluationSet) -> None:
    """Raise UserError, naming the first difference, unless two test sets are the same."""
    sides = (
        ("sources", one.sources, other.sources),
        *(("references", *both) for both in zip(one.references, other.references, strict=True)),
    )
    for side, lines, other_lines in sides:
        if lines == other_lines:
            continue
        difference = f": {len(lines)} lines and {len(other_lines)} lines"
        if len(lines) == len(other_lines):
            pairs = zip(lines, other_lines, strict=True)
            difference = f" from line {[a == b for a, b in pairs].index(False) + 1} on"
        raise UserError(
            f"the {side} differ{difference} in `{one.name}` of {name} and `{other.name}` of "
            f"{other_name}; only translations of one test set compare"
        )
    languages = (base_language(each.target_language) for each in (one, other))
    tokenizers = f"tok:{one.tokenizer}", f"tok:{other.tokenizer}"
    for kind, mine, theirs in (("target languages", *languages), ("signatures", *tokenizers)):
        if mine != theirs:
            raise UserError(
                f"the {kind} differ: `{mine}` in {name}, `{theirs}` in {other_name}; such scores "
                "do not compare"
            )


def why_not_kept(folder: Path, passport: Path, *, allow: Sequence[str] = ()) -> str:
    """Return the reason to translate again, "" if the passport's translations are of this model."""
    record = read_passport(passport) if passport.is_file() else None
    if record is None or record["format"] != PASSPORT_FORMAT:
        return f"{folder}: is not scored yet"
    if changed := changed_inputs(passport, record):
        return changed[0]
    if {*record["settings"]["forced"].split(",")} - {"", *allow}:
        return f"{passport}: was scored with --allow {record['settings']['forced']}"
    if record["weights"] != weights_sha256(folder):
        return f"{passport}: belongs to other weights"
    # The passport of a copied run may name the files of the original.
    kept = _hypotheses(passport)
    sums = {each["sha256"] for each in record["inputs"] if each["role"] == "hypotheses"}
    if not kept.is_file() or file_sha256(kept) not in sums:
        return f"{kept}: has changed"
    return ""


def _hypotheses(passport: Path) -> Path:
    return passport.with_name(f"{passport.stem}.hypotheses.txt")


def _given(texts: Texts) -> GivenTexts | None:
    """Return the given test set for runs; None for a split of their configs."""
    for name, value in (
        ("--target-language", texts.target_language),
        ("--bleu-tokenizer", texts.tokenizer),
    ):
        if value:
            raise UserError(f"{name} does not go with a run, whose config has it")
    if texts.sources and texts.references:
        return GivenTexts(texts.sources, texts.references)
    if texts.sources or texts.references:
        missing = "--references" if texts.sources else "--sources"
        raise UserError(f"{missing} is missing: runs are compared on --sources and --references")
    return None


def _config_and_split(folder: Path, split: str | None, job: EvaluationJob) -> tuple[Config, str]:
    config = read_config(folder, job.data)
    if job.texts is None:
        return config, choose_split(config.data, split)
    if config.tags_to_choose():
        raise UserError(
            f"{folder}: its training lines begin with a tag, and the given texts have none; "
            "translate them with `mt translate` and a tag, and compare the files"
        )
    return with_texts(config, folder, split, job.texts, decoding=config.decoding)


def _set_of_run(
    folder: Path, split: str | None, checks: TextChecks, job: EvaluationJob
) -> EvaluationSet:
    config, name = _config_and_split(folder, split, job)
    data, pairs = config.data.of_split(name), tuple(open_split(config.data, name).pairs())
    further = job.texts.further(len(pairs)) if job.texts else ()
    targets = tuple(pair.target for pair in pairs)
    return EvaluationSet(
        name,
        sources=tuple(pair.source for pair in pairs),
        references=(targets, *(tuple(text.lines) for text in further)),
        source_language=data.source_language,
        target_language=data.target_language,
        tokenizer=checks.check_tokenizer(data.target_language, config.evaluation.bleu_tokenizer),
    )


def _set_of_files(texts: Texts, checks: TextChecks) -> EvaluationSet:
    if not texts.references:
        raise UserError("files of translations need --references, the right translations")
    if texts.target_language is None:
        raise UserError("files of translations need --target-language, such as zh")
    tokenizer = checks.check_tokenizer(texts.target_language, texts.tokenizer or "auto")
    sources = _lines(texts.sources) if texts.sources else ()
    if texts.sources and not sources:
        raise DataError(f"{texts.sources}: is empty; name the file that was translated")
    return EvaluationSet(
        ", ".join(map(str, texts.references)),
        sources=sources,
        references=tuple(map(_lines, texts.references)),
        source_language=None,
        target_language=texts.target_language,
        tokenizer=tokenizer,
    )


def _lines(path: Path) -> tuple[str, ...]:
    return tuple(LineReader(existing_file(path)))


def _of_file(place: Path, common: EvaluationSet, allow: Sequence[str]) -> System:
    """Read and check a file of translations."""
    checks = TextChecks(allow)
    made = _lines(place)
    many = len(common.references) > 1
    references = {
        f"references {number}" if many else "references": lines
        for number, lines in enumerate(common.references, 1)
    }
    for name, lines in {"sources": common.sources or made, **references}.items():
        if len(lines) != len(made):
            raise DataError(
                f"{place} has {len(made)} lines, the {name} of {common.name} have {len(lines)}: "
                "line N of one must answer line N of the other"
            )
    checks.check_tokenizer(common.target_language, common.tokenizer)
    checks.check_texts(
        Text(str(place), made),
        [Text(f"{common.name} ({name})", lines) for name, lines in references.items()],
        Text(f"{common.name} (sources)", common.sources) if common.sources else None,
        language=common.target_language,
    )
    return System(str(place), made, forced=checks.forced)


def _of_run(folder: Path, split: str | None, *, device: str, job: EvaluationJob) -> System:
    """Read the kept translations of a run, or translate."""
    _, split = _config_and_split(folder, split, job)
    passport = folder / EVALUATIONS_FOLDER / f"{split}.json"
    if reason := why_not_kept(folder, passport, allow=job.allow):
        _logger.warning("note: %s, so %s is translated now", reason, split)
        evaluate_run(folder, split=split, device=device, job=job)
    record = read_passport(passport)
    assert record is not None, "the passport was verified or just written"
    return System(
        str(folder),
        _lines(_hypotheses(passport)),
        folder=folder,
        decoding=record["decoding"],
        forced=record["settings"]["forced"],
    )
