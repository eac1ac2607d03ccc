"""Selection of training pairs from candidates: filters with a reason each, and the best of n.

Filters of one candidate look at its text and its source. The other filters compare candidates with
each other, with a sample of the file, and with the scores of a run.
"""

import logging
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice, takewhile
from math import fsum, inf, isnan, nan
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from mt.augment.collection import JSON_LINES, SUFFIX, Candidates, read_candidates
from mt.augment.distill import SIMILARITIES, Similarity
from mt.augment.teacher import Teacher, base_name, existing_text
from mt.data.corpus_files import scan
from mt.data.filters import (
    has_markup,
    in_other_language,
    in_wrong_script,
    known_languages,
    normalized,
    weighted_length,
)
from mt.data.verbatim import missing_verbatim
from mt.decoding.retries import repeats_itself
from mt.decoding.sampling import UTILITIES, compute_expected_utilities
from mt.decoding.scoring import Scorer
from mt.decoding.shards import Extent, Job, Window
from mt.doctor.misalignment import BilingualLexicon, learn_lexicon, spread_stretches
from mt.doctor.tally import BLOCK_LINES, LineBlock
from mt.errors import DataError, UserError, did_you_mean, listed
from mt.languages import base_language, language_name
from mt.tables import printable

_SETTINGS = ("decoding.mbr=null",)


@dataclass(frozen=True, slots=True)
class JudgeScore:
    """Natural log-probabilities of a translation; NaN for a pair too long for the model."""

    mean: float = nan
    """Mean per token."""
    end: float = nan
    """Sum over the end mark and the punctuation before it."""


@dataclass(frozen=True)
class Judge:
    """Run with its settings; the model is loaded on first use."""

    run: Path
    device: str = "auto"

    def check(self, languages: tuple[str, str]) -> None:
        """Raise RunError or UserError unless the run is finished and has this direction."""
        of = "the config's corpora are"
        self._teacher.require_direction(*languages, of=of)

    @property
    def settings(self) -> dict[str, Any]:
        """Settings of the run by key; `model` identifies the weights."""
        return self._teacher.settings

    def scores(self, sources: Sequence[str], translations: Sequence[str]) -> list[JudgeScore]:
        """Return the score of each pair."""
        tokenizer, engine = self._scorer.tokenizer, self._scorer.engine
        encoded = tokenizer.encode_source(list(sources))
        given = tokenizer.encode_target(list(translations))
        longest = engine.longest
        fitting = [
            place
            for place, pair in enumerate(zip(encoded, given, strict=True))
            if longest is None or max(map(len, pair)) <= longest
        ]
        found = [JudgeScore()] * len(encoded)
        log_probs = engine.score(
            [encoded[each] for each in fitting], [given[each] for each in fitting]
        )
        names = tokenizer.target.processor.id_to_piece
        for place, each in zip(fitting, log_probs, strict=True):
            tokens = names(list(given[place]))[:-1]
            marks = sum(1 for _ in takewhile(_is_punctuation, reversed(tokens)))
            found[place] = JudgeScore(fsum(each) / len(each), fsum(each[len(each) - 1 - marks :]))
        return found

    @cached_property
    def _teacher(self) -> Teacher:
        return Teacher.read(self.run, overrides=_SETTINGS, device=self.device)

    @cached_property
    def _scorer(self) -> Scorer:
        return Scorer.load(self.run, _SETTINGS, self.device)


def _is_punctuation(token: str) -> bool:
    return not any(map(str.isalnum, token))


