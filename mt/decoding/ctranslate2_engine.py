"""Decoding engine for models exported to CTranslate2, alone or beside PyTorch; imports no torch."""

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any

import numpy as np

from mt.config import DecodingConfig
from mt.data.tokenizer import Tokenizer
from mt.decoding.engine import (
    LENGTH_NORMALIZATIONS,
    ExplainingEngine,
    Hypothesis,
    IdLists,
    Ids,
    Prefixes,
    TokenDetails,
    choose_rank_device,
    length_limit,
    plan_batches,
)
from mt.errors import UserError, listed
from mt.files import read_json
from mt.runs import EXPORTED_MODEL
from mt.special_ids import BOS, EOS, PAD, UNK

if TYPE_CHECKING:
    from mt.decoding.torch_engine import TorchEngine

Tokens = Sequence[str]
_NEVER_GENERATED = frozenset({PAD, UNK, BOS})
_LARGEST_LENGTH_PENALTY = 0.6
"""Largest exponent with which the best hypothesis was always among the most probable ones."""
# Padded positions of a batch for forced decoding, sentences times the longer side.
FORCED_POSITIONS = 1024


def describe_unsupported(decoding: DecodingConfig) -> str | None:
    """Return an error message if CTranslate2 does not support `decoding`, else None."""
    for is_set, key, reason in (
        (decoding.ensemble, "ensemble", "translates alone; translate with the run"),
        (decoding.adapter, "adapter", "has its weights; export the run of the adapter"),
        (decoding.mbr, "mbr", "chooses by its score; translate with the run"),
        (decoding.search == "sample", "search: sample", "does not sample; translate with the run"),
    ):
        if is_set:
            return f"`decoding.{key}`: an exported model {reason}"
    return None


def find_differing_key(decoding: DecodingConfig) -> str | None:
    """Return the key of a search that CTranslate2 does not do as PyTorch does, or None.

    CTranslate2 returns the `beam` most probable of the hypotheses that ended. The more a score
    favours length, the more often the best one is not among them.
    """
    if reason := describe_unsupported(decoding):
        return reason.split("`")[1]
    if decoding.search == "beam":
        if decoding.no_repeat_ngram:
            return "decoding.no_repeat_ngram"
        if decoding.length_normalization == "average":
            return "decoding.length_normalization: average"
        favours_length = decoding.length_penalty > _LARGEST_LENGTH_PENALTY
        if decoding.length_normalization == "gnmt" and favours_length:
            return "decoding.length_penalty"
    return "decoding.precision: bf16" if decoding.precision == "bf16" else None


