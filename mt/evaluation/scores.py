"""BLEU and chrF as sacreBLEU computes them, never without their signature.

One path for every score of the project: raw text against untouched references. sacreBLEU: Post
2018, "A Call for Clarity in Reporting BLEU Scores".
"""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mt.errors import DataError, UserError, did_you_mean
from mt.evaluation.columns import aligned
from mt.languages import base_language

if TYPE_CHECKING:
    from sacrebleu.metrics.base import Metric
    from sacrebleu.metrics.bleu import BLEU

TOKENIZER_BY_LANGUAGE = {"zh": "zh", "ja": "ja-mecab", "ko": "ko-mecab"}
"""sacreBLEU's tokenizer by the `base_language` of the target; the others get 13a."""

TOKENIZERS = ("13a", "zh", "ja-mecab", "ko-mecab", "char", "intl", "none")
"""The tokenizers that may be asked for by name."""

_EXTRA_BY_TOKENIZER = {"ja-mecab": "ja", "ko-mecab": "ko"}
_COUNTRY_FOR_LANGUAGE = {"cn": "zh", "jp": "ja"}


@dataclass(frozen=True, slots=True)
class Score:
    """One number and how it was computed."""

    name: str
    """sacreBLEU's name of the metric: `BLEU`, `chrF2`."""
    value: float
    """From 0 to 100."""
    signature: str
    """sacreBLEU's signature: reference count, case, tokenizer, smoothing, version."""

    def as_text(self) -> str:
        """Return name, value and signature on one line."""
        return f"{self.name} {self.value:.2f} ({self.signature})"


@dataclass(frozen=True, slots=True)
class Evaluation:
    """The scores of one set of translations, and what was compared."""

    bleu: Score
    chrf: Score
    sentences: int
    target_language: str
    hypotheses: str = ""
    """Where the translations came from, such as a file name."""
    references: tuple[str, ...] = ()
    """Where the references came from."""

    def as_text(self) -> str:
        """Return an aligned table: metric, score with two decimals, signature."""
        rows = [("metric", "score", "signature")]
        rows += [(score.name, f"{score.value:.2f}", score.signature) for score in self._scores()]
        count = f"{self.sentences} sentence{'' if self.sentences == 1 else 's'}"
        return f"{aligned(rows, right=[1])}\n{count}"

    def as_json(self) -> str:
        """Return everything, the scores in full precision, as indented JSON."""
        return json.dumps(self.as_record(), indent=2, ensure_ascii=False)

    def as_record(self) -> dict[str, Any]:
        """Return what `as_json` writes, before it is text."""
        record: dict[str, Any] = {
            "bleu": {"score": self.bleu.value, "signature": self.bleu.signature},
            "chrf": {"score": self.chrf.value, "signature": self.chrf.signature},
            "sentences": self.sentences,
            "target_language": self.target_language,
            "hypotheses": self.hypotheses,
            "references": list(self.references),
        }
        return record

    def _scores(self) -> tuple[Score, Score]:
        return self.bleu, self.chrf


def evaluate(
    hypotheses: Sequence[str],
    references: Sequence[Sequence[str]],
    *,
    target_language: str,
    tokenizer: str = "auto",
) -> Evaluation:
    """Score `hypotheses` by corpus BLEU (Papineni et al. 2002) and chrF2 (Popović 2015).

    `references` holds one list per reference set, each as long as `hypotheses`; line N answers
    line N. `tokenizer` is BLEU's, see `choose_tokenizer`; chrF needs none.

    Raises DataError where the lengths differ or nothing is there, UserError for the tokenizer.
    """
    _check_lengths(hypotheses, references)
    from sacrebleu.metrics.chrf import CHRF

    bleu = _bleu(choose_tokenizer(target_language, tokenizer))
    chrf = CHRF()
    return Evaluation(
        bleu=_score(bleu, hypotheses, references),
        chrf=_score(chrf, hypotheses, references),
        sentences=len(hypotheses),
        target_language=target_language,
    )


def choose_tokenizer(target_language: str, tokenizer: str = "auto") -> str:
    """Return the tokenizer of BLEU for a target language, once it is sure to be installed.

    `auto` goes by the language of the code: `zh` for Chinese of every kind (zh-CN, zh_Hant,
    lzh, yue, wuu), MeCab for Japanese and Korean, else `13a`, which takes words at spaces. Training
    calls this before it starts, so that a missing package is not found out at its first validation.

    Raises UserError for what is no language code or no tokenizer, and for a missing package.
    """
    if tokenizer == "auto":
        tokenizer = TOKENIZER_BY_LANGUAGE.get(_checked_language(target_language), "13a")
    if tokenizer not in TOKENIZERS:
        known = ", ".join(TOKENIZERS)
        raise UserError(
            f"BLEU tokenizer `{tokenizer}` is unknown"
            f"{did_you_mean(tokenizer, TOKENIZERS) or f'; known: auto, {known}'}"
        )
    if tokenizer in _EXTRA_BY_TOKENIZER:
        _bleu(tokenizer)
    return tokenizer


def _checked_language(language: str) -> str:
    """Return the `base_language` of what is a language code; UserError where it is none."""
    if not language:
        raise UserError(
            "the target language is missing: BLEU counts words, and the language decides what a "
            "word is (`zh` for Chinese); the wrong one changes the score by tens of points"
        )
    if not re.fullmatch(r"[A-Za-z]{2,3}([-_][A-Za-z0-9]+)*", language):
        raise UserError(f"target language `{language}` is no language code such as `de` or `zh`")
    base = base_language(language)
    if right := _COUNTRY_FOR_LANGUAGE.get(base):
        raise UserError(f"target language `{language}` is a country; did you mean `{right}`?")
    return base


def _bleu(tokenizer: str) -> "BLEU":
    from sacrebleu.metrics.bleu import BLEU

    try:
        # `force` changes no score: it only silences a warning that we give in our own words.
        return BLEU(tokenize=tokenizer, force=True)
    except RuntimeError:
        if tokenizer not in _EXTRA_BY_TOKENIZER:
            raise
        extra = _EXTRA_BY_TOKENIZER[tokenizer]
        raise UserError(
            f'BLEU tokenizer `{tokenizer}` needs MeCab: pip install "mt[{extra}]"'
        ) from None


def _check_lengths(hypotheses: Sequence[str], references: Sequence[Sequence[str]]) -> None:
    if not references:
        raise DataError("there is no reference to compare with")
    for number, reference in enumerate(references, 1):
        if len(reference) != len(hypotheses):
            which = "the references" if len(references) == 1 else f"reference set {number}"
            raise DataError(
                f"{len(hypotheses)} hypotheses, but {which} "
                f"{'have' if len(references) == 1 else 'has'} {len(reference)} lines"
            )
    if not hypotheses:
        raise DataError("there is no sentence to score")


def _score(
    metric: "Metric", hypotheses: Sequence[str], references: Sequence[Sequence[str]]
) -> Score:
    result = metric.corpus_score(hypotheses, references)
    return Score(result.name, float(result.score), str(metric.get_signature()))
