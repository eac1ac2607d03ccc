"""BLEU, chrF, chrF++ and TER by sacreBLEU, and metrics of other programs, with their signatures.

All scores of the project are computed here, on raw text. sacreBLEU: Post 2018, "A Call for Clarity
in Reporting BLEU Scores".
"""

import functools
import json
import logging
import math
import re
import shlex
import shutil
import subprocess
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory
from typing import Any, Literal

from sacrebleu.metrics.base import Metric, Signature
from sacrebleu.metrics.base import Score as MetricScore
from sacrebleu.metrics.bleu import BLEU, BLEUScore
from sacrebleu.metrics.chrf import CHRF
from sacrebleu.metrics.ter import TER
from sacrebleu.significance import PairedTest, Result
from sacrebleu.tokenizers import tokenizer_spm
from sentencepiece import SentencePieceProcessor

from mt.data.corpus_files import download
from mt.errors import DataError, UserError, did_you_mean, install_hint, listed
from mt.evaluation.forms import is_tokenized
from mt.files import replace_file
from mt.languages import base_language, describe_country, written_without_spaces
from mt.tables import align_columns

_logger = logging.getLogger(__name__)
_LETTERS = 100
"""Length from which cased text has a capital, in letters."""


def label_form(references: Sequence[Sequence[str]], language: str) -> str:
    """Return the form of the references for a signature, "" for plain text.

    `tokenised`, `lower-cased`, or both with a comma: such a score does not compare with a score of
    plain text.
    """
    joined = ["".join(dict.fromkeys(lines)) for lines in references]
    shared = {
        "tokenised": all(is_tokenized(lines, language) for lines in references),
        "lower-cased": all(
            text == text.lower() and sum(map(str.islower, text)) >= _LETTERS for text in joined
        ),
    }
    return ",".join(name for name, is_shared in shared.items() if is_shared)


_SENTENCEPIECE = ("flores200", "flores101")
"""BLEU tokenizers of FLORES (NLLB Team 2022), whose models are downloaded at first use."""
TOKENIZER_BY_LANGUAGE = {
    **{"zh": "zh", "ja": "ja-mecab", "ko": "ko-mecab"},
    **dict.fromkeys(("th", "lo", "km", "my", "bo", "dz"), "flores200"),
}
"""BLEU's tokenizer by `base_language` of the target; 13a for other languages."""
_SPLITTING_AT_SPACES = ("13a", "intl")
TOKENIZERS = {
    **{name: name for name in ("13a", "zh", "ja-mecab", "ko-mecab", "char", "intl")},
    **{name: name for name in _SENTENCEPIECE},
    "already-tokenized": "none",
}
"""Names of BLEU's tokenizers here and in sacreBLEU."""
_RANKED_WORDS = 4
"""Words of a text below which it has no 4-gram, so that BLEU does not count it."""
_RANKED_SHARE = 0.5
"""Share of such texts from which BLEU does not rank translations."""
_RANKED_MATCHES = 25
"""4-grams in the references from which BLEU ranks: 25 vary by a fifth, and BLEU by 5 %."""
_LONGEST_WORD = 15
"""Mean length from which words are sentences without spaces; Greenlandic has about 11."""
Resampling = Literal["bootstrap", "randomization"]
LEVELS: dict[Resampling, float] = {"bootstrap": 0.025, "randomization": 0.05}
"""p-value from which a difference may be chance: sacreBLEU's bootstrap counts one tail only."""
SAMPLES: dict[Resampling, int] = {"bootstrap": 1000, "randomization": 10_000}
ONE_ERROR = 0.16
"""p-value, of one tail, of a difference as large as its standard error."""
LEAST_DIFFERING = 6
"""Sentences that must differ; an exact test of fewer never reaches a level of 5 %."""
_EXTRA_BY_TOKENIZER = {"ja-mecab": "ja", "ko-mecab": "ko"}
COMMAND = "|command:"
"""Part of the signature of a metric of another program."""
_PLACEHOLDER = re.compile(r"\{(\w+)\}")
_SIDES = {"sources", "translations", "references"}
"""Files that a metric of another program may read."""


