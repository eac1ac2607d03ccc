"""What a score does not show: texts that are not plain text, lines that were only copied."""

from collections.abc import Sequence

_TELLING_SHARE = 0.1
"""Below it, such lines may be part of the text."""


def looks_processed(name: str, lines: Sequence[str]) -> str | None:
    """Return a warning where many of `lines` are pieces or tokens and not text, else None.

    sacreBLEU tokenises by itself: on text that is tokenised already, the number means something
    else and is not comparable with any other.
    """
    signs = (
        ("hold `@@` or `▁`, so they look like pieces", _holds_pieces),
        ("end in a full stop set apart, so they look tokenised", _ends_in_a_token),
    )
    for what, found_in in signs:
        count = sum(map(found_in, lines))
        if count > _TELLING_SHARE * len(lines):
            return f"{name}: {count} of {len(lines)} lines {what}; BLEU is of plain text"
    return None


def identical_to_source(name: str, translations: Sequence[str], sources: Sequence[str]) -> str:
    """Return how many translations are their source again, empty lines left out."""
    filled = [(line, source) for line, source in zip(translations, sources, strict=True) if source]
    count = sum(line == source for line, source in filled)
    share = count / max(len(filled), 1)
    return f"{name}: {count} of {len(filled)} lines ({share:.1%}) are identical to their source"


def _holds_pieces(line: str) -> bool:
    return "@@ " in line or line.endswith("@@") or "▁" in line


def _ends_in_a_token(line: str) -> bool:
    return line.endswith((" .", " 。"))
