"""An ablation: what is trained in which order, what ends it, and what the runs have come to."""

import json
import os
import shutil
import signal
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NoReturn

import pytest
import torch

from mt.config.ablation import Ablation, load_ablation
from mt.config.loading import load_config
from mt.errors import DivergedError, RunError, UserError
from mt.evaluation.evaluate import evaluate_run
from mt.evaluation.scores import Evaluation
from mt.experiments import ablation as spine
from mt.experiments.ablation import (
    AblationResults,
    VariantResults,
    run_ablation,
    updates_per_second,
)
from mt.training import final_model
from mt.training import trainer as training
from mt.training.run_folder import RunFolder
from mt.training.trainer import train

SET = ["training.max_updates=6", "training.validate_every=6", "decoding.search=greedy"]
HEAD = f"set: [{', '.join(SET)}]\nseeds: [1, 2]\nsplit: test\n"
UNTIED = "changes: {untied: [model.tie_embeddings=none]}\n"
WILD = (  # it is to diverge before its first validation
    "wild: [training.learning_rate=1e30, training.gradient_clip=0, training.max_updates=40,"
    " training.validate_every=40]"
)
NAMES = ["base-seed1", "untied-seed1", "base-seed2", "untied-seed2"]


@dataclass(frozen=True)
class Ended:
    """An ablation that nobody disturbed."""

    ablation: Ablation
    runs: Path
    results: AblationResults


def saved(recipe: Path, folder: Path, text: str) -> Ablation:
    (folder / "a.yaml").write_text(f"config: {recipe}\n{text}")
    return load_ablation(folder / "a.yaml")


@pytest.fixture(scope="module")
def ended(tiny_recipe: Path, tmp_path_factory: pytest.TempPathFactory) -> Ended:
    """Return an ablation of one change and two seeds; for reading alone."""
    folder = tmp_path_factory.mktemp("ablation")
    ablation = saved(tiny_recipe, folder, HEAD + UNTIED)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MT_CACHE", str(tmp_path_factory.mktemp("cache")))
        torch.set_num_threads(1)
        return Ended(ablation, folder / "runs", run_ablation(ablation, folder / "runs"))


def copied(ended: Ended, folder: Path) -> Path:
    """Return the runs in a folder of their own, with the times of the files."""
    return shutil.copytree(ended.runs, folder / "runs")


def without_rates(results: AblationResults) -> list[VariantResults]:
    return [
        replace(
            row,
            outcomes={
                seed: run and replace(run, updates_per_second=0.0)
                for seed, run in row.outcomes.items()
            },
        )
        for row in results.variants
    ]


def refused(*_: Any, **__: Any) -> NoReturn:
    raise AssertionError("this was done already")


