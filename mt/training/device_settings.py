"""Settings of a training session that depend on its device, chosen anew by each session."""

import torch

from mt.config import Config

_CUDA_BATCH_TOKENS = 32_768
"""Padded tokens of a batch on CUDA, halved where they do not fit: few kernels, each with much work."""


def for_device(config: Config, device: torch.device) -> Config:
    """Return the config with the settings that depend on the device."""
    return with_batch_tokens(config, batch_tokens(config, device))


def batch_tokens(config: Config, device: torch.device) -> int:
    """Return `training.max_tokens_per_batch`, or the largest that a device may take for `auto`."""
    training = config.training
    tokens = training.max_tokens_per_batch
    if not training.is_open("max_tokens_per_batch"):
        return tokens
    return max(_CUDA_BATCH_TOKENS if device.type == "cuda" else tokens, config.data.max_tokens)


def with_batch_tokens(config: Config, tokens: int) -> Config:
    """Return the config with a given `training.max_tokens_per_batch`."""
    training = config.training.model_copy(update={"max_tokens_per_batch": tokens})
    return config.model_copy(update={"training": training})