@dataclass(frozen=True, slots=True)
class ConfidenceInterval:
    """95 % interval of bootstrap samples (Koehn 2004): `mean` ± `half_width`."""

    mean: float
    half_width: float

    @classmethod
    def of(cls, result: Result) -> "ConfidenceInterval":
        """Return the interval of a paired test."""
        assert result.mean is not None and result.ci is not None, "it was computed"
        return cls(float(result.mean), float(result.ci))

    def as_text(self, decimals: int = 2) -> str:
        """Return both numbers."""
        return f"{self.mean:.{decimals}f} ± {self.half_width:.{decimals}f}"


@dataclass(frozen=True, slots=True)
class Score:
    """Value of a metric, with its signature."""

    name: str
    """`BLEU`, `chrF2`, `chrF2++`, `TER`, or the name of a metric of another program."""
    value: float
    """Score of sacreBLEU from 0 to 100. TER may exceed 100, and lower is better."""
    signature: str
    """sacreBLEU's signature: reference count, case, tokenizer, smoothing, version.

    `text:` at its end names the form of references that are not plain text, `forced:` the reasons
    that the user allowed.
    """
    interval: ConfidenceInterval | None = None
    lengths: tuple[float, float] | None = field(default=None, compare=False)
    """BLEU's ratio of the words to those of the references, and its brevity penalty."""
    matches: int | None = field(default=None, compare=False)
    """BLEU's number of 4-grams that are in the references."""

    @property
    def ranks(self) -> bool:
        """True if the score can rank translations; a BLEU needs enough matching 4-grams."""
        return self.value > 0 and (self.matches is None or self.matches >= _RANKED_MATCHES)

    def as_text(self) -> str:
        """Return name, value and signature on one line."""
        return f"{self.name} {self.value:.2f} ({self.signature})"

    def as_record(self) -> dict[str, Any]:
        """Return score, signature and interval, if any, as plain data."""
        record: dict[str, Any] = {"score": self.value, "signature": self.signature}
        if self.lengths:
            record |= zip(("length_ratio", "brevity_penalty"), self.lengths, strict=True)
        return {**record, "interval": asdict(self.interval)} if self.interval else record


