"""BLEU, chrF, chrF++ and TER as sacreBLEU computes them, never without their signature.

One path for every score of the project: raw text against untouched references. sacreBLEU: Post
2018, "A Call for Clarity in Reporting BLEU Scores".
"""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from mt.config.evaluation import MEANT_TOKENIZERS
from mt.data.pair_checks import holds_tokens, looks_tokenized
from mt.errors import DataError, UserError, did_you_mean, install_hint, listed
from mt.evaluation.off_target import OffTarget
from mt.languages import base_language, written_without_spaces
from mt.tables import aligned

if TYPE_CHECKING:
    from sacrebleu.metrics.base import Metric
    from sacrebleu.metrics.bleu import BLEU


_MANY = 0.25
"""Of the lines of tokenised text many more look so, of plain text hardly any."""
_FEW = 0.1
_TOKENS = 0.01
_LETTERS = 100
"""Plain text of so many letters has a capital, if its script has any."""
_EXPECTED = 3
"""So many capitals do not stay away by chance."""
_KEPT = 0.05


@dataclass(frozen=True, slots=True)
class Form:
    """What was counted in a text; a line that repeats counts once, since it tells nothing new."""

    lines: int
    tokens: int
    """Lines that hold the marks of subwords."""
    tokenized: int
    """Lines that look cut into words for a machine."""
    upper: int
    """Upper-case letters."""
    lower: int

    @property
    def in_tokens(self) -> bool:
        """Whether the text is cut into subwords."""
        return self.tokens > _TOKENS * self.lines

    @property
    def is_tokenized(self) -> bool:
        """Whether the text is tokenised; a single line is no proof."""
        return self.tokenized > 1 and self.tokenized >= _MANY * self.lines

    @property
    def is_untokenized(self) -> bool:
        """Whether the text is surely not tokenised."""
        return self.lines > 0 and self.tokenized <= _FEW * self.lines

    @property
    def is_lowercased(self) -> bool:
        """Whether a text of some length has no capital."""
        return self.upper == 0 and self.lower >= _LETTERS

    def is_lowercased_beside(self, other: "Form") -> bool:
        """Say whether the capitals are missing that a text like `other` would have here."""
        letters = self.upper + self.lower
        expected = letters * other.upper / max(other.upper + other.lower, 1)
        return expected >= _EXPECTED and self.upper <= _KEPT * expected


def form_of(lines: Iterable[str], language: str) -> Form:
    """Return in which form the lines are; `language` is a code, such as `zh`."""
    distinct = [line for line in dict.fromkeys(lines) if line.strip()]
    return Form(
        lines=len(distinct),
        tokens=sum(map(holds_tokens, distinct)),
        tokenized=sum(looks_tokenized(line, language) for line in distinct),
        upper=sum(sum(map(str.isupper, line)) for line in distinct),
        lower=sum(sum(map(str.islower, line)) for line in distinct),
    )


def label(references: Sequence[Sequence[str]], language: str) -> str:
    """Return what a score against such references has to be called, "" for plain text.

    `tokenised`, `lower-cased`, or both with a comma: such a score compares with no score of plain
    text. The references set the protocol, so they alone are asked.
    """
    forms = [form_of(lines, language) for lines in references]
    labels = []
    if all(form.is_tokenized for form in forms):
        labels.append("tokenised")
    if all(form.is_lowercased for form in forms):
        labels.append("lower-cased")
    return ",".join(labels)


TOKENIZER_BY_LANGUAGE = {"zh": "zh", "ja": "ja-mecab", "ko": "ko-mecab"}
"""sacreBLEU's tokenizer by the `base_language` of the target; the others get 13a."""
TOKENIZERS = {
    **{name: name for name in ("13a", "zh", "ja-mecab", "ko-mecab", "char", "intl")},
    "already-tokenized": "none",
}
"""The tokenizers that may be asked for by name, and what sacreBLEU calls each."""
_EXTRA_BY_TOKENIZER = {"ja-mecab": "ja", "ko-mecab": "ko"}
_COUNTRY_FOR_LANGUAGE = {"cn": "zh", "jp": "ja"}


