"""Forced scoring of files: what a model thinks of translations that somebody else made."""

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from mt.data.lines import LineReader, regular_file, scan
from mt.data.pairs import SentencePair
from mt.data.tokenizer import Tokenizer
from mt.decoding.engine import ScoringEngine
from mt.decoding.files import progress_bar
from mt.decoding.translator import Translator
from mt.errors import DataError, UserError

Ids = Sequence[int]

# Read together and sorted by length, so that a batch has little padding.
_LINES_AT_ONCE = 2048


@dataclass(frozen=True, slots=True)
class ForcedScore:
    """What the model gives to one translation, token by token."""

    tokens: tuple[str, ...]
    """As SentencePiece writes them, the end mark last."""
    log_probs: tuple[float, ...]
    """The natural log-probability of each, given the source and the tokens before it."""

    @property
    def log_prob(self) -> float:
        """The log-probability of the whole."""
        return math.fsum(self.log_probs)

    @property
    def mean(self) -> float:
        """The log-probability per token."""
        return self.log_prob / len(self.log_probs)

    def as_text(self) -> str:
        """Return the sum, the number of tokens and the mean, tabs between."""
        return f"{self.log_prob:.6f}\t{len(self.tokens)}\t{self.mean:.6f}"

    def as_json(self) -> str:
        """Return everything on one line of JSON."""
        record = {
            "log_prob": self.log_prob,
            "mean": self.mean,
            "tokens": self.tokens,
            "log_probs": self.log_probs,
        }
        return json.dumps(record, ensure_ascii=False)


@dataclass
class Totals:
    """Sums over the translations scored so far."""

    sentences: int = 0
    tokens: int = 0
    log_prob: float = 0.0

    def add(self, score: ForcedScore) -> None:
        """Take in one translation."""
        self.sentences += 1
        self.tokens += len(score.tokens)
        self.log_prob += score.log_prob

    def as_text(self) -> str:
        """Return the perplexity of all together, exp(-log-probability / tokens), and the counts."""
        perplexity = math.exp(min(-self.log_prob / self.tokens, 700.0))
        return (
            f"perplexity {perplexity:.4f} per token, log-probability {self.log_prob:.4f}, "
            f"{self.tokens:,} tokens with end marks, {self.sentences:,} sentences"
        )


def score_files(
    run: Path,
    *,
    sources: Path,
    targets: Path,
    overrides: Sequence[str] = (),
    device: str = "auto",
) -> Iterator[ForcedScore]:
    """Return the score of each line of `targets` as a translation of that line of `sources`.

    The files are read as the scores are asked for, a few thousand lines at a time. Raises UserError
    before any work where line counts, files, run or device are not what they should be.
    """
    _check_same_length(sources, targets)
    # How a run chooses among translations of its own is no matter here.
    settings = ["decoding.mbr=null", *overrides]
    translator = Translator.load(run, overrides=settings, device=device)
    engine = translator.engine
    assert isinstance(engine, ScoringEngine)
    pairs = map(SentencePair, LineReader(sources), LineReader(targets))
    return _scored(engine, translator.tokenizer, pairs, progress_of=sources)


def _scored(
    engine: ScoringEngine, tokenizer: Tokenizer, pairs: Iterator[SentencePair], *, progress_of: Path
) -> Iterator[ForcedScore]:
    first = 1
    with progress_bar(progress_of) as bar:
        while window := list(islice(pairs, _LINES_AT_ONCE)):
            sources = tokenizer.encode_source([pair.source for pair in window])
            targets = tokenizer.encode_target([pair.target for pair in window])
            _check_positions(engine.longest, sources, targets, first=first)
            found = engine.score(sources, targets)
            for ids, log_probs in zip(targets, found, strict=True):
                yield ForcedScore(_tokens(tokenizer, ids), tuple(log_probs))
                bar.update()
            first += len(window)


def _tokens(tokenizer: Tokenizer, ids: Ids) -> tuple[str, ...]:
    return tuple(tokenizer.target.processor.id_to_piece(list(ids)))


def _check_positions(
    most: int | None, sources: Sequence[Ids], targets: Sequence[Ids], *, first: int
) -> None:
    if most is None:
        return
    for number, (source, target) in enumerate(zip(sources, targets, strict=True), start=first):
        longest = max(len(source), len(target))
        if longest > most:
            raise UserError(
                f"line {number}: {longest} tokens, the model has {most} positions; "
                "leave the line out of both files"
            )


def _check_same_length(sources: Path, targets: Path) -> None:
    lines, others = (scan(regular_file(path)).lines for path in (sources, targets))
    if lines != others:
        raise DataError(
            f"{sources} has {lines} lines, {targets} has {others}: "
            "line N of one must answer line N of the other"
        )
    if not lines:
        raise DataError(f"{sources}: is empty, there is nothing to score")