_REFUSAL = re.compile(
    r"\bas an? (?:ai|artificial intelligence|(?:large )?language model)\b"
    r"|\b(?:sorry|afraid|apologi[sz]e|unfortunately|unable|not able|cannot|can't|won't)\b.{0,60}"
    r"\b(?:translat|assist|fulfil|comply|process|request|provide (?:a|the|this|that)|help with)"
    r"|\bals (?:eine? )?(?:ki|künstliche intelligenz|sprachmodell)\b"
    r"|\b(?:leid|leider|entschuldigung|kann|darf)\b.{0,60}"
    r"(?:übersetz|behilflich|\banfrage|nicht (?:weiter)?helfen|nicht bearbeiten)"
    r"|\ben tant qu'(?:ia|intelligence artificielle|assistant|modèle)"
    r"|\b(?:désolée?|regrette|ne peux pas|ne puis)\b.{0,60}(?:tradui|traduction|aider|demande)"
    r"|\b(?:siento|disculp\w+|no puedo)\b.{0,60}(?:traduc|ayudar|solicitud)"
    r"|\b(?:desculp\w+|não posso)\b.{0,60}(?:traduz|traduç|ajudar|solicita)"
    r"|\b(?:spiace|dispiace|non posso)\b.{0,60}(?:tradu|aiutar|richiesta)"
    r"|\b(?:helaas|spijt me|kan)\b.{0,60}(?:niet vertalen|niet helpen|verzoek)"
    r"|(?:извините|сожалению|не могу).{0,60}(?:перевести|перевод|помочь|запрос)"
    r"|(?:抱歉|对不起|對不起|无法|無法|不能).{0,30}(?:翻译|翻譯|协助|協助|请求|請求|提供)"
    r"|作为(?:一个|一款)?(?:ai|人工智能|语言模型)"
    r"|(?:申し訳|すみません|ごめん|翻訳).{0,40}(?:できません|できかねます|致しかねます)"
    r"|(?:죄송|번역).{0,40}(?:없습니다|불가능)"
)
_INABILITY = re.compile(
    r"\b(?:sorry|afraid|apolog\w+|unfortunately|unable|able|cannot|can't|can not|won't|will not"
    r"|ai|language model|leid|leider|entschuldigung|kann|können|darf|sprachmodell|ki"
    r"|désolée?|regrette|peux|puis|siento|disculp\w+|puedo|desculp\w+|posso|spiace|dispiace"
    r"|helaas|spijt|kan|ia)\b"
    r"|извин|сожален|могу|抱歉|对不起|對不起|无法|無法|不能|人工智能|申し訳|すみません|ごめん"
    r"|できません|죄송|없습니다"
)
"""Words of a source that may be translated by a refusal."""
_COLON = re.compile("[:：]")
_LABEL = re.compile(
    r"^.{0,60}?(?:translat\w+|übersetz\w*|traduc\w+|traduç\w+|traduz\w+|vertaling|tłumaczenie"
    r"|översättning|oversæt\w+|çeviri|перевод\w*|翻译|翻譯|译文|譯文|翻訳|訳文|번역|الترجمة|ترجمة)"
    r".{0,60}?[:：]"
)
_NOTE = re.compile(
    r"(?:^|[\s(（\[*.。])(?:(?:translator'?s )?notes?|n\.b\.|explanation|alternatively|literally"
    r"|anmerkung(?:en)?|hinweise?|erklärung|wörtlich|remarques?|explication|notas?|explicación"
    r"|explicação|nota bene|spiegazione|opmerking|toelichting|uwaga|примечани[ея]|пояснение"
    r"|注意?|註|说明|說明|备注|備註|注释|解释|補足|備考|참고)\**\s*[:：]"
)
_QUOTED = re.compile(r"[\"'“”„«»‘’‚‹›「『《].*[\"'“”„«»‘’‚‹›」』》][.!?。]?", re.DOTALL)
_QUOTE_AT_END = re.compile(r"^\s*[\"'“”„«»‘’‚‹›「『《`–—-]|[\"'“”„«»‘’‚‹›」』》`][.!?。]?\s*$")
_MARKDOWN = ("```", "**", "\n#")


def is_refusal(source: str, translation: str) -> bool:
    """Return True for a refusal to translate, unless the source itself apologises or declines."""
    if not _REFUSAL.search(_plain(translation)):
        return False
    return not _INABILITY.search(_plain(source))


