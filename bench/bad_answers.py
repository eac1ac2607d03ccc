"""Measure the filters of `mt distill --teacher FILE` on a corpus with a share of bad answers.

    python bench/bad_answers.py make NAME.jsonl SOURCE TARGET OTHER_TARGET
    mt distill CONFIG --teacher NAME.jsonl --out FOLDER
    python bench/bad_answers.py rates NAME.jsonl FOLDER/NAME.rejected.tsv

SOURCE, TARGET and OTHER_TARGET are lines of the same corpus in three languages, perhaps compressed.
Seven kinds of bad answers take a fifth of the lines; the seed is fixed.
"""

import json
import random
import sys
from collections import Counter
from pathlib import Path

from mt.data.corpus_files import LineReader

SHARE = 0.2
REFUSALS = (
    "I'm sorry, but I can't translate this text.",
    "As an AI language model, I cannot assist with that request.",
    "I cannot provide a translation for this content.",
    "Es tut mir leid, aber ich kann diesen Text nicht übersetzen.",
    "Ich kann Ihnen bei dieser Anfrage leider nicht helfen.",
)
REMARKS = (
    "Here is the translation: {}",
    "Sure! Here's the German translation:\n\n{}",
    "„{}“",
    '"{}"',
    "{}\n\nNote: I chose an informal tone.",
    "{} (Note: literal translation)",
    "Hier ist die Übersetzung: {}",
    "Übersetzung: {}",
    "**{}**",
    "German: {}",
)
KINDS = (
    "hallucination",
    "omission",
    "refusal",
    "commentary",
    "copy",
    "language",
    "repetition",
)


def make(path: Path, sides: list[list[str]]) -> None:
    """Write candidates, a fifth of them bad, with the kind of each."""
    generator = random.Random(1)
    sources, targets, others = sides
    with path.open("w", encoding="utf-8") as file:
        for line, (source, target) in enumerate(zip(sources, targets, strict=True)):
            kind = generator.choice(KINDS) if generator.random() < SHARE else ""
            words = target.split()
            distance = len(targets) // 3 + generator.randrange(len(targets) // 3)
            text = {
                "": target,
                "hallucination": targets[(line + distance) % len(targets)],
                "omission": " ".join(words[: len(words) // 2]) + generator.choice(["", "."]),
                "refusal": generator.choice(REFUSALS),
                "commentary": generator.choice(REMARKS).format(target),
                "copy": source,
                "language": others[line],
                "repetition": " ".join(words[:4] + words[2:4] * 12),
            }[kind]
            record = {"source": source, "translations": [text], "kind": kind}
            file.write(json.dumps(record, ensure_ascii=False) + "\n")


def rates(path: Path, rejected: Path) -> None:
    """Print the rejected share of each kind, of all bad answers and of good ones."""
    kinds = [json.loads(line)["kind"] for line in LineReader(path)]
    lines = {int(row.split("\t")[0]) - 1 for row in LineReader(rejected)}
    total, found = Counter(kinds), Counter(kinds[line] for line in lines)
    for kind in sorted(total):
        print(
            f"{kind or 'good'}: {found[kind]:,} of {total[kind]:,}, {found[kind] / total[kind]:.2%}"
        )
    bad = len(kinds) - total[""]
    print(f"all bad: {len(lines) - found['']:,} of {bad:,}, {(len(lines) - found['']) / bad:.2%}")


if __name__ == "__main__":
    command, first, *files = sys.argv[1:]
    if command == "make":
        make(Path(first), [[*LineReader(Path(file))] for file in files])
    else:
        rates(Path(first), Path(files[0]))
