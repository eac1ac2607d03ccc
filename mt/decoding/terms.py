"""Terms of a glossary in translations: shown to models that learned it, else put in their place.

A model trained with `data.terms` reads each target term between two tags behind its source term
(Dinu et al. 2019, "Training Neural Machine Translation to Apply Terminology Constraints"). Where a
translation lacks a term, the words that are aligned with the source term are replaced.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain, compress

from mt.data.glossary import WORD, Glossary, Match, Span
from mt.data.tokenizer import Tokenizer
from mt.data.verbatim import is_unspaced, verbatim_spans
from mt.decoding.alignment import Link, align_words, map_spans_to_line, source_tokens
from mt.decoding.engine import Engine, TranslatedPart
from mt.special_ids import UNK


@dataclass(frozen=True, slots=True)
class TermUse:
    """Term of a line and what became of it."""

    source: str
    """The term as the line has it."""
    target: str
    """The target term as the translation has it; the preferred one if it has none."""
    fate: str
    """`used` as the glossary has it, `inflected`, or `missed` in the translation."""
    way: str
    """Written by the `model`, or `placed` instead of other words; empty if missed."""
    link: Link | None = None
    """Places in the line and in its translation, unless missed."""

    def as_text(self) -> str:
        """Return the use as part of a report."""
        way = f" ({self.way})" if self.way else ""
        return f"{self.source} → {self.target}: {self.fate}{way}"

    def as_record(self) -> dict[str, str]:
        """Return the use as plain data."""
        return {key: getattr(self, key) for key in ("source", "target", "fate", "way")}


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
        if not tags or not matches:
            return ids
        owners, shown, copied = source_tokens(text, ids, self.tokenizer), list[int](), 0
        for match in matches:
            target = self.glossary.write_target(match, starts_sentence=match.is_first)
            term = self.tokenizer.encode_term(target)
            visible = len("".join(text[: match.end].split()))
            end = max(chain(*owners[:visible]), default=-1) + 1
            count = len(shown) + len(ids) - copied + len(term) + 2
            if end > copied and count <= self.longest_source and UNK not in term:
                shown += [*ids[copied:end], tags[0], *term, tags[1]]
                copied = end
        return [*shown, *ids[copied:]]

    def place(self, parts: Sequence[TranslatedPart]) -> list[TranslatedPart]:
        """Return translations with the terms that they lack.

        A term replaces the words aligned with its source term, unless these have a part in another
        term, a number, an address or a placeholder. Without such words it stays missing.
        """
        found = [self.glossary.find(part.source_text) for part in parts]
        places = list(map(self.glossary.locate, found, (part.text for part in parts)))
        lacking = [index for index, of_part in enumerate(places) if None in of_part]
        aligned = align_words([parts[index] for index in lacking], self.engine, self.tokenizer)
        placed = [*parts]
        for index, links in zip(lacking, aligned, strict=True):
            missing = [*compress(found[index], (not place for place in places[index]))]
            taken = [place[0] for place in places[index] if place]
            placed[index] = self._replace(parts[index], missing, taken, links or ())
        return placed

    def _replace(
        self,
        part: TranslatedPart,
        missing: Sequence[Match],
        taken: Sequence[Span],
        links: Sequence[Link],
    ) -> TranslatedPart:
        text, written = part.text, self.tokenizer.decode_target(part.hypothesis.ids)
        [spans] = map_spans_to_line([[link.target for link in links]], [written], text)
        words, edits = [word.span() for word in WORD.finditer(text)], list[tuple[int, int, str]]()
        taken = [*verbatim_spans(text), *taken]
        for match in missing:
            own = [
                span
                for span, link in zip(spans, links, strict=True)
                if span and link.source[0] < match.end and match.start < link.source[1]
            ]
            is_own = [
                any(map(str.isalnum, text[start:end]))
                and any(first <= start < last for first, last in own)
                and not any(first < end and start < last for first, last in taken)
                for start, end in words
            ]
            # No more words than the term has: models align articles with the word after them.
            most = max(len(term.split()) for term in (match.text, match.term.targets[0]))
            most = sum(is_own) if any(map(is_unspaced, text)) else most
            places = [
                (words[first][0], words[last][1])
                for first in range(len(words))
                for last in range(first, min(first + most, len(words)))
                if all(is_own[first : last + 1])
            ]
            if places:
                start, end = max(places, key=lambda place: place[1] - place[0])
                is_first = not any(map(str.isalnum, text[:start])) and text[start].isupper()
                target = self.glossary.write_target(match, starts_sentence=is_first)
                edits.append((start, end, target))
                taken.append((start, end))
        for start, end, target in sorted(edits, reverse=True):
            text = text[:start] + target + text[end:]
        return replace(part, text=text, placed=tuple(target for *_, target in edits))

    def judge(
        self, line: str, translation: str, parts: Sequence[TranslatedPart]
    ) -> tuple[TermUse, ...]:
        """Return what became of each term of a line in its translation, which has some parts."""
        left = Counter(target.casefold() for part in parts for target in part.placed)
        matches, uses = self.glossary.find(line), []
        for match, place in zip(matches, self.glossary.locate(matches, translation), strict=True):
            fate, way, target, link = "missed", "", match.term.targets[0], None
            if place:
                target = translation[slice(*place[0])]
                fate = "inflected" if place[1] else "used"
                way = "placed" if left[target.casefold()] > 0 else "model"
                left[target.casefold()] -= 1
                link = Link((match.start, match.end), place[0])
            uses.append(TermUse(match.text, target, fate, way, link))
        return tuple(uses)
