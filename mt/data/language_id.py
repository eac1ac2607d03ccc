"""Which language a text is in, by py3langid, whose model lies in its package (the extra `langid`).

Lui and Baldwin 2012, "langid.py: An Off-the-shelf Language Identification Tool": naive Bayes over
byte n-grams.
"""

import functools
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

from mt.data.pair_checks import weighted_length
from mt.errors import DataError, install_hint
from mt.languages import base_language

_LEAST_LENGTH = 30
"""A shorter text, in letters, may be of any language."""
_UNLIKELY = 0.01
"""A text of its own language is hardly ever less probably so; kinds of Chinese share the rest."""


@dataclass(frozen=True, slots=True)
class Identified:
    """The likeliest language of a text."""

    language: str
    """Its code of ISO 639-1."""
    probability: float


def identify(text: str) -> Identified:
    """Return the likeliest language of a text; `DataError` where py3langid is not installed."""
    return Identified(*_identifier().classify(text))


def in_other_language(text: str, language: str) -> bool:
    """Say whether a text is surely in another language than `language`.

    Silent on texts of less than 30 letters, and on languages that the identifier does not know.
    Raises `DataError` where py3langid is not installed.
    """
    if not can_be_judged(text, language):
        return False
    wanted = base_language(language)
    if identify(text).language == wanted:  # likely enough, and told sooner than all in their order
        return False
    return bool(dict(_identifier().rank(text))[wanted] < _UNLIKELY)


def can_be_judged(text: str, language: str) -> bool:
    """Say whether `in_other_language` has something to say on a text."""
    known = base_language(language) in known_languages()
    return known and weighted_length(text) >= _LEAST_LENGTH


def model_version() -> str:
    """Return the version of the package, and so of its model."""
    known_languages()
    return version("py3langid")


@functools.cache
def known_languages() -> frozenset[str]:
    """Return the codes of the languages that can be told apart."""
    return frozenset(_identifier().labels)


@functools.cache
def _identifier() -> Any:
    try:
        from py3langid.langid import MODEL_FILE, LanguageIdentifier  # an extra
    except ModuleNotFoundError as error:
        raise DataError(
            f"language identification needs py3langid: {install_hint('langid')}"
        ) from error
    return LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True)
