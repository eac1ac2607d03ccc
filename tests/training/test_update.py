"""One optimiser step: accumulation, precision, clipping, skipping."""

import math
import os
from collections.abc import Sequence

import numpy as np
import pytest
import torch

from mt.config import ModelConfig
from mt.data.batches import Batch, collate
from mt.data.store import Example
from mt.model.transformer import Transformer
from mt.special_ids import EOS
from mt.training.optimizer import Precision, build_optimizer, choose_precision
from mt.training.step import Learner, StepMetrics, TrainingPass, fetch_metrics, update

CPU = torch.device("cpu")
CONFIG = ModelConfig(d_model=32, d_ff=64, heads=4, encoder_layers=2, decoder_layers=2, dropout=0.0)
VOCABULARY = 60


def learner(precision: str = "fp32", *, clip: float = 1.0, device: torch.device = CPU) -> Learner:
    torch.manual_seed(3)
    model = Transformer(CONFIG, source_vocabulary=VOCABULARY, target_vocabulary=VOCABULARY)
    model.to(device)
    return Learner(
        model=model,
        training_pass=TrainingPass(model, label_smoothing=0.1),
        optimizer=build_optimizer(model, device),
        precision=choose_precision(precision, device),
        gradient_clip=clip,
    )


def taken(made: Learner, batches: Sequence[Batch], rate: float) -> StepMetrics:
    """Take an update and wait for it."""
    (measured,) = fetch_metrics([update(made, batches, rate)])
    return measured


def examples(count: int = 24) -> list[Example]:
    """Pairs whose target is the source reversed, of 2 to 9 tokens."""
    random = np.random.default_rng(5)
    made = []
    for index in range(count):
        tokens = random.integers(4, VOCABULARY, random.integers(1, 9))
        source = np.append(tokens, EOS).astype(np.int32)
        target = np.append(tokens[::-1], EOS).astype(np.int32)
        made.append(Example(index, source, target))
    return made


def gradients(batches: Sequence[Batch]) -> list[torch.Tensor]:
    """The gradients with which `update` steps, seen by a step that only looks."""
    made = learner(clip=0.0)
    seen: list[torch.Tensor] = []

    def look(*_: object) -> None:
        assert all(parameter.grad is not None for parameter in made.model.parameters())
        seen.extend(p.grad.clone() for p in made.model.parameters() if p.grad is not None)

    made.optimizer.register_step_pre_hook(look)
    update(made, batches, 0.0)
    return seen


def test_the_gradient_does_not_depend_on_how_an_update_is_cut() -> None:
    pairs = examples()
    whole = gradients([collate(pairs)])
    parts = gradients([collate(pairs[:1]), collate(pairs[1:6]), collate(pairs[6:])])
    assert whole
    for one, many in zip(whole, parts, strict=True):
        torch.testing.assert_close(one, many, atol=1e-6, rtol=1e-4)


def test_the_sums_are_those_of_all_micro_batches() -> None:
    pairs = examples()
    result = taken(learner(), [collate(pairs[:10]), collate(pairs[10:])], 0.001)
    assert result.tokens.target == sum(len(pair.target) for pair in pairs)
    assert result.tokens.source == sum(len(pair.source) for pair in pairs)
    once = taken(learner(), [collate(pairs)], 0.001)
    assert result.nll == pytest.approx(once.nll, rel=1e-5)
    assert result.smoothed == pytest.approx(once.smoothed, rel=1e-5)
    # An untrained model is about as good as chance.
    assert result.nll / result.tokens.target == pytest.approx(math.log(VOCABULARY), rel=0.25)


def loss_after(made: Learner, updates: int) -> float:
    batches = [collate(examples())]
    for _ in range(updates):
        result = taken(made, batches, 0.002)
    return result.smoothed / result.tokens.target


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_half_precision_learns_like_fp32(precision: str) -> None:
    expected = loss_after(learner("fp32"), 50)
    made = learner(precision)
    assert loss_after(made, 50) == pytest.approx(expected, rel=0.02)
    assert_fp32(made)


@pytest.mark.gpu
@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_half_precision_learns_like_fp32_on_a_gpu(precision: str) -> None:
    cuda = torch.device("cuda")
    batches = [collate(examples()).to(cuda)]
    losses = {}
    for name in ("fp32", precision):
        made = learner(name, device=cuda)
        for _ in range(50):
            result = taken(made, batches, 0.002)
        losses[name] = result.smoothed / result.tokens.target
        assert_fp32(made)
    assert losses[precision] == pytest.approx(losses["fp32"], rel=0.02)


