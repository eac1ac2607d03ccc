"""Automatic settings on simulated devices: the choices of an expert."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from itertools import pairwise, product
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from mt.config import Config, ModelConfig, TrainingConfig
from mt.config.loading import with_values
from mt.data.pairs import SentencePair
from mt.errors import UserError
from mt.model.transformer import Transformer
from mt.training import resolve as resolve_module
from mt.training.automatic import (
    Bounds,
    CorpusStatistics,
    choose_regularization,
    choose_update_tokens,
    make_forecast,
    warn_of_weakness,
)
from mt.training.resolve import choose_length, choose_settings, expect_updates, with_settings

TOKENS = 27
"""Target tokens of a pair, with the end mark."""
PAIRS = {"3,000": 3000, "30,000": 30_000, "300,000": 300_000}
PAIRS |= {"3 million": 3_000_000, "50 million": 50_000_000}
BUDGETS = ("10m", "1h", "1d", None)


@dataclass(frozen=True)
class Device:
    """Simulated device, or several."""

    kind: str
    flops: float
    """Operations a second in training, on each."""
    launch_seconds: float
    """Time to start the kernels of a layer, forward and backward, for a batch."""
    count: int = 1
    bytes_per_second: float = 1e11
    """Rate at which gradients are exchanged."""
    widest: int = 9999
    """Width of the largest model that fits into the memory."""
    error: type[Exception] = UserError
    """Error of a larger one."""

    def computing_seconds(self, config: Config) -> float:
        """Return the time of the products of an update: 6 operations a parameter and token."""
        parameters = count_parameters(config.model, config.tokenizer.vocabulary_size)
        tokens = config.training.target_tokens_per_update
        return 6 * parameters * tokens / (self.flops * self.count)

    def update_seconds(self, config: Config) -> float:
        """Return the time of an update of a training."""
        model, tokens = config.model, config.training.target_tokens_per_update
        layers = model.encoder_layers + model.decoder_layers
        batches = -(-tokens // (self.count * (32_768 if self.kind == "cuda" else 4096)))
        starting = batches * layers * self.launch_seconds
        parameters = count_parameters(model, config.tokenizer.vocabulary_size)
        exchange = 8 * parameters / self.bytes_per_second if self.count > 1 else 0.0
        return starting + self.computing_seconds(config) + exchange


DEVICES = {
    "2 CPU cores": Device("cpu", 6e10, 1e-3),
    "consumer card": Device("cuda", 2e13, 1e-3),
    "A100": Device("cuda", 1e14, 1e-3),
    "8 A100": Device("cuda", 1e14, 1e-3, count=8),
}


@cache
def count_parameters(shape: ModelConfig, vocabulary: int) -> int:
    """Return the number of parameters of a model with two vocabularies of this size."""
    with torch.device("meta"):
        model = Transformer(shape, source_vocabulary=vocabulary, target_vocabulary=vocabulary)
    return sum(parameter.numel() for parameter in model.parameters())


@dataclass(frozen=True)
class Choice:
    """Settings of a training that the rules choose."""

    config: Config
    parameters: int
    tokens: float
    updates: int
    expected: float
    """Forecast of the updates, before the corpus is encoded."""
    passes: float
    seconds: float
    launching: float
    """Share of the time that starts kernels or exchanges gradients."""
    measured: tuple[Config, ...]
    """Config of each measurement before the corpus is encoded."""
    last: Config
    """Config of the last measurement."""

    @property
    def tokens_per_parameter(self) -> float:
        return self.tokens / self.parameters


def choose(pairs: int, device: Device, budget: str | None) -> Choice:
    """Return the settings for a corpus of some pairs on a simulated device."""
    characters = Counter("abc"), Counter("abc")
    facts = CorpusStatistics(
        pairs, (round(3.5 * (TOKENS - 1) * pairs),) * 2, characters, np.full((8, 2), TOKENS)
    )
    files = {"source": "source", "target": "target"}
    data = {"source_language": "en", "target_language": "de", "train": files, "valid": files}
    given: dict[str, Any] = {"data": data, "training": {"budget": budget} if budget else {}}
    measured: list[Config] = []

    def measure(config: Config, *_: object) -> float:
        measured.append(config)
        if config.model.d_model > device.widest:
            raise device.error
        return config.training.target_tokens_per_update / device.update_seconds(config)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(resolve_module, "time", SimpleNamespace(perf_counter=lambda: 0.0))
        patch.setattr(resolve_module, "measure_validation", lambda *_: (1e-9, 1e-9))
        where = torch.device(device.kind)
        open_config = Config.model_validate(given)
        sizes, forecast = choose_settings(open_config, facts, where, measure)
        before, sized = tuple(measured), with_settings(open_config, sizes)
        assert forecast is not None
        expected = expect_updates(sized.training, forecast, facts)
        size = sized.training.target_tokens_per_update
        per_epoch = max(1, round(pairs * TOKENS / size))
        vocabulary = sized.tokenizer.vocabulary_size
        corpus: Any = SimpleNamespace(
            store=SimpleNamespace(lengths=np.broadcast_to(np.int32(TOKENS), (pairs, 2))),
            vocabularies=(vocabulary, vocabulary),
            valid=17 * [SentencePair("We are going.", "Wir gehen jetzt nach Hause.")],
            valid_lengths=np.full((17, 2), TOKENS),
            translation_table=None,
            plan_epoch=lambda: range(per_epoch),
        )
        ends_at = sized.training.budget_seconds or 0.0
        length = choose_length(sized, corpus, where, measure, ends_at=ends_at)
        config = with_values(sized, length)
        updates = config.training.max_updates or 20 * config.training.validate_every
        seconds = updates * device.update_seconds(config)
    tokens = float(updates * size)
    return Choice(
        config,
        count_parameters(config.model, vocabulary),
        tokens,
        updates,
        expected,
        tokens / (pairs * TOKENS),
        seconds,
        1 - device.computing_seconds(config) / device.update_seconds(config),
        before,
        measured[-1],
    )


@cache
def choices() -> Mapping[tuple[str, str, str | None], Choice]:
    """Return all choices by pairs, device and budget."""
    keys = product(PAIRS, DEVICES, BUDGETS)
    return {key: choose(PAIRS[key[0]], DEVICES[key[1]], key[2]) for key in keys}


TINY, BASE, BIG = (128, 3, 4000), (512, 6, 32_000), (1024, 6, 37_000)
EXPECTED = {
    ("3,000", "8 A100", "1d"): TINY,
    ("30,000", "consumer card", "1h"): (256, 3, 8000),
    ("300,000", "2 CPU cores", "1d"): (256, 3, 8000),
    ("300,000", "A100", "1h"): (512, 6, 16_000),
    ("3 million", "A100", "1h"): BASE,
    ("3 million", "A100", None): BASE,
    ("3 million", "8 A100", "1d"): BASE,
    ("50 million", "consumer card", None): BASE,
    ("50 million", "A100", "1h"): BASE,
    ("50 million", "A100", "1d"): BIG,
    ("50 million", "8 A100", "10m"): BASE,
    ("50 million", "8 A100", "1h"): BIG,
    ("50 million", "8 A100", "1d"): BIG,
}


@pytest.mark.parametrize("key", EXPECTED)
def test_model_is_that_of_published_practice(key: tuple[str, str, str | None]) -> None:
    config = choices()[key].config
    model = config.model
    size = (model.d_model, model.encoder_layers, config.tokenizer.vocabulary_size)
    assert size == EXPECTED[key]
    assert model.heads == {128: 4, 256: 4, 512: 8, 1024: 16}[model.d_model]
    assert model.encoder_layers == model.decoder_layers


def test_more_time_pairs_or_speed_never_make_a_smaller_model() -> None:
    for pairs, device in product(PAIRS, DEVICES):
        sizes = [choices()[pairs, device, budget].parameters for budget in BUDGETS[:3]]
        assert sizes == sorted(sizes)
        tokens = [choices()[pairs, device, budget].tokens for budget in BUDGETS[:3]]
        assert all(more > 0.9 * less for less, more in pairwise(tokens)), (pairs, device)
    for pairs, budget in product(PAIRS, BUDGETS):
        sizes = [choices()[pairs, device, budget].parameters for device in DEVICES]
        assert sizes == sorted(sizes)
    for device, budget in product(DEVICES, BUDGETS):
        sizes = [choices()[pairs, device, budget].parameters for pairs in PAIRS]
        assert sizes == sorted(sizes)


def test_forecast_is_near_what_a_budget_allows() -> None:
    for (pairs, device, budget), choice in choices().items():
        if budget is not None and PAIRS[pairs] <= 30_000:
            assert choice.expected == pytest.approx(choice.updates, rel=0.25), (device, budget)


LEAST_PAIRS = {192: 10_000, 256: 20_000, 384: 50_000, 512: 300_000, 1024: 4_000_000}
"""Least number of pairs for a width."""


def test_each_choice_is_one_that_an_expert_makes() -> None:
    for (name, device, budget), choice in choices().items():
        key, pairs = (name, device, budget), PAIRS[name]
        model, training = choice.config.model, choice.config.training
        width, size = model.d_model, training.target_tokens_per_update
        assert pairs >= LEAST_PAIRS.get(width, 0), key
        if choice.config.tokenizer.vocabulary_size >= 32_000:
            assert pairs >= 2_000_000, key
        assert choice.tokens_per_parameter > (5.5 if width >= 512 else 1.9), key
        assert 3000 < choice.updates < 700_000, key
        assert 500 <= size < min(pairs * TOKENS / 10, 150_000), key
        assert training.warmup_updates <= min(choice.updates / 9, 8000), key
        assert training.warmup_updates <= 4000 or width == 1024, key
        passes = 80 if pairs > 1e6 else 200 if pairs > 1e4 else 500
        assert choice.passes < 1.02 * passes, key
        assert training.label_smoothing == (0.2 if pairs < 20_000 else 0.1), key
        assert training.weight_decay == 0.1, key
        # A device that small updates leave idle makes fewer passes than are expected.
        near = [choice.passes, 1.6 * choice.passes, 0.9 * choice.passes]
        rule = [0.3 if n > 99 else 0.2 if n >= 10 else 0.1 if n >= 4 else 0.0 for n in near]
        assert model.dropout in rule, key
        if width >= 512:
            assert training.learning_rate == {512: 7e-4, 1024: 3.5e-4}[width], key
        if budget is not None:
            assert choice.seconds < 1.05 * {"10m": 600, "1h": 3600, "1d": 86_400}[budget], key
        else:
            assert choice.seconds < 1.05 * (3600 if device == "2 CPU cores" else 43_200), key
        if budget is not None and choice.passes < 0.95 * passes:
            assert choice.launching < 0.5 or choice.updates < 35_000, key


def test_chosen_model_is_measured_and_few_others() -> None:
    for (name, device, budget), choice in choices().items():
        key = name, device, budget
        widths = [config.model.d_model for config in choice.measured]
        assert widths[0] <= {"cpu": 256, "cuda": 512}[DEVICES[device].kind], key
        assert choice.config.model.d_model in widths, key
        assert len(widths) <= 3, key
        size = choice.last.training.target_tokens_per_update
        assert size == choice.config.training.target_tokens_per_update, key


@pytest.mark.parametrize("error", [UserError, torch.OutOfMemoryError])
def test_model_fits_into_the_memory_of_the_device(error: type[Exception]) -> None:
    card = replace(DEVICES["8 A100"], widest=384, error=error)
    assert choose(50_000_000, card, "1d").config.model.d_model == 384
    with pytest.raises(error):
        choose(50_000_000, replace(card, widest=95), "1d")


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("speed", [1e3, 1e7])
@pytest.mark.parametrize("seconds", [60.0, 3600.0, 1e6])
@pytest.mark.parametrize("most", [1e6, 1e9, 1e12])
def test_forecast_keeps_to_its_limits(
    device: str, speed: float, seconds: float, most: float
) -> None:
    forecast = make_forecast(Bounds(most, seconds), speed, device)
    assert forecast.tokens == pytest.approx(min(most, seconds * speed))
    assert forecast.seconds == pytest.approx(forecast.tokens / speed)
    plain = choose_update_tokens(forecast.tokens, "cpu")
    assert plain <= forecast.update_tokens <= 2 * plain + 1
    if forecast.update_tokens > plain:  # larger, because the device would be idle
        assert device == "cuda"
        assert forecast.updates > 0.99 * 20_000
    assert make_forecast(Bounds(most, seconds, 777), speed, device).update_tokens == 777


@pytest.mark.parametrize(
    ("passes", "r_drop", "dropout"),
    [
        (0.5, 0, 0.0),
        (3.9, 0, 0.0),
        (4, 0, 0.1),
        (10, 0, 0.2),
        (100, 0, 0.3),
        (1, 5, 0.1),
        (10, 5, 0.2),
    ],
)
def test_dropout_grows_with_the_passes_and_is_on_for_r_drop(
    passes: float, r_drop: float, dropout: float
) -> None:
    values = choose_regularization(TrainingConfig(r_drop=r_drop), 30_000, passes)
    assert values["model.dropout"][0] == dropout


def test_weights_that_round_small_steps_away_have_no_decay() -> None:
    values = choose_regularization(TrainingConfig(precision="pure_bf16"), 30_000, 1.0)
    assert values["training.weight_decay"][0] == 0.0


@pytest.mark.parametrize(
    ("pairs", "passes", "warns"),
    [(499, 9, True), (500, 9, False), (500, 0.9, True), (10**6, 0.05, True), (10**6, 0.2, False)],
)
def test_few_pairs_to_train_on_are_a_warning(
    pairs: int, passes: float, warns: bool, caplog: pytest.LogCaptureFixture
) -> None:
    warn_of_weakness(pairs, passes)
    assert ("too little for a translator" in caplog.text) == warns
