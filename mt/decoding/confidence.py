"""Confidence of translations, the expected chrF of each line, and statuses for faults of meaning.

`mt.evaluation.calibration` learns both from the validation pairs of a run.
"""

import logging
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from difflib import SequenceMatcher
from typing import Annotated, Any, get_args

import numpy as np
from pydantic import Field, FiniteFloat, PositiveInt

from mt.config.data import Direction
from mt.data.verbatim import without_copied
from mt.decoding.engine import TranslatedPart
from mt.decoding.translator import Status, Translation, Translator
from mt.errors import UserError
from mt.files import read_versioned
from mt.languages import UNSPACED, base_language, written_without_spaces
from mt.runs import CONFIDENCE_FILE, CONFIDENCE_FORMAT

_logger = logging.getLogger(__name__)
Assessment = Callable[[Iterable[Translation]], list[Translation]]
FAULTS: tuple[Status, ...] = (
    *("length-limited", "repeated", "copied", "untranslated"),
    *("altered", "missed-term", "negation", "omitted"),
)
"""Statuses of lines to look at."""
OMISSION_FEATURES = 9
_WORD = re.compile(rf"[{UNSPACED}]|[^\W\d_{UNSPACED}]+(?:['’][^\W\d_]+)*")
_MOST_NAMED, _LOWEST = 8, -30.0
_NEGATIONS = {
    "ar": r"\b(?:لا|لم|لن|ليس\w*|ما|غير|بدون|دون)\b",
    "cs": r"\b(?:ne\w*|ni\w+|žádn\w+|bez)\b",
    "da": r"\b(?:ikke|aldrig|ingen|intet|ingenting|uden|hverken)\b",
    "de": r"\b(?:nicht|nichts|nie|niemals|niemand\w*|kein\w*|nirgend\w*|weder|ohne|nein)\b",
    "el": r"\b(?:δεν?|μην?|όχι|ποτέ|κανείς|καν[εέ]ν\w*|τίποτα|χωρίς|ούτε)\b",
    "en": r"\b(?:no(?:t|r|ne|body|thing|where)?|never|neither|cannot|without)\b|n['’]t\b",
    "es": r"\b(?:no|nunca|jamás|nada|nadie|ning[uú]n\w*|ni|sin|tampoco)\b",
    "fr": r"\b(?:ne|pas|jamais|rien|personne|aucune?|sans|ni|non)\b|\bn['’]",
    "id": r"\b(?:tidak|bukan|tanpa|jangan|belum|tak)\b",
    "it": r"\b(?:non|mai|niente|nulla|nessun\w*|né|senza)\b",
    "ja": "ない|なか|なく|ません|ずに|無|非|不|未",
    "ko": r"\b(?:안|못)\b|않|없|아니|지 ?마",
    "nl": r"\b(?:niets?|nooit|niemand|geen|nergens|noch|zonder|nee)\b",
    "no": r"\b(?:ikke|aldri|ingen|ingenting|uten|verken)\b",
    "pl": r"\b(?:nie|nigdy|nic|nikt|nikogo|nikomu|żad\w+|bez|ani)\b",
    "pt": r"\b(?:não|nunca|jamais|nada|ninguém|nenhum\w*|nem|sem)\b",
    "ro": r"\b(?:nu|niciodată|nimic|nimeni|nici\w*|fără)\b|\bn-",
    "ru": r"\b(?:не|нет|ни|никогда|ничего|никто|никого|никому|нигде|без|нельзя)\b",
    "sv": r"\b(?:inte|icke|aldrig|ingen|inget|inga|ingenting|utan|varken)\b",
    "th": "ไม่|มิได้|ไร้|อย่า",
    "uk": r"\b(?:не|ні|немає|нема|ніколи|нічого|ніхто|нікого|ніде|без)\b",
    "vi": r"\b(?:không|chẳng|chưa|đừng|chả)\b",
    "zh": "[不没沒别別未无無非勿莫毋弗]",
}
"""Negations by language. A corpus decides which of them, and where, have one opposite."""


@dataclass(frozen=True, slots=True)
class Calibration:
    """Contents of confidence.json."""

    model: str
    """`Translator.identity` of the translations."""
    direction: Direction
    pairs: PositiveInt
    signature: str
    """sacreBLEU's signature of the chrF."""
    curve: Annotated[tuple[tuple[FiniteFloat, FiniteFloat], ...], Field(min_length=1)]
    """Expected chrF by mean log-probability: points of a rising curve, joined by lines."""
    deviation: FiniteFloat
    """Standard deviation of the chrF of a line from the expected one."""
    corpus_offset: FiniteFloat
    """Difference of the chrF of a corpus and the mean of its lines, weighted by their length."""
    common: PositiveInt
    """Words in a row of its source that an untranslated sentence has, at least."""
    negations: tuple[dict[str, bool], dict[str, bool]]
    """Negations of each side that have one opposite, and contexts in which they have none."""
    omission: Annotated[
        tuple[FiniteFloat, ...],
        Field(min_length=OMISSION_FEATURES, max_length=OMISSION_FEATURES),
    ]
    """Weights of `omission_features`, whose sum is positive for an omission."""

    def as_record(self) -> dict[str, Any]:
        """Return the calibration as plain data."""
        return asdict(self)

    def as_text(self) -> str:
        """Return its quality in one line."""
        chrf = f"chrF of a line ± {self.deviation:.1f} ({self.signature})"
        return f"confidence: {chrf}, learned from {self.pairs:,} pairs"

    def expect(self, mean_log_prob: float) -> float:
        """Return the expected chrF of a line."""
        inputs, outputs = zip(*self.curve, strict=True)
        return float(np.interp(mean_log_prob, inputs, outputs))

    def assess(self, translations: Iterable[Translation]) -> list[Translation]:
        """Return translations with their confidence, and with the status of a fault of meaning.

        A line without a translation has 0, and a blank line no confidence.
        """
        assessed = []
        for line in translations:
            faults, confidence = list[tuple[Status, str]](), 0.0
            if line.text.strip() and (line.status != "copied" or _parts(line)):
                faults += _find_faults(line, self)
                confidence = self.expect(mean_log_prob(line))
            statuses = [line.status, *(status for status, _ in faults)]
            changed = replace(
                line,
                confidence=confidence if line.source.strip() else None,
                status=min(statuses, key=get_args(Status).index),
                notes=line.notes + tuple(note for _, note in faults),
            )
            assessed.append(changed)
        return assessed