def assert_fp32(made: Learner) -> None:
    state = made.optimizer.state
    tensors = [*made.model.parameters()]
    tensors += [tensor for entry in state.values() for tensor in entry.values()]
    assert len(state) == len(list(made.model.parameters()))
    assert {tensor.dtype for tensor in tensors} == {torch.float32}


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_the_forward_pass_runs_in_the_precision_asked_for(precision: str) -> None:
    made = learner(precision)
    batch = collate(examples())
    with made.precision.autocast():
        logits = made.model(batch.source, batch.target_in)
    dtypes = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
    assert logits.dtype == dtypes[precision]


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_a_gradient_that_is_not_finite_skips_the_update(precision: str) -> None:
    made = learner(precision)
    batches = [collate(examples())]
    update(made, batches, 0.001)
    scale = made.precision.scaler.get_scale()
    before = [parameter.clone() for parameter in made.model.parameters()]
    poison = made.model.encoder[0].feed_forward.inner.weight  # type: ignore[union-attr]
    handle = poison.register_hook(lambda gradient: gradient * float("inf"))  # type: ignore[operator]
    result = taken(made, batches, 0.001)
    assert result.skipped
    for parameter, old in zip(made.model.parameters(), before, strict=True):
        assert torch.equal(parameter, old)
    if precision == "fp16":
        assert made.precision.scaler.get_scale() == scale / 2
    handle.remove()
    assert not taken(made, batches, 0.001).skipped
    assert not torch.equal(next(iter(made.model.parameters())), before[0])


def test_an_overflow_of_fp16_lowers_the_scale_until_it_fits() -> None:
    made = learner("fp16")
    batches = [collate(examples())]
    update(made, batches, 0.001)
    made.precision.scaler.update(2.0**40)
    assert taken(made, batches, 0.001).skipped
    assert made.precision.scaler.get_scale() == 2.0**39
    for _ in range(30):
        last = taken(made, batches, 0.001)
    assert not last.skipped


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_clipping_acts_on_unscaled_gradients(precision: str) -> None:
    """The norm reported is the true one, and what the optimiser sees has the norm asked for."""
    batches = [collate(examples())]
    true_norm = taken(learner("fp32", clip=0.0), batches, 0.0).gradient_norm
    made = learner(precision, clip=true_norm / 4)
    norms = []

    def look(*_: object) -> None:
        found = [p.grad.flatten() for p in made.model.parameters() if p.grad is not None]
        norms.append(float(torch.cat(found).norm()))

    made.optimizer.register_step_pre_hook(look)
    result = taken(made, batches, 0.0)
    assert result.gradient_norm == pytest.approx(true_norm, rel=0.02)
    assert norms == [pytest.approx(true_norm / 4, rel=0.02)]


@pytest.mark.parametrize(
    ("capabilities", "d_model", "expected"),
    [
        ({"amx_bf16": True}, 256, "bf16"),
        ({"amx_bf16": True}, 255, "fp32"),
        ({"amx_bf16": True, "avx512_bf16": True}, 255, "fp32"),
        ({"amx_bf16": False, "avx512_bf16": True}, 128, "bf16"),
        ({"amx_bf16": False, "avx512_bf16": True}, 127, "fp32"),
        ({}, 1024, "fp32"),
    ],
)
def test_auto_precision_on_a_cpu_is_bf16_for_wide_models_where_it_computes_in_bf16(
    monkeypatch: pytest.MonkeyPatch, capabilities: dict[str, bool], d_model: int, expected: str
) -> None:
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: capabilities, raising=False)
    assert choose_precision("auto", CPU, d_model).name == expected
    assert choose_precision("fp32", CPU, d_model).name == "fp32"
    assert choose_precision("bf16", CPU, d_model).name == "bf16"
    assert choose_precision("auto", CPU).name == "fp32"


def test_a_torch_that_does_not_tell_what_a_cpu_can_do_trains_there_in_fp32(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delattr(torch.cpu, "get_capabilities", raising=False)
    assert choose_precision("auto", CPU, 1024).name == "fp32"


def test_bf16_on_a_cpu_bounds_the_code_that_is_kept_unless_the_user_has(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    name = "ONEDNN_PRIMITIVE_CACHE_CAPACITY"
    monkeypatch.setenv(name, "7")
    Precision("bf16", CPU)
    assert os.environ[name] == "7"
    monkeypatch.delenv(name)
    Precision("fp32", CPU)
    assert name not in os.environ
    Precision("bf16", CPU)
    assert os.environ[name] == "256"


def test_bf16_needs_no_loss_scaler() -> None:
    assert not Precision("bf16", CPU).scaler.is_enabled()
