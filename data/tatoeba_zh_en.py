"""Cut Tatoeba's Chinese-English sentences into train, valid and test, the same lines every time.

    python data/tatoeba_zh_en.py cmn.txt "$MT_CORPORA/tatoeba-zh-en"

reads the upstream file named in data/README.md (English, tab, Chinese, tab, attribution) and
writes {train,valid,test}.{en,zh}. The rule:

1. Two texts are the same when their keys are: NFKC, lower case, letters and digits alone.
   A pair that is the same as an earlier one on both sides is dropped.
2. English keys are ordered by the SHA-256 of "tatoeba", "zh" and the key, joined by NUL. In that
   order each gives its first pair, unless that pair's Chinese was given already, first to test,
   then to valid, until each is full.
3. Every other pair whose English and whose Chinese are in neither test nor valid is in train, in
   the order of the file.
"""

import argparse
import hashlib
import sys
import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from mt.data.lines import existing_file
from mt.data.pairs import UNVERIFIED, Checksums, SentencePair
from mt.data.sources import TsvPairs
from mt.errors import run_reporting_errors

HELD_OUT_PAIRS = 1000


@dataclass(frozen=True)
class Splits:
    """The three parts of the corpus; `source` is English, `target` Chinese."""

    train: list[SentencePair]
    valid: list[SentencePair]
    test: list[SentencePair]


def key(text: str) -> str:
    """Return what is left of a text when case, spacing, punctuation and width do not count."""
    folded = unicodedata.normalize("NFKC", text).lower()
    return "".join(character for character in folded if character.isalnum())


def rank(english_key: str) -> str:
    """Return what the English keys are ordered by."""
    return hashlib.sha256(f"tatoeba\0zh\0{english_key}".encode()).hexdigest()


def split(pairs: Iterable[SentencePair], *, held_out: int) -> Splits:
    """Apply the rule; `held_out` pairs go into test, as many into valid."""
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
    """Write six files of aligned text."""
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
    """Read the names of the file and of the folder from the command line; return 0."""
    parser = argparse.ArgumentParser(description="Cut cmn.txt into train, valid and test.")
    parser.add_argument("upstream", type=Path, help="the upstream file, cmn.txt")
    parser.add_argument("folder", type=Path, help="where the six files go")
    arguments = parser.parse_args()
    upstream = existing_file(arguments.upstream)
    pairs = TsvPairs(Checksums(UNVERIFIED, UNVERIFIED), upstream, 0, 1)
    write(split(pairs.pairs(), held_out=HELD_OUT_PAIRS), arguments.folder)
    return 0


if __name__ == "__main__":
    sys.exit(run_reporting_errors(main))