def is_commentary(source: str, translation: str, target_language: str) -> bool:
    """Return True for a label or note with a colon, added quotation marks, or added markup."""
    text = _plain(translation)
    if not _COLON.search(source):
        names = {language_name(base_language(target_language)), target_language}
        label = "|".join(re.escape(name.lower()) for name in names)
        if _LABEL.search(text) or _NOTE.search(text) or re.match(rf"(?:{label})\s*[:：]", text):
            return True
    if _QUOTED.fullmatch(translation) and not _QUOTE_AT_END.search(source):
        return True
    if any(mark in translation and mark not in source for mark in _MARKDOWN):
        return True
    return has_markup(translation) and not has_markup(source)


def _plain(text: str) -> str:
    return text.replace("’", "'").lower()


Floats = npt.NDArray[np.float64]
Booleans = npt.NDArray[np.bool_]

LENGTH, UNRELATED, JUDGE, CUT_OFF = FAULTS = ("length", "unrelated", "judge", "cut-off")
"""Names of the faults of pairs."""
_FEWEST_LINES, _FEWEST_FOR_LEXICON, _MOST_FOR_JUDGE = 50, 1000, 2000
"""Lines of a sample from which norms, and a lexicon, are learned; lines that the judge scores."""
_PLANTED_STEP = 10
"""Every tenth pair is replaced by an unrelated one where the lexicon is learned."""
_ALLOWANCE = 10
"""Added to both lengths of a ratio, since short texts may differ more."""
_LEAST_SPREAD = 0.1
"""Least standard deviation of log ratios; translations of a grammar may have nearly none."""
_BY_LEXICON, _BY_JUDGE = 90, 95
"""Percentiles of the scores of unrelated pairs that a pair must reach."""
# In standard deviations from the median:
_MOST_LENGTHS = 3.0
_SHORT_BY_JUDGE, _SHORT_BY_LEXICON = -1.0, -1.5
_LEAST_SUM = -4.5
"""Least sum of length and similarity of a short translation."""
_SUDDEN_END = -5.0
"""Natural log-probability of the end under which a short translation is cut off."""


@dataclass(frozen=True, slots=True)
class Scale:
    """Median, and standard deviation from the median absolute deviation."""

    median: float
    deviation: float

    @classmethod
    def of(cls, values: Floats, *, least: float = 1e-6) -> "Scale":
        """Measure values; outliers have little effect."""
        median = float(np.median(values))
        return cls(median, max(least, 1.4826 * float(np.median(np.abs(values - median)))))

    def place(self, values: Floats) -> Floats:
        """Return the distances of values from the median, in standard deviations."""
        return (values - self.median) / self.deviation


@dataclass(frozen=True, slots=True)
class Limit:
    """Scores that separate related from unrelated pairs."""

    least: float
    """Percentile of unrelated pairs, or the middle of both medians if that is lower."""
    related: Scale

    @classmethod
    def between(cls, related: Floats, unrelated: Floats, percentile: int) -> "Limit":
        """Learn from the scores of pairs, and of the same texts beside other lines."""
        scale = Scale.of(related)
        # Where scores separate poorly, the percentile alone would reject too much.
        middle = (scale.median + float(np.median(unrelated))) / 2
        return cls(min(float(np.percentile(unrelated, percentile)), middle), scale)

    @property
    def sure(self) -> float:
        """Score from which a pair is certainly related."""
        return (self.least + self.related.median) / 2


