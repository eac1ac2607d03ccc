"""Translation of lines: exactly one output line per input line, in order."""

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import Literal

from mt.config import DecodingConfig
from mt.config.data import Direction
from mt.data.glossary import Glossary, Term, as_terms, find_whole, read_memory
from mt.data.placeholders import TaggedText
from mt.data.tokenizer import Tokenizer
from mt.data.verbatim import change_words, missing_verbatim
from mt.data.words import missing_numbers
from mt.decoding.alignment import Link, WordAligner, align_words, map_spans_to_line
from mt.decoding.confidence import Calibration, mean_log_prob, read_calibration
from mt.decoding.engine import Engine, TermUse, TranslatedPart
from mt.decoding.load import StoredModel, load_engine, require_tag
from mt.decoding.preparation import Preparation, PreparedLine, name_characters, pair_with_prefixes
from mt.decoding.retries import BLOCKED_NGRAM, RetryingSearch, SearchResult, is_loop
from mt.decoding.terms import Terms, report_terms
from mt.errors import UserError, listed
from mt.languages import in_upper_case
from mt.runs import UNKNOWN_STATISTICS, LineStatistics

_logger = logging.getLogger(__name__)
Status = Literal[
    "empty", "length-limited", "repeated", "copied", "untranslated", "altered", "missed-term", "ok",
    "memory",
]  # fmt: skip
"""Status of a line: the first of these that applies; `Translator._judge` has the conditions."""


@dataclass(frozen=True, slots=True)
class RankedTranslation:
    """One of several translations of a line."""

    text: str
    """One line."""
    score: float
    """Score of the hypothesis; the sum over several parts."""
    parts: tuple[TranslatedPart, ...]
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
    alternatives: tuple[RankedTranslation, ...] = ()
    """Up to the requested number of translations, best first; the first one equals `text`."""
    sentences: tuple[str, ...] = ()
    """Sentences of the line that were translated one by one; the whole line if it was not split."""
    terms: tuple[TermUse, ...] = ()
    """Terms of the glossary in the line, in order."""
    confidence: float | None = None
    """Expected chrF, 0 to 100; None for a blank line and without a calibration."""
    links: tuple[Link, ...] = ()
    """Aligned words of a TaggedText and its translation, see `Translator.find_links`."""

    @property
    def needs_review(self) -> bool:
        """True if a term of the line was placed in the translation or is not in it."""
        return any(use.way != "model" for use in self.terms)


def log_notes(translation: Translation, unit: Literal["line", "text"] = "line") -> None:
    """Log the notes on a translation as warnings, with the number of its line or text."""
    for note in translation.notes:
        _logger.warning("%s %d: %s", unit, translation.line_number, note)


