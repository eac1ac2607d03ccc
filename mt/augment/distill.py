"""Sequence-level distillation: training sources with a teacher's translations.

Kim and Rush 2016, "Sequence-Level Knowledge Distillation", sections 3.2 and 3.3.
"""

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from itertools import islice, tee
from pathlib import Path
from typing import Any, Literal

from sacrebleu.metrics.base import Metric
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF

from mt.augment.teacher import Made, Teacher, base_name, existing_text, why_left_out
from mt.config.data import DataConfig
from mt.data.filters import cleaned_pairs
from mt.data.held_out import open_training_corpora
from mt.data.lines import scan
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
    """Sources to translate, with references if they come from a config."""

    teacher: Teacher
    origin: DataConfig | Path
    """Corpora of a config, or a text in the source language."""
    interpolation: Interpolation | None = None

    def job(self, folder: Path, shard: Shard) -> Job:
        """Return the job; raise UserError or DataError if the sources are unsuitable."""
        teacher = self.teacher
        if isinstance(self.origin, Path):
            name, settings = self._text(self.origin)
        else:
            name, settings = "train", self._corpus(self.origin)
        if self.interpolation is not None:
            check_n_best(self.interpolation.n_best, teacher.decoding)
            settings |= asdict(self.interpolation)
        extent = Extent.of((pair.source for pair in self._pairs()), teacher.window)
        languages = teacher.source_language, teacher.target_language
        settings = {"command": "distill", **settings}
        return teacher.job(folder / name, languages, settings, extent, shard)

    def make(self, lines: range) -> Iterator[Made]:
        """Yield the pair, or the reason for leaving it out, of each of some sources."""
        pairs, ahead = tee(islice(self._pairs(), lines.start, lines.stop))
        n_best, metric = 1, None
        if self.interpolation is not None:
            n_best = self.interpolation.n_best
            metric = SIMILARITIES[self.interpolation.similarity](self.teacher.target_language)
        translations = self.teacher.translator.stream(
            (pair.source for pair in ahead), n_best=n_best, look_ahead=self.teacher.window
        )
        for translation, pair in zip(translations, pairs, strict=True):
            yield _choose(translation, pair, metric)

    def _pairs(self) -> Iterator[SentencePair]:
        if isinstance(self.origin, Path):
            return (SentencePair(line, "") for line in read_lines(self.origin))
        return cleaned_pairs(open_training_corpora(self.origin))

    def _text(self, path: Path) -> tuple[str, dict[str, Any]]:
        text = existing_text(path)
        if self.interpolation is not None:
            raise UserError(f"{path}: has no references to compare with; --n-best needs a CONFIG")
        return base_name(text, self.teacher.source_language), {"input": scan(text).sha256}

    def _corpus(self, data: DataConfig) -> dict[str, Any]:
        of = "the config's corpora are"
        self.teacher.require_direction(data.source_language, data.target_language, of=of)
        corpora = open_training_corpora(data)
        sums = {corpus.key: asdict(corpus.source.checksums()) for corpus in corpora}
        return {"input": sums, "cleaning": corpora[0].cleaning.fingerprint}


def _choose(translation: Translation, pair: SentencePair, metric: Metric | None) -> Made:
    """Return the best usable translation, or with `metric` the one nearest to the reference."""
    choices = [each for each in translation.alternatives if not why_left_out(pair.source, each)]
    if metric is not None and choices:
        # Among equals `index` returns the first, which the teacher prefers.
        scores = [metric.sentence_score(each.text, [pair.target]).score for each in choices]
        return SentencePair(pair.source, choices[scores.index(max(scores))].text)
    reason = why_left_out(translation.source, *translation.alternatives[:1])
    return reason or SentencePair(translation.source, translation.text)
