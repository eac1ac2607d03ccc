"""Validation: loss, scores and statistics of translations, and warnings about them."""

import math
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from shutil import get_terminal_size

import numpy as np
import torch

from mt.config import Config, DecodingConfig
from mt.config.data import Direction
from mt.config.training import Metric
from mt.data.batches import Batch, Lengths, collate, micro_batches
from mt.data.pairs import SentencePair, spread
from mt.data.store import Example
from mt.decoding.retries import repeats_itself
from mt.decoding.torch_engine import TorchEngine
from mt.decoding.translator import Translation, Translator
from mt.errors import UserError
from mt.evaluation.evaluate import translate_pairs
from mt.evaluation.run_info import read_events
from mt.evaluation.scores import (
    LEAST_DIFFERING,
    ONE_ERROR,
    SAMPLES,
    Evaluation,
    choose_metrics,
    choose_tokenizer,
    evaluate,
    is_better_than_chance,
    label_scores,
)
from mt.languages import written_without_spaces
from mt.model.device import compute_in_halves
from mt.tables import clip, make_printable
from mt.training.data import TrainingData, example_lengths
from mt.training.state import Ranked
from mt.training.step import Learner, TrainingPass


@dataclass(frozen=True)
class Validator:
    """Loss, translations and scores of the validation pairs with the model in training."""

    learner: Learner
    data: TrainingData
    decoding: DecodingConfig
    """Search of validation, with the length limit of `validation_length`."""
    direction: Direction
    bleu_tokenizer: str
    max_tokens_per_batch: int

    @classmethod
    def build(
        cls, config: Config, learner: Learner, data: TrainingData, journal: Path | None = None
    ) -> "Validator":
        """Return the validator of a config's validation split.

        `auto` keeps BLEU's tokenizer of the validations in the journal. Raises UserError if its
        model is missing here.
        """
        direction = config.data.direction_of(config.data.valid)
        tokenizer: str = config.evaluation.bleu_tokenizer
        if tokenizer == "auto" and journal is not None:
            for event in read_events(journal):
                if kept := _CHOSEN_HERE.search(str(event.get("bleu_signature"))):
                    tokenizer = kept[1]
            choose_tokenizer(direction.target, tokenizer)
        return cls(
            learner,
            data,
            config.decoding.changed(
                search="greedy",
                repair="off",  # an early model repeats itself often
                mbr=None,
                **config.split_tags("valid"),
                max_length_extra=validation_length(data.valid_lengths, config.decoding),
            ),
            direction,
            tokenizer,
            config.training.max_tokens_per_batch,
        )

    def label(self, pairs: int) -> str:
        """Return the label of scores on a number of pairs."""
        search, total = self.decoding.search_label, len(self.data.valid)
        return label_scores("valid", pairs, search, total=total)

    def describe(self, count: int | None) -> str:
        """Return lines with the extent of a validation, and the pair that it prints."""
        pairs = spread(self.data.valid, count)
        pair = pairs[typical_pair(pairs)]
        sample = sample_lines(source=pair.source, reference=pair.target)
        return f"validations: {self.label(len(pairs))}; each prints its translation of\n{sample}"

    def run(self, count: int | None = None) -> "Validation":
        """Compute the loss on the validation pairs, translate their sources and score the result.

        `count` limits the pairs, which are evenly spread over the split. Translation and scoring
        are those of `mt translate` and `mt evaluate`.
        """
        learner, data, language = self.learner, self.data, self.direction.target
        pairs = spread(data.valid, count)
        learner.model.eval()
        try:
            with torch.inference_mode():
                examples = spread(data.valid_examples, count)
                losses = validation_losses(learner, examples, self.max_tokens_per_batch)
            translator = Translator(
                TorchEngine(learner.model, learner.precision.device),
                data.tokenizer,
                decoding=self.decoding,
                longest_source=data.store.longest_source,
                direction=self.direction,
                line_shape=data.line_shape,
            )
            translations = translate_pairs(translator, pairs)
        finally:
            learner.model.train()

        texts, references = [line.text for line in translations], [pair.target for pair in pairs]
        tokenizer = self.bleu_tokenizer
        evaluation = evaluate(texts, [references], target_language=language, tokenizer=tokenizer)
        evaluation = replace(evaluation, label=self.label(len(pairs)))
        statistics = translation_statistics(pairs, translations, target_language=language)
        sample = sample_lines(translation=texts[typical_pair(pairs)])
        return Validation(mean_loss(losses), evaluation, statistics, sample, tuple(texts), losses)

    def is_clearly_better(self, one: "Validation", other: "Validation", metric: Metric) -> bool:
        """Return True if the first of two validations is better by more than a standard error.

        Sentences are resampled for BLEU, or for chrF where BLEU does not rank, and batches for the
        loss.
        """
        if metric == "loss":
            losses, other_losses = np.array(one.losses), np.array(other.losses)
            size = SAMPLES["bootstrap"], len(losses)
            drawn = np.random.default_rng(1).integers(len(losses), size=size)
            sums, other_sums = losses[drawn].sum(axis=1), other_losses[drawn].sum(axis=1)
            wins = sums[:, 0] / sums[:, 1] < other_sums[:, 0] / other_sums[:, 1]
            is_significant = wins.mean() > 1 - ONE_ERROR
            return len(losses) >= LEAST_DIFFERING and bool(is_significant)
        bleu, chrf = choose_metrics(self.direction.target, self.bleu_tokenizer)
        return is_better_than_chance(
            bleu if metric == "bleu" and one.evaluation.bleu.ranks else chrf,
            one.texts,
            other.texts,
            [[pair.target for pair in spread(self.data.valid, len(one.texts))]],
            level=ONE_ERROR,
        )


