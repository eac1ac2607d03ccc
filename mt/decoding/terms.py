"""Terms of a glossary in translations: shown to models that learned it, else put in their place.

A model trained with `data.terms` reads each target term between two tags behind its source term
(Dinu et al. 2019, "Training Neural Machine Translation to Apply Terminology Constraints"). Where a
translation lacks a term, a further search goes on behind the term.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, islice
from operator import itemgetter

from mt.config import DecodingConfig
from mt.data.glossary import WORD, Glossary, Match, Span
from mt.data.tokenizer import Tokenizer
from mt.data.verbatim import copied_spans, extract_verbatim
from mt.decoding.alignment import Link, align_words, map_spans_to_line, source_tokens
from mt.decoding.engine import Engine, TranslatedPart
from mt.decoding.preparation import in_one_line
from mt.special_ids import UNK

_HYPHENS = frozenset("-\u2010\u2011")
_SHORTEST = 0.6
"""Least length, relative to that of the translation with the term in the place of other words."""


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
class _Edit:
    """Translation with a term in the place of other words."""

    part: TranslatedPart
    match: Match
    start: int
    end: int
    """Place of the term in the text."""
    is_aligned: bool
    """True if the words were aligned with the source term."""


@dataclass(frozen=True, slots=True)
class Terms:
    """Use of a glossary in the search of a translator."""

    glossary: Glossary
    decoding: DecodingConfig
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
        """Return translations with the terms that they lack, each written by a further search.

        The search goes on behind the term, in the place of a word that is aligned with the source
        term or, without one, of any word. The most probable translation counts that has an end, is
        not much shorter, and has all numbers, addresses, placeholders and other terms. If there is
        none, the term replaces the aligned words.
        """
        placed, found = [*parts], [self.glossary.find(part.source_text) for part in parts]
        for turn in range(max(map(len, found), default=0)):
            places = map(self.glossary.locate, found, (part.text for part in placed))
            lacking = [i for i, own in enumerate(places) if turn < len(own) and not own[turn]]
            aligned = align_words([placed[i] for i in lacking], self.engine, self.tokenizer)
            edits = [
                self._find_edits(placed[index], found[index][turn], links or ())
                for index, links in zip(lacking, aligned, strict=True)
            ]
            searched = iter(self._go_on([*chain.from_iterable(edits)]))
            for index, own in zip(lacking, edits, strict=True):
                results = [
                    part
                    for edit, part in zip(own, islice(searched, len(own)), strict=True)
                    if len(part.text) >= _SHORTEST * len(edit.part.text)
                ]
                results.sort(key=lambda part: -part.hypothesis.mean_log_prob)
                replaced = [edit.part for edit in own if edit.is_aligned]
                is_better = partial(self._is_better, placed[index], found[index])
                placed[index] = next(filter(is_better, results + replaced), placed[index])
        return placed

    def _find_edits(self, part: TranslatedPart, match: Match, links: Sequence[Link]) -> list[_Edit]:
        """Return the translation with a term in the place of aligned words, else of each word.

        As many words as the term has come first: models align articles with the word behind them.
        """
        text, written = part.text, self.tokenizer.decode_target(part.hypothesis.ids)
        [spans] = map_spans_to_line([[link.target for link in links]], [written], text)
        own = [
            span
            for span, link in zip(spans, links, strict=True)
            if span and _overlaps(link.source, [(match.start, match.end)])
        ]
        words, copied = [word.span() for word in WORD.finditer(text)], copied_spans(text)
        words = [word for word in words if not _overlaps(word, copied)]
        words = [word for word in words if any(map(str.isalnum, text[slice(*word)]))]
        is_own = [_overlaps(word, own) for word in words]
        edits = list[tuple[int, _Edit]]()
        for first, (start, _) in enumerate(words):
            before = text[words[first - 1][1] : start] if first and is_own[first - 1] else ""
            if (is_own[first] and before not in _HYPHENS) or not any(is_own):
                last = [*is_own, False].index(False, first + 1) - 1
                end = words[last][1]
                is_first = not any(map(str.isalnum, text[:start])) and text[start].isupper()
                target = self.glossary.write_target(match, starts_sentence=is_first)
                edited = replace(
                    part,
                    text=text[:start] + target + text[end:],
                    placed=(*part.placed, match.term.source),
                )
                edit = _Edit(edited, match, start, start + len(target), is_own[first])
                count = max(len(match.text.split()), len(WORD.findall(target)))
                edits.append((abs(last + 1 - first - count), edit))
        return [edit for _, edit in sorted(edits, key=itemgetter(0))]

    def _go_on(self, edits: Sequence[_Edit]) -> list[TranslatedPart]:
        """Search for translations that begin as edited ones do, up to the end of the term."""
        beginnings = [edit.part.text[: edit.end] for edit in edits]
        prefixes = [ids[:-1] for ids in self.tokenizer.encode_target(beginnings)]
        hypotheses = self.engine.translate_ids(
            [edit.part.source for edit in edits],
            self.decoding,
            prefixes=[(*self.tokenizer.target_prefix, *ids) for ids in prefixes],
        )
        parts = list[TranslatedPart]()
        for edit, beginning, hypothesis in zip(edits, beginnings, hypotheses, strict=True):
            text = in_one_line(self.tokenizer.decode_target(hypothesis.ids))
            # The search may lengthen the term to another word.
            word = WORD.match(text, edit.end) if text.startswith(beginning) else None
            if word and not self.glossary.locate([edit.match], text[edit.start : word.end()])[0]:
                text = beginning + text[word.end() :]
            kept = replace(hypothesis, score=edit.part.hypothesis.score)
            first = edit.part.unplaced or edit.part.hypothesis
            parts.append(replace(edit.part, text=text, hypothesis=kept, unplaced=first))
        return parts

    def _is_better(
        self, before: TranslatedPart, matches: Sequence[Match], part: TranslatedPart
    ) -> bool:
        """Test for a translation with more terms than before that loses nothing else."""
        lacking = [self.glossary.locate(matches, each.text).count(None) for each in (before, part)]
        copied = [
            Counter(text for _, text in extract_verbatim(each.text)[1]) for each in (before, part)
        ]
        ends = part.hypothesis.finished or not before.hypothesis.finished
        return ends and lacking[1] < lacking[0] and copied[0] <= copied[1]

    def judge(
        self, line: str, translation: str, parts: Sequence[TranslatedPart]
    ) -> tuple[TermUse, ...]:
        """Return what became of each term of a line in its translation, which has some parts."""
        if not self.glossary.terms:
            return ()
        left = Counter(source for part in parts for source in part.placed)
        matches, uses = self.glossary.find(line), []
        for match, place in zip(matches, self.glossary.locate(matches, translation), strict=True):
            fate, way, target, link = "missed", "", match.term.targets[0], None
            if place:
                target = translation[slice(*place[0])]
                fate = "inflected" if place[1] else "used"
                way = "placed" if left[match.term.source] > 0 else "model"
                left[match.term.source] -= 1
                link = Link((match.start, match.end), place[0])
            uses.append(TermUse(match.text, target, fate, way, link))
        return tuple(uses)


def _overlaps(span: Span, others: Sequence[Span]) -> bool:
    return any(first < span[1] and span[0] < last for first, last in others)
