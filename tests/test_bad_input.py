"""What is wrong through no fault of the program: one clear line, status 2, and nothing lost."""

import errno
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from mt.training import trainer as spine
from mt.training.run_folder import RunFolder

Program = Callable[..., tuple[int, str, str]]


@dataclass(frozen=True)
class Place:
    """A user's folder: `corpus/`, `tiny.yaml`, and `run/`, which is finished."""

    path: Path
    program: Program

    @property
    def corpus(self) -> Path:
        return self.path / "corpus"

    @property
    def recipe(self) -> Path:
        return self.path / "tiny.yaml"

    @property
    def run(self) -> Path:
        return self.path / "run"

    def contents(self) -> dict[str, bytes]:
        return {str(p): p.read_bytes() for p in self.path.rglob("*") if p.is_file()}

    def refused(self, *arguments: str | Path, stdin: bytes = b"") -> str:
        """Run `mt`, see it refuse as it should, and return what it says after `error: `.

        All that was there before is there after, byte for byte; new files may have come in the
        folder `new`, where refused runs begin.
        """
        before = self.contents()
        status, out, err = self.program(*arguments, stdin=stdin)
        assert (status, out) == (2, "")
        errors = [line for line in err.splitlines() if line.startswith("error: ")]
        assert len(errors) == 1, err
        assert err.endswith(f"{errors[0]}\n")
        assert "Traceback" not in err
        after = self.contents()
        assert {name: after.get(name) for name in before} == before
        assert all(Path(name).is_relative_to(self.path / "new") for name in after.keys() - before)
        return errors[0].removeprefix("error: ")

    def train_refused(self, *settings: str) -> str:
        options = [part for setting in settings for part in ("--set", setting)]
        return self.refused("train", self.recipe, "--run", self.path / "new", *options)


@pytest.fixture
def place(tiny_corpus: Path, finished_run: Path, tmp_path: Path, program: Program) -> Place:
    place = Place(tmp_path / "user", program)
    shutil.copytree(tiny_corpus, place.corpus)
    shutil.copytree(finished_run, place.run)
    recipe = (place.corpus / "tiny.yaml").read_text()
    place.recipe.write_text(recipe.replace(str(tiny_corpus), str(place.corpus)))
    return place


