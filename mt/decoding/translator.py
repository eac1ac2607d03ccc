"""Lines in, translations out: one for each line, in order, whatever the line holds."""

import itertools
import logging
import math
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Literal

from mt.config import DecodingConfig
from mt.data.tokenizer import Tokenizer
from mt.decoding.engine import Engine, Hypothesis
from mt.decoding.load import load_model, require_tag
from mt.decoding.text import (
    BLOCKED_NGRAM,
    encode_prefixes,
    joiner,
    mend,
    named,
    repeats_itself,
    split_line,
    unknown_characters,
    with_prefixes,
)
from mt.errors import UserError
from mt.special_ids import UNK

_logger = logging.getLogger(__name__)
Status = Literal[
    "empty", "repeated", "length-limited", "copied", "unknown-characters", "split", "ok"
]
"""What is to be known of a line; where several hold it is the first of them.

The line or its translation is empty; the translation repeated itself and was made again; it was cut
at its length limit; it is the line itself; the tokenizer does not know some characters of the line;
the line was translated in parts; none of these.
"""


@dataclass(frozen=True, slots=True)
class Part:
    """A line as the engine saw it, or a part of a line that was split."""

    source: Sequence[int]
    """Its tokens, EOS last."""
    hypothesis: Hypothesis


@dataclass(frozen=True, slots=True)
class Alternative:
    """One translation of a line, among others."""

    text: str
    """Always one line."""
    score: float
    """The hypothesis's score; the sum of the parts' scores where the line was split."""
    parts: tuple[Part, ...]
    """What the engine translated: none where the line is blank, several where it was split."""

    @property
    def ids(self) -> tuple[int, ...]:
        """The target tokens, those of the parts one after the other."""
        return tuple(chain.from_iterable(part.hypothesis.ids for part in self.parts))


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
    score: float
    """That of the best of `alternatives`, 0 for a blank line."""
    notes: tuple[str, ...] = ()
    """What a user should know of it, such as that the line was split; see `log_notes`."""
    alternatives: tuple[Alternative, ...] = ()
    """As many as were asked for and found, best first: the first is the translation itself."""


def log_notes(translation: Translation) -> None:
    """Warn of what a user should know of a translation, with the number of its line."""
    for note in translation.notes:
        _logger.warning("line %d: %s", translation.line_number, note)


LOOK_AHEAD_BATCHES = 32
_LINE_END = re.compile(r"\r\n|\r|\n")


@dataclass(frozen=True, slots=True)
class _Prepared:
    """A line as it goes to the engine: no part where it is blank, several where it is split."""

    line_number: int
    line: str
    text: str
    """The line, mended."""
    tokens: int
    """Of the whole line, end mark included."""
    parts: list[list[int]]
    prefixes: list[tuple[int, ...]]
    """What the translation of each part begins with: the first one's with the line's prefix."""
    notes: tuple[str, ...]
    unknown: list[str]
    """Characters that the tokenizer does not know."""


@dataclass(frozen=True, slots=True)
class _Found:
    """What the engine found for one part of a line."""

    hypotheses: list[Hypothesis]
    repeated: bool
    """The first search fell into a loop; these are of a second one."""


