import os
import subprocess
import sys
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


def test_script_writes_the_files(tmp_path: Path) -> None:
    lines = [f"{pair.source}\t{pair.target}\tCC-BY 2.0\n" for pair in UPSTREAM]
    (tmp_path / "cmn.txt").write_text("".join(lines), encoding="utf-8")
    command: list[str | Path] = [
        sys.executable,
        SCRIPT,
        tmp_path / "cmn.txt",
        tmp_path / "out" / "tatoeba-zh-en",
    ]
    environment = {**os.environ, "PYTHONPATH": str(SCRIPT.parents[1])}
    subprocess.run(command, check=True, env=environment)
    # With 1,000 pairs to hold out, everything here goes into test.
    written = {path.name: path.read_bytes().decode() for path in (tmp_path / "out").rglob("*.*")}
    assert written == {
        "train.en": "",
        "train.zh": "",
        "valid.en": "",
        "valid.zh": "",
        "test.en": "C!\nH\nG\nA.\nD\nB.\n",
        "test.zh": "丙。\nxy1\n庚\n甲。\n戊\n乙\n",
    }
