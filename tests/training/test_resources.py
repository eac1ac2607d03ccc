"""Memory of training: estimate, warning, and batches that are split where a device is too small."""

import logging
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, distributed
from torch._C._distributed_c10d import HashStore
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import ProfilerActivity, profile

from mt.config import Config
from mt.config.loading import load_config
from mt.data.batches import Batch, collate
from mt.data.store import Example
from mt.errors import UserError
from mt.model.device import DEVICE_TRAITS, DeviceTraits
from mt.training import resources
from mt.training.data import prepare
from mt.training.distributed import World
from mt.training.loader import heaviest, planned_updates
from mt.training.loss import LossSums
from mt.training.optimizer import Precision
from mt.training.resources import (
    estimate_memory,
    warn_of_low_memory,
)
from mt.training.run_folder import RunFolder
from mt.training.setup import build_learner, distribute, new_model
from mt.training.step import BatchTooLarge, TrainingPass, train_step
from mt.training.trainer import Trainer, train
from mt.training.validation import mean_loss, validation_losses
from tests import factories
from tests.factories import CPU, journal

VOCABULARY = 500


def allocated_bytes(config: Config, lengths: Any) -> int:
    """Return the peak of torch's allocator during an update, and the lasting tensors."""
    model = new_model(config.model, (VOCABULARY, VOCABULARY), CPU)
    learner = build_learner(config, model, CPU)
    ids = np.random.default_rng(1)
    pairs = [
        [ids.integers(4, VOCABULARY, side).astype(np.int32) for side in pair] for pair in lengths
    ]
    batch = collate([Example(0, *pair) for pair in pairs])
    train_step(learner, [batch], 0.1)
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        train_step(learner, [batch], 0.1)
    events = profiler.profiler.kineto_results.events()
    changes = sorted((e.start_ns(), e.nbytes()) for e in events if e.name() == "[memory]")
    tensors = [*model.parameters(), *learner.average.averages().values()]
    tensors += [each for state in learner.optimizer.state.values() for each in state.values()]
    peak = int(np.cumsum([size for _, size in changes]).max())
    return peak + sum(tensor.nbytes for tensor in tensors)


@pytest.mark.parametrize(
    ("model", "training"),
    [
        ({}, {}),
        ({"d_model": 128, "d_ff": 512, "feed_forward": "gelu"}, {"ema_decay": 0.99}),
        ({"positional": "relative", "feed_forward": "swiglu", "norm": "rmsnorm"}, {}),
        ({"positional": "rotary", "residual": "sandwich", "kv_heads": 1}, {}),
        ({"attention_dropout": 0.1, "feed_forward_dropout": 0.1}, {"r_drop": 1.0}),
    ],
)
def test_estimate_is_what_torch_allocates_times_heap_factor(
    model: dict[str, Any], training: dict[str, Any]
) -> None:
    shape = {"d_model": 64, "d_ff": 128, "heads": 4, "encoder_layers": 2, "decoder_layers": 2}
    config = factories.config(
        model={**shape, "dropout": 0.1, **model}, training={"precision": "fp32", **training}
    )
    lengths = np.full((96, 2), (30, 26), dtype=np.int32)
    estimated = estimate_memory(
        config.model, config.training, lengths, vocabularies=(VOCABULARY, VOCABULARY)
    )
    assert estimated == pytest.approx(1.4 * allocated_bytes(config, lengths), rel=0.15)


def config(recipe: Path, *settings: str) -> Config:
    overrides = [f"training.{each}" for each in ("max_updates=6", "validate_every=3", *settings)]
    return load_config(recipe, overrides=["model.dropout=0.0", *overrides])


@pytest.fixture
def trainer(tiny_recipe: Path, tmp_path: Path) -> Trainer:
    (tmp_path / "session").mkdir()
    folder, chosen = RunFolder(tmp_path / "session"), config(tiny_recipe)
    trainer = Trainer(chosen, folder, prepare(chosen, folder))
    trainer.begin()
    return trainer


