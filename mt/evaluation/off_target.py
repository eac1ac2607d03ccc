"""How many translations are in another language than the one that was asked for."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from mt.data.language_id import can_be_judged, in_other_language, model_version


@dataclass(frozen=True, slots=True)
class OffTarget:
    """The translations that are surely in another language (Zhang et al. 2020, section 3.2).

    Short texts, and languages that the identifier does not know, are not judged. It errs too: what
    it says of the references is the least that a perfect system could have.
    """

    language: str
    judged: int
    """Translations that were judged."""
    found: int
    """Those of them that are surely in another language."""
    references_judged: int
    references_found: int
    """The same of the references."""
    identifier: str
    """The program that told the languages apart, with its version."""

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
        """Return everything by name, and the rate, null where nothing was judged."""
        return {**asdict(self), "rate": self.found / self.judged if self.judged else None}


def off_target(
    translations: Sequence[str], references: Sequence[str], *, target_language: str
) -> OffTarget:
    """Count the translations, and the references, that are surely not in the target language.

    Raises `DataError` where py3langid is not installed.
    """
    judged, found = _count(translations, target_language)
    references_judged, references_found = _count(references, target_language)
    return OffTarget(
        target_language,
        judged,
        found,
        references_judged,
        references_found,
        identifier=f"py3langid {model_version()}",
    )


def _count(texts: Sequence[str], language: str) -> tuple[int, int]:
    judged = [text for text in texts if can_be_judged(text, language)]
    return len(judged), sum(in_other_language(text, language) for text in judged)


def _share(part: int, whole: int) -> str:
    return f"{part / whole:.1%}" if whole else "none"
