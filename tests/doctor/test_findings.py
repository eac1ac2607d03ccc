import pytest

from mt.config.data import CleaningConfig
from mt.doctor.findings import Finding, SideSize, SplitReport, advise

PAIRS = 10_000


def _split(*findings: Finding, source: str = "en", target: str = "de") -> SplitReport:
    first, second = (SideSize(code, PAIRS, 5, 5) for code in (source, target))
    return SplitReport("train", "", first, second, findings, ())


def _found(kind: str, count: int, side: str = "pair") -> Finding:
    return Finding(kind, side, count, PAIRS, (1,))


def _advised(*splits: SplitReport, pairs: int = PAIRS) -> dict[str, object]:
    return advise(splits, (), pairs)[0].model_dump(exclude_defaults=True)


@pytest.mark.parametrize("kind", ["length_ratio", "numbers", "tokenized", "markup"])
def test_doubtful_pairs_are_filtered_from_two_in_a_thousand_to_a_tenth(kind: str) -> None:
    ratio, numbers = {"max_length_ratio": 2.5}, {"numbers": True}
    texts = {"broken_text": (kind,)}
    filtered = {"length_ratio": ratio, "numbers": numbers}.get(kind, texts)
    for count, advised in ((19, {}), (20, filtered), (1000, filtered), (1001, {})):
        assert _advised(_split(_found(kind, count))) == advised


def test_languages_of_many_pairs_are_identified_where_many_are_others() -> None:
    for count, pairs, is_advised in (
        (1, PAIRS, False),  # one in 10,000
        (2, PAIRS, True),  # 3 s
        (2, 29_000, True),  # 10 s
        (2, 3_000_000, False),  # 1,020 s for 600 pairs
        (33, 3_000_000, False),
        (34, 3_000_000, True),  # 1,020 s for 10,200 pairs
        (34, 50_000_000, True),
    ):
        advised = _advised(_split(_found("other_language", count)), pairs=pairs)
        assert advised == ({"language": True} if is_advised else {}), (count, pairs)
    sampled = Finding("other_language", "source", 5, 100, (1,), total=PAIRS)
    assert _advised(_split(sampled), pairs=3_000_000) == {"language": True}
    assert _advised(_split(_found("outer_space", 2)), pairs=50_000_000)


def test_certain_errors_are_removed_from_two_in_ten_thousand() -> None:
    expected: dict[str, dict[str, object]] = {
        "empty": {"min_characters": 1},
        "identical": {"identical_sides": True},
        "mojibake": {"broken_text": ("mojibake",)},
        "other_language": {"language": True},
        "outer_space": {"normalize_spaces": True},
        "tokens": {"broken_text": ("tokens",)},
        "u2028": {"control_characters": "strip"},
        "wrong_script": {"wrong_script": True},
    }
    for kind, advised in expected.items():
        assert _advised(_split(_found(kind, 2))) == advised, kind
        assert _advised(_split(_found(kind, 1))) == {}, kind


def test_script_that_the_code_of_a_language_excludes_is_no_style() -> None:
    found = _found("wrong_script", PAIRS // 3, "target")
    assert _advised(_split(found, target="zh")) == {}
    assert _advised(_split(found, target="zh-Hans")) == {"wrong_script": True}
    assert _advised(_split(found, source="zh-Hans", target="zh")) == {}


def test_the_style_of_a_corpus_is_kept_in_all_corpora() -> None:
    markup, tokenized, alike = _found("markup", 100), _found("tokenized", PAIRS), "identical_sides"
    assert _advised(_split(tokenized, markup)) == {}
    assert _advised(_split(_found("tokenized", 100), markup)) == {
        "broken_text": ("tokenized", "markup")
    }
    related = _split(_found("identical", 100), source="lzh", target="zh")
    assert _advised(related) == {}
    assert _advised(_split(_found("identical", 100)), related) == {}
    assert _advised(_split(_found("identical", 100), source="ja", target="zh")) == {alike: True}


def test_shares_count_by_side_and_corpus() -> None:
    sides = [_found("markup", 19, side) for side in ("source", "target")]
    assert _advised(_split(*sides), _split(*sides)) == {}
    assert _advised(_split(*sides), _split(_found("markup", 20))) == {"broken_text": ("markup",)}


def test_repeated_pairs_and_overlaps_are_removed() -> None:
    assert _advised(_split(_found("duplicate_source", 5))) == {}
    for count in (2, PAIRS // 2):
        assert _advised(_split(_found("duplicate_pair", count))) == {"duplicates": "pair"}
    overlap = Finding("overlap_source", "source", 1, 500, (7,), "train")
    advised = advise([_split()], [_split(overlap)], 9**9)
    assert advised == (CleaningConfig(overlap="normalized"), ())


def test_doubtful_text_that_splits_have_as_often_is_a_question() -> None:
    train, ratio = _split(_found("tokenized", 250, "source")), _found("length_ratio", 250)
    for count, is_style in ((124, False), (125, True)):
        split = _split(_found("tokenized", count, "target"), ratio)
        cleaning, questions = advise([train], [split], PAIRS)
        assert (cleaning.broken_text == ()) == is_style == bool(questions)
        assert all("`data.cleaning.broken_text: [tokenized]`" in one for one in questions)
    assert advise([_split(ratio)], [_split(ratio)], PAIRS)[0].max_length_ratio == 2.5