@pytest.mark.parametrize(("available", "warns"), [(2**20, True), (2**40, False), (None, False)])
def test_warning_where_estimate_exceeds_available_memory(
    available: int | None,
    warns: bool,
    trainer: Trainer,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(resources, "available_memory", lambda: available)
    with caplog.at_level(logging.WARNING, "mt"):
        warn_of_low_memory(
            trainer.learner.model, trainer.config.model, trainer.training, trainer.data
        )
    assert bool(caplog.messages) is warns
    for message in caplog.messages:
        assert message.startswith("warning: training will take about 0.00 GiB of memory, and")
        assert "lower `training.max_tokens_per_batch`, now 200 (the updates stay the" in message


def positions(batch: Batch) -> int:
    return batch.source.numel() + batch.target_in.numel()


def limit_positions(patch: pytest.MonkeyPatch, most: int) -> list[int]:
    """Let larger batches fail in the backward pass, after some gradients; return their sizes."""
    forward, backward, sizes = TrainingPass.forward, Precision.backward, [0]

    def seen(training_pass: TrainingPass, batch: Batch) -> LossSums:
        if training_pass.training:  # not in a validation
            sizes.append(positions(batch))
        return forward(training_pass, batch)

    def failing(precision: Precision, loss: Tensor) -> None:
        backward(precision, loss)
        if sizes[-1] > most:
            raise torch.AcceleratorError("CUDA error: out of memory")

    patch.setattr(TrainingPass, "forward", seen)
    patch.setattr(Precision, "backward", failing)
    return sizes


def gradients(trainer: Trainer) -> list[Tensor]:
    """Take the first update of a training and return its gradients."""
    taken: list[Tensor] = []

    def look(*_: object) -> None:
        parameters = trainer.learner.model.parameters()
        taken.extend(each.grad.clone() for each in parameters if each.grad is not None)

    handle = trainer.learner.optimizer.register_step_pre_hook(look)
    planned = planned_updates(trainer.config.training, trainer.data, trainer.state, CPU)
    trainer.run_update(next(planned))
    handle.remove()
    return taken


@pytest.mark.parametrize("most", [150, 30])
def test_update_in_halves_is_the_same_update(
    most: int, trainer: Trainer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = {name: each.clone() for name, each in trainer.learner.model.state_dict().items()}
    whole = gradients(trainer)
    trainer.learner.model.load_state_dict(before)
    (first,) = trainer.pending
    trainer.state, trainer.pending = type(trainer.state)(), []
    sizes = limit_positions(monkeypatch, most)
    halved = gradients(trainer)
    assert max(sizes) > most, "nothing was too large"
    torch.testing.assert_close(halved, whole, atol=1e-6, rtol=1e-5)
    ours, theirs = trainer.pending[0], first
    assert ours.tokens == theirs.tokens
    torch.testing.assert_close((ours.nll, ours.smoothed), (theirs.nll, theirs.smoothed))


def test_run_with_split_batches_learns_the_same_and_warns_once(
    tiny_recipe: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    train(config(tiny_recipe), tmp_path / "whole")
    limit_positions(monkeypatch, 150)
    capsys.readouterr()
    train(config(tiny_recipe), tmp_path / "halved")
    assert (
        capsys.readouterr().err.count(
            "the device has too little memory for a batch: such batches are split in halves, which "
            "is slower, and the updates stay the same; to avoid it, lower "
            "`training.max_tokens_per_batch`, now 200\n"
        )
        == 1
    )
    (told,) = journal(tmp_path / "halved", "warning")
    assert (told["kind"], told["update"]) == ("split_batches", 0)
    losses = [
        [line["loss"] for line in journal(tmp_path / run, "validation")]
        for run in ("whole", "halved")
    ]
    assert losses[1] == pytest.approx(losses[0], rel=1e-4)


def test_validation_in_halves_has_the_same_loss(
    trainer: Trainer, monkeypatch: pytest.MonkeyPatch
) -> None:
    forward, sizes, most = TrainingPass.forward, [0], 30

    def limited(training_pass: TrainingPass, batch: Batch) -> LossSums:
        sizes.append(positions(batch))
        if sizes[-1] > most:
            raise torch.OutOfMemoryError
        return forward(training_pass, batch)

    examples = trainer.data.valid_examples
    whole = mean_loss(validation_losses(trainer.learner, examples, 200))
    monkeypatch.setattr(TrainingPass, "forward", limited)
    halved = mean_loss(validation_losses(trainer.learner, examples, 200))
    assert halved == pytest.approx(whole, rel=1e-5)
    assert max(sizes) > most, "nothing was too large"
    most = 3
    with pytest.raises(UserError):
        validation_losses(trainer.learner, examples, 200)


def test_pair_that_does_not_fit_is_named(trainer: Trainer, monkeypatch: pytest.MonkeyPatch) -> None:
    limit_positions(monkeypatch, 3)
    with pytest.raises(UserError) as told:
        gradients(trainer)
    (batch, *_) = next(
        planned_updates(trainer.config.training, trainer.data, trainer.state, CPU)
    ).batches
    (pair,) = trainer.data.store.examples(batch.index[:1].numpy())
    assert str(told.value).startswith(
        f"pair {pair.index + 1} of the encoded corpus, with {len(pair.source)} source and "
        f"{len(pair.target)} target tokens, does not fit into the device's memory: in a new run "
    )


def test_several_ranks_do_not_split(trainer: Trainer) -> None:
    distributed = DistributedDataParallel.__new__(DistributedDataParallel)
    torch.nn.Module.__init__(distributed)
    trainer.fitter.learner = replace(trainer.learner, training_pass=distributed)
    (batch, *_) = next(
        planned_updates(trainer.config.training, trainer.data, trainer.state, CPU)
    ).batches

    def failing(batches: list[Batch]) -> None:
        raise BatchTooLarge(0)

    rows = len(batch.index)
    with pytest.raises(
        UserError, match=f"this rank's .* a batch of {rows} pairs: lower `training."
    ):
        trainer.fitter.run(failing, [batch], update=0)


def test_heaviest_batch_has_the_most_positions() -> None:
    lengths = np.array([[3, 3], [5, 9], [9, 5], [2, 2], [8, 8], [8, 8]], dtype=np.int32)
    plan = [[np.array([0, 3, 1])], [np.array([2, 4, 5])]]
    assert sorted(heaviest(plan, lengths, max_tokens_per_batch=100)) == [2, 4, 5]
    # 9 + 5 in one row and 16 in two: the two rows of 8 are the heaviest that fit.
    assert sorted(heaviest(plan, lengths, max_tokens_per_batch=16)) == [4, 5]


def test_trying_the_heaviest_batch_changes_nothing(
    trainer: Trainer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setitem(DEVICE_TRAITS, "cpu", DeviceTraits(runs_out_late=True))
    plan = trainer.data.plan_epoch()
    lengths = trainer.data.store.lengths
    batch = heaviest(plan, lengths, max_tokens_per_batch=200)
    most = len(batch) * int(lengths[batch].max(axis=0).sum())
    before = {name: each.clone() for name, each in trainer.learner.model.state_dict().items()}
    sizes = limit_positions(monkeypatch, most - 1)
    trainer.fitter.try_heaviest(0)
    assert sizes[1] == most
    assert len(sizes) > 2, "the batch was not halved"
    assert "too little memory for a batch" in capsys.readouterr().err
    model = trainer.learner.model
    assert all(torch.equal(each, before[name]) for name, each in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())
    assert not trainer.learner.optimizer.state
    assert trainer.state == type(trainer.state)()


def test_trying_the_heaviest_batch_waits_for_no_other_rank(
    trainer: Trainer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(DEVICE_TRAITS, "cpu", DeviceTraits(runs_out_late=True))
    reduce, reduced = distributed.all_reduce, list[int]()

    def counted(tensor: Tensor, **keys: Any) -> Any:
        reduced.append(tensor.numel())
        return reduce(tensor, **keys)

    monkeypatch.setattr(distributed, "all_reduce", counted)
    distributed.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    try:
        learner = distribute(trainer.learner, trainer.data, World(size=2))
        reduced.clear()
        trainer.learner = trainer.fitter.learner = learner
        trainer.fitter.is_automatic = True
        trainer.fitter.try_heaviest(0)
        assert not reduced
        assert all(parameter.grad is None for parameter in learner.model.parameters())
        gradients(trainer)
        assert reduced
    finally:
        # Threads of gloo end their work with the GIL, which a destructor holds while it joins them.
        time.sleep(1)
        distributed.destroy_process_group()


@pytest.mark.parametrize("other_rank", [0, 3])
@pytest.mark.parametrize("most", [10_000, 200, 60, 3])
def test_automatic_batches_are_halved_until_the_heaviest_fits_on_all_ranks(
    most: int, other_rank: int, trainer: Trainer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other rank has room from the attempt `other_rank` on."""
    monkeypatch.setitem(DEVICE_TRAITS, "cpu", DeviceTraits(runs_out_late=True))
    attempts: list[int] = []

    def all_reduce_max(_: World, number: int) -> int:
        attempts.append(number)
        return max(number, int(len(attempts) <= other_rank))

    monkeypatch.setattr(World, "all_reduce_max", all_reduce_max)
    lengths, longest = trainer.data.store.lengths, trainer.config.data.max_tokens
    plan = trainer.data.plan_epoch()
    halves = [max(4096 // 2**n, longest) for n in range(12)]
    sizes = [
        len(batch) * int(lengths[batch].max(axis=0).sum())
        for batch in (heaviest(plan, lengths, max_tokens_per_batch=half) for half in halves)
    ]
    fitting = [n for n, size in enumerate(sizes) if size <= most and n >= other_rank]
    expected = halves[fitting[0]] if fitting else longest
    limit_positions(monkeypatch, most)
    trainer.fitter.tokens, trainer.fitter.is_automatic = 4096, True
    if most == 3:
        with pytest.raises(UserError, match="pair .* does not fit into the device's memory"):
            trainer.fitter.try_heaviest(0)
        return
    trainer.fit_batches()
    assert trainer.fitter.tokens == trainer.validator.max_tokens_per_batch == expected
    assert all(parameter.grad is None for parameter in trainer.learner.model.parameters())
    before = {name: each.clone() for name, each in trainer.learner.model.state_dict().items()}
    cut = gradients(trainer)
    trainer.learner.model.load_state_dict(before)
    trainer.state = type(trainer.state)()
    trainer.training = trainer.training.changed(max_tokens_per_batch=4096)
    whole = gradients(trainer)
    torch.testing.assert_close(cut, whole, atol=1e-6, rtol=1e-5)
