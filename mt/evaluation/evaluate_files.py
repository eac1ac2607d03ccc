"""Scoring a file of translations against files of references."""

import logging
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from mt.errors import UserError
from mt.evaluation.comet import write_comet
from mt.evaluation.guard import Text, check_named_once, cut_alike
from mt.evaluation.job import PLAIN_JOB, EvaluationJob
from mt.evaluation.notes import identical_to_source
from mt.evaluation.passport import Input, file_input, write_passport
from mt.evaluation.scores import Evaluation, evaluate

_logger = logging.getLogger(__name__)


def evaluate_files(
    hypotheses: Path,
    references: Sequence[Path],
    *,
    target_language: str,
    tokenizer: str = "auto",
    sources: Path | None = None,
    job: EvaluationJob = PLAIN_JOB,
) -> Evaluation:
    """Score a file of translations against one or several files of references, line by line.

    `sources` is what was translated: lines that were only copied are told on stderr.

    Raises DataError where the texts are refused, UserError for language, tokenizer or job.
    """
    guard = job.begin()
    _check_wishes(job, references, sources)
    tokenizer = guard.check_tokenizer(target_language, tokenizer)
    made, *right = (Text.of_file(path) for path in (hypotheses, *references))
    given = [made, *right, *([Text.of_file(sources)] if sources else [])]
    guard.check_texts(made, right, given[-1] if sources else None, language=target_language)
    texts = cut_alike(given)
    if sources:
        _logger.warning("note: %s", identical_to_source(made.name, texts[0], texts[-1]))
    scores = evaluate(
        texts[0],
        texts[1 : 1 + len(right)],
        target_language=target_language,
        tokenizer=tokenizer,
        metrics=job.metrics,
        resamples=job.resamples,
    )
    names = tuple(text.name for text in right)
    scores = replace(guard.mark(scores), hypotheses=made.name, references=names)
    if job.comet:
        write_comet(job.comet, texts, references=len(right))
    if job.passport:
        record = {**scores.as_record(), "settings": job.settings(tokenizer, guard.forced)}
        write_passport(job.passport, record, _inputs(given, len(right), job.passport.parent))
    return scores


def _check_wishes(job: EvaluationJob, references: Sequence[Path], sources: Path | None) -> None:
    check_named_once(references)
    if job.comet and not sources:
        raise UserError("COMET reads the sources too: name them with --sources")


def _inputs(given: Sequence[Text], references: int, beside: Path) -> list[Input]:
    """Describe the files for a passport: hypotheses, references, and sources where given."""
    roles = ["hypotheses", *["references"] * references, "sources"]
    return [
        file_input(role, Path(text.name), lines=len(text.lines), beside=beside)
        for role, text in zip(roles, given, strict=False)
    ]
