"""Sequence-level distillation: sources with a teacher's translations; and back-translation.

Kim and Rush 2016, "Sequence-Level Knowledge Distillation", sections 3.2 and 3.3. The teacher of
back-translation (Sennrich et al. 2016, "Improving Neural Machine Translation Models with
Monolingual Data") has the reverse direction; its translations are the sources of the next training.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from itertools import islice, tee
from pathlib import Path

from sacrebleu.metrics.bleu import BLEU

from mt.augment.teacher import Sources, Teacher, find_pair_fault
from mt.data.augmentation import Noise
from mt.data.pairs import SentencePair
from mt.decoding.shards import Extent, Job, Shard, Window
from mt.decoding.translator import Translation, check_n_best
from mt.errors import UserError
from mt.evaluation.scores import choose_tokenizer

NOISE = Noise(drop=0.1, mask=0.1, swap=3)
"""Strength in Edunov et al. 2018, "Understanding Back-Translation at Scale", section 3."""
WRITTEN = "written"
PairOrReason = SentencePair | str
"""A pair, or the reason for leaving a line out."""


def build_sentence_bleu(language: str) -> BLEU:
    """Return a measure of the similarity of sentences in a language."""
    return BLEU(tokenize=choose_tokenizer(language), effective_order=True)


@dataclass(frozen=True)
class Distillation:
    """Translation of sources by a run."""

    teacher: Teacher
    sources: Sources
    n_best: int = 1
    """Translations of a source, of which the one most similar to the reference is taken."""
    noise: Noise | None = None

    def plan_job(self, folder: Path, shard: Shard) -> Job:
        """Return the job; raise UserError or DataError if the sources are unsuitable."""
        teacher, origin = self.teacher, self.sources.origin
        languages = teacher.source_language, teacher.target_language
        if isinstance(origin, Path):
            if self.n_best > 1:
                raise UserError(f"{origin}: has no references; --n-best needs a CONFIG")
        else:
            languages = origin.source_language, origin.target_language
            teacher.require_direction(*languages, of="the config's corpora are")
        name = self.sources.choose_name(languages[0])
        if languages[0] == languages[1]:
            raise UserError(
                f"{teacher.run}: translates from {languages[0]} into the same language, so both "
                "files would have the same name"
            )
        if name.endswith(f".{languages[1]}"):
            raise UserError(
                f"{origin}: is in {languages[1]} by its name, but {teacher.run} translates from "
                f"{languages[0]} into {languages[1]}; give a text in {languages[0]}"
            )
        settings = {"command": "distill", **self.sources.read_settings()}
        if self.n_best > 1:
            check_n_best(self.n_best, teacher.decoding)
            settings["n_best"] = self.n_best
        if self.noise is not None:
            settings |= {f"noise.{key}": value for key, value in asdict(self.noise).items()}
        extent = Extent.of((pair.source for pair in self.sources.read_pairs()), teacher.window)
        if not extent.lines:
            raise UserError(f"{name}: is empty")
        left, right, record = (folder / f"{name}.{ending}" for ending in (*languages, "json"))
        return Job((left, right), record, {**settings, **teacher.settings}, extent, shard)

    def make_windows(self, lines: range) -> Iterator[Window]:
        """Yield the texts of pairs, and the numbers of pairs and of lines left out."""
        results = self.translate(lines)
        while window := list(islice(results, self.teacher.window)):
            pairs = [result for result in window if isinstance(result, SentencePair)]
            texts = ((pair.source for pair in pairs), (pair.target for pair in pairs))
            left, right = ("".join(f"{text}\n" for text in side).encode() for side in texts)
            counts = Counter(result if isinstance(result, str) else WRITTEN for result in window)
            yield Window(len(window), (left, right), counts)

    def translate(self, lines: range) -> Iterator[PairOrReason]:
        """Yield the pair, or the reason for leaving it out, of each of some sources."""
        pairs, ahead = tee(islice(self.sources.read_pairs(), lines.start, lines.stop))
        language = self.teacher.target_language
        metric = build_sentence_bleu(language) if self.n_best > 1 else None
        translations = self.teacher.translator.stream(
            (pair.source for pair in ahead), n_best=self.n_best, look_ahead=self.teacher.window
        )
        for line, translation, pair in zip(lines, translations, pairs, strict=False):
            result = _choose(translation, pair, metric)
            if self.noise is not None and isinstance(result, SentencePair):
                seed = self.teacher.decoding.seed
                noisy = self.noise.on(result.target, language=language, seed=seed, line=line)
                result = replace(result, target=noisy)
            yield result


def _choose(translation: Translation, pair: SentencePair, metric: BLEU | None) -> PairOrReason:
    choices = translation.alternatives
    usable = [choice for choice in choices if not find_pair_fault(pair.source, choice)]
    if metric is not None and usable:
        # Among equals `index` returns the first, which the teacher prefers.
        scores = [metric.sentence_score(choice.text, [pair.target]).score for choice in usable]
        return SentencePair(pair.source, usable[scores.index(max(scores))].text)
    reason = find_pair_fault(translation.source, *choices[:1])
    return reason or SentencePair(translation.source, translation.text)