@dataclass(frozen=True, slots=True)
class Interval:
    """Where 95 % of the scores of bootstrap samples lie (Koehn 2004): `mean` +- `half_width`."""

    mean: float
    half_width: float

    def as_text(self) -> str:
        """Return both with two decimals."""
        return f"{self.mean:.2f} ± {self.half_width:.2f}"


@dataclass(frozen=True, slots=True)
class Score:
    """One number and how it was computed."""

    name: str
    """sacreBLEU's name of the metric: `BLEU`, `chrF2`, `chrF2++`, `TER`."""
    value: float
    """From 0 to 100, TER also above; of TER alone, lower is better."""
    signature: str
    """sacreBLEU's signature: reference count, case, tokenizer, smoothing, version.

    `text:tokenised` or `text:lower-cased` at its end says what the references were, `forced:` what
    speaks against the score.
    """
    interval: Interval | None = None
    """Of scores with resampling alone."""

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
    off_target: OffTarget | None = None
    """How many translations are in other languages; of multilingual runs alone."""
    further: tuple[Score, ...] = ()
    """The scores that were asked for besides."""

    def as_text(self) -> str:
        """Return an aligned table: metric, score with two decimals, signature."""
        head = ["metric", "score", "signature"]
        rows = [[score.name, f"{score.value:.2f}", score.signature] for score in self.scores()]
        if self.bleu.interval:
            head.insert(2, "95 % interval")
            for row, score in zip(rows, self.scores(), strict=True):
                row.insert(2, score.interval.as_text() if score.interval else "")
        rows.insert(0, head)
        count = f"{self.sentences} sentence{'' if self.sentences == 1 else 's'}"
        told = f"\n{self.off_target.as_text()}" if self.off_target else ""
        return f"{aligned(rows, right=[1])}\n{count}{told}"

    def as_json(self) -> str:
        """Return everything, the scores in full precision, as indented JSON."""
        return json.dumps(self.as_record(), indent=2, ensure_ascii=False)

    def as_record(self) -> dict[str, Any]:
        """Return what `as_json` writes, before it is text."""
        record: dict[str, Any] = {
            **{key: _record(score) for key, score in self._by_key()},
            "sentences": self.sentences,
            "target_language": self.target_language,
            "hypotheses": self.hypotheses,
            "references": list(self.references),
        }
        if self.off_target:
            record["off_target"] = self.off_target.as_record()
        return record

    def scores(self) -> tuple[Score, ...]:
        """Return every score, in the order of the table."""
        return self.bleu, self.chrf, *self.further

    def marked(self, key: str, value: str) -> "Evaluation":
        """Return the same with `key:value` at the end of every signature; unless it is empty."""
        if not value:
            return self
        bleu, chrf, *further = (
            replace(score, signature=f"{score.signature}|{key}:{value}") for score in self.scores()
        )
        return replace(self, bleu=bleu, chrf=chrf, further=tuple(further))

    def _by_key(self) -> Iterator[tuple[str, Score]]:
        """Yield each score with its key in JSON: chrF2 is `chrf`, as its beta has ever been 2."""
        for score in self.scores():
            yield score.name.lower().replace("chrf2", "chrf"), score


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

    `references` holds one list per reference set, each as long as `hypotheses`; line N answers
    line N. `tokenizer` is BLEU's, see `choose_tokenizer`. `metrics` are further ones of `METRICS`.
    From 2 `resamples` up, each score has the interval of so many bootstrap samples, drawn with
    sacreBLEU's seed, which the signature tells. References that are tokenised or lower-cased are
    told at the end of each signature.

    Raises DataError where the lengths differ or nothing is there, UserError for a tokenizer or
    metric that is unknown.
    """
    _check_lengths(hypotheses, references)
    bleu, chrf, *rest = (
        _score(metric, hypotheses, references, resamples=resamples)
        for metric in choose_metrics(target_language, tokenizer, metrics)
    )
    evaluation = Evaluation(
        bleu=bleu,
        chrf=chrf,
        sentences=len(hypotheses),
        target_language=target_language,
        further=tuple(rest),
    )
    return evaluation.marked("text", label(references, target_language))


def choose_metrics(
    target_language: str, tokenizer: str = "auto", names: Sequence[str] = ()
) -> "list[Metric]":
    """Return sacreBLEU's BLEU and chrF2, and the further metrics of `METRICS` that are named."""
    further = [METRICS[name](target_language) for name in check_metrics(names)]
    return [_bleu(choose_tokenizer(target_language, tokenizer)), _chrf(0), *further]


