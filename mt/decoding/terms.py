"""Terms of a glossary in translations: shown to models that learned it, else put in their place.

A model trained with `data.terms` reads each target term between two tags behind its source term
(Dinu et al. 2019, "Training Neural Machine Translation to Apply Terminology Constraints"). Where a
translation lacks a term, the words that are aligned with the source term are replaced.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from mt.data.glossary import Glossary, Match, Span
from mt.data.tokenizer import Tokenizer
from mt.data.verbatim import is_unspaced, verbatim_spans
from mt.decoding.alignment import Link, align_words, map_spans_to_line, source_tokens
from mt.decoding.engine import Engine, TranslatedPart
from mt.errors import listed
from mt.special_ids import UNK


@dataclass(frozen=True, slots=True)
class TermUse:
    """Term of a line and what became of it."""

    source: str
    """The term as the line has it."""
    target: str
    """The target term as the translation has it, or the preferred one that it lacks."""
    fate: Literal["used", "inflected", "missed"]
    """As the glossary has it, in another form, or not in the translation."""
    way: Literal["model", "placed", ""]
    """Written by the model, or put in place of other words; empty if missed."""
    link: Link | None = None
    """Places in the line and in its translation, unless missed."""

    def as_text(self) -> str:
        """Return the use as part of a report."""
        way = f" ({self.way})" if self.way else ""
        return f"{self.source} → {self.target}: {self.fate}{way}"

    def as_record(self) -> dict[str, str]:
        """Return the use as plain data."""
        return {key: getattr(self, key) for key in ("source", "target", "fate", "way")}


def describe_missed(uses: Sequence[TermUse]) -> str:
    """Return a note on the terms that a translation lacks, or nothing."""
    missed = [f"{use.target}` for `{use.source}" for use in uses if use.fate == "missed"]
    return f"terms not in the translation: {listed(missed)}" if missed else ""


_Places = Sequence[tuple[Match, tuple[Span, bool] | None]]
"""Terms of a text, and their places in its translation."""


@dataclass(frozen=True, slots=True)
class Terms:
    """Use of a glossary in the search of a translator."""

    glossary: Glossary
    tokenizer: Tokenizer
    engine: Engine
    longest_source: int
    """Largest number of tokens of a source, including EOS."""

    def show(self, text: str, ids: Sequence[int]) -> Sequence[int]:
        """Return the tokens of a source text with the target terms behind their source terms.

        They are unchanged for a model that did not learn terms. A term is left out if there are
        too many tokens, or if it has unknown characters.
        """
        matches = self.glossary.find(text) if self.tokenizer.term_ids else []
        owners = source_tokens(text, self.tokenizer) if matches else []
        shown, copied = list[int](), 0
        for match in matches:
            target = self.glossary.write_target(match, starts_sentence=match.is_first)
            term = self.tokenizer.encode_term(target)
            first, last = (len("".join(text[:place].split())) for place in (match.start, match.end))
            tokens = {token for of_one in owners[first:last] for token in of_one if token >= copied}
            rest = len(ids) - copied + len(term) + 2
            if tokens and len(shown) + rest <= self.longest_source and UNK not in term:
                start, end = min(tokens), max(tokens) + 1
                shown += [*ids[copied:start], *self.tokenizer.show_term(ids[start:end], term)]
                copied = end
        return [*shown, *ids[copied:]] if shown else ids

    def place(self, parts: Sequence[TranslatedPart]) -> list[tuple[TranslatedPart, list[str]]]:
        """Return translations with the terms that they lack, and these terms.

        A term replaces the words aligned with its source term, unless these have a part in another
        term, a number, an address or a placeholder. Without such words it stays missing.
        """
        terms: list[_Places] = []
        for part in parts:
            matches = self.glossary.find(part.source_text)
            places = self.glossary.locate(matches, part.text)
            terms.append([*zip(matches, places, strict=True)])
        lacking = [i for i, of_part in enumerate(terms) if any(not place for _, place in of_part)]
        aligned = align_words([parts[index] for index in lacking], self.engine, self.tokenizer)
        links = dict(zip(lacking, aligned, strict=True))
        return [
            self._replace(part, terms[index], links.get(index) or ())
            for index, part in enumerate(parts)
        ]

    def _replace(
        self, part: TranslatedPart, terms: _Places, links: Sequence[Link]
    ) -> tuple[TranslatedPart, list[str]]:
        text, written = part.text, self.tokenizer.decode_target(part.hypothesis.ids)
        [spans] = map_spans_to_line([[link.target for link in links]], [written], text)
        pairs = [(span, link.source) for span, link in zip(spans, links, strict=True) if span]
        words: list[tuple[Span, Span]] = []
        for start, end in self.glossary.split(text):
            owners = [source for (first, last), source in pairs if first <= start < last]
            words.append(((start, end), owners[0] if owners else (0, 0)))
        occupied = [*verbatim_spans(text), *(place[0] for _, place in terms if place)]
        edits: list[tuple[int, int, str]] = []
        for match, place in terms:
            start, end = (0, 0) if place else _find_words(match, words, text)
            if start < end and not any(start < last and first < end for first, last in occupied):
                is_first = not any(map(str.isalnum, text[:start])) and text[start].isupper()
                target = self.glossary.write_target(match, starts_sentence=is_first)
                edits.append((start, end, target))
                occupied.append((start, end))
        for start, end, target in sorted(edits, reverse=True):
            text = text[:start] + target + text[end:]
        return replace(part, text=text), [target for *_, target in edits]

    def judge(self, line: str, translation: str, placed: Sequence[str]) -> tuple[TermUse, ...]:
        """Return what became of each term of a line in its translation.

        `placed` are the target terms that were put into it.
        """
        left, uses = Counter(map(str.casefold, placed)), []
        matches = self.glossary.find(line)
        for match, place in zip(matches, self.glossary.locate(matches, translation), strict=True):
            if place is None:
                uses.append(TermUse(match.text, match.term.targets[0], "missed", ""))
                continue
            span, is_other = place
            target = translation[slice(*span)]
            is_placed = left[target.casefold()] > 0
            left[target.casefold()] -= 1
            link = Link((match.start, match.end), span)
            fate: Literal["used", "inflected"] = "inflected" if is_other else "used"
            uses.append(TermUse(match.text, target, fate, "placed" if is_placed else "model", link))
        return tuple(uses)


def _find_words(match: Match, words: Sequence[tuple[Span, Span]], text: str) -> Span:
    """Return the longest run of words that are aligned with a source term, as a part of a text.

    The words have the places of their source tokens. The run has as many words as the term,
    because models align articles and the like with the word after them.
    """
    runs: list[list[Span]] = [[]]
    for (start, end), (first, last) in words:
        if first < match.end and match.start < last and any(map(str.isalnum, text[start:end])):
            runs[-1].append((start, end))
        else:
            runs.append([])
    count = max(len(term.split()) for term in (match.text, match.term.targets[0]))
    count = len(words) if any(map(is_unspaced, text)) else count
    windows = [
        (run[first][0], run[first : first + count][-1][1])
        for run in runs
        for first in range(max(min(1, len(run)), len(run) - count + 1))
    ]
    return max(windows, key=lambda window: window[1] - window[0], default=(0, 0))
