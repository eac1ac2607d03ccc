"""Is a cleaning advised where it pays for itself, and nowhere else?"""

import pytest

from mt.doctor.findings import Finding, Histogram, Side, SplitReport, advise, as_yaml

PAIRS = 10_000


def _split(*findings: Finding, source: str = "en", target: str = "de") -> SplitReport:
    nothing = Histogram((0.0, 1.0), (0,))
    first, second = (Side(code, PAIRS, 5, 5, nothing) for code in (source, target))
    return SplitReport("train", "", first, second, nothing, findings, ())


def _found(kind: str, count: int, side: str = "pair") -> Finding:
    return Finding(kind, side, count, PAIRS, (1,))


def _advised(*splits: SplitReport) -> dict[str, object]:
    return advise(splits, ()).model_dump(exclude_defaults=True)


@pytest.mark.parametrize(
    ("kind", "key", "value"),
    [
        ("length_ratio", "max_length_ratio", 2.5),
        ("numbers", "numbers", True),
        ("tokenized", "tokenized", True),
        ("markup", "markup", True),
    ],
)
def test_what_good_pairs_have_too_is_filtered_from_two_in_a_thousand_on(
    kind: str, key: str, value: object
) -> None:
    assert _advised(_split(_found(kind, 19))) == {}
    assert _advised(_split(_found(kind, 20))) == {key: value}
    assert _advised(_split(_found(kind, PAIRS // 10))) == {key: value}
    assert _advised(_split(_found(kind, PAIRS // 10 + 1))) == {}


@pytest.mark.parametrize(
    ("kind", "key"),
    [
        ("empty", "empty_sides"),
        ("identical", "identical_sides"),
        ("wrong_script", "wrong_script"),
        ("mojibake", "mojibake"),
        ("tokens", "tokens"),
        ("other_language", "language"),
        ("outer_space", "normalize_spaces"),
        ("u2028", "strip_control"),
    ],
)
def test_what_is_surely_wrong_is_taken_out_or_mended_however_rare(kind: str, key: str) -> None:
    assert _advised(_split(_found(kind, 1))) == {key: True}


def test_escapes_stay_in_a_tokenised_corpus() -> None:
    markup = _found("markup", 100)
    assert _advised(_split(_found("tokenized", PAIRS), markup)) == {}
    assert _advised(_split(_found("tokenized", 100), markup)) == {"tokenized": True, "markup": True}


def test_a_share_is_that_of_one_side_and_one_corpus() -> None:
    sides = [_found("markup", 19, side) for side in ("source", "target")]
    assert _advised(_split(*sides), _split(*sides)) == {}
    assert _advised(_split(*sides), _split(_found("markup", 20))) == {"markup": True}


def test_sides_alike_stay_between_two_kinds_of_one_language() -> None:
    alike = _found("identical", 100)
    related = _split(alike, source="lzh", target="zh")
    assert _advised(related) == {}
    assert _advised(_split(alike), related) == {}
    assert _advised(_split(alike, source="ja", target="zh")) == {"identical_sides": True}


def test_repeated_pairs_and_overlaps_are_taken_out() -> None:
    assert _advised(_split(_found("duplicate_source", 5))) == {}
    assert _advised(_split(_found("duplicate_pair", 1))) == {"duplicates": "pair"}
    overlap = Finding("overlap_source", "source", 1, 500, (7,), "train")
    advised = advise([_split()], [overlap])
    assert as_yaml(advised) == 'data:\n  cleaning:\n    overlap: "normalized"\n'
