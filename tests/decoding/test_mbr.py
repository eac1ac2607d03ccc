from pathlib import Path

import pytest
import sacrebleu

from mt.decoding.sampling import UTILITIES, Utility, compute_expected_utilities
from mt.decoding.translator import Translator
from mt.errors import UserError

TEXTS = ["a man sleeps", "the man sleeps", "a man is sleeping", "a man sleeps", "two dogs", ""]


def score(utility: Utility, text: str, reference: str) -> float:
    if utility == "chrf":
        return sacrebleu.sentence_chrf(text, [reference]).score
    return sacrebleu.sentence_bleu(
        text, [reference], tokenize="char", use_effective_order=True
    ).score


@pytest.mark.parametrize("utility", UTILITIES)
def test_expected_utility_is_the_mean_over_all_pairs(utility: Utility) -> None:
    found = compute_expected_utilities(TEXTS, UTILITIES[utility]())
    for text, value in zip(TEXTS, found, strict=True):
        wanted = [score(utility, text, reference) for reference in TEXTS]
        assert value == pytest.approx(sum(wanted) / len(TEXTS))
    assert TEXTS[found.index(max(found))] == "a man sleeps"


@pytest.mark.parametrize("search", ["sample", "beam"])
def test_run_translates_by_the_highest_expected_utility(search: str, finished_run: Path) -> None:
    lines, prefixes = ["one two three", "four", ""], ["", "two", ""]
    overrides = [f"decoding.search={search}", "decoding.beam=16", "decoding.repair=off"]
    plain = Translator.load(finished_run, overrides=overrides, device="cpu")
    overrides += ["decoding.mbr=chrf"]
    chosen = Translator.load(finished_run, overrides=overrides, device="cpu")
    candidates = plain.stream(lines, prefixes=prefixes, n_best=16)
    found = chosen.stream(lines, prefixes=prefixes, n_best=2)
    for of_line, translation, prefix in zip(candidates, found, prefixes, strict=True):
        texts = [each.text for each in of_line.alternatives] if translation.source else []
        utilities = {
            text: sum(score("chrf", text, reference) for reference in texts) / len(texts)
            for text in texts
        }
        assert translation.score == pytest.approx(max(utilities.values(), default=0.0))
        assert all(each.text.startswith(prefix) for each in translation.alternatives)
        assert not texts or utilities[translation.text] == pytest.approx(translation.score)


def test_too_few_candidates_are_an_error(finished_run: Path) -> None:
    for search in ("greedy", "beam"):
        overrides = ["decoding.mbr=bleu", f"decoding.search={search}"]
        with pytest.raises(UserError):
            Translator.load(finished_run, overrides=overrides, device="cpu")
