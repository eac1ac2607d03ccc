"""How the model learns, when it is looked at, and what is kept."""

from collections.abc import Iterator
from typing import Annotated, Literal, get_args

from pydantic import Field, model_validator

from mt.config.base import LocalPath, Section

Metric = Literal["bleu", "chrf", "loss"]
Count = Annotated[int, Field(ge=1)]
Part = Literal["source_embedding", "target_embedding", "output", "encoder", "decoder"]
Parts = Annotated[tuple[Part, ...], Field(strict=False)]


class TrainingConfig(Section):
    """Teacher forcing with label-smoothed cross-entropy and Adam."""

    init_from: LocalPath | None = None
    """A finished run to fine-tune: its weights begin this one; see `tokenizer.added_tokens`."""
    max_updates: Count | None = None
    """Stop after so many optimiser steps."""
    max_epochs: Count | None = None
    """Stop after so many passes over the corpus."""
    patience: Count | None = 10
    """Stop after so many validations without a better `best_metric`; null never does."""
    target_tokens_per_update: Count = 4096
    """Target tokens (end marks in, padding out) behind one optimiser step, on any hardware."""
    max_tokens_per_batch: Count = 4096
    """Most padded positions, rows x the longer side, computed at once; a matter of memory only."""
    learning_rate: Annotated[float, Field(gt=0.0)] = 5e-4
    """Peak, where the warm-up ends; with `noam` the factor in front of its formula."""
    schedule: Literal["inverse_sqrt", "noam", "constant", "cosine", "linear"] = "inverse_sqrt"
    """Learning rate by update."""
    warmup_updates: Annotated[int, Field(ge=0)] = 4000
    """Updates over which the learning rate rises linearly."""
    decay_updates: Count | None = None
    """The update at which `cosine` and `linear` have come down to `final_learning_rate`."""
    final_learning_rate: Annotated[float, Field(ge=0.0)] = 0.0
    """Where `cosine` and `linear` end, and stay."""
    freeze: Parts = ()
    """Parts of the model that keep the weights they begin with; a stack goes with its norms."""
    label_smoothing: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.1
    """Probability mass spread evenly over the vocabulary."""
    r_drop: Annotated[float, Field(ge=0.0)] = 0.0
    """R-Drop's alpha (5 in its paper's translations): how alike two dropouts must be; 0 is off."""
    ema_decay: Annotated[float, Field(gt=0.0, lt=1.0)] | None = None
    """Validate and keep an exponential moving average of the weights, such as 0.999; null: none."""
    gradient_clip: Annotated[float, Field(ge=0.0)] = 1.0
    """Largest norm of the whole gradient; 0 clips nothing."""
    on_divergence: Literal["stop", "rollback"] = "stop"
    """What to do when the loss explodes: end, or go back to before it at half the learning rate."""
    device: Literal["auto", "cuda", "mps", "cpu"] = "auto"
    """Where to compute; `auto` takes the best that is there."""
    precision: Literal["auto", "fp32", "bf16", "fp16"] = "auto"
    """Arithmetic; `auto` is bf16 on a GPU that has it, on a CPU with AMX from a `d_model` of 256 on
    and with AVX-512 BF16 alone from 128 on, else fp32. Weights stay fp32."""
    compile: Literal["on", "off"] = "off"
    """Whether torch.compile makes kernels of its own for encoder and decoder; it takes a minute."""
    validate_every: Count = 1000
    """Updates between two validations; each ends with a checkpoint."""
    checkpoint_every: Count | None = None
    """Updates between two checkpoints besides those of the validations."""
    log_every: Count = 50
    """Updates between two lines of the journal with loss and speed."""
    tensorboard: Literal["on", "off"] = "off"
    """Whether RUN/tensorboard shows the journal's numbers; needs the extra `tensorboard`."""
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
    def _keys_agree(self) -> "TrainingConfig":
        if broken := [*self._broken_rules()]:
            raise ValueError("\n".join(broken))
        return self

    def _broken_rules(self) -> Iterator[str]:
        if not (self.max_updates or self.max_epochs or self.patience):
            yield (
                "nothing ends it: set `training.max_updates`, `training.max_epochs` "
                "or `training.patience`"
            )
        if set(self.freeze) == set(get_args(Part)):
            yield "`training.freeze` names every part: nothing is left to learn"
        if self.schedule in {"cosine", "linear"}:
            yield from self._broken_decay()

    def _broken_decay(self) -> Iterator[str]:
        name, last = f"`training.schedule: {self.schedule}`", self.decay_updates
        if last is None:
            yield (
                f"{name} needs `training.decay_updates`, the update at which it has come down: "
                f"as a rule that of `training.max_updates`{_given(self.max_updates)}"
            )
            return
        if self.warmup_updates >= last:
            yield (
                f"`training.warmup_updates` {self.warmup_updates} must be below "
                f"`training.decay_updates` {last}"
            )
        if self.final_learning_rate > self.learning_rate:
            yield (
                f"`training.final_learning_rate` {self.final_learning_rate} is above "
                f"`training.learning_rate` {self.learning_rate}"
            )
        if not self.final_learning_rate and not 0 < (self.max_updates or 0) <= last:
            yield (
                f"{name} learns nothing after `training.decay_updates` {last}: set "
                "`training.max_updates` to no more, or `training.final_learning_rate` above 0"
            )


def _given(value: int | None) -> str:
    return "" if value is None else f", {value}"
