"""How the model learns, when it is looked at, and what is kept."""

from typing import Annotated, Literal

from pydantic import Field, model_validator

from mt.config.base import Section

Metric = Literal["bleu", "chrf", "loss"]
Count = Annotated[int, Field(ge=1)]


class TrainingConfig(Section):
    """Teacher forcing with label-smoothed cross-entropy and Adam."""

    max_updates: Count | None = None
    """Stop after so many optimiser steps."""
    max_epochs: Count | None = None
    """Stop after so many passes over the corpus."""
    patience: Count | None = 10
    """Stop after so many validations without a better `best_metric`; null never does."""
    target_tokens_per_update: Count = 4096
    """Target pieces (end marks in, padding out) behind one optimiser step, on any hardware."""
    max_tokens_per_batch: Count = 4096
    """Most padded positions, rows x the longer side, computed at once; a matter of memory only."""
    learning_rate: Annotated[float, Field(gt=0.0)] = 5e-4
    """Peak of `inverse_sqrt`; factor in front of the formula of `noam`."""
    schedule: Literal["inverse_sqrt", "noam", "constant"] = "inverse_sqrt"
    """Learning rate by update."""
    warmup_updates: Annotated[int, Field(ge=0)] = 4000
    """Updates over which the learning rate rises linearly."""
    label_smoothing: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.1
    """Probability mass spread evenly over the vocabulary."""
    gradient_clip: Annotated[float, Field(ge=0.0)] = 1.0
    """Largest norm of the whole gradient; 0 clips nothing."""
    device: Literal["auto", "cuda", "mps", "cpu"] = "auto"
    """Where to compute; `auto` takes the best that is there."""
    precision: Literal["auto", "fp32", "bf16", "fp16"] = "auto"
    """Arithmetic; `auto` is bf16 on a GPU that has it, else fp32. Weights stay fp32."""
    validate_every: Count = 1000
    """Updates between two validations; each ends with a checkpoint."""
    checkpoint_every: Count | None = None
    """Updates between two checkpoints besides those of the validations."""
    validation_search: Literal["greedy", "beam"] = "greedy"
    """The search with which validation decodes."""
    best_metric: Metric = "bleu"
    """The validation metric that ranks checkpoints."""
    keep_best: Count = 5
    """So many best checkpoints stay on disk."""
    keep_last: Count = 2
    """So many newest checkpoints stay on disk."""
    average: Literal["best", "last", "off"] = "best"
    """The final model: the mean of the best or the last checkpoints kept, or the best one alone."""

    @model_validator(mode="after")
    def _ends(self) -> "TrainingConfig":
        if not (self.max_updates or self.max_epochs or self.patience):
            raise ValueError(
                "nothing ends it: set `training.max_updates`, `training.max_epochs` "
                "or `training.patience`"
            )
        return self
