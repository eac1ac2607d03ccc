"""The memory of training: counted as torch counts it, measured as the system does, and told."""

import json
import logging
import os
import platform
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from mt.config import Config
from mt.config.loading import load_config
from mt.data.batches import Lengths, collate
from mt.data.store import Example
from mt.errors import UserError
from mt.training import memory as memory_module
from mt.training.data import Corpus, prepare
from mt.training.memory import LiveBytes, TrainingMemory, require_memory, training_memory
from mt.training.run_folder import begin, open_run
from mt.training.setup import build_learner, build_model
from mt.training.step import train_step

CPU = torch.device("cpu")
VOCABULARY = 500
MIB = 2**20


def config(model: dict[str, Any], **training: Any) -> Config:
    source = {"format": "text", "source": "a.en", "target": "a.de"}
    data = {"source_language": "en", "target_language": "de", "train": source, "valid": source}
    return Config.model_validate(
        {"data": data, "model": model, "training": {"max_updates": 1, "device": "cpu", **training}}
    )


SMALL = {"d_model": 64, "d_ff": 128, "heads": 4, "encoder_layers": 2, "decoder_layers": 2}


def lengths(rows: int, source: int, target: int) -> Lengths:
    """Lengths of pairs of which the first is the longest, and the others a little shorter."""
    drawn = np.random.default_rng(1).integers(0, 4, (rows, 2))
    drawn[0] = 0
    return (np.array([[source, target]]) - drawn).astype(np.int32)


def counted(config: Config, pairs: Lengths, batches_per_update: int = 1) -> TrainingMemory:
    return training_memory(
        config,
        pairs,
        source_vocabulary=VOCABULARY,
        target_vocabulary=VOCABULARY,
        batches_per_update=batches_per_update,
    )


# Counting.


def test_tensors_that_live_together_are_counted_together() -> None:
    with LiveBytes() as bytes_:
        a = torch.zeros(1000)
        b = a + 1
        view = b[:10]
        del b
        assert (bytes_.live, bytes_.peak) == (8000, 8000)
        del view
        assert bytes_.live == 4000
        c = a.to(torch.float64)
        assert (bytes_.live, bytes_.peak) == (12000, 12000)
        del a, c
    assert (bytes_.live, bytes_.peak) == (0, 12000)


def test_an_operation_in_place_makes_nothing() -> None:
    with LiveBytes() as bytes_:
        a = torch.zeros(1000)
        a += 1
        a.view(10, 100).mul_(2)
    assert bytes_.peak == 4000


class _Vocabularies:
    source_size = target_size = VOCABULARY


def torch_counts(config: Config, pairs: Lengths, batches: int) -> int:
    """Return the bytes that torch's own allocator has out at most in an update, and the model's."""
    learner = build_learner(config, build_model(config, _Vocabularies(), CPU), CPU)  # type: ignore[arg-type]
    learner.model.train()
    ids = np.random.default_rng(1)
    examples = [
        Example(0, *(ids.integers(4, VOCABULARY, each).astype(np.int32) for each in pair))
        for pair in pairs
    ]
    made = [collate(examples)] * batches
    train_step(learner, made, 0.1)
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        train_step(learner, made, 0.1)
    changes = sorted(
        (event.start_ns(), event.nbytes())
        for event in profiler.profiler.kineto_results.events()
        if event.name() == "[memory]"
    )
    peak = int(np.cumsum([size for _, size in changes]).max())
    tensors = [*learner.model.parameters(), *learner.average.averages().values()]
    tensors += [each for state in learner.optimizer.state.values() for each in state.values()]
    return peak + sum(tensor.nbytes for tensor in tensors)


@pytest.mark.parametrize(
    ("changes", "training", "batches"),
    [
        ({}, {}, 1),
        ({}, {}, 2),
        ({"d_model": 128, "d_ff": 512}, {"ema_decay": 0.99}, 1),
        ({"positional": "relative", "feed_forward": "swiglu", "norm": "rmsnorm"}, {}, 1),
        ({"residual": "deepnorm"}, {"precision": "bf16"}, 1),
        ({}, {"r_drop": 1.0}, 1),
    ],
)
def test_the_count_is_torchs_own(
    changes: dict[str, Any], training: dict[str, Any], batches: int
) -> None:
    recipe, pairs = config({**SMALL, **changes}, **training), lengths(48, 30, 26)
    found = counted(recipe, pairs, batches).tensors
    assert found == pytest.approx(torch_counts(recipe, pairs, batches), rel=0.02)
    assert found > 5 * MIB


POSITIONAL = ("sinusoidal", "learned", "relative", "relative_bias", "alibi", "rotary", "none")
FEED_FORWARD = ("relu", "gelu", "swish", "glu", "swiglu", "geglu")


@pytest.mark.parametrize("positional", POSITIONAL)
@pytest.mark.parametrize("residual", ["post", "sandwich"])
def test_every_variant_can_be_counted(positional: str, residual: str) -> None:
    choices = {"positional": positional, "residual": residual, "encoder_layers": 1}
    number = POSITIONAL.index(positional)
    choices["feed_forward"] = FEED_FORWARD[number % len(FEED_FORWARD)]
    recipe = config({**SMALL, **choices, "decoder_layers": 1})
    few, many = (counted(recipe, lengths(rows, 20, 20)) for rows in (8, 64))
    assert 0 < few.tensors < many.tensors


