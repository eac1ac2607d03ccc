"""Whole runs: their end, the checkpoints and the final model that they keep, their output."""

import json
import os
import re
import shutil
import signal
import urllib.request
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from sacrebleu.tokenizers import tokenizer_spm
from safetensors.torch import load_file
from torch import Tensor

from mt.config.loading import load_config
from mt.decoding.load import StoredModel
from mt.errors import RunError, UserError
from mt.evaluation.scores import missing_model_reason
from mt.training.checkpoint import MODEL, OPTIMIZER
from mt.training.run_folder import RunFolder
from mt.training.trainer import Trainer, train
from mt.training.validation import Validation, Validator
from tests.factories import Program, foreign_vocabulary, journal, train_with


def last_state(run: Path) -> dict[str, Any]:
    checkpoints = RunFolder(run).checkpoints
    path = checkpoints.path(checkpoints.updates()[-1]) / "state.json"
    state: dict[str, Any] = json.loads(path.read_text())["state"]
    return state


def fix_final_losses(monkeypatch: pytest.MonkeyPatch, *losses: float) -> None:
    """Replace the losses of the validations of averaged checkpoints."""
    remaining = iter(losses)

    run, finish = Validator.run, Trainer.finish

    def replaced(validator: Validator, count: int | None = None) -> Validation:
        return replace(run(validator, count), loss=next(remaining))

    def finishing(trainer: Trainer) -> str:
        monkeypatch.setattr(Validator, "run", replaced)
        return finish(trainer)

    monkeypatch.setattr(Trainer, "finish", finishing)


def test_run_folder_holds_text_and_tensors_but_no_pickles(finished_run: Path) -> None:
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
    suffixes = {".json", ".jsonl", ".md", ".model", ".safetensors", ".yaml"}
    assert {file.suffix for file in files} == suffixes


