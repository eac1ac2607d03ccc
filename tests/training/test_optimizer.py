"""Learning-rate schedules at known points, Adam's constants, precisions and the moving average."""

from collections.abc import Iterator
from typing import Literal

import pytest
import torch
from torch import Tensor, nn

from mt.config import TrainingConfig
from mt.training.optimizer import (
    MovingAverage,
    Precision,
    build_optimizer,
    choose_average,
    choose_precision,
    learning_rate,
    why_slow,
)
from tests.factories import CPU, transformer, unsettle

FINITE, NOT_FINITE = torch.tensor(1.0), torch.tensor(float("nan"))


def config(schedule: str, **changes: object) -> TrainingConfig:
    values = {
        "max_updates": 1,
        "learning_rate": 0.002,
        "warmup_updates": 400,
        "decay_updates": 2000,
        **changes,
    }
    return TrainingConfig.model_validate({"schedule": schedule, **values})


@pytest.mark.parametrize(
    ("schedule", "update", "expected"),
    [
        ("inverse_sqrt", 1, 0.002 / 400),
        ("inverse_sqrt", 100, 0.0005),
        ("inverse_sqrt", 400, 0.002),
        ("inverse_sqrt", 1600, 0.001),
        ("constant", 200, 0.001),
        ("constant", 4000, 0.002),
        # 0.002 * 256 ** -0.5 * min(u ** -0.5, u * 400 ** -1.5)
        ("noam", 400, 0.002 / 16 / 20),
        ("noam", 100, 0.002 / 16 / 80),
        ("noam", 1600, 0.002 / 16 / 40),
        ("cosine", 100, 0.0005),
        ("cosine", 400, 0.002),
        # A quarter, a half and three quarters of the way; the cosine of 45 degrees is 0.707107.
        ("cosine", 800, 0.001 * 1.707107),
        ("cosine", 1200, 0.001),
        ("cosine", 1600, 0.001 * 0.292893),
        ("cosine", 3000, 0.0),
        ("linear", 100, 0.0005),
        ("linear", 800, 0.0015),
        ("linear", 1600, 0.0005),
        ("linear", 3000, 0.0),
    ],
)
def test_schedules(schedule: str, update: int, expected: float) -> None:
    assert learning_rate(update, config(schedule), 256) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("schedule", ["inverse_sqrt", "noam", "constant", "cosine", "linear"])
def test_without_warmup_the_first_rate_is_the_highest(schedule: str) -> None:
    without = config(schedule, warmup_updates=0)
    rates = [learning_rate(update, without, 256) for update in range(1, 50)]
    assert rates[0] == max(rates)


@pytest.mark.parametrize(
    ("capabilities", "d_model", "expected"),
    [
        ({"amx_bf16": True}, 256, "bf16"),
        ({"amx_bf16": True, "avx512_bf16": True}, 255, "fp32"),
        ({"amx_bf16": False, "avx512_bf16": True}, 128, "bf16"),
        ({"amx_bf16": False, "avx512_bf16": True}, 127, "fp32"),
        ({}, 1024, "fp32"),
        (None, 1024, "fp32"),
    ],
)
def test_auto_precision_is_bf16_for_wide_models_on_cpus_with_bf16_instructions(
    monkeypatch: pytest.MonkeyPatch,
    capabilities: dict[str, bool] | None,
    d_model: int,
    expected: str,
) -> None:
    if capabilities is None:  # as in a release of torch without the function
        monkeypatch.delattr(torch.cpu, "get_capabilities", raising=False)
    else:
        monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: capabilities, raising=False)
    assert choose_precision("auto", CPU, d_model).name == expected
    for name in ("fp32", "bf16", "fp16"):
        assert choose_precision(name, CPU, d_model).name == name


AVX2 = {"architecture": "x86_64", "avx2": True, "avx512_bf16": False, "amx_bf16": False}


@pytest.mark.parametrize(
    ("name", "capabilities", "slow"),
    [
        ("bf16", AVX2, True),
        ("fp16", AVX2, True),
        ("fp32", AVX2, False),
        ("auto", AVX2, False),
        ("bf16", {**AVX2, "amx_bf16": True}, False),
        ("bf16", {**AVX2, "avx512_bf16": True}, False),
        ("fp16", {**AVX2, "avx512_bf16": True}, True),
        ("fp16", {**AVX2, "avx512_fp16": True}, False),
        ("bf16", {"architecture": "arm64"}, False),
        ("bf16", {}, False),
    ],
)
def test_precision_without_instructions_on_an_x86_cpu_is_slow(
    monkeypatch: pytest.MonkeyPatch, name: str, capabilities: dict[str, object], *, slow: bool
) -> None:
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: capabilities, raising=False)
    reason = why_slow(choose_precision(name, CPU, 1024))
    assert (f"no instructions for {name}" in reason) is slow
    assert bool(reason) is slow
    assert why_slow(Precision("bf16", torch.device("mps"))) == ""


