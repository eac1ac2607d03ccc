"""Invalid input and failing disks: one clear line, exit status 2, and no data lost."""

import errno
import json
import logging
import os
import re
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from mt.data.corpus_files import LONGEST_LINE
from mt.runs import best_checkpoint
from mt.training import trainer
from mt.training.run_folder import RunFolder
from tests.factories import Program

Change = Callable[[bytes], bytes]
Refused = Callable[[str], str]
TRAIN = "train tiny.yaml --run new"
_LARGE = 3 << 30
RESUME = "train run/config.yaml --run run --set training.max_updates=50"


@pytest.fixture(autouse=True)
def _user_folder(
    tiny_corpus: Path, finished_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Change to a folder with `corpus/`, `tiny.yaml` and the finished `run/`."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(tiny_corpus, "corpus")
    shutil.copytree(finished_run, "run")
    recipe = Path("corpus/tiny.yaml").read_text().replace(str(tiny_corpus), "corpus")
    Path("tiny.yaml").write_text(recipe)


def contents() -> dict[Path, bytes]:
    """Return the bytes of all files but the sparse ones of `make_large`."""
    paths = (path for path in Path().rglob("*") if path.is_file())
    return {path: path.read_bytes() for path in paths if path.stat().st_size < _LARGE}


@pytest.fixture
def refused(program: Program) -> Refused:
    """Return a function that runs `mt`, expects one error at the end, and returns its message.

    All existing files must stay byte for byte; only the folder `new` may get new files.
    """

    def run(arguments: str) -> str:
        before = contents()
        status, out, err = program(*arguments.split())
        assert (status, out) == (2, "")
        *_, message = err.splitlines()
        assert err.count("error: ") == 1
        after = contents()
        assert {path: after.get(path) for path in before} == before
        assert all(path.is_relative_to("new") for path in after.keys() - before)
        return message.removeprefix("error: ")

    return run


@pytest.fixture
def one_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep the reports of a finished run, which are no errors, away from stderr."""
    monkeypatch.setattr(logging.getLogger("mt"), "propagate", False)


def change(path: str, edit: Change) -> None:
    Path(path).write_bytes(edit(Path(path).read_bytes()))


def flip_a_byte(data: bytes) -> bytes:
    middle = len(data) // 2
    return data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :]


def line(number: int, text: bytes) -> Change:
    """Return a function that replaces a line of a text, counted from 1."""

    def edit(data: bytes) -> bytes:
        lines = data.splitlines(keepends=True)
        return b"".join([*lines[: number - 1], text, *lines[number:]])

    return edit


def drop_last_line(data: bytes) -> bytes:
    return b"".join(data.splitlines(keepends=True)[:-1])


def both(split: str, text: bytes) -> dict[str, Change]:
    return {f"corpus/{split}.{side}": lambda _: text for side in ("en", "de")}


NO_UTF_8 = line(3, b"caf\xe9\n")
DAMAGED_MODEL = {"run/model.json": lambda _: b"{"}
DAMAGED_TOKENIZER = {"run/tokenizer/joint.model": flip_a_byte}


@pytest.mark.parametrize(
    ("changes", "command", "message"),
    [
        *(
            (both(split, b""), TRAIN, f"corpus/{split}.en and corpus/{split}.de: the corpus is em")
            for split in ("train", "valid", "test")
        ),
        (both("train", b" \n\n"), TRAIN, "...the training corpus has no text to learn a tokenizer"),
        (
            {},
            f"{TRAIN} --set data.max_tokens=3",
            "corpus/train.en and ...no pair is left to train on: of 60, 0 have an empty side and "
            "60 have more",
        ),
        *(
            (
                {f"corpus/{split}.de": drop_last_line},
                TRAIN,
                f"corpus/{split}.en has {count} lines, corpus/{split}.de has {count - 1}: ",
            )
            for split, count in (("train", 60), ("test", 6))
        ),
        *(
            (
                {f"corpus/{split}.de": NO_UTF_8},
                TRAIN,
                f"corpus/{split}.de: line 3 is not UTF-8 (byte 0xe9)",
            )
            for split in ("train", "valid", "test")
        ),
        ({}, f"{TRAIN} --set tokenizer.from=corpus", "corpus: no tokenizer is here"),
        ({}, "translate corpus", "...config.yaml"),
        ({}, "translate tiny.yaml", "tiny.yaml: is a file, a run folder was expected;"),
        ({"run/model.safetensors": flip_a_byte}, "translate run", "run/model.safetensors: damaged"),
        (
            {"corpus/test.en": lambda _: b"<p>a</p>" + b"b" * (1 + LONGEST_LINE)},
            "translate run corpus/test.en --format html",
            "corpus/test.en: text 2 has more than 1,048,576 characters; divide it",
        ),
        (
            both("test", b"one\n" + b"one " * 5000),
            "score run --sources corpus/test.en --targets corpus/test.de",
            "corpus/test.en: line 2 has ... tokens, at most 4,096 can be scored; leave the line",
        ),
        (DAMAGED_MODEL, "translate run", "run/model.json: "),
        (DAMAGED_TOKENIZER, "translate run", "run/tokenizer/joint.model: damaged"),
        (
            {},
            "train tiny.yaml --run run --set seed=7",
            "run: holds a run of another config (seed: 4 -> 7; data...; name another folder with "
            "--run",
        ),
        ({}, "train tiny.yaml --run corpus", "corpus: ...; name another folder with --run"),
        ({}, "evaluate run --split vaild", "split `vaild` is unknown; did you mean `valid`?"),
        (
            {},
            "evaluate corpus/test.de --references corpus/valid.de --target-language de",
            "corpus/test.de has 6 lines, corpus/valid.de has 7: line N of one must answer line N "
            "of the other; pass `--allow line-counts` to score anyway",
        ),
    ],
)
def test_bad_input_is_refused(
    changes: dict[str, Change], command: str, message: str, refused: Refused
) -> None:
    for path, edit in changes.items():
        change(path, edit)
    found = refused(command)
    start, *parts = message.split("...")
    assert found.startswith(start)
    assert all(part in found for part in parts)
    assert not Path("new").exists()


BOMB = "a0: &a0 [x, x]\n" + "".join(f"a{n}: &a{n} [*a{n - 1}, *a{n - 1}]\n" for n in range(1, 40))


def with_source(text: str) -> Callable[[str], str]:
    """Return a function that replaces the source side of the training corpus."""
    return lambda recipe: recipe.replace("corpus/train.en", text)


ODD_CONFIGS: dict[str, tuple[Callable[[str], str], str]] = {
    "aliases": (lambda recipe: BOMB + recipe, "tiny.yaml: not valid YAML: more than 10,000 keys"),
    "map depth": (lambda recipe: recipe + "x: " + "{a: " * 1000, "tiny.yaml: not valid YAML: nest"),
    "size": (lambda recipe: recipe + "#" * (1 << 20), "tiny.yaml: is larger than 1 MiB"),
    "newline in a key": (lambda recipe: recipe + '"a\\nb": 1', "`a\\nb`: unknown"),
    "newline in a path": (with_source('"a\\nb"'), "a\\nb: no such file"),
    "unknown home": (with_source("~nobody0/a"), "~nobody0/a: no such file"),
    "long path": (with_source("k" * 5000), "kkk: File name too long"),
    "missing file": (with_source("corpus/trian.en"), "trian.en: no such file; did you mean `train"),
    "folder as file": (with_source("corpus"), "corpus: is a folder, a file was expected"),
    "unknown key": (
        lambda recipe: re.sub("valid: {.*}", "valid: {format: tsv, pth: x}", recipe),
        "`data.valid.pth`: unknown; did you mean `data.valid.path`?",
    ),
}
"""Changes of a config, and a part of the message."""
CONFIG_COMMANDS = {
    "train": TRAIN,
    "resume": "train tiny.yaml --run run --set training.max_updates=50",
    "plan": "plan tiny.yaml",
    "info": "info tiny.yaml",
    "check": "data check tiny.yaml",
    "clean": "data clean tiny.yaml --out new",
}
_LONGEST_MESSAGE = 1100


def refused_at_once(refused: Refused, command: str) -> str:
    """Return the message of a command that must stop in time and make nothing."""
    before, started_at = {*Path().rglob("*")}, time.process_time()
    message = refused(command)
    assert time.process_time() - started_at < 10
    assert {*Path().rglob("*")} == before
    assert len(message) < _LONGEST_MESSAGE
    assert message.isprintable()
    return message


_FOUND_IN_YAML = ("aliases", "map depth", "size", "newline in a key", "unknown key")


@pytest.mark.timeout(30)
@pytest.mark.parametrize(
    ("name", "command"),
    [
        *((name, "train") for name in ODD_CONFIGS),
        *((name, command) for name in _FOUND_IN_YAML for command in [*CONFIG_COMMANDS][1:]),
    ],
)
def test_odd_config_is_refused_at_once(
    name: str, command: str, refused: Refused, one_error: None
) -> None:
    edit, message = ODD_CONFIGS[name]
    Path("tiny.yaml").write_text(edit(Path("tiny.yaml").read_text()))
    assert message in refused_at_once(refused, CONFIG_COMMANDS[command])


def link_to(target: str) -> Callable[[Path], None]:
    return lambda path: path.symlink_to(target or path.name)


def make_large(path: Path) -> None:
    path.touch()
    os.truncate(path, _LARGE)


ODD_FILES: dict[str, Callable[[Path], object]] = {
    "pipe": os.mkfifo,
    "device": link_to("/dev/zero"),
    "link to itself": link_to(""),
    "folder": Path.mkdir,
    "deep": lambda path: path.write_text("[" * 500 + "]" * 500),
    "large": make_large,
    "list": lambda path: path.write_text("[]"),
    "wrong types": lambda path: path.write_text('{"format": 1, "tokenizer": -1, "state": [1]}'),
}
"""Kinds of files that are not those of a run or corpus."""
CHECKPOINT = "run/checkpoints/update-000000040"
ODD_PLACES = {
    "tiny.yaml": TRAIN,
    "corpus/train.en": TRAIN,
    "corpus/valid.de": "data check tiny.yaml",
    "run/config.yaml": "translate run",
    "run/model.json": "export run --to ctranslate2 --output new",
    "run/model.safetensors": "translate run",
    "run/corpora.json": "info run",
    "run/environment.json": "info run",
    "run/tokenizer/tokenizer.json": "translate run",
    "run/tokenizer/joint.model": "average run --output new",
    "corpus/test.de": "compare run corpus/test.de",
    f"{CHECKPOINT}/manifest.json": "average run --output new --checkpoints 40",
    f"{CHECKPOINT}/state.json": "average run --output new --checkpoints 40",
    f"{CHECKPOINT}/model.safetensors": "average run --output new --checkpoints 40",
}
"""A command that reads the file, by file."""
_TEXTS = {"deep", "large", "list", "wrong types"}
_CORPORA = [place for place in ODD_PLACES if place.startswith("corpus/")]
_UNCHECKED = {(place, kind) for place in _CORPORA for kind in _TEXTS}
# Translations are read once, and from a device without an end if the user says so.
_UNCHECKED |= {("corpus/test.de", "pipe"), ("corpus/test.de", "device")}
_UNCHECKED |= {("run/environment.json", "wrong types")}  # its other keys are optional
# Weights may be that large.
_UNCHECKED |= {(f"{folder}/model.safetensors", "large") for folder in ("run", CHECKPOINT)}


@pytest.mark.timeout(30)
@pytest.mark.parametrize(
    ("place", "kind"),
    [
        (place, kind)
        for place in ODD_PLACES
        for kind in ODD_FILES
        if (place, kind) not in _UNCHECKED
    ],
)
def test_odd_file_is_refused_at_once(
    place: str, kind: str, refused: Refused, one_error: None
) -> None:
    Path(place).unlink()
    ODD_FILES[kind](Path(place))
    message = refused_at_once(refused, ODD_PLACES[place])
    named = CHECKPOINT if place.startswith(CHECKPOINT) else place
    assert message.startswith((named, f"{Path(place).parent}: "))


def test_export_without_the_result_of_its_comparison_is_refused(
    exported_run: Path, refused: Refused
) -> None:
    shutil.copytree(exported_run, "new")
    change("new/export.json", lambda data: data.replace(b'"identical"', b'"x"'))
    message = "new/export.json: damaged (`identical`: Field required)"
    assert refused("info new") == message


def test_unfinished_run_is_refused_where_its_final_model_is_needed(refused: Refused) -> None:
    Path("run/model.json").unlink()
    for command in (
        "export run --to ctranslate2 --output new",
        "distill run corpus/test.en --out new",
        "train tiny.yaml --set training.init_from=run --run new",
    ):
        assert "training has not finished, model.json is missing" in refused(command)


def test_unfinished_run_without_an_intact_checkpoint_is_refused(refused: Refused) -> None:
    Path("run/model.json").unlink()
    best = best_checkpoint(Path("run"))[0]
    for name in ("model.safetensors", "manifest.json"):
        change(str(best / name), lambda data: b"{" + data)
        assert refused("translate run").startswith(f"{best / name}: damaged")
    shutil.rmtree("run/checkpoints")
    told = "run: the training has not finished, and there is no checkpoint yet; `mt train run` "
    for command in ("translate run", "evaluate run"):
        assert refused(command).startswith(told)


def test_recipe_in_the_run_folder_is_not_overwritten(refused: Refused) -> None:
    Path("mine").mkdir()
    Path("tiny.yaml").rename("mine/config.yaml")
    message = refused("train mine/config.yaml --run mine")
    assert message.startswith("mine: ")
    assert message.endswith("; name another folder with --run")


@pytest.mark.parametrize("split", ["train", "valid"])
def test_changed_corpus_is_refused_by_a_resumed_run(
    split: str, tiny_corpus: Path, refused: Refused
) -> None:
    change(f"corpus/{split}.de", line(2, b"eins\n"))
    text = Path("run/config.yaml").read_text().replace(str(tiny_corpus), "corpus")
    Path("run/config.yaml").write_text(text.replace("updates: 40", "updates: 50"))
    message = refused("train run/config.yaml --run run")
    assert f"run: the target side of `data.{split}` has changed since this run" in message


def test_damaged_checkpoints_are_refused(program: Program) -> None:
    program(*RESUME.replace("50", "41").split())
    checkpoints = RunFolder(Path("run")).checkpoints
    for update in checkpoints.updates():
        change(str(checkpoints.path(update) / "model.safetensors"), flip_a_byte)
    before = {path: data for path, data in contents().items() if "checkpoints" in path.parts}
    status, out, err = program(*RESUME.split())
    assert (status, out) == (2, "")
    damaged = f"{checkpoints.path(41)}: the checkpoint is damaged (model.safetensors: "
    assert f"error: {damaged}" in err
    assert "), and there is no earlier one to resume from; train a new run with --run\n" in err
    assert before.items() <= contents().items()


def test_damaged_tokenizer_and_that_of_another_run_are_refused(
    program: Program, refused: Refused
) -> None:
    # The vocabularies have the same size, but not the same fingerprint.
    change("corpus/train.en", line(1, b"five nine nine nine\n"))
    settings = " --set training.max_updates=1 --set tokenizer.algorithm=unigram"
    assert program(*f"{TRAIN}{settings}".split())[0] == 0
    shutil.rmtree("run/tokenizer")
    shutil.copytree("new/tokenizer", "run/tokenizer")
    message = "run/tokenizer: is the tokenizer of another run (fingerprint "
    assert refused("translate run").startswith(message)
    assert f"error: {message}" in program(*RESUME.split())[2]
    change("run/tokenizer/joint.model", flip_a_byte)
    assert "error: run/tokenizer/joint.model: damaged" in program(*RESUME.split())[2]


def test_corpus_of_three_pairs_is_enough(program: Program) -> None:
    for side in ("en", "de"):
        change(f"corpus/train.{side}", lambda data: b"".join(data.splitlines(keepends=True)[:3]))
    settings = "--set training.max_updates=4 --set tokenizer.vocabulary_size=8000"
    assert program(*f"{TRAIN} {settings}".split())[0] == 0
    status, out, _ = program("translate", "new", stdin=b"one two\nthree\n")
    assert (status, out.count("\n")) == (0, 2)


def test_run_that_failed_before_training_can_be_repeated_with_a_changed_corpus(
    program: Program, refused: Refused
) -> None:
    change("corpus/train.de", NO_UTF_8)
    assert "line 3 is not UTF-8" in refused(TRAIN)
    change("corpus/train.de", line(3, b"\n"))
    status, _, err = program(*f"{TRAIN} --set training.max_updates=1 --set seed=2".split())
    assert status == 0
    assert "59 pairs to train on (0 too long and 1 with an empty side left out of 60)" in err


def test_finished_run_is_not_trained_again(
    program: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.rmtree("corpus")
    monkeypatch.setattr(trainer, "prepare", None)
    before = contents()
    status, out, _ = program("train", "run/config.yaml", "--run", "run")
    assert status == 0
    assert out.startswith("run: finished already; valid, ")
    assert contents() == before


@contextmanager
def failing(name: str, number: int, folder: Path) -> Iterator[None]:
    """Make a function of `os` on files raise OSError below a folder."""
    original, below = getattr(os, name), folder.absolute()

    def fail(file: Any, *rest: Any, **named: Any) -> Any:
        path = Path(f"/proc/self/fd/{file}").resolve() if isinstance(file, int) else Path(file)
        if path.absolute().is_relative_to(below):
            # The error of a failed write or sync has no file name.
            raise OSError(number, "failed", *(() if name == "fsync" else (str(path),)))
        return original(file, *rest, **named)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, name, fail)
        yield


def test_full_disk_at_a_checkpoint_loses_only_later_updates(
    finished_run: Path, refused: Refused, program: Program
) -> None:
    checkpoints = RunFolder(Path("new")).checkpoints
    first, second = checkpoints.path(10), checkpoints.path(20)
    with failing("fsync", errno.ENOSPC, checkpoints.folder / f".{second.name}"):
        assert refused(TRAIN) == f"{second}: No space left on device"
    assert [path.name for path in checkpoints.folder.iterdir()] == [first.name]
    assert program(*TRAIN.split())[0] == 0
    weights = Path("new/model.safetensors").read_bytes()
    assert weights == (finished_run / "model.safetensors").read_bytes()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
def test_full_disk_under_the_metrics_is_reported(refused: Refused) -> None:
    Path("new").mkdir()
    Path("new/metrics.jsonl").symlink_to("/dev/full")
    shutil.copy("run/config.yaml", "new")
    message = refused("train new/config.yaml --run new")
    assert message == "new/metrics.jsonl: No space left on device"


def test_full_disk_keeps_the_existing_translation(refused: Refused) -> None:
    Path("out.txt").write_text("precious")
    with failing("fsync", errno.ENOSPC, Path()):
        message = refused("translate run corpus/test.en -o out.txt")
    assert message == f"{Path('out.txt').absolute()}: No space left on device"


@pytest.mark.parametrize(
    "command",
    [
        "average run --output new",
        "data clean tiny.yaml --out new --set data.cleaning.normalize_spaces=true",
        "export run --to ctranslate2 --output new",
        "import marian --run new",
    ],
)
def test_full_disk_names_the_folder_that_was_not_written(
    command: str, refused: Refused, program: Program
) -> None:
    if command.startswith("import"):
        assert program("export", "run", "--to", "huggingface", "--output", "marian")[0] == 0
    with failing("fsync", errno.ENOSPC, Path()):
        assert refused(command).endswith("new: No space left on device")
    assert not Path("new").exists()


def test_missing_permission_for_the_run_folder_is_reported(refused: Refused) -> None:
    # Root may write anywhere, hence the simulated error.
    with failing("mkdir", errno.EACCES, Path()):
        assert refused(TRAIN) == "new: Permission denied"


def leads_nowhere(path: Path) -> str:
    path.symlink_to("/none/of/these")
    return f"{path}: is a link to /none/of/these, which is not there"


def is_device(path: Path) -> str:
    path.symlink_to("/dev/zero")
    return f"{path}: is not a regular file"


@pytest.mark.parametrize("make", [leads_nowhere, is_device])
@pytest.mark.parametrize(
    "name",
    ["config.yaml", "model.json", "model.safetensors", "export.json", "tokenizer/joint.model"],
)
def test_run_file_that_is_no_file_is_named_and_not_opened(
    name: str, make: Callable[[Path], str], program: Program
) -> None:
    path = Path("run", name)
    path.unlink(missing_ok=True)
    message = make(path)
    commands = ["translate run corpus/test.en", "info run"]
    if name != "export.json":  # an export does not read that of its run
        commands.append("export run --to ctranslate2")
    for command in commands:
        assert program(*command.split())[::2] == (2, f"error: {message}\n")


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (
            "train run/model.json",
            "run/model.json: is a file of a run, not a config; that is run/conf",
        ),
        ("plan run/tokenizer/tokenizer.json", "run/tokenizer/tokenizer.json: is a file of a run,"),
        ("info run/model.safetensors", "run/model.safetensors: is a file of a run, not a config;"),
        ("plan run", "run: is a folder, a config was expected; a config is in it, run/config.yaml"),
        ("translate other", "other: no such run folder; there are `run`, `runs/good`"),
        ("evaluate runs", "runs: not a run folder, config.yaml is missing; there are `runs/good`"),
        ("train other", "other: no such file; there are `run`, `runs/good`"),
        ("translate ruin", "ruin: no such run folder; did you mean `run`?"),
        ("export none --to ctranslate2", "none: no such run folder; there are `run`, `runs/good`"),
    ],
)
def test_runs_are_told_from_their_files_and_named_nearby(
    command: str, message: str, refused: Refused
) -> None:
    shutil.copytree("run", "runs/good")
    assert refused(command).startswith(message)


def test_paths_of_a_run_are_found_from_another_folder(
    program: Program, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The folder of the training is recorded; a project that has moved has it above the run."""
    elsewhere = tmp_path / "else" / "where"
    elsewhere.mkdir(parents=True)
    assert program(*f"{TRAIN} --set training.max_updates=2".split())[0] == 0
    shutil.move("new", "else/where/far")
    config = Path("else/where/far/config.yaml").read_text()
    evaluate = "evaluate far --split test --json --device cpu"
    monkeypatch.chdir(elsewhere)
    status, out, _ = program(*evaluate.split())
    assert (status, json.loads(out)["sentences"]) == (0, 6)
    average = "average far --output mean --checkpoints 2 --device cpu"
    assert program(*average.split())[0] == 0
    assert program("translate", "mean", "../../corpus/test.en")[0] == 0
    assert Path("far/config.yaml").read_text() == config
    shutil.move(tmp_path / "corpus", tmp_path / "else" / "corpus")
    status, again, _ = program(*evaluate.split())
    assert (status, json.loads(again)["chrf"]) == (0, json.loads(out)["chrf"])
