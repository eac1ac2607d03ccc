"""Alignment and inline tags of a model of the quickstart, compared with the corpus's own alignment.

Sentences of the test split are made from pairs of patterns whose slots are filled with pairs of
phrases, so each phrase is aligned with its translation. Sentences with the translation of the
reference are compared. One line of JSON goes to stdout:

- `aer`: alignment error rate (Och and Ney 2003) between English words and Chinese characters of the
  phrases. A pair of the same phrase is possible, and sure if the phrase has one English word;
- `covered`: share of the phrases that are covered if each is put into a tag of its own;
- `exact`: share of those whose tags enclose nothing else, measure words excepted.
"""

import argparse
import json
import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mt import Translator
from mt.documents.tags import Links, Span, Tag, place_tags
from mt.errors import UserError, run_reporting_errors

CORPUS = Path(__file__).resolve().parent.parent / "data" / "quickstart"
AUXILIARIES = {"be", "was", "do", "dont", "have", "havent"}
"""Forms of a subject that are no part of its phrase."""


@dataclass(frozen=True)
class Phrase:
    """Phrase of a sentence and its translation."""

    source: Span
    target: Span


@dataclass(frozen=True)
class Gold:
    """Sentence pair with its alignment."""

    source: str
    target: str
    phrases: tuple[Phrase, ...]
    measure_words: frozenset[int]
    """Places of characters in the target."""


def gold_alignment() -> list[Gold]:
    """Return the sentences of the test split, except those from the list of phrases."""
    sys.path.insert(0, str(CORPUS))
    import generate  # type: ignore[import-not-found]

    drawn: dict[str, Gold] = {}
    render = generate.render

    def rendered(pattern: Any, fillers: Any) -> Any:
        pair = render(pattern, fillers)
        source, english = _slots(generate, pattern.english, fillers, "en")
        target, chinese = _slots(generate, pattern.chinese, fillers, "zh")
        if (source[0].upper() + source[1:], target) == (pair.english, pair.chinese):
            drawn[pair.english] = _gold(pair.english, pair.chinese, english, chinese)
        return pair

    generate.render = rendered
    # The test split is drawn before the training split, which is not needed.
    generate.SIZES = {**generate.SIZES, "train": len(generate.load_phrases())}
    generate.build()
    lines = (CORPUS / "test.en").read_text(encoding="utf-8").splitlines()
    return [drawn[line] for line in lines if line in drawn]


Slot = tuple[str, str, Span]
"""Name, form and place of a slot."""


def _slots(generate: Any, template: str, fillers: Any, language: str) -> tuple[str, list[Slot]]:
    text, place, slots = "", 0, []
    for match in generate.FIELD.finditer(template):
        text += template[place : match.start()]
        filler = generate.fill(match[0], fillers, language)
        if match[4] is None:  # no choice by number, such as `{s?want|wants}`
            slots.append((match[1], match[2] or "", (len(text), len(text) + len(filler))))
        text += filler
        place = match.end()
    return text + template[place:], slots


def _gold(source: str, target: str, english: list[Slot], chinese: list[Slot]) -> Gold:
    measures = [span for _, form, span in chinese if form == "mw"]
    names = [{name: span for name, form, span in slots if form not in {*AUXILIARIES, "mw"}}
             for slots in (english, chinese)]  # fmt: skip
    counts = (
        Counter(name for name, _, _ in english),
        Counter(name for name, form, _ in chinese if form != "mw"),
    )
    phrases = tuple(
        Phrase(span, names[1][name])
        for name, span in names[0].items()
        if counts[0][name] == counts[1][name] == 1
    )
    return Gold(source, target, phrases, frozenset(_places(measures)))


def _places(spans: Iterable[Span]) -> Iterator[int]:
    return (place for span in spans for place in range(*span))


def alignment_error_rate(golds: Sequence[Gold], links: Sequence[Links]) -> float:
    """Return 1 - (|A & S| + |A & P|) / (|A| + |S|) over the characters of the phrases."""
    sure = found = found_sure = found_possible = 0
    for gold, of_sentence in zip(golds, links, strict=True):
        words = [match.span() for match in re.finditer(r"[\w'-]+", gold.source)]
        aligned = {
            (word, place)
            for source, target in of_sentence
            for word in words
            if _overlap(word, source)
            for place in range(*target)
        }
        for phrase in gold.phrases:
            inside = [word for word in words if _overlap(word, phrase.source)]
            here = {(word, place) for word, place in aligned if place in range(*phrase.target)}
            possible = {pair for pair in here if pair[0] in inside}
            found, found_possible = found + len(here), found_possible + len(possible)
            if len(inside) == 1:
                sure += len(range(*phrase.target))
                found_sure += len(possible)
    return 1 - (found_sure + found_possible) / (found + sure)


def _overlap(one: Span, other: Span) -> bool:
    return one[0] < other[1] and other[0] < one[1]


def tag_shares(golds: Sequence[Gold], links: Sequence[Links]) -> dict[str, float]:
    """Return the share of tags that cover a phrase, and of those that cover nothing else."""
    tags = covered = exact = 0
    for gold, of_sentence in zip(golds, links, strict=True):
        for phrase in gold.phrases:
            start, end = phrase.source
            pair = Tag(start, "open", "<b>"), Tag(end, "close", "</b>")
            opened, closed = place_tags(gold.source, pair, gold.target, of_sentence)
            inside = {*range(opened[1][0], closed[1][0])}
            wanted = {*range(*phrase.target)}
            tags += 1
            covered += wanted <= inside
            exact += wanted <= inside and inside - wanted <= gold.measure_words
    return {"tags": tags, "covered": round(covered / tags, 4), "exact": round(exact / tags, 4)}


def main() -> int:
    """Compare the alignment of a run with that of the corpus."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("run", type=Path, help="run folder of a quickstart model")
    translator = Translator.load(parser.parse_args().run)
    golds = gold_alignment()
    translations = list(translator.stream([gold.source for gold in golds]))
    pairs = zip(golds, translations, strict=True)
    same = [(gold, each) for gold, each in pairs if each.text == gold.target]
    if not same:
        raise UserError("no translation equals its reference: RUN is no model of the quickstart")
    golds = [gold for gold, _ in same]
    found = translator.find_links([each for _, each in same])
    links = [[(link.source, link.target) for link in each or ()] for each in found]
    report = {
        "sentences": len(same),
        "aer": round(alignment_error_rate(golds, links), 4),
        "alignment": tag_shares(golds, links),
        "proportion": tag_shares(golds, [()] * len(golds)),
    }
    print(json.dumps(report))
    return 0


if __name__ == "__main__":
    sys.exit(run_reporting_errors(main))
