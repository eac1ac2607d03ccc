"""Comparison of systems on one test set: scores, their significance, and scores by length."""

import string
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from itertools import zip_longest
from pathlib import Path
from typing import Any, Literal

from mt.data.corpus_files import LineReader
from mt.errors import DataError, UserError
from mt.evaluation.checks import ScoredText, TextChecks, require_same_lengths
from mt.evaluation.evaluate import (
    EvaluationJob,
    EvaluationSet,
    GivenTexts,
    evaluate_run,
    find_split,
    read_evaluation_set,
)
from mt.evaluation.run_info import read_config
from mt.evaluation.scores import (
    COMMAND,
    LEVELS,
    SAMPLES,
    ConfidenceInterval,
    MetricCommand,
    Resampling,
    choose_metrics,
    evaluate,
    has_enough_differences,
    label_form,
    paired_test,
)
from mt.files import require_file, resolved
from mt.languages import written_without_spaces
from mt.runs import check_finished, is_exported
from mt.tables import align_columns, make_printable

LETTERS = string.ascii_uppercase
"""Names of the systems in a table."""
_WORD_EDGES, _CHARACTER_EDGES = (10, 20, 30, 50), (15, 30, 50, 80)

Outcome = Literal["baseline", "better", "worse", "higher", "lower", "no significant difference"]
"""`higher` and `lower` are of other programs, whose best value is not known."""


@dataclass(frozen=True, slots=True)
class CompareOptions:
    """Options of a comparison; `target_language` and `tokenizer` do not go with runs."""

    splits: tuple[str, ...] = ()
    """Splits of runs, each compared by itself."""
    references: tuple[Path, ...] = ()
    sources: Path | None = None
    target_language: str | None = None
    tokenizer: str | None = None
    metrics: tuple[str | MetricCommand, ...] = ()
    allow: tuple[str, ...] = ()
    test: Resampling = "bootstrap"
    samples: int | None = None
    """Number of samples; None for the default in `SAMPLES`."""
    device: str = "auto"
    overrides: tuple[str, ...] = ()
    """Settings of the second system, if one run is compared with itself."""


@dataclass(frozen=True, slots=True)
class System:
    """Translations of one system."""

    name: str
    translations: Sequence[str]
    forced: str = ""
    """Reasons of `TextChecks` that applied and were allowed."""


@dataclass(frozen=True, slots=True)
class PairedScore:
    """Score of one system, and its difference from the baseline."""

    metric: str
    """`BLEU`, `chrF2`, `chrF2++`, `TER`, of which lower is better, or a name of the user."""
    value: float
    interval: ConfidenceInterval
    signature: str
    difference: float | None = None
    """Score minus the baseline's score; None for the baseline."""
    p_value: float | None = None
    """sacreBLEU's; None if too few sentences differ for a test."""
    outcome: Outcome = "baseline"


@dataclass(frozen=True, slots=True)
class Slice:
    """Scores of each system on the sentences of some lengths."""

    name: str
    sentences: int
    bleu: tuple[float, ...]
    chrf: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Comparison:
    """Result of a comparison on one test set."""

    systems: tuple[str, ...]
    test_set: str
    sentences: int
    test: Resampling
    samples: int
    scores: tuple[tuple[PairedScore, ...], ...]
    """Scores of all systems, for each metric."""
    slices: tuple[Slice, ...]

    def as_record(self) -> dict[str, Any]:
        """Return the comparison as plain data."""
        return asdict(self)

    def as_text(self) -> str:
        """Return tables of the systems and the scores; `as_record` has those by length."""
        letters = LETTERS[: len(self.systems)]
        systems = [
            f"{letter}  {make_printable(name)}{'  (baseline)' if letter == 'A' else ''}"
            for letter, name in zip(letters, self.systems, strict=True)
        ]
        systems.append(f"on {make_printable(self.test_set)}: {self.sentences} sentences")

        rows = [["metric", "", "score", "95 % interval", "difference", "p", "against A"]]
        signatures: dict[str, None] = {}
        tests = 0
        for metric in self.scores:
            for letter, score in zip(letters, metric, strict=True):
                decimals = 4 if COMMAND in score.signature else 2
                cells = [score.metric, letter, f"{score.value:.{decimals}f}"]
                cells += [score.interval.as_text(decimals), "", "", ""]
                if score.difference is not None:
                    tests += 1
                    p_value = "" if score.p_value is None else f"{score.p_value:.4f}"
                    cells[4:] = [f"{score.difference:+z.{decimals}f}", p_value, score.outcome]
                rows.append(cells)
                signatures[f"{score.metric}: {score.signature}"] = None
        name = "paired bootstrap, one tail"
        if self.test == "randomization":
            name = "approximate randomisation, two tails"
        notes = [
            f"p: {name}, {self.samples} samples; a difference is significant below "
            f"{LEVELS[self.test]}"
        ]
        if tests > 2:
            notes.append(f"with {tests} tests, some are by chance; to be sure, divide by {tests}")
        parts = [
            "\n".join(systems),
            align_columns(rows, right=(2, 4, 5)),
            "\n".join([*notes, *signatures]),
        ]
        return "\n\n".join(parts)


