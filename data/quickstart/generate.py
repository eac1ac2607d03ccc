"""Write the quickstart corpus next to this file, or check it: generate.py [--check]."""

from __future__ import annotations

import argparse
import hashlib
import random
import re
import sys
from collections import Counter
from dataclasses import dataclass
from functools import cache
from itertools import count
from pathlib import Path

HERE = Path(__file__).resolve().parent
if str(HERE) not in sys.path:
    sys.path.insert(0, str(HERE))

from classes import GROUPS, build_classes  # noqa: E402
from grammar import Entry, split_list  # noqa: E402
from lexicon import WORDS  # noqa: E402
from patterns_daily import PATTERNS as DAILY  # noqa: E402
from patterns_world import PATTERNS as WORLD  # noqa: E402
from phrases import PHRASES  # noqa: E402

SEED = 20240607
SIZES = {"train": 24_000, "valid": 500, "test": 500}
# Held-out sentences drawn beyond what is kept, as some have words that train has too rarely.
SPARE = 100
RARE_ITEM, RARE_WORD = 15, 3
# Of 100 pairs of content words, this many are kept for each of valid and test.
HELD_OUT = 4
# A training sentence shares at most this part of the lexical items of any sentence of its
# pattern in valid or test, so that no near copy of those can be learned by heart.
SHARED = 0.34
WORD = re.compile(r"[\w'-]+")
# The colour belongs to the things, not to the pair: "two pairs of red socks".
COLOR_PAIR = re.compile(
    r"\b(" + "|".join(fields[0] for fields in split_list(WORDS["color"])) + r") (pairs?) of "
)
FIELD = re.compile(r"\{(\w+)(?:\.(\w+)|~(\w+)|\?([^}|]*)\|([^}]*))?\}")


@dataclass(frozen=True)
class Pattern:
    """A pair of sentence templates with their slots."""

    name: str
    slots: tuple[tuple[str, str], ...]
    english: str
    chinese: str


@dataclass(frozen=True)
class Pair:
    """A sentence in both languages with its pattern and the lexical items in it."""

    english: str
    chinese: str
    pattern: str
    parts: tuple[str, ...]


def load_patterns() -> list[Pattern]:
    """The patterns in their written order."""
    out = []
    for block in (DAILY + "\n" + WORLD).strip().split("\n\n"):
        head, english, chinese = block.strip().split("\n")
        name, _, slots = head.partition(":")
        pairs = tuple((slot.split("=")[0], slot.split("=")[1]) for slot in slots.split())
        out.append(Pattern(name, pairs, english, chinese))
    return out


def load_phrases() -> list[tuple[str, str]]:
    """The set phrases as pairs."""
    rows = (line.split(" = ") for line in PHRASES.strip().splitlines())
    return [(english, chinese) for english, chinese in rows]


def fill(template: str, fillers: dict[str, Entry], language: str) -> str:
    """Put the forms of the fillers into a template."""

    def form(match: re.Match[str]) -> str:
        name, form_name, subject, plural, third = match.groups()
        entry = fillers[name]
        if plural is not None:
            return third if entry.third else plural
        if subject is not None:
            form_name = "s" if fillers[subject].third else ""
        forms = entry.en if language == "en" else entry.zh
        return forms.get(form_name or "") or missing(match, entry)

    text = FIELD.sub(form, template)
    return COLOR_PAIR.sub(r"\2 of \1 ", text) if language == "en" else text


def missing(match: re.Match[str], entry: Entry) -> str:
    """Report a form that a template asks of an entry without it."""
    raise ValueError(f"{match.group()} has no form for {entry.en['']!r}")


@cache
def bucket(first: str, second: str) -> int:
    """The fixed place of a pair of lexical items among 100 buckets."""
    digest = hashlib.sha256("\t".join(sorted((first, second))).encode()).digest()
    return int.from_bytes(digest[:4], "big") % 100


def split_of(parts: tuple[str, ...]) -> str:
    """The split where a sentence with these lexical items belongs, "" for none."""
    words = sorted({part for part in parts if "|" in part})
    found = [bucket(a, b) for i, a in enumerate(words) for b in words[i + 1 :]]
    valid = sum(b < HELD_OUT for b in found)
    test = sum(HELD_OUT <= b < 2 * HELD_OUT for b in found)
    if not valid and not test:
        return "train"
    if valid and test:
        return ""
    return "valid" if valid else "test"


class Sampler:
    """Draws sentences so that the lexical items of a class occur about equally often."""

    def __init__(self, seed: int) -> None:
        """Start with nothing used."""
        self.random = random.Random(seed)
        self.classes = build_classes()
        self.used: Counter[str] = Counter()

    def index(self, size: int) -> int:
        """A random index; random() is the one method whose values Python guarantees."""
        return int(self.random.random() * size)

    def draw(self, name: str) -> Entry:
        """The least used of three random fillers of a class."""
        if name in GROUPS:
            name = GROUPS[name][self.index(len(GROUPS[name]))]
        if name not in self.classes:
            self.classes[name] = [e for part in name.split() for e in self.classes[part]]
        entries = self.classes[name]
        drawn = [entries[self.index(len(entries))] for _ in range(3)]
        return min(drawn, key=lambda e: min(self.used[part] for part in e.parts))

    def fillers(self, pattern: Pattern) -> dict[str, Entry]:
        """A filler for each slot of a pattern."""
        out: dict[str, Entry] = {}
        for slot, source in pattern.slots:
            if source.startswith("@"):
                owner, link = source[1:].split(".")
                source = out[owner].links[link]
            out[slot] = self.draw(source)
        return out


