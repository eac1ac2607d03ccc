"""Folders that a run may use, changes of its config, and the facts that ranks share."""

import re
from pathlib import Path

import pytest
import torch

from mt.config import Config
from mt.config.loading import load_config
from mt.data.pairs import Checksums
from mt.errors import RunError
from mt.training.distributed import World
from mt.training.run_folder import RunFolder, open_run
from mt.training.setup import agree_on_folder, weights_sha256
from tests import factories
from tests.factories import learner


def config(**training: object) -> Config:
    return factories.config(training={"max_updates": 10, **training})


@pytest.fixture(autouse=True)
def _corpus(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path_factory.mktemp("corpus")
    for side in ("en", "de"):
        (folder / f"a.{side}").write_text("one\n", encoding="utf-8")
    monkeypatch.chdir(folder)


def opened(path: Path, config: Config) -> tuple[RunFolder, list[str]]:
    with open_run(path) as folder:
        if folder.has_trained():
            config = folder.resume_config(config)
        folder.begin(config)
    return folder, folder.changes


def begun(path: Path) -> Path:
    """Return a run with a checkpoint."""
    opened(path, config())
    (path / "checkpoints" / "update-000000005").mkdir(parents=True)
    return path


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
    with pytest.raises(RunError, match=r"training\.init_from: None -> "):
        opened(path, config(init_from=Path("other")))
    assert (path / "config.yaml").read_bytes() == before


@pytest.mark.parametrize(
    ("wish", "keys"),
    [
        ({"max_updates": 300, "decay_updates": None}, "--set=training.max_updates=300"),
        ({"budget": "5m"}, "--set=training.budget=5m"),
        ({"max_epochs": 7}, "--set=training.max_epochs=7"),
    ],
)
def test_longer_training_after_the_rate_is_zero_is_a_new_run_whose_command_is_named(
    wish: dict[str, object], keys: str, tmp_path: Path
) -> None:
    path = tmp_path / "x"
    opened(path, config(schedule="linear", warmup_updates=1, decay_updates=10))
    (path / "model.json").touch()
    command = f"mt train {path} --run {path}-2 --set=training.init_from={path} {keys}"
    with pytest.raises(RunError, match=rf": {re.escape(command)}$"):
        opened(path, config(**{"warmup_updates": 1, "decay_updates": 10, **wish}))


@pytest.mark.parametrize(
    ("decoding", "is_free"),
    [
        ({"beam": 9, "length_penalty": 1.0, "search": "sample", "top_k": 3}, True),
        ({"engine": "torch", "batch_size": 3, "precision": "fp32", "repair": "off"}, True),
        ({"search": "sample", "mbr": "chrf", "temperature": 0.5, "seed": 4}, True),
        ({"no_repeat_ngram": 3}, False),
        ({"max_length_extra": 20}, False),
        ({"max_length_ratio": 2.0}, False),
        ({"split_sentences": "on"}, False),
        ({"tag": "<new>"}, False),
    ],
)
def test_keys_of_decoding_change_where_validation_does_not_rank_with_them(
    decoding: dict[str, object], is_free: bool, tmp_path: Path
) -> None:
    before = factories.config(training={"max_updates": 10}, tokenizer={"tags": ["<new>"]})
    path = tmp_path / "x"
    opened(path, before)
    (path / "checkpoints" / "update-000000005").mkdir(parents=True)
    changed = before.changed(decoding=before.decoding.changed(**decoding))
    if is_free:
        changes = {change.partition(":")[0] for change in opened(path, changed)[1]}
        assert changes == {f"decoding.{key}" for key in decoding}
    else:
        with pytest.raises(RunError):
            opened(path, changed)


@pytest.mark.parametrize(
    ("budget", "given", "last", "changes"),
    [
        ("5m", 10, 10, []),
        ("5m", 300, 10, []),  # the budget has chosen 10 in place of it
        ("5m", None, 10, []),
        ("5m", 7, 7, ["training.max_updates: 10 -> 7"]),
        (None, 300, 300, ["training.budget: 5m -> None", "training.max_updates: 10 -> 300"]),
        ("6m", 10, None, []),
    ],
)
def test_end_that_a_budget_has_chosen_stays_while_the_budget_does(
    budget: str | None, given: int | None, last: int | None, changes: list[str], tmp_path: Path
) -> None:
    path = tmp_path / "x"
    opened(path, config(budget="5m"))
    (path / "checkpoints" / "update-000000005").mkdir(parents=True)
    again = config(budget=budget, max_updates=given)
    if last is None:
        with pytest.raises(RunError, match="--set=training.budget=6m$"):
            RunFolder(path).resume_config(again)
        return
    folder = RunFolder(path)
    resumed = folder.resume_config(again)
    assert (resumed.training.max_updates, folder.changes) == (last, changes)


def test_run_without_checkpoint_may_begin_with_another_config(tmp_path: Path) -> None:
    folder, _ = opened(tmp_path / "x", config())
    folder.tokenizer.mkdir()
    (folder.tokenizer / "joint.model").write_text("half of it")
    (folder.tokenizer / ".x.mt-aside").mkdir()  # by a killed process that had no lock yet
    before = folder.config.read_bytes()
    with open_run(tmp_path / "x"):  # changes no file
        pass
    assert (folder.tokenizer / "joint.model").read_text() == "half of it"
    assert folder.config.read_bytes() == before
    again, changes = opened(tmp_path / "x", config(label_smoothing=0.2))
    assert changes == []
    assert not again.tokenizer.exists()


def test_files_of_a_killed_process_are_deleted_in_all_folders_of_a_run(tmp_path: Path) -> None:
    asides = [path / ".x.mt-aside" for path in (tmp_path / "x", *begun(tmp_path / "x").rglob("*/"))]
    for aside in asides:
        aside.mkdir()
        (aside / ".lock").touch()
    opened(tmp_path / "x", config())
    assert [path for path in asides if path.exists()] == []
    assert len(asides) == 3


def test_folder_with_other_content_is_refused_and_not_changed(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("my only copy")
    with pytest.raises(RunError):
        opened(tmp_path, config())
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]
    with pytest.raises(RunError):
        opened(tmp_path / "thesis.txt", config())


def test_changed_corpus_is_an_error(tmp_path: Path) -> None:
    folder, _ = opened(tmp_path / "x", config())
    folder.record_corpora({"train": Checksums("a" * 64, "b" * 64)})
    folder.record_corpora({"train": Checksums("a" * 64, "b" * 64)})
    with pytest.raises(RunError, match=r"target side of `data\.train` has changed"):
        folder.record_corpora({"train": Checksums("a" * 64, "c" * 64)})


def test_second_training_in_a_folder_is_refused(tmp_path: Path) -> None:
    folder, _ = opened(tmp_path / "x", config())
    with open_run(folder.path), pytest.raises(RunError), open_run(folder.path):
        pass
    with open_run(folder.path):  # free again
        pass


def test_rank_that_does_not_see_the_run_of_rank_0_is_an_error(
    tiny_recipe: Path, finished_run: Path, tmp_path: Path
) -> None:
    config = load_config(tiny_recipe).flat()
    second = World(rank=1, size=2)
    agree_on_folder(second, config, RunFolder(finished_run))
    agree_on_folder(World(), config, RunFolder(tmp_path / "elsewhere"))
    other = load_config(tiny_recipe, overrides=["training.learning_rate=0.5"])
    for known, folder in ((config, tmp_path / "elsewhere"), (other.flat(), finished_run)):
        with pytest.raises(RunError):
            agree_on_folder(second, known, RunFolder(folder))


def test_hash_of_the_weights_covers_every_bit() -> None:
    made = learner()
    before = weights_sha256(made)
    last = [*made.model.parameters()][-1].detach().view(-1)
    value = float(last[-1])
    last[-1] = torch.nextafter(last[-1], torch.tensor(9.0))
    assert weights_sha256(made) != before
    last[-1] = value
    assert weights_sha256(made) == before
