"""Atomic replacement of folders."""

import os
from pathlib import Path

import pytest

from mt.files import put_in_place


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
