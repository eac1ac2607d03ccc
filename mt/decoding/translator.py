"""Translation of lines: exactly one output line per input line, in order."""

import logging
import math
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Literal

from mt.config import DecodingConfig
from mt.config.data import Direction, chosen_direction
from mt.data.copied import not_copied
from mt.data.sentences import Sentences, split_sentences, whole_line
from mt.data.tokenizer import Tokenizer
from mt.decoding.engine import Engine, Hypothesis
from mt.decoding.load import load_model, require_tag
from mt.decoding.text import (
    BLOCKED_NGRAM,
    encode_prefixes,
    name_characters,
    pair_with_prefixes,
    repair_unicode,
    repeats_itself,
    split_line,
    unknown_characters,
)
from mt.errors import UserError, listed
from mt.languages import written_without_spaces
from mt.special_ids import UNK

_logger = logging.getLogger(__name__)
Status = Literal[
    "empty",
    "repeated",
    "length-limited",
    "copied",
    "altered",
    "invalid-bytes",
    "unknown-characters",
    "split",
    "ok",
]
"""Status of a line: the first of these that applies.

empty: the line or its translation is empty; repeated: the translation repeated itself and was
decoded again; length-limited: it was cut at its length limit; copied: it equals the line; altered:
numbers, addresses, placeholders or emoji of the line are lost or changed; invalid-bytes: bytes that
form no character were left out; unknown-characters: the tokenizer does not know some characters of
the line; split: a sentence that is too long was translated in parts; ok: none of these.
"""


@dataclass(frozen=True, slots=True)
class Part:
    """Input and output of the engine for a sentence, or for a part of a long sentence."""

    source: Sequence[int]
    """Source tokens, EOS last."""
    hypothesis: Hypothesis
    text: str
    """Text of `source`."""


@dataclass(frozen=True, slots=True)
class Alternative:
    """One of several translations of a line."""

    text: str
    """One line."""
    score: float
    """Score of the hypothesis; the sum over several parts."""
    parts: tuple[Part, ...]
    """Parts in order: none of a blank line, several of a line that was split."""

    @property
    def ids(self) -> tuple[int, ...]:
        """Target tokens of all parts."""
        return tuple(chain.from_iterable(part.hypothesis.ids for part in self.parts))


@dataclass(frozen=True, slots=True)
class Translation:
    """Result for one input line."""

    line_number: int
    """Line number, from 1."""
    source: str
    """Input line, unchanged."""
    text: str
    """Translation, one line."""
    status: Status
    score: float
    """Score of the best alternative, 0 for a blank line."""
    notes: tuple[str, ...] = ()
    """Notes for the user, for example that the line was split; see `log_notes`."""
    alternatives: tuple[Alternative, ...] = ()
    """Up to the requested number of translations, best first; the first one equals `text`."""
    sentences: tuple[str, ...] = ()
    """Sentences of the line that were translated one by one; the whole line if it was not split."""


def log_notes(translation: Translation, unit: Literal["line", "text"] = "line") -> None:
    """Log the notes on a translation as warnings, with the number of its line or text."""
    for note in translation.notes:
        _logger.warning("%s %d: %s", unit, translation.line_number, note)


_LOOK_AHEAD_BATCHES = 32
_SENTENCES_PER_LINE = 1.2
"""Mean of the training lines from which on a model has learned lines of several sentences."""
_LINE_END = re.compile(r"\r\n|\r|\n")


@dataclass(frozen=True, slots=True)
class _Prepared:
    """Line as the engine receives it."""

    line: str
    text: str
    """The line with its invalid characters replaced."""
    sentences: tuple[str, ...]
    texts: list[str]
    """Text of each part: a part for each sentence, several for a long one."""
    parts: list[list[int]]
    """Source tokens of each part."""
    gaps: list[str]
    """White space of the translation before each part and after the last."""
    prefixes: list[tuple[int, ...]]
    """Forced beginning of each part; the prefix of the line belongs to the first part."""
    notes: tuple[str, ...]
    cut: str
    """Note on a sentence that is translated in parts, or empty."""
    unknown: list[str]
    """Characters unknown to the tokenizer."""


@dataclass(frozen=True, slots=True)
class _Found:
    """Hypotheses of one part."""

    hypotheses: list[Hypothesis]
    repeated: bool
    """True if the first search repeated itself; `hypotheses` are those of the second search."""


