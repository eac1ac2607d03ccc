"""Settings of a training session that depend on its device, chosen anew by each session."""

from typing import Any

import torch

from mt.config import Config
from mt.training.compilation import is_worthwhile

_CUDA_BATCH_TOKENS = 32_768
"""Padded tokens of a batch on CUDA, halved where they do not fit."""


def for_device(config: Config, device: torch.device) -> Config:
    """Return the config with the settings that depend on the device, which are then given."""
    changes: dict[str, Any] = {"max_tokens_per_batch": batch_tokens(config, device)}
    if config.training.compile == "auto":
        changes["compile"] = "on" if is_worthwhile(config.training, device) else "off"
    return _with_training(config, changes)


def batch_tokens(config: Config, device: torch.device) -> int:
    """Return `training.max_tokens_per_batch`, or the largest that a device may take for `auto`."""
    training = config.training
    tokens = training.max_tokens_per_batch
    if not training.is_open("max_tokens_per_batch"):
        return tokens
    return max(_CUDA_BATCH_TOKENS if device.type == "cuda" else tokens, config.data.max_tokens)


def with_batch_tokens(config: Config, tokens: int) -> Config:
    """Return the config with a given `training.max_tokens_per_batch`."""
    return _with_training(config, {"max_tokens_per_batch": tokens})


def _with_training(config: Config, changes: dict[str, Any]) -> Config:
    training = config.training.model_copy(update=changes)
    return config.model_copy(update={"training": training})
