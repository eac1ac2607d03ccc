"""Test set and translations to compare: of runs, of exports, or from files."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path

from mt.config import Config, DataConfig
from mt.data.corpus_files import LineReader
from mt.data.splits import open_split
from mt.errors import DataError, UserError
from mt.evaluation.checks import ScoredText, TextChecks
from mt.evaluation.evaluate import EvaluationJob, GivenTexts, evaluate_run, with_texts
from mt.evaluation.run_info import choose_split, read_config
from mt.files import require_file
from mt.languages import base_language
from mt.runs import EVALUATIONS_FOLDER, check_finished, is_exported


@dataclass(frozen=True, slots=True)
class EvaluationSet:
    """Sources and references of a test set."""

    name: str
    """Name of the split, or the files of references."""
    sources: tuple[str, ...]
    references: tuple[tuple[str, ...], ...]
    """One tuple for each reference set; line N answers line N."""
    source_language: str | None
    target_language: str
    tokenizer: str


@dataclass(frozen=True, slots=True)
class System:
    """Translations of one system."""

    name: str
    translations: tuple[str, ...]
    folder: Path | None = None
    """Folder of the run or export; None for a file of translations."""
    forced: str = ""
    """Reasons of `TextChecks` that applied and were allowed."""


@dataclass(frozen=True, slots=True)
class GivenTestSet:
    """Test set in files, as in `mt evaluate`; the last two fields do not go with runs."""

    references: tuple[Path, ...] = ()
    sources: Path | None = None
    target_language: str | None = None
    tokenizer: str | None = None


NO_TEST_SET = GivenTestSet()


def is_folder(path: Path) -> bool:
    """Return True for a finished run or export, False for a file; raise if it is missing."""
    if path.is_dir():
        if not is_exported(path):
            check_finished(path)
        return True
    require_file(path)
    return False


def read_systems(
    paths: Sequence[Path],
    texts: GivenTestSet,
    *,
    split: str | None = None,
    allow: Sequence[str] = (),
    device: str = "auto",
) -> tuple[EvaluationSet, tuple[System, ...]]:
    """Return the test set of `paths` and the translations of each system.

    Each run or export translates the test set, and keeps the result as `mt evaluate` does. An
    imported run translates the split of the first run that has corpora. All checks come before
    translation.

    Raises UserError, naming the first difference, if the test sets differ; DataError and RunError
    as `evaluate_run` does.
    """
    folders = [path for path in paths if is_folder(path)]
    checks = TextChecks(allow)
    job = EvaluationJob(
        allow=tuple(allow),
        texts=_check_given_texts(texts) if folders else None,
        data=find_corpora(folders),
    )
    if folders:
        test_set, *others = (
            _read_test_set_of_run(folder, split, checks, job) for folder in folders
        )
        for folder, other in zip(folders[1:], others, strict=True):
            check_same(str(folders[0]), test_set, str(folder), other)
    else:
        if not texts.references:
            raise UserError("files of translations need --references, the right translations")
        if texts.target_language is None:
            raise UserError("files of translations need --target-language, such as zh")
        tokenizer = checks.check_tokenizer(texts.target_language, texts.tokenizer or "auto")
        sources = _read_lines(texts.sources) if texts.sources else ()
        if texts.sources and not sources:
            raise DataError(f"{texts.sources}: is empty; name the file that was translated")
        test_set = EvaluationSet(
            ", ".join(map(str, texts.references)),
            sources=sources,
            references=tuple(map(_read_lines, texts.references)),
            source_language=None,
            target_language=texts.target_language,
            tokenizer=tokenizer,
        )
    files = {path: _read_file(path, test_set, allow) for path in paths if path not in folders}
    return test_set, tuple(
        files.get(path) or _translate(path, split, device=device, job=job) for path in paths
    )


def find_corpora(folders: Sequence[Path]) -> DataConfig | None:
    """Return the corpora of the first run that has some; imported runs have none."""
    sections = (read_config(folder).data for folder in folders)
    return next((data for data in sections if data.has_corpora), None)


def check_same(name: str, one: EvaluationSet, other_name: str, other: EvaluationSet) -> None:
    """Raise UserError, naming the first difference, unless two test sets are the same."""
    sides = [("sources", one.sources, other.sources)]
    for lines, other_lines in zip(one.references, other.references, strict=True):
        sides.append(("references", lines, other_lines))
    for side, lines, other_lines in sides:
        if lines != other_lines:
            pairs = enumerate(zip_longest(lines, other_lines), 1)
            first = next(line for line, (text, other_text) in pairs if text != other_text)
            raise UserError(
                f"the {side} differ from line {first} on in `{one.name}` of {name} and "
                f"`{other.name}` of {other_name}; only translations of one test set compare"
            )
    languages = base_language(one.target_language), base_language(other.target_language)
    tokenizers = f"tok:{one.tokenizer}", f"tok:{other.tokenizer}"
    for kind, (mine, theirs) in (("target languages", languages), ("signatures", tokenizers)):
        if mine != theirs:
            raise UserError(
                f"the {kind} differ: `{mine}` in {name}, `{theirs}` in {other_name}; such scores "
                "do not compare"
            )


def _check_given_texts(texts: GivenTestSet) -> GivenTexts | None:
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


def _read_config_and_split(
    folder: Path, split: str | None, job: EvaluationJob
) -> tuple[Config, str]:
    config = read_config(folder, job.data)
    if job.texts is None:
        return config, choose_split(config.data, split)
    if config.tags_to_choose():
        raise UserError(
            f"{folder}: its training lines begin with a tag, and the given texts have none; "
            "translate them with `mt translate` and a tag, and compare the files"
        )
    data, name = with_texts(config.data, folder, split, job.texts, decoding=config.decoding)
    return config.changed(data=data), name


def _read_test_set_of_run(
    folder: Path, split: str | None, checks: TextChecks, job: EvaluationJob
) -> EvaluationSet:
    config, name = _read_config_and_split(folder, split, job)
    opened = open_split(config.data, name)
    pairs, direction = tuple(opened.pairs()), opened.direction
    further = job.texts.further(len(pairs)) if job.texts else ()
    targets = tuple(pair.target for pair in pairs)
    return EvaluationSet(
        name,
        sources=tuple(pair.source for pair in pairs),
        references=(targets, *(tuple(text.lines) for text in further)),
        source_language=direction.source,
        target_language=direction.target,
        tokenizer=checks.check_tokenizer(direction.target, config.evaluation.bleu_tokenizer),
    )


def _read_lines(path: Path) -> tuple[str, ...]:
    return tuple(LineReader(require_file(path)))


def _read_file(path: Path, test_set: EvaluationSet, allow: Sequence[str]) -> System:
    checks = TextChecks(allow)
    translations = _read_lines(path)
    references = {f"references {n}": lines for n, lines in enumerate(test_set.references, 1)}
    for name, lines in {"sources": test_set.sources or translations, **references}.items():
        if len(lines) != len(translations):
            raise DataError(
                f"{path} has {len(translations)} lines, the {name} of {test_set.name} have "
                f"{len(lines)}: line N of one must answer line N of the other"
            )
    checks.check_tokenizer(test_set.target_language, test_set.tokenizer)
    checks.check_texts(
        ScoredText(str(path), translations),
        [ScoredText(f"{test_set.name} ({name})", lines) for name, lines in references.items()],
        ScoredText(f"{test_set.name} (sources)", test_set.sources) if test_set.sources else None,
        language=test_set.target_language,
    )
    return System(str(path), translations, forced=checks.forced)


def _translate(folder: Path, split: str | None, *, device: str, job: EvaluationJob) -> System:
    """Translate a split with a run, and read the translations that the evaluation keeps."""
    _, split = _read_config_and_split(folder, split, job)
    evaluation = evaluate_run(folder, split=split, device=device, job=job)
    translations = _read_lines(folder / EVALUATIONS_FOLDER / f"{split}.hypotheses.txt")
    forced = evaluation.bleu.signature.partition("|forced:")[2].partition("|")[0]
    return System(str(folder), translations, folder, forced)
