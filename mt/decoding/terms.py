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
    """The target term as the translation has it; the preferred one if it is missed."""
    fate: Literal["used", "inflected", "missed"]
    """As the glossary has it, in another form, or not in the translation."""
    way: Literal["model", "placed", ""]
    """Written by the model, or put in place of other words; empty if missed."""
    link: Link | None = None
    """Places of both in the line and its translation."""

    def as_text(self) -> str:
        """Return the use as part of a report."""
        way = f" ({self.way})" if self.way else ""
        return f"{self.source} → {self.target}: {self.fate}{way}"

    def as_record(self) -> dict[str, str]:
        """Return the use as plain data."""
        return {name: getattr(self, name) for name in ("source", "target", "fate", "way")}


def describe_missed(uses: Sequence[TermUse]) -> str:
    """Return a note on the terms that a translation lacks, or nothing."""
    missed = [f"{use.target}` for `{use.source}" for use in uses if use.fate == "missed"]
    return f"terms not in the translation: {listed(missed)}" if missed else ""


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
        tags = self.tokenizer.term_ids
        matches = self.glossary.find(text) if tags else []
        if tags is None or not matches:
            return ids
        tokens = source_tokens(text, self.tokenizer)
        targets = [
            self.glossary.write_target(match, is_first=_is_first(text, match.start))
            for match in matches
        ]
        shown, copied = list[int](), 0
        free = self.longest_source - len(ids)
        for match, term in zip(matches, self.tokenizer.encode_terms(targets), strict=True):
            visible = len("".join(text[: match.end].split()))
            end = max((n for of_one in tokens[:visible] for n in of_one), default=-1) + 1
            if len(term) + 2 <= free and end and UNK not in term:
                shown += [*ids[copied:end], tags[0], *term, tags[1]]
                copied = max(copied, end)
                free -= len(term) + 2
        return [*shown, *ids[copied:]]

    def place(self, parts: Sequence[TranslatedPart]) -> list[tuple[TranslatedPart, Counter[str]]]:
        """Return translations with the terms that they lack, and count these terms.

        A term replaces the words aligned with its source term, unless these have a part in another
        term, a number, an address or a placeholder. Without such words it stays missing.
        """
        placed = [(part, Counter[str]()) for part in parts]
        lacking: dict[int, tuple[list[Match], list[tuple[Span, bool] | None]]] = {}
        for index, part in enumerate(parts):
            matches = self.glossary.find(part.source_text)
            places = self.glossary.locate(matches, part.text) if matches else []
            if None in places:
                lacking[index] = matches, places
        links = align_words([parts[index] for index in lacking], self.engine, self.tokenizer)
        for (index, (matches, places)), of_part in zip(lacking.items(), links, strict=True):
            if of_part:
                placed[index] = self._replace(parts[index], matches, places, of_part)
        return placed

    def _replace(
        self,
        part: TranslatedPart,
        matches: Sequence[Match],
        places: Sequence[tuple[Span, bool] | None],
        links: Sequence[Link],
    ) -> tuple[TranslatedPart, Counter[str]]:
        text, written = part.text, self.tokenizer.decode_target(part.hypothesis.ids)
        [spans] = map_spans_to_line([[link.target for link in links]], [written], text)
        pairs = [(link.source, span) for link, span in zip(links, spans, strict=True) if span]
        occupied = [*verbatim_spans(text), *(place[0] for place in places if place)]
        pieces = self.glossary.split(text)
        placed, counts = text, Counter[str]()
        edits: list[tuple[Span, str]] = []
        for match, place in zip(matches, places, strict=True):
            run = None if place else _find_run(match, pieces, pairs, text)
            if run and not any(run[0] < end and start < run[1] for start, end in occupied):
                edits.append((run, self._write(match, part, run[0])))
                occupied.append(run)
        for (start, end), target in sorted(edits, reverse=True):
            placed = placed[:start] + target + placed[end:]
            counts[target] += 1
        return replace(part, text=placed), counts

    def _write(self, match: Match, part: TranslatedPart, start: int) -> str:
        """Return the target term of a match for a place in a translation."""
        is_first = _is_first(part.text, start) and part.text[start].isupper()
        is_word = match.text[1:] == match.text[1:].lower()
        if is_word and not is_first and _is_first(part.source_text, match.start):
            # A capital at the start of a sentence is not that of the word.
            match = replace(match, text=match.text[:1].lower() + match.text[1:])
        return self.glossary.write_target(match, is_first=is_first)

    def judge(self, line: str, translation: str, placed: Counter[str]) -> tuple[TermUse, ...]:
        """Return what became of each term of a line in its translation.

        `placed` counts the target terms that were put into it.
        """
        matches = self.glossary.find(line)
        if not matches:
            return ()
        left = Counter({target.casefold(): count for target, count in placed.items()})
        uses = []
        for match, place in zip(matches, self.glossary.locate(matches, translation), strict=True):
            if place is None:
                uses.append(TermUse(match.text, match.term.targets[0], "missed", ""))
                continue
            span, is_other = place
            target = translation[slice(*span)]
            left[target.casefold()] -= 1
            way: Literal["model", "placed"]
            way = "placed" if left[target.casefold()] >= 0 else "model"
            fate: Literal["used", "inflected"] = "inflected" if is_other else "used"
            link = Link((match.start, match.end), span)
            uses.append(TermUse(match.text, target, fate, way, link))
        return tuple(uses)


def _is_first(text: str, start: int) -> bool:
    return not any(map(str.isalnum, text[:start]))


def _find_run(
    match: Match, pieces: Sequence[Span], pairs: Sequence[tuple[Span, Span]], text: str
) -> Span | None:
    """Return the longest run of words that are aligned with a source term more than with others."""
    own = Counter[int]()
    for (start, end), (first, last) in pairs:
        is_own = start < match.end and match.start < end
        for index, (begin, stop) in enumerate(pieces):
            own[index] += (1 if is_own else -1) * max(0, min(last, stop) - max(first, begin))
    runs: list[list[int]] = [[]]
    for index, (start, end) in enumerate(pieces):
        if own[index] > 0 and any(map(str.isalnum, text[start:end])):
            runs[-1].append(index)
        else:
            runs.append([])
    longest = max(runs, key=lambda run: sum(own[index] for index in run))
    # Models align articles and the like with the word after them.
    count = max(len(target.split()) for target in (match.text, *match.term.targets[:1]))
    if len(longest) > count and not any(is_unspaced(text[pieces[at][0]]) for at in longest):
        windows = [longest[at : at + count] for at in range(len(longest) - count + 1)]
        longest = max(windows[::-1], key=lambda run: pieces[run[-1]][1] - pieces[run[0]][0])
    return (pieces[longest[0]][0], pieces[longest[-1]][1]) if longest else None