class CTranslate2Engine(ExplainingEngine):
    """Translation with CTranslate2 (Klein et al. 2020), equivalent to the search of `TorchEngine`.

    CTranslate2's only length penalty is length ** alpha. The engine therefore requests all
    hypotheses without a penalty and ranks them itself. CTranslate2 returns `beam` hypotheses where
    `mt.decoding.search.beam` ranks all that finished. Right after a prefix, CTranslate2's beam
    search ends only if no other token is more probable than EOS.
    """

    def __init__(self, folder: Path, *, device: str, tokenizer: Tokenizer, positions: int) -> None:
        """Load the model on a device, which is auto, cuda or cpu, and try it.

        `positions` is the longest sequence that it supports, including EOS.
        A batch runs on each of `count_cores` cores, which is faster than all cores for one batch.
        Raises UserError if CTranslate2 cannot use the device, the model or the processor.
        """
        import ctranslate2

        available = ["cuda", "cpu"] if ctranslate2.get_cuda_device_count() else ["cpu"]
        if device == "auto":
            device = available[0]
        if device not in available:
            raise UserError(f"device `{device}`: CTranslate2 has {listed(available)} here")
        self.positions = positions
        self.adds_eos: bool = read_json(folder / "config.json", dict[str, Any])["add_source_eos"]
        self.source_tokens, self.target_tokens = (
            side.processor.id_to_piece([*range(len(side))])
            for side in (tokenizer.source, tokenizer.target)
        )
        self.target_ids = {token: index for index, token in enumerate(self.target_tokens)}
        gpu = choose_rank_device(ctranslate2.get_cuda_device_count()) if device == "cuda" else None
        try:
            self.translator = ctranslate2.Translator(
                str(folder),
                device,
                device_index=gpu or 0,
                inter_threads=count_cores() if device == "cpu" else 1,
                intra_threads=1,
                max_queued_batches=-1,
            )
            # The first translation chooses the kernels; EOS alone needs none.
            self.translator.translate_batch(self._as_source([[UNK, EOS]]), max_decoding_length=1)
        except (RuntimeError, ValueError) as error:
            model = folder / EXPORTED_MODEL
            raise UserError(f"{model}: CTranslate2 cannot use it here ({error})") from error

    def iterate_n_best(
        self, sources: IdLists, decoding: DecodingConfig, count: int, *, prefixes: Prefixes = ()
    ) -> Iterator[tuple[int, list[Hypothesis]]]:
        """Yield each source's number and up to `count` hypotheses, best first, batch by batch.

        Raises UserError if CTranslate2 does not support `decoding`.
        """
        if reason := describe_unsupported(decoding):
            raise UserError(reason)
        prefixes = prefixes or [()] * len(sources)
        constrained = decoding.no_repeat_ngram is not None
        # Tokens by source that need the model's own log-probabilities: a constrained search gives
        # the probability of the excluded tokens to others.
        unscored: dict[int, list[list[str]]] = {}
        too_long = []
        for index, texts, hypotheses in self._results(sources, decoding, prefixes):
            limit = self._limit(len(sources[index]), decoding)
            if _is_settled(hypotheses, limit):
                if constrained or prefixes[index]:
                    unscored[index] = texts
                else:
                    yield index, _ranked(hypotheses, count)
            elif decoding.search == "greedy" and _generates_text(hypotheses[0].ids[:limit]):
                # Greedy search under the source's own limit would have taken the same steps.
                unscored[index] = [texts[0][:limit]]
            else:
                too_long.append(index)
        for index, [pending] in [
            (index, self._start([index], sources, decoding, prefixes, is_strict=True))
            for index in too_long
        ]:
            unscored[index] = pending.result().hypotheses
        end = self.source_tokens[EOS]
        pairs = [(index, tokens) for index, texts in unscored.items() for tokens in texts]
        scores = self._score(
            self._as_source([sources[index] for index, _ in pairs]),
            [[token for token in tokens if token != end] for _, tokens in pairs],
        )
        rescored: dict[int, list[Hypothesis]] = {index: [] for index in unscored}
        for (index, tokens), log_probs in zip(pairs, scores, strict=True):
            # Forced decoding scores an EOS, which unfinished hypotheses lack. The tokens of a
            # prefix count in the log-probability but not in the score.
            log_probs = log_probs[: len(tokens)]
            after_prefix = sum(log_probs[len(prefixes[index]) :])
            hypothesis = self._hypothesis(tokens, after_prefix, decoding)
            rescored[index].append(replace(hypothesis, log_prob=sum(log_probs)))
        for index, hypotheses in rescored.items():
            yield index, _ranked(hypotheses, count)

    def best_as_in_torch(
        self, sources: IdLists, decoding: DecodingConfig, prefixes: Prefixes
    ) -> Iterator[tuple[int, list[Hypothesis]]]:
        """Yield each source's number and best hypothesis, where `TorchEngine` finds it too.

        Beam search is without constraints and prefixes, because CTranslate2 gives the probability
        of excluded tokens to others, which changes no choice of greedy search. Sources are left out
        if they are too long for the model, or if the translations in a beam exceed their own limit
        or hold PAD, UNK or BOS.
        """
        limits = [length_limit(len(source), decoding) for source in sources]
        fitting = [
            index
            for index, source in enumerate(sources)
            if max(len(source), limits[index]) <= self.positions
        ]
        fitting_sources = [sources[index] for index in fitting]
        forced = [prefixes[index] for index in fitting] if prefixes else [()] * len(fitting_sources)
        if decoding.search == "greedy":
            for index, best in self.iterate_n_best(fitting_sources, decoding, 1, prefixes=forced):
                yield fitting[index], best
            return
        assert decoding.no_repeat_ngram is None and not any(forced)
        for index, _, hypotheses in self._results(fitting_sources, decoding, forced):
            if _is_settled(hypotheses, limits[fitting[index]]):
                yield fitting[index], _ranked(hypotheses, 1)

    def _results(
        self, sources: IdLists, decoding: DecodingConfig, prefixes: Prefixes
    ) -> Iterator[tuple[int, list[list[str]], list[Hypothesis]]]:
        """Yield number, tokens and hypotheses of each source, in batches under a common limit."""
        # A prefix in a batch keeps all its hypotheses from ending at the first step.
        groups: dict[bool, dict[int, int]] = {}
        for index, source in enumerate(sources):
            groups.setdefault(bool(prefixes[index]), {})[index] = len(source)
        # All batches start before the first result is awaited.
        for batch, results in [
            (batch, self._start(batch, sources, decoding, prefixes))
            for _, lengths in sorted(groups.items())
            for batch in plan_batches(lengths, lambda _: decoding.sentences_at_once)
        ]:
            for index, pending in zip(batch, results, strict=True):
                result = pending.result()
                texts = result.hypotheses  # a copy of CTranslate2's
                hypotheses = [
                    self._hypothesis(tokens, log_prob, decoding)
                    for tokens, log_prob in zip(texts, result.scores, strict=True)
                ]
                yield index, texts, hypotheses

    def _start(
        self,
        batch: list[int],
        sources: IdLists,
        decoding: DecodingConfig,
        prefixes: Prefixes,
        *,
        is_strict: bool = False,
    ) -> list[Any]:
        """Start translating some sources together; return the asynchronous result of each.

        CTranslate2 has one length limit per batch, that of the longest source. It can suppress a
        token only by giving its probability to others. A strict batch is a single source under its
        own limit with PAD, UNK and BOS suppressed, for the few translations that are too long or
        hold one of these tokens.
        """
        longest = max(len(sources[index]) for index in batch)
        rows = 1 if decoding.search == "greedy" else decoding.beam
        forced = self._as_target([prefixes[index] for index in batch])
        never_generated = self._as_target([[token] for token in sorted(_NEVER_GENERATED)])
        results: list[Any] = self.translator.translate_batch(
            self._as_source([sources[index] for index in batch]),
            forced if any(forced) else None,
            asynchronous=True,
            beam_size=rows,
            num_hypotheses=rows,
            length_penalty=0,
            no_repeat_ngram_size=decoding.no_repeat_ngram or 0,
            suppress_sequences=never_generated if is_strict else None,
            return_end_token=True,
            return_scores=True,
            max_input_length=0,  # the default cuts sources at 1,024 tokens
            max_decoding_length=self._limit(longest, decoding),
            min_decoding_length=0,  # the default forbids an empty translation
        )
        return results

    def _hypothesis(self, tokens: Tokens, log_prob: float, decoding: DecodingConfig) -> Hypothesis:
        ids = tuple(map(self.target_ids.__getitem__, tokens))
        finished = ids[-1] == EOS
        penalty = 1.0
        if decoding.search == "beam":
            normalize = LENGTH_NORMALIZATIONS[decoding.length_normalization]
            penalty = normalize(len(ids), decoding.length_penalty)
        return Hypothesis(
            ids[:-1] if finished else ids, log_prob, log_prob / penalty, finished=finished
        )

    def _limit(self, source_tokens: int, decoding: DecodingConfig) -> int:
        return min(length_limit(source_tokens, decoding), self.positions)

    def explain(self, sources: IdLists, hypotheses: Sequence[Hypothesis]) -> list[TokenDetails]:
        """Return the details of one hypothesis per source, by a second pass over both.

        A target token is aligned with the source token of its largest attention, EOS excepted, in
        the mean over the heads of the layer that the exported model names for alignment.
        """
        texts = self._as_source(sources)
        targets = self._as_target([hypothesis.ids for hypothesis in hypotheses])
        log_probs = self._score(texts, targets)
        details = [TokenDetails((), ())] * len(targets)
        filled = [index for index, target in enumerate(targets) if target]

        def follow(sources: list[Tokens], targets: list[Tokens], **keys: Any) -> Any:
            # A greedy search forced along each target; unlike forced scoring, it has attention. It
            # continues after a target that is shorter than the longest of the batch.
            return self.translator.translate_batch(
                sources,
                target_prefix=targets,
                max_decoding_length=max(map(len, targets)),
                beam_size=1,
                return_attention=True,
                **keys,
            )

        for index, result in _in_batches(follow, texts, targets, filled):
            length, end = len(targets[index]), len(sources[index]) - 1
            attention = np.asarray(result.attention[0][:length], dtype=np.float32)
            if self.adds_eos:  # its column is left out
                attention = np.hstack([attention, 1 - attention.sum(axis=1, keepdims=True)])
            positions = attention.argmax(axis=1).tolist()
            aligned = enumerate(positions)
            alignment = tuple((place, token) for token, place in aligned if place < end)
            details[index] = TokenDetails(tuple(log_probs[index][:length]), alignment, attention)
        return details

    @property
    def longest(self) -> int:
        """Largest number of tokens of a source or a target, including EOS."""
        return self.positions

    def score(self, sources: IdLists, targets: IdLists) -> list[list[float]]:
        """Return the natural log-probability of each target token; both sides end with EOS."""
        return self._score(
            self._as_source(sources), self._as_target([target[:-1] for target in targets])
        )

    def _score(self, sources: Sequence[Tokens], targets: Sequence[Tokens]) -> list[list[float]]:
        """Return the log-probabilities of targets without EOS, and of the EOS after each."""
        indices = range(len(targets))
        results = dict(_in_batches(self.translator.score_batch, sources, targets, indices))
        return [list(results[index].log_probs) for index in indices]

    def _as_source(self, rows: IdLists) -> list[list[str]]:
        end = -1 if self.adds_eos else None
        return [[self.source_tokens[token] for token in row[:end]] for row in rows]

    def _as_target(self, rows: IdLists) -> list[list[str]]:
        return [[self.target_tokens[token] for token in row] for row in rows]


