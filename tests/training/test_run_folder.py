"""Folders that a run may use, and changes of its config."""

from importlib import metadata
from pathlib import Path

import pytest

from mt.config import Config
from mt.config.loading import load_config
from mt.data.pairs import Checksums
from mt.errors import RunError
from mt.training.run_folder import (
    RunFolder,
    differences,
    environment,
    only_training,
    open_run,
)
from tests import factories
from tests.factories import CPU


def config(**training: object) -> Config:
    return factories.config(training={"max_updates": 10, **training})


@pytest.fixture(autouse=True)
def _corpus(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path_factory.mktemp("corpus")
    for side in ("en", "de"):
        (folder / f"a.{side}").write_text("one\n", encoding="utf-8")
    monkeypatch.chdir(folder)


def opened(path: Path, config: Config) -> tuple[RunFolder, list[str]]:
    folder, _ = open_run(path, config)
    folder.begin(config)
    return folder, folder.changes


def begun(path: Path) -> Path:
    """Return a run with a checkpoint."""
    opened(path, config())
    (path / "checkpoints" / "update-000000005").mkdir(parents=True)
    return path


def test_new_run_holds_the_resolved_config(tmp_path: Path) -> None:
    folder, changes = opened(tmp_path / "runs" / "x", config())
    assert changes == []
    assert load_config(folder.config) == config()


def test_run_continues_with_the_same_config(tmp_path: Path) -> None:
    _, changes = opened(begun(tmp_path / "x"), config())
    assert changes == []


def test_end_of_the_run_may_change_and_is_reported(tmp_path: Path) -> None:
    changed = config(max_updates=20, keep_last=3)
    folder, changes = opened(begun(tmp_path / "x"), changed)
    assert changes == ["training.max_updates: 10 -> 20", "training.keep_last: 2 -> 3"]
    assert load_config(folder.config) == changed


def test_other_changes_are_refused_and_named(tmp_path: Path) -> None:
    path = begun(tmp_path / "x")
    before = (path / "config.yaml").read_bytes()
    with pytest.raises(RunError, match=r"training\.label_smoothing: 0\.1 -> 0\.2.*--run"):
        opened(path, config(label_smoothing=0.2, max_updates=20))
    assert (path / "config.yaml").read_bytes() == before


def test_run_without_checkpoint_may_begin_with_another_config(tmp_path: Path) -> None:
    folder, _ = opened(tmp_path / "x", config())
    folder.tokenizer.mkdir()
    (folder.tokenizer / "joint.model").write_text("old")
    again, changes = opened(tmp_path / "x", config(label_smoothing=0.2))
    assert changes == []
    assert not (again.tokenizer / "joint.model").exists()


def test_opening_a_run_changes_no_file(tmp_path: Path) -> None:
    """Another training may hold the lock, and be preparing."""
    folder, _ = opened(tmp_path / "x", config())
    folder.tokenizer.mkdir()
    (folder.tokenizer / "joint.model").write_text("half of it")
    before = folder.config.read_bytes()
    open_run(tmp_path / "x", config(label_smoothing=0.2))
    assert (folder.tokenizer / "joint.model").read_text() == "half of it"
    assert folder.config.read_bytes() == before


def test_folder_with_a_lock_only_is_empty(tmp_path: Path) -> None:
    with only_training(RunFolder(tmp_path)):
        assert opened(tmp_path, config())[1] == []


def test_folder_with_other_content_is_refused_and_not_changed(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("my only copy")
    with pytest.raises(RunError, match="not empty, and not a run folder"):
        opened(tmp_path, config())
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]
    with pytest.raises(RunError, match="is a file"):
        opened(tmp_path / "thesis.txt", config())


def test_changed_corpus_is_an_error(tmp_path: Path) -> None:
    folder, _ = opened(tmp_path / "x", config())
    folder.record_corpora({"train": Checksums("a" * 64, "b" * 64)})
    folder.record_corpora({"train": Checksums("a" * 64, "b" * 64)})
    with pytest.raises(RunError, match=r"target side of `data\.train` has changed"):
        folder.record_corpora({"train": Checksums("a" * 64, "c" * 64)})


def test_differences_by_key() -> None:
    one, other = config(), config().model_copy(update={"seed": 7})
    assert differences(one, other) == {"seed": (1, 7)}


def test_second_training_in_a_folder_is_refused(tmp_path: Path) -> None:
    folder, _ = opened(tmp_path / "x", config())
    with (
        only_training(folder),
        pytest.raises(RunError, match="another training is running here"),
        only_training(folder),
    ):
        pass
    with only_training(folder):  # free again
        pass


def test_environment_has_the_versions_of_installed_packages(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    version = metadata.version

    def without_datasets(name: str) -> str:
        if name == "datasets":
            raise metadata.PackageNotFoundError(name)
        return version(name)

    monkeypatch.setattr(metadata, "version", without_datasets)
    packages = environment(CPU, "fp32")["packages"]
    assert isinstance(packages, dict)
    assert packages["torch"] == version("torch")
    assert "datasets" not in packages


def test_missing_file_beside_the_run_folder_is_not_explained(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError), only_training(RunFolder(tmp_path)):
        raise FileNotFoundError(2, "No such file", "elsewhere")