def test_counting_leaves_no_trace() -> None:
    before = torch.get_rng_state()
    counted(config(SMALL), lengths(4, 10, 10))
    assert torch.equal(torch.get_rng_state(), before)
    assert type(torch.zeros(1)) is torch.Tensor


# Measuring.

CHILD = """
import json, os, resource, sys
from pathlib import Path
from mt.config.loading import load_config
from mt.training import train as spine
from mt.training.memory import corpus_memory

PAGE = os.sysconf("SC_PAGE_SIZE")
told = {}
start = spine.start

def noting(config, folder, corpus, *rest):
    told["likely"] = corpus_memory(config, corpus)[1].likely
    told["before"] = PAGE * int(Path("/proc/self/statm").read_text().split()[1])
    return start(config, folder, corpus, *rest)

spine.start = noting
recipe, updates = sys.argv[1:]
config = load_config(Path(recipe), overrides=[f"training.max_updates={updates}"])
spine.train(config, Path(recipe).parent / updates)
told["peak"] = 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
print(json.dumps(told))
"""
RECIPE = """
data:
  source_language: en
  target_language: de
  train: {{source: {folder}/train.en, target: {folder}/train.de}}
  valid: {{source: {folder}/valid.en, target: {folder}/valid.de}}
  max_tokens: 1024
tokenizer: {{vocabulary_size: 4000}}
model: {{{model}}}
training:
  target_tokens_per_update: {tokens}
  max_tokens_per_batch: {tokens}
  device: cpu
  validate_every: 1000
"""
MODELS = {
    "short": ("d_model: 256, d_ff: 1024, heads: 4, encoder_layers: 3, decoder_layers: 3", 2048, 10),
    "wide": ("d_model: 512, d_ff: 2048, heads: 8, encoder_layers: 1, decoder_layers: 1", 1024, 10),
    "long": ("d_model: 128, d_ff: 256, heads: 4, encoder_layers: 2, decoder_layers: 2", 2048, 90),
}
"""Sizes, target tokens of an update and of a batch, and words of a sentence."""


def write_corpus(folder: Path, words: int) -> None:
    draw = np.random.default_rng(1)
    letters = np.array(list("abcdefghijklmnopqrstuvwxyz"))
    vocabulary = ["".join(draw.choice(letters, size)) for size in draw.integers(2, 9, 3000)]
    for split, count in (("train", 40_000 // words), ("valid", 4)):
        sizes = draw.integers(words // 2, words * 2, count)
        for side in ("en", "de"):
            lines = [
                " ".join(draw.choice(vocabulary, 3 if split == "valid" else size))
                for size in sizes + draw.integers(-1, 2, count)
            ]
            (folder / f"{split}.{side}").write_text("".join(f"{line}\n" for line in lines))


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the heap that was measured")
@pytest.mark.parametrize("name", MODELS)
def test_a_process_takes_what_is_likely(name: str, tmp_path: Path) -> None:
    model, tokens, words = MODELS[name]
    write_corpus(tmp_path, words)
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(RECIPE.format(folder=tmp_path, model=model, tokens=tokens))
    environment = {"PYTHONPATH": str(Path(__file__).parents[2]), "OMP_NUM_THREADS": "1"}
    for updates in ("1", "12"):  # the second process finds the corpus encoded
        ran = subprocess.run(
            [sys.executable, "-c", CHILD, recipe, updates],
            env={**os.environ, **environment},
            capture_output=True,
            text=True,
            check=True,
        )
    told = json.loads(ran.stdout)
    assert told["likely"] == pytest.approx(told["peak"] - told["before"], rel=0.1)


# Telling.


@pytest.fixture
def prepared(tiny_recipe: Path, tmp_path: Path) -> tuple[Config, Corpus]:
    recipe = load_config(tiny_recipe)
    folder, _ = open_run(tmp_path / "run", recipe)
    begin(folder, recipe)
    return recipe, prepare(recipe, folder)


def with_available(patch: pytest.MonkeyPatch, available: int | None) -> None:
    patch.setattr(memory_module, "available_bytes", lambda: available)


def test_too_little_memory_is_told_before_the_training(
    prepared: tuple[Config, Corpus], tiny_corpus: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_available(monkeypatch, 2**18)
    with pytest.raises(UserError) as told:
        require_memory(*prepared)
    message = str(told.value)
    assert message.startswith("training needs at least 0.00 GiB, and 0.00 GiB of memory are free: ")
    assert "the heaviest batch has " in message
    pattern = (
        rf"up to (\d+) source and (\d+) target tokens, the longest is line (\d+) of {tiny_corpus}"
    )
    found = re.search(pattern, message)
    assert found is not None
    source, target, line = map(int, found.groups())
    sides = prepared[1].store.lengths[line - 1]  # all lines of this corpus are in the store
    assert sides.max() == max(source, target)
    assert message.endswith(
        "; lower `training.max_tokens_per_batch`, now 200 (the updates stay the same), or in a new "
        "run `data.max_tokens`, now 40, or take a smaller model"
    )


def test_what_is_likely_too_little_is_a_warning(
    prepared: tuple[Config, Corpus],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    with_available(monkeypatch, 10 * MIB)
    require_memory(*prepared)
    (told,) = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert told.message.startswith("training will take about 0.02 GiB, and 0.01 GiB of memory are")


@pytest.mark.parametrize("available", [2**40, None])
def test_enough_memory_or_nobody_knows_is_no_word(
    available: int | None,
    prepared: tuple[Config, Corpus],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    with_available(monkeypatch, available)
    require_memory(*prepared)
    assert caplog.messages == []
