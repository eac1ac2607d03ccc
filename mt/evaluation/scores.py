"""BLEU, chrF, chrF++ and TER by sacreBLEU, with their signatures.

All scores of the project are computed here, on raw text. sacreBLEU: Post 2018, "A Call for Clarity
in Reporting BLEU Scores".
"""

import functools
import http.client
import logging
import re
import shutil
import urllib.request
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sacrebleu.metrics.base import Metric
from sacrebleu.metrics.bleu import BLEU, BLEUScore
from sacrebleu.metrics.chrf import CHRF
from sacrebleu.metrics.ter import TER
from sacrebleu.tokenizers import tokenizer_spm
from sentencepiece import SentencePieceProcessor
from tqdm import tqdm

from mt.config.decoding import MEANT_TOKENIZERS
from mt.data.filters import can_be_judged, in_other_language, model_version
from mt.data.pairs import SentencePair
from mt.decoding.translator import Translation, Translator
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
_DOWNLOAD_SECONDS = 10.0
"""Longest time without an answer."""
_RANKED_WORDS = 4
"""Words of a text below which it has no 4-gram, so that BLEU does not count it."""
_RANKED_SHARE = 0.5
"""Share of such texts from which BLEU does not rank translations."""
_LONGEST_WORD = 15
"""Mean length from which words are sentences without spaces; Greenlandic has about 11."""
_SAMPLES, _LEVEL = 2000, 0.05
"""Samples of the paired bootstrap, and its two-sided level."""
_EXTRA_BY_TOKENIZER = {"ja-mecab": "ja", "ko-mecab": "ko"}


@dataclass(frozen=True, slots=True)
class ConfidenceInterval:
    """95 % interval of bootstrap samples (Koehn 2004): `mean` ± `half_width`."""

    mean: float
    half_width: float

    def as_text(self) -> str:
        """Return both numbers with two decimals."""
        return f"{self.mean:.2f} ± {self.half_width:.2f}"


@dataclass(frozen=True, slots=True)
class Score:
    """Value of a metric, with its signature."""

    name: str
    """sacreBLEU's name of the metric: `BLEU`, `chrF2`, `chrF2++`, `TER`."""
    value: float
    """Score from 0 to 100. TER may exceed 100, and lower is better."""
    signature: str
    """sacreBLEU's signature: reference count, case, tokenizer, smoothing, version.

    `text:` at its end names the form of references that are not plain text, `forced:` the reasons
    that the user allowed.
    """
    interval: ConfidenceInterval | None = None
    lengths: tuple[float, float] | None = field(default=None, compare=False)
    """BLEU's ratio of the words to those of the references, and its brevity penalty."""

    def as_text(self) -> str:
        """Return name, value and signature on one line."""
        return f"{self.name} {self.value:.2f} ({self.signature})"

    def as_record(self) -> dict[str, Any]:
        """Return score, signature and interval, if any, as plain data."""
        record: dict[str, Any] = {"score": self.value, "signature": self.signature}
        if self.lengths:
            record |= zip(("length_ratio", "brevity_penalty"), self.lengths, strict=True)
        return {**record, "interval": asdict(self.interval)} if self.interval else record


