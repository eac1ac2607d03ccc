"""Off-target rate: share of translations in another language than the requested one."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from mt.data.filters import can_be_judged, in_other_language, model_version


@dataclass(frozen=True, slots=True)
class OffTarget:
    """Counts of translations in another language (Zhang et al. 2020, section 3.2).

    Short texts, and languages that the identifier does not support, are not judged. The rate of the
    references is the error of the identifier: a lower bound for a perfect system.
    """

    language: str
    judged: int
    """Number of translations that were judged."""
    found: int
    """Number of judged translations in another language."""
    references_judged: int
    references_found: int
    identifier: str
    """Language identifier with its version."""

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


def off_target(
    translations: Sequence[str], references: Sequence[str], *, target_language: str
) -> OffTarget:
    """Count translations and references that are not in the target language.

    Raises DataError if py3langid is not installed.
    """
    return OffTarget(
        target_language,
        *_count(translations, target_language),
        *_count(references, target_language),
        identifier=f"py3langid {model_version()}",
    )


def _count(texts: Sequence[str], language: str) -> tuple[int, int]:
    judged = [text for text in texts if can_be_judged(text, language)]
    return len(judged), sum(in_other_language(text, language) for text in judged)


def _share(part: int, whole: int) -> str:
    return f"{part / whole:.1%}" if whole else "none"