def load_calibration(translator: Translator, *, required_by: str = "") -> Calibration | None:
    """Return the calibration of a translator, if there is one for its weights and settings.

    Raises UserError if there is none and an option needs it, and RunError for a damaged file.
    """
    folder = translator.folder
    if folder and (folder / CONFIDENCE_FILE).is_file():
        calibration = read_versioned(folder / CONFIDENCE_FILE, Calibration, CONFIDENCE_FORMAT)
        if calibration.model == translator.identity:
            return calibration
        _logger.info("%s is of other weights, tags or search", folder / CONFIDENCE_FILE)
    if required_by:
        command = f"`mt evaluate {folder} --calibrate` makes one"
        raise UserError(f"`{required_by}`: {folder} has no fitting calibration; {command}")
    return None


def load_assessment(translator: Translator, *, required_by: str = "") -> Assessment:
    """Return `Calibration.assess`, or `list` without a calibration; see `load_calibration`."""
    calibration = load_calibration(translator, required_by=required_by)
    return calibration.assess if calibration else list


def _find_faults(line: Translation, calibration: Calibration) -> Iterator[tuple[Status, str]]:
    common = find_common_words(line.source, line.text)
    if line.status != "copied" and len(common) >= calibration.common:
        yield "untranslated", f"not translated: {' '.join(common[:_MOST_NAMED])}"
    of_source = find_negations(line.source, calibration.direction.source)
    of_text = find_negations(line.text, calibration.direction.target)
    lost, added = map(find_certain, (of_source, of_text), calibration.negations)
    if lost and not of_text:
        yield "negation", f"the translation has no negation for `{lost}`"
    if added and not of_source:
        yield "negation", f"the source has no negation for `{added}`"
    for part in _parts(line):
        hypothesis = part.unplaced or part.hypothesis
        tokens = len(part.source), len(hypothesis.ids) + 1
        row = omission_features(part.source_text, part.text, tokens, hypothesis.log_prob)
        if hypothesis.finished and np.dot(row, calibration.omission) > 0:
            yield "omitted", "some of the source is not in the translation"
            break


def _parts(line: Translation) -> tuple[TranslatedPart, ...]:
    return line.alternatives[0].parts if line.alternatives else ()


def mean_log_prob(line: Translation) -> float:
    """Return the log-probability of a translation per token, without terms that were placed."""
    hypotheses = [part.unplaced or part.hypothesis for part in _parts(line)]
    tokens = sum(len(hypothesis.ids) + 1 for hypothesis in hypotheses)
    return math.fsum(hypothesis.log_prob for hypothesis in hypotheses) / max(1, tokens)


def omission_features(
    source: str, text: str, tokens: Sequence[int], log_prob: float
) -> list[float]:
    """Return lengths in characters and tokens, the mean log-probability, their squares, and 1.

    `tokens` counts those of source and translation, with EOS.
    """
    sizes = [len("".join(side.split())) + 2 for side in (text, source)]
    ratios = math.log(sizes[0] / sizes[1]), math.log(tokens[1] / tokens[0])
    features = [*ratios, math.log(tokens[0]), max(_LOWEST, log_prob / tokens[1])]
    return [*features, *(feature * feature for feature in features), 1.0]


def find_common_words(source: str, translation: str) -> list[str]:
    """Return the longest run of words that a translation has in common with its source.

    Capitalized words, which may be names, addresses and placeholders are left out. A character of
    a script without spaces is a word.
    """
    left, right = (
        [word for word in _WORD.findall(without_copied(text)) if not word[0].isupper()]
        for text in (source, translation)
    )
    run = SequenceMatcher(None, left, right, autojunk=False).find_longest_match()
    return left[run.a : run.a + run.size]


def find_negations(text: str, language: str) -> list[list[str]]:
    """Return the negations of a text, each followed by its contexts: the words beside it.

    In languages without spaces they are one or two characters.
    """
    text, negations = text.lower(), []
    for match in re.finditer(_NEGATIONS.get(base_language(language), "(?!)"), text):
        before, after = text[: match.start()], text[match.end() :]
        if written_without_spaces(language):
            sides = [(before[-1:], ""), ("", after[:1]), (before[-2:], ""), ("", after[:2])]
            sides.append((before[-1:], after[:1]))
        else:
            sides = [("".join(before.split()[-1:]), ""), ("", "".join(after.split()[:1]))]
        negations.append([match[0], *(f"{match[0]}|{left}|{right}" for left, right in sides)])
    return negations


def find_certain(negations: Sequence[Sequence[str]], certain: Mapping[str, bool]) -> str:
    """Return a negation that has one opposite in right translations, or ""."""
    for word, *contexts in negations:
        if certain.get(word) and all(certain.get(context, True) for context in contexts):
            return word
    return ""