def test_best_and_last_checkpoints_are_kept(tiny_recipe: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    settings = ["best_metric=bleu", "keep_best=2", "keep_last=1", "max_updates=35"]
    # A rate this high makes the scores go up and down.
    train_with(tiny_recipe, run, *settings, "learning_rate=0.05", "validate_every=5")
    events = journal(run, "validation")
    # Seven pairs have too few 4-grams for BLEU to rank.
    events.sort(key=lambda event: (-event["chrf"], event["loss"]))
    ranked = [event["update"] for event in events]
    assert [entry["update"] for entry in last_state(run)["best"]] == ranked[:2]
    checkpoints = RunFolder(run).checkpoints
    assert checkpoints.updates() == sorted({*ranked[:2], 35})
    resumable = [path.parent.name for path in checkpoints.folder.glob(f"*/{OPTIMIZER}")]
    assert resumable == [checkpoints.path(35).name]


@pytest.mark.parametrize(
    ("settings", "averaged", "losses"),
    [
        (["average=best", "best_metric=loss"], [10, 15], [0.5]),
        (["average=last", "keep_last=3"], [5, 10, 15], [0.5]),
        (["average=off"], [15], []),  # not validated again
        (["keep_best=1", "validation_pairs=3"], [15], [0.5]),  # on all pairs
    ],
)
def test_final_model_is_the_mean_that_the_config_names(
    settings: list[str],
    averaged: list[int],
    losses: list[float],
    tiny_recipe: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fix_final_losses(monkeypatch, *losses)
    run = tmp_path / "run"
    result = train_with(tiny_recipe, run, "max_updates=15", "validate_every=5", *settings)
    (final,) = journal(run, "final")
    assert final["loss"] == (losses or [journal(run, "validation")[-1]["loss"]])[0]
    assert result.startswith(f"{run}: valid, 7 pairs, greedy: loss {final['loss']:.3f}, ")
    described = json.loads((run / "model.json").read_text())
    assert final["averaged_updates"] == described["averaged_updates"] == averaged
    kept = [load_file(RunFolder(run).checkpoints.path(update) / MODEL) for update in averaged]
    for name, tensor in load_file(run / "model.safetensors").items():
        mean = torch.stack([each[name] for each in kept]).mean(dim=0)
        torch.testing.assert_close(tensor, mean)


def test_final_model_is_the_best_checkpoint_if_the_mean_is_worse(
    tiny_recipe: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    fix_final_losses(monkeypatch, 99.0)
    run = tmp_path / "run"
    train_with(tiny_recipe, run, "max_updates=10", "validate_every=5")
    assert (
        "the mean of updates [5, 10] is worse (valid, 7 pairs, greedy: loss 99.000, "
        in capsys.readouterr().err
    )
    (final,) = journal(run, "final")
    last = journal(run, "validation")[-1]
    assert (final["averaged_updates"], final["loss"]) == ([10], last["loss"])
    best = RunFolder(run).checkpoints.path(10) / MODEL
    assert (run / "model.safetensors").read_bytes() == best.read_bytes()


def test_moving_average_is_validated_and_kept_and_does_not_change_training(
    tiny_recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    validated: list[dict[str, Tensor]] = []

    validate = Validator.run

    def recording(validator: Validator, count: int | None = None) -> Validation:
        named = validator.learner.model.named_parameters()
        validated.append({name: each.detach().clone() for name, each in named})
        return validate(validator, count)

    settings = ["max_updates=8", "validate_every=4", "average=off"]
    train_with(tiny_recipe, tmp_path / "off", *settings)
    monkeypatch.setattr(Validator, "run", recording)
    train_with(tiny_recipe, tmp_path / "on", *settings, "ema_decay=0.8")
    off, on = (RunFolder(tmp_path / run).checkpoints.path(8) for run in ("off", "on"))
    model, other = load_file(on / MODEL), load_file(on / OPTIMIZER)
    for name, weight in load_file(off / MODEL).items():
        assert torch.equal(other[f"learning.{name}"], weight)
        assert torch.equal(validated[-1][name], model[name])
    assert any(not torch.equal(model[name], other[f"learning.{name}"]) for name in model)
    assert (tmp_path / "on" / "model.safetensors").read_bytes() == (on / MODEL).read_bytes()


def test_patience_ends_a_run_without_gain(tiny_recipe: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    train_with(tiny_recipe, run, "patience=2", "validate_every=3", "learning_rate=1.0e-30")
    validations = journal(run, "validation")
    assert [event["update"] for event in validations] == [3, 6, 9]
    assert (last_state(run)["update"], last_state(run)["validations_without_gain"]) == (9, 2)


def fix_validations(
    monkeypatch: pytest.MonkeyPatch,
    rows: Sequence[tuple[float, float, float]],
    texts: Callable[[int, list[str]], list[str]] = lambda _, references: references,
) -> None:
    """Replace BLEU, chrF2 and loss of the successive validations, and their texts."""
    run, count = Validator.run, iter(range(10**6))

    def replaced(validator: Validator, pairs: int | None = None) -> Validation:
        number = next(count)
        bleu, chrf, loss = rows[min(number, len(rows) - 1)]
        found = run(validator, pairs)
        scores = replace(
            found.evaluation,
            bleu=replace(found.evaluation.bleu, value=bleu, matches=int(25 * bleu)),
            chrf=replace(found.evaluation.chrf, value=chrf),
        )
        references = [pair.target for pair in validator.data.valid]
        made = tuple(texts(number, references))
        return replace(found, evaluation=scores, loss=loss, texts=made)

    monkeypatch.setattr(Validator, "run", replaced)


FALLING = [5.2, 4.0, 3.3, 2.8, 2.5, 2.3, 2.2, 2.1]


@pytest.mark.parametrize(
    ("metric", "bleu", "chrf", "losses", "validated", "best"),
    [
        # BLEU is 0, or chance, while the model learns: chrF ranks.
        ("bleu", [0.0] * 8, [0.3, 2, 4, 6, 9, 11, 13, 14], [2.0] * 8, 8, 8),
        ("bleu", [0.5, 0.6] * 4, [7.1, 9.8, 9.7, 13.4, 13.5, 13.5, 13.4, 16.0], FALLING, 8, 8),
        ("bleu", [0.58, 0.41, 0.3, 0.02, 0.9, 0.1, 0.0, 0.2], [1.0] * 8, FALLING, 8, 8),
        ("bleu", [0.9, 0.0, 0.5, 1.7, 1.3, 2.0, 1.9, 1.8], [1.0] * 8, FALLING, 8, 6),
        ("bleu", [0.0] * 8, [1.0] * 8, [*FALLING[:5], 2.6, 2.7, 2.8], 7, 5),
        # A run of equal scores.
        ("chrf", [0.0] * 8, [7.5] * 8, FALLING, 8, 8),
        ("bleu", [30.0] * 8, [50.0] * 8, [2.0, 1.995, *[1.99] * 6], 3, 3),
        ("bleu", [30.0] * 8, [50.0] * 8, [2.0] * 8, 3, 3),
        ("bleu", [30.0] * 8, [50, 50.2, 50.6, 51, 51.2, 51.4, 51, 51], [2.0] * 8, 7, 6),
        # Without gain.
        ("bleu", [30.0, 29, 31, 28, 30, 31, 30, 29], [50.0] * 8, [2.0] * 8, 5, 3),
        ("bleu", [30.0, 29, 28, 31, 30, 29, 30, 29], [50.0] * 8, [2, 1.9, 1.8, *[1.8] * 5], 6, 4),
        ("loss", [0.0] * 8, [1.0] * 8, [2.0, 2.1, 1.999, 2.2, 2.3, 1.0, 1.0, 1.0], 5, 3),
    ],
)
def test_checkpoints_are_ranked_by_score_chrf_and_loss_and_patience_waits_for_any_clear_gain(
    metric: str,
    bleu: list[float],
    chrf: list[float],
    losses: list[float],
    validated: int,
    best: int,
    tiny_recipe: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    fix_validations(monkeypatch, list(zip(bleu, chrf, losses, strict=True)))
    run = tmp_path / "run"
    settings = ["patience=2", "max_updates=8", "validate_every=1", "average=off"]
    train_with(tiny_recipe, run, f"best_metric={metric}", *settings)
    assert len(journal(run, "validation")) == validated
    assert last_state(run)["best"][0]["update"] == best
    assert journal(run, "final")[0]["averaged_updates"] == [best]
    line = f"update {validated}: `training.patience` ends the training, after 2 validations without"
    printed = capsys.readouterr().err
    assert (line in printed) is (validated < 8)
    assert "BLEU 0.00" not in "".join(re.findall(r"best: .*", printed))


def test_run_keeps_its_bleu_tokenizer_where_the_files_of_the_machine_change(
    tiny_recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unreachable(*_: object, **__: object) -> None:
        raise OSError("no route to host")

    monkeypatch.setattr(tokenizer_spm, "SACREBLEU_DIR", str(tmp_path))
    monkeypatch.setattr(urllib.request, "urlopen", unreachable)
    place = tmp_path / "models" / "flores200sacrebleuspm"
    place.parent.mkdir()
    model = foreign_vocabulary(["one two three four five six seven eight nine zero"], 60)

    def train_to(run: Path, updates: int) -> list[str]:
        missing_model_reason.cache_clear()
        settings = ["data.target_language=th", "data.check=false", "validate_every=2"]
        train_with(tiny_recipe, run, f"max_updates={updates}", *settings)
        signatures = [event["bleu_signature"] for event in journal(run, "validation")]
        return [re.findall(r"tok:(\w+)", signature)[0] for signature in signatures]

    assert train_to(tmp_path / "without", 2) == ["13a"]
    place.write_bytes(model.processor.serialized_model_proto())
    assert train_to(tmp_path / "without", 4) == ["13a", "13a"]
    assert train_to(tmp_path / "with", 2) == ["flores200"]
    place.unlink()
    with pytest.raises(UserError, match=r"^BLEU tokenizer `flores200`: its model is missing "):
        train_to(tmp_path / "with", 4)
    assert last_state(tmp_path / "with")["update"] == 2
    missing_model_reason.cache_clear()


@pytest.mark.parametrize(
    ("bleu", "settings", "search"),
    [
        ({"greedy": 30.0, "beam": 30.2}, ["decoding.search=auto"], "greedy"),
        ({"greedy": 29.996, "beam": 30.2}, ["decoding.search=auto"], "greedy"),  # 0.20
        ({"greedy": 29.99, "beam": 30.2}, ["decoding.search=auto"], "beam"),
        ({"greedy": 31.0, "beam": 30.0}, ["decoding.search=auto"], "greedy"),
        ({"greedy": 0.0}, ["decoding.search=auto"], "beam"),  # decides nothing
        (
            {"greedy": 30.0},
            ["decoding.search=auto", "decoding.mbr=chrf", "decoding.beam=16"],
            "beam",
        ),
        ({"greedy": 30.0}, ["decoding.search=auto", "data.target_language=ja"], "beam"),
        ({"greedy": 30.0}, [], "beam"),
        ({"greedy": 30.0}, ["decoding.search=beam"], "beam"),
    ],
)
def test_an_open_search_is_greedy_if_that_costs_little_and_a_given_one_is_kept(
    bleu: dict[str, float],
    settings: list[str],
    search: str,
    tiny_recipe: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    searches, validate = [], Validator.run

    def scoring(validator: Validator, count: int | None = None) -> Validation:
        validation, search = validate(validator, count), validator.decoding.search
        searches.append(search)
        score = replace(validation.evaluation.bleu, value=bleu[search], matches=None)
        return replace(validation, evaluation=replace(validation.evaluation, bleu=score))

    monkeypatch.setattr(Validator, "run", scoring)
    run = tmp_path / "run"
    if "data.target_language=ja" in settings:
        settings = [*settings, "data.check=false", "evaluation.bleu_tokenizer=13a"]
    train_with(tiny_recipe, run, "max_updates=2", "validate_every=1", *settings)
    assert searches.count("beam") == len(bleu) - 1
    assert load_config(run / "config.yaml").decoding.search == search
    assert StoredModel.read(run).config.decoding.search == search
    assert [event["search"] for event in journal(run, "search")] == [search] * (
        "decoding.search=auto" in settings
    )
    # Trained again, the run keeps what was chosen.
    before = (run / "config.yaml").read_bytes()
    assert "finished already" in train_with(
        tiny_recipe, run, "max_updates=2", "validate_every=1", *settings
    )
    assert (run / "config.yaml").read_bytes() == before


GARBAGE = "x y z"


@pytest.mark.parametrize(
    ("settings", "better", "kept"),
    [
        (["schedule=linear", "decay_updates=4"], 1, 4),  # one text of seven is chance
        (["schedule=cosine", "decay_updates=4"], 1, 4),
        (["schedule=linear", "decay_updates=4"], 7, 3),
        (["schedule=linear", "decay_updates=4", "best_metric=chrf"], 7, 3),
        (["schedule=linear", "decay_updates=4", "best_metric=chrf"], 0, 4),
        (["schedule=linear", "decay_updates=4", "best_metric=loss"], 0, 4),
        (["schedule=linear", "decay_updates=5"], 1, 3),  # the rate is not yet 0
        (["schedule=inverse_sqrt"], 1, 3),
    ],
)
def test_last_checkpoint_of_a_decay_is_kept_unless_another_is_better_by_more_than_chance(
    settings: list[str],
    better: int,
    kept: int,
    tiny_recipe: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The validation after update 3 has the best score, and `better` better texts."""

    def texts(number: int, references: list[str]) -> list[str]:
        right = better if number == 2 else 0
        return [*references[:right], *[GARBAGE] * (len(references) - right)]

    rows = [(10.0, 20.0, 3.0), (11.0, 21.0, 2.9), (13.0, 23.0, 2.7), (12.0, 22.0, 2.8)]
    fix_validations(monkeypatch, rows, texts)
    run, ends = tmp_path / "run", ["max_updates=4", "validate_every=1", "average=off"]
    ends += ["warmup_updates=1", "keep_best=1"]
    if not any("best_metric" in each for each in settings):
        settings = [*settings, "best_metric=bleu"]
    train_with(tiny_recipe, run, *ends, *settings)
    assert journal(run, "final")[0]["averaged_updates"] == [kept]
    weights = RunFolder(run).checkpoints.path(kept) / MODEL
    assert (run / "model.safetensors").read_bytes() == weights.read_bytes()
    verdict = "better than the last, update 4"
    assert (verdict in capsys.readouterr().err) is ("=4" in settings[-2] or "=4" in settings[-1])


def test_epochs_end_a_run_whose_metrics_were_not_fetched_and_it_is_validated(
    tiny_recipe: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(Trainer, "should_fetch_metrics", lambda _: False)  # as on a GPU
    run = tmp_path / "run"
    train_with(tiny_recipe, run, "max_updates=null", "max_epochs=2")
    err = capsys.readouterr().err
    assert "4 updates an epoch" in err
    assert "update 8 of 8: valid, 7 pairs, greedy: loss " in err
    assert [event["update"] for event in journal(run, "validation")] == [8]
    state = last_state(run)
    assert (state["update"], state["epoch"], state["update_in_epoch"]) == (8, 1, 4)
    counted = sum(event["target_tokens"] for event in journal(run, "train"))
    assert counted == state["target_tokens"] > 0


def test_validation_scores_are_those_of_translate_and_evaluate(
    finished_run: Path, tiny_corpus: Path, tmp_path: Path, program: Program
) -> None:
    run = shutil.copytree(finished_run, tmp_path / "run")
    (final,) = journal(run, "final")
    greedy = ["--set", "decoding.search=greedy", "--set", "decoding.repair=off"]
    status, out, _ = program("evaluate", run, "--split", "valid", *greedy, "--json")
    scores = json.loads(out)
    assert status == 0
    assert scores["bleu"]["score"] == final["bleu"] > 1.0
    assert scores["chrf"]["score"] == final["chrf"] > 1.0
    assert scores["bleu"]["signature"] == final["bleu_signature"]
    _, translations, _ = program("translate", run, tiny_corpus / "valid.en", *greedy)
    assert translations == next((run / "evaluations").glob("valid.search=*.txt")).read_text()


def test_run_folder_is_self_contained(
    finished_run: Path, tiny_corpus: Path, tmp_path: Path, program: Program
) -> None:
    text = (tiny_corpus / "test.en").read_bytes()
    expected = program("translate", finished_run, stdin=text)
    assert expected[0] == 0
    assert expected[1].strip()
    moved = tmp_path / "elsewhere" / "renamed"
    shutil.copytree(finished_run, moved)
    hidden = [tiny_corpus, finished_run]  # this test has an empty cache
    try:
        for folder in hidden:
            folder.rename(folder.with_name(f"{folder.name}-hidden"))
        assert program("translate", moved, stdin=text) == expected
    finally:
        for folder in hidden:
            folder.with_name(f"{folder.name}-hidden").rename(folder)


def train_in_bf16(recipe: Path, run: Path, *settings: str) -> None:
    train_with(recipe, run, "precision=bf16", *settings)
    assert json.loads((run / "environment.json").read_text())["precision"] == "bf16"
    weights = load_file(run / "model.safetensors")
    assert {tensor.dtype for tensor in weights.values()} == {torch.float32}


@pytest.mark.gpu
def test_bf16_on_cuda_learns_like_fp32_on_a_cpu(
    tiny_recipe: Path, tmp_path: Path, program: Program, tiny_corpus: Path
) -> None:
    run, full = tmp_path / "run", tmp_path / "full"
    train_in_bf16(tiny_recipe, run, "device=cuda", "model.dropout=0.0")
    train_with(tiny_recipe, full, "model.dropout=0.0")
    gpu, cpu = ([event["loss"] for event in journal(each, "validation")] for each in (run, full))
    assert gpu == pytest.approx(cpu, rel=0.1)
    assert journal(run, "start")[0]["device"].startswith("cuda: ")
    (final,) = journal(run, "final")
    greedy = ["--set", "decoding.search=greedy", "--device", "cuda"]
    _, out, _ = program("evaluate", run, "--split", "valid", *greedy, "--json")
    assert json.loads(out)["bleu"]["score"] == final["bleu"]
    assert program("translate", run, tiny_corpus / "test.en", "--device", "cpu")[0] == 0


@pytest.mark.parametrize("damage", ["missing", "cut"])
def test_lost_final_model_is_written_again(finished_run: Path, tmp_path: Path, damage: str) -> None:
    run = tmp_path / "run"
    shutil.copytree(finished_run, run)
    weights = run / "model.safetensors"
    whole = weights.read_bytes()
    if damage == "missing":
        weights.unlink()
    else:
        weights.write_bytes(whole[:-1])
    assert "finished already" not in train(load_config(run / "config.yaml"), run)
    assert weights.read_bytes() == whole
    assert "finished already" in train(load_config(run / "config.yaml"), run)


@pytest.mark.parametrize("name", ["corpora.json", "tokenizer/tokenizer.json"])
def test_run_does_not_resume_without_its_text_and_tokenizer(
    finished_run: Path, tmp_path: Path, name: str
) -> None:
    run = tmp_path / "run"
    shutil.copytree(finished_run, run)
    for lost in ("model.json", name):
        (run / lost).unlink()
    with pytest.raises(RunError, match=f"{Path(name).parts[0]}.* missing"):
        train(load_config(run / "config.yaml"), run)


def test_signal_during_the_final_model_ends_with_its_status_after_it(
    finished_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / "run"
    shutil.copytree(finished_run, run)
    (run / "model.json").unlink()

    def interrupted(validator: Validator, count: int | None = None) -> Validation:
        patch.undo()
        os.kill(os.getpid(), signal.SIGTERM)
        return validator.run(count)

    with monkeypatch.context() as patch, pytest.raises(SystemExit) as ended:
        patch.setattr(Validator, "run", interrupted)
        train(load_config(run / "config.yaml"), run)
    assert ended.value.code == 143
    assert "finished already" in train(load_config(run / "config.yaml"), run)


def test_damaged_checkpoint_is_left_out_of_the_mean(
    finished_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    shutil.copytree(finished_run, run)
    (run / "model.safetensors").unlink()
    best = [entry["update"] for entry in last_state(run)["best"]]
    assert len(best) == 2
    older = RunFolder(run).checkpoints.path(min(best))
    (older / MODEL).write_bytes(b"")
    train(load_config(run / "config.yaml"), run)
    assert f"{older}: " in capsys.readouterr().err
    assert json.loads((run / "model.json").read_text())["averaged_updates"] == [max(best)]
