"""Forced decoding of files: the log-probability of given translations."""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path

from mt.data.corpus_files import LineReader, scan
from mt.data.pairs import SentencePair
from mt.decoding.engine import ExplainingEngine
from mt.decoding.load import StoredModel
from mt.decoding.shards import ProduceWindows, Shard, Window, add_counts
from mt.decoding.text_files import check_files_for_shards, open_output, progress_bar, run_file_shard
from mt.decoding.translator import Translator
from mt.errors import DataError, UserError
from mt.files import check_output_files, require_regular_file

# Read together and sorted by length, so that a batch has little padding.
LINES_AT_ONCE = 2048
_MOST_TOKENS = 4096
"""Tokens of a line, because the time of attention grows with their square."""
# Forced decoding does not choose among translations.
SCORING = ("decoding.mbr=null", "decoding.precision=fp32")


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


@dataclass(frozen=True, slots=True)
class Totals:
    """Sums over the scored translations."""

    sentences: int
    tokens: int
    log_prob: float

    @classmethod
    def of(cls, scores: Sequence[ForcedScore]) -> "Totals":
        """Return the sums over some translations."""
        tokens = sum(len(score.tokens) for score in scores)
        return cls(len(scores), tokens, sum(score.log_prob for score in scores))

    def as_text(self) -> str:
        """Return the perplexity, exp(-log-probability / tokens), and the counts."""
        perplexity = math.exp(min(-self.log_prob / self.tokens, 700.0))
        return (
            f"perplexity {perplexity:.4f} per token, log-probability {self.log_prob:.4f}, "
            f"{self.tokens:,} tokens with end marks, {self.sentences:,} sentences"
        )


@dataclass(frozen=True, slots=True)
class ScoreJob:
    """Input and output of `mt score`."""

    sources: Path
    targets: Path
    output: Path | None = None
    """Output file, replaced when the new one is complete; None: stdout."""
    as_json: bool = False


def write_scores(
    run: Path,
    job: ScoreJob,
    *,
    overrides: Sequence[str] = (),
    device: str = "auto",
    shard: Shard | None = None,
) -> Totals | None:
    """Write the score of each line of the targets as a translation of that line of the sources.

    The files are read lazily, a few thousand lines at a time. With `shard`, score a part of the
    lines; return None if other parts are missing. Raises UserError for different line counts and
    invalid files, run or device before any work starts.
    """
    check_output_files([job.output], [job.sources, job.targets])
    if shard is not None:
        check_files_for_shards(job.sources, job.output)
    files = (job.sources, job.targets)
    lines, target_lines = (scan(require_regular_file(path)).lines for path in files)
    if lines != target_lines:
        raise DataError(
            f"{job.sources} has {lines} lines, {job.targets} has {target_lines}: "
            "line N of one must be the translation of line N of the other"
        )
    if not lines:
        raise DataError(f"{job.sources}: is empty, there is nothing to score")
    model = StoredModel.read(run, [*SCORING, *overrides])
    write = ForcedScore.as_json if job.as_json else ForcedScore.as_text

    def load() -> ProduceWindows:
        translator = Translator.from_stored(model, device)

        def produce(lines: range) -> Iterator[Window]:
            for scores in score_windows(translator, job.sources, job.targets, lines):
                text = "".join(f"{write(score)}\n" for score in scores).encode()
                yield Window(len(scores), (text,), asdict(Totals.of(scores)))

        return produce

    counts: Mapping[str, float] = {}
    if shard is None:
        with open_output(job.output) as out, progress_bar(job.sources) as bar:
            for window in load()(range(lines)):
                out.write(window.texts[0])
                counts = add_counts([counts, window.counts])
                bar.update(window.lines)
    else:
        assert job.output is not None
        settings = {
            "command": "score",
            "sources": scan(job.sources).sha256,
            "targets": scan(job.targets).sha256,
            "json": job.as_json,
            **model.settings,
        }
        result = run_file_shard(job.sources, (job.output,), settings, LINES_AT_ONCE, shard, load)
        if result is None or result.missing:
            return None
        counts = result.record.counts
    return Totals(int(counts["sentences"]), int(counts["tokens"]), counts["log_prob"])


def score_windows(
    translator: Translator, sources: Path, targets: Path, lines: range
) -> Iterator[list[ForcedScore]]:
    """Yield the scores of some lines of two files, given by their positions from 0."""
    engine, tokenizer = translator.engine, translator.tokenizer
    assert isinstance(engine, ExplainingEngine)
    names = tokenizer.target.processor.id_to_piece
    every_pair = map(SentencePair, LineReader(sources), LineReader(targets))
    pairs, done = islice(every_pair, lines.start, lines.stop), lines.start
    while window := list(islice(pairs, LINES_AT_ONCE)):
        encoded = tokenizer.encode_source([pair.source for pair in window])
        target_ids = tokenizer.encode_target([pair.target for pair in window])
        longest = min(engine.longest or _MOST_TOKENS, _MOST_TOKENS)
        for line, pair in enumerate(zip(encoded, target_ids, strict=True), start=done + 1):
            length = max(map(len, pair))
            if length > longest:
                path = sources if length == len(pair[0]) else targets
                raise UserError(
                    f"{path}: line {line} has {length:,} tokens, at most {longest:,} can be "
                    "scored; leave the line out of both files"
                )
        scored = zip(target_ids, engine.score(encoded, target_ids), strict=True)
        yield [ForcedScore(tuple(names(ids)), tuple(log_probs)) for ids, log_probs in scored]
        done += len(window)
