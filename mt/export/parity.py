"""Whether an exported model translates as its run does: what is compared, and what must hold."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from mt.config import Config
from mt.data.lines import LineReader, existing_file
from mt.data.pairs import SentencePair
from mt.data.sources import open_source
from mt.decoding.translator import Translator
from mt.errors import DataError, UserError
from mt.evaluation.scores import evaluate
from mt.tables import aligned

LEAST_IDENTICAL = 0.995
MOST_BLEU_DIFFERENCE = 0.1
PLAIN_SEARCH = ("decoding.on_repetition=keep",)
"""Overrides for both sides: the models are compared, not how each program breaks a loop.

CTranslate2 normalises probabilities after a sequence is blocked, we before: a weak model's loops,
decoded again, would come out otherwise.
"""
_MOST_LINES = 500
_WORST_SHOWN = 3


@dataclass(frozen=True, slots=True)
class Sample:
    """What both models translate."""

    lines: tuple[str, ...]
    references: tuple[str, ...] | None
    """Right translations, where they are known."""
    target_language: str
    bleu_tokenizer: str
    origin: str
    """Where the lines are from."""


@dataclass(frozen=True, slots=True)
class Difference:
    """A line that the two models translate differently."""

    source: str
    of_run: str
    of_export: str
    chrf: float
    """Of the one against the other, 0 to 100."""


@dataclass(frozen=True, slots=True)
class ModelResult:
    """What one of the two models has reached on the sample."""

    bleu: float | None
    """0 to 100; None where there are no references."""
    chrf: float | None
    seconds: float


@dataclass(frozen=True, slots=True)
class Parity:
    """How alike the two models translate."""

    origin: str
    sentences: int
    identical: int
    run: ModelResult
    export: ModelResult
    signature: str
    """sacreBLEU's, of the BLEU scores; empty where there are none."""
    worst: tuple[Difference, ...]
    """The differing lines that are least alike, the least alike first."""

    def why_not_equal(self) -> str | None:
        """Return in one line why these are not the same model, or None where they are."""
        share = self.identical / self.sentences
        if share < LEAST_IDENTICAL:
            return (
                f"{self.identical} of {self.sentences} lines are translated alike, {share:.1%}; "
                f"at least {LEAST_IDENTICAL:.1%} must be"
            )
        if self.run.bleu is not None and self.export.bleu is not None:
            difference = self.export.bleu - self.run.bleu
            if abs(difference) >= MOST_BLEU_DIFFERENCE:
                return f"BLEU differs by {difference:+.2f}, less than {MOST_BLEU_DIFFERENCE} may be"
        return None

    def as_text(self) -> str:
        """Return a table of both models, the share of identical lines, and the worst lines."""
        rows = [("", "BLEU", "chrF2", "sentences/s")]
        for name, result in (("run", self.run), ("export", self.export)):
            speed = f"{self.sentences / result.seconds:.1f}"
            rows.append((name, _shown(result.bleu), _shown(result.chrf), speed))
        share = f"{self.identical} of {self.sentences} lines identical, from {self.origin}"
        lines = [aligned(rows, right=[1, 2, 3]), share]
        if self.signature:
            lines.append(f"BLEU: {self.signature}")
        for each in self.worst:
            lines += ["", f"source: {each.source}", f"run:    {each.of_run}"]
            lines.append(f"export: {each.of_export}")
        return "\n".join(lines)


def read_sample(config: Config, file: Path | None) -> Sample:
    """Return the first lines of `file`, or of the valid split of a run's config, with references.

    Raises UserError, naming the way out, where the valid split is not at hand.
    """
    if file is not None:
        pairs = [SentencePair(line, "") for line in _filled(LineReader(existing_file(file)))]
        origin = str(file)
    else:
        origin = "the valid split"
        try:
            source = open_source(config.data.valid, config.data)
            pairs = [pair for pair in source.pairs() if pair.source.strip()]
        except (DataError, OSError) as error:
            raise UserError(
                f"the run's valid split cannot be read ({error}); "
                "give a text in the source language with --sample FILE"
            ) from error
    if not pairs:
        raise UserError(f"{origin}: holds no line to compare the translations of")
    pairs = pairs[:_MOST_LINES]
    return Sample(
        tuple(pair.source for pair in pairs),
        tuple(pair.target for pair in pairs) if file is None else None,
        target_language=config.data.target_language,
        bleu_tokenizer=config.evaluation.bleu_tokenizer,
        origin=origin,
    )


def _filled(lines: LineReader) -> list[str]:
    return [line for line in lines if line.strip()]


def compare(run: Translator, export: Translator, sample: Sample) -> Parity:
    """Translate a sample with both models and say how alike the translations are."""
    of_run, run_seconds = _translated(run, sample)
    of_export, export_seconds = _translated(export, sample)
    run_bleu, run_chrf, signature = _scores(of_run, sample)
    export_bleu, export_chrf, _ = _scores(of_export, sample)
    different = [
        Difference(source, one, other, _likeness(one, other, sample))
        for source, one, other in zip(sample.lines, of_run, of_export, strict=True)
        if one != other
    ]
    return Parity(
        sample.origin,
        len(sample.lines),
        len(sample.lines) - len(different),
        run=ModelResult(run_bleu, run_chrf, run_seconds),
        export=ModelResult(export_bleu, export_chrf, export_seconds),
        signature=signature,
        worst=tuple(sorted(different, key=lambda each: each.chrf)[:_WORST_SHOWN]),
    )


def _translated(translator: Translator, sample: Sample) -> tuple[list[str], float]:
    started_at = time.perf_counter()
    translations = translator.translate(sample.lines)
    return translations, time.perf_counter() - started_at


def _scores(translations: Sequence[str], sample: Sample) -> tuple[float | None, float | None, str]:
    if sample.references is None:
        return None, None, ""
    scores = evaluate(
        translations,
        [sample.references],
        target_language=sample.target_language,
        tokenizer=sample.bleu_tokenizer,
    )
    return scores.bleu.value, scores.chrf.value, scores.bleu.signature


def _likeness(one: str, other: str, sample: Sample) -> float:
    scores = evaluate(
        [other],
        [[one]],
        target_language=sample.target_language,
        tokenizer=sample.bleu_tokenizer,
    )
    return scores.chrf.value


def _shown(score: float | None) -> str:
    return "-" if score is None else f"{score:.2f}"