def flip_a_byte(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def rewrite_line(path: Path, number: int, text: bytes) -> None:
    lines = path.read_bytes().splitlines(keepends=True)
    lines[number - 1] = text
    path.write_bytes(b"".join(lines))


@contextmanager
def failing(patch: pytest.MonkeyPatch, owner: Any, name: str, number: int) -> Iterator[list[Path]]:
    """Have a function that takes a file fail as the system lets it fail, under `failing[0]`."""
    original = getattr(owner, name)
    places: list[Path] = []

    def fail(file: Any, *rest: Any, **named: Any) -> Any:
        path = Path(f"/proc/self/fd/{file}").resolve() if isinstance(file, int) else Path(file)
        if any(path.is_relative_to(place) for place in places):
            # A failed write or sync knows no name; a failed mkdir or open does.
            raise OSError(number, os.strerror(number), *(() if name == "fsync" else (str(path),)))
        return original(file, *rest, **named)

    with patch.context() as inner:
        inner.setattr(owner, name, fail)
        yield places


# The configuration.


@pytest.mark.parametrize(
    ("before", "after", "told"),
    [
        ("warmup_updates", "warmup_update", "tiny.yaml:16: `training.warmup_update`: unknown; did"),
        ("max_updates: 40", "max_updates: many", "`training.max_updates`: a whole number was"),
        ("dropout: 0.1", "dropout: 1.5", "`model.dropout`: 1.5 is out of range: must be less than"),
        ("heads: 2", "heads: 3", "`model.d_model` 32 is no multiple of `model.heads` 3"),
        ("decoding: {", "decoding: [", "tiny.yaml"),
    ],
)
def test_a_wrong_config_names_the_key(before: str, after: str, told: str, place: Place) -> None:
    place.recipe.write_text(place.recipe.read_text().replace(before, after, 1))
    assert told in place.train_refused()
    assert not (place.path / "new").exists()


def test_several_problems_of_a_config_are_told_at_once(place: Place) -> None:
    text = place.recipe.read_text().replace("dropout", "drop").replace("max_updates: 40", "max: 1")
    place.recipe.write_text(text)
    status, _, err = place.program("train", place.recipe, "--run", place.path / "new")
    assert status == 2
    assert "`model.drop`" in err
    assert "`training.max`" in err
    assert not (place.path / "new").exists()


# Corpora.


def test_a_missing_corpus(place: Place) -> None:
    (place.corpus / "valid.de").rename(place.corpus / "valld.de")
    assert place.train_refused() == (
        f"{place.corpus}/valid.de: no such file; did you mean `valld.de`?"
    )


@pytest.mark.parametrize("split", ["train", "valid", "test"])
def test_an_empty_corpus(split: str, place: Place) -> None:
    sides = [place.corpus / f"{split}.{language}" for language in ("en", "de")]
    for side in sides:
        side.write_text("")
    assert place.train_refused() == f"{sides[0]} and {sides[1]}: the corpus is empty"


def test_a_corpus_of_blank_lines(place: Place) -> None:
    for side in ("en", "de"):
        (place.corpus / f"train.{side}").write_text(" \n\n")
    assert "the training corpus has no text to learn a tokenizer from" in place.train_refused()


def test_a_corpus_whose_pairs_are_all_too_long(place: Place) -> None:
    told = place.train_refused("data.max_tokens=3")
    assert "no pair is left to train on: of 60, 0 have an empty side and 60 have more" in told
    assert told.startswith(f"{place.corpus}/train.en and ")


def test_a_corpus_of_three_pairs_is_enough(place: Place) -> None:
    for side in ("en", "de"):
        path = place.corpus / f"train.{side}"
        path.write_text("".join(path.read_text().splitlines(keepends=True)[:3]))
    run = place.path / "three"
    settings = ["--set", "training.max_updates=4", "--set", "tokenizer.vocabulary_size=8000"]
    assert place.program("train", place.recipe, "--run", run, *settings)[0] == 0
    status, out, _ = place.program("translate", run, stdin=b"one two\nthree\n")
    assert (status, out.count("\n")) == (0, 2)


@pytest.mark.parametrize("split", ["train", "test"])
def test_sides_of_unequal_length(split: str, place: Place) -> None:
    left, right = place.corpus / f"{split}.en", place.corpus / f"{split}.de"
    lines = right.read_text().splitlines(keepends=True)
    right.write_text("".join(lines[:-1]))
    told = f"{left} has {len(lines)} lines, {right} has {len(lines) - 1}: "
    assert place.train_refused().startswith(told)


@pytest.mark.parametrize("split", ["train", "valid", "test"])
def test_text_that_is_not_utf_8(split: str, place: Place) -> None:
    rewrite_line(place.corpus / f"{split}.de", 3, b"caf\xe9\n")
    told = f"{place.corpus}/{split}.de: line 3 is not UTF-8 (byte 0xe9)"
    assert place.train_refused().startswith(told)
    assert not (place.path / "new" / "checkpoints").exists()


def test_a_corpus_that_changed_between_two_runs_is_read_anew(place: Place) -> None:
    """Both runs share a cache."""
    few = ["--set", "training.max_updates=1"]
    first, second = place.path / "first", place.path / "second"
    assert "60 pairs to train on (" in place.program("train", place.recipe, "--run", first, *few)[2]
    rewrite_line(place.corpus / "train.en", 2, b"\n")
    err = place.program("train", place.recipe, "--run", second, *few)[2]
    assert "59 pairs to train on (0 too long and 1 with an empty side left out of 60)" in err


@pytest.mark.parametrize("split", ["train", "valid"])
def test_a_corpus_that_changed_under_a_run_is_seen(split: str, place: Place) -> None:
    rewrite_line(place.corpus / f"{split}.de", 2, b"eins\n")
    # The run's config names the corpus that it was copied from.
    shutil.copy(place.run / "config.yaml", place.recipe)
    text = place.recipe.read_text()
    original = text.partition(" source: ")[2].partition("/train.en")[0]
    changed = text.replace(original, str(place.corpus)).replace("updates: 40", "updates: 50")
    for path in (place.recipe, place.run / "config.yaml"):
        path.write_text(changed)
    told = place.refused("train", place.recipe, "--run", place.run)
    assert f"{place.run}: the target side of `data.{split}` has changed since this run" in told


def test_a_tokenizer_folder_that_is_none(place: Place) -> None:
    told = place.train_refused(f"tokenizer.from={place.corpus}")
    assert told.startswith(f"{place.corpus}: no tokenizer is here")


# Run folders.


@pytest.mark.parametrize("command", ["translate", "evaluate"])
def test_a_run_folder_that_is_none(command: str, place: Place) -> None:
    other = "translate" if command == "evaluate" else "evaluate"
    assert place.refused(command, place.corpus) == (
        f"{place.corpus}: not a run folder, config.yaml is missing"
    )
    assert place.refused(command, place.recipe).startswith(f"{place.recipe}: is a file, a run fold")
    wrong = place.path / "rum"
    assert place.refused(command, wrong) == f"{wrong}: no such run folder; did you mean `run`?"
    (place.run / "model.json").unlink()
    assert "the training has not finished" in place.refused(other, place.run)


def test_weights_that_are_damaged(place: Place) -> None:
    flip_a_byte(place.run / "model.safetensors")
    told = place.refused("translate", place.run, stdin=b"one\n")
    assert told.startswith(f"{place.run}/model.safetensors: damaged")


@pytest.mark.parametrize("command", ["translate", "train"])
def test_a_description_that_is_damaged(command: str, place: Place) -> None:
    (place.run / "model.json").write_text("{")
    recipe = place.run / "config.yaml"
    arguments = [place.run] if command == "translate" else [recipe, "--run", place.run]
    assert place.refused(command, *arguments).startswith(f"{place.run}/model.json: ")


def unfinished(place: Place) -> list[str | Path]:
    """Let the run have more updates to do; return how to go on with it."""
    recipe = place.run / "config.yaml"
    return ["train", recipe, "--run", place.run, "--set", "training.max_updates=50"]


def test_checkpoints_that_are_damaged(place: Place) -> None:
    go_on = unfinished(place)
    place.program(*go_on[:-1], "training.max_updates=41")
    checkpoints = RunFolder(place.run).checkpoints
    for update in checkpoints.updates():
        flip_a_byte(checkpoints.path(update) / "model.safetensors")
    before = {path: data for path, data in place.contents().items() if "/checkpoints/" in path}
    status, out, err = place.program(*go_on)
    assert (status, out) == (2, "")
    damaged = f"{checkpoints.path(41)}: the checkpoint is damaged (model.safetensors: not"
    assert f"error: {damaged}" in err
    assert "), and there is no earlier one to go on from; train a new run with --run\n" in err
    assert before.items() <= place.contents().items()


def test_a_tokenizer_that_is_damaged(place: Place) -> None:
    flip_a_byte(place.run / "tokenizer" / "joint.model")
    for command in ("translate", "evaluate"):
        told = place.refused(command, place.run)
        assert told.startswith(f"{place.run}/tokenizer/joint.model: damaged")
    status, _, err = place.program(*unfinished(place))
    assert status == 2
    assert f"error: {place.run}/tokenizer/joint.model: damaged" in err


def test_the_tokenizer_of_another_run(place: Place) -> None:
    """Of the same size: only the fingerprint tells."""
    rewrite_line(place.corpus / "train.en", 1, b"five nine nine nine\n")
    other = place.path / "other"
    settings = ["--set", "training.max_updates=1", "--set", "tokenizer.algorithm=unigram"]
    assert place.program("train", place.recipe, "--run", other, *settings)[0] == 0
    shutil.rmtree(place.run / "tokenizer")
    shutil.copytree(other / "tokenizer", place.run / "tokenizer")
    told = f"{place.run}/tokenizer: is the tokenizer of another run (fingerprint "
    assert place.refused("translate", place.run).startswith(told)
    status, _, err = place.program(*unfinished(place))
    assert status == 2
    assert f"error: {told}" in err


def test_a_folder_that_holds_another_run(place: Place) -> None:
    told = place.refused("train", place.recipe, "--run", place.run, "--set", "seed=7")
    assert told.startswith(f"{place.run}: holds a run of another config (seed: 1 -> 7; data.")
    assert told.endswith("; name another folder with --run")


def test_a_folder_that_holds_something_else(place: Place) -> None:
    for folder in (place.path, place.corpus):
        told = place.refused("train", place.recipe, "--run", folder)
        assert told == f"{folder}: not empty, and not a run folder; name another folder with --run"


def test_a_recipe_is_not_overwritten_by_the_run_beside_it(place: Place) -> None:
    """A run writes its own `config.yaml`; one with the user's comments is not to be lost."""
    folder = place.path / "mine"
    folder.mkdir()
    recipe = place.recipe.rename(folder / "config.yaml")
    told = place.refused("train", recipe, "--run", folder)
    assert told == f"{folder}: not empty, and not a run folder; name another folder with --run"


def test_a_run_that_failed_before_it_trained_may_be_tried_again(place: Place) -> None:
    rewrite_line(place.corpus / "train.de", 3, b"caf\xe9\n")
    assert "line 3 is not UTF-8" in place.train_refused()
    rewrite_line(place.corpus / "train.de", 3, b"acht\n")
    arguments = ["--run", place.path / "new", "--set", "training.max_updates=1", "--set", "seed=2"]
    assert place.program("train", place.recipe, *arguments)[0] == 0


# Scoring.


def test_an_unknown_split(place: Place) -> None:
    told = place.refused("evaluate", place.run, "--split", "vaild")
    assert told == "split `vaild` is unknown; did you mean `valid`?"


def test_hypotheses_and_references_of_different_length(place: Place) -> None:
    hypotheses, references = place.corpus / "test.de", place.corpus / "valid.de"
    files = ["--hypotheses", str(hypotheses), "--references", str(references)]
    assert place.refused("evaluate", *files, "--target-language", "de") == (
        f"{hypotheses} has 6 lines, {references} has 7: line N of one must answer line N of the "
        "other; `--allow line-counts` scores it all the same"
    )


# Disks and permissions.


def test_no_space_for_a_checkpoint_costs_only_what_came_after_the_last(
    place: Place, finished_run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = place.path / "new"
    checkpoints = RunFolder(run).checkpoints
    with failing(monkeypatch, os, "fsync", errno.ENOSPC) as places:
        places.append(checkpoints.folder / f".{checkpoints.path(20).name}")
        told = place.train_refused()
    assert told == f"{checkpoints.path(20)}: no space left on the disk"
    assert [path.name for path in checkpoints.folder.iterdir()] == [checkpoints.path(10).name]
    assert place.program("train", place.recipe, "--run", run)[0] == 0
    weights = (run / "model.safetensors").read_bytes()
    assert weights == (finished_run / "model.safetensors").read_bytes()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
def test_a_full_disk_under_the_journal(place: Place) -> None:
    new = place.path / "new"
    new.mkdir()
    (new / "metrics.jsonl").symlink_to("/dev/full")
    shutil.copy(place.run / "config.yaml", new)
    told = place.refused("train", new / "config.yaml", "--run", new)
    assert told == f"{new}/metrics.jsonl: no space left on the disk"


def test_no_space_for_a_translation_keeps_the_former_one(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    output = place.path / "out.txt"
    output.write_text("precious")
    with failing(monkeypatch, os, "fsync", errno.ENOSPC) as places:
        places.append(place.path)
        told = place.refused("translate", place.run, place.corpus / "test.en", "-o", output)
    assert told == f"{output}: no space left on the disk"


def test_no_permission_to_make_the_run_folder(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Root may write anywhere, so the system's refusal is played to it.
    with failing(monkeypatch, os, "mkdir", errno.EACCES) as places:
        places.append(place.path)
        assert place.train_refused() == f"{place.path}/new: permission denied"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_no_permission_in_a_real_folder(place: Place) -> None:
    place.path.chmod(0o555)
    try:
        assert place.train_refused() == f"{place.path}/new: permission denied"
        told = place.refused("translate", place.run, "-o", place.path / "out.txt")
        assert told == f"{place.path}: no permission to write there"
    finally:
        place.path.chmod(0o755)


def test_no_update_is_lost_where_the_same_command_is_given_twice(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A finished run is not trained again, whatever its corpus has become."""
    shutil.rmtree(place.corpus)
    monkeypatch.setattr(spine, "prepare", None)
    before = place.contents()
    status, out, _ = place.program("train", place.run / "config.yaml", "--run", place.run)
    assert status == 0
    assert out.startswith(f"{place.run}: finished already; loss ")
    assert place.contents() == before