def label_scores(texts: str, count: int, search: str, *, total: int = 0) -> str:
    """Return the texts and the search that scores are of: `valid, 200 of 1,014 pairs, greedy`."""
    pairs = f"{count:,} of {total:,} pairs" if count < total else f"{count:,} pairs"
    return ", ".join(filter(None, [texts, pairs, search]))


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Scores of one set of translations."""

    bleu: Score
    chrf: Score
    sentences: int
    target_language: str
    label: str = ""
    """Texts and search, as `label_scores` returns them."""
    inputs: tuple[dict[str, str], ...] = ()
    """Role, path and SHA-256 of each scored file, and of the records of the model."""
    further: tuple[Score, ...] = ()
    terms: Counter[str] | None = None
    """Number of terms of a glossary: `used`, of these `placed`, and `missed`."""

    def as_text(self) -> str:
        """Return the label and an aligned table: metric, score, signature."""
        head = ["metric", "score", *(["95 % interval"] if self.bleu.interval else []), "signature"]
        rows = []
        for score in self.scores():
            decimals = 4 if COMMAND in score.signature else 2  # most programs: from 0 to 1
            interval = [score.interval.as_text(decimals)] if score.interval else []
            rows.append([score.name, f"{score.value:.{decimals}f}", *interval, score.signature])
        lines = [self.label, align_columns([head, *rows], right=[1])]
        if self.bleu.lengths:
            ratio, penalty = self.bleu.lengths
            lines.append(f"length ratio {ratio:.3f}, brevity penalty {penalty:.3f}")
        if self.terms is not None:
            used, placed = self.terms["used"], self.terms["placed"]
            total = used + self.terms["missed"]
            lines.append(
                f"terms: {used} of {total} are in the translations, {placed} of them placed"
            )
        return "\n".join(filter(None, lines))

    def as_record(self) -> dict[str, Any]:
        """Return the scores as plain data; the key of chrF2 is `chrf`."""
        record: dict[str, Any] = {"label": self.label}
        for score in self.scores():
            if COMMAND in score.signature:
                commands = record.setdefault("commands", [])
                commands.append({"name": score.name, **score.as_record()})
            else:
                record[score.name.lower().replace("chrf2", "chrf")] = score.as_record()
        record |= {"sentences": self.sentences, "target_language": self.target_language}
        record["inputs"] = list(self.inputs)
        if self.terms is not None:
            record["terms"] = {key: self.terms[key] for key in ("used", "placed", "missed")}
        return record

    def scores(self) -> tuple[Score, ...]:
        """Return all scores in the order of the table."""
        return self.bleu, self.chrf, *self.further

    def marked(self, key: str, value: str) -> "Evaluation":
        """Append `key:value` to every signature, unless `value` is empty."""
        if not value:
            return self
        bleu, chrf, *further = (
            replace(score, signature=f"{score.signature}|{key}:{value}") for score in self.scores()
        )
        return replace(self, bleu=bleu, chrf=chrf, further=tuple(further))


def evaluate(
    hypotheses: Sequence[str],
    references: Sequence[Sequence[str]],
    *,
    target_language: str,
    tokenizer: str = "auto",
    metrics: Sequence["str | MetricCommand"] = (),
    resamples: int = 0,
) -> Evaluation:
    """Score `hypotheses` by corpus BLEU (Papineni et al. 2002) and chrF2 (Popović 2015).

    `references` has one list per reference set, each as long as `hypotheses`. `tokenizer` is
    BLEU's, see `choose_tokenizer`. `metrics` are further ones. From 2 `resamples` up, each score
    has an interval of bootstrap samples, drawn with sacreBLEU's seed.

    Raises DataError if lengths differ or there is no sentence, UserError for an unknown tokenizer
    or metric.
    """
    for position, lines in enumerate(references, 1):
        if len(lines) != len(hypotheses):
            message = f"{len(hypotheses)} hypotheses, but reference set {position} has {len(lines)}"
            raise DataError(f"{message} lines")
    if not hypotheses or not references:
        raise DataError("there is no sentence to score")
    scores = []
    for metric in choose_metrics(target_language, tokenizer, metrics):
        lines, interval = hypotheses, None
        if isinstance(metric, MetricCommand):
            lines = metric.score_lines(hypotheses, references[0])
        result = metric.corpus_score(lines, references)
        is_bleu = isinstance(result, BLEUScore)
        lengths = (result.ratio, result.bp) if is_bleu else None
        matches = result.counts[-1] if is_bleu else None
        signature = str(metric.get_signature())
        if resamples > 1:
            _, signature, (drawn,) = paired_test(metric, [lines], references, samples=resamples)
            interval = ConfidenceInterval.of(drawn)
        score = float(result.score)
        scores.append(Score(result.name, score, signature, interval, lengths, matches))
    bleu, chrf, *rest = scores
    evaluation = Evaluation(bleu, chrf, len(hypotheses), target_language, further=tuple(rest))
    return evaluation.marked("text", label_form(references, target_language))


def choose_metrics(
    target_language: str, tokenizer: str = "auto", further: Sequence["str | MetricCommand"] = ()
) -> list[Metric]:
    """Return BLEU, chrF2, and further metrics, which are names in `METRICS` or programs."""
    metrics = [METRICS[m](target_language) if isinstance(m, str) else m for m in further]
    return [_bleu(choose_tokenizer(target_language, tokenizer)), CHRF(), *metrics]


def parse_metrics(
    names: Sequence[str], commands: Sequence[str] = ()
) -> tuple["str | MetricCommand", ...]:
    """Return the metrics of `--metric` and `--metric-command`; raise UserError for a bad one."""
    for name in names:
        if name not in METRICS:
            near = did_you_mean(name, METRICS) or f"; known: {listed(METRICS)}"
            raise UserError(f"metric `{name}` is unknown{near}; BLEU and chrF are always computed")
    return (*dict.fromkeys(names), *map(MetricCommand, commands))


def choose_tokenizer(target_language: str, tokenizer: str = "auto") -> str:
    """Return BLEU's tokenizer for a target language.

    `auto` chooses `zh` for Chinese of every kind (zh-CN, zh_Hant, lzh, yue, wuu), MeCab for
    Japanese and Korean, `flores200` for other languages without spaces between words if its model
    is at hand, else `13a`, but never `already-tokenized`, which scores text as it is.

    Raises UserError for an invalid language code, an unknown tokenizer, a missing package, and a
    missing model of a tokenizer that is named.
    """
    if message := describe_country(target_language):
        raise UserError(f"target language {message}")
    if tokenizer == "auto":
        if not re.fullmatch(r"[A-Za-z]{2,3}([-_][A-Za-z0-9]+)*", target_language):
            raise UserError(
                f"target language `{target_language}` is not a code such as `de` or `zh`, by which "
                "BLEU finds the words of a text"
            )
        tokenizer = TOKENIZER_BY_LANGUAGE.get(base_language(target_language), "13a")
        if tokenizer in _SENTENCEPIECE:
            has_words = not written_without_spaces(target_language)
            if has_words or missing_model_reason(tokenizer):
                tokenizer = "13a"
    if tokenizer not in TOKENIZERS:
        known = listed(("auto", *TOKENIZERS))
        raise UserError(f"BLEU tokenizer `{tokenizer}` is unknown; known: {known}")
    if tokenizer in (*_EXTRA_BY_TOKENIZER, *_SENTENCEPIECE):
        _bleu(tokenizer)
    return tokenizer


@functools.cache
def missing_model_reason(tokenizer: str) -> str:
    """Return why a SentencePiece model of sacreBLEU cannot be used; "" if it can.

    A model that is not in sacreBLEU's folder is downloaded, in one attempt of this process.
    """
    url = tokenizer_spm.SPM_MODELS[tokenizer]["url"]
    folder: str = tokenizer_spm.SACREBLEU_DIR  # type: ignore[attr-defined]
    path = Path(folder, "models", PurePosixPath(url).name)
    try:
        if not path.is_file():
            copy = download(url)
            path.parent.mkdir(parents=True, exist_ok=True)
            with replace_file(path) as part:
                shutil.copyfile(copy, part)
        SentencePieceProcessor().Load(str(path))
    except (OSError, DataError) as error:
        return f"its model is missing ({error}): put it at {path}"
    except RuntimeError:
        return f"{path} is damaged: delete it"
    return ""


def why_unable_to_rank(
    references: Sequence[str], *, target_language: str, tokenizer: str = "auto"
) -> str:
    """Return why BLEU cannot rank translations with these references; "" if it can."""
    name = choose_tokenizer(target_language, tokenizer)
    if name in _SPLITTING_AT_SPACES and written_without_spaces(target_language):
        better = TOKENIZER_BY_LANGUAGE.get(base_language(target_language))
        reason = f"; {better}: {missing_model_reason(better)}" if better in _SENTENCEPIECE else ""
        return f"BLEU with {name} finds no words in `{target_language}`{reason}"
    tokenize = _bleu(name).tokenizer
    words = [len(tokenize(line).split()) for line in references]
    long_enough = sum(count >= _RANKED_WORDS for count in words)
    if long_enough < _RANKED_SHARE * len(words):
        return f"only {long_enough:,} of {len(words):,} references have {_RANKED_WORDS} words"
    length = sum(map(len, references)) / max(sum(words), 1)
    if length > _LONGEST_WORD:
        return f"BLEU with {name} finds words of {length:.0f} characters"
    return ""


def paired_test(
    metric: Metric,
    systems: Sequence[Sequence[str]],
    references: Sequence[Sequence[str]],
    *,
    test: Resampling = "bootstrap",
    samples: int,
) -> tuple[str, str, list[Result]]:
    """Score systems and test each against the first; return name and signature, and the results.

    These are sacreBLEU's paired bootstrap (Koehn 2004) and approximate randomisation (Riezler and
    Maxwell 2005), and its fixed seed. The `p_value` of the first system is None.
    """
    paired = PairedTest(
        [(str(number), lines) for number, lines in enumerate(systems)],
        {"metric": metric},
        references,
        test_type="bs" if test == "bootstrap" else "ar",
        n_samples=samples,
        n_ar_confidence=-1 if test == "bootstrap" else SAMPLES["bootstrap"],
    )
    signatures, results = paired()
    ((name, signature),) = signatures.items()
    rows = [result for result in results[name] if isinstance(result, Result)]
    return name, str(signature), rows


def is_better_than_chance(
    metric: Metric,
    one: Sequence[str],
    other: Sequence[str],
    references: Sequence[Sequence[str]],
    *,
    level: float = LEVELS["bootstrap"],
) -> bool:
    """Return True if the first of two systems has a higher score by more than chance.

    `level` is the highest p-value of the paired bootstrap, which counts one tail.
    """
    samples = 2 * SAMPLES["bootstrap"]
    _, _, (baseline, result) = paired_test(metric, [other, one], references, samples=samples)
    return (
        result.score > baseline.score
        and (result.p_value or 0.0) <= level
        and has_enough_differences(metric, one, other, references)
    )


def has_enough_differences(
    metric: Metric, one: Sequence[str], other: Sequence[str], references: Sequence[Sequence[str]]
) -> bool:
    """Return True if the scores of two systems differ in at least 6 sentences.

    With k such sentences, no exact two-sided test has a p-value below 2^(1-k). sacreBLEU ignores
    samples whose difference equals the real one, so that systems with few differing sentences would
    seem to differ for certain.
    """
    count = 0
    for line, other_line, *right in zip(one, other, *references, strict=True):
        if line != other_line:
            sets = [[text] for text in right]
            scores = [metric.corpus_score([text], sets).score for text in (line, other_line)]
            count += scores[0] != scores[1]
            if count == LEAST_DIFFERING:
                return True
    return False


def _bleu(tokenizer: str) -> BLEU:
    if tokenizer in _SENTENCEPIECE and (problem := missing_model_reason(tokenizer)):
        raise UserError(f"BLEU tokenizer `{tokenizer}`: {problem}, or choose `char`")
    try:
        # `force` does not change a score; it silences a warning that TextChecks replaces.
        return BLEU(tokenize=TOKENIZERS[tokenizer], force=True)
    except RuntimeError:
        if tokenizer not in _EXTRA_BY_TOKENIZER:
            raise
        hint = install_hint(_EXTRA_BY_TOKENIZER[tokenizer])
        raise UserError(f"BLEU tokenizer `{tokenizer}` needs MeCab: {hint}") from None


METRICS: dict[str, Callable[[str], Metric]] = {
    "chrf++": lambda _: CHRF(word_order=2),
    "ter": lambda language: TER(
        normalized=written_without_spaces(language), asian_support=written_without_spaces(language)
    ),
}
"""Metrics in addition to BLEU and chrF: chrF++ (Popović 2017), TER (Snover et al. 2006).

