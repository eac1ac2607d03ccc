"""Which folders a run may use, and what of its config may change."""

from pathlib import Path

import pytest

from mt.config import Config
from mt.config.loading import load_config
from mt.errors import RunError
from mt.training.run_folder import RunFolder, begin, differences, only_training, open_run


def config(**training: object) -> Config:
    source = {"format": "text", "source": "a.en", "target": "a.de"}
    data = {"source_language": "en", "target_language": "de", "train": source, "valid": source}
    return Config.model_validate({"data": data, "training": {"max_updates": 10, **training}})


def opened(path: Path, config: Config) -> tuple[RunFolder, list[str]]:
    """Open a run as a training does."""
    folder, changes = open_run(path, config)
    begin(folder, config)
    return folder, changes


def begun(path: Path) -> Path:
    """A run that has a checkpoint."""
    opened(path, config())
    (path / "checkpoints" / "update-000000005").mkdir(parents=True)
    return path


def test_a_new_run_holds_the_resolved_config(tmp_path: Path) -> None:
    folder, changes = opened(tmp_path / "runs" / "x", config())
    assert changes == []
    assert load_config(folder.config) == config()


def test_a_run_goes_on_with_the_same_config(tmp_path: Path) -> None:
    _, changes = opened(begun(tmp_path / "x"), config())
    assert changes == []


def test_what_only_says_when_to_stop_may_change_and_is_told(tmp_path: Path) -> None:
    changed = config(max_updates=20, keep_last=3)
    folder, changes = opened(begun(tmp_path / "x"), changed)
    assert changes == ["training.max_updates: 10 -> 20", "training.keep_last: 2 -> 3"]
    assert load_config(folder.config) == changed


def test_any_other_difference_is_refused_and_named(tmp_path: Path) -> None:
    path = begun(tmp_path / "x")
    before = (path / "config.yaml").read_bytes()
    with pytest.raises(RunError, match=r"training\.label_smoothing: 0\.1 -> 0\.2.*--run"):
        opened(path, config(label_smoothing=0.2, max_updates=20))
    assert (path / "config.yaml").read_bytes() == before


def test_a_run_that_never_trained_may_begin_again_with_another_config(tmp_path: Path) -> None:
    folder, _ = opened(tmp_path / "x", config())
    folder.tokenizer.mkdir()
    (folder.tokenizer / "joint.model").write_text("old")
    again, changes = opened(tmp_path / "x", config(label_smoothing=0.2))
    assert changes == []
    assert not (again.tokenizer / "joint.model").exists()


def test_what_another_training_prepares_just_now_stays(tmp_path: Path) -> None:
    """Opening comes before the lock, so it only looks; what is forgotten is so under the lock."""
    folder, _ = opened(tmp_path / "x", config())
    folder.tokenizer.mkdir()
    (folder.tokenizer / "joint.model").write_text("half of it")
    before = folder.config.read_bytes()
    open_run(tmp_path / "x", config(label_smoothing=0.2))
    assert (folder.tokenizer / "joint.model").read_text() == "half of it"
    assert folder.config.read_bytes() == before


def test_a_folder_with_a_lock_alone_is_empty(tmp_path: Path) -> None:
    with only_training(RunFolder(tmp_path)):
        assert opened(tmp_path, config())[1] == []


def test_a_folder_with_something_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("my only copy")
    with pytest.raises(RunError, match="not empty, and not a run folder"):
        opened(tmp_path, config())
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]
    with pytest.raises(RunError, match="is a file"):
        opened(tmp_path / "thesis.txt", config())


def test_a_changed_corpus_is_seen(tmp_path: Path) -> None:
    folder, _ = opened(tmp_path / "x", config())
    folder.record_corpora({"train": {"source": "a" * 64, "target": "b" * 64}})
    folder.record_corpora({"train": {"source": "a" * 64, "target": "b" * 64}})
    with pytest.raises(RunError, match=r"target side of `data\.train` has changed"):
        folder.record_corpora({"train": {"source": "a" * 64, "target": "c" * 64}})


def test_differences_name_keys_that_only_one_side_has() -> None:
    one, other = config(), config().model_copy(update={"seed": 7})
    assert differences(one, other) == {"seed": (1, 7)}


def test_two_trainings_do_not_meet_in_one_folder(tmp_path: Path) -> None:
    folder, _ = opened(tmp_path / "x", config())
    with (
        only_training(folder),
        pytest.raises(RunError, match="another training is running here"),
        only_training(folder),
    ):
        pass
    with only_training(folder):  # free again
        pass