@dataclass(frozen=True, slots=True)
class OffTarget:
    """Counts of translations in another language (Zhang et al. 2020, section 3.2).

    Short texts, and languages that the identifier does not support, are not judged. The rate of the
    references is the error of the identifier: a lower bound for a perfect system.
    """

    language: str
    judged: int
    found: int
    references_judged: int
    references_found: int
    identifier: str

    def as_text(self) -> str:
        """Return one line."""
        if not self.judged:
            return f"off target: no translation is long enough to judge ({self.identifier})"
        references = _share(self.references_found, self.references_judged)
        return (
            f"off target: {self.found:,} of {self.judged:,} translations are not in "
            f"{self.language}, {_share(self.found, self.judged)}; of the references {references} "
            f"({self.identifier})"
        )

    def as_record(self) -> dict[str, Any]:
        """Return the counts and the rate, which is None if nothing was judged."""
        return {**asdict(self), "rate": self.found / self.judged if self.judged else None}


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Scores of one set of translations."""

    bleu: Score
    chrf: Score
    sentences: int
    target_language: str
    hypotheses: str = ""
    references: tuple[str, ...] = ()
    off_target: OffTarget | None = None
    further: tuple[Score, ...] = ()
    terms: Counter[str] | None = None
    """Number of terms of a glossary: `used`, of these `placed`, and `missed`; of the `lines` with
    terms, those `unchanged` otherwise.
    """

    def as_text(self) -> str:
        """Return an aligned table: metric, score with two decimals, signature."""
        head = ["metric", "score", "signature"]
        rows = [[score.name, f"{score.value:.2f}", score.signature] for score in self.scores()]
        if self.bleu.interval:
            head.insert(2, "95 % interval")
            for row, score in zip(rows, self.scores(), strict=True):
                row.insert(2, score.interval.as_text() if score.interval else "")
        count = f"{self.sentences} sentence{'' if self.sentences == 1 else 's'}"
        if self.bleu.lengths:
            ratio, penalty = self.bleu.lengths
            count += f", length ratio {ratio:.3f}, brevity penalty {penalty:.3f}"
        off_target = f"\n{self.off_target.as_text()}" if self.off_target else ""
        terms = ""
        if self.terms is not None:
            counts, total = self.terms, self.terms["used"] + self.terms["missed"]
            used, same = (
                f"{100 * count / max(1, of):.1f} % of {of}"
                for count, of in (
                    (counts["used"], total),
                    (counts["unchanged"], counts["lines"]),
                )
            )
            terms = f"\nterms: {used} are in the translations, {counts['placed']} of them placed; "
            terms += f"otherwise, {same} lines are as without the glossary"
        return f"{align_columns([head, *rows], right=[1])}\n{count}{off_target}{terms}"

    def as_record(self) -> dict[str, Any]:
        """Return the scores as plain data; the key of chrF2 is `chrf`."""
        record: dict[str, Any] = {
            **{
                score.name.lower().replace("chrf2", "chrf"): score.as_record()
                for score in self.scores()
            },
            "sentences": self.sentences,
            "target_language": self.target_language,
            "hypotheses": self.hypotheses,
            "references": list(self.references),
        }
        if self.off_target:
            record["off_target"] = self.off_target.as_record()
        if self.terms is not None:
            keys = ("used", "placed", "missed", "lines", "unchanged")
            record["terms"] = {key: self.terms[key] for key in keys}
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
    metrics: Sequence[str] = (),
    resamples: int = 0,
) -> Evaluation:
    """Score `hypotheses` by corpus BLEU (Papineni et al. 2002) and chrF2 (Popović 2015).

    `references` has one list per reference set, each as long as `hypotheses`. `tokenizer` is
    BLEU's, see `choose_tokenizer`. `metrics` are additional names in `METRICS`. From 2 `resamples`
    up, each score has an interval of bootstrap samples, drawn with sacreBLEU's seed.

    Raises DataError if lengths differ or there is no sentence, UserError for an unknown tokenizer
    or metric.
    """
    for position, lines in enumerate(references, 1):
        if len(lines) != len(hypotheses):
            message = f"{len(hypotheses)} hypotheses, but reference set {position} has {len(lines)}"
            raise DataError(f"{message} lines")
    if not hypotheses or not references:
        raise DataError("there is no sentence to score")
    bleu, chrf, *rest = (
        _score(metric, hypotheses, references, resamples=resamples)
        for metric in choose_metrics(target_language, tokenizer, metrics)
    )
    evaluation = Evaluation(bleu, chrf, len(hypotheses), target_language, further=tuple(rest))
    return evaluation.marked("text", label_form(references, target_language))


def translate_pairs(
    translator: Translator, pairs: Sequence[SentencePair]
) -> tuple[Translation, ...]:
    """Translate the sources of pairs, with a progress bar."""
    stream = translator.stream(pair.source for pair in pairs)
    progress = tqdm(stream, "translating", len(pairs), unit="line", leave=False, disable=None)
    return tuple(progress)


def choose_metrics(
    target_language: str, tokenizer: str = "auto", names: Sequence[str] = ()
) -> list[Metric]:
    """Return sacreBLEU's metrics: BLEU, chrF2, and the names in `METRICS`."""
    further = [METRICS[name](target_language) for name in check_metrics(names)]
    return [_bleu(choose_tokenizer(target_language, tokenizer)), CHRF(), *further]


def check_metrics(names: Sequence[str]) -> Sequence[str]:
    """Return names in `METRICS` without repetition; raise UserError for any other name."""
    for name in names:
        if name not in METRICS:
            near = did_you_mean(name, METRICS) or f"; known: {listed(METRICS)}"
            raise UserError(f"metric `{name}` is unknown{near}; BLEU and chrF are always computed")
    return tuple(dict.fromkeys(names))


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
        if not target_language:
            raise UserError(
                "the target language is missing: BLEU counts words, and their boundaries depend on "
                "the language (`zh` for Chinese); the wrong one changes BLEU by tens of points"
            )
        if not re.fullmatch(r"[A-Za-z]{2,3}([-_][A-Za-z0-9]+)*", target_language):
            raise UserError(
                f"target language `{target_language}` is not a language code such as `de` or `zh`"
            )
        tokenizer = TOKENIZER_BY_LANGUAGE.get(base_language(target_language), "13a")
        if tokenizer in _SENTENCEPIECE:
            is_usable = written_without_spaces(target_language) and not why_missing(tokenizer)
            tokenizer = tokenizer if is_usable else "13a"
    if tokenizer not in TOKENIZERS:
        near = did_you_mean(MEANT_TOKENIZERS.get(tokenizer, tokenizer), TOKENIZERS)
        known = f"; known: auto, {', '.join(TOKENIZERS)}"
        raise UserError(f"BLEU tokenizer `{tokenizer}` is unknown{near or known}")
    if tokenizer in (*_EXTRA_BY_TOKENIZER, *_SENTENCEPIECE):
        _bleu(tokenizer)
    return tokenizer


