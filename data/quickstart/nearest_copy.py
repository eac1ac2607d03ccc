"""Measures how far copying the translation of the nearest training sentence gets on test."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from itertools import pairwise
from pathlib import Path

from sacrebleu.metrics import BLEU

HERE = Path(__file__).resolve().parent


def lines(name: str) -> list[str]:
    """The lines of one of the corpus files."""
    return (HERE / name).read_text(encoding="utf-8").splitlines()


def bag(sentence: str) -> Counter[str]:
    """The bag of lower-case word unigrams and bigrams of a sentence."""
    words = re.findall(r"[\w'-]+|[^\w\s]", sentence.lower())
    return Counter(words) + Counter(map(" ".join, pairwise(words)))


def nearest(queries: list[str], train: list[str]) -> list[int]:
    """For each query the index of the training sentence with the highest F1 of the bags."""
    index: dict[str, list[tuple[int, int]]] = defaultdict(list)
    sizes = []
    for number, sentence in enumerate(train):
        counts = bag(sentence)
        sizes.append(sum(counts.values()))
        for item, count in counts.items():
            index[item].append((number, count))
    best = []
    for query in queries:
        counts = bag(query)
        size = sum(counts.values())
        overlap = [0] * len(train)
        for item, count in counts.items():
            for number, other in index[item]:
                overlap[number] += min(count, other)
        best.append(max(range(len(train)), key=lambda i: overlap[i] / (size + sizes[i])))
    return best


def main() -> None:
    """Print the BLEU of the copies and its signature."""
    translations = lines("train.zh")
    copies = [translations[i] for i in nearest(lines("test.en"), lines("train.en"))]
    metric = BLEU(tokenize="zh")
    print(metric.corpus_score(copies, [lines("test.zh")]))
    print(metric.get_signature())


if __name__ == "__main__":
    main()
