"""Confidence of translations: the expected chrF of each line.

`mt.evaluation.calibration` learns it from the validation pairs of a run.
"""

import logging
import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from difflib import SequenceMatcher
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from pydantic import Field, FiniteFloat, PositiveInt

from mt.data.verbatim import without_copied
from mt.data.words import WORD
from mt.decoding.engine import TranslatedPart
from mt.errors import RunError
from mt.files import read_versioned
from mt.languages import LETTERS
from mt.runs import CONFIDENCE_FILE, CONFIDENCE_FORMAT

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Calibration:
    """Contents of confidence.json."""

    model: str
    """`Translator.weights_and_search_id` of the translations."""
    pairs: PositiveInt
    signature: str
    """sacreBLEU's signature of the chrF."""
    curve: Annotated[tuple[tuple[FiniteFloat, FiniteFloat], ...], Field(min_length=2)]
    """Expected chrF by mean log-probability: points of a rising curve, joined by lines.

    The first is 0, below all pairs; the second has the least log-probability of a pair.
    """
    deviation: FiniteFloat
    """Standard deviation of the chrF of a line from the expected one."""
    corpus_offset: FiniteFloat
    """Difference of the chrF of a corpus and the mean of its lines, weighted by their length."""
    common: PositiveInt
    """Words in a row of its source that an untranslated sentence has, at least."""
    label: str = ""
    """Texts and search, as `mt.evaluation.scores.label_scores` names them."""

    def as_record(self) -> dict[str, Any]:
        """Return the calibration as plain data."""
        return asdict(self)

    def as_text(self) -> str:
        """Return its quality in one line."""
        chrf = f"chrF of a line ± {self.deviation:.1f} ({self.signature})"
        return f"confidence: {chrf}, learned from {self.label or f'{self.pairs:,} pairs'}"

    def expect(self, mean_log_prob: float) -> float:
        """Return the expected chrF of a line."""
        inputs, outputs = zip(*self.curve, strict=True)
        return float(np.interp(mean_log_prob, inputs, outputs))

    def find_untranslated(self, source: str, translation: str) -> list[str]:
        """Return a run of source words that stayed, if it is longer than in right translations."""
        words = find_common_words(source, translation)
        return words if len(words) >= self.common else []


def read_calibration(folder: Path, model: str) -> Calibration | None:
    """Return a folder's calibration for a `weights_and_search_id`, if any; log a damaged one."""
    path = folder / CONFIDENCE_FILE
    if not path.is_file():
        return None
    try:
        calibration = read_versioned(path, Calibration, CONFIDENCE_FORMAT)
    except RunError as error:
        _logger.warning("%s; `mt evaluate %s --calibrate` makes another", error, folder)
        return None
    if calibration.model != model:
        _logger.info("%s is of other weights, tags or search", path)
        return None
    return calibration


def mean_log_prob(parts: Iterable[TranslatedPart]) -> float:
    """Return the log-probability of a translation per token, before terms were placed."""
    hypotheses = [part.hypothesis for part in parts]
    tokens = sum(len(hypothesis.ids) + 1 for hypothesis in hypotheses)
    return math.fsum(hypothesis.log_prob for hypothesis in hypotheses) / max(1, tokens)


def find_common_words(source: str, translation: str) -> list[str]:
    """Return the longest run of words that a translation has in common with its source.

    Capitalized words, which may be names, addresses and placeholders are left out.
    """
    words = (WORD.findall(without_copied(text)) for text in (source, translation))
    left, right = (
        [word for word in of_text if LETTERS.search(word) and not word[0].isupper()]
        for of_text in words
    )
    if {*left}.isdisjoint(right):
        return []
    run = SequenceMatcher(None, left, right, autojunk=False).find_longest_match()
    return left[run.a : run.a + run.size]
