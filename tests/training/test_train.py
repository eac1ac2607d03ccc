"""A whole run: when it ends, what it keeps, and what it leaves behind."""

import json
import re
import shutil
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from mt.config.loading import load_config
from mt.errors import ConfigError
from mt.training import final_model
from mt.training import trainer as spine
from mt.training.checkpoint import MODEL, OPTIMIZER
from mt.training.data import first_plan, prepare
from mt.training.progress import append
from mt.training.run_folder import RunFolder, open_run
from mt.training.setup import Session, most_updates
from mt.training.trainer import train
from mt.training.validation import Validation, validate

Program = Callable[..., tuple[int, str, str]]


def train_with(recipe: Path, run: Path, *settings: str) -> str:
    return train(load_config(recipe, overrides=settings), run)


def events(run: Path, name: str) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in RunFolder(run).metrics.read_text().splitlines()]
    return [line for line in lines if line["event"] == name]


def last_state(run: Path) -> dict[str, Any]:
    checkpoints = RunFolder(run).checkpoints
    path = checkpoints.path(checkpoints.updates()[-1]) / "state.json"
    state: dict[str, Any] = json.loads(path.read_text())["state"]
    return state


def with_losses(monkeypatch: pytest.MonkeyPatch, *losses: float) -> None:
    """Have the validations of averaged weights find these losses, whatever they find."""
    remaining = iter(losses)

    def found(*arguments: Any) -> Validation:
        return replace(validate(*arguments), loss=next(remaining))

    monkeypatch.setattr(final_model, "validate", found)


def test_what_a_run_folder_holds(finished_run: Path) -> None:
    paths = [path for path in finished_run.rglob("*") if path.is_file() and path.name != ".lock"]
    files = [path.relative_to(finished_run) for path in paths]
    assert {str(file) for file in files if file.parts[0] != "checkpoints"} == {
        "README.md",
        "config.yaml",
        "corpora.json",
        "environment.json",
        "metrics.jsonl",
        "model.json",
        "model.safetensors",
        "tokenizer/joint.model",
        "tokenizer/tokenizer.json",
    }
    # Text, tensors and SentencePiece models: nothing in there is pickled.
    assert {file.suffix for file in files} == {
        ".json",
        ".jsonl",
        ".md",
        ".model",
        ".safetensors",
        ".yaml",
    }