class Translator:
    """Translator of text, safe to share between threads.

        from mt import Translator
        translator = Translator.load("runs/my")
        translator.translate(["Good morning."])

    `longest_source` is the largest number of tokens of a training source, including EOS; longer
    lines are split. `sentences_per_line` is the mean of the training sources, or None if it is
    unknown; `decoding.split_sentences: auto` depends on it.
    """

    def __init__(
        self,
        engine: Engine,
        tokenizer: Tokenizer,
        decoding: DecodingConfig,
        *,
        longest_source: int,
        direction: Direction,
        sentences_per_line: float | None = None,
    ) -> None:
        assert longest_source > 1, "a source has at least a token and EOS"
        self.engine = engine
        self.tokenizer = tokenizer.tagged(decoding.tag) if decoding.tag else tokenizer
        self.decoding = decoding
        self.longest_source = longest_source
        self.direction = direction
        self.joiner = _joiner(direction.target)
        is_auto = decoding.split_sentences == "auto"
        few = sentences_per_line is None or sentences_per_line < _SENTENCES_PER_LINE
        self.splits_sentences = few if is_auto else decoding.split_sentences == "on"

    @classmethod
    def load(
        cls, path: str | Path, *, overrides: Sequence[str] = (), device: str = "auto"
    ) -> "Translator":
        """Load the model of a run, finished or not, or of an export folder.

        `overrides` are config values such as "decoding.beam=1", `device` is auto, cuda, mps or cpu.
        Raises RunError for missing or damaged files, ConfigError for the overrides, UserError for
        an unavailable device, and UserError if the model needs a tag and `decoding.tag` is not set.
        """
        translator = load_translator(Path(path), overrides=overrides, device=device)
        require_tag(Path(path), overrides)
        return translator

    @property
    def look_ahead(self) -> int:
        """Default number of lines that `stream` reads before it yields the first translation.

        Several batches, so that sorting by length pays off. With a batch size of 1 there is nothing
        to gain, and each line is answered before the next is read.
        """
        batch = self.decoding.sentences_at_once
        return 1 if batch == 1 else _LOOK_AHEAD_BATCHES * batch

    def translate(
        self, lines: Sequence[str], *, prefixes: Sequence[str] | None = None
    ) -> list[str]:
        """Return the translation of each line; see `stream`."""
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
        """Yield a translation of each line, in order, reading at most `look_ahead` lines ahead.

        The sentences of a line are translated one by one, as `decoding.split_sentences` says, and
        the white space around them is restored. A sentence too long for the model is translated in
        parts. Lone surrogates are read as U+FFFD. A line end in a translated sentence becomes a
        space. A translation that repeats itself is decoded again, unless `decoding.on_repetition`
        is `keep`. Each line has up to `n_best` alternatives; raises UserError at once if the search
        cannot find so many.

        Each translation begins with its prefix, which is target text and may be empty. A line whose
        prefix has several sentences is not split into its own. Prefixes should end with a whole
        word; white space at the end is dropped. Raises UserError unless there are as many prefixes
        as lines.
        """
        _check_n_best(n_best, self.decoding)
        pairs = pair_with_prefixes(lines, prefixes)
        return self._stream(pairs, n_best, look_ahead or self.look_ahead)

    def _stream(
        self, pairs: Iterable[tuple[str, str]], n_best: int, look_ahead: int
    ) -> Iterator[Translation]:
        pairs, done = iter(pairs), 0
        while window := list(islice(pairs, look_ahead)):
            lines = self._prepare(window)
            found = self._search(lines, n_best)
            for number, line in enumerate(lines, start=done + 1):
                yield self._translation(number, line, list(islice(found, len(line.parts))), n_best)
            done += len(lines)

    def _prepare(self, window: list[tuple[str, str]]) -> list[_Prepared]:
        """Repair lines, split them into sentences, and encode these and the prefixes."""
        repaired = [repair_unicode(line) for line, _ in window]
        split = [
            self._sentences(text, repair_unicode(prefix)[0])
            for (text, _), (_, prefix) in zip(repaired, window, strict=True)
        ]
        texts = list(chain.from_iterable(sentences.texts for sentences in split))
        encoded = iter(self.tokenizer.encode_source(texts))
        prefixes = encode_prefixes([prefix for _, prefix in window], self.tokenizer)
        prepared = []
        for (line, _), (text, notes), sentences, prefix in zip(
            window, repaired, split, prefixes, strict=True
        ):
            texts, parts, gaps, cut = self._parts(
                sentences, list(islice(encoded, len(sentences.texts)))
            )
            if prefix.ids:
                gaps[0] = ""  # the translation begins with its prefix
            prepared.append(
                _Prepared(
                    line=line,
                    text=text,
                    sentences=sentences.texts,
                    texts=texts,
                    parts=parts,
                    gaps=gaps,
                    prefixes=[prefix.ids, *[()] * len(parts)][: len(parts)],
                    notes=notes + prefix.notes,
                    cut=cut,
                    unknown=unknown_characters(text, self.tokenizer)
                    if any(UNK in part for part in parts)
                    else [],
                )
            )
        return prepared

    def _sentences(self, text: str, prefix: str) -> Sentences:
        """Return the sentences of a line; its prefix must not go beyond the first."""
        if self.splits_sentences:
            forced = split_sentences(prefix, self.direction.target).texts
            if len(forced) < 2:
                return split_sentences(text, self.direction.source)
        return whole_line(text, keep_space=self.decoding.split_sentences == "off")

    def _parts(
        self, sentences: Sentences, encoded: list[list[int]]
    ) -> tuple[list[str], list[list[int]], list[str], str]:
        """Return texts and tokens of the parts, the white space around them, and a note on a cut.

        The white space is that of the translation: the usual gap between sentences of the source
        language becomes that of the target language.
        """
        usual, cut = _joiner(self.direction.source), ""
        texts: list[str] = []
        parts: list[list[int]] = []
        gaps: list[str] = []
        rows = zip(sentences.texts, encoded, sentences.gaps[:-1], strict=True)
        for number, (text, ids, gap) in enumerate(rows):
            pieces, encoded_pieces = [text], [ids]
            if len(ids) > self.longest_source:
                pieces = split_line(text, self.longest_source, count_tokens=self._count_tokens)
                encoded_pieces = self.tokenizer.encode_source(pieces)
                cut = f"{len(ids)} tokens, the model supports up to {self.longest_source}: "
                cut += f"translated in {len(pieces)} parts"
            texts += pieces
            parts += encoded_pieces
            gaps.append(self.joiner if number and gap == usual else gap)
            gaps += [self.joiner] * (len(pieces) - 1)
        return texts, parts, [*gaps, sentences.gaps[-1]], cut

    def _count_tokens(self, texts: Sequence[str]) -> list[int]:
        return [len(ids) for ids in self.tokenizer.encode_source(texts)]

    def _search(self, lines: list[_Prepared], n_best: int) -> Iterator[_Found]:
        """Yield the hypotheses of each part; decode loops again with n-grams blocked.

        Lazy: a window of blank lines does not call the engine.
        """
        sources = [part for line in lines for part in line.parts]
        prefixes = [prefix for line in lines for prefix in line.prefixes]
        found = self.engine.n_best_ids(sources, self.decoding, n_best, prefixes=prefixes)
        looping: list[int] = []
        blocks_already = (self.decoding.no_repeat_ngram or math.inf) <= BLOCKED_NGRAM
        if self.decoding.on_repetition == "again" and not blocks_already:
            looping = [
                place
                for place, (best, *_) in enumerate(found)
                if repeats_itself(best.ids, sources[place][:-1], finished=best.finished)
            ]
        again: dict[int, list[Hypothesis]] = {}
        if looping:
            new = self.engine.n_best_ids(
                [sources[place] for place in looping],
                self.decoding.model_copy(update={"no_repeat_ngram": BLOCKED_NGRAM}),
                n_best,
                prefixes=[prefixes[place] for place in looping],
            )
            again = dict(zip(looping, new, strict=True))
        for place, hypotheses in enumerate(found):
            yield _Found(again.get(place, hypotheses), repeated=place in again)

    def _translation(
        self, number: int, line: _Prepared, found: list[_Found], n_best: int
    ) -> Translation:
        choices = _best_choices([part.hypotheses for part in found], n_best)
        alternatives = tuple(self._alternative(line, choice) for choice in choices)
        best = alternatives[0]
        statuses = self._statuses(line, found, best.text)
        return Translation(
            line_number=number,
            source=line.line,
            text=best.text,
            status=statuses[0][0] if statuses else "ok",
            score=best.score,
            notes=line.notes + tuple(note for _, note in statuses if note),
            alternatives=alternatives,
            sentences=line.sentences,
        )

    def _alternative(self, line: _Prepared, hypotheses: tuple[Hypothesis, ...]) -> Alternative:
        # Byte tokens can spell a line end.
        texts = [_LINE_END.sub(" ", self.tokenizer.decode_target(each.ids)) for each in hypotheses]
        if len(texts) > 1 or self.decoding.split_sentences != "off":
            forced = map(bool, line.prefixes)
            texts = [text.rstrip() if next(forced) else text.strip() for text in texts]
        *before, after = line.gaps
        pairs = zip(before, texts, strict=True)
        return Alternative(
            text="".join(chain(*((gap, text) for gap, text in pairs if text), [after])),
            score=sum((hypothesis.score for hypothesis in hypotheses), start=0.0),
            parts=tuple(map(Part, line.parts, hypotheses, line.texts)),
        )

    def _statuses(
        self, line: _Prepared, found: list[_Found], text: str
    ) -> list[tuple[Status, str]]:
        """Return each status that applies to a line, with a note, in the order of `Status`."""
        if not line.parts:
            return [("empty", "")]
        statuses: list[tuple[Status, str]] = []
        if not text.strip():
            statuses.append(("empty", "the translation is empty"))
        if any(part.repeated for part in found):
            statuses.append(("repeated", _REPEATED_NOTE))
        if not all(part.hypotheses[0].finished for part in found):
            statuses.append(("length-limited", _LIMITED_NOTE))
        if text.strip() == line.text.strip() and any(map(str.isalpha, text)):
            statuses.append(("copied", "the translation is the line itself"))
        if altered := not_copied(line.text, text):
            statuses.append(("altered", f"not in the translation: {listed(altered)}"))
        if any(self.tokenizer.has_invalid_bytes(part.hypotheses[0].ids) for part in found):
            statuses.append(("invalid-bytes", "bytes that form no character are left out"))
        if line.unknown:
            note = f"the tokenizer does not know {name_characters(line.unknown)}"
            statuses.append(("unknown-characters", note))
        if line.cut:
            statuses.append(("split", line.cut))
        return statuses