class Translator:
    """Translates text with an engine and its tokenizer; several threads may use it at once.

        from mt import Translator
        translator = Translator.load("runs/my")
        translator.translate(["Good morning."])

    `longest_source` is the most tokens, end mark included, of a source that the model was trained
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
        assert longest_source > 1, "a source holds a token and its end mark at the least"
        self.engine = engine
        self.tokenizer = tokenizer.tagged(decoding.tag) if decoding.tag else tokenizer
        self.decoding = decoding
        self.longest_source = longest_source
        self.joiner = joiner(target_language)

    @classmethod
    def load(
        cls, path: str | Path, *, overrides: Sequence[str] = (), device: str = "auto"
    ) -> "Translator":
        """Return a translator with the model of a finished run, or of an exported folder.

        `overrides` are settings such as "decoding.beam=1", `device` is auto, cuda, mps or cpu.
        Raises RunError naming what is missing or damaged in the folder, ConfigError for the
        overrides, UserError for a device that is not there, and where the model has learnt from
        lines with tags alone and neither its config nor `overrides` say anything of `decoding.tag`.
        """
        translator = load_translator(Path(path), overrides=overrides, device=device)
        require_tag(Path(path), overrides)
        return translator

    @property
    def look_ahead(self) -> int:
        """Lines read before the first is answered, unless `stream` is told otherwise.

        LOOK_AHEAD_BATCHES batches, so that there is something to sort by length; with a batch of
        one there is nothing to gain, and each line is answered before the next is read.
        """
        at_once = self.decoding.sentences_at_once
        return 1 if at_once == 1 else LOOK_AHEAD_BATCHES * at_once

    def translate(
        self, lines: Sequence[str], *, prefixes: Sequence[str] | None = None
    ) -> list[str]:
        """Return the translation of each line; a blank line's is empty.

        Each begins with its prefix, as `stream` says.
        """
        if isinstance(lines, str) or isinstance(prefixes, str):
            raise TypeError("translate takes a list of lines; put a single one into a list")
        return [translation.text for translation in self.stream(lines, prefixes=prefixes)]

    def stream(
        self,
        lines: Iterable[str],
        *,
        prefixes: Iterable[str] | None = None,
        n_best: int = 1,
        look_ahead: int | None = None,
    ) -> Iterator[Translation]:
        """Yield a translation for each line, in order, reading at most `look_ahead` lines ahead.

        A line of white space alone gives an empty line. A line too long for the model is split,
        translated in parts and joined. Lone surrogates are read as U+FFFD. A line end in the
        output (a model can spell one in bytes) becomes a space. What repeats itself is decoded
        again, unless `decoding.on_repetition` is `keep`. Each line has up to `n_best` alternatives;
        raises UserError at once where the search cannot find so many.

        A translation begins with its line's prefix, target text; an empty one forces nothing, and
        the prefix of a split line is that of its first part. The model goes on after the tokens of
        the prefix, so it is best to end it with a whole word; white space at its end does not
        count. Raises UserError where there are not as many prefixes as lines.
        """
        _check_n_best(n_best, self.decoding)
        pairs = with_prefixes(lines, prefixes)
        return self._stream(pairs, n_best, look_ahead or self.look_ahead)

    def _stream(
        self, pairs: Iterable[tuple[str, str]], n_best: int, look_ahead: int
    ) -> Iterator[Translation]:
        numbered = enumerate(pairs, start=1)
        while window := list(itertools.islice(numbered, look_ahead)):
            prepared = self._prepare(window)
            found = self._search(
                [part for line in prepared for part in line.parts],
                [prefix for line in prepared for prefix in line.prefixes],
                n_best,
            )
            for line in prepared:
                yield self._translation(
                    line, list(itertools.islice(found, len(line.parts))), n_best
                )

    def _prepare(self, window: list[tuple[int, tuple[str, str]]]) -> list[_Prepared]:
        mended = [mend(line) for _, (line, _) in window]
        encoded = self.tokenizer.encode_source([text for text, _ in mended])
        prefixes = encode_prefixes([prefix for _, (_, prefix) in window], self.tokenizer)
        prepared = []
        for (number, (line, _)), (text, notes), ids, prefix in zip(
            window, mended, encoded, prefixes, strict=True
        ):
            parts = [ids] if text.strip() else []
            if parts and len(ids) > self.longest_source:
                parts = self.tokenizer.encode_source(self._split(text))
            unknown = unknown_characters(text, self.tokenizer) if parts and UNK in ids else []
            begins = [prefix.ids, *([()] * (len(parts) - 1))] if parts else []
            told = notes + prefix.notes
            prepared.append(_Prepared(number, line, text, len(ids), parts, begins, told, unknown))
        return prepared

    def _split(self, text: str) -> list[str]:
        def count_tokens(texts: Sequence[str]) -> list[int]:
            return [len(ids) for ids in self.tokenizer.encode_source(texts)]

        return split_line(text, self.longest_source, count_tokens=count_tokens)

    def _search(
        self, sources: list[list[int]], prefixes: list[tuple[int, ...]], n_best: int
    ) -> Iterator[_Found]:
        """Yield what the engine finds for each source; where that loops, what it finds blocked."""
        if not sources:
            return
        found = self.engine.n_best_ids(sources, self.decoding, n_best, prefixes=prefixes)
        again: dict[int, list[Hypothesis]] = {}
        blocks_already = (self.decoding.no_repeat_ngram or math.inf) <= BLOCKED_NGRAM
        if self.decoding.on_repetition == "again" and not blocks_already:
            looping = [
                place
                for place, (best, *_) in enumerate(found)
                if repeats_itself(best.ids, sources[place][:-1], finished=best.finished)
            ]
            blocked = self.decoding.model_copy(update={"no_repeat_ngram": BLOCKED_NGRAM})
            sources = [sources[place] for place in looping]
            prefixes = [prefixes[place] for place in looping]
            if sources:
                new = self.engine.n_best_ids(sources, blocked, n_best, prefixes=prefixes)
                again = dict(zip(looping, new, strict=True))
        for place, hypotheses in enumerate(found):
            yield _Found(again.get(place, hypotheses), repeated=place in again)

    def _translation(self, line: _Prepared, found: list[_Found], n_best: int) -> Translation:
        choices = _best_choices([part.hypotheses for part in found], n_best)
        alternatives = tuple(self._alternative(line.parts, choice) for choice in choices)
        text, score = alternatives[0].text, alternatives[0].score
        findings = self._findings(line, found, text)
        return Translation(
            line_number=line.line_number,
            source=line.line,
            text=text,
            status=findings[0][0] if findings else "ok",
            score=score,
            notes=line.notes + tuple(note for _, note in findings if note),
            alternatives=alternatives,
        )

    def _alternative(
        self, sources: list[list[int]], hypotheses: tuple[Hypothesis, ...]
    ) -> Alternative:
        texts = [self.tokenizer.decode_target(hypothesis.ids) for hypothesis in hypotheses]
        if len(texts) > 1:
            texts = [text.strip() for text in texts]
        return Alternative(
            text=_LINE_END.sub(" ", self.joiner.join(text for text in texts if text)),
            score=sum((hypothesis.score for hypothesis in hypotheses), start=0.0),
            parts=tuple(map(Part, sources, hypotheses)),
        )

    def _findings(
        self, line: _Prepared, found: list[_Found], text: str
    ) -> list[tuple[Status, str]]:
        """Return what holds of a line, in the order of `Status`, with a note on each."""
        if not line.parts:
            return [("empty", "")]
        findings: list[tuple[Status, str]] = []
        if not text.strip():
            findings.append(("empty", "the translation is empty"))
        if any(part.repeated for part in found):
            findings.append(("repeated", _REPEATED_NOTE))
        if not all(part.hypotheses[0].finished for part in found):
            findings.append(("length-limited", _CUT_NOTE))
        if text.strip() == line.text.strip() and any(map(str.isalpha, text)):
            findings.append(("copied", "the translation is the line itself"))
        if line.unknown:
            note = f"the tokenizer does not know {named(line.unknown)}"
            findings.append(("unknown-characters", note))
        if len(line.parts) > 1:
            note = f"{line.tokens} tokens, the model knows up to {self.longest_source}: "
            findings.append(("split", f"{note}translated in {len(line.parts)} parts"))
        return findings


_CUT_NOTE = (
    "the translation reached its length limit (`decoding.max_length_*`, or the end of learned "
    "positions) and is cut there"
)
_REPEATED_NOTE = (
    "the translation repeated itself; it was made again with "
    f"`decoding.no_repeat_ngram` {BLOCKED_NGRAM}"
)


def _check_n_best(n_best: int, decoding: DecodingConfig) -> None:
    assert n_best >= 1, "a line has one translation at the least"
    if n_best > 1 and decoding.search == "greedy":
        raise UserError("greedy search finds one translation; more need `decoding.search` beam")
    if n_best > decoding.beam and decoding.search == "beam":
        raise UserError(
            f"beam search finds as many translations as its beam: for {n_best} of them "
            f"`decoding.beam` must be at least {n_best}, it is {decoding.beam}"
        )


def _best_choices(parts: list[list[Hypothesis]], count: int) -> list[tuple[Hypothesis, ...]]:
    """Return the best ways to choose one hypothesis for each part, by the sum of their scores."""
    choices: list[tuple[Hypothesis, ...]] = [()]
    for hypotheses in parts:
        longer = [(*choice, hypothesis) for choice in choices for hypothesis in hypotheses]
        longer.sort(key=lambda choice: -sum(part.score for part in choice))
        choices = longer[:count]
    return choices


def load_translator(
    run: Path, *, overrides: Sequence[str] = (), device: str = "auto"
) -> Translator:
    """Return a translator for a finished run or an exported folder; a tag is not required.

    `overrides` are `decoding.KEY=VALUE`. Raises what `mt.decoding.load.load_model` raises.
    """
    loaded = load_model(run, overrides=overrides, device=device)
    return Translator(
        loaded.engine,
        loaded.tokenizer,
        loaded.decoding,
        longest_source=loaded.longest_source,
        target_language=loaded.target_language,
    )
