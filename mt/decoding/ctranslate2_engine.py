"""The engine for what `mt export --to ctranslate2` wrote: ids in, hypotheses out, no torch."""

import itertools
import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

import ctranslate2
import numpy as np

from mt.config import DecodingConfig
from mt.data.tokenizer import Tokenizer
from mt.data.vocabulary import Vocabulary
from mt.decoding.engine import (
    LENGTH_NORMALIZATIONS,
    ExplainingEngine,
    Hypothesis,
    ScoringEngine,
    TargetPrefixes,
    TokenDetails,
    fewest_tokens,
    length_batches,
    length_limit,
    why_not_decoded,
)
from mt.errors import UserError
from mt.special_ids import BOS, EOS, PAD, UNK

Tokens: TypeAlias = Sequence[str]
# Padded positions of a batch; a longer pair is alone.
_POSITIONS_AT_ONCE = 1024


def explain(
    translator: ctranslate2.Translator, sources: Sequence[Tokens], targets: Sequence[Tokens]
) -> list[TokenDetails]:
    """Return the details of a target for each source; sources end with EOS, targets do not.

    A target token belongs to the source token that it looks at most, EOS aside, in the mean over
    the heads of the one layer that the exported model names for that.
    """
    details = [TokenDetails((), ())] * len(targets)
    each_log_probs = score(translator, sources, targets)
    for number, result in _forced(translator, sources, targets):
        target = targets[number]
        end = len(sources[number]) - 1
        attention = np.asarray(result.attention[0][: len(target)], dtype=np.float32)
        looked_at = attention.argmax(axis=1).tolist()
        details[number] = TokenDetails(
            tuple(each_log_probs[number][: len(target)]),
            tuple((place, token) for token, place in enumerate(looked_at) if place < end),
            attention,
        )
    return details


def score(
    translator: ctranslate2.Translator, sources: Sequence[Tokens], targets: Sequence[Tokens]
) -> list[list[float]]:
    """Return the natural log-probability of each token of each target and of EOS after the last.

    Sources end with EOS, targets do not.
    """
    scores: list[list[float]] = [[] for _ in targets]
    jobs = []
    for numbers in _batches(sources, targets, range(len(targets))):
        results = translator.score_batch(
            [list(sources[number]) for number in numbers],
            [list(targets[number]) for number in numbers],
            max_input_length=0,  # the default cuts sources at 1,024 tokens
            asynchronous=True,
        )
        jobs.append((numbers, results))
    for numbers, results in jobs:
        for number, result in zip(numbers, results, strict=True):
            scores[number] = list(result.result().log_probs)
    return scores


def _forced(
    translator: ctranslate2.Translator, sources: Sequence[Tokens], targets: Sequence[Tokens]
) -> Iterator[tuple[int, Any]]:
    """Yield the numbers of the targets that have tokens, and CTranslate2's way along each.

    Forced scoring tells no attention; a greedy search that is given the whole target does. A search
    goes on behind a target that is shorter than the longest of its batch; nobody reads that.
    """
    jobs = []
    filled = [number for number, target in enumerate(targets) if target]
    for numbers in _batches(sources, targets, filled):
        results = translator.translate_batch(
            [list(sources[number]) for number in numbers],
            target_prefix=[list(targets[number]) for number in numbers],
            beam_size=1,
            return_attention=True,
            max_input_length=0,
            max_decoding_length=max(len(targets[number]) for number in numbers),
            asynchronous=True,
        )
        jobs.append((numbers, results))
    for numbers, results in jobs:
        for number, result in zip(numbers, results, strict=True):
            yield number, result.result()


def _batches(
    sources: Sequence[Tokens], targets: Sequence[Tokens], numbers: Sequence[int]
) -> Iterator[list[int]]:
    """Return batches of pairs of about one length; the target has an end mark besides."""
    lengths = {number: max(len(sources[number]), len(targets[number]) + 1) for number in numbers}
    return length_batches(lengths, positions=_POSITIONS_AT_ONCE)


_NEVER_GENERATED = frozenset({PAD, UNK, BOS})