def test_the_best_and_the_last_checkpoints_are_kept(tiny_recipe: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    settings = ["best_metric=bleu", "keep_best=2", "keep_last=1", "max_updates=50"]
    # A rate this high makes the scores go up and down.
    settings += ["learning_rate=0.05", "validate_every=5"]
    train_with(tiny_recipe, run, *(f"training.{setting}" for setting in settings))
    scores = {event["update"]: event["bleu"] for event in events(run, "validation")}
    ranked = sorted(scores, key=lambda update: (-scores[update], update))
    assert [entry["update"] for entry in last_state(run)["best"]] == ranked[:2]
    checkpoints = RunFolder(run).checkpoints
    assert checkpoints.updates() == sorted({*ranked[:2], 50})
    resumable = [path.parent.name for path in checkpoints.folder.glob(f"*/{OPTIMIZER}")]
    assert resumable == [checkpoints.path(50).name]


@pytest.mark.parametrize(
    ("settings", "averaged"),
    [
        (["average=best", "best_metric=loss"], [30, 40]),
        (["average=last", "keep_last=3"], [20, 30, 40]),
        (["average=off"], [40]),
    ],
)
def test_the_final_model_is_the_mean_that_the_config_names(
    settings: list[str],
    averaged: list[int],
    tiny_recipe: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with_losses(monkeypatch, 0.5)
    run = tmp_path / "run"
    told = train_with(tiny_recipe, run, *(f"training.{setting}" for setting in settings))
    assert told.startswith(f"{run}: loss 0.500, ")
    (final,) = events(run, "final")
    described = json.loads((run / "model.json").read_text())
    assert final["averaged_updates"] == described["averaged_updates"] == averaged
    paths = [RunFolder(run).checkpoints.path(update) / MODEL for update in averaged]
    kept = [load_file(path) for path in paths]
    for name, tensor in load_file(run / "model.safetensors").items():
        mean = torch.stack([each[name] for each in kept]).mean(dim=0)
        torch.testing.assert_close(tensor, mean)


def test_where_the_mean_is_worse_than_the_best_checkpoint_that_is_kept_alone(
    tiny_recipe: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    with_losses(monkeypatch, 99.0, 0.5)
    run = tmp_path / "run"
    train_with(tiny_recipe, run, "training.max_updates=20")
    assert "the mean of updates [10, 20] is worse (loss 99.000, " in capsys.readouterr().err
    (final,) = events(run, "final")
    assert (final["averaged_updates"], final["loss"]) == ([20], 0.5)
    alone = RunFolder(run).checkpoints.path(20) / MODEL
    assert (run / "model.safetensors").read_bytes() == alone.read_bytes()


def test_patience_ends_a_run_that_gains_nothing(tiny_recipe: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    settings = ["patience=2", "validate_every=3", "learning_rate=1.0e-30"]
    train_with(tiny_recipe, run, *(f"training.{setting}" for setting in settings))
    assert [event["update"] for event in events(run, "validation")] == [3, 6, 9]
    assert (last_state(run)["update"], last_state(run)["validations_without_gain"]) == (9, 2)


def test_epochs_end_a_run_and_the_end_is_validated(
    tiny_recipe: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    settings = ["training.max_updates=null", "training.max_epochs=2"]
    train_with(tiny_recipe, run, *settings)
    err = capsys.readouterr().err
    assert "4 updates an epoch" in err
    assert "update 8, epoch 2: loss " in err
    assert [event["update"] for event in events(run, "validation")] == [8]
    state = last_state(run)
    assert (state["update"], state["epoch"], state["update_in_epoch"]) == (8, 1, 4)


def test_validation_says_what_translate_and_evaluate_say(
    finished_run: Path, tiny_corpus: Path, tmp_path: Path, program: Program
) -> None:
    run = shutil.copytree(finished_run, tmp_path / "run")
    (final,) = events(run, "final")
    greedy = ["--set", "decoding.search=greedy", "--set", "decoding.on_repetition=keep"]
    status, out, _ = program("evaluate", run, "--split", "valid", *greedy, "--json")
    scores = json.loads(out)
    assert status == 0
    # All digits, not nearly.
    assert scores["bleu"]["score"] == final["bleu"] > 1.0
    assert scores["chrf"]["score"] == final["chrf"] > 1.0
    assert scores["bleu"]["signature"] == final["bleu_signature"]
    _, translations, _ = program("translate", run, tiny_corpus / "valid.en", *greedy)
    assert (run / "evaluations" / "valid.hypotheses.txt").read_text() == translations


def test_a_run_folder_needs_nothing_outside_it(
    finished_run: Path, tiny_corpus: Path, tmp_path: Path, program: Program
) -> None:
    text = (tiny_corpus / "test.en").read_bytes()
    expected = program("translate", finished_run, stdin=text)
    assert expected[0] == 0
    assert expected[1].strip()
    moved = tmp_path / "elsewhere" / "renamed"
    shutil.copytree(finished_run, moved)
    hidden = [tiny_corpus, finished_run]  # the cache of this test is an empty one
    try:
        for folder in hidden:
            folder.rename(folder.with_name(f"{folder.name}-hidden"))
        assert program("translate", moved, stdin=text) == expected
    finally:
        for folder in hidden:
            folder.with_name(f"{folder.name}-hidden").rename(folder)


def low_precision_learns(recipe: Path, run: Path, *settings: str) -> None:
    train_with(recipe, run, "training.precision=bf16", *settings)
    assert json.loads((run / "environment.json").read_text())["precision"] == "bf16"
    assert {tensor.dtype for tensor in load_file(run / "model.safetensors").values()} == {
        torch.float32
    }


def test_bf16_is_the_same_loop(
    finished_run: Path, tiny_recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    computed: set[torch.dtype] = set()
    take_update = spine.take_update

    def watched(session: Session, *rest: Any) -> None:
        with session.learner.precision.autocast():
            computed.add((torch.ones(1, 1) @ torch.ones(1, 1)).dtype)
        take_update(session, *rest)

    monkeypatch.setattr(spine, "take_update", watched)
    low_precision_learns(tiny_recipe, tmp_path / "run")
    assert computed == {torch.bfloat16}
    low = [event["loss"] for event in events(tmp_path / "run", "validation")]
    full = [event["loss"] for event in events(finished_run, "validation")]
    assert low != full
    assert low == pytest.approx(full, rel=0.1)


@pytest.mark.gpu
def test_bf16_on_cuda_learns_like_fp32_on_a_cpu(
    finished_run: Path, tiny_recipe: Path, tmp_path: Path, program: Program, tiny_corpus: Path
) -> None:
    run = tmp_path / "run"
    low_precision_learns(tiny_recipe, run, "training.device=cuda", "model.dropout=0.0")
    full = tmp_path / "full"
    train_with(tiny_recipe, full, "model.dropout=0.0")
    gpu = [event["loss"] for event in events(run, "validation")]
    cpu = [event["loss"] for event in events(full, "validation")]
    assert gpu == pytest.approx(cpu, rel=0.1)
    assert events(run, "start")[0]["device"].startswith("cuda: ")
    (final,) = events(run, "final")
    greedy = ["--set", "decoding.search=greedy", "--device", "cuda"]
    _, out, _ = program("evaluate", run, "--split", "valid", *greedy, "--json")
    assert json.loads(out)["bleu"]["score"] == final["bleu"]
    assert program("translate", run, tiny_corpus / "test.en", "--device", "cpu")[0] == 0


@pytest.mark.parametrize("harm", ["missing", "damaged"])
def test_a_lost_final_model_is_made_again(finished_run: Path, tmp_path: Path, harm: str) -> None:
    run = tmp_path / "run"
    shutil.copytree(finished_run, run)
    weights = run / "model.safetensors"
    whole = weights.read_bytes()
    if harm == "missing":
        weights.unlink()
    else:
        weights.write_bytes(whole[:-1])
    assert "finished already" not in train(load_config(run / "config.yaml"), run)
    assert weights.read_bytes() == whole
    assert "finished already" in train(load_config(run / "config.yaml"), run)


def test_a_damaged_checkpoint_is_left_out_of_the_mean(
    finished_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    shutil.copytree(finished_run, run)
    (run / "model.safetensors").unlink()
    best = [entry["update"] for entry in last_state(run)["best"]]
    assert len(best) == 2
    checkpoints = RunFolder(run).checkpoints
    older = checkpoints.path(min(best))
    (older / MODEL).write_bytes(b"")
    train(load_config(run / "config.yaml"), run)
    assert f"{older}: damaged or missing, not used" in capsys.readouterr().err
    assert json.loads((run / "model.json").read_text())["averaged_updates"] == [max(best)]


def test_a_tokenizer_of_the_other_layout_is_refused(
    finished_run: Path, tiny_recipe: Path, tmp_path: Path
) -> None:
    settings = [f"tokenizer.from={finished_run}", "tokenizer.vocabulary=separate"]
    settings += ["model.tie_embeddings=decoder"]
    with pytest.raises(ConfigError, match="its vocabulary is joint, .* says separate"):
        train_with(tiny_recipe, tmp_path / "run", *settings)
    told = train_with(tiny_recipe, tmp_path / "run", settings[0], "training.max_updates=1")
    assert "BLEU" in told


def test_the_bar_knows_the_end_of_a_run_by_epochs(tiny_recipe: Path, tmp_path: Path) -> None:
    config = load_config(tiny_recipe)
    corpus = prepare(config, open_run(tmp_path / "run", config)[0])

    def most(*settings: str) -> int | None:
        overrides = [f"training.{setting}" for setting in settings]
        return most_updates(load_config(tiny_recipe, overrides=overrides).training, epoch)

    epoch = len(first_plan(corpus, config))
    assert epoch > 1
    assert most("max_updates=null", "max_epochs=3") == 3 * epoch
    assert most("max_updates=2", "max_epochs=3") == 2
    assert most("max_updates=null") is None


def test_a_torn_line_of_the_journal_swallows_no_other(tmp_path: Path) -> None:
    journal = tmp_path / "metrics.jsonl"
    append(journal, "one", value=1)
    with journal.open("a") as file:
        file.write('{"event": "to')
    append(journal, "two", value=2)
    first, _, last = journal.read_text().splitlines()
    assert json.loads(first) == {"event": "one", "value": 1}
    assert json.loads(last) == {"event": "two", "value": 2}


def test_a_terminal_gets_a_bar_with_loss_speed_and_time_left(
    tiny_recipe: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    train_with(tiny_recipe, tmp_path / "run")
    err = capsys.readouterr().err
    assert re.search(r"40/40 \[00:\d\d<00:00.*smoothed loss \d\.\d+, [\d,]+ target tokens/s", err)
    assert "update 40 of 40" not in err


def test_updates_that_nobody_waited_for_are_read_at_the_end(
    tiny_recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a GPU, where a run can end by its epochs with updates still under way."""
    monkeypatch.setattr(spine, "reads_now", lambda _: False)
    run = tmp_path / "run"
    train_with(tiny_recipe, run, "training.max_epochs=1", "training.validate_every=100")
    counted = [event["target_tokens"] for event in events(run, "train")]
    assert sum(counted) == last_state(run)["target_tokens"] > 0
