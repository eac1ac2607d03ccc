"""Terms of a glossary in translations: shown to models that learned them, else put in place.

A model trained with `data.terms` reads each target term between two tags behind its source term
(Dinu et al. 2019, "Training Neural Machine Translation to Apply Terminology Constraints"). A term
that a translation lacks replaces the words that are aligned with the source term.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain
from operator import itemgetter

from mt.config.data import Direction
from mt.data.glossary import Glossary, Match, Term
from mt.data.tokenizer import Tokenizer
from mt.data.verbatim import copied_spans
from mt.data.words import is_unspaced
from mt.decoding.alignment import WordAligner, map_spans_to_line, source_tokens
from mt.decoding.engine import TermUse, TranslatedPart
from mt.decoding.preparation import SearchInput
from mt.special_ids import UNK


@dataclass(frozen=True, slots=True)
class Terms:
    """Use of a glossary in the search of a translator."""

    glossary: Glossary
    tokenizer: Tokenizer
    aligner: WordAligner
    longest_source: int
    """Largest number of tokens of a source, including EOS."""

    def annotate_source(self, item: SearchInput) -> Sequence[int]:
        """Return the tokens of a source text with the target terms behind their source terms.

        They are unchanged for a model that did not learn terms. A term is left out if there are
        too many tokens, or if it has unknown characters.
        """
        text, ids, tags = item.text, item.ids, self.tokenizer.term_ids
        if not tags or not (matches := _find(self.glossary, item, text)):
            return ids
        owners, shown, copied = source_tokens(text, ids, self.tokenizer), list[int](), 0
        for match in matches:
            target = self.glossary.write_target(match, text, match.start)
            term = self.tokenizer.encode_term(target)
            visible = len("".join(text[: match.end].split()))
            end = max(chain(*owners[:visible]), default=-1) + 1
            count = len(shown) + len(ids) - copied + len(term) + 2
            if end > copied and count <= self.longest_source and UNK not in term:
                shown += [*ids[copied:end], tags[0], *term, tags[1]]
                copied = end
        return [*shown, *ids[copied:]]

    def insert_missing(self, item: SearchInput, part: TranslatedPart) -> TranslatedPart:
        """Return the translation of an input with the terms that it lacks.

        They replace the words that are aligned with their source terms; nothing else changes. A
        forced beginning, numbers, addresses and placeholders stay.
        """
        matches = _find(self.glossary, item, part.source_text)
        if not matches:
            return part
        targets = dict.fromkeys(target for match in matches for target in match.term.targets)
        terms = tuple(Term(target, ()) for target in targets)
        backwards = Direction(*reversed(self.glossary.direction))
        free = _find(Glossary(terms, backwards), item, part.text)
        edits = dict[int, tuple[int, int, str]]()
        for number, match in enumerate(matches):
            order = match.term.targets
            if written := [target for target in free if target.term.source in order]:
                best = min(written, key=lambda target: order.index(target.term.source))
                free.remove(best)
                edits[number] = best.start, best.end, ""
        fixed = [(0, len(self.tokenizer.decode_target(item.prefix))), *copied_spans(part.text)]
        fixed += [(start, end) for start, end, _ in edits.values()]
        asked = [number for number in range(len(matches)) if number not in edits]
        words = [[(m.start, m.end) for m in matches if m.term is matches[n].term] for n in asked]
        for number, run in zip(asked, self.aligner.align(part, words, fixed), strict=True):
            if run:
                target = self.glossary.write_target(matches[number], part.text, run[0])
                around = part.text[max(run[0] - len(target) + 1, 0) : run[1] + len(target) - 1]
                is_inside = is_unspaced(target[0]) and target in around
                edits[number] = *run, "" if is_inside else target
        uses = [TermUse(match.text, match.term.targets[0], "missed", "") for match in matches]
        text, copied = "", 0
        for number, (start, end, target) in sorted(edits.items(), key=itemgetter(1)):
            new, way = (target, "placed") if target else (part.text[start:end], "model")
            text += part.text[copied:start]
            place = len(text), len(text) + len(new)
            places = (matches[number].start, matches[number].end), place
            uses[number] = replace(uses[number], target=new, fate="used", way=way, places=places)
            text, copied = text + new, end
        return replace(part, text=text + part.text[copied:], terms=tuple(uses))


def _find(glossary: Glossary, item: SearchInput, text: str) -> list[Match]:
    """Return the terms in a text of an input; in a text from capitals, case does not count."""
    upper = text.upper() if item.from_capitals else text
    matches = glossary.find(upper if len(upper) == len(text) else text)
    return [replace(match, text=text[match.start : match.end]) for match in matches]


def report_terms(
    line: str, translation: str, parts: Sequence[TranslatedPart]
) -> tuple[TermUse, ...]:
    """Return what became of the terms of a line, with their places in it and its translation."""
    if not any(part.terms for part in parts):
        return ()
    places = [[use.places for use in part.terms if use.places] for part in parts]
    texts = [part.source_text for part in parts], [part.text for part in parts]
    sources, targets = (
        chain.from_iterable(
            map_spans_to_line([[both[side] for both in of] for of in places], texts[side], whole)
        )
        for side, whole in enumerate((line, translation))
    )
    uses = list[TermUse]()
    for use in chain.from_iterable(part.terms for part in parts):
        source, target = (next(sources), next(targets)) if use.places else (None, None)
        if source and target:
            left, right = line[slice(*source)], translation[slice(*target)]
            use = replace(use, source=left, target=right, places=(source, target))
        uses.append(use)
    return tuple(uses)
