"""Help, completion, usage errors and exit statuses of the program."""

import inspect
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

import pytest
import typer

from mt import __version__
from mt.cli.app import EXAMPLES, PANELS, app
from tests.factories import Program, Refused

ROOT = Path(__file__).parents[2]
HEAVY = {
    "torch",
    "numpy",
    "datasets",
    "pyarrow",
    "sentencepiece",
    "sacrebleu",
    "safetensors",
    "matplotlib",
}
Recorded = Callable[..., list[Any]]


def process(*arguments: str, code: str = "", **options: Any) -> subprocess.CompletedProcess[Any]:
    """Run the program, or code instead, in a new process with buffered output."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    environment |= {"PYTHONPATH": str(ROOT), "COLUMNS": "80", **options.pop("env", {})}
    command = ["-c", code] if code else ["-m", "mt"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "encoding": "utf-8"}
    return subprocess.run(
        [sys.executable, *command, *arguments], env=environment, **{**pipes, **options}
    )


def test_documented_command_line_is_current() -> None:
    command = "python -m typer mt.cli.app utils docs --name mt --title 'Command line'"
    arguments = ["utils", "docs", "--name", "mt", "--title", "Command line"]
    done = process("mt.cli.app", *arguments, code="from typer.cli import main; main()")
    documented = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
    assert documented == f"{done.stdout.strip()}\n", f"run: {command} --output docs/cli.md"


def test_help_groups_the_commands_in_panels(program: Program) -> None:
    status, out, err = program("--help")
    assert (status, err) == (0, "")
    assert re.findall(r"─ (\w+) ─", out) == ["Options", *PANELS]
    status, alone, err = program()
    assert (status, err) == (0, "")
    assert alone.removesuffix(f"{EXAMPLES}\n").strip() == out.strip()
    assert alone.strip() != out.strip()
    assert program("--version") == (0, f"mt {__version__}\n", "")


def test_help_in_a_pipe_is_plain_text() -> None:
    plain = process("--help")
    assert plain.returncode == 0
    assert "Usage: mt [OPTIONS] COMMAND [ARGS]..." in plain.stdout
    assert "\x1b" not in plain.stdout
    assert process("--help", env={"NO_COLOR": "1"}).stdout == plain.stdout


@pytest.mark.parametrize(
    ("words", "completed"), [("mt tra", {"train", "translate"}), ("mt train --r", {"--run"})]
)
def test_shell_completion_lists_commands_and_options(words: str, completed: set[str]) -> None:
    request = {"COMP_WORDS": words, "COMP_CWORD": str(words.count(" "))}
    done = process(env={"_MT_COMPLETE": "complete_bash", **request})
    assert (done.returncode, done.stderr) == (0, "")
    assert set(done.stdout.split()) == completed


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("trian", "No such command 'trian'. Did you mean 'train'? Usage: mt [OPTIONS] COMMAND [AR"),
        ("--versoin", "No such option: --versoin (Possible options: --version). Usage: mt [OPT"),
        ("train", "Missing argument 'CONFIG|RUN'. Usage: mt train [OPTIONS] "),
        ("train a.zh a.en", " `mt init a.zh a.en` writes a config for a corpus. Usage: mt train"),
        ("translate --beam 3 r", "Did you mean `--set decoding.beam=3`? Usage: mt translate"),
        ("train x --dropuot=0.3", "Did you mean `--set model.dropout=0.3`? Usage: mt train"),
        ("train x --seed", "Did you mean `--set decoding.seed=VALUE`, `--set seed=VALUE`? Usage"),
        ("translate r --dropout 3", "--dropout (Possible options: --report). Usage: mt translate"),
        ("evaluate tiny.yaml", "was expected; `mt train tiny.yaml` trains one"),
        ("translate r --device gpu", "'gpu' is not one of 'auto', 'cuda', 'mps', 'cpu'."),
        ("train tiny.yaml --set model.nrom=x", "--set model.nrom: unknown; did you mean `model."),
        ("translate r --set beam=4", "only keys of `decoding` can be set here; did you mean `dec"),
        ("average r --output o --checkpoints 1,x", "--checkpoints 1,x: write best, best:3, last"),
        ("info . --set seed=2", "--set does not go with a run"),
        ("export r --to huggingface --quantization int8", "--quantization cannot be combined wit"),
        ("plot attention run x -o a.png --set seed=2", "only keys of `decoding` can be set here"),
    ],
)
def test_invalid_call_is_one_line_and_leaves_nothing(
    arguments: str, message: str, refused: Refused, recipe: Path
) -> None:
    assert message in refused(*arguments.split())
    assert [*Path().iterdir()] == [recipe]


def test_config_in_place_of_a_run_is_answered_with_its_run(refused: Refused, recipe: Path) -> None:
    Path("runs/tiny").mkdir(parents=True)
    config = Path("runs/tiny/config.yaml")
    config.write_bytes(recipe.read_bytes())
    for command, file in (("evaluate", recipe), ("translate", recipe), ("translate", config)):
        assert refused(command, file).endswith("; did you mean `runs/tiny`?")


READ = {
    *("api_key_file", "config", "corpora", "file", "glossary", "inputs", "origin", "path"),
    *("memory", "prefixes", "references", "runs", "sample", "source", "sources", "subject"),
    *("systems", "target", "targets", "test", "valid", "RUN"),
}
"""Paths that are read, by name or metavar; each other path of a command is an output."""
RESUMED = {"train run", "reproduce run", "plan run"}
"""Run folders that are continued, and refused if they hold anything else."""


def list_calls(words: str, command: Callable[..., None]) -> Iterator[list[str]]:
    """Yield a call for each output of a command and each other path; both are named `same`."""
    hints = get_type_hints(command, include_extras=True)
    hints.pop("return")
    infos = {name: hint.__metadata__[0] for name, hint in hints.items()}
    paths = {
        name
        for name, info in infos.items()
        if "Path" in str(hints[name]) or re.search("FILE|CORPUS|DIR|RUN", info.metavar or "")
    }
    outputs = {name for name in paths if not {name, infos[name].metavar} & READ}
    outputs -= {name for name in paths if f"{words} {name}" in RESUMED}
    optional = {
        name
        for name, parameter in inspect.signature(command).parameters.items()
        if parameter.default is not inspect.Parameter.empty
    }
    for output, other in ((output, other) for output in sorted(outputs) for other in sorted(paths)):
        call = words.split()
        for name in hints:
            value = "same" if name in (output, other) else "x"
            if value == "x" and name in optional:
                continue
            kind, *_ = get_args(hints[name])
            if get_origin(kind) is Literal:
                value = get_args(kind)[0]
            if isinstance(infos[name], typer.models.OptionInfo):
                named = str(infos[name].default)  # the first name of the option, if it has some
                option = named if named.startswith("-") else f"--{name}".replace("_", "-")
                call += [option, value] * (2 if output == other == name else 1)
            else:
                call.append(value)
        if output != other or "list" in str(hints[output]):
            yield call


@pytest.mark.parametrize(
    "call",
    [
        call
        for group in (app, *filter(None, (part.typer_instance for part in app.registered_groups)))
        for entry in group.registered_commands
        if entry.callback
        for name in [str(entry.name or entry.callback.__name__)]
        for call in list_calls(
            name if group is app else f"{group.info.name} {name}", entry.callback
        )
    ],
    ids=" ".join,
)
def test_no_output_of_a_command_replaces_its_input(
    call: list[str], refused: Refused, recipe: Path
) -> None:
    Path("same").write_text("kept")
    os.link("same", "hard")
    Path("soft").symlink_to("same")
    for name in ("same", "./same", "soft", "hard", str(Path("same").absolute())):
        last = len(call) - call[::-1].index("same")
        assert "is named twice, and would be writ" in refused(*call[: last - 1], name, *call[last:])
    assert Path("same").read_text() == "kept"
    assert {path.name for path in Path().iterdir()} == {"same", "hard", "soft", recipe.name}


def test_redirected_files_are_inputs_and_outputs_as_well(tmp_path: Path) -> None:
    text = tmp_path / "text"
    text.write_text("kept\n")
    with text.open() as stdin:
        done = process("translate", "run", "-o", str(text), stdin=stdin)
    assert (done.returncode, done.stderr.count("is named twice")) == (2, 1)
    with text.open("a") as stdout:
        done = process("translate", "run", str(text), stdout=stdout)
    assert done.returncode == 2
    assert done.stderr.startswith("error: stdout is a file that the command reads")
    done = process("data", "clean", "c", "--set", f"data.train.path={text}", "--out", str(text))
    assert (done.returncode, done.stderr.count("is named twice")) == (2, 1)
    assert text.read_text() == "kept\n"


def test_missing_package_is_named_with_its_installation(
    refused: Refused, recipe: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mt.cli.inspect.find_spec", lambda name: None)
    message = refused("plot", "attention", "run", "text", "-o", "a.png")
    assert 'pip install "matplotlib>=' in message


def test_exceptions_of_a_command_propagate_through_typer(
    program: Program, recipe: Path, recorded: Recorded
) -> None:
    trainer = "mt.training.trainer.train"
    recorded(trainer, PermissionError(13, "x", "runs/tiny"))
    assert program("train", recipe) == (2, "", "error: runs/tiny: Permission denied\n")
    recorded(trainer, KeyboardInterrupt())
    assert program("train", recipe) == (130, "", "")
    recorded(trainer, SystemExit(143))
    assert program("train", recipe) == (143, "", "")
    recorded(trainer, ZeroDivisionError())
    with pytest.raises(ZeroDivisionError):
        program("train", recipe)


def test_help_and_config_errors_import_nothing_heavy(recipe: Path) -> None:
    calls = [
        (["--help"], 0),
        (["train", "--help"], 0),
        (["plot", "attention", "--help"], 0),
        (["train", "tiny.yaml", "--set", "model.nrom=1"], 2),
        (["info", "tiny.yaml", "--set", "model.heads=3"], 2),
        (["evaluate", "r", "--references", "s"], 2),
        (["translate", "r", "--set", "seed=2"], 2),
    ]
    code = (
        "import sys; from mt.__main__ import main\n"
        f"for sys.argv, status in {[(['mt', *call], status) for call, status in calls]}:\n"
        "    assert main() == status, sys.argv\n"
        "    assert sys.argv[-1] != '--help' or 'mt.config' not in sys.modules\n"
        f"print('imported:', *sorted({HEAVY} & set(sys.modules)))"
    )
    done = process(code=code)
    assert (done.returncode, done.stdout.splitlines()[-1:]) == (0, ["imported:"]), done.stderr


WRITES = """
import sys
from mt.__main__ import main
from mt.cli.app import app
@app.command()
def write() -> None:
    for _ in range(LINES):
        sys.stdout.write("a line of text\\n")