def test_one_seed_of_every_variant_comes_before_the_next(
    ended: Ended,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    trained = []

    def note(config: Any, run: Path) -> str:
        trained.append((config.seed, config.model.tie_embeddings, run.name))
        return train(config, run)

    monkeypatch.setattr(spine, "train", note)
    run_ablation(ended.ablation, copied(ended, tmp_path))
    assert trained == [
        (1, "all", "base-seed1"),
        (1, "none", "untied-seed1"),
        (2, "all", "base-seed2"),
        (2, "none", "untied-seed2"),
    ]
    told = [line for line in capsys.readouterr().err.splitlines() if line.startswith("run ")]
    assert told == [
        "run 1 of 4: base-seed1",
        "run 2 of 4: untied-seed1",
        "run 3 of 4: base-seed2",
        "run 4 of 4: untied-seed2",
    ]


def test_a_run_of_an_ablation_is_the_run_that_train_alone_makes(
    ended: Ended, tiny_recipe: Path, tmp_path: Path
) -> None:
    config = load_config(tiny_recipe, overrides=[*SET, "model.tie_embeddings=none", "seed=2"])
    train(config, tmp_path / "alone")
    made, alone = RunFolder(ended.runs / "untied-seed2"), RunFolder(tmp_path / "alone")
    assert made.weights.read_bytes() == alone.weights.read_bytes()
    assert load_config(made.config) == config


def test_the_numbers_are_those_of_the_runs(ended: Ended) -> None:
    base, untied = ended.results.variants
    assert (base.name, untied.name) == ("base", "untied")
    for row in (base, untied):
        for seed, run in row.runs.items():
            folder = RunFolder(ended.runs / f"{row.name}-seed{seed}")
            # The last run of digits that the user was told, see Validation.as_text.
            score = json.loads(folder.model.read_text())["score"]
            assert f"loss {run.valid_loss:.3f}, " in score
            assert run.valid_bleu.as_text() in score
            evaluation = json.loads((folder.path / "evaluations" / "test.json").read_text())
            assert run.test_bleu is not None
            assert run.test_bleu.value == evaluation["bleu"]["score"]
            assert run.test_bleu.signature == evaluation["bleu"]["signature"]
            assert evaluation["decoding"]["search"] == "greedy"
    assert list(base.runs) == list(untied.runs) == [1, 2]
    # One embedding matrix of 300 tokens x 32 has become three.
    assert untied.parameters - base.parameters == 2 * 300 * 32
    assert base.runs[1].valid_loss != base.runs[2].valid_loss


def test_what_has_ended_is_neither_trained_nor_scored_again(
    ended: Ended, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(training, "run_updates", refused)
    monkeypatch.setattr(spine, "evaluate_run", refused)
    assert run_ablation(ended.ablation, copied(ended, tmp_path)) == ended.results


@pytest.mark.parametrize("reason", ["another search", "another model", "a damaged score"])
def test_a_test_score_that_is_not_of_this_model_and_search_is_made_anew(
    reason: str, ended: Ended, tiny_recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = copied(ended, tmp_path)
    scored = []

    def note(run: Path, **named: Any) -> Any:
        scored.append((run.name, named["split"]))
        return evaluate_run(run, **named)

    monkeypatch.setattr(spine, "evaluate_run", note)
    ablation, scores = ended.ablation, runs / "base-seed2" / "evaluations" / "test.json"
    expected = [("base-seed2", "test")]
    if reason == "another search":
        text = (HEAD + UNTIED).replace("search=greedy", "beam=1")
        ablation, expected = saved(tiny_recipe, tmp_path, text), [(name, "test") for name in NAMES]
    elif reason == "another model":  # whatever the clock said when it was written
        other = {**json.loads(scores.read_text()), "weights": "0" * 64}
        scores.write_text(json.dumps(other))
    else:
        scores.write_text("{")
    results = run_ablation(ablation, runs)
    assert scored == expected
    # A beam of one is greedy search.
    assert results.variants == ended.results.variants


def test_without_a_split_no_test_is_translated(
    ended: Ended, tiny_recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spine, "evaluate_run", refused)
    text = (HEAD + UNTIED).replace("split: test", "split: null")
    results = run_ablation(saved(tiny_recipe, tmp_path, text), copied(ended, tmp_path))
    assert {run.test_bleu for row in results.variants for run in row.runs.values()} == {None}


def test_a_diverged_run_is_told_and_the_others_go_on(
    tiny_recipe: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = f"{HEAD}changes: {{{WILD}, dry: [model.dropout=0]}}".replace("[1, 2]", "[1]")
    results = run_ablation(saved(tiny_recipe, tmp_path, text), tmp_path / "runs")
    base, wild, dry = results.variants
    assert results.exit_status == 0
    assert (wild.runs, wild.diverged) == ({}, [1])
    assert list(base.runs) == list(dry.runs) == [1]
    told = [each for each in capsys.readouterr().err.splitlines() if each.startswith("diverged")]
    assert len(told) == 1
    assert told[0].startswith(f"diverged: {tmp_path}/runs/wild-seed1: 26 updates in a row had a ")


def test_no_other_error_is_taken_for_a_divergence(
    tiny_recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def out_of_memory(*_: Any, **__: Any) -> NoReturn:
        raise torch.OutOfMemoryError

    monkeypatch.setattr(training, "update", out_of_memory)
    with pytest.raises(UserError, match="too little memory") as told:
        run_ablation(saved(tiny_recipe, tmp_path, HEAD), tmp_path / "runs")
    assert not isinstance(told.value, DivergedError)


def test_a_run_without_its_journal_is_an_error(ended: Ended, tmp_path: Path) -> None:
    runs = copied(ended, tmp_path)
    (runs / "base-seed1" / "metrics.jsonl").write_text('{"event": "start", "update": 0}\n{"ev')
    with pytest.raises(RunError, match="metrics.jsonl: lacks the end of the run"):
        run_ablation(ended.ablation, runs)


def stop(patch: pytest.MonkeyPatch, number: int, run: str, where: str) -> None:
    """Send a real signal during an update of a run, or while its final model is made."""
    module = {"take_update": training, "_write": final_model}[where]
    original = getattr(module, where)

    def stopped(session: Any, *rest: Any) -> Any:
        if session.folder.path.name == run:
            os.kill(os.getpid(), number)
        return original(session, *rest)

    patch.setattr(module, where, stopped)


@pytest.mark.parametrize("where", ["take_update", "_write"])
def test_a_signal_ends_the_ablation_and_the_same_call_goes_on(
    where: str, ended: Ended, tmp_path: Path
) -> None:
    runs = tmp_path / "runs"
    with pytest.MonkeyPatch.context() as patch:
        stop(patch, signal.SIGTERM, "untied-seed1", where)
        results = run_ablation(ended.ablation, runs)
    assert results.exit_status == 143
    # A final model that was begun is made whole, and scored.
    ended_runs = ["base", "untied"] if where == "_write" else ["base"]
    assert [row.name for row in results.variants] == ended_runs
    assert sorted(path.name for path in runs.iterdir()) == ["base-seed1", "untied-seed1"]
    assert RunFolder(runs / "untied-seed1").model.exists() == (where == "_write")
    again = run_ablation(ended.ablation, runs)
    assert again.exit_status == 0
    assert without_rates(again) == without_rates(ended.results)


def test_ctrl_c_while_a_run_is_scored_ends_it_after_that(
    ended: Ended, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(run: Path, **options: Any) -> Evaluation:
        os.kill(os.getpid(), signal.SIGINT)
        return evaluate_run(run, **options)

    monkeypatch.setattr(spine, "evaluate_run", interrupted)
    runs = copied(ended, tmp_path)
    (runs / "base-seed2" / "evaluations" / "test.json").unlink()
    results = run_ablation(ended.ablation, runs)
    assert results.exit_status == 130
    assert [list(row.runs) for row in results.variants] == [[1, 2], [1]]


def stretches(*seconds: float, updates: int = 50, first: int = 0) -> Iterator[dict[str, Any]]:
    """Yield the journal of stretches of so many seconds, at 10 tokens an update."""
    for number, duration in enumerate(seconds, 1):
        tokens = 10 * updates
        yield {
            "event": "train",
            "update": first + number * updates,
            "target_tokens": tokens,
            "target_tokens_per_second": tokens / duration,
        }


def test_the_rate_is_the_median_over_the_stretches() -> None:
    start, validation = {"event": "start", "update": 0}, {"event": "validation", "update": 100}
    journal = [start, *stretches(30, 10, 5), validation, *stretches(10, 10, first=150)]
    assert updates_per_second(journal) == pytest.approx(5.0)


@pytest.mark.parametrize("again", ["resume", "rollback"])
def test_the_rate_of_a_run_that_goes_back_counts_each_stretch_from_where_it_began(
    again: str,
) -> None:
    journal = [
        {"event": "start", "update": 0},
        *stretches(10),
        {"event": again, "update": 30},
        *stretches(4, updates=20, first=30),
    ]
    assert updates_per_second(journal) == pytest.approx(5.0)


def test_a_run_whose_updates_were_all_skipped_has_diverged() -> None:
    skipped = {"event": "train", "update": 9, "target_tokens": 0, "target_tokens_per_second": 0.0}
    assert updates_per_second([skipped, *stretches(10, first=9)]) == pytest.approx(5.0)
    with pytest.raises(DivergedError):
        updates_per_second([{"event": "start", "update": 0}, skipped])
