"""The proof of resuming: it passes, and fails whenever a state is dropped."""

import hashlib
import os
import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mt.config import Config
from mt.errors import RunError
from mt.selftest import resume as selftest
from mt.selftest.killing import Hit, Kill, TrainingProcess
from mt.selftest.resume import Proof, plan_kills, prove_resume, selftest_config, train_killed
from mt.selftest.run_differences import run_differences
from mt.training import trainer as spine
from mt.training.checkpoint import Checkpoints
from mt.training.state import Health, TrainState
from mt.training.step import Learner

# Forks of this process compute in one thread; those of libraries sleep.
pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")

VALIDATE_EVERY = 6
FAILED = "resume: FAILED, 2 kills (1 while saving); the runs are in there\n"


def tiny_config(folder: Path, **changes: int) -> Config:
    config = selftest_config(folder)
    model = {"encoder_layers": 1, "decoder_layers": 1}
    training = {
        "patience": 2,
        "validate_every": VALIDATE_EVERY,
        "checkpoint_every": 4,
        "learning_rate": 2e-2,
        "warmup_updates": VALIDATE_EVERY,
        **changes,
    }
    return config.model_copy(
        update={
            "tokenizer": config.tokenizer.model_copy(update={"sampling": 0.0}),
            "model": config.model.model_copy(update=model),
            "training": config.training.model_copy(update=training),
        }
    )


@dataclass(frozen=True)
class Runs:
    config: Config
    whole: Path
    killed: Path
    updates: int


