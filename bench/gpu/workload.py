"""Models, sentences and updates of the measurements, from fixed seeds.

Source lengths are lognormal with a median of 24 tokens and a sigma of 0.6, as in sentences of news;
targets are 1.05 times as long, with a sigma of 0.2. Frequent ids are more frequent, as in text.
"""

import math
import os
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch

from bench.gpu.runner import Settings
from mt.config import Config, ModelConfig
from mt.data.batches import (
    SOURCE,
    Lengths,
    collate,
    count_tokens,
    plan_updates,
    split_update,
)
from mt.data.store import Example
from mt.model.device import select_device
from mt.model.transformer import Transformer
from mt.special_ids import EOS
from mt.training.loader import PlannedUpdate
from mt.training.setup import build_learner, new_model
from mt.training.step import Learner, TokenCounts

ROOT = Path(__file__).parents[2]
FIRST_ID = 4
"""Smallest id of a text token."""
SMALL_VOCABULARY = 32
"""So small that a random model ends its translations at different lengths."""
TINY: dict[str, Any] = {
    "d_model": 64,
    "d_ff": 128,
    "heads": 4,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "dropout": 0.0,
}
"""A model for checks of values."""
KINDS: dict[str, dict[str, Any]] = {
    "sinusoidal": {},
    "learned": {"positional": "learned", "max_positions": 256, "tie_embeddings": "none"},
    "relative": {"positional": "relative", "residual": "pre"},
    "relative_bias": {"positional": "relative_bias", "feed_forward": "swiglu"},
    "alibi": {"positional": "alibi"},
    "rotary": {"positional": "rotary", "kv_heads": 1, "norm": "rmsnorm"},
    "none": {"positional": "none", "residual": "deepnorm"},
}
"""Variants that differ in their tensors on the device."""


def environment() -> dict[str, str]:
    """Return the variables of a subprocess that imports this checkout."""
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    return {**os.environ, "PYTHONPATH": path, "PYTHONUNBUFFERED": "1"}


def config(model: dict[str, Any], device: torch.device, **training: Any) -> Config:
    """Return a config whose corpora do not exist."""
    side = {"format": "text", "source": "a.en", "target": "a.de"}
    return Config.model_validate(
        {
            "data": {
                "source_language": "en",
                "target_language": "de",
                "train": side,
                "valid": side,
            },
            "model": model,
            "training": {"max_updates": 1, "device": device.type, **training},
        }
    )


def learner(
    model: dict[str, Any], device: torch.device, *, vocabulary: int, **training: Any
) -> Learner:
    """Return a learner as training builds it; `training` has keys of the config."""
    chosen = config(model, device, **{"compile": "off", **training})
    torch.manual_seed(1)
    made = new_model(chosen.model, (vocabulary, vocabulary), device)
    return build_learner(chosen, made.train(), device)


def transformer(model: dict[str, Any], *, vocabulary: int, seed: int = 1) -> Transformer:
    """Return a model on the CPU in evaluation mode, whose output is far from ties.

    With tied embeddings, a random model repeats its last token for ever.
    """
    torch.manual_seed(seed)
    made = Transformer(
        ModelConfig.model_validate({**model, "tie_embeddings": "none"}),
        source_vocabulary=vocabulary,
        target_vocabulary=vocabulary,
    )
    with torch.no_grad():
        made.output.weight.mul_(3)
        made.output.weight[EOS].mul_(2)
    return made.eval()


def capture_alone(settings: Settings) -> AbstractContextManager[object]:
    """Return a context in which a CPU captures graphs, but does not compile them for minutes."""
    if not settings.small:
        return nullcontext()
    return mock.patch.object(torch, "compile", partial(torch.compile, backend="aot_eager"))


def device_of(name: str) -> torch.device:
    """Return the device as training chooses it."""
    return select_device(name)


def synchronize(device: torch.device) -> None:
    """Wait for a GPU."""
    if device.type == "cuda":
        torch.cuda.synchronize()


def lengths(number: int, *, longest: int, seed: int = 1) -> Lengths:
    """Draw the tokens of sources and targets [N 2], 2 to `longest`, EOS included."""
    random = np.random.default_rng(seed)
    source = np.exp(random.normal(math.log(24), 0.6, number))
    target = source * np.exp(random.normal(math.log(1.05), 0.2, number))
    both = np.rint(np.stack([source, target], axis=1))
    drawn: Lengths = np.clip(both, 2, longest).astype(np.int32)
    return drawn


def examples(drawn: Lengths, *, vocabulary: int, seed: int = 2) -> list[Example]:
    """Draw the ids of pairs of these lengths."""
    random = np.random.default_rng(seed)
    ends = np.cumsum(drawn.sum(axis=1))
    ids = FIRST_ID + (vocabulary - FIRST_ID) * random.random(int(ends[-1])) ** 3
    made = []
    for number, both in enumerate(np.split(ids.astype(np.int32), ends[:-1])):
        source, target = np.split(both, [drawn[number, SOURCE]])
        source[-1] = target[-1] = EOS
        made.append(Example(number, source, target))
    return made


def planned(
    pairs: Sequence[Example],
    drawn: Lengths,
    device: torch.device,
    *,
    target_tokens: int,
    max_tokens: int,
) -> Iterator[PlannedUpdate]:
    """Yield updates without end, as training plans and cuts them."""
    for epoch in count():
        plan = plan_updates(drawn, target_tokens, seed=1, epoch=epoch)
        for number, update in enumerate(plan):
            (parts,) = split_update(update, drawn, max_tokens_per_batch=max_tokens, ranks=1)
            batches = [collate([pairs[index] for index in part]) for part in parts]
            if device.type == "cuda":
                batches = [batch.pinned() for batch in batches]
            counts = TokenCounts(*count_tokens(update, drawn))
            yield PlannedUpdate(epoch, number, batches, counts)
