"""Parity of an export and its run: both translate a sample and must agree."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from mt.config import Config
from mt.config.decoding import ONE_SEARCH
from mt.data.corpus_files import LineReader
from mt.data.pairs import SentencePair
from mt.data.splits import open_split
from mt.decoding.translator import Translator
from mt.errors import DataError, UserError
from mt.evaluation.scores import Evaluation, evaluate
from mt.files import existing_file
from mt.tables import aligned

MIN_IDENTICAL = 0.995
MAX_BLEU_DIFFERENCE = 0.1
PLAIN_SEARCH = (
    *(f"decoding.{key}={value}" for key, value in ONE_SEARCH.items()),
    "decoding.engine=torch",
    "decoding.precision=fp32",
)
"""Overrides for both sides, so that nothing is decoded again, and the run by PyTorch in fp32.

CTranslate2 normalizes probabilities after blocking a sequence and this package before, so the loops
of a weak model would end differently.
"""
_MAX_LINES = 500
_SHOWN_DIFFERENCES = 3


@dataclass(frozen=True, slots=True)
class Sample:
    """Lines for both models to translate."""

    lines: tuple[str, ...]
    references: tuple[str, ...] | None
    """Reference translations, if known."""
    target_language: str
    bleu_tokenizer: str
    origin: str


@dataclass(frozen=True, slots=True)
class Difference:
    """A line with two different translations, and the chrF between them, 0 to 100."""

    source: str
    of_run: str
    of_export: str
    chrf: float


@dataclass(frozen=True, slots=True)
class ModelResult:
    """Scores, 0 to 100 or None without references, and time of one model on the sample."""

    bleu: float | None
    chrf: float | None
    seconds: float


@dataclass(frozen=True, slots=True)
class Parity:
    """Comparison of the translations of a run and its export."""

    origin: str
    sentences: int
    identical: int
    run: ModelResult
    export: ModelResult
    signature: str
    """sacreBLEU signature of the BLEU scores; empty without references."""
    worst: tuple[Difference, ...]
    """The lines that differ most, the worst first."""

    def why_not_equal(self) -> str | None:
        """Return in one line why the models are not equal, or None if they are."""
        share = self.identical / self.sentences
        if share < MIN_IDENTICAL:
            return (
                f"{self.identical} of {self.sentences} lines have equal translations, {share:.1%}; "
                f"at least {MIN_IDENTICAL:.1%} are required"
            )
        if self.run.bleu is not None and self.export.bleu is not None:
            difference = self.export.bleu - self.run.bleu
            if abs(difference) >= MAX_BLEU_DIFFERENCE:
                return f"BLEU differs by {difference:+.2f}; the limit is {MAX_BLEU_DIFFERENCE}"
        return None

    def as_text(self) -> str:
        """Return a table of both models, the share of identical lines, and the worst lines."""
        rows: list[tuple[str, ...]] = [("", "BLEU", "chrF2", "sentences/s")]
        for name, result in (("run", self.run), ("export", self.export)):
            scores = ["-" if s is None else f"{s:.2f}" for s in (result.bleu, result.chrf)]
            rows.append((name, *scores, f"{self.sentences / result.seconds:.1f}"))
        share = f"{self.identical} of {self.sentences} lines identical, from {self.origin}"
        lines = [aligned(rows, right=[1, 2, 3]), share]
        if self.signature:
            lines.append(f"BLEU: {self.signature}")
        for each in self.worst:
            lines += ["", f"source: {each.source}", f"run:    {each.of_run}"]
            lines.append(f"export: {each.of_export}")
        return "\n".join(lines)


def read_sample(config: Config, file: Path | None) -> Sample:
    """Return the first 500 lines of `file`, or of a config's valid split with its references.

    Blank lines are skipped. Raises UserError if there is no line.
    """
    try:
        if file is not None:
            pairs = [SentencePair(line, "") for line in LineReader(existing_file(file))]
        else:
            pairs = list(open_split(config.data, "valid").pairs())
    except (DataError, OSError) as error:
        if file is not None:
            raise
        raise UserError(
            f"the run's valid split cannot be read ({error}); "
            "give a text in the source language with --sample FILE"
        ) from error
    pairs = [pair for pair in pairs if pair.source.strip()][:_MAX_LINES]
    origin = "the valid split" if file is None else str(file)
    if not pairs:
        raise UserError(f"{origin}: has no line to translate; give a text with --sample FILE")
    return Sample(
        tuple(pair.source for pair in pairs),
        tuple(pair.target for pair in pairs) if file is None else None,
        target_language=config.data.target_language,
        bleu_tokenizer=config.evaluation.bleu_tokenizer,
        origin=origin,
    )


def compare(run: Translator, export: Translator, sample: Sample) -> Parity:
    """Translate a sample with both models and compare the translations."""
    of_run, run_result, signature = _translate(run, sample)
    of_export, export_result, _ = _translate(export, sample)
    different = [
        Difference(source, one, other, _evaluate([other], [one], sample).chrf.value)
        for source, one, other in zip(sample.lines, of_run, of_export, strict=True)
        if one != other
    ]
    return Parity(
        sample.origin,
        len(sample.lines),
        len(sample.lines) - len(different),
        run=run_result,
        export=export_result,
        signature=signature,
        worst=tuple(sorted(different, key=lambda each: each.chrf)[:_SHOWN_DIFFERENCES]),
    )


def _translate(translator: Translator, sample: Sample) -> tuple[list[str], ModelResult, str]:
    """Return the translations, their scores and the signature of BLEU."""
    started_at = time.perf_counter()
    translations = translator.translate(sample.lines)
    seconds = time.perf_counter() - started_at
    if sample.references is None:
        return translations, ModelResult(None, None, seconds), ""
    scores = _evaluate(translations, sample.references, sample)
    result = ModelResult(scores.bleu.value, scores.chrf.value, seconds)
    return translations, result, scores.bleu.signature


def _evaluate(translations: Sequence[str], references: Sequence[str], sample: Sample) -> Evaluation:
    language, tokenizer = sample.target_language, sample.bleu_tokenizer
    return evaluate(translations, [references], target_language=language, tokenizer=tokenizer)
