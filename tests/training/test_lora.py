"""Fine-tuning that saves memory: low-rank matrices, recomputation, pure bf16, Adafactor."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from mt.data.batches import collate
from mt.decoding.load import read_run
from mt.decoding.translator import Translator
from mt.errors import RunError
from mt.model.weights import LowRankLinear, add_low_rank, merge_low_rank
from mt.runs import ADAPTER_FILE
from mt.training.initial_weights import choose_weights
from mt.training.resources import estimate_memory
from mt.training.run_folder import RunFolder
from mt.training.step import TrainingPass, train_step
from tests.factories import (
    Program,
    config,
    engine_translations,
    examples,
    learner,
    train_with,
    transformer,
)
from tests.training.test_resume import train_until

LINES = ["one two three four", "nine eight", "seven zero zero one"]


def lora(base: Path) -> list[str]:
    return [f"training.init_from={base}", "training.lora=3", "training.max_updates=20"]


@pytest.fixture(scope="module")
def adapted(
    tmp_path_factory: pytest.TempPathFactory, finished_run: Path, tiny_recipe: Path
) -> Path:
    run = tmp_path_factory.mktemp("lora") / "run"
    train_with(tiny_recipe, run, *lora(finished_run))
    return run


@pytest.mark.parametrize("width", [6, 60])
def test_layer_is_that_of_the_merged_matrix(width: int) -> None:
    linear = nn.Linear(width, width - 1)
    layer = LowRankLinear(linear, 2, 0.5)
    x = torch.randn(7, width)
    assert torch.equal(layer(x), linear(x))
    nn.init.normal_(layer.up)
    names = {f"a.{name}": each for name, each in layer.named_parameters()}
    both = merge_low_rank(names, 0.5)
    assert set(both) == {"a.weight", "a.bias"}
    torch.testing.assert_close(layer(x), x @ both["a.weight"].T + both["a.bias"])
    torch.testing.assert_close(
        both["a.weight"] - linear.weight, 0.5 * layer.up @ layer.down, atol=1e-6, rtol=0
    )


def test_only_low_rank_matrices_of_the_stacks_learn() -> None:
    model = transformer(encoder_layers=2)
    before = {name: each.clone() for name, each in model.state_dict().items()}
    add_low_rank(model, ("encoder", "decoder"), rank=2, scale=2.0)
    training = learner(model)
    for _ in range(3):
        train_step(training, [collate(examples())], 1e-2)
    moved = {
        name
        for name, each in model.named_parameters()
        if name not in before or not torch.equal(each, before[name])
    }
    # Six or four linear layers of attention, two of the feed-forward layer.
    assert len(moved) == 2 * (2 * 6 + 10)
    assert all(re.fullmatch(r"(en|de)coder\..*\.(down|up)", name) for name in moved)


def test_run_is_its_base_with_the_adapter(adapted: Path, finished_run: Path) -> None:
    base, run = read_run(finished_run), read_run(adapted)
    learnt = load_file(adapted / ADAPTER_FILE)
    assert {name.rpartition(".")[2] for name in learnt} == {"down", "up"}
    assert set(run.weights) == set(base.weights)
    changed = {name for name in base.weights if not base.weights[name].equal(run.weights[name])}
    assert changed == {name.replace(".up", ".weight") for name in learnt if name.endswith(".up")}
    override = f"decoding.adapter={adapted}"
    loaded: Any = Translator.load(finished_run, overrides=[override]).engine
    for name, each in loaded.model.named_parameters():
        assert each.equal(run.weights[name]), name
    there = engine_translations(adapted, LINES)
    assert engine_translations(finished_run, LINES, [override]) == there
    assert engine_translations(finished_run, LINES) != there


def test_mean_of_checkpoints_is_that_of_the_products(
    adapted: Path, finished_run: Path, tiny_recipe: Path, tmp_path: Path, program: Program
) -> None:
    run, output = tmp_path / "run", tmp_path / "mean"
    settings = [*lora(finished_run), "average=last", "learning_rate=0.05", "validate_every=10"]
    train_with(tiny_recipe, run, *settings)
    checkpoints = RunFolder(run).checkpoints
    assert program("average", run, "--checkpoints", "10,20", "--output", output)[0] == 0
    separate = [checkpoints.average([update]) for update in (10, 20)]
    merged = [merge_low_rank(weights, 2.0) for weights in separate]
    wrong = merge_low_rank(
        {name: (separate[0][name] + separate[1][name]) / 2 for name in separate[0]}, 2.0
    )
    for folder in (run, output):
        described = json.loads((folder / "model.json").read_text())
        assert described["averaged_updates"] == [10, 20]
        weights = read_run(folder).weights
        for name, each in weights.items():
            mean = (merged[0][name] + merged[1][name]) / 2
            torch.testing.assert_close(each, mean, atol=1e-6, rtol=1e-5)
        assert any((wrong[name] - each).abs().max() > 1e-4 for name, each in weights.items())
        there = engine_translations(folder, LINES)
        assert engine_translations(finished_run, LINES, [f"decoding.adapter={folder}"]) == there


def test_stopped_run_is_the_uninterrupted_one(
    adapted: Path, finished_run: Path, tiny_recipe: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    train_until(tiny_recipe, run, 7, "SIGTERM", *lora(finished_run))
    train_until(tiny_recipe, run, 13, "dies", *lora(finished_run))
    train_with(tiny_recipe, run, *lora(finished_run))
    for name in (ADAPTER_FILE, "model.safetensors"):
        assert (run / name).read_bytes() == (adapted / name).read_bytes()


def test_new_tokens_are_learnt_beside_the_low_rank_matrices(
    finished_run: Path, tiny_corpus: Path, tiny_recipe: Path, tmp_path: Path
) -> None:
    corpus, run = tmp_path / "corpus", tmp_path / "run"
    corpus.mkdir()
    for side in ("en", "de"):
        text = (tiny_corpus / f"train.{side}").read_text(encoding="utf-8")
        (corpus / f"train.{side}").write_text(text.replace("one", "один"), encoding="utf-8")
    where = [f"data.train.source={corpus}/train.en", f"data.train.target={corpus}/train.de"]
    train_with(tiny_recipe, run, *lora(finished_run), *where, "tokenizer.added_tokens=5")
    rows = load_file(run / ADAPTER_FILE)["target_embedding.weight"]
    assert len(rows) == read_run(finished_run).tokenizer.target_size + 5
    with pytest.raises(RunError):
        Translator.load(finished_run, overrides=[f"decoding.adapter={run}"])


def test_wrong_adapters_are_named(
    program: Program, adapted: Path, finished_run: Path, tmp_path: Path
) -> None:
    def refused(run: Path, adapter: Path) -> str:
        status, _, stderr = program("translate", run, "--set", f"decoding.adapter={adapter}")
        assert status == 2
        assert stderr.count("\n") == 1
        return stderr

    assert "was not trained with `training.lora`" in refused(finished_run, finished_run)
    assert "was trained from another run than" in refused(adapted, adapted)
    assert "no such run folder" in refused(finished_run, tmp_path / "no")
    damaged = tmp_path / "damaged"
    shutil.copytree(adapted, damaged)
    (damaged / ADAPTER_FILE).write_bytes(b"?")
    assert f"{damaged / ADAPTER_FILE}: damaged" in refused(finished_run, damaged)


def test_wrong_settings_are_named() -> None:
    for keys, message in (
        ({"lora": 16}, "name it in `training.init_from`"),
        ({"lora": 16, "init_from": "a", "freeze": ["encoder"]}, "leave out `training.freeze`"),
        ({"recompute": "on", "compile": "on"}, "choose one"),
        ({"precision": "pure_bf16", "ema_decay": 0.999}, "rounds its small steps away: choose one"),
        (
            {"precision": "pure_bf16", "weight_decay": 0.1},
            r"`training\.weight_decay` does not work",
        ),
    ):
        with pytest.raises(ValueError, match=message):
            config(training={"max_updates": 1, **keys})


def test_recomputed_layers_have_the_same_gradients() -> None:
    gradients = []
    for recompute in ("off", "on"):
        model = transformer(dropout=0.3, encoder_layers=2, decoder_layers=2)
        choose_weights(model, config(training={"max_updates": 1, "recompute": recompute}).training)
        torch.manual_seed(3)
        TrainingPass(model, 0.1)(collate(examples())).objective.backward()
        gradients.append([each.grad for each in model.parameters()])
    for plain, again in zip(*gradients, strict=True):
        assert torch.equal(plain, again)


@pytest.mark.parametrize(
    "settings", [["training.precision=pure_bf16"], ["training.optimizer=adafactor"]]
)
def test_saving_settings_learn_and_resume_bit_for_bit(
    settings: list[str], tiny_recipe: Path, tmp_path: Path
) -> None:
    settings = [*settings, "training.recompute=on", "training.max_updates=12"]
    train_with(tiny_recipe, tmp_path / "whole", *settings)
    train_until(tiny_recipe, tmp_path / "stopped", 7, "SIGTERM", *settings)
    train_with(tiny_recipe, tmp_path / "stopped", *settings)
    whole, stopped = (read_run(tmp_path / name) for name in ("whole", "stopped"))
    assert whole.record.sha256 == stopped.record.sha256
    assert {each.dtype for each in whole.weights.values()} == {torch.float32}


def test_estimate_of_memory_is_lower_with_each_setting() -> None:
    shape = {"d_model": 256, "d_ff": 1024, "heads": 4, "encoder_layers": 6, "decoder_layers": 6}
    lengths = np.full((20, 2), 30, np.int32)

    def estimate(**keys: Any) -> int:
        some = config(model=shape, training={"max_updates": 1, "init_from": "a", **keys})
        return estimate_memory(some.model, some.training, lengths, vocabularies=(900, 900))

    usual = estimate()
    assert estimate(precision="pure_bf16") == pytest.approx(usual / 2, rel=0.01)
    assert estimate(recompute="on") < 0.9 * usual
    assert estimate(optimizer="adafactor") < 0.9 * usual
    assert estimate(lora=16) < 0.9 * usual
    assert estimate(recompute="on", optimizer="adafactor", lora=16) < 0.5 * usual
