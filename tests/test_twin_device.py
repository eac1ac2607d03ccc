"""Training and decoding on a device other than the CPU: same values, few copies and waits."""

import copy
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import cycle, pairwise
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from mt.config import DecodingConfig, TrainingConfig
from mt.data.batches import collate
from mt.data.store import Example
from mt.decoding.engine import Hypothesis
from mt.decoding.torch_engine import TorchEngine
from mt.model.device import DEVICE_TRAITS, DeviceTraits
from mt.model.transformer import DecoderState, Memory, Transformer
from mt.special_ids import EOS
from mt.training.checkpoint import Checkpoints
from mt.training.initial_weights import choose_weights
from mt.training.optimizer import build_optimizer, choose_average, choose_precision
from mt.training.passes import choose_training_pass
from mt.training.state import TrainState
from mt.training.step import Learner, StepMetrics, TrainingPass, fetch_metrics, train_step
from tests.factories import CPU, examples, transformer
from tests.twin_device import NAME, counted, host, launches, on_twin, traffic, twin_device

PAIRS = examples(12)
BATCHES = [collate(PAIRS[:5]), collate(PAIRS[5:])]
UPDATES = 2


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Iterator[torch.device]:
    with twin_device(monkeypatch) as found:
        yield found


def learner(model: Transformer, device: torch.device, precision: str, **keys: Any) -> Learner:
    training = TrainingConfig.model_validate({"max_updates": 1, **keys})
    choose_weights(model, training)
    return Learner(
        model=model,
        training_pass=choose_training_pass(model, training),
        optimizer=build_optimizer(model, device),
        precision=choose_precision(precision, device),
        gradient_clip=1.0,
        average=choose_average(model, training.ema_decay),
    )


def train(made: Learner, first: int = 0) -> tuple[list[StepMetrics], Counter[str], Counter[str]]:
    """Take some updates; return their metrics, and the traffic of updates and of the reading."""
    batches = [batch.to(made.precision.device) for batch in BATCHES]

    def updates() -> list[Any]:
        results = []
        for number in range(first, first + UPDATES):
            results.append(train_step(made, batches, 0.01))
            made.average.include(number + 1, results[-1].gradient_norm)
        return results

    results, in_updates = counted(updates)
    metrics, in_reading = counted(lambda: fetch_metrics(results))
    return metrics, in_updates, in_reading


def values(made: Learner) -> dict[str, Tensor]:
    """Return weights and averages.

    Without the bias of keys: its gradient is zero, and Adam scales the rounding errors up.
    """
    weights = {name: host(each.detach()) for name, each in made.model.named_parameters()}
    averages = {f"average {name}": host(each) for name, each in made.average.averages().items()}
    both = {**weights, **averages}
    return {name: each for name, each in both.items() if not name.endswith("key.bias")}


KINDS: list[dict[str, Any]] = [
    {"positional": "sinusoidal"},
    {"positional": "learned", "max_positions": 20, "tie_embeddings": "none"},
    {"positional": "relative", "residual": "pre"},
    {"positional": "relative_bias", "feed_forward": "swiglu"},
    {"positional": "alibi", "attention_dropout": 0.0},
    {"positional": "rotary", "kv_heads": 1, "norm": "rmsnorm"},
    {"positional": "none", "residual": "deepnorm"},
]
R_DROP, FROZEN = {"r_drop": 5.0}, {"freeze": ["encoder", "target_embedding"]}
UPDATE_CASES = [
    *((kind, precision, {}, True) for kind in KINDS for precision in ("fp32", "bf16")),
    (KINDS[2], "fp32", R_DROP, True),
    (KINDS[0], "bf16", R_DROP, True),
    (KINDS[0], "fp16", {}, True),
    (KINDS[5], "fp16", R_DROP, True),
    (KINDS[0], "fp32", {"ema_decay": 0.9}, True),
    (KINDS[1], "fp32", {"ema_decay": 0.9, **FROZEN}, True),
    (KINDS[0], "fp32", FROZEN, False),
    (KINDS[2], "fp32", {"ema_decay": 0.9}, False),
]


