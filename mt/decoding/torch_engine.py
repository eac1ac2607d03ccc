"""The engine that runs our own Transformer: ids in, hypotheses out."""

import math
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial

import torch
from torch import Tensor

from mt.config import DecodingConfig
from mt.data.batches import collate_sources
from mt.decoding.beam import BeamSettings, beam
from mt.decoding.continuations import Rules
from mt.decoding.details import ExplainingEngine, PieceDetails
from mt.decoding.engine import Hypothesis
from mt.decoding.greedy import greedy
from mt.decoding.lengths import fewest_pieces, length_limit
from mt.decoding.sampling import SampleSettings, sample, uniform_numbers
from mt.decoding.step_model import StepModel
from mt.decoding.torch_details import explain
from mt.errors import UserError
from mt.model.transformer import DecoderState, Transformer


class TorchEngine(ExplainingEngine):
    """Translates with a Transformer that lies on `device`; training uses it on the live model.

    With `others`, of the same vocabulary, it translates with all of them together: the probability
    of a piece is the mean of what each model gives it.
    """

    def __init__(
        self, model: Transformer, device: torch.device, others: Sequence[Transformer] = ()
    ) -> None:
        self.model = model
        self.models = (model, *others)
        self.device = device

    def n_best_ids(
        self, sources: Sequence[Sequence[int]], decoding: DecodingConfig, count: int
    ) -> list[list[Hypothesis]]:
        """Return up to `count` hypotheses of each source, best first.

        Batches are cut from the sources in order of length, the longest first, so that what does
        not fit into memory shows at once; the hypotheses are in the order of the sources. The model
        is in evaluation mode meanwhile. Raises UserError where the model's output is not finite.
        """
        search = self._sample if decoding.search == "sample" else self._search
        order = sorted(range(len(sources)), key=lambda number: -len(sources[number]))
        size = decoding.batch_size
        batches = [order[first : first + size] for first in range(0, len(order), size)]

        def translate(numbers: list[int]) -> list[list[Hypothesis]]:
            with torch.inference_mode():
                return search([sources[number] for number in numbers], decoding, count)

        found: dict[int, list[Hypothesis]] = {}
        try:
            with _evaluation_mode(self.models):
                for numbers, hypotheses in zip(
                    batches, _side_by_side(translate, batches, self.device), strict=True
                ):
                    found.update(zip(numbers, hypotheses, strict=True))
        except torch.OutOfMemoryError:
            raise UserError(
                "the device has too little memory: lower `decoding.batch_size`, now "
                f"{decoding.batch_size}; the translations stay the same"
            ) from None
        return [found[number][:count] for number in range(len(sources))]

    def explain(
        self, sources: Sequence[Sequence[int]], hypotheses: Sequence[Hypothesis]
    ) -> list[PieceDetails]:
        """Return the details of a hypothesis for each source, by a second pass over both."""
        with _evaluation_mode(self.models):
            return explain(self.models, sources, hypotheses, device=self.device)

    def _search(
        self, sources: Sequence[Sequence[int]], decoding: DecodingConfig, count: int
    ) -> list[list[Hypothesis]]:
        limits = self._limits(sources, decoding)
        rules = _rules(sources, decoding)
        source = collate_sources(sources).to(self.device).source
        if decoding.search == "greedy":
            return [[found] for found in greedy(self._steps(source, 1), limits, rules)]
        settings = BeamSettings(
            decoding.beam,
            decoding.length_penalty,
            decoding.length_normalization,
            min(count, decoding.beam),
        )
        return beam(self._steps(source, decoding.beam), limits, settings, rules)

    def _sample(
        self, sources: Sequence[Sequence[int]], decoding: DecodingConfig, count: int
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
        found = sample(self._steps(source, 1), limits, numbers, settings, _rules(each, decoding))
        lists = [found[first : first + count] for first in range(0, len(found), count)]
        return [sorted(some, key=lambda hypothesis: -hypothesis.score) for some in lists]

    def _limits(self, sources: Sequence[Sequence[int]], decoding: DecodingConfig) -> Tensor:
        """Return the most pieces of each translation [B]."""
        most = min(model.longest or sys.maxsize for model in self.models)
        limits = [min(length_limit(len(source), decoding), most) for source in sources]
        return torch.tensor(limits, device=self.device)

    def _steps(self, source: Tensor, rows_per_sentence: int) -> StepModel:
        steps = [
            _Steps(model, source, rows_per_sentence=rows_per_sentence) for model in self.models
        ]
        return steps[0] if len(steps) == 1 else _MeanSteps(steps)


def _side_by_side(
    translate: Callable[[list[int]], list[list[Hypothesis]]],
    batches: list[list[int]],
    device: torch.device,
) -> Iterator[list[list[Hypothesis]]]:
    """Translate batches in order; on a CPU as many at once as it has threads, one thread each.

    The operations of a step are too small to share: two threads translate 1.1 to 1.5 times as many
    sentences with a batch each as together.
    """
    threads = torch.get_num_threads()
    workers = min(threads, len(batches)) if device.type == "cpu" else 1
    if workers <= 1:
        yield from map(translate, batches)
        return
    pool = ThreadPoolExecutor(workers, initializer=partial(torch.set_num_threads, 1))
    try:
        yield from pool.map(translate, batches)
    finally:
        pool.shutdown(cancel_futures=True)
        torch.set_num_threads(threads)  # a thread that begins from now on shall have them again


def _rules(sources: Sequence[Sequence[int]], decoding: DecodingConfig) -> Rules:
    shortest = None
    if decoding.min_length_ratio:
        shortest = torch.tensor([fewest_pieces(len(source), decoding) for source in sources])
    return Rules(decoding.no_repeat_ngram, decoding.repetition_penalty, shortest)


class _Steps:
    """The Transformer as the search's StepModel, with the encoder's work done."""

    def __init__(self, model: Transformer, source: Tensor, *, rows_per_sentence: int) -> None:
        self.model = model
        self.state: DecoderState = model.start(model.encode(source), rows_per_sentence)

    def step(self, last_ids: Tensor) -> Tensor:
        return self.model.step(last_ids, self.state)

    def reorder(self, rows: Tensor, places: Tensor) -> None:
        self.state.reorder(rows, places)

    def keep(self, sentences: Tensor) -> None:
        self.state.keep(sentences)


class _MeanSteps:
    """Several models that read the same pieces: their probabilities' mean, as logits."""

    def __init__(self, steps: Sequence[_Steps]) -> None:
        self.steps = steps

    def step(self, last_ids: Tensor) -> Tensor:
        log_probs = [each.step(last_ids).float().log_softmax(dim=1) for each in self.steps]
        return torch.stack(log_probs).logsumexp(dim=0) - math.log(len(log_probs))

    def reorder(self, rows: Tensor, places: Tensor) -> None:
        for each in self.steps:
            each.reorder(rows, places)

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
