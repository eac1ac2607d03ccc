"""Decoding engine for the Transformer in PyTorch: token ids in, hypotheses out."""

import copy
import math
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property, partial
from itertools import chain, islice
from threading import Lock
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.utils.rnn import pad_sequence

from mt.config import DecodingConfig
from mt.data.batches import collate
from mt.data.corpus_files import warn_once
from mt.data.store import Example
from mt.decoding.constraints import Constraints
from mt.decoding.engine import (
    ExplainingEngine,
    Hypothesis,
    IdLists,
    Prefixes,
    TokenDetails,
    length_limit,
    plan_batches,
)
from mt.decoding.sampling import sample, uniform_numbers
from mt.decoding.search import beam, greedy, require_finite, sum_dtype
from mt.errors import UserError
from mt.model.device import compute_in_halves
from mt.model.hooks import record_weights
from mt.model.transformer import DecoderState, Transformer
from mt.special_ids import BOS, PAD

T = TypeVar("T")


class TorchEngine(ExplainingEngine):
    """Translation with a Transformer on `device`, also with the live model of a training.

    `others` are further models of the same vocabulary. They decode as an ensemble: the probability
    of a token is the mean over all models.
    """

    def __init__(
        self, model: Transformer, device: torch.device, others: Sequence[Transformer] = ()
    ) -> None:
        self.model = model
        self.models = (model, *others)
        self.device = device
        self._explaining = Lock()

    def n_best_ids(
        self, sources: IdLists, decoding: DecodingConfig, count: int, *, prefixes: Prefixes = ()
    ) -> list[list[Hypothesis]]:
        """Return up to `count` hypotheses of each source, best first, in the order of `sources`.

        Batches are formed by length, longest first; one that does not fit the device's memory is
        translated in halves. The models are in evaluation mode meanwhile. Raises UserError if a
        single source does not fit, and DivergedError if the model's output is not finite.
        """
        search = self._sample if decoding.search == "sample" else self._search
        threads = torch.get_num_threads() if self.device.type == "cpu" else 1
        lengths = {index: len(source) for index, source in enumerate(sources)}
        share = math.ceil(len(sources) / threads) if self.device.type == "cpu" else None
        batches = list(plan_batches(lengths, _batch_size(decoding, count, share)))

        def translate(batch: list[int]) -> list[list[Hypothesis]]:
            forced = [prefixes[index] for index in batch] if prefixes else ()
            with torch.inference_mode():
                return search([sources[index] for index in batch], decoding, count, forced)

        by_source: dict[int, list[Hypothesis]] = {}
        fitting = partial(_in_smaller_batches, translate)
        with _evaluation_mode(self.models):
            for batch, results in zip(batches, _in_threads(fitting, batches, threads), strict=True):
                by_source.update(zip(batch, results, strict=True))
        lists = [by_source[index][:count] for index in range(len(sources))]
        return self._add_prefix_log_probs(sources, lists, prefixes) if any(prefixes) else lists

    def _search(
        self, sources: IdLists, decoding: DecodingConfig, count: int, prefixes: Prefixes
    ) -> list[list[Hypothesis]]:
        limits = torch.tensor(self._limits(sources, decoding), device=self.device)
        constraints = _constraints(decoding, prefixes, self.device)
        source = pad_rows(sources, self.device)
        if decoding.search == "greedy":
            hypotheses = greedy(_Steps(self.models, source, 1), limits, constraints)
            return [[hypothesis] for hypothesis in hypotheses]
        steps = _Steps(self.models, source, decoding.beam)
        return beam(steps, limits, decoding, min(count, decoding.beam), constraints)

    def _sample(
        self, sources: IdLists, decoding: DecodingConfig, count: int, prefixes: Prefixes
    ) -> list[list[Hypothesis]]:
        """Draw `count` translations of each source; return them by falling probability."""
        repeated_sources = [source for source in sources for _ in range(count)]
        limits = self._limits(repeated_sources, decoding)
        draws = [*range(count)] * len(sources)
        uniforms = uniform_numbers(
            repeated_sources, seed=decoding.seed, draws=draws, length=max(limits)
        )
        uniforms = uniforms.to(self.device, sum_dtype(self.device))
        source = pad_rows(repeated_sources, self.device)
        repeated = [prefix for prefix in prefixes for _ in range(count)]
        constraints = _constraints(decoding, repeated, self.device)
        steps, longest = _Steps(self.models, source, 1), torch.tensor(limits, device=self.device)
        hypotheses = sample(steps, longest, uniforms, decoding, constraints)
        lists = [hypotheses[first : first + count] for first in range(0, len(hypotheses), count)]
        return [sorted(drawn, key=lambda hypothesis: -hypothesis.score) for drawn in lists]

    def _limits(self, sources: IdLists, decoding: DecodingConfig) -> list[int]:
        """Return the maximum length of each translation."""
        most = self.longest or sys.maxsize
        return [min(length_limit(len(source), decoding), most) for source in sources]

    def _add_prefix_log_probs(
        self, sources: IdLists, lists: list[list[Hypothesis]], prefixes: Prefixes
    ) -> list[list[Hypothesis]]:
        """Add the log-probability of the prefixes, which cost nothing during the search."""
        forced = [
            replace(best, ids=best.ids[: len(prefix)], finished=False)
            for (best, *_), prefix in zip(lists, prefixes, strict=True)
        ]
        added = [math.fsum(details.log_probs) for details in self.explain(sources, forced)]
        return [
            [
                replace(hypothesis, log_prob=hypothesis.log_prob + log_prob)
                for hypothesis in hypotheses
            ]
            for hypotheses, log_prob in zip(lists, added, strict=True)
        ]

    def explain(self, sources: IdLists, hypotheses: Sequence[Hypothesis]) -> list[TokenDetails]:
        """Return the details of one hypothesis per source, by a second pass over both.

        Probabilities and attention are means over the models. A target token is aligned with the
        source token of its largest attention, EOS excepted, in the mean over the heads of the
        `alignment_layer`.
        """
        targets = [hypothesis.ids for hypothesis in hypotheses]
        pairs = zip(sources, targets, strict=True)
        lengths = {index: max(map(len, pair)) for index, pair in enumerate(pairs) if pair[1]}
        details = [TokenDetails((), ())] * len(targets)
        with self._explaining, _evaluation_mode(self.models):
            models = self._hooked_models

            @torch.inference_mode()
            def explain(batch: list[int]) -> list[TokenDetails]:
                batch_targets = [targets[index] for index in batch]
                source = pad_rows([sources[index] for index in batch], self.device)
                rows = [[BOS, *target[:-1]] for target in batch_targets]
                target_in = pad_rows(rows, self.device)
                target_out = torch.tensor([*chain(*batch_targets)], device=self.device)[:, None]
                log_probs_by_model, attention_by_model = [], []
                for model in models:
                    with record_weights(model) as weights:
                        log_probs = F.log_softmax(model(source, target_in).float(), dim=-1)
                    log_probs_by_model.append(log_probs.gather(1, target_out)[:, 0])
                    recorded = weights[model.alignment_attention.weights]
                    attention_by_model.append(recorded.mean(dim=1))
                summed = torch.stack(log_probs_by_model).logsumexp(0) - math.log(len(models))
                attention = torch.stack(attention_by_model).mean(0).float()
                places, means = attention.argmax(-1).tolist(), attention.cpu().numpy()
                scored = iter(summed.tolist())
                of_batch = []
                for row, (index, target) in enumerate(zip(batch, batch_targets, strict=True)):
                    end, length = len(sources[index]) - 1, len(target)
                    aligned = enumerate(places[row][:length])
                    alignment = tuple((place, token) for token, place in aligned if place < end)
                    of_target = tuple(islice(scored, length))
                    weight = means[row, :length, : end + 1]
                    of_batch.append(TokenDetails(of_target, alignment, weight))
                return of_batch

            for batch in plan_batches(lengths, lambda longest: _EXPLAIN_POSITIONS // longest):
                results = _in_smaller_batches(explain, batch)
                for index, detail in zip(batch, results, strict=True):
                    details[index] = detail
        return details

    @cached_property
    def _hooked_models(self) -> list[Transformer]:
        """Copies of the modules over the same tensors: hooks on them reach no other thread."""
        return [
            copy.deepcopy(model, {id(x): x for x in (*model.parameters(), *model.buffers())})
            for model in self.models
        ]

    @property
    def longest(self) -> int | None:
        """Largest number of tokens of a source or a target, including EOS; None: unlimited."""
        return min((model.longest for model in self.models if model.longest), default=None)

    def score(self, sources: IdLists, targets: IdLists) -> list[list[float]]:
        """Return the natural log-probability of each target token; both sides end with EOS.

        Teacher-forced in batches of similar length, softmax in fp32. The numbers do not depend on
        the batches, except for rounding. Raises DivergedError if the output is not finite.
        """
        pairs = zip(sources, targets, strict=True)
        lengths = {index: max(map(len, pair)) for index, pair in enumerate(pairs)}

        def score(indices: list[int]) -> list[list[float]]:
            examples = [
                Example(index, np.asarray(sources[index]), np.asarray(targets[index]))
                for index in indices
            ]
            batch = collate(examples).to(self.device)
            ids = batch.target_out.flatten()[batch.real]
            by_model = []
            for model in self.models:
                states = model.states(batch.source, batch.target_in, batch.real)
                rows = max(1, LOGITS_AT_ONCE // model.output.out_features)
                chunks = zip(torch.split(states, rows), torch.split(ids, rows), strict=True)
                log_probs = [
                    F.log_softmax(model.output(chunk).float(), dim=-1).gather(1, of_chunk[:, None])
                    for chunk, of_chunk in chunks
                ]
                by_model.append(torch.cat(log_probs)[:, 0].cpu().double().numpy())
                require_finite(np.isfinite(by_model[-1]))
            means = np.logaddexp.reduce(by_model, axis=0) - math.log(len(self.models))
            scored = iter(means.tolist())
            return [list(islice(scored, len(targets[index]))) for index in indices]

        scores: list[list[float]] = [[] for _ in targets]
        with _evaluation_mode(self.models), torch.inference_mode():
            for indices in plan_batches(lengths, lambda longest: SCORE_POSITIONS // longest):
                results = _in_smaller_batches(score, indices)
                for index, of_target in zip(indices, results, strict=True):
                    scores[index] = of_target
        return scores


def _in_smaller_batches(work: Callable[[list[int]], list[T]], batch: list[int]) -> list[T]:
    """Return the results of `work` for sentences, in halves where the device lacks memory.

    Raises UserError if it lacks memory for a single sentence.
    """

    def halve(batch: list[int]) -> tuple[list[int], list[int]]:
        if len(batch) == 1:
            raise UserError(
                "the device has too little memory for a single sentence: lower `decoding.beam`, "
                "cut the sentence, or use a larger device"
            )
        warn_once(
            "a batch does not fit the memory of the device and is halved; a smaller "
            "`decoding.batch_size` avoids that"
        )
        middle = (len(batch) + 1) // 2
        return batch[:middle], batch[middle:]

    return [*chain.from_iterable(compute_in_halves(work, batch, halve))]


@contextmanager
def _evaluation_mode(models: Sequence[Transformer]) -> Iterator[None]:
    """Switch dropout off, and on again for models in training mode."""
    were_training = [model for model in models if model.training]
    for model in were_training:
        model.eval()
    try:
        yield
    finally:
        for model in were_training:
            model.train()


# Rows of a batch, one of which needs up to 0.8 MB for a vocabulary of 32,000; and rows times source
# positions.
_CPU_ROWS, _CPU_POSITIONS = 640, 2**14
_GPU_ROWS, _GPU_POSITIONS = 2560, 2**17


def _batch_size(
    decoding: DecodingConfig, count: int, share_on_cpu: int | None
) -> Callable[[int], int]:
    """Return the number of sentences of a batch by its longest length.

    A step takes about as long for any batch that does not fill the GPU. On a CPU a thread has its
    share of the sentences, and greedy search, with one row a sentence, takes up to 256: 1.25 times
    the throughput of 64. Batches of long sentences take no more memory than those of short ones.
    """
    if (size := decoding.batch_size) is not None:
        return lambda _: size
    rows = {"beam": decoding.beam, "sample": count}.get(decoding.search, 1)
    least = decoding.sentences_at_once
    if share_on_cpu is None:
        return lambda longest: max(least, min(_GPU_ROWS, _GPU_POSITIONS // longest) // rows)
    if decoding.search == "greedy":
        return lambda longest: max(least, min(256, share_on_cpu, _CPU_POSITIONS // longest))
    return lambda _: min(least, _CPU_ROWS // rows)


def _in_threads(
    translate: Callable[[list[int]], list[list[Hypothesis]]], batches: list[list[int]], threads: int
) -> Iterator[list[list[Hypothesis]]]:
    """Translate batches in order, one batch per CPU thread.

    The operations of a step are too small to share: two threads with a batch each translate 1.1 to
    1.5 times as many sentences as two threads with one batch.
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
        torch.set_num_threads(threads)  # the number that new threads inherit


def pad_rows(rows: IdLists, device: torch.device) -> Tensor:
    """Return ids as int64 [rows, longest row] on a device, padded with PAD on the right."""
    tensors = [torch.tensor(row, dtype=torch.int64) for row in rows]
    return pad_sequence(tensors, batch_first=True, padding_value=PAD).to(device)


def _constraints(decoding: DecodingConfig, prefixes: Prefixes, device: torch.device) -> Constraints:
    forced = pad_rows(prefixes, device) if any(prefixes) else None
    return Constraints(decoding.no_repeat_ngram, forced)


class _Steps:
    """Step model of one or several Transformers; encodes the sources at once.

    The logits of an ensemble are the logarithms of the models' mean probabilities.
    """

    def __init__(
        self, models: Sequence[Transformer], source: Tensor, rows_per_sentence: int
    ) -> None:
        self.models = models
        self.states: list[DecoderState] = [
            model.start(model.encode(source), rows_per_sentence) for model in models
        ]

    def step(self, last_ids: Tensor) -> Tensor:
        pairs = zip(self.models, self.states, strict=True)
        logits = [model.step(last_ids, state) for model, state in pairs]
        if len(logits) == 1:
            return logits[0]
        log_probs = torch.stack([scores.float().log_softmax(dim=1) for scores in logits])
        return log_probs.logsumexp(dim=0) - math.log(len(logits))

    def reorder(self, parents: Tensor) -> None:
        for state in self.states:
            state.reorder(parents)

    def keep(self, sentences: Tensor) -> None:
        for state in self.states:
            state.keep(sentences)


# Padded positions of a batch, sentences times the longer side.
_EXPLAIN_POSITIONS = 1024
SCORE_POSITIONS = 4096
# Logits in memory at once: 64 MiB in fp32.
LOGITS_AT_ONCE = 2**24
