"""Translation of documents by functions from text to text."""

from collections.abc import Callable

from mt.documents.document import read_document
from mt.documents.segments import Format, Options, TranslatedLine


def translated(
    content: bytes,
    format: Format,
    translate: Callable[[str], str],
    *,
    column: str | None = None,
    fuzzy: bool = False,
    languages: tuple[str, str] = ("en", "de"),
    refused: list[str] | None = None,
) -> bytes:
    options = Options("file", *languages, column, fuzzy)
    document = read_document(content, format, "file")
    items = document.read_items(options)
    lines = (TranslatedLine(translate(text)) for item in items for text in item.texts)
    refuse = [] if refused is None else refused
    return b"".join(document.translate(items, lines, lambda _, reason: refuse.append(reason)))


def longer(text: str) -> str:
    """Other words in another number and order, with characters that are markup elsewhere."""
    return " ".join(reversed(text.split())) + " & <zwei> *drei* [vier] \"fünf\" 'sechs' | _x_ 1. #"
