"""Sections that measure: matrix products, training, decoding, and CTranslate2 beside it."""

import gc
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from bench.cost import count_training_flops, measure_matmul_rate
from bench.gpu.runner import Check, Settings, Unavailable, attempt, observe
from bench.gpu.workload import (
    SMALL_VOCABULARY,
    TINY,
    capture_alone,
    device_of,
    examples,
    learner,
    lengths,
    planned,
    synchronize,
    transformer,
)
from mt.config import DecodingConfig, ModelConfig
from mt.decoding.torch_engine import TorchEngine
from mt.model.device import is_out_of_memory
from mt.model.transformer import Transformer
from mt.special_ids import EOS
from mt.training.loader import PlannedUpdate, Prefetcher
from mt.training.step import BatchTooLarge, Learner, train_step

SHAPES = ("tiny", "base", "big")
VOCABULARY = 32_000
LONGEST = 200
"""Largest number of tokens of a side in training."""
BATCH_TOKENS = 32_768
"""Padded tokens computed at once, halved while they do not fit."""
TIMED_SECONDS = 4.0
CASE_SECONDS = {"off": 15.0, "on": 60.0}
"""Time that must be left for a case of training to begin, by compilation."""


def shape(name: str, settings: Settings) -> dict[str, Any]:
    """Return the model keys of a preset, or of a tiny model for a CPU."""
    return TINY if settings.small else {"preset": f"transformer-{name}"}


def matrix_products(settings: Settings) -> Iterator[Check]:
    """Measure the rates of matrix products and of copies in the device's memory."""
    device = device_of(settings.device)
    for dtype in (torch.bfloat16, torch.float16, torch.float32):
        name = str(dtype).removeprefix("torch.")
        yield observe(f"{name} products", partial(_rate_text, device, dtype))
    if device.type == "cuda":
        yield observe("float32 products with TF32", partial(_tf32_text, device))
    yield observe("copies in memory", partial(_copy_text, device))


def product_rate(device: torch.device, dtype: torch.dtype) -> float:
    """Return the FLOP/s of a large square product of random matrices."""
    size = 8192 if device.type == "cuda" else 256
    return measure_matmul_rate({(size, size, size)}, device, dtype)


def _rate_text(device: torch.device, dtype: torch.dtype) -> str:
    return f"{product_rate(device, dtype) / 1e12:,.2f} TFLOP/s"


def _tf32_text(device: torch.device) -> str:
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        return _rate_text(device, torch.float32)
    finally:
        torch.set_float32_matmul_precision(before)