def compare(paths: Sequence[Path], options: CompareOptions = CompareOptions()) -> list[Comparison]:
    """Compare runs, exports or files of translations with the first of them, on each split.

    Each run or export translates the test set, and keeps the result as `mt evaluate` does, unless
    it is kept already. One run is compared with itself with `options.overrides`. An imported run
    translates the split of the first run that has corpora. All checks come before translation.

    Raises UserError, naming the first difference, if the test sets differ; DataError and RunError
    as `evaluate_run` does.
    """
    one_run = "`mt compare RUN --set KEY=VALUE` compares two settings of one run"
    is_one_run = bool(options.overrides) and len(paths) == 1 and not paths[0].is_file()
    least, most = 1 if is_one_run else 2, len(LETTERS)
    if not least <= len(paths) <= most or (options.overrides and not is_one_run):
        raise UserError(f"name 2 to {most} runs, exported models or files; {one_run}")
    if len(set(map(resolved, paths))) < len(paths):
        raise UserError(f"a system is named twice, and does not compare with itself; {one_run}")
    checks = TextChecks(options.allow)
    folders = [path for path in paths if path.is_dir()]
    for path in paths:
        if path not in folders:
            require_file(path)
        elif not is_exported(path):
            check_finished(path)
    job = EvaluationJob(allow=options.allow, reuses=True)
    if folders:
        corpora = (read_config(folder).data for folder in folders)
        job = replace(job, data=next((data for data in corpora if data.has_corpora), None))
        if options.sources and options.references:
            job = replace(job, texts=GivenTexts(options.sources, options.references))
        elif options.sources or options.references:
            raise UserError("runs are compared on --sources and --references; give both")
        if options.target_language or options.tokenizer:
            raise UserError("--target-language and --bleu-tokenizer are in the config of a run")
        if len(options.splits) > 1 and (job.texts or len(folders) < len(paths)):
            raise UserError("files and --references are of one test set: give --split once")
        splits = options.splits or (None,)
        test_sets = [read_common_set(folders, split, checks, job) for split in splits]
    else:
        splits, test_sets = (None,), [read_files(options, checks)]
    # Files are checked before the first translation.
    given = [path for path in paths if path not in folders]
    files = {path: read_system(path, test_sets[0], options.allow) for path in given}
    comparisons = []
    for split, test_set in zip(splits, test_sets, strict=True):
        systems = []
        for path in paths:
            if path in files:
                systems.append(files[path])
                continue
            for overrides in ((), options.overrides)[: 1 + is_one_run]:
                scored = evaluate_run(
                    path, split=split, overrides=overrides, device=options.device, job=job
                )
                lines = tuple(LineReader(Path(scored.inputs[0]["path"])))
                forced = scored.bleu.signature.partition("|forced:")[2].partition("|")[0]
                search = scored.label.partition(" pairs, ")[2]
                systems.append(System(", ".join([str(path), search, *overrides]), lines, forced))
        comparisons.append(compare_systems(test_set, systems, options))
    return comparisons


def read_common_set(
    folders: Sequence[Path], split: str | None, checks: TextChecks, job: EvaluationJob
) -> EvaluationSet:
    """Return the split of the first run; raise UserError, naming a difference from the others."""
    sets: list[EvaluationSet] = []
    for folder in folders:
        config, name = find_split(folder, split, (), job)
        sets.append(read_evaluation_set(config, name, checks, job.texts))
        first, other = sets[0], sets[-1]
        sides = [(test_set.sources, *test_set.references) for test_set in (first, other)]
        for text, other_text in zip(*sides, strict=False):
            lines = enumerate(zip_longest(text.lines, other_text.lines), 1)
            differing = next((number for number, (one, two) in lines if one != two), None)
            if differing:
                raise UserError(
                    f"`{first.name}` of {folders[0]} and `{other.name}` of {folder} differ from "
                    f"line {differing} on; only translations of one test set compare"
                )
    return sets[0]


