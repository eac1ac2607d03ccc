from pathlib import Path

from mt.data.pairs import SentencePair
from tests.factories import load_script

SCRIPT = Path(__file__).parents[2] / "data" / "tatoeba_zh_en.py"


RULE = load_script(SCRIPT)

# Order of the English keys by SHA-256: c, h, i, g, a, d, b, f, e.
UPSTREAM = [
    SentencePair(english, chinese)
    for english, chinese in [
        ("A.", "甲。"),
        ("a", "甲！"),  # the pair before, again
        ("B.", "乙"),
        ("C!", "丙。"),
        ("c", "丁"),  # its English is in test
        ("D", "戊"),
        ("E", "ＸＹ 1"),  # its Chinese is in test, with H
        ("F", "丙"),  # its Chinese is in test, with C
        ("G", "庚"),
        ("H", "xy1"),
        ("I", "丙？"),  # third by rank, but C has given its Chinese
    ]
]
SPLITS = RULE.Splits(
    train=[SentencePair("B.", "乙"), SentencePair("D", "戊")],
    valid=[SentencePair("G", "庚"), SentencePair("A.", "甲。")],
    test=[SentencePair("C!", "丙。"), SentencePair("H", "xy1")],
)


def test_rule_on_invented_lines() -> None:
    assert RULE.split(UPSTREAM, held_out=2) == SPLITS