@functools.cache
def why_missing(tokenizer: str) -> str:
    """Return why a SentencePiece model of sacreBLEU cannot be used; "" if it can.

    A model that is not in sacreBLEU's folder is downloaded, in one attempt of this process.
    """
    url = tokenizer_spm.SPM_MODELS[tokenizer]["url"]
    folder: str = tokenizer_spm.SACREBLEU_DIR  # type: ignore[attr-defined]
    path = Path(folder, "models", PurePosixPath(url).name)
    try:
        if not path.is_file():
            _logger.info("downloading %s for BLEU", url)
            with urllib.request.urlopen(url, timeout=_DOWNLOAD_SECONDS) as response:
                path.parent.mkdir(parents=True, exist_ok=True)
                with replace_file(path) as part, part.open("wb") as file:
                    shutil.copyfileobj(response, file)
        SentencePieceProcessor().Load(str(path))
    except (OSError, http.client.HTTPException) as error:
        return f"its model cannot be downloaded ({error}): put {url} at {path}"
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
        reason = f"; {better}: {why_missing(better)}" if better in _SENTENCEPIECE else ""
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


def is_better_than_chance(
    counts: NDArray[Any],
    other: NDArray[Any],
    score: Callable[[NDArray[Any]], float],
    *,
    comparisons: int = 1,
) -> bool:
    """Return True if the first of two systems has a better score by more than chance.

    `counts` and `other` [N K] are statistics of the same N texts, whose sum has a `score`. Paired
    bootstrap (Koehn 2004) with a fixed seed, at 5 % divided by the number of `comparisons`.
    """
    level, random, wins = _LEVEL / comparisons, np.random.default_rng(1), 0
    differing = int((counts != other).any(axis=1).sum())
    if 2.0 ** (1 - differing) > level:  # the least p-value of an exact test
        return False
    for _ in range(_SAMPLES):
        drawn = np.bincount(random.integers(len(counts), size=len(counts)), minlength=len(counts))
        wins += score(drawn @ counts) > score(drawn @ other)
    return wins > (1 - level / 2) * _SAMPLES


def _bleu(tokenizer: str) -> BLEU:
    if tokenizer in _SENTENCEPIECE and (problem := why_missing(tokenizer)):
        raise UserError(f"BLEU tokenizer `{tokenizer}`: {problem}, or choose `char`")
    try:
        # `force` does not change a score; it silences a warning that TextChecks replaces.
        return BLEU(tokenize=TOKENIZERS[tokenizer], force=True)
    except RuntimeError:
        if tokenizer not in _EXTRA_BY_TOKENIZER:
            raise
        hint = install_hint(_EXTRA_BY_TOKENIZER[tokenizer])
        raise UserError(f"BLEU tokenizer `{tokenizer}` needs MeCab: {hint}") from None


def _ter(target_language: str) -> TER:
    """Return TER; each character is a word in languages without spaces."""
    unspaced = written_without_spaces(target_language)
    return TER(normalized=unspaced, asian_support=unspaced)


METRICS: dict[str, Callable[[str], Metric]] = {
    "chrf++": lambda _: CHRF(word_order=2),
    "ter": _ter,
}
"""Metrics in addition to BLEU and chrF: chrF++ (Popović 2017), TER (Snover et al. 2006)."""


def _score(
    metric: Metric,
    hypotheses: Sequence[str],
    references: Sequence[Sequence[str]],
    *,
    resamples: int,
) -> Score:
    try:
        result = metric.corpus_score(hypotheses, references, n_bootstrap=max(resamples, 1))
    except TypeError:  # sacreBLEU cannot average when a sample has no score
        if resamples < 2:
            raise
        raise DataError(
            f"{len(hypotheses)} sentences are too few or too bad for bootstrap intervals: some "
            "samples score 0"
        ) from None
    interval = ConfidenceInterval(float(result._mean), float(result._ci)) if resamples > 1 else None
    lengths = (result.ratio, result.bp) if isinstance(result, BLEUScore) else None
    return Score(result.name, float(result.score), str(metric.get_signature()), interval, lengths)


def measure_off_target(
    translations: Sequence[str], references: Sequence[str], *, target_language: str
) -> OffTarget:
    """Count translations and references that are not in the target language.

    Raises DataError if py3langid is not installed.
    """

    def count(texts: Sequence[str]) -> tuple[int, int]:
        judged = [text for text in texts if can_be_judged(text, target_language)]
        return len(judged), sum(in_other_language(text, target_language) for text in judged)

    identifier = f"py3langid {model_version()}"
    return OffTarget(target_language, *count(translations), *count(references), identifier)


def _share(part: int, whole: int) -> str:
    return f"{part / whole:.1%}" if whole else "none"