class CTranslate2Engine(ExplainingEngine, ScoringEngine):
    """Translates with CTranslate2 (Klein et al. 2020) as our own beam search would.

    CTranslate2 ranks by log-probability / length ** alpha and knows no other penalty. So it is
    asked for all hypotheses without any, and they are ranked here. Without a penalty it stops as
    our search does but for one thing: it goes on until its best row has ended, ours until no row,
    scored as it stands, is ahead. Seen on 1,014 sentences of Multi30k, one translation differed.
    Right after a prefix its beam search ends only where nothing else is more probable.
    """

    def __init__(
        self,
        folder: Path,
        *,
        device: str,
        tokenizer: Tokenizer,
        positions: int,
        threads: int | None = None,
    ) -> None:
        """Load the model; `positions` is the longest sequence, end mark included, that it can do.

        `threads` batches are translated at a time, one core each: faster than all cores for one
        batch. By default as many as `OMP_NUM_THREADS` says, or this process has cores.
        """
        self.positions = positions
        self.source_tokens = _tokens(tokenizer.source)
        self.target_tokens = _tokens(tokenizer.target)
        self.target_ids = {token: number for number, token in enumerate(self.target_tokens)}
        self.never_generated = [[self.target_tokens[number]] for number in sorted(_NEVER_GENERATED)]
        on_cpu = device == "cpu"
        self.translator = ctranslate2.Translator(
            str(folder),
            device,
            inter_threads=(threads or _cores()) if on_cpu else 1,
            intra_threads=1,
            max_queued_batches=-1,
        )

    def n_best_ids(
        self,
        sources: Sequence[Sequence[int]],
        decoding: DecodingConfig,
        count: int,
        *,
        prefixes: TargetPrefixes = (),
    ) -> list[list[Hypothesis]]:
        """Return up to `count` hypotheses of each source, best first.

        Raises UserError for a way of decoding that CTranslate2 does not have.
        """
        if reason := why_not_decoded(decoding):
            raise UserError(reason)
        lengths = [len(source) for source in sources]
        prefixes = prefixes or [()] * len(sources)
        under_rules = decoding.no_repeat_ngram is not None or bool(decoding.min_length_ratio)
        found: dict[int, list[Hypothesis]] = {}
        unscored: dict[int, list[list[str]]] = {}
        again = []
        jobs = _batches_ctranslate2_engine(lengths, decoding, prefixes)
        for job, results in self._run(jobs, sources, decoding, prefixes):
            for number, waiting in zip(job.numbers, results, strict=True):
                result, limit = waiting.result(), self._limit(lengths[number], decoding)
                hypotheses = self._hypotheses(result, decoding)
                if _is_settled(hypotheses, limit) and not (under_rules or prefixes[number]):
                    found[number] = _ranked(hypotheses, count)
                elif _is_settled(hypotheses, limit):
                    unscored[number] = result.hypotheses
                elif decoding.search == "greedy" and _may_be_cut(hypotheses[0], limit):
                    unscored[number] = [result.hypotheses[0][:limit]]
                else:
                    again.append(number)
        strict = [_Job([number], is_strict=True) for number in again]
        for job, [waiting] in self._run(strict, sources, decoding, prefixes):
            unscored[job.numbers[0]] = waiting.result().hypotheses
        for number, hypotheses in self._scored_anew(unscored, sources, decoding, prefixes):
            found[number] = _ranked(hypotheses, count)
        return [found[number] for number in range(len(sources))]

    def explain(
        self, sources: Sequence[Sequence[int]], hypotheses: Sequence[Hypothesis]
    ) -> list[TokenDetails]:
        """Return the details of a hypothesis for each source, by a second pass over both."""
        return explain(
            self.translator,
            [[self.source_tokens[token] for token in source] for source in sources],
            [[self.target_tokens[token] for token in each.ids] for each in hypotheses],
        )

    @property
    def longest(self) -> int:
        """The most tokens of a source or a target, end mark included."""
        return self.positions

    def score(
        self, sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]]
    ) -> list[list[float]]:
        """Return the natural log-probability of each token of each target; all end with EOS."""
        return score(
            self.translator,
            [[self.source_tokens[token] for token in source] for source in sources],
            [[self.target_tokens[token] for token in target[:-1]] for target in targets],
        )

    def _limit(self, source_tokens: int, decoding: DecodingConfig) -> int:
        return min(length_limit(source_tokens, decoding), self.positions)

    def _run(
        self,
        jobs: Iterable["_Job"],
        sources: Sequence[Sequence[int]],
        decoding: DecodingConfig,
        prefixes: TargetPrefixes,
    ) -> Iterator[tuple["_Job", list[Any]]]:
        """Start all jobs at once, then yield each with its results, on which one has to wait."""
        started = [(job, self._start(job, sources, decoding, prefixes)) for job in jobs]
        yield from started

    def _start(
        self,
        job: "_Job",
        sources: Sequence[Sequence[int]],
        decoding: DecodingConfig,
        prefixes: TargetPrefixes,
    ) -> list[Any]:
        longest = max(len(sources[number]) for number in job.numbers)
        rows = 1 if decoding.search == "greedy" else decoding.beam
        forced = [[self.target_tokens[each] for each in prefixes[place]] for place in job.numbers]
        results: list[Any] = self.translator.translate_batch(
            [[self.source_tokens[token] for token in sources[number]] for number in job.numbers],
            forced if any(forced) else None,
            asynchronous=True,
            beam_size=rows,
            num_hypotheses=rows,
            length_penalty=0,
            no_repeat_ngram_size=decoding.no_repeat_ngram or 0,
            suppress_sequences=self.never_generated if job.is_strict else None,
            return_end_token=True,
            return_scores=True,
            max_input_length=0,  # the default cuts sources at 1,024 tokens
            max_decoding_length=self._limit(longest, decoding),
            min_decoding_length=fewest_tokens(longest, decoding) - 1,  # EOS is not counted
        )
        return results

    def _scored_anew(
        self,
        unscored: Mapping[int, Sequence[Sequence[str]]],
        sources: Sequence[Sequence[int]],
        decoding: DecodingConfig,
        prefixes: TargetPrefixes,
    ) -> Iterator[tuple[int, list[Hypothesis]]]:
        """Yield what a search under rules has found for each source, with the model's probability.

        The search has given that of the tokens kept out to the others. The tokens of a prefix count
        in the log-probability, not in the score.
        """
        end = self.source_tokens[EOS]
        each = [(number, tokens) for number, some in unscored.items() for tokens in some]
        scores = score(
            self.translator,
            [[self.source_tokens[token] for token in sources[number]] for number, _ in each],
            [[token for token in tokens if token != end] for _, tokens in each],
        )
        scored = zip(each, scores, strict=True)
        for number, group in itertools.groupby(scored, key=lambda one: one[0][0]):
            found = []
            for (_, tokens), all_log_probs in group:
                # Forced scoring ends every translation; what the limit has cut has no end.
                log_probs = all_log_probs[: len(tokens)]
                free = sum(log_probs[len(prefixes[number]) :])
                hypothesis = self._hypothesis(tokens, free, decoding)
                found.append(replace(hypothesis, log_prob=sum(log_probs)))
            yield number, found

    def _hypotheses(self, result: Any, decoding: DecodingConfig) -> list[Hypothesis]:
        return [
            self._hypothesis(tokens, log_prob, decoding)
            for tokens, log_prob in zip(result.hypotheses, result.scores, strict=True)
        ]

    def _hypothesis(
        self, tokens: Sequence[str], log_prob: float, decoding: DecodingConfig
    ) -> Hypothesis:
        ids = tuple(self.target_ids[token] for token in tokens)
        finished = ids[-1] == EOS
        penalty = 1.0
        if decoding.search == "beam":
            normalize = LENGTH_NORMALIZATIONS[decoding.length_normalization]
            penalty = normalize(len(ids), decoding.length_penalty)
        return Hypothesis(
            ids[:-1] if finished else ids, log_prob, log_prob / penalty, finished=finished
        )


