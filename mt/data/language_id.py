"""Language identification with py3langid (the extra `langid`), which contains its model.

Lui and Baldwin 2012, "langid.py: An Off-the-shelf Language Identification Tool": naive Bayes over
byte n-grams.
"""

import functools
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

from mt.data.pair_checks import weighted_length
from mt.errors import DataError, install_hint
from mt.languages import base_language

_LEAST_LENGTH = 30
"""In letters; shorter texts are not judged."""
_GROUP = 10
"""Texts to identify together."""
_UNLIKELY = 0.01
"""Probability of the expected language below which a text is in another one."""


@dataclass(frozen=True, slots=True)
class Identified:
    """Most probable language of a text."""

    language: str
    """ISO 639-1 code."""
    probability: float


def identify(text: str) -> Identified:
    """Return the most probable language; raise `DataError` if py3langid is not installed."""
    return Identified(*_identifier().classify(text))


def language_of(texts: Sequence[str]) -> str | None:
    """Return the language of the majority of texts, or None without a majority.

    Texts are judged ten at a time. Raises `DataError` if py3langid is not installed.
    """
    groups = [" ".join(texts[start : start + _GROUP]) for start in range(0, len(texts), _GROUP)]
    found = Counter(identify(group).language for group in groups)
    language, count = next(iter(found.most_common(1)), (None, 0))
    return language if 2 * count > len(groups) else None


def in_other_language(text: str, language: str) -> bool:
    """Return True if a text is clearly not in `language`.

    Texts under 30 letters and unsupported languages give False. Raises `DataError` if py3langid is
    not installed.
    """
    if not can_be_judged(text, language):
        return False
    wanted = base_language(language)
    if identify(text).language == wanted:  # faster than the probabilities of all languages
        return False
    return bool(dict(_identifier().rank(text))[wanted] < _UNLIKELY)


def can_be_judged(text: str, language: str) -> bool:
    """Return True if the text is long enough and the language supported."""
    known = base_language(language) in known_languages()
    return known and weighted_length(text) >= _LEAST_LENGTH


def model_version() -> str:
    """Return the version of the package, which is that of its model."""
    known_languages()
    return version("py3langid")


@functools.cache
def known_languages() -> frozenset[str]:
    """Return the codes of the supported languages."""
    return frozenset(_identifier().labels)


@functools.cache
def _identifier() -> Any:
    try:
        from py3langid.langid import MODEL_FILE, LanguageIdentifier  # an optional package
    except ModuleNotFoundError as error:
        raise DataError(
            f"language identification needs py3langid: {install_hint('langid')}"
        ) from error
    return LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True)