def check_metrics(names: Sequence[str]) -> Sequence[str]:
    """Return names of `METRICS` without repetition; UserError for any other."""
    for name in names:
        if name not in METRICS:
            near = did_you_mean(name, METRICS) or f"; known: {listed(METRICS)}"
            raise UserError(f"metric `{name}` is unknown{near}; BLEU and chrF are always there")
    return tuple(dict.fromkeys(names))


def choose_tokenizer(target_language: str, tokenizer: str = "auto") -> str:
    """Return the tokenizer of BLEU for a target language, once it is sure to be installed.

    `auto` goes by the language of the code: `zh` for Chinese of every kind (zh-CN, zh_Hant,
    lzh, yue, wuu), MeCab for Japanese and Korean, else `13a`, which takes words at spaces.
    `already-tokenized` takes the words as they stand, and is never chosen by itself. Training calls
    this before it starts, so that a missing package is not found out at its first validation.

    Raises UserError for what is no language code or no tokenizer, and for a missing package.
    """
    if tokenizer == "auto":
        tokenizer = TOKENIZER_BY_LANGUAGE.get(_checked_language(target_language), "13a")
    if tokenizer not in TOKENIZERS:
        near = did_you_mean(MEANT_TOKENIZERS.get(tokenizer, tokenizer), TOKENIZERS)
        known = f"; known: auto, {', '.join(TOKENIZERS)}"
        raise UserError(f"BLEU tokenizer `{tokenizer}` is unknown{near or known}")
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
        return BLEU(tokenize=TOKENIZERS[tokenizer], force=True)
    except RuntimeError:
        if tokenizer not in _EXTRA_BY_TOKENIZER:
            raise
        extra = _EXTRA_BY_TOKENIZER[tokenizer]
        raise UserError(
            f"BLEU tokenizer `{tokenizer}` needs MeCab: {install_hint(extra)}"
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


def _chrf(word_order: int) -> "Metric":
    from sacrebleu.metrics.chrf import CHRF

    return CHRF(word_order=word_order)


def _ter(target_language: str) -> "Metric":
    """Return TER; where words have no spaces between them, each character is one."""
    from sacrebleu.metrics.ter import TER

    unspaced = written_without_spaces(target_language)
    return TER(normalized=unspaced, asian_support=unspaced)


METRICS: dict[str, Callable[[str], "Metric"]] = {"chrf++": lambda _: _chrf(2), "ter": _ter}
"""What can be asked for besides BLEU and chrF: chrF++ (Popović 2017), TER (Snover et al. 2006)."""


def _score(
    metric: "Metric",
    hypotheses: Sequence[str],
    references: Sequence[Sequence[str]],
    *,
    resamples: int,
) -> Score:
    try:
        result = metric.corpus_score(hypotheses, references, n_bootstrap=max(resamples, 1))
    except TypeError:  # sacreBLEU cannot average samples of which some score nothing at all
        if resamples < 2:
            raise
        raise DataError(
            f"{len(hypotheses)} sentences are too few or too bad for bootstrap intervals: there "
            "are samples that score 0"
        ) from None
    interval = Interval(float(result._mean), float(result._ci)) if resamples > 1 else None
    return Score(result.name, float(result.score), str(metric.get_signature()), interval)


def _record(score: Score) -> dict[str, Any]:
    record: dict[str, Any] = {"score": score.value, "signature": score.signature}
    return {**record, "interval": asdict(score.interval)} if score.interval else record