@pytest.mark.parametrize(
    ("name", "dtype"),
    [("fp32", torch.float32), ("bf16", torch.bfloat16), ("fp16", torch.float16)],
)
def test_autocast_computes_in_the_named_precision(name: str, dtype: torch.dtype) -> None:
    precision = choose_precision(name, CPU)
    with precision.autocast():
        assert (torch.ones(1, 1) @ torch.ones(1, 1)).dtype == dtype
    assert precision.scaler.is_enabled() == (name == "fp16")


def walk(weight: Tensor, steps: int) -> Iterator[tuple[int, Tensor]]:
    """Change a weight step by step, as an optimizer does."""
    for number in range(1, steps + 1):
        with torch.no_grad():
            weight += torch.randn(weight.shape)
        yield number, weight.detach().clone()


def test_moving_average_follows_its_formula_and_ignores_skipped_updates() -> None:
    weight = nn.Parameter(torch.randn(3))
    average = MovingAverage({"w": weight}, decay=0.7)
    expected = weight.detach().double()
    for number, now in walk(weight, 40):
        if number == 20:
            average.include(number, NOT_FINITE)
            continue
        average.include(number, FINITE)
        share = {1: 2 / 11, 2: 3 / 12, 3: 4 / 13}.get(number, (1 + number) / (10 + number))
        expected = min(share, 0.7) * expected + (1 - min(share, 0.7)) * now.double()
    torch.testing.assert_close(average.averages()["w"], expected.float())


def test_swapped_averages_are_in_the_model_for_the_block_alone() -> None:
    weight = nn.Parameter(torch.randn(3))
    average = MovingAverage({"w": weight}, decay=0.7)
    for number, _ in walk(weight, 5):
        average.include(number, FINITE)
    learning, mean, address = weight.clone(), average.averages()["w"].clone(), weight.data_ptr()
    assert not torch.equal(learning, mean)
    with pytest.raises(ValueError, match="in the block"), average.swapped():
        assert torch.equal(weight, mean)
        assert torch.equal(average.averages()["w"], learning)
        raise ValueError("in the block")
    assert torch.equal(weight, learning)
    assert torch.equal(average.averages()["w"], mean)
    assert weight.data_ptr() == address
    average.restore({"w": torch.zeros(3)})
    assert torch.equal(average.averages()["w"], learning)
    assert torch.equal(average.weights()["w"], torch.zeros(3))


def test_moving_average_has_the_trainable_weights_or_none_without_a_decay() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    model[0].requires_grad_(requires_grad=False)
    assert choose_average(model, 0.9).averages().keys() == {"1.weight", "1.bias"}
    off = choose_average(model, None)
    before = [parameter.clone() for parameter in model.parameters()]
    off.include(1, FINITE)
    with off.swapped():
        assert all(map(torch.equal, model.parameters(), before))
    assert off.averages() == off.weights() == {}


@pytest.mark.parametrize("name", ["adam", "adafactor"])
def test_weight_decay_takes_a_share_of_the_matrices_alone(
    name: Literal["adam", "adafactor"],
) -> None:
    def stepped(decay: float) -> nn.Module:
        torch.manual_seed(1)
        model = nn.Sequential(nn.Embedding(7, 4), nn.LayerNorm(4), nn.Linear(4, 3))
        optimizer = build_optimizer(model, CPU, name, weight_decay=decay)
        for group in optimizer.param_groups:
            group["lr"] = 0.1
        model(torch.arange(7)).square().sum().backward()
        optimizer.step()
        return model

    torch.manual_seed(1)
    first = nn.Sequential(nn.Embedding(7, 4), nn.LayerNorm(4), nn.Linear(4, 3))
    plain, decayed = stepped(0.0), stepped(0.5)
    for before, without, after in zip(
        first.parameters(), plain.parameters(), decayed.parameters(), strict=True
    ):
        share = 0.1 * 0.5 if before.dim() > 1 else 0.0
        torch.testing.assert_close(after, without - share * before)


@pytest.mark.parametrize("positional", ["learned", "relative", "relative_bias"])
def test_tables_of_positions_have_no_weight_decay(positional: str) -> None:
    model = unsettle(transformer(positional=positional))
    before = {name: weight.detach().clone() for name, weight in model.named_parameters()}
    optimizer = build_optimizer(model, CPU, weight_decay=0.5)
    for group in optimizer.param_groups:
        group["lr"] = 0.1
    for weight in model.parameters():
        weight.grad = torch.zeros_like(weight)
    optimizer.step()
    for name, weight in model.named_parameters():
        is_spared = weight.dim() == 1 or "position" in name
        torch.testing.assert_close(weight.data, before[name] * (1.0 if is_spared else 0.95))
