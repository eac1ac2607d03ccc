"""Sequence-level distillation: training sources with a teacher's translations.

Kim and Rush 2016, "Sequence-Level Knowledge Distillation", sections 3.2 and 3.3.
"""

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from itertools import islice, tee
from pathlib import Path
from typing import Literal

from sacrebleu.metrics.base import Metric
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF

from mt.augment.teacher import Made, Sources, Teacher, base_name, existing_text, why_left_out
from mt.data.augmentation import Noise
from mt.data.corpus_files import scan
from mt.data.pairs import SentencePair
from mt.decoding.files import read_lines
from mt.decoding.shards import Extent, Job, Shard
from mt.decoding.translator import Translation, check_n_best
from mt.errors import UserError
from mt.evaluation.scores import choose_tokenizer

Similarity = Literal["bleu", "chrf"]
SIMILARITIES: dict[Similarity, Callable[[str], Metric]] = {
    "bleu": lambda language: BLEU(tokenize=choose_tokenizer(language), effective_order=True),
    "chrf": lambda _language: CHRF(),
}
"""Sentence-level measures, built for a target language."""


@dataclass(frozen=True, slots=True)
class Interpolation:
    """Choice of the translation most similar to the reference among `n_best`."""

    n_best: int
    similarity: Similarity


@dataclass(frozen=True)
class Distillation:
    """Translation of sources by a run."""

    teacher: Teacher
    sources: Sources
    interpolation: Interpolation | None = None

    def job(self, folder: Path, shard: Shard) -> Job:
        """Return the job; raise UserError or DataError if the sources are unsuitable."""
        teacher, sources, interpolation = self.teacher, self.sources, self.interpolation
        languages = teacher.source_language, teacher.target_language
        if isinstance(sources.origin, Path):
            if interpolation is not None:
                raise UserError(
                    f"{sources.origin}: has no references to compare with; --n-best needs a CONFIG"
                )
        else:
            languages = sources.origin.source_language, sources.origin.target_language
            teacher.require_direction(*languages, of="the config's corpora are")
        settings = {"command": "distill", **sources.settings()}
        if interpolation is not None:
            check_n_best(interpolation.n_best, teacher.decoding)
            settings |= asdict(interpolation)
        extent = Extent.of((pair.source for pair in sources.pairs()), teacher.window)
        folder /= sources.name(languages[0])
        return teacher.job(folder, languages, settings, extent, shard)

    def make(self, lines: range) -> Iterator[Made]:
        """Yield the pair, or the reason for leaving it out, of each of some sources."""
        pairs, ahead = tee(islice(self.sources.pairs(), lines.start, lines.stop))
        n_best, metric = 1, None
        if self.interpolation is not None:
            n_best = self.interpolation.n_best
            metric = SIMILARITIES[self.interpolation.similarity](self.teacher.target_language)
        translations = self.teacher.translator.stream(
            (pair.source for pair in ahead), n_best=n_best, look_ahead=self.teacher.window
        )
        for translation, pair in zip(translations, pairs, strict=True):
            yield _choose(translation, pair, metric)


def _choose(translation: Translation, pair: SentencePair, metric: Metric | None) -> Made:
    """Return the best usable translation, or with `metric` the one nearest to the reference."""
    choices = [each for each in translation.alternatives if not why_left_out(pair.source, each)]
    if metric is not None and choices:
        # Among equals `index` returns the first, which the teacher prefers.
        scores = [metric.sentence_score(each.text, [pair.target]).score for each in choices]
        return SentencePair(pair.source, choices[scores.index(max(scores))].text)
    reason = why_left_out(translation.source, *translation.alternatives[:1])
    return reason or SentencePair(translation.source, translation.text)


@dataclass(frozen=True)
class BackTranslation:
    """Text in a teacher's source language, and the noise for its translations."""

    teacher: Teacher
    text: Path
    noise: Noise

    def job(self, folder: Path, shard: Shard) -> Job:
        """Return the job; raise UserError or DataError if the text is unsuitable.

        The corpus is in the teacher's reverse direction: its source side is the translation.
        """
        source, target = self.teacher.source_language, self.teacher.target_language
        text = existing_text(self.text)
        name = base_name(text, source)
        if name.endswith(f".{target}"):
            raise UserError(
                f"{text}: is in {target} by its name, but {self.teacher.run} translates from "
                f"{source} into {target}; give a text in {source}"
            )
        settings = {
            "command": "backtranslate",
            "input": scan(text).sha256,
            **{f"noise.{key}": value for key, value in asdict(self.noise).items()},
        }
        extent = Extent.of(read_lines(text), self.teacher.window)
        return self.teacher.job(folder / name, (target, source), settings, extent, shard)

    def make(self, lines: range) -> Iterator[Made]:
        """Yield the pair, or the reason for leaving it out, of each of some lines of the text."""
        texts = islice(read_lines(self.text), lines.start, lines.stop)
        translations = self.teacher.translator.stream(texts, look_ahead=self.teacher.window)
        for line, translation in zip(lines, translations, strict=False):
            if reason := why_left_out(translation.source, *translation.alternatives[:1]):
                yield reason
                continue
            noisy = self.noise.on(
                translation.text,
                language=self.teacher.target_language,
                seed=self.teacher.decoding.seed,
                line=line,
            )
            yield SentencePair(noisy, translation.source)