_LIMITED_NOTE = (
    "the translation reached its length limit (`decoding.max_length_*`, or the end of learned "
    "positions) and is cut there"
)
_REPEATED_NOTE = (
    "the translation repeated itself; it was decoded again with "
    f"`decoding.no_repeat_ngram` {BLOCKED_NGRAM}"
)


def load_translator(
    run: Path, *, overrides: Sequence[str] = (), device: str = "auto"
) -> Translator:
    """Load a translator as `Translator.load` does, without requiring a tag."""
    loaded = load_model(run, overrides=overrides, device=device)
    decoding = loaded.config.decoding
    return Translator(
        loaded.engine,
        loaded.tokenizer,
        decoding,
        longest_source=loaded.longest_source,
        direction=chosen_direction(loaded.config.data, decoding.tag),
        sentences_per_line=loaded.sentences_per_line,
    )


def _joiner(language: str) -> str:
    """Return the usual text between two sentences."""
    return "" if written_without_spaces(language) else " "


def _check_n_best(n_best: int, decoding: DecodingConfig) -> None:
    assert n_best >= 1, "a line has at least one translation"
    if n_best > 1 and decoding.search == "greedy":
        raise UserError("greedy search finds one translation; more need `decoding.search` beam")
    if n_best > decoding.beam and decoding.search == "beam":
        raise UserError(
            f"beam search finds as many translations as its beam: for {n_best} of them "
            f"`decoding.beam` must be at least {n_best}, it is {decoding.beam}"
        )


def _best_choices(parts: list[list[Hypothesis]], count: int) -> list[tuple[Hypothesis, ...]]:
    """Return the best combinations of one hypothesis per part, by the sum of their scores."""
    choices: list[tuple[Hypothesis, ...]] = [()]
    for hypotheses in parts:
        longer = [(*choice, hypothesis) for choice in choices for hypothesis in hypotheses]
        longer.sort(key=lambda choice: -sum(part.score for part in choice))
        choices = longer[:count]
    return choices
