"""Commands `mt info`, `mt plan` and `mt plot`."""

import json
import re
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from mt.data.batches import PaddingEfficiency
from mt.evaluation.run_info import read_info
from mt.profiling.plan import TrainingPlan
from mt.runs import read_exported
from tests.factories import Program, Refused

PLAN = TrainingPlan(
    device="cpu",
    precision="fp32",
    threads=2,
    parameters=7_000_000,
    learning_parameters=6_000_000,
    pairs=29_000,
    vocabularies={"source": 8000, "target": 8000},
    updates_per_epoch=120,
    ends_by="training.max_updates",
    bound="at most",
    updates=3000,
    validations=4,
    checkpoints=3,
    target_tokens_per_update=4000.0,
    padding_efficiency=PaddingEfficiency(source=0.95, target=0.9),
    heaviest_batch={"pairs": 100, "source_length": 30, "target_length": 40},
    memory_bytes=2**31,
    memory_with={"recompute: on": 2**30, "precision: pure_bf16": 2**29},
    memory_free_bytes=3 * 2**30,
    checkpoint_bytes=76 * 2**20,
    disk_bytes=512 * 2**20,
    disk_free_bytes=2**39,
    probed_updates=12,
    seconds={"update": 2.0, "validation": 30.0, "checkpoint": 0.5, "total": 6121.5},
)


def split_tables(text: str) -> list[list[list[str]]]:
    """Return the cells of each row of each table."""
    return [
        [re.split(r"\s{2,}", row) for row in table.splitlines()] for table in text.split("\n\n")
    ]


def test_info_of_a_config_counts_its_parts_without_a_corpus(recipe: Path, program: Program) -> None:
    keys = "tokenizer: {vocabulary_size: 1000}\nmodel: {d_model: 100, d_ff: 200, heads: 4}\n"
    recipe.write_text(recipe.read_text() + keys)
    layers = ("--set", "model.encoder_layers=2", "--set", "model.decoder_layers=1")
    status, out, err = program("info", recipe, *layers)
    assert (status, err) == (0, "")
    head, parts, note = split_tables(out)
    assert head[0] == ["path", "tiny.yaml"]
    assert parts[0] == ["part", "parameters", "share", "MFLOPs", "share"]
    assert ["encoder self-attention", "80,800", "21.0%", "4.50", "22.5%"] in parts
    assert ["output layer", "0", "0.0%", "5.00", "25.0%"] in parts
    assert parts[-1] == ["total", "383,900", "100.0%", "20.00", "100.0%"]
    assert "model.tie_embeddings" in str(note)  # chosen by the training
    record = json.loads(program("info", recipe, *layers, "--json")[1])
    assert sum(part["parameters"] for part in record["parts"]) == 383_900
    assert record["config"]["model"]["d_model"] == 100


def test_info_of_a_run_describes_model_and_corpora(finished_run: Path, program: Program) -> None:
    status, out, err = program("info", finished_run)
    assert (status, err) == (0, "")
    info = read_info(finished_run)
    head, parts, _ = split_tables(out)
    shown = dict(head)
    assert (shown["run"], shown["state"]) == (str(finished_run), "finished")
    assert shown["languages"] == "en to de"
    assert shown["architecture variant"] == "post layernorm, relu, sinusoidal"
    assert shown["model sha256"] == info["model"]["sha256"]
    assert shown["tokenizer fingerprint"] == info["tokenizer"]["fingerprint"]
    assert shown["corpora train sha256 source"] == info["corpora"]["train"]["sha256_source"]
    assert "beam=2" in shown["decoding"]
    assert parts[-1][:2] == ["total", f"{info['model']['parameters']:,}"]
    record = json.loads(program("info", finished_run, "--json")[1])
    assert record.pop("parts")
    assert record.pop("tokens") == [25, 25]
    assert record == json.loads(json.dumps(info))


