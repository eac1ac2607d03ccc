"""Atomic replacement of folders, and the comparison of outputs with inputs."""

import errno
import os
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from mt.errors import UserError
from mt.files import check_outputs, make_cache_folder, open_aside, put_in_place, write_text


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "new"
    (folder / "inner").mkdir(parents=True)
    (folder / "model").write_text("new")
    (folder / "inner" / "token").write_text("new")
    return folder


def test_folder_is_synced_before_it_is_renamed(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = [folder, folder / "inner", folder / "model", folder / "inner" / "token"]
    wanted = {path.stat().st_ino for path in parts}
    output, synced = tmp_path / "out", []

    def watched(descriptor: int) -> None:
        synced.append((os.fstat(descriptor).st_ino, output.exists()))

    monkeypatch.setattr(os, "fsync", watched)
    put_in_place(folder, output)
    assert {number for number, there in synced if not there} == wanted
    assert synced[-1] == (tmp_path.stat().st_ino, True)
    assert (output / "inner" / "token").read_text() == "new"
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_existing_folder_is_replaced_completely(folder: Path, tmp_path: Path) -> None:
    output = tmp_path / "out"
    output.mkdir()
    (output / "old").write_text("old")
    put_in_place(folder, output)
    assert sorted(path.name for path in output.iterdir()) == ["inner", "model"]
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_a_new_folder_replaces_nothing_of_others(folder: Path, tmp_path: Path) -> None:
    output = tmp_path / "output"
    output.mkdir()
    (output / "mine").touch()
    with pytest.raises(OSError) as error:
        put_in_place(folder, output, is_new=True)
    assert error.value.errno == errno.ENOTEMPTY
    assert [path.name for path in output.iterdir()] == ["mine"]


@pytest.mark.parametrize("is_there", [True, False])
def test_a_link_stays_and_its_end_is_replaced(is_there: bool, tmp_path: Path) -> None:
    link, end = tmp_path / "link", tmp_path / "disk" / "end"
    (end if is_there else end.parent).mkdir(parents=True)
    link.symlink_to(end)
    with open_aside(link) as aside:
        assert aside.parent.parent == end.parent
        (aside / "new").touch()
        put_in_place(aside, link)
    assert link.readlink() == end
    assert [path.name for path in link.iterdir()] == ["new"]
    assert [*end.parent.iterdir()] == [end]


WRITER = """
import sys
from functools import partial
from pathlib import Path
from mt.files import open_aside, replace_file
with replace_file(Path(sys.argv[1])) as file, open_aside(Path(sys.argv[2])) as folder:
    file.touch()
    print(folder, flush=True)
    sys.stdin.read()
"""


def test_files_of_killed_processes_are_deleted_those_of_living_ones_stay(tmp_path: Path) -> None:
    command = [sys.executable, "-c", WRITER, str(tmp_path / "file"), str(tmp_path / "folder")]
    start = partial(subprocess.Popen[str], command, stdin=-1, stdout=-1, text=True)
    with start() as one, start() as other:
        killed, living = (
            Path(str(writer.stdout and writer.stdout.readline()).strip()) for writer in (one, other)
        )
        theirs = tmp_path / ".folder.x.mt-aside"  # another process begins to write
        theirs.mkdir()
        one.kill()
        one.wait()
        write_text(tmp_path / "another", "")
        assert not killed.parent.exists() and living.parent.exists()
        assert len([*tmp_path.iterdir()]) == 4
        other.communicate("")
    assert {path.name for path in tmp_path.iterdir()} == {"another", "file", theirs.name}


def test_cache_that_cannot_be_written_is_named_with_its_variable(tmp_path: Path) -> None:
    (tmp_path / "cache").touch()
    with pytest.raises(UserError, match=r"cache/pairs: .*Not a directory; set MT_CACHE"):
        make_cache_folder(tmp_path / "cache" / "pairs")


def test_outputs_replace_no_input_and_each_other_neither(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    run, text, weights = Path("run"), Path("text"), Path("weights")
    (run / "inner").mkdir(parents=True)
    (run / "inner" / "file").write_text("")
    text.write_text("")
    weights.write_text("")
    (run / "model").symlink_to(weights.absolute())
    os.link(text, "hard")
    os.mkfifo("pipe")
    Path("soft").symlink_to("text")
    Path("folder").symlink_to("run")
    null = Path(os.devnull)
    check_outputs([Path("a"), None, run / "new", null, null], [run, text, null, None])
    check_outputs([run / "inner"], [run])
    for paths, message in (
        ([Path("a"), Path("run/../a")], "is named twice"),
        *(
            ([Path(name)], f"{name}: is named twice")
            for name in ("text", "hard", "soft", "run/../soft")
        ),
        ([Path("folder")], "folder: is named twice"),
        ([Path("pipe"), Path("pipe")], "pipe: is named twice"),
        *(
            ([Path(name)], f"{name}: is a file of the input")
            for name in ("run/inner/file", "folder/inner/file", "weights")
        ),
    ):
        with pytest.raises(UserError, match=message):
            check_outputs(paths, [run, text])