@dataclass(frozen=True, slots=True)
class _Job:
    """Sources that are translated together.

    CTranslate2 has one length limit a batch, which is that of the longest source here, and cannot
    keep a token from being generated without giving its probability to the others. A strict job
    is a single source under its own limit, with PAD, UNK and BOS kept out; it is for the few whose
    translation has come out too long, or with one of these tokens in it.
    """

    numbers: list[int]
    is_strict: bool = False


def _batches_ctranslate2_engine(
    lengths: Sequence[int], decoding: DecodingConfig, prefixes: TargetPrefixes
) -> Iterator[_Job]:
    """Yield batches of sources of about one length, the longest first.

    With a minimum length, which CTranslate2 has once a batch too, they are of exactly one length.
    Sources without a prefix are among themselves: beside one with a prefix, they would be kept from
    ending at once as those are from ending right after it.
    """

    def kind(number: int) -> tuple[bool, int]:
        return bool(prefixes[number]), lengths[number] if decoding.min_length_ratio else 0

    order = sorted(range(len(lengths)), key=lambda place: (bool(prefixes[place]), -lengths[place]))
    for _, group in itertools.groupby(order, key=kind):
        run = list(group)
        for start in range(0, len(run), decoding.sentences_at_once):
            yield _Job(run[start : start + decoding.sentences_at_once])


def _is_settled(hypotheses: Sequence[Hypothesis], limit: int) -> bool:
    """Tell whether the search would have gone the same way under the sentence's own limit."""
    return all(
        len(hypothesis.ids) + hypothesis.finished <= limit
        and not _NEVER_GENERATED.intersection(hypothesis.ids)
        for hypothesis in hypotheses
    )


def _may_be_cut(hypothesis: Hypothesis, limit: int) -> bool:
    """Tell whether a search of one row that went too far would have gone the same way up to there.

    It would, unless one of the tokens that mean nothing stands on the way.
    """
    return not _NEVER_GENERATED.intersection(hypothesis.ids[:limit])


def _ranked(hypotheses: Sequence[Hypothesis], count: int) -> list[Hypothesis]:
    """Return the best hypotheses; those that the limit has cut count only where none is whole.

    A prefix that reaches the limit comes once for each row.
    """
    hypotheses = list({hypothesis.ids: hypothesis for hypothesis in hypotheses}.values())
    whole = [hypothesis for hypothesis in hypotheses if hypothesis.finished]
    return sorted(whole or hypotheses, key=lambda hypothesis: -hypothesis.score)[:count]


def _tokens(vocabulary: Vocabulary) -> list[str]:
    return [vocabulary.processor.id_to_piece(number) for number in range(len(vocabulary))]


def _cores() -> int:
    # It may be a list, a number for each level of nesting; what is no number OpenMP ignores.
    given = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0].strip()
    if given.isdecimal() and int(given):
        return int(given)
    if sys.platform == "linux":
        return len(os.sched_getaffinity(0))  # fewer than the machine has, where it is shared
    return os.cpu_count() or 1
