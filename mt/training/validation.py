"""Validation: the loss, and the scores of translations made and scored as for users."""

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise

import torch

from mt.config import Config
from mt.data.batches import collate, split_update
from mt.data.pairs import SentencePair
from mt.decoding.text import repeats_itself
from mt.decoding.torch_engine import TorchEngine
from mt.decoding.translator import Translation, Translator
from mt.errors import UserError
from mt.evaluation.evaluate import score_pairs
from mt.evaluation.scores import Evaluation, evaluate
from mt.languages import written_without_spaces
from mt.training.data import Corpus
from mt.training.step import Learner, TrainingPass

LENGTH_GROUPS = 4
FEWEST_IN_GROUP = 20
"""BLEU of fewer sentences says nothing."""


@dataclass(frozen=True, slots=True)
class Symptoms:
    """Shares are of all translations, from 0 to 1; each beside that of the references."""

    length_ratio: float
    """Characters of the translations for one of the references."""
    copied: float
    """Are their source, where the reference is not."""
    repeated: float
    """Fell into a loop, as `mt.decoding.text` tells it."""
    same_beginning: float
    """Begin with the word that most of them begin with; a character where no spaces are written."""
    same_beginning_of_references: float
    bleu_by_length: tuple[float, ...]
    """BLEU of quarters of the pairs, those of the shortest sources first; none of few pairs."""

    def as_text(self) -> str:
        """Return one clause."""
        shares = {
            "copied": self.copied,
            "repeated": self.repeated,
            "same first word": self.same_beginning,
        }
        told = ", ".join(f"{name} {share:.0%}" for name, share in shares.items())
        by_length = " ".join(f"{bleu:.1f}" for bleu in self.bleu_by_length)
        of_references = f" (references {self.same_beginning_of_references:.0%})"
        return (
            f"length ratio {self.length_ratio:.2f}, {told}{of_references}"
            f"{f', BLEU by length {by_length}' if by_length else ''}"
        )


def find_symptoms(
    pairs: Sequence[SentencePair],
    translations: Sequence[Translation],
    *,
    target_language: str,
    bleu: Callable[[Sequence[str], Sequence[str]], float],
) -> Symptoms:
    """Look at the translations of the pairs' sources; `bleu` scores texts against references."""
    texts = [each.text for each in translations]
    references = [pair.target for pair in pairs]
    unspaced = written_without_spaces(target_language)
    return Symptoms(
        length_ratio=sum(map(len, texts)) / max(1, sum(map(len, references))),
        copied=_share(map(_is_copied, pairs, texts)),
        repeated=_share(map(_is_repeated, translations)),
        same_beginning=_same_beginning(texts, unspaced=unspaced),
        same_beginning_of_references=_same_beginning(references, unspaced=unspaced),
        bleu_by_length=_by_length(pairs, texts, bleu),
    )


def _share(found: "map[bool]") -> float:
    each = [*found]
    return sum(each) / max(1, len(each))


def _is_copied(pair: SentencePair, text: str) -> bool:
    source = pair.source.strip()
    return text.strip() == source != pair.target.strip() and any(map(str.isalpha, source))


def _is_repeated(translation: Translation) -> bool:
    if not translation.alternatives:
        return False
    return any(
        repeats_itself(part.hypothesis.ids, part.source[:-1], finished=part.hypothesis.finished)
        for part in translation.alternatives[0].parts
    )


def _same_beginning(texts: Sequence[str], *, unspaced: bool) -> float:
    """Return the share of the most frequent first word; blank texts have none."""
    firsts = Counter(
        text.strip()[0] if unspaced else text.split()[0] for text in texts if text.strip()
    )
    return max(firsts.values(), default=0) / max(1, len(texts))