class CombinedEngine(ExplainingEngine):
    """CTranslate2 for the searches that it does as PyTorch does, PyTorch for all other requests.

    The former are greedy searches, and beam searches for the best translation without constraints
    and prefixes. Lines and statuses are those of `TorchEngine`, which the first other request
    loads.
    """

    def __init__(self, fast: CTranslate2Engine, load_torch: Callable[[], "TorchEngine"]) -> None:
        self.fast = fast
        self._load_torch = load_torch
        self._torch: TorchEngine | None = None
        self._lock = Lock()

    @property
    def torch(self) -> "TorchEngine":
        """The PyTorch engine of the same run."""
        with self._lock:
            if self._torch is None:
                self._torch = self._load_torch()
            return self._torch

    def iterate_n_best(
        self, sources: IdLists, decoding: DecodingConfig, count: int, *, prefixes: Prefixes = ()
    ) -> Iterator[tuple[int, list[Hypothesis]]]:
        """Yield hypotheses as those of `TorchEngine`."""
        left = dict.fromkeys(range(len(sources)))
        is_free = decoding.search == "greedy" or not any(prefixes)
        if count == 1 and is_free and find_differing_key(decoding) is None:
            for index, best in self.fast.best_as_in_torch(sources, decoding, prefixes):
                del left[index]
                yield index, best
        if left:
            hypotheses = self.torch.n_best_ids(
                [sources[index] for index in left],
                decoding,
                count,
                prefixes=[prefixes[index] for index in left] if prefixes else (),
            )
            yield from zip(left, hypotheses, strict=True)

    def explain(self, sources: IdLists, hypotheses: Sequence[Hypothesis]) -> list[TokenDetails]:
        """Return the details of one hypothesis per source, by PyTorch."""
        return self.torch.explain(sources, hypotheses)

    @property
    def longest(self) -> int | None:
        """Largest number of tokens of a source or a target, including EOS; None: unlimited."""
        return self.torch.longest

    def score(self, sources: IdLists, targets: IdLists) -> list[list[float]]:
        """Return the natural log-probability of each target token, by PyTorch."""
        return self.torch.score(sources, targets)


