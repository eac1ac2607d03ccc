"""Elements of an XML file one after another, whatever the file's size and whoever wrote it.

Nothing outside the file is ever read, and a file that declares entities is refused: those few
lines can stand for gigabytes of text (CWE-776). That leaves out what `xml.etree` would let pass.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn
from xml.etree.ElementTree import Element, TreeBuilder
from xml.parsers import expat

from mt.data.lines import read_chunks
from mt.errors import DataError

_DEEPEST = 100
"""Elements inside each other in one unit; no honest file comes near."""


@dataclass(frozen=True, slots=True)
class XmlUnit:
    """An element, names without prefix, and the attributes of all that it stands in."""

    element: Element
    around: dict[str, str]


def read_units(path: Path, names: frozenset[str]) -> Iterator[XmlUnit]:
    """Stream the elements of these names, of nested ones the outermost; memory stays flat.

    Attributes keep their prefix, as in `xml:lang`. Raises `DataError` naming the line of what is
    no XML, nests too deep, or declares or uses an entity of its own.
    """
    collector = _Collector(names)
    parser = expat.ParserCreate()
    parser.buffer_text = True
    parser.StartElementHandler = collector.start
    parser.EndElementHandler = collector.end
    parser.CharacterDataHandler = collector.text
    parser.EntityDeclHandler = _refuse_declaration
    parser.SkippedEntityHandler = _refuse_use
    try:
        for chunk in read_chunks(path):
            parser.Parse(chunk, False)
            yield from collector.taken()
        parser.Parse(b"", True)
    except expat.ExpatError as error:
        reason = expat.ErrorString(error.code)
        raise DataError(f"{path}: line {error.lineno}: is not XML ({reason})") from error
    except (_UnfitXmlError, LookupError, ValueError) as error:  # the last two: its encoding
        raise DataError(f"{path}: line {parser.CurrentLineNumber}: {error}") from error
    yield from collector.taken()


class _UnfitXmlError(Exception):
    """What is wrong with the file; the reader adds where."""


def _refuse_declaration(name: str, *_: object) -> NoReturn:
    raise _UnfitXmlError(f"declares the entity `{name}`; such files are refused")


def _refuse_use(name: str, *_: object) -> NoReturn:
    raise _UnfitXmlError(f"the entity `{name}` is not one of XML's own, nor is another file read")


class _Collector:
    """Takes what the parser finds, and builds the wanted elements alone."""

    def __init__(self, names: frozenset[str]) -> None:
        self._names = names
        self._around: list[dict[str, str]] = []
        self._builder: TreeBuilder | None = None
        self._depth = 0
        self._ready: list[XmlUnit] = []

    def start(self, name: str, attributes: dict[str, str]) -> None:
        local = name.rpartition(":")[2]
        if self._builder is None:
            if local not in self._names:
                self._around.append(attributes)
                return
            self._builder = TreeBuilder()
        self._depth += 1
        if self._depth > _DEEPEST:
            raise _UnfitXmlError(f"more than {_DEEPEST} elements stand inside each other")
        self._builder.start(local, attributes)

    def text(self, text: str) -> None:
        if self._builder is not None:
            self._builder.data(text)

    def end(self, name: str) -> None:
        if self._builder is None:
            self._around.pop()
            return
        self._builder.end(name.rpartition(":")[2])
        self._depth -= 1
        if not self._depth:
            around = {key: value for each in self._around for key, value in each.items()}
            self._ready.append(XmlUnit(self._builder.close(), around))
            self._builder = None

    def taken(self) -> list[XmlUnit]:
        """Return the units that are complete, and forget them."""
        taken, self._ready = self._ready, []
        return taken
