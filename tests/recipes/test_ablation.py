import json
import os
import shutil
import signal
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NoReturn

import pytest
import torch

from mt.config import TrainingConfig
from mt.config.ablation import Ablation, load_ablation
from mt.config.loading import load_config
from mt.errors import DivergedError, RunError
from mt.evaluation.evaluate import evaluate_run
from mt.evaluation.scores import Evaluation, Score
from mt.recipes import ablation as ablation_module
from mt.recipes.ablation import (
    AblationResults,
    RunResult,
    VariantResults,
    run_ablation,
    updates_per_second,
)
from mt.training import trainer as training
from mt.training.optimizer import learning_rate
from mt.training.run_folder import RunFolder
from mt.training.trainer import train

SET = ["training.max_updates=6", "training.validate_every=6", "decoding.search=greedy"]
HEAD = f"set: [{', '.join(SET)}]\nseeds: [1, 2]\nsplit: test\n"
UNTIED = "changes: {untied: [model.tie_embeddings=none]}\n"
WILD = (  # diverges before its first validation
    "wild: [training.learning_rate=100, training.gradient_clip=0, training.max_updates=40,"
    " training.validate_every=40]"
)
NAMES = ["base-seed1", "untied-seed1", "base-seed2", "untied-seed2"]


@dataclass(frozen=True)
class Ended:
    """Finished ablation."""

    ablation: Ablation
    runs: Path
    results: AblationResults


def saved(recipe: Path, folder: Path, text: str) -> Ablation:
    (folder / "a.yaml").write_text(f"config: {recipe}\n{text}")
    return load_ablation(folder / "a.yaml")


@pytest.fixture(scope="module")
def ended(tiny_recipe: Path, tmp_path_factory: pytest.TempPathFactory) -> Ended:
    """Return a read-only ablation of one change and two seeds."""
    folder = tmp_path_factory.mktemp("ablation")
    ablation = saved(tiny_recipe, folder, HEAD + UNTIED)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MT_CACHE", str(tmp_path_factory.mktemp("cache")))
        torch.set_num_threads(1)
        return Ended(ablation, folder / "runs", run_ablation(ablation, folder / "runs"))


def copied(ended: Ended, folder: Path) -> Path:
    """Return a copy of the runs."""
    return shutil.copytree(ended.runs, folder / "runs")


def losses(results: AblationResults) -> list[tuple[str, int, float, Score | None]]:
    return [
        (row.name, seed, run.valid_loss, run.test_bleu)
        for row in results.variants
        for seed, run in row.runs.items()
    ]


def refused(*_: Any, **__: Any) -> NoReturn:
    raise AssertionError("already done")