sys.exit(main())
"""


@pytest.mark.parametrize("lines", [1, 100_000])
def test_closed_pipe_ends_the_program_quietly(lines: int) -> None:
    # One line is flushed at the end of the program, many break the pipe before.
    reading, writing = os.pipe()
    os.close(reading)
    code = WRITES.replace("LINES", str(lines))
    done = process("write", code=code, stdout=writing)
    os.close(writing)
    assert (done.returncode, done.stderr) == (141, "")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
def test_full_disk_behind_stdout_is_reported_once() -> None:
    code = WRITES.replace("LINES", "1")
    with Path("/dev/full").open("wb") as full:
        done = process("write", code=code, stdout=full)
    assert done.returncode == 2
    assert done.stderr == "error: output: No space left on device\n"


def test_output_is_utf_8_in_any_locale() -> None:
    code = WRITES.replace("LINES", "1").replace("a line of text", "早上好")
    done = process("write", code=code, env={"PYTHONIOENCODING": "ascii"})
    assert (done.returncode, done.stdout) == (0, "早上好\n")


def test_logs_go_to_stderr() -> None:
    log = "__import__('logging').getLogger('{}').info('{}')"
    both = f"{log.format('mt.x', 'ours')} or {log.format('y', 'theirs')} or 0"
    assert process("write", code=WRITES.replace("LINES", both)).stderr == "ours\n"


def test_bug_shows_a_plain_traceback() -> None:
    done = process("write", code=WRITES.replace("LINES", "1 / 0"))
    assert done.returncode == 1
    assert done.stderr.startswith("Traceback (most recent call last):\n")
    assert done.stderr.endswith("ZeroDivisionError: division by zero\n")


def test_option_that_takes_one_value_is_refused_where_it_is_given_twice(program: Program) -> None:
    status, out, err = program("evaluate", "run", "--split", "a", "--split", "b")
    assert (status, out) == (2, "")
    assert err == "error: --split is given twice; `mt evaluate` takes one\n"
