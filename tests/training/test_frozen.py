"""Frozen parts: they never move, the rest learns as if they were constants."""

import os
import signal
from pathlib import Path
from typing import Any, get_args

import pytest
import torch
from safetensors.torch import load_file

from mt.config import ModelConfig
from mt.config.loading import load_config
from mt.config.training import Part
from mt.data.batches import collate
from mt.data.store import Example
from mt.errors import ConfigError
from mt.model.transformer import Transformer
from mt.training import trainer as spine
from mt.training.checkpoint import OPTIMIZER
from mt.training.initial_weights import PARTS, describe_parameters, freeze
from mt.training.optimizer import build_optimizer, choose_precision
from mt.training.run_folder import RunFolder
from mt.training.step import Learner, TrainingPass, fetch_metrics, update

CPU = torch.device("cpu")
SMALL: dict[str, Any] = {"d_model": 16, "d_ff": 16, "heads": 2, "dropout": 0.0}
PAIR = Example(0, torch.tensor([5, 6, 7, 3]).numpy(), torch.tensor([8, 9, 3]).numpy())


def model(**changes: Any) -> Transformer:
    torch.manual_seed(1)
    layers = {"encoder_layers": 2, "decoder_layers": 2}
    config = ModelConfig.model_validate({**SMALL, **layers, **changes})
    return Transformer(config, source_vocabulary=12, target_vocabulary=12)


def learner(made: Transformer) -> Learner:
    return Learner(
        model=made,
        training_pass=TrainingPass(made, label_smoothing=0.1),
        optimizer=build_optimizer(made, CPU),
        precision=choose_precision("fp32", CPU),
        gradient_clip=0.5,
    )


def part_of(name: str) -> str:
    """Return the part that a parameter belongs to, by the module at the head of its name."""
    (part,) = (part for part, modules in PARTS.items() if name.split(".")[0] in modules)
    return part


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"tie_embeddings": "none", "residual": "pre", "positional": "learned"},
        {"tie_embeddings": "decoder", "positional": "relative_bias", "norm": "rmsnorm"},
        {"tie_embeddings": "none", "positional": "relative"},
    ],
)
def test_every_parameter_belongs_to_one_part(changes: dict[str, Any]) -> None:
    made = model(**changes)
    assert {part_of(name) for name, _ in made.named_parameters()} <= set(get_args(Part))
    assert set(PARTS) == set(get_args(Part))
    freeze(made, PARTS)
    assert not any(parameter.requires_grad for parameter in made.parameters())


@pytest.mark.parametrize(
    ("tied", "frozen"),
    [
        ("none", ["encoder"]),
        ("none", ["decoder"]),
        ("none", ["source_embedding"]),
        ("none", ["target_embedding", "output"]),
        ("none", ["output"]),
        ("none", ["source_embedding", "target_embedding", "encoder", "decoder"]),
        ("decoder", ["encoder", "source_embedding"]),
        ("decoder", ["target_embedding", "output"]),
        ("all", ["encoder", "decoder"]),
        ("all", ["source_embedding", "target_embedding", "output"]),
    ],
)
def test_frozen_parts_stay_bit_for_bit_and_count_nowhere(tied: str, frozen: list[str]) -> None:
    made = model(tie_embeddings=tied, residual="pre", positional="learned")
    batch = collate([PAIR])
    # What the whole model's gradient would be, part by part.
    whole = model(tie_embeddings=tied, residual="pre", positional="learned")
    (TrainingPass(whole, 0.1)(batch).smoothed / batch.target_tokens).backward()
    squares = {
        name: float(parameter.grad.square().sum())
        for name, parameter in whole.named_parameters()
        if parameter.grad is not None and part_of(name) not in frozen
    }
    freeze(made, frozen)
    before = {name: each.detach().clone() for name, each in made.named_parameters()}
    learning = learner(made)
    norms = [fetch_metrics([update(learning, [batch], 0.01)])[0].gradient_norm for _ in range(3)]
    assert norms[0] == pytest.approx(sum(squares.values()) ** 0.5, rel=1e-5)
    for name, parameter in made.named_parameters():
        stays = part_of(name) in frozen
        assert torch.equal(parameter, before[name]) == stays, name
        assert (parameter in learning.optimizer.state) != stays, name
        assert parameter.grad is None


def test_what_is_frozen_is_counted(tiny_recipe: Path) -> None:
    made = model(tie_embeddings="decoder")
    assert describe_parameters(made) == f"{sum(p.numel() for p in made.parameters()):,} parameters"
    freeze(made, ["source_embedding"])
    assert describe_parameters(made).endswith(f" parameters, {12 * 16} of them frozen")


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        (
            ["training.freeze=[source_embedding, encoder]"],
            "--set training.freeze: `training.freeze` names `source_embedding`, but "
            "`model.tie_embeddings: all` makes one matrix of `source_embedding`, "
            "`target_embedding`, `output`: freeze all of them, or none",
        ),
        (
            ["training.freeze=[output]", "model.tie_embeddings=decoder"],
            "--set model.tie_embeddings: `training.freeze` names `output`, but "
            "`model.tie_embeddings: decoder` makes one matrix of `target_embedding`, `output`: "
            "freeze all of them, or none",
        ),
        (
            [f"training.freeze=[{', '.join(get_args(Part))}]"],
            "--set training.freeze: `training.freeze` names every part: no weight is left to train",
        ),
        (
            ["training.freeze=[encodr]"],
            "--set training.freeze: `training.freeze.0`: `encodr` is not one of `source_embedding`, "
            "`target_embedding`, `output`, `encoder`, `decoder`; did you mean `encoder`?",
        ),
        (
            ["training.freeze=encoder"],
            "--set training.freeze: expected a list, got `encoder`",
        ),
    ],
)
def test_what_cannot_be_frozen_is_told(settings: list[str], told: str, tiny_recipe: Path) -> None:
    with pytest.raises(ConfigError) as error:
        load_config(tiny_recipe, overrides=settings)
    assert str(error.value) == told


def train(recipe: Path, run: Path, *, until: int | None = None) -> None:
    """Train with a frozen encoder, to the end or until a SIGTERM after an update."""
    take_update = spine.take_update

    def hit(session: Any, *rest: Any) -> None:
        take_update(session, *rest)
        if session.state.update == until:
            os.kill(os.getpid(), signal.SIGTERM)

    settings = ["training.freeze=[encoder]", "training.max_updates=20", "training.keep_last=9"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(spine, "take_update", hit)
        spine.train(load_config(recipe, overrides=settings), run)


def test_a_run_with_a_frozen_part_goes_on_as_the_same_run(
    tiny_recipe: Path, tmp_path: Path
) -> None:
    train(tiny_recipe, tmp_path / "whole")
    with pytest.raises(SystemExit):
        train(tiny_recipe, tmp_path / "stopped", until=13)
    train(tiny_recipe, tmp_path / "stopped")
    whole, stopped = (RunFolder(tmp_path / name) for name in ("whole", "stopped"))
    assert whole.weights.read_bytes() == stopped.weights.read_bytes()
    for number in (10, 20):
        files = [folder.checkpoints.path(number) / OPTIMIZER for folder in (whole, stopped)]
        assert files[0].read_bytes() == files[1].read_bytes()
        assert not any("encoder" in name for name in load_file(files[0]))
    early, late = (whole.checkpoints.weights(number) for number in (10, 20))
    for name, tensor in early.items():
        assert torch.equal(tensor, late[name]) == name.startswith("encoder"), name
