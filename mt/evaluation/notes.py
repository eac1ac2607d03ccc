"""What a score does not show: lines that were only copied."""

from collections.abc import Sequence


def identical_to_source(name: str, translations: Sequence[str], sources: Sequence[str]) -> str:
    """Return how many translations are their source again, empty lines left out."""
    filled = [(line, source) for line, source in zip(translations, sources, strict=True) if source]
    count = sum(line == source for line, source in filled)
    share = count / max(len(filled), 1)
    return f"{name}: {count} of {len(filled)} lines ({share:.1%}) are identical to their source"