def _in_batches(
    start: Callable[..., Any],
    sources: Sequence[Tokens],
    targets: Sequence[Tokens],
    indices: Sequence[int],
) -> Iterator[tuple[int, Any]]:
    """Yield the numbers of some pairs and their results; all batches start before the first."""
    lengths = {index: max(len(sources[index]), len(targets[index]) + 1) for index in indices}
    jobs = []
    for batch in plan_batches(lengths, lambda longest: FORCED_POSITIONS // longest):
        pairs = [sources[index] for index in batch], [targets[index] for index in batch]
        jobs.append((batch, start(*pairs, max_input_length=0, asynchronous=True)))
    for batch, results in jobs:
        for index, result in zip(batch, results, strict=True):
            yield index, result.result()


def _is_settled(hypotheses: Sequence[Hypothesis], limit: int) -> bool:
    """Return True if the search under the source's own limit would have found the same."""
    return all(
        len(hypothesis.ids) + hypothesis.finished <= limit and _generates_text(hypothesis.ids)
        for hypothesis in hypotheses
    )


def _generates_text(ids: Ids) -> bool:
    return _NEVER_GENERATED.isdisjoint(ids)


def _ranked(hypotheses: Sequence[Hypothesis], count: int) -> list[Hypothesis]:
    """Return the best hypotheses; unfinished ones only if none is finished.

    A prefix cut at the limit occurs once per row, so duplicates are removed.
    """
    if len(hypotheses) == 1:
        return [*hypotheses]
    hypotheses = list({hypothesis.ids: hypothesis for hypothesis in hypotheses}.values())
    finished = [hypothesis for hypothesis in hypotheses if hypothesis.finished]
    return sorted(finished or hypotheses, key=lambda hypothesis: -hypothesis.score)[:count]


def count_cores() -> int:
    """Return the cores that a process may use: `OMP_NUM_THREADS`, or else those it has."""
    # OMP_NUM_THREADS may be a list, one number per nesting level. OpenMP ignores invalid values.
    threads = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0].strip()
    if threads.isdecimal() and int(threads):
        return int(threads)
    if sys.platform == "linux":
        return len(os.sched_getaffinity(0))  # fewer than the machine has if it is shared
    return os.cpu_count() or 1