def test_unfinished_run_is_marked_and_damaged_file_refused(
    run: Path, program: Program, refused: Refused
) -> None:
    with (run / "model.safetensors").open("ab") as file:
        file.write(b"x")
    assert "model.safetensors: damaged (its SHA-256 is not the one in" in refused("info", run)
    (run / "model.safetensors").unlink()
    (run / "model.json").unlink()
    status, out, _ = program("info", run)
    assert status == 0
    assert dict(split_tables(out)[0])["state"] == "unfinished"
    assert "model sha256" not in out


def test_scores_come_with_their_signatures(run: Path, program: Program) -> None:
    bleu = json.loads(program("evaluate", run, "--json", "--device", "cpu")[1])["bleu"]
    shown = dict(split_tables(program("info", run)[1])[0])
    assert shown["scores test BLEU"] == f"{bleu['score']:.2f} ({bleu['signature']})"
    assert shown["scores test current"] == "True"
    evaluation = run / "evaluations" / "test.json"
    record = json.loads(evaluation.read_text())
    evaluation.write_text(json.dumps({**record, "weights": "5a"}))
    assert dict(split_tables(program("info", run)[1])[0])["scores test current"] == "False"


def test_exported_folder_shows_both_hashes_and_parity(exported_run: Path, program: Program) -> None:
    exported = read_exported(exported_run)
    shown = dict(split_tables(program("info", exported_run)[1])[0])
    assert shown["state"] == "exported"
    assert shown["export weights"] == exported.weights
    assert shown["export model"] == exported.model
    assert exported.parity
    assert shown["export parity sentences"] == str(exported.parity["sentences"])


def test_plan_is_shown_with_the_refused_exports(
    program: Program,
    recorded: Callable[..., list[Any]],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    tiny_recipe: Path,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("my.yaml").write_text(tiny_recipe.read_text())
    calls = recorded("mt.profiling.plan.plan_training", PLAN)
    status, out, err = program("plan", "my.yaml", "--set", "model.positional=rotary")
    assert (status, err) == (0, "")
    (((_, folder), _),) = calls
    assert folder == Path("runs/my")
    _, facts, times, _ = split_tables(out)
    shown = dict(facts)
    assert shown["parameters"] == "7,000,000, 1,000,000 of them frozen"
    assert shown["peak memory"] == "2.0 GiB; 3.0 GiB are available"
    assert shown["disk"] == "at most 512 MiB; 512.0 GiB are available"
    assert shown["export to"].startswith("ctranslate2; no huggingface: `model.positional: rotary`")
    assert times[1] == ["update", "2 s", "3,000", "1:40:00"]
    assert times[-1] == ["in all", "at most 1:42:02"]
    record = json.loads(program("plan", "my.yaml", "--json")[1])
    assert record["export_refused"].pop("bergamot").startswith("`model.positional: sinusoidal` (")
    assert record == {**asdict(PLAN), "export_refused": {"ctranslate2": None, "huggingface": None}}


def test_a_real_plan_writes_nothing(
    program: Program, tiny_recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("mt.profiling.plan.MAX_UPDATES", 6)
    status, out, err = program("plan", tiny_recipe, "--json", "--set", "training.max_updates=9")
    assert status == 0
    record = json.loads(out)
    assert (record["updates"], record["validations"], record["probed_updates"]) == (9, 2, 3)
    assert record["memory_bytes"] > 4 * record["parameters"]
    assert "pairs to train on" in err
    assert [*tmp_path.iterdir()] == []


def test_plots(program: Program, finished_run: Path, run: Path, tmp_path: Path) -> None:
    picture = tmp_path / "a.png"
    sentence = ("one two", "-o", picture, "--set", "decoding.search=greedy")
    assert program("plot", "attention", finished_run, *sentence) == (0, f"{picture}\n", "")
    assert program("plot", "training", run) == (0, f"{run / 'training.png'}\n", "")
    assert program("plot", "training", run, finished_run, "-o", picture)[0] == 0
    assert sorted(tmp_path.iterdir()) == [picture, run]
