"""Distillation: the training sources, each with what a teacher makes of it.

Kim and Rush 2016, "Sequence-Level Knowledge Distillation", sections 3.2 and 3.3.
"""

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from itertools import islice, tee
from pathlib import Path
from typing import Any, Literal

from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF

from mt.augment.resumable import Job, Made, Shard
from mt.augment.teacher import Teacher, plain_name, read_twice, usable, why_left_out
from mt.config.data import DataConfig
from mt.data.filters import TrainingCorpus, cleaned_pairs, open_training_corpora
from mt.data.lines import existing_file, scan
from mt.data.pairs import SentencePair
from mt.decoding.files import read_lines
from mt.decoding.translator import Translation
from mt.errors import UserError
from mt.evaluation.scores import choose_tokenizer

Similarity = Literal["bleu", "chrf"]
Compare = Callable[[str, str], float]
"""How near a translation is to the reference, 0 to 100."""


def _bleu(language: str) -> Compare:
    metric = BLEU(tokenize=choose_tokenizer(language), effective_order=True)
    return lambda text, reference: metric.sentence_score(text, [reference]).score


def _chrf(_language: str) -> Compare:
    metric = CHRF()
    return lambda text, reference: metric.sentence_score(text, [reference]).score


SIMILARITIES: dict[Similarity, Callable[[str], Compare]] = {"bleu": _bleu, "chrf": _chrf}
"""What makes each measure of one sentence, for a target language."""


@dataclass(frozen=True, slots=True)
class Interpolation:
    """Of `n_best` translations, the one most similar to the reference is taken."""

    n_best: int
    similarity: Similarity


@dataclass(frozen=True)
class Distillation:
    """Sources, with references where they come from a config, and the teacher of both."""

    teacher: Teacher
    origin: DataConfig | Path
    """The corpora of a config, or a text in the source language."""
    interpolation: Interpolation | None = None

    def job(self, folder: Path, shard: Shard) -> Job:
        """Return what is to be written; raise UserError or DataError for what will not do."""
        teacher = self.teacher
        if isinstance(self.origin, Path):
            name, total, settings = self._text(self.origin)
        else:
            name, total, settings = "train", *self._corpus(self.origin)
        if self.interpolation is not None:
            # Raises at once where the search cannot find so many.
            teacher.translator.stream((), n_best=self.interpolation.n_best)
            settings["n_best"] = self.interpolation.n_best
            settings["similarity"] = self.interpolation.similarity
        if not total:
            raise UserError(f"{name}: is empty")
        return Job(
            folder,
            name,
            (teacher.source_language, teacher.target_language),
            teacher.run,
            {"command": "distill", "shards": shard.of, **settings, **teacher.settings},
            total,
            teacher.window,
            shard,
        )

    def make(self, lines: range) -> Iterator[Made]:
        """Yield what becomes of each of some sources."""
        pairs, ahead = tee(islice(self._pairs(), lines.start, lines.stop))
        n_best = self.interpolation.n_best if self.interpolation else 1
        translations = self.teacher.translator.stream(
            (pair.source for pair in ahead), n_best=n_best, look_ahead=self.teacher.window
        )
        choose = self._chooser()
        for translation, pair in zip(translations, pairs, strict=True):
            yield choose(translation, pair)

    def _chooser(self) -> Callable[[Translation, SentencePair], Made]:
        if self.interpolation is None:
            return lambda translation, _pair: _first(translation)
        compare = SIMILARITIES[self.interpolation.similarity](self.teacher.target_language)

        def nearest(translation: Translation, pair: SentencePair) -> Made:
            texts = [each.text for each in usable(pair.source, translation.alternatives)]
            if not texts:
                return _first(translation)
            # Of equally near ones `max` takes the first, which the teacher prefers.
            best = max(texts, key=lambda text: compare(text, pair.target))
            return SentencePair(pair.source, best)

        return nearest

    def _pairs(self) -> Iterator[SentencePair]:
        if isinstance(self.origin, Path):
            return (SentencePair(line, "") for line in read_lines(self.origin))
        return cleaned_pairs(_corpora(self.origin))

    def _text(self, path: Path) -> tuple[str, int, dict[str, Any]]:
        text = read_twice(existing_file(path))
        if self.interpolation is not None:
            raise UserError(f"{path}: has no references to compare with; --n-best needs a CONFIG")
        found = scan(text)
        name = plain_name(text, self.teacher.source_language)
        return name, found.lines, {"input": found.sha256}

    def _corpus(self, data: DataConfig) -> tuple[int, dict[str, Any]]:
        of = "the config's corpora are"
        self.teacher.require_direction(data.source_language, data.target_language, of=of)
        corpora = _corpora(data)
        sums = {corpus.key: asdict(corpus.source.checksums()) for corpus in corpora}
        settings = {"input": sums, "cleaning": corpora[0].cleaning.fingerprint}
        return sum(1 for _ in cleaned_pairs(corpora)), settings


def _first(translation: Translation) -> Made:
    best = translation.alternatives[0] if translation.alternatives else None
    reason = why_left_out(translation.source, best)
    return reason or SentencePair(translation.source, translation.text)


def _corpora(data: DataConfig) -> tuple[TrainingCorpus, ...]:
    """Return what is trained on, as it is trained on but for noise, which is the student's own."""
    return tuple(
        replace(corpus, cleaning=corpus.cleaning.without_noise())
        for corpus in open_training_corpora(data)
    )
