"""Validation: the loss, and the scores of translations made and scored as for users."""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass

import torch

from mt.config import Config
from mt.data.batches import collate, split_update
from mt.decoding.torch_engine import TorchEngine
from mt.decoding.translator import Translator
from mt.errors import UserError
from mt.evaluation.evaluate import score_pairs
from mt.evaluation.scores import Evaluation, evaluate
from mt.training.corpus import Corpus
from mt.training.symptoms import Symptoms, find_symptoms
from mt.training.update import Learner, TrainingPass


@dataclass(frozen=True)
class Validation:
    """How good the model is on the validation pairs; `loss` in nats per target piece."""

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
    """Return the mean cross-entropy, without smoothing, in nats per target piece.

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
            f"no pair of `data.valid` has at most {longest} pieces a side, which is all that the "
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