@pytest.mark.parametrize(("kind", "precision", "keys", "fused"), UPDATE_CASES)
def test_updates_are_those_of_the_cpu(
    kind: dict[str, Any],
    precision: str,
    keys: dict[str, Any],
    fused: bool,
    device: torch.device,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    traits = replace(DEVICE_TRAITS["cuda"], has_fused_adam=fused)
    monkeypatch.setitem(DEVICE_TRAITS, NAME, traits)
    model = transformer(**kind).train()
    twin = on_twin(copy.deepcopy(model))
    plain = learner(model, CPU, precision, **keys)
    expected, *_ = train(plain)
    made = learner(twin, device, precision, **keys)
    found, in_updates, in_reading = train(made)
    tolerance = 1e-4 if precision == "fp32" else 2e-2
    for one, other in zip(found, expected, strict=True):
        assert one.smoothed == pytest.approx(other.smoothed, rel=tolerance)
        assert one.nll == pytest.approx(other.nll, rel=tolerance)
        assert one.gradient_norm == pytest.approx(other.gradient_norm, rel=5 * tolerance)
    if precision == "fp32":
        torch.testing.assert_close(values(made), values(plain), atol=2e-4, rtol=1e-3)
    # The host of an unfused optimizer waits to know whether to skip the step.
    assert in_updates.total() == (0 if fused else UPDATES), in_updates
    assert in_reading.total() == 1, in_reading


@pytest.mark.parametrize("lengths", [(5, 5), (5, 4)])
def test_only_a_batch_with_padding_has_masks(
    lengths: tuple[int, int], device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    attend: Any = F.scaled_dot_product_attention
    masked: list[bool] = []

    def seen(*heads: Tensor, **keys: Any) -> Tensor:
        masked.append(keys["attn_mask"] is not None)
        found: Tensor = attend(*heads, **keys)
        return found

    ids = np.arange(4, 9, dtype=np.int32)
    batch = collate([Example(0, ids[:length], ids[:2]) for length in lengths])
    model = transformer().train()
    expected = TrainingPass(model, 0.1)(batch).smoothed
    on_device, twin = batch.to(device), on_twin(copy.deepcopy(model))
    monkeypatch.setattr(F, "scaled_dot_product_attention", seen)
    sums, waits = counted(lambda: TrainingPass(twin, 0.1)(on_device))
    is_padded = lengths == (5, 4)
    assert masked == [is_padded, False, is_padded]
    assert not waits
    torch.testing.assert_close(host(sums.smoothed.detach()), expected.detach())


LAYERS = {"encoder_layers": 6, "decoder_layers": 6}


def test_an_update_has_few_launches(device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(DEVICE_TRAITS, NAME, DEVICE_TRAITS["cuda"])
    made = learner(on_twin(transformer(**LAYERS).train()), device, "bf16")
    batches = [BATCHES[0].to(device)]
    train_step(made, batches, 0.01)  # the first update also makes the state of the optimizer
    launches.clear()
    train_step(made, batches, 0.01)
    assert launches.total() <= 2000, launches


@pytest.mark.parametrize(("search", "most"), [("greedy", 150), ("beam", 207)])
def test_a_step_of_a_search_has_few_launches(
    search: str, most: int, device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    attend: Any = F.scaled_dot_product_attention
    step, counts = Transformer.step, list[int]()

    def as_one(*heads: Tensor, **keys: Any) -> Tensor:
        before = launches.total()
        found: Tensor = attend(*heads, **keys)
        launches["attention"] -= launches.total() - before - 1
        return found

    def seen(model: Transformer, last_ids: Tensor, state: DecoderState) -> Tensor:
        counts.append(launches.total())
        return step(model, last_ids, state)

    monkeypatch.setattr(F, "scaled_dot_product_attention", as_one)
    monkeypatch.setattr(Transformer, "step", seen)
    decoding = DecodingConfig.model_validate({"max_length_extra": 3, **SEARCHES[search]})
    launches.clear()
    TorchEngine(on_twin(transformer(**LAYERS).eval()), device).n_best_ids(SOURCES, decoding, 1)
    assert median(after - before for before, after in pairwise(counts)) <= most, launches


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_resumed_training_is_that_of_the_cpu(
    precision: str, device: torch.device, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(DEVICE_TRAITS, NAME, DeviceTraits(has_fused_adam=True))
    model = transformer().train()
    twin = learner(on_twin(copy.deepcopy(model)), device, precision, ema_decay=0.9)
    plain = learner(model, CPU, precision, ema_decay=0.9)
    expected = [*train(plain)[0], *train(plain, UPDATES)[0]]
    found = train(twin)[0]
    checkpoints = Checkpoints(tmp_path / "checkpoints")
    checkpoints.save(twin, TrainState(update=UPDATES))
    resumed = learner(on_twin(transformer(seed=2).train()), device, precision, ema_decay=0.9)
    state = checkpoints.resume(resumed)
    assert state is not None
    found += train(resumed, state.update)[0]
    for one, other in zip(found, expected, strict=True):
        assert one.nll == pytest.approx(other.nll, rel=1e-4 if precision == "fp32" else 2e-2)
    if precision == "fp32":
        torch.testing.assert_close(values(resumed), values(plain), atol=5e-4, rtol=1e-3)


SOURCES = [list(pair.source) for pair in PAIRS]
PREFIXES = [tuple(range(7, 7 + number % 3)) for number in range(len(SOURCES))]
CONSTRAINTS = {"no_repeat_ngram": 2}
SEARCHES: dict[str, dict[str, Any]] = {
    "greedy": {"search": "greedy"},
    "beam": {"beam": 4},
    "sampling": {"search": "sample", "top_k": 12, "top_p": 0.9},
    "constrained greedy": {"search": "greedy", **CONSTRAINTS},
    "constrained beam": {"beam": 3, **CONSTRAINTS},
    "constrained sampling": {"search": "sample", **CONSTRAINTS},
}


def decoders(count: int, kind: dict[str, Any]) -> list[Transformer]:
    layers = {"encoder_layers": 1, "decoder_layers": 2}
    models = [transformer(seed=seed, **layers, **kind).eval() for seed in range(count)]
    with torch.no_grad():  # far from ties, and able to end
        for each in models:
            each.target_embedding.weight.mul_(3)
    return models


def engines(models: Sequence[Transformer], device: torch.device) -> tuple[TorchEngine, TorchEngine]:
    twins = [on_twin(copy.deepcopy(each)) for each in models]
    return TorchEngine(models[0], CPU, models[1:]), TorchEngine(twins[0], device, twins[1:])


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list of the traffic before each step."""
    step, found = Transformer.step, list[int]()

    def seen(model: Transformer, last_ids: Tensor, state: DecoderState) -> Tensor:
        found.append(traffic.total())
        return step(model, last_ids, state)

    monkeypatch.setattr(Transformer, "step", seen)
    return found


SEARCH_CASES = [
    *((kind, name, 1, "halves") for kind in KINDS[:1] for name in SEARCHES),
    *((kind, "constrained beam", 1, "halves") for kind in KINDS[1:6]),
    *((KINDS[0], name, 2, "halves") for name in ("constrained beam", "sampling")),
    *((KINDS[1], name, 1, "one by one") for name in ("greedy", "constrained beam")),
]


@pytest.mark.parametrize(("kind", "name", "models", "removal"), SEARCH_CASES)
def test_searches_are_those_of_the_cpu(
    kind: dict[str, Any],
    name: str,
    models: int,
    removal: str,
    device: torch.device,
    steps: list[int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if removal == "one by one":
        monkeypatch.setitem(DEVICE_TRAITS, NAME, DeviceTraits(drops_ended_at_once=True))
    removals = list[tuple[int, int]]()
    keep = DecoderState.keep

    def watched(state: DecoderState, sentences: Tensor) -> None:
        removals.append((len(state.ancestry), len(sentences)))
        keep(state, sentences)

    monkeypatch.setattr(DecoderState, "keep", watched)
    plain, twin = engines(decoders(models, kind), device)
    decoding = DecodingConfig.model_validate({"max_length_extra": 6, **SEARCHES[name]})
    forced = PREFIXES if name.startswith("constrained") else ()

    def translate(engine: TorchEngine) -> list[list[Hypothesis]]:
        return engine.n_best_ids(SOURCES, decoding, 2, prefixes=forced)

    expected = translate(plain)
    steps.clear()
    removals.clear()
    found, _ = counted(lambda: translate(twin))
    assert removals
    assert all(2 * after <= before for before, after in removals) == (removal == "halves")
    assert [[each.ids for each in some] for some in found] == [
        [each.ids for each in some] for some in expected
    ]
    for some, others in zip(found, expected, strict=True):
        for one, other in zip(some, others, strict=True):
            assert one.finished == other.finished
            assert (one.score, one.log_prob) == pytest.approx(
                (other.score, other.log_prob), abs=1e-4
            )
    assert len(steps) > 4
    assert steps[0] <= 6, "copies before the first step"
    assert max(after - before for before, after in pairwise(steps)) <= 1, traffic


@pytest.mark.parametrize(("kind", "models"), [*((kind, 1) for kind in KINDS[:6]), (KINDS[0], 2)])
def test_scores_and_alignments_are_those_of_the_cpu(
    kind: dict[str, Any], models: int, device: torch.device
) -> None:
    plain, twin = engines(decoders(models, kind), device)
    hypotheses = [Hypothesis(tuple(pair.target[:-1]), 0.0, 0.0, True) for pair in PAIRS]
    targets = [[*each.ids, EOS] for each in hypotheses]
    scores = zip(twin.score(SOURCES, targets), plain.score(SOURCES, targets), strict=True)
    for one, other in scores:
        assert one == pytest.approx(other, abs=1e-4)
    details = zip(
        twin.explain(SOURCES, hypotheses), plain.explain(SOURCES, hypotheses), strict=True
    )
    for found, expected in details:
        assert found.alignment == expected.alignment
        assert found.log_probs == pytest.approx(expected.log_probs, abs=1e-4)
        assert found.attention == pytest.approx(expected.attention, abs=1e-4)


@pytest.mark.parametrize(
    ("kind", "norm"), [*zip(KINDS[::2], cycle(("layernorm", "rmsnorm"))), (KINDS[5], "rmsnorm")]
)
def test_weights_in_bf16_give_log_probabilities_in_fp32(
    kind: dict[str, Any], norm: str, device: torch.device
) -> None:
    models = decoders(1, {**kind, "norm": norm})
    [halved] = copy.deepcopy(models)
    plain, twin = engines([halved.bfloat16()], device)
    full = TorchEngine(models[0], CPU)
    decoding = DecodingConfig(beam=3, max_length_extra=6)
    found = twin.translate_ids(SOURCES, decoding)
    targets = [[*each.ids, EOS] for each in found]
    scores = [each.score(SOURCES, targets) for each in (twin, plain, full)]
    assert host(twin.model.output.weight).dtype == torch.bfloat16
    for one, other, exact in zip(*scores, strict=True):
        assert one == pytest.approx(other, abs=0.3)
        assert one == pytest.approx(exact, abs=0.3)
        assert torch.tensor(one).bfloat16().tolist() != one
    for best, details, own in zip(found, twin.explain(SOURCES, found), scores[0], strict=True):
        own = own if best.finished else own[:-1]
        assert best.log_prob == pytest.approx(sum(own), abs=0.1 * len(own))
        assert details.log_probs == pytest.approx(own[: len(details.log_probs)], abs=0.3)


@pytest.mark.parametrize(
    ("keys", "lengths", "count", "rows"),
    [
        ({"beam": 5}, [20] * 1100, 1, [512, 512, 76]),
        ({"beam": 5}, [100] * 300, 1, [262, 38]),
        ({"beam": 5}, [1000] * 70, 1, [64, 6]),
        ({"search": "greedy"}, [20] * 3000, 1, [2560, 440]),
        ({"search": "sample"}, [20] * 200, 16, [2560, 640]),
        ({"beam": 5, "batch_size": 7}, [20] * 10, 1, [7, 3]),
    ],
)
def test_batches_have_many_rows(
    keys: dict[str, Any],
    lengths: list[int],
    count: int,
    rows: list[int],
    device: torch.device,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    _, twin = engines(decoders(1, KINDS[0]), device)
    sizes: list[int] = []
    encode = twin.model.encode

    def watched(source: Tensor) -> Memory:
        sizes.append(len(source))
        return encode(source[:, :2])  # the size of the batch alone matters

    monkeypatch.setattr(twin.model, "encode", watched)
    decoding = DecodingConfig.model_validate(
        {"max_length_ratio": 0.0, "max_length_extra": 1, **keys}
    )
    twin.n_best_ids([[4] * (length - 1) + [EOS] for length in lengths], decoding, count)
    assert sizes == rows
