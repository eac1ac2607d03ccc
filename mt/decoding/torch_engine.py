"""The engine that runs our own Transformer: ids in, hypotheses out."""

import math
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from mt.config import DecodingConfig
from mt.data.batches import collate_sources
from mt.decoding.engine import Engine, Hypothesis
from mt.decoding.search import beam, greedy
from mt.errors import UserError
from mt.model.transformer import DecoderState, Transformer


class TorchEngine(Engine):
    """Translates with a Transformer that lies on `device`; training uses it on the live model."""

    def __init__(self, model: Transformer, device: torch.device) -> None:
        self.model = model
        self.device = device

    def n_best_ids(
        self, sources: Sequence[Sequence[int]], decoding: DecodingConfig, count: int
    ) -> list[list[Hypothesis]]:
        """Return up to `count` hypotheses of each source, best first.

        Batches are cut from the sources in order of length, the longest first, so that what does
        not fit into memory shows at once; the hypotheses are in the order of the sources. The model
        is in evaluation mode meanwhile. Raises UserError where the model's output is not finite.
        """
        order = sorted(range(len(sources)), key=lambda number: -len(sources[number]))
        found: dict[int, list[Hypothesis]] = {}
        try:
            with _evaluation_mode(self.model), torch.inference_mode():
                for start in range(0, len(order), decoding.batch_size):
                    numbers = order[start : start + decoding.batch_size]
                    batch = [sources[number] for number in numbers]
                    hypotheses = self._translate_batch(batch, decoding)
                    found.update(zip(numbers, hypotheses, strict=True))
        except torch.OutOfMemoryError:
            raise UserError(
                "the device has too little memory: lower `decoding.batch_size`, now "
                f"{decoding.batch_size}; the translations stay the same"
            ) from None
        return [found[number][:count] for number in range(len(sources))]

    def _translate_batch(
        self, sources: Sequence[Sequence[int]], decoding: DecodingConfig
    ) -> list[list[Hypothesis]]:
        most = self.model.longest or sys.maxsize
        limits = torch.tensor(
            [min(length_limit(len(source), decoding), most) for source in sources],
            device=self.device,
        )
        source = collate_sources(sources).to(self.device).source
        if decoding.search == "greedy":
            found = greedy(_Steps(self.model, source, rows_per_sentence=1), limits)
            return [[hypothesis] for hypothesis in found]
        steps = _Steps(self.model, source, rows_per_sentence=decoding.beam)
        return beam(steps, limits, beam=decoding.beam, length_penalty=decoding.length_penalty)


def length_limit(source_pieces: int, decoding: DecodingConfig) -> int:
    """Return the most pieces a translation may have; all counts include the end mark."""
    return math.ceil(decoding.max_length_ratio * source_pieces + decoding.max_length_extra)


class _Steps:
    """The Transformer as the search's StepModel, with the encoder's work done."""

    def __init__(self, model: Transformer, source: Tensor, *, rows_per_sentence: int) -> None:
        self.model = model
        self.state: DecoderState = model.start(model.encode(source), rows_per_sentence)

    def step(self, last_ids: Tensor) -> Tensor:
        return self.model.step(last_ids, self.state)

    def reorder(self, rows: Tensor) -> None:
        self.state.reorder(rows)

    def keep(self, sentences: Tensor) -> None:
        self.state.keep(sentences)


@contextmanager
def _evaluation_mode(model: Transformer) -> Iterator[None]:
    """Switch dropout off, and back on where it was on."""
    was_training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(was_training)