def read_files(options: CompareOptions, checks: TextChecks) -> EvaluationSet:
    """Return the test set of files of translations; raise UserError for a missing option."""
    if options.splits:
        raise UserError("--split is of runs, whose config has splits; files have --references")
    if not options.references:
        raise UserError("files of translations need --references, the right translations")
    if options.target_language is None:
        raise UserError("files of translations need --target-language, such as zh")
    sources = ScoredText("no sources", ())
    if options.sources:
        sources = ScoredText.of_file(options.sources)
        if not sources.lines:
            raise DataError(f"{options.sources}: is empty; name the file that was translated")
    return EvaluationSet(
        ", ".join(map(str, options.references)),
        sources,
        tuple(map(ScoredText.of_file, options.references)),
        options.target_language,
        checks.check_tokenizer(options.target_language, options.tokenizer or "auto"),
    )


def read_system(path: Path, test_set: EvaluationSet, allow: Sequence[str]) -> System:
    """Read a file of translations; raise DataError if the checks reject it."""
    checks, text = TextChecks(allow), ScoredText.of_file(path)
    sources = test_set.sources if test_set.sources.lines else None
    require_same_lengths(text, [*test_set.references, *([sources] if sources else [])])
    checks.check_tokenizer(test_set.target_language, test_set.tokenizer)
    checks.check_texts(text, test_set.references, sources, language=test_set.target_language)
    return System(str(path), text.lines, checks.forced)


def compare_systems(
    test_set: EvaluationSet, systems: Sequence[System], options: CompareOptions = CompareOptions()
) -> Comparison:
    """Score systems, test each against the first one, and score slices by length."""
    samples = options.samples or SAMPLES[options.test]
    references = [text.lines for text in test_set.references]
    texts = [system.translations for system in systems]
    form = label_form(references, test_set.target_language)
    scores = []
    for metric in choose_metrics(test_set.target_language, test_set.tokenizer, options.metrics):
        scored = texts
        if isinstance(metric, MetricCommand):
            metric.sources = test_set.sources.lines
            scored = [metric.score_lines(lines, references[0]) for lines in texts]
        name, signature, results = paired_test(
            metric, scored, references, test=options.test, samples=samples
        )
        row = []
        for system, lines, result in zip(systems, scored, results, strict=True):
            marks = {**test_set.marks, "text": form, "forced": system.forced}
            marked = [signature, *(f"{key}:{value}" for key, value in marks.items() if value)]
            score, interval = float(result.score), ConfidenceInterval.of(result)
            paired = PairedScore(name, score, interval, "|".join(marked))
            if result.p_value is not None:
                difference = score - float(results[0].score)
                p_value: float | None = float(result.p_value)
                outcome: Outcome = "no significant difference"
                if not has_enough_differences(metric, scored[0], lines, references):
                    p_value = None
                elif difference and result.p_value < LEVELS[options.test]:
                    outcome = "better" if (difference > 0) == (name != "TER") else "worse"
                    if isinstance(metric, MetricCommand):
                        outcome = "higher" if difference > 0 else "lower"
                paired = replace(paired, difference=difference, p_value=p_value, outcome=outcome)
            row.append(paired)
        scores.append(tuple(row))
    return Comparison(
        tuple(system.name for system in systems),
        test_set.name,
        len(references[0]),
        options.test,
        samples,
        tuple(scores),
        tuple(slice_by_length(test_set, texts)),
    )


def slice_by_length(test_set: EvaluationSet, texts: Sequence[Sequence[str]]) -> list[Slice]:
    """Score the translations of each system by the length of the first reference."""
    unspaced = written_without_spaces(test_set.target_language)
    edges, unit = (_CHARACTER_EDGES, "characters") if unspaced else (_WORD_EDGES, "words")
    groups: dict[int, list[int]] = {}
    for number, line in enumerate(test_set.references[0].lines):
        words = line.split()
        length = len("".join(words)) if unspaced else len(words)
        groups.setdefault(sum(length > edge for edge in edges), []).append(number)
    slices = []
    for position, numbers in sorted(groups.items()):
        first = edges[position - 1] + 1 if position else 0
        name = f"{first} to {edges[position]}" if position < len(edges) else f"over {edges[-1]}"
        scores = [
            evaluate(
                [lines[number] for number in numbers],
                [[text.lines[number] for number in numbers] for text in test_set.references],
                target_language=test_set.target_language,
                tokenizer=test_set.tokenizer,
            )
            for lines in texts
        ]
        bleu, chrf = (tuple(getattr(s, key).value for s in scores) for key in ("bleu", "chrf"))
        slices.append(Slice(f"{name} {unit}", len(numbers), bleu, chrf))
    return slices
