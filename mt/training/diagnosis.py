"""What goes wrong in a training that runs, and its probable cause: told once, stopping nothing.

At the start the sides of the pairs are compared; at the start, at a tenth of the run and at each
validation the model is probed, and at a validation its translations are looked at besides.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeGuard

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from mt.config.data import needed_tags
from mt.data.batches import Batch, collate, split_update
from mt.data.pairs import SentencePair
from mt.data.store import Example, PairStore
from mt.data.tokenizer import Tokenizer
from mt.doctor.alignment import CHUNK_LINES, are_unrelated, features, learn_lexicon
from mt.doctor.findings import KINDS
from mt.doctor.first_look import language_warnings
from mt.doctor.tally import Block
from mt.model.transformer import Transformer
from mt.special_ids import PAD
from mt.training.setup import Session
from mt.training.validation import Validation

_MOST_PAIRS = 16
_MOST_POSITIONS = 2048
"""Of one side, padding included, so that a probe takes no more memory than training does."""


@dataclass(frozen=True, slots=True)
class MaskProbe:
    """The largest change of a target token's log-probability, in nats, when something changes."""

    later_tokens: float
    """Other target tokens after it: without a fault 0, but for the noise of the arithmetic."""
    padding: float
    """As much padding again at the end of the source: likewise."""
    source: float
    """The source of another pair: without a fault, anything but 0; inf where all are alike."""