@pytest.fixture(scope="module", autouse=True)
def _no_waiting_for_the_disk() -> Iterator[None]:
    """What is killed here is a process, not the machine."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda _: None)
        yield


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    """A run to its end, and one that was killed after its last validation but one."""
    folder = tmp_path_factory.mktemp("runs")
    config = tiny_config(folder)
    updates = selftest.train_whole(config, folder / "whole")
    assert updates < (config.training.max_updates or 0), "patience did not end the run"
    with TrainingProcess(config, folder / "killed") as process:
        hit = process.kill(Kill(updates - VALIDATE_EVERY + 1, "any time", 0.0))
    assert hit is not None
    assert updates - VALIDATE_EVERY < hit.update < updates
    return Runs(config, folder / "whole", folder / "killed", updates)


Drop = Callable[[Learner, TrainState], Any]


def with_dropped(monkeypatch: pytest.MonkeyPatch, drop: Drop) -> None:
    """Have a resumed training lose a state, here and in the processes that are forked of here."""
    resume = Checkpoints.resume

    def losing(checkpoints: Checkpoints, learner: Learner) -> TrainState | None:
        state = resume(checkpoints, learner)
        if state is not None:
            drop(learner, state)
        return state

    monkeypatch.setattr(Checkpoints, "resume", losing)


def finish(runs: Runs, tmp_path: Path) -> list[str]:
    """Start a copy of the killed run again, and return in what it then differs."""
    shutil.copytree(runs.killed, tmp_path / "killed")
    train_killed(runs.config, tmp_path / "killed", plan=[], hits=[])
    return run_differences(tmp_path / "killed", runs.whole)


def test_a_killed_run_that_lost_nothing_does_not_differ(runs: Runs, tmp_path: Path) -> None:
    assert finish(runs, tmp_path) == []


def lose_a_weight(learner: Learner, state: TrainState) -> None:
    with torch.no_grad():
        next(learner.model.parameters())[-1, -1] *= 1.0 + 1e-6


def change_moments(name: str) -> Drop:
    def lose(learner: Learner, state: TrainState) -> None:
        for entry in learner.optimizer.state.values():
            entry[name].mul_(0.9)

    return lose


def lose_averages(learner: Learner, state: TrainState) -> None:
    averages = learner.average.averages()
    assert averages
    for name, weight in learner.average.weights().items():
        averages[name].copy_(weight)


def lose_field(**fields: Any) -> Drop:
    def lose(learner: Learner, state: TrainState) -> None:
        assert all(getattr(state, name) != value for name, value in fields.items())
        state.__dict__.update(fields)

    return lose


@pytest.mark.parametrize(
    ("drop", "seen"),
    [
        # By so little that which number shows it first is up to the processor.
        pytest.param(lose_a_weight, "train, update .* (nll|loss): ", id="one weight"),
        pytest.param(change_moments("exp_avg"), "train, update .* loss: ", id="first moments"),
        pytest.param(change_moments("exp_avg_sq"), "train, update .* loss: ", id="second moments"),
        pytest.param(change_moments("step"), "train, update .* loss: ", id="Adam's step"),
        pytest.param(lose_averages, "validation, update .* loss: ", id="moving averages"),
        pytest.param(lose_field(epoch=0), "train, update .* loss: ", id="epoch"),
        pytest.param(lose_field(update_in_epoch=0), "train, update .* loss: ", id="place in epoch"),
        pytest.param(
            lose_field(update=1), "train, update .* learning_rate: ", id="place in the schedule"
        ),
        pytest.param(
            lose_field(rate_factor=0.5), "train, .* learning_rate: ", id="factor of the rate"
        ),
        pytest.param(lose_field(health=Health()), "checkpoint of .* health: ", id="health"),
        pytest.param(lose_field(validations_without_gain=0), "^updates: ", id="patience"),
        pytest.param(lose_field(best=[]), "checkpoint of .* best: ", id="best checkpoints"),
        pytest.param(lose_field(last=[]), "checkpoint of .* last: ", id="last checkpoints"),
        pytest.param(lose_field(target_tokens=0), "validation, .* target_tokens: ", id="tokens"),
    ],
)
def test_a_state_that_is_dropped_shows(
    drop: Drop, seen: str, runs: Runs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_dropped(monkeypatch, drop)
    assert_seen(seen, finish(runs, tmp_path))


def lose_scale(learner: Learner, state: TrainState) -> None:
    scaler = learner.precision.scaler
    assert scaler.state_dict()["_growth_tracker"] > 0
    scaler.load_state_dict(torch.amp.GradScaler("cpu", init_scale=2.0**15).state_dict())


def test_the_scale_of_fp16_is_a_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = tiny_config(tmp_path, max_updates=11)
    half = config.training.model_copy(update={"precision": "fp16"})
    config = config.model_copy(update={"training": half})
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    selftest.train_whole(config, whole)
    with TrainingProcess(config, killed) as process:
        assert process.kill(Kill(5, "any time", 0.0))
    shutil.copytree(killed, tmp_path / "again")
    train_killed(config, killed, plan=[], hits=[])
    assert run_differences(killed, whole) == []
    with_dropped(monkeypatch, lose_scale)
    train_killed(config, tmp_path / "again", plan=[], hits=[])
    assert_seen("checkpoint of .* scaler: ", run_differences(tmp_path / "again", whole))


def assert_seen(pattern: str, differences: list[str]) -> None:
    assert any(re.search(pattern, line) for line in differences), differences


def test_a_random_state_that_is_dropped_shows(
    runs: Runs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spine, "seed_dropout", lambda *_: None)
    assert_seen("train, update .* loss: ", finish(runs, tmp_path))


def test_the_proof_passes_whenever_the_training_is_killed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "mt")
    proof = prove_resume(tmp_path, tiny_config(tmp_path, max_updates=20), kills=4, seed=1)
    assert proof.passed, proof.text
    assert proof.updates == 20
    assert 2 <= len(proof.hits) <= 4  # the last ones may come too late
    told = [line for line in caplog.messages if line.startswith("kill ")]
    assert told == [
        f"kill {number} of 4: {hit.as_text()}" for number, hit in enumerate(proof.hits, start=1)
    ]
    assert told[0] == "kill 1 of 4: while starting"
    for run in ("whole", "killed"):
        weights = (tmp_path / run / "model.safetensors").read_bytes()
        assert hashlib.sha256(weights).hexdigest() == proof.weights


def test_the_proof_fails_where_a_state_is_dropped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_dropped(monkeypatch, change_moments("exp_avg_sq"))
    for moment in selftest._LONGEST_DELAY_SECONDS:
        monkeypatch.setitem(selftest._LONGEST_DELAY_SECONDS, moment, 0.0)
    proof = prove_resume(tmp_path, tiny_config(tmp_path, max_updates=20), kills=3, seed=1)
    assert len(proof.hits) >= 2
    assert not proof.passed


def test_the_proof_fails_where_the_training_does_not_go_on_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise RunError("the checkpoint is gone")

    with_dropped(monkeypatch, fail)
    proof = prove_resume(tmp_path, tiny_config(tmp_path, max_updates=20), kills=2, seed=1)
    assert proof.differences == (
        f"{tmp_path}/killed: the training left with status 2; error: the checkpoint is gone",
    )


@pytest.mark.parametrize(
    ("differences", "text"),
    [
        (0, "resume: ok, 2 kills (1 while saving) in 9 updates, final weights ab\n"),
        (1, f"{FAILED}  0\n"),
        (5, f"{FAILED}  0\n  1\n  2\n  3\n  4\n"),
        (7, f"{FAILED}  0\n  1\n  2\n  3\n  4\n  and 2 more\n"),
    ],
)
def test_the_verdict(differences: int, text: str) -> None:
    hits = (Hit(0, None), Hit(6, "update-000000007"))
    proof = Proof(hits, 9, "ab", tuple(map(str, range(differences))), Path("there"))
    assert f"{proof.text}\n" == text
    assert proof.passed == (differences == 0)
    assert [hit.as_text() for hit in hits] == ["while starting", "while saving update-000000007"]


def test_a_proof_without_a_kill_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TrainingProcess, "kill", lambda process, _: process.wait())
    proof = prove_resume(tmp_path, tiny_config(tmp_path, max_updates=3), kills=2, seed=1)
    assert proof.differences == ("the training was over before the first kill",)


@settings(deadline=None)
@given(kills=st.integers(1, 60), updates=st.integers(1, 200), seed=st.integers(0))
def test_the_kills_are_spread_over_the_run(kills: int, updates: int, seed: int) -> None:
    plan = plan_kills(kills, updates, seed=seed)
    assert plan == plan_kills(kills, updates, seed=seed)
    assert [kill.moment for kill in plan].count("saving") == kills // 3
    assert (plan[0].update, plan[0].moment) == (0, "any time")
    for part, kill in enumerate(plan[1:], start=1):
        assert int(part * updates / kills) <= kill.update <= (part + 1) * updates / kills


@pytest.mark.parametrize("passed", [True, False])
def test_the_runs_are_kept_only_where_they_differ(
    passed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "mt")
    seeds = []

    def proved(folder: Path, config: Config, *, kills: int, seed: int) -> Proof:
        assert Path(config.data.train.source).exists()  # type: ignore[union-attr, arg-type]
        seeds.append(seed)
        return Proof((Hit(1, None),), 7, "ab", () if passed else ("x: 1 instead of 2",), folder)

    monkeypatch.setattr(selftest, "prove_resume", proved)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    proofs = [selftest.selftest_resume(3, seed) for seed in (5, None, None)]
    assert seeds[0] == 5
    assert seeds[1] != seeds[2]
    assert caplog.messages[1] == f"the moments of 3 kills are drawn with --seed {seeds[1]}"
    assert [proof.folder.exists() for proof in proofs] == [not passed] * 3


def test_an_error_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object, **__: object) -> Proof:
        raise KeyboardInterrupt

    monkeypatch.setattr(selftest, "prove_resume", interrupted)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with pytest.raises(KeyboardInterrupt):
        selftest.selftest_resume(3, None)
    assert list(tmp_path.iterdir()) == []