def _copy_text(device: torch.device) -> str:
    size, times = (2**30, 20) if device.type == "cuda" else (2**20, 20)
    source = torch.ones(size, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    target.copy_(source)
    synchronize(device)
    began_at = time.perf_counter()
    for _ in range(times):
        target.copy_(source)
    synchronize(device)
    rate = 2 * size * times / (time.perf_counter() - began_at)
    return f"{rate / 1e9:,.0f} GB/s read and written"


# Training.


def training(settings: Settings) -> Iterator[Check]:
    """Measure updates of each model without compilation."""
    yield from _training(settings, "off")


def compiled_training(settings: Settings) -> Iterator[Check]:
    """Measure updates of each model with `training.compile: on`."""
    yield from _training(settings, "on")


def _training(settings: Settings, compiled: Literal["on", "off"]) -> Iterator[Check]:
    device = device_of(settings.device)
    dtype = torch.float32 if settings.small else torch.bfloat16
    rate = product_rate(device, dtype)
    yield Check(
        "note",
        "share of the rate",
        f"FLOPs are 3 times the forward matrix products of the real tokens (a multiply-add is 2), "
        f"relative to {rate / 1e12:,.2f} TFLOP/s, the rate of products at the start",
    )
    for name in ("base", "big", "tiny"):
        for tokens in (100,) if settings.small else (25_000, 4_096):
            what = f"{name}, {tokens:,} target tokens an update, compile {compiled}"
            if settings.seconds_left < (0 if settings.small else CASE_SECONDS[compiled]):
                yield Check("note", what, "left out, the time of the section is over")
                continue
            case = TrainingCase(shape(name, settings), tokens, compiled, device)
            with capture_alone(settings):
                yield attempt(what, partial(_updates_text, case, rate))


def _updates_text(case: "TrainingCase", rate: float) -> str:
    budget = BATCH_TOKENS
    while True:
        try:
            return _measured(case, budget, rate)
        except (BatchTooLarge, RuntimeError) as error:
            too_large = isinstance(error, BatchTooLarge) or is_out_of_memory(error)
            if not too_large or budget // 2 < LONGEST:
                raise
        # Outside the handler, because the traceback keeps tensors in memory.
        budget //= 2


@dataclass(frozen=True)
class TrainingCase:
    """Row of the table of training speeds."""

    model: dict[str, Any]
    tokens: int
    """Target tokens of an update."""
    compiled: Literal["on", "off"]
    device: torch.device


def _measured(case: TrainingCase, budget: int, rate: float) -> str:
    """Return the speed of a case with at most `budget` padded tokens at once."""
    device, cuda = case.device, case.device.type == "cuda"
    vocabulary, longest = (VOCABULARY, LONGEST) if cuda else (SMALL_VOCABULARY, 30)
    drawn = lengths(40_000 if cuda else 200, longest=longest)
    pairs = examples(drawn, vocabulary=vocabulary)
    if cuda:
        gc.collect()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    keys = {"precision": "bf16" if cuda else "fp32", "compile": case.compiled}
    made = learner(case.model, device, vocabulary=vocabulary, **keys)
    feed = planned(pairs, drawn, device, target_tokens=case.tokens, max_tokens=budget)
    taken: list[PlannedUpdate] = []
    with Prefetcher(feed) as prefetcher:
        updates = iter(prefetcher)
        first = _seconds(lambda: _take(made, updates, 1), device)
        _take(made, updates, 4)
        typical = _seconds(lambda: _take(made, updates, 3), device) / 3
        timed = int(np.clip(TIMED_SECONDS / typical, 5, 200)) if cuda else 2
        seconds = _seconds(lambda: taken.extend(_take(made, updates, timed)), device)
    indices = np.concatenate([batch.index.numpy() for update in taken for batch in update.batches])
    shape = ModelConfig.model_validate(case.model)
    flops = count_training_flops(shape, drawn[indices], vocabularies=(vocabulary, vocabulary)).sum()
    tokens = sum(update.tokens.target for update in taken)
    batches = sum(len(update.batches) for update in taken) / len(taken)
    peak = f"{torch.cuda.max_memory_allocated() / 2**30:.2f} GiB, " if cuda else ""
    return (
        f"{tokens / seconds:,.0f} target tokens/s, {flops / seconds / rate:.1%} of the rate, "
        f"{1e3 * seconds / len(taken):.1f} ms an update, {peak}"
        f"{batches:.1f} batches an update, of at most {budget:,} tokens; first update {first:.1f} s"
    )


def _take(made: Learner, updates: Iterator[PlannedUpdate], count: int) -> list[PlannedUpdate]:
    taken = []
    for update in islice(updates, count):
        batches = [batch.to(made.precision.device) for batch in update.batches]
        train_step(made, batches, 1e-4, tokens=update.tokens)
        taken.append(update)
    return taken


def _seconds(work: Callable[[], object], device: torch.device) -> float:
    synchronize(device)
    began_at = time.perf_counter()
    work()
    synchronize(device)
    return time.perf_counter() - began_at


# Decoding.

ROWS = (16, 64, 256, 1024)
FIXED_TOKENS = 32
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


def decoding(settings: Settings) -> Iterator[Check]:
    """Measure the searches of the base model; a translation is as long as its source."""
    device = device_of(settings.device)
    model = _decoder(settings)
    vocabulary = model.output.out_features
    count = 8 if settings.small else max(ROWS)
    drawn = lengths(count, longest=100)
    sources = [pair.source.tolist() for pair in examples(drawn, vocabulary=vocabulary)]
    limits = {"max_length_ratio": 1.0, "max_length_extra": 1}
    for precision, dtype in DTYPES.items():
        engine = TorchEngine(model.to(device, dtype), device)
        for search in ("greedy", "beam"):
            for rows in (4,) if settings.small else ROWS:
                what = f"base, {search}, {rows:,} sentences, {precision}"
                keys = {"search": search, "beam": 5, "batch_size": rows, **limits}
                given = sources[:rows]
                yield attempt(what, partial(_decoding_text, engine, given, keys, device))


def _decoder(settings: Settings) -> Transformer:
    """Return a model that never ends a translation before its limit."""
    vocabulary = SMALL_VOCABULARY if settings.small else VOCABULARY
    model = transformer(shape("base", settings), vocabulary=vocabulary)
    model.output.register_forward_hook(_forbid_end)
    return model


def _forbid_end(_module: nn.Module, _inputs: object, logits: Tensor) -> Tensor:
    logits[..., EOS] = float("-inf")
    return logits


def _decoding_text(
    engine: TorchEngine, sources: list[list[int]], keys: dict[str, Any], device: torch.device
) -> str:
    settings = DecodingConfig.model_validate(keys)
    engine.translate_ids(sources[: len(sources) // 2 + 1], settings)
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    seconds, tokens = list[float](), 0
    most = 5 if device.type == "cuda" else 1
    while not seconds or (len(seconds) < most and sum(seconds) < 2.0):
        hypotheses: list[Any] = []
        seconds.append(
            _seconds(lambda: hypotheses.extend(engine.translate_ids(sources, settings)), device)  # noqa: B023 - called at once
        )
        tokens = sum(len(hypothesis.ids) for hypothesis in hypotheses)
    best = min(seconds)
    peak = f", {torch.cuda.max_memory_allocated() / 2**30:.2f} GiB" if device.type == "cuda" else ""
    return (
        f"{len(sources) / best:,.0f} sentences/s, {tokens / best:,.0f} tokens/s{peak} (best of "
        f"{len(seconds)})"
    )


def ctranslate2(settings: Settings) -> Iterator[Check]:
    """Measure CTranslate2 beside mt; each translation has the same number of tokens."""
    device = device_of(settings.device)
    model = _decoder(settings)
    with tempfile.TemporaryDirectory() as folder:
        load = attempt("CTranslate2 model", lambda: _write_ctranslate2(model, Path(folder), device))
        yield load
        if load.status != "pass":
            return
        dtype = torch.float32 if settings.small else torch.bfloat16
        engine = TorchEngine(model.to(device, dtype), device)
        for rows in (4,) if settings.small else ROWS:
            for beam in (1, 5):
                work = partial(_beside_ctranslate2, engine, Path(folder), rows, beam, device)
                name = "greedy" if beam == 1 else f"beam {beam}"
                yield attempt(f"base, {name}, {rows:,} sentences", work)


def _write_ctranslate2(model: Transformer, folder: Path, device: torch.device) -> str:
    import ctranslate2

    from mt.export.ctranslate2 import build_spec

    if device.type == "cuda" and not ctranslate2.get_cuda_device_count():
        raise Unavailable(f"version {ctranslate2.__version__} sees no CUDA device")
    keys = {"preset": "transformer-base"} if model.output.in_features == 512 else TINY
    weights = {name: weight.detach().numpy() for name, weight in model.named_parameters()}
    config = ModelConfig.model_validate(keys)
    spec = build_spec(config, weights, positions=LONGEST + 1)
    tokens = _vocabulary(model.output.out_features)
    spec.register_source_vocabulary(tokens)
    spec.register_target_vocabulary(tokens)
    spec.validate()
    spec.optimize(quantization="float16" if device.type == "cuda" else None)
    spec.save(str(folder))
    try:  # Libraries of CUDA are loaded when they are first used.
        ctranslate2.Translator(str(folder), device=device.type).translate_batch(
            [tokens[4:6]], max_decoding_length=4
        )
    except RuntimeError as error:
        raise Unavailable(f"version {ctranslate2.__version__}: {error}") from None
    return f"version {ctranslate2.__version__}"


def _vocabulary(size: int) -> list[str]:
    return ["<pad>", "<unk>", "<s>", "</s>", *(f"t{token}" for token in range(4, size))]


def _beside_ctranslate2(
    engine: TorchEngine, folder: Path, rows: int, beam: int, device: torch.device
) -> str:
    import ctranslate2

    size = engine.model.output.out_features
    drawn = lengths(rows, longest=100)
    sources = [pair.source.tolist() for pair in examples(drawn, vocabulary=size)]
    tokens = _vocabulary(size)
    texts = [[tokens[token] for token in source] for source in sources]
    kind = "float16" if device.type == "cuda" else "float32"
    translator = ctranslate2.Translator(str(folder), device=device.type, compute_type=kind)
    fixed = {"max_length_ratio": 0.0, "max_length_extra": FIXED_TOKENS, "batch_size": rows}
    search = {"search": "greedy"} if beam == 1 else {"search": "beam", "beam": beam}
    decoding = DecodingConfig.model_validate({**fixed, **search})

    def theirs() -> list[Any]:
        keys = {"min_decoding_length": FIXED_TOKENS, "max_decoding_length": FIXED_TOKENS}
        return [*translator.translate_batch(texts, beam_size=beam, **keys)]

    def ours() -> list[Any]:
        return engine.translate_ids(sources, decoding)

    theirs(), ours()
    times = {"theirs": _best(theirs, device), "ours": _best(ours, device)}
    sizes = {len(result.hypotheses[0]) for result in theirs()}
    if sizes | {len(hypothesis.ids) for hypothesis in ours()} != {FIXED_TOKENS}:
        raise AssertionError(f"translations have other lengths than {FIXED_TOKENS}: {sizes}")
    dtype = str(engine.model.output.weight.dtype).removeprefix("torch.")
    return (
        f"mt in {dtype} {rows / times['ours']:,.0f} sentences/s, CTranslate2 in {kind} "
        f"{rows / times['theirs']:,.0f}, ratio {times['theirs'] / times['ours']:.2f}"
    )


def _best(work: Callable[[], object], device: torch.device) -> float:
    return min(_seconds(work, device) for _ in range(3 if device.type == "cuda" else 1))
