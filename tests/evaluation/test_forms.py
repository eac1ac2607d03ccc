import pytest

from mt.evaluation.scores import Form, form_of, label

PLAIN = [
    "The cat, which sat on the mat, was fed by Anna.",
    "Two dogs ran past London very fast!",
    "Is it raining, Peter?",
    "We came home; nobody was there.",
    "On Monday, he read three books.",
    "Mary asked: what is it?",
]
TOKENIZED = [
    line.replace(",", " ,").replace(".", " .").replace("!", " !").replace("?", " ?")
    for line in PLAIN
]


def _lower(lines: list[str]) -> list[str]:
    return [line.lower() for line in lines]


def test_what_is_counted_in_a_text_counts_each_line_once() -> None:
    form = form_of(["A b .", "A b .", "", "c@@ d", "E f , g ."], "en")
    assert form == Form(lines=3, tokens=1, tokenized=2, upper=2, lower=5)


def test_tokenised_and_plain_text_are_told_apart() -> None:
    plain, tokenized = form_of(PLAIN, "en"), form_of(TOKENIZED, "en")
    assert (plain.is_tokenized, plain.is_untokenized) == (False, True)
    assert (tokenized.is_tokenized, tokenized.is_untokenized) == (True, False)


@pytest.mark.parametrize(("tokenized", "expected"), [(1, False), (2, True), (8, True)])
def test_one_line_is_no_proof_of_tokenised_text(tokenized: int, expected: bool) -> None:
    assert Form(lines=8, tokens=0, tokenized=tokenized, upper=0, lower=0).is_tokenized is expected


def test_text_without_capitals_is_lower_cased_once_it_is_long_enough() -> None:
    assert form_of(_lower(PLAIN), "en").is_lowercased
    assert not form_of([*_lower(PLAIN), "And so on."], "en").is_lowercased
    assert not form_of(_lower(PLAIN)[:2] * 5, "en").is_lowercased  # a repeated line tells nothing


def test_capitals_are_missed_beside_a_text_that_has_them() -> None:
    cased, lowered = form_of(PLAIN, "en"), form_of(_lower(PLAIN), "en")
    assert lowered.is_lowercased_beside(cased)
    assert not cased.is_lowercased_beside(lowered)
    assert not cased.is_lowercased_beside(cased)
    assert not form_of(["yes", "no"], "en").is_lowercased_beside(cased)
    assert not form_of(["今天天气很好。"], "zh").is_lowercased_beside(cased)


def test_the_references_name_the_score() -> None:
    long = [f"a line of {word} , and so on ." for word in ("one", "two", "three", "four")]
    long += ["yet another one , which is as long as it has to be , so that nobody may doubt it ."]
    assert label([long], "en") == "tokenised,lower-cased"
    assert label([TOKENIZED], "en") == "tokenised"
    assert label([PLAIN], "en") == ""
    assert label([TOKENIZED, PLAIN], "en") == ""
