"""`mt plot`: its sub-commands and options, what they write, and how they fail."""

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import mt.cli.inspect

Program = Callable[..., tuple[int, str, str]]


def test_the_kinds_and_options_are_frozen(program: Program) -> None:
    surface = {}
    for kind in re.findall(r"^  (\w+)  ", program("plot")[1].partition("Commands:")[2], re.M):
        text = program("plot", kind, "--help")[1]
        arguments = re.findall(r"^  ([A-Z|]+) <", text, re.M)
        surface[kind] = arguments + re.findall(r"^  (-.*?)(?:  |$)", text, re.M)
    assert surface == {
        "positions": [
            "CONFIG|RUN",
            "-o, --output FILE",
            "--positions N",
            "--set KEY=VALUE",
            "--help",
        ],
        "masks": ["-o, --output FILE", "--help"],
        "attention": ["RUN", "SENTENCE", "-o, --output FILE", "--set KEY=VALUE", "--help"],
        "schedule": ["CONFIG", "-o, --output FILE", "--updates N", "--set KEY=VALUE", "--help"],
    }


def test_without_a_kind_the_help_is_shown(program: Program) -> None:
    assert program("plot") == program("plot", "--help")


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


def test_masks_and_schedules(program: Program, tiny_recipe: Path, tmp_path: Path) -> None:
    place = tmp_path / "a.svg"
    assert program("plot", "masks", "-o", place) == (0, f"{place}\n", "")
    call = ("plot", "schedule", tiny_recipe, tiny_recipe, "-o", place, "--updates", "90")
    assert program(*call, "--set", "training.schedule=noam") == (0, f"{place}\n", "")
    assert place.read_bytes().startswith(b"<?xml")


def test_attention(program: Program, finished_run: Path, tmp_path: Path) -> None:
    status, out, err = program(
        *("plot", "attention", finished_run, "one two", "-o", tmp_path / "a.png"),
        *("--set", "decoding.search=greedy"),
    )
    places = [tmp_path / f"a-{name}.png" for name in ("encoder", "decoder", "cross")]
    assert (status, out.splitlines(), err) == (0, [*map(str, places)], "")
    assert sorted(tmp_path.iterdir()) == sorted(places)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ("plot masks", "Missing option '--output'"),
        ("plot mask", "No such command 'mask'. Did you mean 'masks'?"),
        ("plot masks -o a.jpg", "a.jpg: not a picture; the name must end in .png or .svg"),
        ("plot masks -o none/a.png", "there is no folder none"),
        ("plot schedule tiny.yml -o a.png", "tiny.yml: no such file; did you mean `tiny.yaml`?"),
        (
            "plot schedule tiny.yaml -o a.png --set training.schedul=x",
            "did you mean `training.sched",
        ),
        ("plot schedule tiny.yaml -o a.png --updates 0", "'--updates'"),
        ("plot schedule tiny.yaml -o a", "a: not a picture"),
        ("plot positions tiny.yaml -o a.png --set model.positional=none", "has nothing to draw"),
        ("plot positions tiny.yaml -o a.png --positions 1", "'--positions'"),
        ("plot positions . -o a.png --set seed=2", "--set does not go with a run"),
        ("plot positions . -o a.png", ".: is no run folder, it holds no config.yaml"),
        ("plot attention run x -o a.png", "run: no such run folder"),
        ("plot attention run x -o a.png --set seed=2", "only keys of `decoding` can be set here"),
    ],
)
def test_a_wrong_call_is_one_line_and_status_2(
    arguments: str,
    told: str,
    program: Program,
    tiny_recipe: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("tiny.yaml").write_bytes(tiny_recipe.read_bytes())
    status, out, err = program(*arguments.split())
    assert (status, out) == (2, "")
    assert err.startswith("error: ")
    assert told in err
    assert err.count("\n") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["tiny.yaml"]


@pytest.mark.parametrize(
    "arguments",
    ["masks", "positions {recipe}", "schedule {recipe}", "attention run x"],
)
def test_without_matplotlib_one_line_says_how_to_install_it(
    arguments: str,
    program: Program,
    tiny_recipe: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(mt.cli.inspect, "find_spec", lambda name: None)
    call = arguments.format(recipe=tiny_recipe).split()
    assert program("plot", *call, "-o", tmp_path / "a.png") == (
        2,
        "",
        'error: pictures need matplotlib: pip install "mt[plot]"\n',
    )


@pytest.mark.parametrize(
    "arguments",
    ["--help", "schedule --help", "schedule none.yaml -o a.png", "attention r x -o a --set seed=2"],
)
def test_help_and_config_errors_load_nothing_heavy(arguments: str) -> None:
    code = (
        "import sys; from mt.__main__ import main; main();"
        "print('loaded:', *sorted({'torch', 'numpy', 'matplotlib'} & set(sys.modules)))"
    )
    command = [sys.executable, "-c", code, "plot", *arguments.split()]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "loaded:"