_LENGTH_MARGIN = 10
_CHOSEN_HERE = re.compile(r"\btok:(13a|flores200)\b")
"""Tokenizers between which `auto` chooses by the files of this machine."""


def validation_length(lengths: Lengths, decoding: DecodingConfig) -> int:
    """Return the `decoding.max_length_extra` of validation, from tokens of sources and targets.

    An early model decodes most sentences to the length limit. Each limit is at least 10 tokens
    above what the reference with the most tokens for its source needs.
    """
    if not len(lengths):  # ranks other than 0 do not validate
        return decoding.max_length_extra
    excess = float((lengths[:, 1] - decoding.max_length_ratio * lengths[:, 0]).max())
    return min(decoding.max_length_extra, max(1, math.ceil(excess) + _LENGTH_MARGIN))


def typical_pair(pairs: Sequence[SentencePair]) -> int:
    """Return the index of the pair of median length."""
    order = sorted(range(len(pairs)), key=lambda n: len(pairs[n].source) + len(pairs[n].target))
    return order[len(order) // 2]


def mean_loss(losses: Sequence[tuple[float, float]]) -> float:
    """Return the mean cross-entropy in nats per target token, of sums and tokens by batch."""
    return sum(nll for nll, _ in losses) / sum(tokens for _, tokens in losses)


def validation_losses(
    learner: Learner, examples: Sequence[Example], max_tokens_per_batch: int
) -> list[tuple[float, int]]:
    """Return the summed cross-entropy, without smoothing, and the target tokens of each batch.

    Pairs that exceed a batch or the model's positions are left out. Raises UserError if no pair
    remains.
    """
    lengths = example_lengths(examples)
    longest = min(max_tokens_per_batch, learner.model.longest or max_tokens_per_batch)
    fitting = (lengths.max(axis=1) <= longest).nonzero()[0]
    plain_loss = TrainingPass(learner.model, label_smoothing=0.0)
    losses = []

    def sum_losses(batch: Batch) -> float:
        with learner.precision.autocast():
            return float(plain_loss(batch.to(learner.precision.device)).nll)

    def halve(batch: Batch) -> tuple[Batch, Batch]:
        if len(batch.index) == 1:
            raise UserError(
                f"a validation pair of {batch.source_tokens} source and {batch.target_tokens} "
                "target tokens does not fit into the device's memory: remove it from `data.valid`"
            )
        return batch.halves()

    for indices in micro_batches([[fitting]], lengths, max_tokens_per_batch=max_tokens_per_batch):
        batch = collate([examples[i] for i in indices])
        nll = sum(compute_in_halves(sum_losses, batch, halve))
        losses.append((nll, batch.target_tokens))
    if not losses:
        raise UserError(
            f"data.valid: every pair has a side of more than {longest} tokens, the most that the "
            "model and `training.max_tokens_per_batch` allow; raise that limit or add shorter pairs"
        )
    return losses


def sample_lines(**texts: str) -> str:
    """Return an indented line for each text, with its name, as wide as the terminal at most."""
    width = get_terminal_size((100, 24)).columns
    rows = [f"  {name:<11}  {make_printable(text)}" for name, text in texts.items()]
    return "\n".join(clip(row, width) for row in rows)


METRIC_NAMES: dict[Metric, str] = {"bleu": "BLEU", "chrf": "chrF2", "loss": "loss"}


@dataclass(frozen=True)
class Validation:
    """Loss in nats per target token, scores and statistics of the validation pairs."""

    loss: float
    evaluation: Evaluation
    statistics: "TranslationStatistics"
    sample: str
    """Translation of the typical pair, in a line."""
    texts: tuple[str, ...] = ()
    """Translations."""
    losses: Sequence[tuple[float, float]] = ()
    """Summed loss and target tokens of each batch."""

    def ranked(self, update: int, metric: Metric) -> Ranked:
        """Return the rank of the checkpoint of an update; a BLEU that does not rank counts as 0."""
        bleu, chrf = self.evaluation.bleu, self.evaluation.chrf.value
        scores = {"bleu": bleu.value if bleu.ranks else 0.0, "chrf": chrf, "loss": -self.loss}
        return Ranked(update, scores[metric], self.loss, chrf)

    def as_text(self, *, signatures: bool = True) -> str:
        """Return the label, loss and scores in one line, without signatures in a shorter form."""
        label, scores = self.evaluation.label, (self.evaluation.bleu, self.evaluation.chrf)
        shown = [f"{score.name} {score.value:.2f}" for score in scores]
        if signatures:
            shown = [f"perplexity {math.exp(min(self.loss, 50.0)):.2f}"]
            shown += [score.as_text() for score in scores]
        return f"{label}: " + ", ".join([f"loss {self.loss:.3f}", *shown])

    def as_record(self) -> dict[str, object]:
        """Return the fields of the journal."""
        bleu, chrf = self.evaluation.bleu, self.evaluation.chrf
        return {
            "label": self.evaluation.label,
            "loss": self.loss,
            "bleu": bleu.value,
            "bleu_signature": bleu.signature,
            "chrf": chrf.value,
            "chrf_signature": chrf.signature,
            "sentences": self.evaluation.sentences,
            **asdict(self.statistics),
        }


_LENGTH_RATIOS = (0.8, 1.25)
_FAULTY_SHARE = 0.1
_MORE_SAME_BEGINNINGS = 0.25


@dataclass(frozen=True, slots=True)
class TranslationStatistics:
    """Signs of a faulty model in its translations; shares are of all translations, 0 to 1."""

    length_ratio: float
    """Characters of the translations divided by those of the references."""
    copied: float
    """Share of translations equal to their source where the reference is not."""
    repeated: float
    """Share with a loop, as `mt.decoding.retries.repeats_itself` detects it."""
    same_beginning: float
    """Share of the most frequent first word; first character in languages without spaces."""
    same_beginning_of_references: float
    """The same share among the references."""

    def faults(self) -> Iterator[str]:
        """Yield the statistics that a good model does not have, in words."""
        if not _LENGTH_RATIOS[0] <= self.length_ratio <= _LENGTH_RATIOS[1]:
            yield f"translations are {self.length_ratio:.2f} times as long as the references"
        if self.copied > _FAULTY_SHARE:
            yield f"{self.copied:.0%} are copies of their source"
        if self.repeated > _FAULTY_SHARE:
            yield f"{self.repeated:.0%} repeat themselves"
        if self.same_beginning > self.same_beginning_of_references + _MORE_SAME_BEGINNINGS:
            references = f"references: {self.same_beginning_of_references:.0%}"
            yield f"{self.same_beginning:.0%} begin with the same word ({references})"


def translation_statistics(
    pairs: Sequence[SentencePair], translations: Sequence[Translation], *, target_language: str
) -> TranslationStatistics:
    """Return the statistics of the translations of pairs."""
    texts = [translation.text for translation in translations]
    references = [pair.target for pair in pairs]
    unspaced, copied, repeated = written_without_spaces(target_language), 0, 0
    for pair, translation in zip(pairs, translations, strict=True):
        source, text = pair.source.strip(), translation.text.strip()
        copied += text == source != pair.target.strip() and any(map(str.isalpha, source))
        parts = translation.alternatives[0].parts if translation.alternatives else ()
        repeated += any(
            repeats_itself(part.hypothesis.ids, part.source[:-1], finished=part.hypothesis.finished)
            for part in parts
        )
    return TranslationStatistics(
        length_ratio=sum(map(len, texts)) / max(1, sum(map(len, references))),
        copied=copied / max(1, len(texts)),
        repeated=repeated / max(1, len(texts)),
        same_beginning=_same_beginning(texts, unspaced=unspaced),
        same_beginning_of_references=_same_beginning(references, unspaced=unspaced),
    )


def _same_beginning(texts: Sequence[str], *, unspaced: bool) -> float:
    """Return the share of the most frequent first word; blank texts have none."""
    firsts = Counter(
        text.strip()[0] if unspaced else text.split()[0] for text in texts if text.strip()
    )
    return max(firsts.values(), default=0) / max(1, len(texts))


_MIN_PAIRS = 50
_MAX_COPIED = 0.5
_LOW_LOSS = 0.2
"""Share of the targets' unigram entropy."""
_LOW_BLEU = 5
_LOW_CHRF = 20
"""Both scores are required: BLEU is 0 if no reference has four words."""


def validation_warnings(
    validation: Validation, examples: Sequence[Example]
) -> Iterator[tuple[str, str]]:
    """Yield kind and message of each fault that a validation of these pairs shows."""
    bleu, chrf = validation.evaluation.bleu.value, validation.evaluation.chrf.value
    if validation.evaluation.sentences < _MIN_PAIRS:
        return
    if validation.statistics.copied > _MAX_COPIED:
        yield (
            "copies",
            f"{validation.statistics.copied:.0%} of the validation translations equal their "
            "source: many training pairs may have the same text on both sides, or a side in the "
            "wrong language; run `mt data check`",
        )
    ids = np.concatenate([example.target for example in examples])
    shares = np.unique(ids, return_counts=True)[1] / len(ids)
    is_low = validation.loss < _LOW_LOSS * float(-(shares * np.log(shares)).sum())
    if is_low and bleu < _LOW_BLEU and chrf < _LOW_CHRF:
        yield (
            "loss_too_low",
            f"the validation loss, {validation.loss:.2f}, is too low for translations of BLEU "
            f"{bleu:.1f}: in training the decoder sees more than in translation; check the causal "
            "mask and the shift of the targets",
        )
