"""Commands `mt plot`."""

from pathlib import Path

from tests.factories import Program


def test_positions_of_a_config_and_of_a_run(
    program: Program, tiny_recipe: Path, finished_run: Path, tmp_path: Path
) -> None:
    place = tmp_path / "a.png"
    call = ("plot", "positions", tiny_recipe, "-o", place, "--positions", "8")
    assert program(*call) == (0, f"{place}\n", "")
    first = place.read_bytes()
    assert program(*call, "--set", "model.positional=alibi") == (0, f"{place}\n", "")
    assert place.read_bytes() != first
    call = ("plot", "positions", finished_run, "-o", place, "--positions", "8")
    assert program(*call) == (0, f"{place}\n", "")


def test_attention(program: Program, finished_run: Path, tmp_path: Path) -> None:
    status, out, err = program(
        *("plot", "attention", finished_run, "one two", "-o", tmp_path / "a.png"),
        *("--set", "decoding.search=greedy"),
    )
    places = [tmp_path / f"a-{name}.png" for name in ("encoder", "decoder", "cross")]
    assert (status, out.splitlines(), err) == (0, [*map(str, places)], "")
    assert sorted(tmp_path.iterdir()) == sorted(places)