def _by_length(
    pairs: Sequence[SentencePair],
    texts: Sequence[str],
    bleu: Callable[[Sequence[str], Sequence[str]], float],
) -> tuple[float, ...]:
    if len(pairs) < LENGTH_GROUPS * FEWEST_IN_GROUP:
        return ()
    order = sorted(range(len(pairs)), key=lambda number: len(pairs[number].source))
    edges = [len(pairs) * group // LENGTH_GROUPS for group in range(LENGTH_GROUPS + 1)]
    groups = [order[start:end] for start, end in pairwise(edges)]
    return tuple(
        bleu([texts[number] for number in group], [pairs[number].target for number in group])
        for group in groups
    )


@dataclass(frozen=True)
class Validation:
    """How good the model is on the validation pairs; `loss` in nats per target token."""

    loss: float
    evaluation: Evaluation
    symptoms: Symptoms

    def metric(self, name: str) -> float:
        """Return a metric by its config name, turned so that higher is better."""
        if name == "loss":
            return -self.loss
        return self.evaluation.bleu.value if name == "bleu" else self.evaluation.chrf.value

    def as_text(self) -> str:
        """Return one line."""
        bleu, chrf = self.evaluation.bleu, self.evaluation.chrf
        return (
            f"loss {self.loss:.3f}, perplexity {math.exp(min(self.loss, 50.0)):.2f}, "
            f"{bleu.as_text()}, {chrf.as_text()}"
        )

    def as_record(self) -> dict[str, object]:
        """Return the journal's fields."""
        bleu, chrf = self.evaluation.bleu, self.evaluation.chrf
        return {
            "loss": self.loss,
            "bleu": bleu.value,
            "bleu_signature": bleu.signature,
            "chrf": chrf.value,
            "chrf_signature": chrf.signature,
            **asdict(self.symptoms),
        }


def validate(learner: Learner, corpus: Corpus, config: Config) -> Validation:
    """Compute the loss on the validation pairs, translate their sources, score the result.

    Translated and scored by what stands behind `mt translate` and `mt evaluate`.
    """
    language = config.data.of(config.data.valid).target_language
    tokenizer = config.evaluation.bleu_tokenizer

    def bleu(texts: Sequence[str], references: Sequence[str]) -> float:
        found = evaluate(texts, [references], target_language=language, tokenizer=tokenizer)
        return found.bleu.value

    learner.model.eval()
    try:
        with torch.inference_mode():
            loss = validation_loss(learner, corpus, config.training.max_tokens_per_batch)
        scores = score_pairs(
            live_translator(learner, corpus, config),
            corpus.valid,
            target_language=language,
            tokenizer=tokenizer,
        )
    finally:
        learner.model.train()
    symptoms = find_symptoms(corpus.valid, scores.translations, target_language=language, bleu=bleu)
    return Validation(loss, scores.evaluation, symptoms)


def validation_loss(learner: Learner, corpus: Corpus, max_tokens_per_batch: int) -> float:
    """Return the mean cross-entropy, without smoothing, in nats per target token.

    Pairs that do not fit a batch alone, or are too long for the model, are left out.
    """
    lengths = corpus.valid_lengths
    longest = min(max_tokens_per_batch, learner.model.longest or max_tokens_per_batch)
    fitting = (lengths.max(axis=1) <= longest).nonzero()[0]
    plain_loss = TrainingPass(learner.model, label_smoothing=0.0)
    nll, tokens = 0.0, 0
    for indices in split_update(
        fitting, lengths, max_tokens_per_batch=max_tokens_per_batch, ranks=1
    )[0]:
        batch = collate([corpus.valid_examples[i] for i in indices]).to(learner.precision.device)
        with learner.precision.autocast():
            sums = plain_loss(batch)
        nll += float(sums.nll)
        tokens += sums.tokens
    if not tokens:
        raise UserError(
            f"no pair of `data.valid` has at most {longest} tokens a side, which is all that the "
            "model or `training.max_tokens_per_batch` allows: there is nothing to validate on"
        )
    return nll / tokens


def live_translator(learner: Learner, corpus: Corpus, config: Config) -> Translator:
    """Return a translator over the model as it is now.

    A model that has learnt little repeats itself at every turn, and that is not searched again.
    """
    settings = {
        "search": config.training.validation_search,
        "on_repetition": "keep",
        "tag": config.split_tag("valid"),
    }
    return Translator(
        TorchEngine(learner.model, learner.precision.device),
        corpus.tokenizer,
        decoding=config.decoding.model_copy(update=settings),
        longest_source=corpus.store.longest_source,
        target_language=config.data.of(config.data.valid).target_language,
    )
