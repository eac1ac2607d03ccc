"""Commands `mt export --to huggingface` and `mt import`."""

from pathlib import Path

from tests.factories import Program


def test_exported_model_imports_as_an_equal_run(
    finished_run: Path, tmp_path: Path, program: Program
) -> None:
    marian, back = tmp_path / "marian", tmp_path / "back"
    status, out, _ = program("export", finished_run, "--to", "huggingface", "--output", marian)
    assert status == 0
    assert "lines identical" in out
    status, out, err = program("import", marian, "--run", back)
    assert status == 0
    assert out.startswith(f"{back}: en to de, ")
    assert "`length_penalty` 0.48 divides" in err
    assert "`decoding.length_penalty: 0.6`" in err
    greedy = ["--set", "decoding.search=greedy"]
    sentence = b"one two three\n"
    first = program("translate", finished_run, *greedy, stdin=sentence)
    assert program("translate", back, *greedy, stdin=sentence)[:2] == first[:2]
    assert len(first[1]) > 5
