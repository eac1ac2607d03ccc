"""The engine that runs our own Transformer: ids in, hypotheses out."""

import copy
import math
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from itertools import chain, islice

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.utils.rnn import pad_sequence

from mt.config import DecodingConfig
from mt.data.batches import collate, collate_sources
from mt.data.store import Example
from mt.decoding.constraints import Constraints
from mt.decoding.engine import (
    ExplainingEngine,
    Hypothesis,
    ScoringEngine,
    TargetPrefixes,
    TokenDetails,
    fewest_tokens,
    length_batches,
    length_limit,
)
from mt.decoding.sampling import SampleSettings, sample, uniform_numbers
from mt.decoding.search import BeamSettings, beam, greedy
from mt.errors import DivergedError, UserError
from mt.model.attention_hooks import recording
from mt.model.transformer import DecoderLayer, DecoderState, Transformer, alignment_layer
from mt.special_ids import BOS, PAD

# Padded positions of a batch; a longer hypothesis is alone.
_POSITIONS_AT_ONCE = 1024


def explain(
    models: Sequence[Transformer],
    sources: Sequence[Sequence[int]],
    hypotheses: Sequence[Hypothesis],
    *,
    device: torch.device,
) -> list[TokenDetails]:
    """Return the details of a hypothesis for each source; the models are in evaluation mode.

    Several models speak as one, by the means of their probabilities and of their attention. A
    target token belongs to the source token that it looks at most, EOS aside, in the mean over the
    heads of the last decoder layer but one (Garg et al. 2019, "Jointly Learning to Align and
    Translate with Transformer Models"); with one layer, of that one.
    """
    assert not any(model.training for model in models), "dropout would make the numbers random"
    models = [_with_modules_of_its_own(model) for model in models]
    targets = [hypothesis.ids for hypothesis in hypotheses]
    pairs = zip(sources, targets, strict=True)
    lengths = {number: max(map(len, pair)) for number, pair in enumerate(pairs) if pair[1]}
    details = {number: TokenDetails((), ()) for number, ids in enumerate(targets) if not ids}
    for numbers in length_batches(lengths, positions=_POSITIONS_AT_ONCE):
        some_sources = [sources[number] for number in numbers]
        some_targets = [targets[number] for number in numbers]
        found = _explain_batch(models, some_sources, some_targets, device=device)
        details.update(zip(numbers, found, strict=True))
    return [details[number] for number in range(len(targets))]


def _with_modules_of_its_own(model: Transformer) -> Transformer:
    """Return a model over the same tensors, whose hooks no other thread runs into."""
    tensors = chain(model.parameters(), model.buffers())
    return copy.deepcopy(model, {id(tensor): tensor for tensor in tensors})


def _explain_batch(
    models: Sequence[Transformer],
    sources: Sequence[Sequence[int]],
    targets: Sequence[Sequence[int]],
    *,
    device: torch.device,
) -> Iterator[TokenDetails]:
    source = _padded(sources).to(device)
    target_in = _padded([[BOS, *target[:-1]] for target in targets]).to(device)
    target_out = torch.tensor([*chain.from_iterable(targets)], device=device)
    passes = [_teacher_forced(model, source, target_in, target_out) for model in models]
    log_probs = torch.stack([log_probs for log_probs, _ in passes]).logsumexp(0)
    each = iter((log_probs - math.log(len(models))).tolist())
    attention = torch.stack([weights for _, weights in passes]).mean(0).float()
    looked_at = attention.argmax(-1).tolist()
    weights = attention.cpu().numpy()
    for number, target in enumerate(targets):
        end = len(sources[number]) - 1
        its_own = weights[number, : len(target), : end + 1]
        pairs = enumerate(looked_at[number][: len(target)])
        alignment = tuple((place, token) for token, place in pairs if place < end)
        yield TokenDetails(tuple(islice(each, len(target))), alignment, its_own)