def probe_masks(model: Transformer, examples: Sequence[Example]) -> MaskProbe:
    """Ask a model in eval mode about some pairs, 16 at most and fewer long ones.

    None may be too long for the model. In fp32 and not compiled, whatever the training is: so
    noise is far below any fault.
    """
    chosen = examples[:: -(-len(examples) // _MOST_PAIRS)]
    longest = max(max(len(each.source), len(each.target)) for each in chosen)
    chosen = chosen[: max(2, _MOST_POSITIONS // longest)]
    batch = collate(chosen).to(model.output.weight.device)
    source, target_in = batch.source, batch.target_in
    middle, length = target_in.shape[1] // 2, target_in.shape[1]
    late = torch.arange(length, device=target_in.device) >= middle
    other_ending = target_in.masked_fill(late & (target_in != PAD), model.output.out_features - 1)
    others, width = source.roll(1, dims=0), source.shape[1]
    room = width if model.longest is None else min(width, model.longest - width)
    with torch.no_grad():
        plain = log_probabilities(model, batch, source, target_in)
        later = log_probabilities(model, batch, source, other_ending) - plain
        padded = log_probabilities(model, batch, F.pad(source, (0, room), value=PAD), target_in)
        other = log_probabilities(model, batch, others, target_in) - plain
    return MaskProbe(
        later_tokens=_largest(later[batch.real % length < middle]),
        padding=_largest(padded - plain),
        source=math.inf if torch.equal(others, source) else _largest(other),
    )


def log_probabilities(
    model: Transformer, batch: Batch, source: Tensor, target_in: Tensor
) -> Tensor:
    """Return those of the real target tokens of a batch [N] with this source and beginning."""
    # The method of the class: that of the model may have been replaced by a compiled one.
    states = Transformer.states(model, source, target_in, batch.real)
    tokens = batch.target_out.flatten().index_select(0, batch.real)
    return -F.cross_entropy(model.output(states), tokens, reduction="none")


def _largest(changes: Tensor) -> float:
    return float(changes.abs().max()) if len(changes) else 0.0


_MOST_PAIRS_source_use = 256
_POSITIONS_AT_ONCE = 1024


@dataclass(frozen=True, slots=True)
class SourceUse:
    """What was found on some validation pairs, in nats per target token."""

    loss: float
    loss_with_others: float
    """Each pair has the source of another one, of about the same length."""
    unigram_entropy: float
    """That of the target tokens by themselves: the loss of who knows no more than how frequent."""

    pairs: int

    @property
    def learnt(self) -> float:
        """By how much the loss is below the unigram entropy; below 0 at the start of a run."""
        return self.unigram_entropy - self.loss

    @property
    def gain(self) -> float:
        """By how much the right source lowers the loss."""
        return self.loss_with_others - self.loss


def measure_source_use(model: Transformer, examples: Sequence[Example]) -> SourceUse:
    """Ask a model in eval mode about some pairs, 256 at most, none too long for it."""
    chosen = examples[:: -(-len(examples) // _MOST_PAIRS_source_use)]
    lengths = np.array([(len(each.source), len(each.target)) for each in chosen], np.int32)
    budget = max(_POSITIONS_AT_ONCE, 4 * int(lengths.max()))  # so that hardly one is alone
    batches = split_update(np.arange(len(chosen)), lengths, max_tokens_per_batch=budget, ranks=1)[0]
    right = wrong = tokens = 0.0
    with torch.no_grad():
        for indices in batches:
            batch = collate([chosen[number] for number in indices]).to(model.output.weight.device)
            others = batch.source.roll(1, dims=0)
            right -= float(log_probabilities(model, batch, batch.source, batch.target_in).sum())
            wrong -= float(log_probabilities(model, batch, others, batch.target_in).sum())
            tokens += batch.target_tokens
    return SourceUse(right / tokens, wrong / tokens, _unigram_entropy(chosen), len(chosen))


def _unigram_entropy(examples: Sequence[Example]) -> float:
    _, counts = np.unique(np.concatenate([each.target for each in examples]), return_counts=True)
    shares = counts / counts.sum()
    return float(-(shares * np.log(shares)).sum())


_CERTAIN = 0.8
"""Of the judged lines of each side; where both sides are in one language it is about a half."""
_FEWEST = 50


def sides_are_swapped(train: Sequence[SentencePair], valid: Sequence[SentencePair]) -> bool:
    """Say whether validation sources look like training targets, and targets like sources.

    False where too few lines have a word that tells the training sides apart.
    """
    sources = _Profile(pair.source for pair in train)
    targets = _Profile(pair.target for pair in train)
    return _look_like(targets, sources, [pair.source for pair in valid]) and _look_like(
        sources, targets, [pair.target for pair in valid]
    )


class _Profile:
    """How frequent the words of some lines are."""

    def __init__(self, lines: Iterable[str]) -> None:
        self._counts = Counter(word for line in lines for word in features(line))
        self._total = self._counts.total()

    def log_frequency(self, word: str) -> float:
        """Return it with one occurrence added, so that a word that is not there has one too."""
        return math.log((self._counts[word] + 1) / (self._total + 1))


def _look_like(expected: _Profile, other: _Profile, lines: Sequence[str]) -> bool:
    margins = [
        sum(expected.log_frequency(word) - other.log_frequency(word) for word in features(line))
        for line in lines
    ]
    judged = [margin for margin in margins if margin]
    return len(judged) >= _FEWEST and sum(each > 0 for each in judged) >= _CERTAIN * len(judged)


PROBED_AT = 0.1
"""Of the run: where the model is probed if no validation comes before."""
_NOISE = 1e-2
"""In nats. Between arithmetic, 1e-5 at most, and broken masks, 0.08 at the least."""
_LEARNT = 0.3
"""Nats below the unigram entropy, from which on a model knows the language of its targets."""
_LEAST_GAIN = 0.01
"""Of what the model has learnt; healthy ones gain most of it by the source, blind ones 0.002."""
_PATIENCE = 1000
"""Updates before which a healthy model may know how words are spelt and not yet what they mean."""
_FEWEST_PAIRS = 50
"""Of the validation: fewer say little."""
_BAD_CHRF = 20
"""Below it translations are useless; BLEU is 0 wherever no reference has four words."""
_NO_TAG = (
    "it has no tag, and each training corpus has one, so that the model is asked for translations "
    "in a way that it has not learnt"
)
_MOST_STRETCHES = 20
"""Of training pairs that are compared, or up to twice as many."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """What is known of a model at some moment."""

    masks: MaskProbe
    source_use: SourceUse
    update: int
    validation: Validation | None = None


def _later_tokens(evidence: Evidence) -> str | None:
    change = evidence.masks.later_tokens
    if not change > _NOISE:
        return None
    return (
        f"target tokens change the probability of earlier ones, by up to {change:.2f} nats: the "
        "decoder looks ahead, so its loss will be low and its translations useless; the causal "
        "mask of the decoder is broken"
    )


def _padding(evidence: Evidence) -> str | None:
    change = evidence.masks.padding
    if not change > _NOISE:
        return None
    return (
        f"padding at the end of a source changes target tokens, by up to {change:.2f} nats: a "
        "translation depends on what stands beside it in a batch; the padding mask is broken"
    )


def _no_source(evidence: Evidence) -> str | None:
    if evidence.masks.source:
        return None
    return (
        "another source changes nothing at all: the decoder does not see the encoder's output; "
        "its cross-attention, or the mask over the source, is broken"
    )


def _unused_source(evidence: Evidence) -> str | None:
    use = evidence.source_use
    if use.pairs < _FEWEST_PAIRS or evidence.update < _PATIENCE:
        return None
    if evidence.masks.later_tokens > _NOISE:  # who looks ahead needs no source
        return None
    if not (use.learnt > _LEARNT and use.gain < _LEAST_GAIN * use.learnt):
        return None
    return (
        f"the model has learnt the target language (validation loss {use.loss:.2f}, by frequency "
        f"alone {use.unigram_entropy:.2f}), but the right source lowers the loss by "
        f"{use.gain:.4f} only: the training pairs seem not to be translations of each other, as "
        "if a side had been shuffled or sides did not belong together; run `mt data check`"
    )


def _is_large(validation: Validation | None) -> TypeGuard[Validation]:
    return validation is not None and validation.evaluation.sentences >= _FEWEST_PAIRS


def _too_low(evidence: Evidence) -> str | None:
    use, validation = evidence.source_use, evidence.validation
    if not _is_large(validation) or not use.loss < 0.2 * use.unigram_entropy:
        return None
    bleu, chrf = validation.evaluation.bleu.value, validation.evaluation.chrf.value
    if bleu >= 5 or chrf >= _BAD_CHRF:
        return None
    return (
        f"the loss, {use.loss:.2f}, is far too low for translations with BLEU {bleu:.1f}: in "
        "training the decoder sees what it does not when it translates; look at the causal mask "
        "and at the shift of the targets"
    )


def _copies(evidence: Evidence) -> str | None:
    validation = evidence.validation
    if not _is_large(validation) or validation.symptoms.copied <= 0.5:
        return None
    return (
        f"{validation.symptoms.copied:.0%} of the translations are their source: many training "
        "pairs may have two like sides, or the wrong language on one; run `mt data check`"
    )


ALARMS: dict[str, Callable[[Evidence], str | None]] = {
    "causal_mask": _later_tokens,
    "padding_mask": _padding,
    "no_source": _no_source,
    "unused_source": _unused_source,
    "loss_too_low": _too_low,
    "copies": _copies,
}
"""By kind: the line that tells of it, None where there is nothing to tell."""


def compare_sides(session: Session) -> None:
    """Tell of training or validation pairs whose sides are swapped, and of splits without a tag.

    Only before the first update, and nothing where `data.check` is off.
    """
    if not (session.world.is_main and session.config.data.check) or session.state.update:
        return
    data, corpus = session.config.data, session.corpus
    valid, trained_on = data.of(data.valid), data.train_corpora()
    for name in data.split_names() if needed_tags(data) else ():
        if not session.config.split_tag(name):
            key = name if name == "valid" else f"tests.{name}"
            _tell(session, "no_tag", f"data.{key}: {_NO_TAG}; set `data.{key}.tag`")
    for told in language_warnings(corpus.valid, (valid.source_language, valid.target_language)):
        _tell(session, "languages", f"data.valid: {told}; run `mt data check`")
    for key, store in corpus.parts.items():
        here = data.of(trained_on[key])
        same = here.source_language == valid.source_language  # the other one is another direction
        stretches = _stretches(store, corpus.tokenizer)
        if are_unrelated(stretches, learn_lexicon(stretches)):
            _tell(
                session, "unrelated_sides", f"data.{key}: {KINDS['unrelated']}; run `mt data check`"
            )
        if same and sides_are_swapped(_pairs(stretches), corpus.valid):
            told = (
                f"data.{key}: its sides are swapped against those of data.valid: the sources there "
                "look like its targets, and the targets like its sources; exchange `source` and "
                "`target` of one of them"
            )
            _tell(session, "swapped_sides", told)


def diagnose_early(session: Session) -> None:
    """Diagnose where a tenth of the run is done, unless a validation has come before."""
    most = session.progress.bar.total
    due = int(most * PROBED_AT) if most else 0
    if session.state.update == due < session.config.training.validate_every:
        diagnose(session)


def diagnose(session: Session, validation: Validation | None = None) -> None:
    """Probe the model as it is, and tell what is alarming in it or in its validation.

    Neither weights nor gradients nor generators change: a run is the same with it and without.
    Each kind of alarm is told once in a program.
    """
    model, examples = session.learner.model, _fitting(session)
    if not (session.world.is_main and examples):
        return
    was_training = model.training
    model.eval()
    try:
        with session.progress.paused():
            masks, use = probe_masks(model, examples), measure_source_use(model, examples)
    finally:
        model.train(was_training)
    for kind, alarm in ALARMS.items():
        told = alarm(Evidence(masks, use, session.state.update, validation))
        if told and kind not in session.alarmed:
            session.alarmed.add(kind)
            _tell(session, kind, told)


def _fitting(session: Session) -> list[Example]:
    """Return the validation pairs that the model can take."""
    longest = session.learner.model.longest
    return [
        each
        for each in session.corpus.valid_examples
        if longest is None or max(len(each.source), len(each.target)) <= longest
    ]


def _stretches(store: PairStore, tokenizer: Tokenizer) -> list[Block]:
    """Return lines of a store in text, in stretches from the whole of it."""
    every = max(1, len(store) // (CHUNK_LINES * _MOST_STRETCHES)) * CHUNK_LINES
    blocks = []
    for first in range(0, len(store), every):
        examples = store.examples(range(first, min(first + CHUNK_LINES, len(store))))
        sources = [tokenizer.decode_source(each.source.tolist()) for each in examples]
        targets = [tokenizer.decode_target(each.target.tolist()) for each in examples]
        blocks.append(Block(first, sources, targets))
    return blocks


def _pairs(blocks: Iterable[Block]) -> list[SentencePair]:
    return [pair for each in blocks for pair in map(SentencePair, each.sources, each.targets)]


def _tell(session: Session, kind: str, told: str) -> None:
    """Say and journal an alarm."""
    session.progress.say(f"alarm: {told}")
    session.progress.record("alarm", update=session.state.update, kind=kind, told=told)
