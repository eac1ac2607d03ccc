"""Forced scoring: what probability a model gives to translations that somebody else made."""

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from mt.data.batches import collate
from mt.data.lines import LineReader, existing_file, scan
from mt.data.pairs import SentencePair
from mt.data.store import Example
from mt.data.tokenizer import Tokenizer
from mt.decoding.line_files import progress_bar
from mt.decoding.run import load_translator
from mt.decoding.torch_engine import TorchEngine
from mt.errors import DataError, DivergedError, UserError
from mt.model.transformer import Transformer

Ids = Sequence[int]

# Read together and sorted by length, so that a batch has little padding.
_LINES_AT_ONCE = 2048
# Padded positions of a batch, sentences times the longest side; a longer pair is alone.
_POSITIONS_AT_ONCE = 4096
# Logits that exist at once: 64 MiB in fp32.
_LOGITS_AT_ONCE = 2**24


@dataclass(frozen=True, slots=True)
class ForcedScore:
    """What the model gives to one translation, piece by piece."""

    pieces: tuple[str, ...]
    """As SentencePiece writes them, the end mark last."""
    log_probs: tuple[float, ...]
    """The natural log-probability of each, given the source and the pieces before it."""

    @property
    def log_prob(self) -> float:
        """The log-probability of the whole."""
        return math.fsum(self.log_probs)

    @property
    def mean(self) -> float:
        """The log-probability per piece."""
        return self.log_prob / len(self.log_probs)

    def as_text(self) -> str:
        """Return the sum, the number of pieces and the mean, tabs between."""
        return f"{self.log_prob:.6f}\t{len(self.pieces)}\t{self.mean:.6f}"

    def as_json(self) -> str:
        """Return everything on one line of JSON."""
        record = {
            "log_prob": self.log_prob,
            "mean": self.mean,
            "pieces": self.pieces,
            "log_probs": self.log_probs,
        }
        return json.dumps(record, ensure_ascii=False)


@dataclass
class Totals:
    """Sums over the translations scored so far."""

    sentences: int = 0
    pieces: int = 0
    log_prob: float = 0.0

    def add(self, score: ForcedScore) -> None:
        """Take in one translation."""
        self.sentences += 1
        self.pieces += len(score.pieces)
        self.log_prob += score.log_prob

    def as_text(self) -> str:
        """Return the perplexity of all together, exp(-log-probability / pieces), and the counts."""
        perplexity = math.exp(min(-self.log_prob / self.pieces, 700.0))
        return (
            f"perplexity {perplexity:.4f} per piece, log-probability {self.log_prob:.4f}, "
            f"{self.pieces:,} pieces with end marks, {self.sentences:,} sentences"
        )


def score_files(
    run: Path, *, sources: Path, targets: Path, device: str = "auto"
) -> Iterator[ForcedScore]:
    """Return the score of each line of `targets` as a translation of that line of `sources`.

    The files are read as the scores are asked for, a few thousand lines at a time. Raises UserError
    before any work where line counts, files, run or device are not what they should be, and for an
    exported model, which only translates.
    """
    _check_same_length(sources, targets)
    translator = load_translator(run, device=device)
    if not isinstance(translator.engine, TorchEngine):
        raise UserError(f"{run}: is an exported model; score the run that it was made of")
    engine = translator.engine
    pairs = map(SentencePair, LineReader(sources), LineReader(targets))
    return _scored(engine, translator.tokenizer, pairs, progress_of=sources)


def score_pairs(
    model: Transformer, sources: Sequence[Ids], targets: Sequence[Ids], *, device: torch.device
) -> list[list[float]]:
    """Return the natural log-probability of each piece of each target, in the given order.

    A source ends with EOS; a whole target does, too. Teacher-forced in batches of like length; the
    softmax is fp32. The numbers do not depend on what shares a batch, but for rounding. Raises
    DivergedError where the model's output is not finite.
    """
    assert not model.training, "dropout would make the scores random"
    lengths = [
        max(len(source), len(target)) for source, target in zip(sources, targets, strict=True)
    ]
    order = sorted(range(len(targets)), key=lambda number: -lengths[number])
    scores: list[list[float]] = [[] for _ in targets]
    while order:
        rows = max(1, _POSITIONS_AT_ONCE // lengths[order[0]])
        batch, order = order[:rows], order[rows:]
        examples = [
            Example(number, np.asarray(sources[number]), np.asarray(targets[number]))
            for number in batch
        ]
        pieces = iter(_log_probs(model, examples, device).tolist())
        for number in batch:
            scores[number] = list(islice(pieces, len(targets[number])))
    return scores


def _log_probs(model: Transformer, examples: Sequence[Example], device: torch.device) -> Tensor:
    """Return the log-probabilities [N] of all target pieces of a batch, row after row."""
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


def _scored(
    engine: TorchEngine, tokenizer: Tokenizer, pairs: Iterator[SentencePair], *, progress_of: Path
) -> Iterator[ForcedScore]:
    model, first = engine.model.eval(), 1
    with progress_bar(progress_of) as bar:
        while window := list(islice(pairs, _LINES_AT_ONCE)):
            sources = tokenizer.encode_source([pair.source for pair in window])
            targets = tokenizer.encode_target([pair.target for pair in window])
            _check_positions(model, sources, targets, first=first)
            found = score_pairs(model, sources, targets, device=engine.device)
            for ids, log_probs in zip(targets, found, strict=True):
                yield ForcedScore(_pieces(tokenizer, ids), tuple(log_probs))
                bar.update()
            first += len(window)


def _pieces(tokenizer: Tokenizer, ids: Ids) -> tuple[str, ...]:
    return tuple(tokenizer.target.processor.id_to_piece(list(ids)))


def _check_positions(
    model: Transformer, sources: Sequence[Ids], targets: Sequence[Ids], *, first: int
) -> None:
    if model.longest is None:
        return
    for number, (source, target) in enumerate(zip(sources, targets, strict=True), start=first):
        longest = max(len(source), len(target))
        if longest > model.longest:
            raise UserError(
                f"line {number}: {longest} pieces, the model has {model.longest} positions; "
                "leave the line out of both files"
            )


def _check_same_length(sources: Path, targets: Path) -> None:
    for path in (sources, targets):
        if not existing_file(path).is_file():
            raise DataError(f"{path}: is no regular file, but it has to be read twice")
    lines, others = scan(sources).lines, scan(targets).lines
    if lines != others:
        raise DataError(
            f"{sources} has {lines} lines, {targets} has {others}: "
            "line N of one must answer line N of the other"
        )
    if not lines:
        raise DataError(f"{sources}: is empty, there is nothing to score")