class Translator:
    """Translator of text, safe to share between threads.

        from mt import Translator
        translator = Translator.load("runs/my")
        translator.translate(["Good morning."])

    `longest_source` is the largest number of tokens of a training source, including EOS; longer
    lines are split. `line_shape` is that of the training sources, or None if it is unknown;
    `decoding.split_sentences: auto` depends on it.
    """

    def __init__(
        self,
        engine: Engine,
        tokenizer: Tokenizer,
        decoding: DecodingConfig,
        *,
        longest_source: int,
        direction: Direction,
        line_shape: LineStatistics | None = None,
    ) -> None:
        assert longest_source > 1, "a source has at least a token and EOS"
        self.engine = engine
        self.tokenizer = tokenizer.tagged(decoding.tag, decoding.target_tag)
        self.decoding = decoding
        self.longest_source = longest_source
        self.direction = direction
        self.line_shape = line_shape or UNKNOWN_STATISTICS
        splits = {"on": True, "off": False, "auto": self.line_shape.is_of_single_sentences}
        self.splits_sentences = splits[decoding.split_sentences]
        self.glossary = Glossary((), direction)
        self.memory: dict[str, str] = {}
        self.folder: Path | None = None
        """Folder of the run or export."""
        self.weights_and_search_id = ""
        """Weights, and settings that change the meaning of a log-probability or the language."""
        self.calibration: Calibration | None = None

    @classmethod
    def load(
        cls,
        path: str | Path,
        *,
        overrides: Sequence[str] = (),
        device: str = "auto",
        memory: Path | None = None,
    ) -> "Translator":
        """Load the model of a run, finished or not, or of an export folder.

        `overrides` are config values such as "decoding.beam=1", `device` is auto, cuda, mps or cpu,
        `memory` is for `use_memory`. Raises RunError for missing or damaged files, ConfigError for
        the overrides, UserError for an unavailable device, and UserError if the model needs a tag
        and `decoding.tag` is not set.
        """
        stored = StoredModel.read(Path(path), overrides)
        return cls.from_stored(stored, device, memory=memory)

    @classmethod
    def from_stored(
        cls,
        stored: StoredModel,
        device: str,
        *,
        terms: tuple[Term, ...] = (),
        memory: Path | None = None,
    ) -> "Translator":
        """Load the engine of a model and return its translator, as `load` does."""
        require_tag(stored.config.tags_to_choose(), stored.overrides, name=stored.path)
        decoding = stored.config.decoding
        translator = cls(
            load_engine(stored, device),
            stored.tokenizer,
            decoding,
            longest_source=stored.longest_source,
            direction=stored.config.direction,
            line_shape=stored.record.line_shape,
        )
        translator.folder = stored.path
        kind = (decoding.search == "sample", decoding.mbr, decoding.tag, decoding.target_tag)
        translator.weights_and_search_id = f"{stored.settings['model']} {kind}"
        calibration = read_calibration(stored.path, translator.weights_and_search_id)
        translator.calibration = calibration
        is_hidden = stored.path.name.startswith(".")  # an export that is being written
        if stored.record.is_of_export and calibration is None and not is_hidden:
            _logger.info(_NO_CONFIDENCE, stored.path, stored.path)
        translator.use_terms(terms)
        translator.use_memory(memory)
        return translator

    def require_calibration(self, option: str) -> Calibration:
        """Return the calibration; raise UserError, which names the option, if it is missing."""
        if self.calibration is None:
            raise UserError(f"`{option}`: {_NO_CONFIDENCE % (self.folder, self.folder)}")
        return self.calibration

    def use_terms(self, terms: tuple[Term, ...]) -> None:
        """Use terms in all calls without a glossary of their own."""
        self.glossary = Glossary(terms, self.direction)

    def use_memory(self, path: Path | None) -> None:
        """Read a translation memory, if any, and use it in all calls; see `read_memory`."""
        if path is not None:
            self.memory = read_memory(path, self.direction)
            _logger.info("%s: %d texts with translations", path, len(self.memory))

    def translate(
        self,
        lines: Sequence[str],
        *,
        prefixes: Sequence[str] | None = None,
        glossary: Mapping[str, str] | None = None,
    ) -> list[str]:
        """Return the translation of each line; see `stream`.

        `glossary` maps source terms to target terms, both with `|` between forms, in place of the
        translator's own. Raises DataError for a row that is no term.
        """
        if isinstance(lines, str) or isinstance(prefixes, str):
            raise TypeError("translate takes a list of lines; put a single one into a list")
        terms = None if glossary is None else Glossary(as_terms(glossary), self.direction)
        stream = self.stream(lines, prefixes=prefixes, glossary=terms)
        return [translation.text for translation in stream]

    def stream(
        self,
        lines: Iterable[str],
        *,
        prefixes: Iterable[str] | None = None,
        n_best: int = 1,
        look_ahead: int | None = None,
        glossary: Glossary | None = None,
    ) -> Iterator[Translation]:
        """Yield a translation of each line, in order, reading at most `look_ahead` lines ahead.

        The default is that of `decoding`.
        Depending on `decoding.split_sentences`, the sentences of a line are translated one by one,
        and the white space around them is restored. A sentence too long for the model is translated
        in parts. Lone surrogates are read as U+FFFD. A line end in a translated sentence becomes a
        space. A translation that repeats itself is decoded again, unless `decoding.repair`
        is `off`. Each line has up to `n_best` alternatives; raises UserError at once if the search
        cannot find so many.

        Each translation begins with its prefix, which is target text and may be empty. A line whose
        prefix has several sentences is not split into its own. Prefixes should end with a whole
        word; white space at the end is dropped. Raises UserError unless there are as many prefixes
        as lines. `glossary` is by default that of the translator. A line of its memory gets the
        target from there, unless it has a prefix. A TaggedText has links, and no memory.
        """
        check_n_best(n_best, self.decoding)
        pairs = pair_with_prefixes(lines, prefixes)
        glossary = glossary or self.glossary
        aligner = WordAligner(self.engine, self.tokenizer)
        terms = Terms(glossary, self.tokenizer, aligner, self.longest_source)
        return self._stream(pairs, n_best, look_ahead or self.decoding.look_ahead, terms)

    def find_links(self, translations: Sequence[Translation]) -> list[tuple[Link, ...]]:
        """Return the links between the words of each line and its best translation.

        See `align_words`; text that was put back has no links.
        """
        parts_by_line = [translation.alternatives[0].parts for translation in translations]
        all_parts = [*chain.from_iterable(parts_by_line)]
        links = iter(align_words(all_parts, self.engine, self.tokenizer))
        links_by_line = list[tuple[Link, ...]]()
        for translation, parts in zip(translations, parts_by_line, strict=True):
            of_parts = [*islice(links, len(parts))]
            sources = map_spans_to_line(
                [[link.source for link in of_part] for of_part in of_parts],
                [part.source_text for part in parts],
                translation.source,
            )
            targets = map_spans_to_line(
                [[link.target for link in of_part] for of_part in of_parts],
                [self.tokenizer.decode_target(part.hypothesis.ids) for part in parts],
                translation.text,
            )
            pairs = zip(chain.from_iterable(sources), chain.from_iterable(targets), strict=True)
            of_line = [Link(source, target) for source, target in pairs if source and target]
            for use in translation.terms:
                if use.places and use.way == "placed":
                    of_line.append(Link(*use.places))
            links_by_line.append(tuple(sorted(of_line, key=lambda link: link.target)))
        return links_by_line

    def _stream(
        self, pairs: Iterable[tuple[str, str]], n_best: int, look_ahead: int, terms: Terms
    ) -> Iterator[Translation]:
        preparation = Preparation(
            self.tokenizer,
            self.decoding,
            self.longest_source,
            self.direction,
            self.splits_sentences,
            self.line_shape,
        )
        search = RetryingSearch(self.engine, self.tokenizer, self.decoding, terms)
        finish = partial(self._finish, n_best=n_best)
        pairs, done = iter(pairs), 0
        while window := list(islice(pairs, look_ahead)):
            finished = dict[int, Translation]()
            for number, (text, prefix) in enumerate(window, done + 1):
                is_free = self.memory and not prefix.strip()
                target = find_whole(self.memory, text) if is_free else None
                if target is not None:
                    only = (RankedTranslation(target, 0.0, ()),)
                    known = Translation(number, text, target, "memory", 0.0, alternatives=only)
                    finished[number - done - 1], window[number - done - 1] = known, ("", "")
            lines = preparation.prepare(window)
            inputs = [item for line in lines for item in line.inputs]
            owners = [number for number, line in enumerate(lines) for _ in line.inputs]
            results: list[list[tuple[int, SearchResult]]] = [[] for _ in lines]
            # A window without words does not call the engine.
            for index, result in search.find(inputs, n_best) if inputs else ():
                number = owners[index]
                results[number].append((index, result))
                # A line is finished while the engine searches for others.
                if len(results[number]) == len(lines[number].inputs):
                    of_line = [result for _, result in sorted(results[number])]
                    finished[number] = finish(done + number + 1, lines[number], of_line)
            for number, line in enumerate(lines):
                if number not in finished:
                    finished[number] = finish(done + number + 1, line, [])
            translations = [finished[number] for number in range(len(lines))]
            tagged = [line for line in translations if isinstance(line.source, TaggedText)]
            links = iter(self.find_links(tagged))
            for translation in translations:
                is_tagged = isinstance(translation.source, TaggedText)
                yield replace(translation, links=next(links)) if is_tagged else translation
            done += len(lines)

    def _finish(
        self, line_number: int, line: PreparedLine, results: list[SearchResult], *, n_best: int
    ) -> Translation:
        # The best combinations of one translation of each part, by the sum of their scores.
        choices: list[tuple[TranslatedPart, ...]] = [()]
        for result in results:
            longer = [(*choice, part) for choice in choices for part in result.alternatives]
            if len(longer) > 1:
                longer.sort(key=lambda choice: -sum(part.hypothesis.score for part in choice))
            choices = longer[:n_best]
        alternatives = list[RankedTranslation]()
        upper = partial(in_upper_case, language=self.direction.target)
        *before, after = line.gaps
        for parts in choices:
            pieces: list[str] = []
            for gap, part, item in zip(before, parts, line.inputs, strict=True):
                text = change_words(part.text, upper) if item.from_capitals else part.text
                if len(parts) > 1 or self.decoding.split_sentences != "off":
                    text = text.rstrip() if item.prefix else text.strip()
                if text or gap.strip():
                    pieces += gap, text
            score = sum([part.hypothesis.score for part in parts], start=0.0)
            alternatives.append(RankedTranslation("".join([*pieces, after]), score, parts))
        best = alternatives[0]
        uses = report_terms(line.text, best.text, best.parts)
        status, notes = self._judge(line, results, best.text, uses)
        confidence = None
        if self.calibration and line.text.strip():
            has_text = best.text.strip() and (best.parts or status != "copied")
            confidence = self.calibration.expect(mean_log_prob(best.parts)) if has_text else 0.0
        return Translation(
            line_number=line_number,
            source=line.line,
            text=best.text,
            status=status,
            score=best.score,
            notes=line.notes + notes,
            alternatives=tuple(alternatives),
            sentences=line.sentences,
            terms=uses,
            confidence=confidence,
        )

    def _judge(
        self, line: PreparedLine, results: list[SearchResult], text: str, uses: Sequence[TermUse]
    ) -> tuple[Status, tuple[str, ...]]:
        """Return the first status that applies to a line, and the notes on all that is found."""
        if not line.text.strip():
            return "empty", ()
        bests = [result.alternatives[0].hypothesis for result in results]
        is_same = text.strip() == line.text.strip() and any(map(str.isalpha, text))
        repeated = [result for result in results if result.repeated]
        loops = any(is_loop(result.alternatives[0]) for result in repeated)
        untranslated = list[str]()
        if self.calibration and not is_same:
            untranslated = self.calibration.find_untranslated(line.line, text)
        altered = missing_verbatim(line.text, text)
        missed = [f"{use.target}` for `{use.source}" for use in uses if use.fate == "missed"]
        restored = [part for result in results for part in result.restored]
        numbers = missing_numbers(line.text, text)
        has_invalid = any(self.tokenizer.target.has_invalid_bytes(best.ids) for best in bests)
        unknown = name_characters(line.unknown) if line.unknown else ""
        table: list[tuple[object, Status, str]] = [
            (not text.strip(), "empty", "the translation is empty"),
            (not all(best.finished for best in bests), "length-limited", _LIMITED_NOTE),
            (repeated, "repeated", _LOOP_NOTE if loops else _REPEATED_NOTE),
            (is_same and line.inputs, "copied", "the translation is the line itself"),
            (line.is_foreign, "copied", "a text in unknown characters is not translated"),
            (untranslated, "untranslated", f"not translated: {' '.join(untranslated[:_NAMED])}"),
            (altered, "altered", f"not in the translation: {listed(altered)}"),
            (missed, "missed-term", f"terms not in the translation: {listed(missed)}"),
            (numbers, "ok", f"numbers not in the translation: {listed(numbers)}"),
            (restored, "ok", f"put back into the translation: {listed(restored)}"),
            (has_invalid, "ok", "bytes that form no character are left out"),
            (unknown, "ok", f"unknown to the tokenizer: {unknown}"),
            (line.cut, "ok", line.cut),
        ]
        rows = [(status, note) for applies, status, note in table if applies]
        return rows[0][0] if rows else "ok", tuple(note for _, note in rows)


_NAMED = 8
"""Words of an untranslated sentence in a note."""
_NO_CONFIDENCE = "%s has no fitting calibration; `mt evaluate %s --calibrate` makes one"
_LIMITED_NOTE = (
    "the translation reached its length limit (`decoding.max_length_*`, or the end of learned "
    "positions) and is cut there"
)
_REPEATED_NOTE = (
    "the translation repeated itself or was too long; it was decoded again with "
    f"`decoding.no_repeat_ngram` {BLOCKED_NGRAM}"
)
_LOOP_NOTE = (
    "the translation repeats itself; a search with `decoding.no_repeat_ngram` "
    f"{BLOCKED_NGRAM} found no better one"
)


def check_n_best(n_best: int, decoding: DecodingConfig) -> None:
    """Raise UserError unless the search finds `n_best` translations of a sentence."""
    assert n_best >= 1, "a line has at least one translation"
    if n_best > 1 and decoding.search == "greedy":
        raise UserError("greedy search finds one translation; more need `decoding.search` beam")
    if n_best > decoding.beam and decoding.search == "beam":
        raise UserError(
            f"beam search finds as many translations as its beam: for {n_best} of them "
            f"`decoding.beam` must be at least {n_best}, it is {decoding.beam}"
        )
