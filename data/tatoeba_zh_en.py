"""Split Tatoeba's Chinese-English sentences into train, valid and test, deterministically.

    python data/tatoeba_zh_en.py cmn.txt "$MT_CORPORA/tatoeba-zh-en"

reads the upstream file named in data/README.md (English, tab, Chinese, tab, attribution) and
writes {train,valid,test}.{en,zh}. The rule:

1. Two texts are equal if their keys are: NFKC, lower case, letters and digits only.
   A pair that equals an earlier one on both sides is dropped.
2. English keys are ordered by the SHA-256 of "tatoeba", "zh" and the key, joined by NUL. In that
   order the first pair of each key goes to test, then to valid, until each is full; a pair whose
   Chinese was taken before is skipped.
3. Every other pair with neither side in test or valid goes to train, in the order of the file.
"""

import argparse
import hashlib
import sys
import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from mt.data.pairs import UNVERIFIED, Checksums, SentencePair
from mt.data.sources import TsvPairs
from mt.errors import run_reporting_errors
from mt.files import require_file

HELD_OUT_PAIRS = 1000


@dataclass(frozen=True)
class Splits:
    """The three parts of the corpus; `source` is English, `target` Chinese."""

    train: list[SentencePair]
    valid: list[SentencePair]
    test: list[SentencePair]


def key(text: str) -> str:
    """Return a text without case, spacing, punctuation and width."""
    folded = unicodedata.normalize("NFKC", text).lower()
    return "".join(character for character in folded if character.isalnum())


def rank(english_key: str) -> str:
    """Return the sort key of an English key."""
    return hashlib.sha256(f"tatoeba\0zh\0{english_key}".encode()).hexdigest()


def split(pairs: Iterable[SentencePair], *, held_out: int) -> Splits:
    """Split pairs by the rule; test and valid get `held_out` pairs each."""
    distinct: dict[tuple[str, str], SentencePair] = {}
    for pair in pairs:
        distinct.setdefault((key(pair.source), key(pair.target)), pair)
    first_chinese: dict[str, str] = {}
    for english, chinese in distinct:
        first_chinese.setdefault(english, chinese)
    chosen: dict[str, str] = {}  # Chinese key -> English key
    for english in sorted(first_chinese, key=rank):
        if len(chosen) == 2 * held_out:
            break
        chosen.setdefault(first_chinese[english], english)
    given = [distinct[english, chinese] for chinese, english in chosen.items()]
    taken = set(chosen.values())
    train = [
        pair
        for (english, chinese), pair in distinct.items()
        if english not in taken and chinese not in chosen
    ]
    return Splits(train, given[held_out:], given[:held_out])


def write(splits: Splits, folder: Path) -> None:
    """Write the six text files."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("train", "valid", "test"):
        pairs: list[SentencePair] = getattr(splits, name)
        for language, texts in (
            ("en", [pair.source for pair in pairs]),
            ("zh", [pair.target for pair in pairs]),
        ):
            content = "".join(f"{text}\n" for text in texts)
            (folder / f"{name}.{language}").write_bytes(content.encode())


def main() -> int:
    """Run the command line; return 0."""
    parser = argparse.ArgumentParser(description="Cut cmn.txt into train, valid and test.")
    parser.add_argument("upstream", type=Path, help="the upstream file, cmn.txt")
    parser.add_argument("folder", type=Path, help="where the six files go")
    arguments = parser.parse_args()
    upstream = require_file(arguments.upstream)
    pairs = TsvPairs(Checksums(UNVERIFIED, UNVERIFIED), upstream, (0, 1), ("en", "zh"))
    write(split(pairs.pairs(), held_out=HELD_OUT_PAIRS), arguments.folder)
    return 0


if __name__ == "__main__":
    sys.exit(run_reporting_errors(main))