@dataclass(frozen=True, slots=True)
class Norms:
    """Properties of usual pairs; None for those that need a larger sample."""

    lengths: Scale | None = None
    """Log ratios of the lengths, translation to source."""
    lexicon: BilingualLexicon | None = None
    similarity: Limit | None = None
    """Cosines of both sides in the lexicon."""
    log_prob: Limit | None = None
    """Mean log-probabilities of a token under the judge."""

    @classmethod
    def learn(cls, sources: list[str], translations: list[str], judge: Judge | None) -> "Norms":
        """Learn from a sample of pairs, whose order is that of their corpus."""
        if len(sources) < _FEWEST_LINES:
            return cls()
        lengths = Scale.of(_log_ratios(sources, translations), least=_LEAST_SPREAD)
        lexicon = similarity = log_prob = None
        if len(sources) >= _FEWEST_FOR_LEXICON:
            # The lexicon fits bad pairs of the sample, too. Planted pairs show how much.
            planted = translations.copy()
            planted[::_PLANTED_STEP] = _rolled(translations)[::_PLANTED_STEP]
            lexicon = learn_lexicon([LineBlock(0, sources, planted)])
            scores, known = _similarities(lexicon, sources, planted)
            is_planted = np.arange(len(scores)) % _PLANTED_STEP == 0
            related, unrelated = scores[known & ~is_planted], scores[known & is_planted]
            if len(related) and len(unrelated):
                similarity = Limit.between(related, unrelated, _BY_LEXICON)
        if judge is not None:
            step = -(-len(sources) // _MOST_FOR_JUDGE)
            few, their = sources[::step], translations[::step]
            related, unrelated = (
                np.array([score.mean for score in judge.scores(few, texts)])
                for texts in (their, _rolled(their))
            )
            known = ~(np.isnan(related) | np.isnan(unrelated))
            if known.any():
                log_prob = Limit.between(related[known], unrelated[known], _BY_JUDGE)
        return cls(lengths, lexicon, similarity, log_prob)

    def faults(
        self, sources: list[str], translations: list[str], judge: Judge | None
    ) -> tuple[list[list[str]], list[float]]:
        """Return the faults of each pair, and the mean log-probabilities if there is a judge."""
        none = np.zeros(len(sources), dtype=np.bool_)
        found: dict[str, Booleans] = dict.fromkeys(FAULTS, none)
        lengths = np.zeros(len(sources))
        if self.lengths is not None:
            lengths = self.lengths.place(_log_ratios(sources, translations))
            found[LENGTH] = np.abs(lengths) > _MOST_LENGTHS
        means: list[float] = []
        unsure = ~none
        if judge is not None:
            scores = judge.scores(sources, translations)
            means = [score.mean for score in scores]
            found[CUT_OFF] = lengths < _SHORT_BY_JUDGE
            found[CUT_OFF] &= np.array([score.end for score in scores]) < _SUDDEN_END
            if self.log_prob is not None:
                found[JUDGE] = np.array(means) < self.log_prob.least
                unsure = np.array(means) < self.log_prob.sure
        if self.lexicon is not None and self.similarity is not None:
            similarities, known = _similarities(self.lexicon, sources, translations)
            found[UNRELATED] = unsure & known & (similarities < self.similarity.least)
            places = self.similarity.related.place(similarities)
            is_short = (lengths < _SHORT_BY_LEXICON) & (places < 0)
            found[CUT_OFF] = found[CUT_OFF] | (
                unsure & known & is_short & (lengths + places < _LEAST_SUM)
            )
        rows = zip(*found.values(), strict=True)
        names = [
            [name for name, applies in zip(found, row, strict=True) if applies] for row in rows
        ]
        return names, means


def _log_ratios(sources: Sequence[str], translations: Sequence[str]) -> Floats:
    """Return the log ratios of translation to source in `weighted_length`."""
    left, right = (
        np.array([weighted_length(text) for text in side], dtype=np.float64) + _ALLOWANCE
        for side in (sources, translations)
    )
    return np.log(right / left)


def _similarities(
    lexicon: BilingualLexicon, sources: list[str], translations: list[str]
) -> tuple[Floats, Booleans]:
    """Return the cosines of pairs, and True where both sides have words of the lexicon."""
    left, right = lexicon.embed(LineBlock(0, sources, translations))
    known = np.logical_and(left.any(1), right.any(1))
    return np.einsum("id,id->i", left, right).astype(np.float64), known


def _rolled(texts: list[str]) -> list[str]:
    """Return the texts beside other lines, far from their own."""
    half = len(texts) // 2
    return texts[half:] + texts[:half]


_logger = logging.getLogger(__name__)
Choice = Literal["agreement", "judge"]
Check = Callable[[str, str, tuple[str, str]], bool]

WRITTEN, LEFT_OUT = "pairs written", "lines without a translation left"
SEVERAL_LINES, NO_ANSWER = "several lines", "no translation"
_WINDOW_LINES = 2048
_COPY_LENGTH = 16
"""Letters of a text that is no name and therefore no translation of itself."""
_AGREEING = 0.5
"""Share of the best mean similarity to the other candidates that a candidate must reach."""
_FEWEST_TO_AGREE = 3


def _is_copy(source: str, translation: str, _: tuple[str, str]) -> bool:
    if weighted_length(source) < _COPY_LENGTH or not any(map(str.isalpha, source)):
        return False
    return normalized(source) == normalized(translation)


def _repeats(source: str, translation: str, _: tuple[str, str]) -> bool:
    return repeats_itself([*map(ord, translation)], [*map(ord, source)])


CHECKS: dict[str, Check] = {
    "empty": lambda _source, text, _languages: not text,
    "refusal": lambda source, text, _languages: is_refusal(source, text),
    "commentary": lambda source, text, languages: is_commentary(source, text, languages[1]),
    "copy": _is_copy,
    "script": lambda _source, text, languages: in_wrong_script(text, languages[1]),
    "language": lambda _source, text, languages: in_other_language(text, languages[1]),
    "repetition": _repeats,
    "numbers": lambda source, text, _languages: bool(missing_verbatim(source, text)),
}
"""Filters of one candidate by name, in order of application; True rejects."""
REASONS = (*CHECKS, "agreement", *FAULTS)
"""Names of all filters, for `--allow`."""


@dataclass(frozen=True)
class Selection:
    """File of candidates, and the rules by which pairs are selected from it."""

    candidates: Path
    config: Path
    languages: tuple[str, str]
    judge: Judge | None = None
    choice: Choice = "agreement"
    similarity: Similarity = "bleu"
    allow: tuple[str, ...] = ()

    def check(self) -> None:
        """Raise UserError or DataError for unsuitable settings, before candidates are made."""
        for name in self.allow:
            if name not in REASONS:
                near = did_you_mean(name, REASONS) or f"; known: {listed(REASONS)}"
                raise UserError(f"--allow {name}: unknown{near}")
        source, target = self.languages
        if source == target:
            raise UserError(f"{self.config}: source and target language are both {source}")
        if self.choice == "judge" and self.judge is None:
            raise UserError("--choose judge: needs --judge RUN")
        if self.judge is not None:
            self.judge.check(self.languages)
        if "language" not in self.allow:
            try:
                known_languages()
            except DataError as error:
                raise DataError(f"{error}, or add `--allow language`") from error

    def job(self, folder: Path) -> Job:
        """Return the job; raise UserError or DataError if the file is unsuitable."""
        self.check()
        settings: dict[str, Any] = {
            "command": "select candidates",
            "input": scan(existing_text(self.candidates)).sha256,
            "source_language": self.languages[0],
            "target_language": self.languages[1],
            "choose": self.choice,
            "similarity": self.similarity,
            "allow": sorted(self.allow),
            "judge": self.judge and self.judge.settings["model"],
        }
        *files, record = self.files(folder)
        extent = Extent.of(
            (each.source for each in read_candidates(self.candidates)), _WINDOW_LINES
        )
        if not extent.lines:
            raise UserError(f"{self.candidates}: is empty")
        return Job(tuple(files), record, settings, extent)

    def files(self, folder: Path) -> list[Path]:
        """Return the paths of the output, the record last."""
        source, target = self.languages
        name = base_name(self.candidates, source).removesuffix(JSON_LINES).removesuffix(".tsv")
        name = name.removesuffix(SUFFIX)
        return [folder / f"{name}.{end}" for end in (source, target, "rejected.tsv", "json")]

    @cached_property
    def norms(self) -> Norms:
        """Norms of the first usable translations of up to 20,000 lines, spread over the file."""
        sources, translations = [], []
        for block in spread_stretches(self._blocks(), at_least=100):
            for _, source, translation in block.numbered():
                if not self._fault(source, translation):
                    sources.append(source)
                    translations.append(translation)
        norms = Norms.learn(sources, translations, self.judge)
        if norms.similarity is None and norms.log_prob is None:
            _logger.warning(
                "warning: %d translations are too few for a lexicon, so translations of another "
                "source are not found; a --judge finds them",
                len(sources),
            )
        return norms

    def windows(self, lines: range) -> Iterator[Window]:
        """Yield the pairs and the rejected candidates of some lines."""
        read = islice(read_candidates(self.candidates), lines.start, lines.stop)
        number = lines.start
        while window := list(islice(read, _WINDOW_LINES)):
            yield self._window(number + 1, window)
            number += len(window)

    def _blocks(self) -> Iterator[LineBlock]:
        read = read_candidates(self.candidates)
        first = 0
        while window := list(islice(read, BLOCK_LINES)):
            targets = [next(iter(each.translations), "") for each in window]
            yield LineBlock(first, [each.source for each in window], targets)
            first += len(window)

    def _fault(self, source: str, translation: str) -> str:
        """Return the reason to reject a candidate by its text, "" without one."""
        allowed = "\n" in translation and "commentary" in self.allow
        if allowed or "\n" in source:
            return SEVERAL_LINES  # a line of the output is one text
        if "\n" in translation:
            return "refusal" if is_refusal(source, translation) else "commentary"
        applying = (
            name
            for name, check in CHECKS.items()
            if name not in self.allow and check(source, translation, self.languages)
        )
        return next(applying, "") or ("" if translation else "empty")

    def _window(self, first: int, window: list[Candidates]) -> Window:
        """Return the output for consecutive lines, of which `first` is the number of the first."""
        lines = [self._judged(each) for each in window]
        left, right, rejected = [], [], []
        counts = Counter[str]()
        self._compare([each for line in lines for each in line if not each.fault])
        for number, (given, line) in enumerate(zip(window, lines, strict=True), first):
            kept = [each for each in line if not each.fault]
            counts[WRITTEN if kept else LEFT_OUT] += 1
            if kept:
                left.append(given.source)
                right.append(self._best(kept))
            elif not line:
                line = [_Judged(given.source, given.problem, NO_ANSWER)]
            for place, each in enumerate(line, 1):
                if each.fault:
                    counts[f"rejected: {each.fault}"] += 1
                    columns = (str(number), str(place), each.fault, each.source, each.text)
                    rejected.append("\t".join(map(printable, columns)))
        sides = (left, right, rejected)
        texts = tuple("".join(f"{text}\n" for text in side).encode() for side in sides)
        return Window(len(window), texts, counts)

    def _judged(self, given: Candidates) -> list["_Judged"]:
        """Return the candidates of a source after the filters that need no norm."""
        source = given.source
        judged = [_Judged(source, text, self._fault(source, text)) for text in given.translations]
        kept = [each for each in judged if not each.fault]
        if len(kept) >= _FEWEST_TO_AGREE and "agreement" not in self.allow:
            texts = [each.text for each in kept]
            # Without the similarity of a text to itself, which is 100.
            others = [
                utility * len(kept) - 100
                for utility in compute_expected_utilities(texts, UTILITIES["chrf"]())
            ]
            for each, similarity in zip(kept, others, strict=True):
                if similarity < _AGREEING * max(others):
                    each.fault = "agreement"
        return judged

    def _compare(self, judged: list["_Judged"]) -> None:
        """Apply the norms to candidates."""
        if not judged:
            return
        sources, texts = [each.source for each in judged], [each.text for each in judged]
        faults, means = self.norms.faults(sources, texts, self.judge)
        for each, found in zip(judged, faults, strict=True):
            each.fault = next((name for name in found if name not in self.allow), "")
        for each, mean in zip(judged, means, strict=False):  # no means without a judge
            if not isnan(mean):
                each.log_prob = mean

    def _best(self, kept: list["_Judged"]) -> str:
        """Return the best of several candidates; among equals the first."""
        if len(kept) == 1:
            return kept[0].text
        texts = [each.text for each in kept]
        scores = [each.log_prob for each in kept]
        if self.choice == "agreement":
            metric = SIMILARITIES[self.similarity](self.languages[1])
            scores = compute_expected_utilities(
                texts, lambda text, other: metric.sentence_score(text, [other]).score
            )
        return texts[scores.index(max(scores))]


@dataclass
class _Judged:
    """A candidate, and the filter that rejects it."""

    source: str
    text: str
    fault: str
    log_prob: float = -inf
    """Mean log-probability of a token under the judge, if it is known."""
