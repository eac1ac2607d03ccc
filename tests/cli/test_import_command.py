"""`mt export --to huggingface` and `mt import`, there and back."""

from collections.abc import Callable
from pathlib import Path

Program = Callable[..., tuple[int, str, str]]


def test_there_and_back(finished_run: Path, tmp_path: Path, program: Program) -> None:
    marian, back = tmp_path / "marian", tmp_path / "back"
    status, out, _ = program("export", finished_run, "--to", "huggingface", "--output", marian)
    assert status == 0
    assert "lines identical, from the valid split" in out
    status, out, err = program("import", marian, "--run", back)
    assert status == 0
    assert out.startswith(f"{back}: en-de, ")
    assert "`length_penalty` 0.48 divides" in err
    assert "`decoding.length_penalty: 0.6` approximates it" in err
    greedy = ["--set", "decoding.search=greedy"]
    sentence = b"one two three\n"
    first = program("translate", finished_run, *greedy, stdin=sentence)
    assert program("translate", back, *greedy, stdin=sentence)[:2] == first[:2]
    assert len(first[1]) > 5


def test_what_is_there_stays(finished_run: Path, tmp_path: Path, program: Program) -> None:
    (tmp_path / "run").mkdir()
    status, out, err = program("import", tmp_path, "--run", tmp_path / "run")
    assert (status, out) == (2, "")
    assert err == (f"error: {tmp_path / 'run'}: exists already; name a new folder\n")
    status, _, err = program("import", tmp_path / "none", "--run", tmp_path / "new")
    assert (status, err) == (2, f"error: {tmp_path / 'none'}: no such folder\n")
