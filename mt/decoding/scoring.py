"""Forced decoding of files: the log-probability of given translations."""

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

# Read together and sorted by length, so that a batch has little padding.
_LINES_AT_ONCE = 2048


@dataclass(frozen=True, slots=True)
class ForcedScore:
    """Log-probabilities of one translation."""

    tokens: tuple[str, ...]
    """Tokens as SentencePiece prints them, EOS last."""
    log_probs: tuple[float, ...]
    """Natural log-probability of each token, given the source and the tokens before it."""

    @property
    def log_prob(self) -> float:
        """Log-probability of the translation."""
        return math.fsum(self.log_probs)

    @property
    def mean(self) -> float:
        """Mean log-probability per token."""
        return self.log_prob / len(self.log_probs)

    def as_text(self) -> str:
        """Return sum, number of tokens and mean, separated by tabs."""
        return f"{self.log_prob:.6f}\t{len(self.tokens)}\t{self.mean:.6f}"

    def as_json(self) -> str:
        """Return one line of JSON."""
        record = {
            "log_prob": self.log_prob,
            "mean": self.mean,
            "tokens": self.tokens,
            "log_probs": self.log_probs,
        }
        return json.dumps(record, ensure_ascii=False)


@dataclass
class Totals:
    """Sums over the scored translations."""

    sentences: int = 0
    tokens: int = 0
    log_prob: float = 0.0

    def add(self, score: ForcedScore) -> None:
        """Add one translation."""
        self.sentences += 1
        self.tokens += len(score.tokens)
        self.log_prob += score.log_prob

    def as_text(self) -> str:
        """Return the perplexity, exp(-log-probability / tokens), and the counts."""
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
    """Yield the score of each line of `targets` as a translation of that line of `sources`.

    The files are read lazily, a few thousand lines at a time. Raises UserError for different line
    counts and invalid files, run or device before any work starts.
    """
    lines, others = (scan(regular_file(path)).lines for path in (sources, targets))
    if lines != others:
        raise DataError(
            f"{sources} has {lines} lines, {targets} has {others}: "
            "line N of one must be the translation of line N of the other"
        )
    if not lines:
        raise DataError(f"{sources}: is empty, there is nothing to score")
    # Forced decoding does not choose among translations.
    settings = ["decoding.mbr=null", *overrides]
    translator = Translator.load(run, overrides=settings, device=device)
    engine = translator.engine
    assert isinstance(engine, ScoringEngine)
    pairs = map(SentencePair, LineReader(sources), LineReader(targets))
    return _scores(engine, translator.tokenizer, pairs, progress_of=sources)


def _scores(
    engine: ScoringEngine, tokenizer: Tokenizer, pairs: Iterator[SentencePair], *, progress_of: Path
) -> Iterator[ForcedScore]:
    names = tokenizer.target.processor.id_to_piece
    line = 0
    with progress_bar(progress_of) as bar:
        while window := list(islice(pairs, _LINES_AT_ONCE)):
            sources = tokenizer.encode_source([pair.source for pair in window])
            targets = tokenizer.encode_target([pair.target for pair in window])
            for source, target in zip(sources, targets, strict=True):
                line += 1
                length = max(len(source), len(target))
                if engine.longest is not None and length > engine.longest:
                    raise UserError(
                        f"line {line}: {length} tokens, the model has {engine.longest} positions; "
                        "leave the line out of both files"
                    )
            for ids, log_probs in zip(targets, engine.score(sources, targets), strict=True):
                yield ForcedScore(tuple(names(ids)), tuple(log_probs))
                bar.update()