def render(pattern: Pattern, fillers: dict[str, Entry]) -> Pair:
    """The sentence pair of a pattern with its fillers."""
    english = fill(pattern.english, fillers, "en")
    return Pair(
        english[0].upper() + english[1:],
        fill(pattern.chinese, fillers, "zh"),
        pattern.name,
        parts_of(fillers),
    )


def parts_of(fillers: dict[str, Entry]) -> tuple[str, ...]:
    """The lexical items in the fillers of a sentence."""
    return tuple(part for entry in fillers.values() for part in entry.parts)


def clash(entries: list[Entry]) -> bool:
    """Whether two fillers repeat each other (a box in the box, my wife and my husband)."""
    for i, first in enumerate(entries):
        for second in entries[i + 1 :]:
            words = (f" {first.en['']} ", f" {second.en['']} ")
            spouses = "spouse" in first.tags and "spouse" in second.tags
            if spouses or words[0] in words[1] or words[1] in words[0]:
                return True
            if set(first.parts) & set(second.parts) and first.en[""][0].islower():
                return True
    return False


def near(parts: set[str], kept: list[set[str]]) -> bool:
    """Whether a training candidate has too much in common with a sentence kept for testing."""
    return any(len(parts & other) > SHARED * len(other) for other in kept)


def next_pair(
    sampler: Sampler, pattern: Pattern, split: str, seen: set[str], kept: list[set[str]]
) -> Pair | None:
    """A new sentence of a pattern for a split, None after too many attempts."""
    for _ in range(200):
        fillers = sampler.fillers(pattern)
        parts = parts_of(fillers)
        if clash(list(fillers.values())) or split_of(parts) != split or near(set(parts), kept):
            continue
        pair = render(pattern, fillers)
        if pair.english not in seen and pair.chinese not in seen:
            return pair
    return None


def build() -> dict[str, list[Pair]]:
    """All sentence pairs by split, the small splits drawn first."""
    sampler, patterns = Sampler(SEED), load_patterns()
    phrases = [Pair(en, zh, "phrase", ()) for en, zh in load_phrases()]
    seen = {text for pair in phrases for text in (pair.english, pair.chinese)}
    out: dict[str, list[Pair]] = {}
    kept: dict[str, list[set[str]]] = {pattern.name: [] for pattern in patterns}
    sizes = {split: size + SPARE for split, size in SIZES.items() if split != "train"}
    for split, size in {**sizes, "train": SIZES["train"] - len(phrases)}.items():
        out[split] = []
        for number in count():
            if len(out[split]) == size:
                break
            pattern = patterns[number % len(patterns)]
            avoid = kept[pattern.name] if split == "train" else []
            pair = next_pair(sampler, pattern, split, seen, avoid)
            if pair:
                out[split].append(pair)
                seen.update((pair.english, pair.chinese))
                sampler.used.update(pair.parts)
                if split != "train":
                    kept[pattern.name].append(set(pair.parts))
    out["train"] += phrases
    for split in sizes:
        out[split] = well_known(out[split], out["train"])[: SIZES[split]]
    for pairs in out.values():
        pairs.sort(key=lambda pair: hashlib.sha256(pair.english.encode()).digest())
    return out


def well_known(pairs: list[Pair], train: list[Pair]) -> list[Pair]:
    """The pairs all of whose lexical items and English words are common enough in train."""
    items = Counter(part for pair in train for part in pair.parts)
    words = Counter(word for pair in train for word in WORD.findall(pair.english.lower()))
    return [
        pair
        for pair in pairs
        if all(items[part] >= RARE_ITEM for part in pair.parts)
        and all(words[word] >= RARE_WORD for word in WORD.findall(pair.english.lower()))
    ]


def contents(corpus: dict[str, list[Pair]]) -> dict[str, str]:
    """The text of each of the six files by name."""
    return {
        f"{split}.{language}": "".join(text + "\n" for text in texts)
        for split in SIZES
        for language, texts in (
            ("en", [pair.english for pair in corpus[split]]),
            ("zh", [pair.chinese for pair in corpus[split]]),
        )
    }


def main(arguments: list[str]) -> int:
    """Write or check the six files and return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="compare, write nothing")
    check = parser.parse_args(arguments).check
    for name, text in contents(build()).items():
        path = HERE / name
        if not check:
            path.write_bytes(text.encode())
        elif not path.exists() or path.read_bytes() != text.encode():
            print(f"{name} differs from what generate.py makes")
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