For TER, each character is a word in languages without spaces.
"""


def split_command(command: str, option: str) -> list[str]:
    """Split a command as a shell does; raise UserError if it is malformed or has no program."""
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise UserError(f"{option}: {error}") from None
    if not words or not shutil.which(words[0]):
        raise UserError(f"{option}: there is no program `{(words or [''])[0]}`")
    return words


def run_program(words: Sequence[str], option: str, lines: Sequence[str] = ()) -> str:
    """Run a program with lines as its input, and return its output; raise UserError if it fails."""
    content = "".join(f"{line}\n" for line in lines).encode()
    try:
        run = subprocess.run(words, input=content, capture_output=True)
    except OSError as error:
        raise UserError(f"{option}: {error}") from error
    if run.returncode:
        log = run.stderr.decode(errors="replace").strip()
        reason = log.rpartition("\n")[2] or f"status {run.returncode}, and nothing on stderr"
        raise UserError(f"{option}: `{words[0]}` failed: {reason}")
    return run.stdout.decode(errors="replace")


class MetricCommand(Metric):
    """Mean of the numbers that a program prints, one for each line.

    sacreBLEU resamples it like its metrics; the numbers, as text, take the place of translations.
    `sources` are those of the texts to score; set them before.
    """

    def __init__(self, option: str) -> None:
        """Read `NAME=COMMAND`, with a command as in a shell and placeholders for its files.

        Raises UserError for the name of another metric, an unknown placeholder, and a program that
        is missing.
        """
        super().__init__()  # type: ignore[no-untyped-call]
        self.name, _, self.command = option.partition("=")
        self.sides = {*_PLACEHOLDER.findall(self.command)}
        self.sources: Sequence[str] = ()
        try:
            if not self.name or not {"translations"} <= self.sides <= _SIDES:
                raise ValueError(
                    "write NAME=COMMAND, with {translations} in the command, and "
                    "{sources} and {references} if it reads them"
                )
            if self.name.lower() in ("bleu", "chrf", "chrf2", "chrf2++", *METRICS):
                raise ValueError("another metric has this name")
        except ValueError as error:
            raise UserError(f"--metric-command {self.name}: {error}") from None
        self.words = split_command(self.command, f"--metric-command {self.name}")

    def score_lines(self, translations: Sequence[str], references: Sequence[str]) -> list[str]:
        """Run the program, and return the last word of each line of its output, or its JSON list.

        If one more number is the mean of all others, as COMET prints it, it is left out. Raises
        UserError if the program fails, and if it does not print a number for each translation.
        """
        sources = self.sources
        texts = {"sources": sources, "translations": translations, "references": references}
        if not sources and "sources" in self.sides:
            raise UserError(f"--metric-command {self.name}: the command needs --sources")
        with TemporaryDirectory() as folder:
            for side, lines in texts.items():
                Path(folder, side).write_bytes("".join(f"{line}\n" for line in lines).encode())
            words = [_PLACEHOLDER.sub(lambda side: f"{folder}/{side[1]}", x) for x in self.words]
            output = run_program(words, f"--metric-command {self.name}").strip()
        program = f"--metric-command {self.name}: `{words[0]}`"
        try:
            printed = (line.split()[-1] for line in output.splitlines() if line.strip())
            numbers = list(map(float, json.loads(output) if output.startswith("[") else printed))
        except (ValueError, TypeError) as error:
            raise UserError(f"{program} has to print a number for each line: {error}") from error
        *rest, last = numbers or [0.0]  # of four decimals, and so is the mean
        if len(rest) == len(translations) and abs(last - sum(rest) / len(rest)) < 1.01e-4:
            numbers = rest
        if len(numbers) != len(translations) or not all(map(math.isfinite, numbers)):
            finite = f"{sum(map(math.isfinite, numbers)):,} finite numbers"
            raise UserError(f"{program} printed {finite} for {len(translations):,} lines")
        return list(map(str, numbers))

    def get_signature(self) -> Signature:
        """Return a signature with the command; the version would be that of sacreBLEU."""
        signature = super().get_signature()
        count = int("references" in self.sides)
        signature.info |= {"nrefs": count, "command": self.command, "version": None}
        return signature

    def _preprocess_segment(self, sent: str) -> str:
        return sent

    def _extract_reference_info(self, _: Sequence[str]) -> dict[str, Any]:
        return {}

    def _compute_segment_statistics(self, hypothesis: str, _: dict[str, Any]) -> list[float]:
        return [float(hypothesis), 1.0]

    def _compute_score_from_stats(self, stats: Sequence[float]) -> MetricScore:
        return MetricScore(self.name, float(stats[0] / stats[1]))

    def _aggregate_and_compute(self, stats: Sequence[Sequence[float]]) -> MetricScore:
        return self._compute_score_from_stats([sum(column) for column in zip(*stats, strict=True)])
