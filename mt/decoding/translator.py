"""Lines in, translations out: one for each line, in order, whatever the line holds."""

import itertools
import logging
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from mt.config import DecodingConfig
from mt.data.tokenizer import Tokenizer
from mt.decoding.engine import Engine, Hypothesis
from mt.decoding.long_lines import joiner, split_line

LOOK_AHEAD_BATCHES = 32

_logger = logging.getLogger(__name__)
_SURROGATE = re.compile(r"[\ud800-\udfff]")
_LINE_END = re.compile(r"\r\n|\r|\n")

Status = Literal["ok", "blank", "split"]


@dataclass(frozen=True, slots=True)
class Translation:
    """What became of one input line."""

    line_number: int
    """From 1."""
    source: str
    """The line as it was given."""
    text: str
    """The translation, always one line."""
    status: Status
    """Whether the line had nothing to translate, or was too long and translated in parts."""
    score: float
    """The hypothesis's score; the sum of the parts' scores where it was split, 0 where blank."""
    notes: tuple[str, ...] = ()
    """What a user should know of it, such as that the line was split; see `log_notes`."""


@dataclass(frozen=True, slots=True)
class _Prepared:
    """A line as it goes to the engine: no part where it is blank, several where it is split."""

    line_number: int
    line: str
    parts: list[list[int]]
    notes: tuple[str, ...]


class Translator:
    """Translates text with an engine and its tokenizer.

    `longest_source` is the most pieces, end mark included, of a source that the model was trained
    on: longer lines are split. `target_language` decides how the parts are joined.
    """

    def __init__(
        self,
        engine: Engine,
        tokenizer: Tokenizer,
        decoding: DecodingConfig,
        *,
        longest_source: int,
        target_language: str,
    ) -> None:
        assert longest_source > 1, "a source holds a piece and its end mark at the least"
        self.engine = engine
        self.tokenizer = tokenizer
        self.decoding = decoding
        self.longest_source = longest_source
        self.joiner = joiner(target_language)

    @property
    def look_ahead(self) -> int:
        """Lines read before the first is answered.

        LOOK_AHEAD_BATCHES batches, so that there is something to sort by length; with a batch of
        one there is nothing to gain, and each line is answered before the next is read.
        """
        batch_size = self.decoding.batch_size
        return 1 if batch_size == 1 else LOOK_AHEAD_BATCHES * batch_size

    def translate(self, lines: Sequence[str]) -> list[str]:
        """Return the translation of each line; a blank line's is empty."""
        return [translation.text for translation in self.stream(lines)]

    def stream(self, lines: Iterable[str]) -> Iterator[Translation]:
        """Yield a translation for each line, in order, reading at most `look_ahead` lines ahead.

        A line of white space alone gives an empty line. A line too long for the model is split,
        translated in parts and joined. Lone surrogates are read as U+FFFD. A line end in the
        output (a model can spell one in bytes) becomes a space.
        """
        numbered = enumerate(lines, start=1)
        while window := list(itertools.islice(numbered, self.look_ahead)):
            yield from self._translate_window(window)

    def _translate_window(self, window: list[tuple[int, str]]) -> Iterator[Translation]:
        prepared = self._prepare(window)
        sources = [part for line in prepared for part in line.parts]
        hypotheses = iter(self.engine.translate_ids(sources, self.decoding) if sources else [])
        for line in prepared:
            yield self._translation(line, list(itertools.islice(hypotheses, len(line.parts))))

    def _prepare(self, window: list[tuple[int, str]]) -> list[_Prepared]:
        texts = [_SURROGATE.sub("\ufffd", line) for _, line in window]
        encoded = self.tokenizer.encode_source(texts)
        prepared = []
        for (number, line), text, ids in zip(window, texts, encoded, strict=True):
            notes = [] if text == line else ["lone surrogates are read as U+FFFD"]
            parts = [ids] if text.strip() else []
            if parts and len(ids) > self.longest_source:
                parts = self.tokenizer.encode_source(self._split(text))
                notes.append(
                    f"{len(ids)} pieces, the model knows up to {self.longest_source}: "
                    f"translated in {len(parts)} parts"
                )
            prepared.append(_Prepared(number, line, parts, tuple(notes)))
        return prepared

    def _split(self, text: str) -> list[str]:
        def count_pieces(texts: Sequence[str]) -> list[int]:
            return [len(ids) for ids in self.tokenizer.encode_source(texts)]

        return split_line(text, self.longest_source, count_pieces=count_pieces)

    def _translation(self, line: _Prepared, hypotheses: list[Hypothesis]) -> Translation:
        texts = [self.tokenizer.decode_target(hypothesis.ids) for hypothesis in hypotheses]
        if len(texts) > 1:
            texts = [text.strip() for text in texts]
        cut = sum(not hypothesis.finished for hypothesis in hypotheses)
        notes = (_CUT_NOTE,) if cut else ()
        return Translation(
            line_number=line.line_number,
            source=line.line,
            text=_LINE_END.sub(" ", self.joiner.join(text for text in texts if text)),
            status=_status(len(hypotheses)),
            score=sum(hypothesis.score for hypothesis in hypotheses),
            notes=line.notes + notes,
        )


def _status(parts: int) -> Status:
    if parts > 1:
        return "split"
    return "ok" if parts else "blank"


_CUT_NOTE = (
    "the translation reached its length limit (`decoding.max_length_*`, or the end of learned "
    "positions) and is cut there"
)


def log_notes(translation: Translation) -> None:
    """Warn of what a user should know of a translation, with the number of its line."""
    for note in translation.notes:
        _logger.warning("line %d: %s", translation.line_number, note)