def _teacher_forced(
    model: Transformer, source: Tensor, target_in: Tensor, target_out: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the log-probabilities [N] of the real target tokens, and the attention [B T S]."""
    layers = [layer for layer in model.decoder if isinstance(layer, DecoderLayer)]
    attention = layers[alignment_layer(len(layers))].cross_attention.weights
    with torch.inference_mode(), recording(model) as weights:
        log_probs = F.log_softmax(model(source, target_in).float(), dim=-1)
        return log_probs.gather(1, target_out[:, None])[:, 0], weights[attention].mean(dim=1)


def _padded(rows: Sequence[Sequence[int]]) -> Tensor:
    return pad_sequence([torch.tensor(row) for row in rows], batch_first=True, padding_value=PAD)


Ids = Sequence[int]
# Padded positions of a batch, sentences times the longest side; a longer pair is alone.
_POSITIONS_AT_ONCE_torch_scoring = 4096
# Logits that exist at once: 64 MiB in fp32.
_LOGITS_AT_ONCE = 2**24


def score(
    models: Sequence[Transformer],
    sources: Sequence[Ids],
    targets: Sequence[Ids],
    *,
    device: torch.device,
) -> list[list[float]]:
    """Return what several models together give to each token: the mean of their probabilities."""
    of_each = [score_pairs(model, sources, targets, device=device) for model in models]
    return [
        (np.logaddexp.reduce(rows, axis=0) - math.log(len(models))).tolist()
        for rows in zip(*of_each, strict=True)
    ]


def score_pairs(
    model: Transformer, sources: Sequence[Ids], targets: Sequence[Ids], *, device: torch.device
) -> list[list[float]]:
    """Return the natural log-probability of each token of each target, in the given order.

    A source ends with EOS; a whole target does, too. Teacher-forced in batches of like length; the
    softmax is fp32. The numbers do not depend on what shares a batch, but for rounding. Raises
    DivergedError where the model's output is not finite.
    """
    assert not model.training, "dropout would make the scores random"
    pairs = zip(sources, targets, strict=True)
    lengths = {number: max(map(len, pair)) for number, pair in enumerate(pairs)}
    scores: list[list[float]] = [[] for _ in targets]
    for batch in length_batches(lengths, positions=_POSITIONS_AT_ONCE_torch_scoring):
        examples = [
            Example(number, np.asarray(sources[number]), np.asarray(targets[number]))
            for number in batch
        ]
        tokens = iter(_log_probs(model, examples, device).tolist())
        for number in batch:
            scores[number] = list(islice(tokens, len(targets[number])))
    return scores


def _log_probs(model: Transformer, examples: Sequence[Example], device: torch.device) -> Tensor:
    """Return the log-probabilities [N] of all target tokens of a batch, row after row."""
    batch = collate(examples).to(device)
    with torch.inference_mode():
        states = model.states(batch.source, batch.target_in, batch.real)
        targets = batch.target_out.flatten()[batch.real]
        rows = max(1, _LOGITS_AT_ONCE // model.output.out_features)
        found = torch.cat(
            [
                F.log_softmax(model.output(some).float(), dim=-1).gather(1, ids[:, None])[:, 0]
                for some, ids in zip(
                    torch.split(states, rows), torch.split(targets, rows), strict=True
                )
            ]
        ).cpu()
    if not found.isfinite().all():
        raise DivergedError(
            "the model's output is not finite (NaN or infinite): its weights are damaged, "
            "or its training diverged"
        )
    return found


_GREEDY_POSITIONS = 256 * 64


class TorchEngine(ExplainingEngine, ScoringEngine):
    """Translates with a Transformer that lies on `device`; training uses it on the live model.

    With `others`, of the same vocabulary, it translates with all of them together: the probability
    of a token is the mean of what each model gives it.
    """

    def __init__(
        self, model: Transformer, device: torch.device, others: Sequence[Transformer] = ()
    ) -> None:
        self.model = model
        self.models = (model, *others)
        self.device = device

    def n_best_ids(
        self,
        sources: Sequence[Sequence[int]],
        decoding: DecodingConfig,
        count: int,
        *,
        prefixes: TargetPrefixes = (),
    ) -> list[list[Hypothesis]]:
        """Return up to `count` hypotheses of each source, best first.

        Batches are cut from the sources in order of length, the longest first, so that what does
        not fit into memory shows at once; the hypotheses are in the order of the sources. The model
        is in evaluation mode meanwhile. Raises UserError where the model's output is not finite.
        """
        search = self._sample if decoding.search == "sample" else self._search
        threads = torch.get_num_threads() if self.device.type == "cpu" else 1
        batches = _batches([len(source) for source in sources], decoding, threads)

        def translate(numbers: list[int]) -> list[list[Hypothesis]]:
            some = [prefixes[number] for number in numbers] if prefixes else ()
            with torch.inference_mode():
                return search([sources[number] for number in numbers], decoding, count, some)

        found: dict[int, list[Hypothesis]] = {}
        try:
            with _evaluation_mode(self.models):
                for numbers, hypotheses in zip(
                    batches, _side_by_side(translate, batches, threads), strict=True
                ):
                    found.update(zip(numbers, hypotheses, strict=True))
        except torch.OutOfMemoryError:
            raise UserError(
                "the device has too little memory: lower `decoding.batch_size`, now "
                f"{decoding.sentences_at_once}; the translations stay the same"
            ) from None
        lists = [found[number][:count] for number in range(len(sources))]
        return self._with_prefixes(sources, lists, prefixes) if any(prefixes) else lists

    def explain(
        self, sources: Sequence[Sequence[int]], hypotheses: Sequence[Hypothesis]
    ) -> list[TokenDetails]:
        """Return the details of a hypothesis for each source, by a second pass over both."""
        with _evaluation_mode(self.models):
            return explain(self.models, sources, hypotheses, device=self.device)

    @property
    def longest(self) -> int | None:
        """The most tokens of a source or a target, end mark included; None without such a limit."""
        return min((model.longest for model in self.models if model.longest), default=None)

    def score(
        self, sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]]
    ) -> list[list[float]]:
        """Return the natural log-probability of each token of each target; all end with EOS."""
        with _evaluation_mode(self.models):
            return score(self.models, sources, targets, device=self.device)

    def _with_prefixes(
        self,
        sources: Sequence[Sequence[int]],
        lists: list[list[Hypothesis]],
        prefixes: TargetPrefixes,
    ) -> list[list[Hypothesis]]:
        """Add the log-probability of the prefixes, which cost nothing in the search."""
        begins = [
            replace(best, ids=best.ids[: len(prefix)], finished=False)
            for (best, *_), prefix in zip(lists, prefixes, strict=True)
        ]
        costs = [math.fsum(each.log_probs) for each in self.explain(sources, begins)]
        return [
            [replace(each, log_prob=each.log_prob + cost) for each in hypotheses]
            for hypotheses, cost in zip(lists, costs, strict=True)
        ]

    def _search(
        self,
        sources: Sequence[Sequence[int]],
        decoding: DecodingConfig,
        count: int,
        prefixes: TargetPrefixes,
    ) -> list[list[Hypothesis]]:
        limits = self._limits(sources, decoding)
        rules = _rules(sources, decoding, prefixes)
        source = collate_sources(sources).to(self.device).source
        if decoding.search == "greedy":
            return [[found] for found in greedy(self._steps(source, 1), limits, rules)]
        settings = BeamSettings(
            decoding.beam,
            decoding.length_penalty,
            decoding.length_normalization,
            min(count, decoding.beam),
            decoding.coverage_penalty,
        )
        steps = self._steps(source, decoding.beam)
        if decoding.coverage_penalty:
            steps.watch()
        return beam(steps, limits, settings, rules)

    def _sample(
        self,
        sources: Sequence[Sequence[int]],
        decoding: DecodingConfig,
        count: int,
        prefixes: TargetPrefixes,
    ) -> list[list[Hypothesis]]:
        """Draw `count` translations of each source, and put the most probable first."""
        each = [source for source in sources for _ in range(count)]
        limits = self._limits(each, decoding)
        numbers = uniform_numbers(
            each,
            seed=decoding.seed,
            draws=[*range(count)] * len(sources),
            length=int(limits.max()),
        )
        settings = SampleSettings(decoding.temperature, decoding.top_k, decoding.top_p)
        source = collate_sources(each).to(self.device).source
        rules = _rules(each, decoding, [prefix for prefix in prefixes for _ in range(count)])
        found = sample(self._steps(source, 1), limits, numbers, settings, rules)
        lists = [found[first : first + count] for first in range(0, len(found), count)]
        return [sorted(some, key=lambda hypothesis: -hypothesis.score) for some in lists]

    def _limits(self, sources: Sequence[Sequence[int]], decoding: DecodingConfig) -> Tensor:
        """Return the most tokens of each translation [B]."""
        most = min(model.longest or sys.maxsize for model in self.models)
        limits = [min(length_limit(len(source), decoding), most) for source in sources]
        return torch.tensor(limits, device=self.device)

    def _steps(self, source: Tensor, rows_per_sentence: int) -> "_Steps | _MeanSteps":
        steps = [
            _Steps(model, source, rows_per_sentence=rows_per_sentence) for model in self.models
        ]
        return steps[0] if len(steps) == 1 else _MeanSteps(steps)


def _batches(lengths: Sequence[int], decoding: DecodingConfig, threads: int) -> list[list[int]]:
    """Return the numbers of sources of these lengths in batches, the longest first.

    Greedy search has one row a sentence, and the matrix products of 256 rows take less time for
    each than those of 64 (1.25 times as many sentences in all). Long sentences make no more of
    them than fit into the memory of as many short ones, and each thread gets its share.
    """
    order = sorted(range(len(lengths)), key=lambda number: -lengths[number])
    share = math.ceil(len(order) / threads)
    batches = []
    while order:
        size = decoding.sentences_at_once
        if decoding.batch_size is None and decoding.search == "greedy":
            size = max(size, min(256, share, _GREEDY_POSITIONS // lengths[order[0]]))
        batches.append(order[:size])
        order = order[size:]
    return batches


def _side_by_side(
    translate: Callable[[list[int]], list[list[Hypothesis]]],
    batches: list[list[int]],
    threads: int,
) -> Iterator[list[list[Hypothesis]]]:
    """Translate batches in order, as many at once as a CPU has threads, one thread each.

    The operations of a step are too small to share: two threads translate 1.1 to 1.5 times as many
    sentences with a batch each as together.
    """
    workers = min(threads, len(batches))
    if workers <= 1:
        yield from map(translate, batches)
        return
    pool = ThreadPoolExecutor(workers, initializer=partial(torch.set_num_threads, 1))
    try:
        yield from pool.map(translate, batches)
    finally:
        pool.shutdown(cancel_futures=True)
        torch.set_num_threads(threads)  # a thread that begins from now on shall have them again


def _rules(
    sources: Sequence[Sequence[int]], decoding: DecodingConfig, prefixes: TargetPrefixes
) -> Constraints:
    shortest = None
    if decoding.min_length_ratio:
        shortest = torch.tensor([fewest_tokens(len(source), decoding) for source in sources])
    forced = prefixes if any(prefixes) else ()
    return Constraints(decoding.no_repeat_ngram, decoding.repetition_penalty, shortest, forced)


class _Steps:
    """The Transformer as the search's StepModel, with the encoder's work done."""

    def __init__(self, model: Transformer, source: Tensor, *, rows_per_sentence: int) -> None:
        self.model = model
        self.state: DecoderState = model.start(model.encode(source), rows_per_sentence)

    def watch(self) -> None:
        self.state.watched.watched = True

    def attention(self) -> Tensor:
        return self.state.attention()

    def step(self, last_ids: Tensor) -> Tensor:
        return self.model.step(last_ids, self.state)

    def reorder(self, parents: Tensor) -> None:
        self.state.reorder(parents)

    def keep(self, sentences: Tensor) -> None:
        self.state.keep(sentences)


class _MeanSteps:
    """Several models that read the same tokens: their probabilities' mean, as logits."""

    def __init__(self, steps: Sequence[_Steps]) -> None:
        self.steps = steps

    def watch(self) -> None:
        for each in self.steps:
            each.watch()

    def attention(self) -> Tensor:
        return torch.stack([each.attention() for each in self.steps]).mean(dim=0)

    def step(self, last_ids: Tensor) -> Tensor:
        log_probs = [each.step(last_ids).float().log_softmax(dim=1) for each in self.steps]
        return torch.stack(log_probs).logsumexp(dim=0) - math.log(len(log_probs))

    def reorder(self, parents: Tensor) -> None:
        for each in self.steps:
            each.reorder(parents)

    def keep(self, sentences: Tensor) -> None:
        for each in self.steps:
            each.keep(sentences)


@contextmanager
def _evaluation_mode(models: Sequence[Transformer]) -> Iterator[None]:
    """Switch dropout off, and back on where it was on."""
    were_training = [model for model in models if model.training]
    for model in were_training:
        model.eval()
    try:
        yield
    finally:
        for model in were_training:
            model.train()
