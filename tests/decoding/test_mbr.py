"""Minimum Bayes risk against the sum written out, and against what anybody would choose."""

import itertools
from pathlib import Path

import pytest
import sacrebleu

from mt.decoding.mbr import UTILITIES, Utility, expected_utilities
from mt.decoding.translator import load_translator
from mt.errors import UserError

TEXTS = ["a man sleeps", "the man sleeps", "a man is sleeping", "a man sleeps", "two dogs", ""]


def score(utility: Utility, text: str, reference: str) -> float:
    if utility == "chrf":
        return sacrebleu.sentence_chrf(text, [reference]).score
    return sacrebleu.sentence_bleu(
        text, [reference], tokenize="char", use_effective_order=True
    ).score


@pytest.mark.parametrize("utility", UTILITIES)
def test_utilities_are_the_mean_over_all_pairs(utility: Utility) -> None:
    found = expected_utilities(TEXTS, UTILITIES[utility]())
    for text, value in zip(TEXTS, found, strict=True):
        wanted = [score(utility, text, reference) for reference in TEXTS]
        assert value == pytest.approx(sum(wanted) / len(TEXTS))
    assert TEXTS[found.index(max(found))] == "a man sleeps"


def test_each_pair_is_compared_once() -> None:
    compared = []

    def compare(text: str, reference: str) -> float:
        compared.append((text, reference))
        return 1.0

    assert expected_utilities(TEXTS, compare) == [1.0] * 6
    assert sorted(compared) == sorted(itertools.product(set(TEXTS), repeat=2))


@pytest.mark.parametrize("search", ["sample", "beam"])
def test_a_run_translates_by_it(search: str, finished_run: Path) -> None:
    lines = ["one two three", "four", ""]
    settings = [f"decoding.search={search}", "decoding.beam=6"]
    plain = load_translator(finished_run, overrides=settings, device="cpu")
    chosen = load_translator(
        finished_run,
        overrides=[*settings, "decoding.mbr=chrf", "decoding.mbr_candidates=6"],
        device="cpu",
    )
    for line, translation in zip(lines, chosen.stream(lines, n_best=2), strict=True):
        sources = plain.tokenizer.encode_source([line])
        candidates = plain.engine.n_best_ids(sources, plain.decoding, 6)[0] if line else []
        texts = [plain.tokenizer.decode_target(each.ids) for each in candidates]
        utilities = {
            text: sum(score("chrf", text, reference) for reference in texts) / len(texts)
            for text in texts
        }
        assert translation.score == pytest.approx(max(utilities.values(), default=0.0))
        if line:
            assert utilities[translation.text] == pytest.approx(translation.score)


def test_too_few_candidates_are_told_before_work(finished_run: Path) -> None:
    for search in ("greedy", "beam"):
        with pytest.raises(UserError, match="`decoding.mbr` chooses from 16 translations"):
            settings = ["decoding.mbr=bleu", f"decoding.search={search}"]
            load_translator(finished_run, overrides=settings, device="cpu")