def test_finished_runs_are_visited_seed_by_seed_and_not_trained_again(
    ended: Ended,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    trained = []

    def note(config: Any, run: Path) -> str:
        trained.append((config.seed, config.model.tie_embeddings, run.name))
        return train(config, run)

    monkeypatch.setattr(ablation_module, "train", note)
    monkeypatch.setattr(training, "run_updates", refused)
    monkeypatch.setattr(ablation_module, "evaluate_run", refused)
    assert run_ablation(ended.ablation, copied(ended, tmp_path)) == ended.results
    assert trained == list(zip([1, 1, 2, 2], ["all", "none"] * 2, NAMES, strict=True))
    lines = capsys.readouterr().err.splitlines()
    assert [line for line in lines if line.startswith("run ")] == [
        f"run {number} of 4: {name}" for number, name in enumerate(NAMES, 1)
    ]


def test_run_of_an_ablation_equals_a_run_of_train(
    ended: Ended, tiny_recipe: Path, tmp_path: Path
) -> None:
    config = load_config(tiny_recipe, overrides=[*SET, "model.tie_embeddings=none", "seed=2"])
    train(config, tmp_path / "alone")
    made, alone = RunFolder(ended.runs / "untied-seed2"), RunFolder(tmp_path / "alone")
    assert made.weights.read_bytes() == alone.weights.read_bytes()
    assert load_config(made.config) == config


def test_results_are_those_of_the_runs(ended: Ended) -> None:
    base, untied = ended.results.variants
    assert (base.name, untied.name) == ("base", "untied")
    for row in (base, untied):
        for seed, run in row.runs.items():
            folder = RunFolder(ended.runs / f"{row.name}-seed{seed}")
            score = json.loads(folder.model.read_text())["score"]
            assert f"loss {run.valid_loss:.3f}, " in score
            assert run.valid_bleu.as_text() in score
            evaluation = json.loads((folder.path / "evaluations" / "test.json").read_text())
            assert run.test_bleu is not None
            assert run.test_bleu.value == evaluation["bleu"]["score"]
            assert run.test_bleu.signature == evaluation["bleu"]["signature"]
            assert evaluation["decoding"]["search"] == "greedy"
    assert list(base.runs) == list(untied.runs) == [1, 2]
    # Three embedding matrices of 300 tokens x 32 instead of one.
    assert untied.parameters - base.parameters == 2 * 300 * 32
    assert base.runs[1].valid_loss != base.runs[2].valid_loss


@pytest.mark.parametrize("reason", ["another search", "other weights"])
def test_scores_of_other_weights_or_settings_are_made_again(
    reason: str, ended: Ended, tiny_recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = copied(ended, tmp_path)
    scored = []

    def note(run: Path, **named: Any) -> Any:
        scored.append(run.name)
        return evaluate_run(run, **named)

    monkeypatch.setattr(ablation_module, "evaluate_run", note)
    ablation, scores = ended.ablation, runs / "base-seed2" / "evaluations" / "test.json"
    expected = ["base-seed2"]
    if reason == "another search":
        text = (HEAD + UNTIED).replace("search=greedy", "beam=1")
        ablation, expected = saved(tiny_recipe, tmp_path, text), NAMES
    else:
        other = {**json.loads(scores.read_text()), "weights": "0" * 64}
        scores.write_text(json.dumps(other))
    results = run_ablation(ablation, runs)
    assert scored == expected
    # A beam of one is greedy search.
    assert results.variants == ended.results.variants


def test_no_test_is_translated_without_a_split(
    ended: Ended, tiny_recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ablation_module, "evaluate_run", refused)
    text = (HEAD + UNTIED).replace("split: test", "split: null")
    results = run_ablation(saved(tiny_recipe, tmp_path, text), copied(ended, tmp_path))
    assert {run.test_bleu for row in results.variants for run in row.runs.values()} == {None}


def test_other_runs_continue_after_a_diverged_run(
    tiny_recipe: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def exploding(update: int, config: TrainingConfig, width: int) -> float:
        return 1e30 if config.learning_rate == 100 else learning_rate(update, config, width)

    monkeypatch.setattr(training, "learning_rate", exploding)
    text = f"{HEAD}changes: {{{WILD}, dry: [model.dropout=0]}}".replace("[1, 2]", "[1]")
    results = run_ablation(saved(tiny_recipe, tmp_path, text), tmp_path / "runs")
    base, wild, dry = results.variants
    assert results.exit_status == 0
    assert (wild.runs, wild.diverged) == ({}, [1])
    assert list(base.runs) == list(dry.runs) == [1]
    lines = capsys.readouterr().err.splitlines()
    (line,) = [each for each in lines if each.startswith("diverged")]
    assert line.startswith(f"diverged: {tmp_path}/runs/wild-seed1: 26 updates in a row had a ")


def test_truncated_journal_is_an_error(ended: Ended, tmp_path: Path) -> None:
    runs = copied(ended, tmp_path)
    (runs / "base-seed1" / "metrics.jsonl").write_text('{"event": "start", "update": 0}\n{"ev')
    with pytest.raises(RunError, match="metrics.jsonl: ends before the run"):
        run_ablation(ended.ablation, runs)


def test_ablation_continues_after_a_signal(ended: Ended, tmp_path: Path) -> None:
    original, runs = training.take_update, copied(ended, tmp_path)
    shutil.rmtree(runs / "untied-seed1")

    def stopped(session: Any, *rest: Any) -> Any:
        if session.folder.path.name == "untied-seed1":
            os.kill(os.getpid(), signal.SIGTERM)
        return original(session, *rest)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(training, "take_update", stopped)
        results = run_ablation(ended.ablation, runs)
    assert results.exit_status == 143
    assert [row.name for row in results.variants] == ["base"]
    assert list(results.variants[0].runs) == [1]
    assert not RunFolder(runs / "untied-seed1").model.exists()
    again = run_ablation(ended.ablation, runs)
    assert again.exit_status == 0
    assert losses(again) == losses(ended.results)


def test_ctrl_c_during_scoring_takes_effect_after_it(
    ended: Ended, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(run: Path, **options: Any) -> Evaluation:
        os.kill(os.getpid(), signal.SIGINT)
        return evaluate_run(run, **options)

    monkeypatch.setattr(ablation_module, "evaluate_run", interrupted)
    runs = copied(ended, tmp_path)
    (runs / "base-seed2" / "evaluations" / "test.json").unlink()
    results = run_ablation(ended.ablation, runs)
    assert results.exit_status == 130
    assert [list(row.runs) for row in results.variants] == [[1, 2], [1]]


def train_events(*seconds: float, updates: int = 50, first: int = 0) -> list[dict[str, Any]]:
    """Return `train` events of these durations, with 10 tokens an update."""
    tokens = 10 * updates
    return [
        {
            "event": "train",
            "update": first + number * updates,
            "target_tokens": tokens,
            "target_tokens_per_second": tokens / duration,
        }
        for number, duration in enumerate(seconds, 1)
    ]


def test_rate_is_the_median_over_train_events() -> None:
    start, first = {"event": "start", "update": 0}, train_events(10)
    validated = [*train_events(30, 10, 5), {"event": "validation", "update": 100}]
    last = train_events(10, 10, first=150)
    assert updates_per_second([start, *validated, *last]) == pytest.approx(5.0)
    for again in ("resume", "rollback"):
        rest = train_events(4, updates=20, first=30)
        journal = [start, *first, {"event": again, "update": 30}, *rest]
        assert updates_per_second(journal) == pytest.approx(5.0)
    skipped = {"event": "train", "update": 9, "target_tokens": 0, "target_tokens_per_second": 0.0}
    assert updates_per_second([skipped, *train_events(10, first=9)]) == pytest.approx(5.0)
    with pytest.raises(DivergedError):
        updates_per_second([start, skipped])


SIGNATURE = "nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:2.6.0"
HEADS = [
    *("variant", "parameters", "updates/s", "vs base"),
    *("valid loss", "vs base", "valid BLEU", "vs base"),
]
OTHER = SIGNATURE.replace("13a", "zh")


def result(
    rate: float, loss: float, valid: float, test: float, signature: str = SIGNATURE
) -> RunResult:
    valid_bleu, test_bleu = (Score("BLEU", value, signature) for value in (valid, test))
    return RunResult(1_234_567, rate, loss, valid_bleu, test_bleu)


BASE = VariantResults(
    "base",
    (),
    {1: result(8.0, 2.0, 20.0, 30.0), 2: result(10.0, 2.2, 22.0, 33.0), 3: result(12, 2.1, 24, 36)},
)
ROTARY = VariantResults(
    "rotary",
    ("model.positional=rotary",),
    {1: result(9.0, 1.9, 21.0, 31.5), 2: result(9.0, 1.7, 25.0, 28)},
)
PRE = VariantResults("pre", ("model.residual=pre",), {1: None, 2: result(5.0, 2.0, 22.0, 34.0)})
GLU = VariantResults("glu", ("model.feed_forward=glu",), {1: None, 2: None})


def rows(results: AblationResults) -> list[list[str]]:
    """Return the cells of the table with its header."""
    table = [line for line in results.as_text().splitlines() if line.startswith("|")]
    assert len({len(line) for line in table}) == 1
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table]


def test_table_has_means_deviations_and_relations() -> None:
    head, ruler, *body = rows(AblationResults((BASE, ROTARY, PRE, GLU), split="news"))
    assert head == [*HEADS, "news BLEU", "vs base", "seeds"]
    assert [set(cell) for cell in ruler] == [{"-"}, *[{"-", ":"}] * 10]
    assert body == [
        [
            *("base", "1,234,567", "10.00 ± 2.00", "-", "2.100 ± 0.100", "-"),
            *("22.00 ± 2.00", "-", "33.00 ± 3.00", "-", "3"),
        ],
        [
            *("rotary", "1,234,567", "9.00 ± 0.00", "1.00x", "1.800 ± 0.141", "-0.300"),
            *("23.00 ± 2.83", "+2.00", "29.75 ± 2.47", "-1.75", "2"),
        ],
        [
            *("pre", "1,234,567", "5.00", "0.50x", "2.000", "-0.200"),
            *("22.00", "+0.00", "34.00", "+1.00", "1, 1 diverged"),
        ],
        ["glu", *["-"] * 9, "0, 2 diverged"],
    ]


def test_notes_follow_the_table() -> None:
    results = AblationResults((BASE, ROTARY, PRE, GLU), split="news")
    notes = [
        f"- BLEU: {SIGNATURE}",
        "- updates/s: rate of training without validation and start-up; other load on the machine "
        "lowers it",
        "- each number is the mean over the seeds, ± the sample standard deviation; `vs base` "
        "is over the seeds in common",
        "- only one seed, so that a difference may be chance: `pre`",
    ]
    assert results.as_text().partition("\n\n")[2].splitlines() == notes
    early = replace(results, exit_status=130).as_text().splitlines()
    assert early[-2:] == [notes[-1], "- stopped early: these are the finished runs"]
    assert AblationResults((), split=None, exit_status=130).as_text() == "no run has ended"
    chars = VariantResults("chars", (), {1: result(1, 1, 1, 1, OTHER)})
    text = AblationResults((BASE, chars, ROTARY), split="news").as_text()
    assert f"- BLEU of `base`, `rotary`: {SIGNATURE}\n- BLEU of `chars`: {OTHER}\n" in text


def test_json_has_the_numbers_of_variants_and_runs() -> None:
    results = AblationResults((BASE, ROTARY, PRE, GLU), split="news")
    record = json.loads(results.as_json())
    assert record["split"] == "news"
    base, rotary, pre, glu = record["variants"]
    assert rotary["changes"] == ["model.positional=rotary"]
    assert rotary["parameters"] == 1_234_567
    deviation = pytest.approx(8**0.5)
    assert rotary["valid_bleu"] == {"mean": 23.0, "deviation": deviation, "to_base": 2.0}
    assert rotary["updates_per_second"]["to_base"] == 1.0
    assert rotary["bleu_signatures"] == [SIGNATURE]
    assert [each["seed"] for each in rotary["runs"]] == rotary["seeds"] == [1, 2]
    bleu = {"name": "BLEU", "value": 28, "signature": SIGNATURE, "interval": None}
    assert rotary["runs"][1]["test_bleu"] == bleu
    assert base["valid_loss"]["to_base"] is None
    assert pre["test_bleu"] == {"mean": 34.0, "deviation": None, "to_base": 1.0}
    assert pre["diverged_seeds"] == [1]
    assert glu["valid_loss"] is glu["parameters"] is None
    lost = VariantResults("base", (), {1: None})
    compared = json.loads(AblationResults((lost, ROTARY), split=None).as_json())["variants"][1]
    assert compared["valid_loss"]["to_base"] is None
