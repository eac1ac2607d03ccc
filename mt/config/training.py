"""Configuration of training, validation and checkpoints."""

from collections.abc import Iterator
from typing import Annotated, Literal, get_args

from pydantic import Field

from mt.config.base import Automatic, LocalPath, Section, TagText

Metric = Literal["bleu", "chrf", "loss"]
Count = Annotated[int, Field(ge=1, le=10**9)]
Duration = Annotated[str, Field(pattern=r"^[0-9]{1,9}(\.[0-9]{1,9})?[smhd]$")]
"""A time: a number and `s`, `m`, `h` or `d`, such as `30m` or `1.5h`."""
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
FINAL_TIMES = 3
"""Pairs that score the final model within a budget, in times of those of a validation."""
LORA_SCALE = 2.0
"""Factor of the product of the matrices of `training.lora`."""
Part = Literal["source_embedding", "target_embedding", "output", "encoder", "decoder"]
Parts = Annotated[tuple[Part, ...], Field(strict=False)]


class TrainingConfig(Section):
    """Teacher forcing with label-smoothed cross-entropy and Adam."""

    init_from: LocalPath | None = None
    """Finished run to fine-tune: its weights initialize this one; see `tokenizer.added_tokens`."""
    init_tags: dict[TagText, TagText] = Field(default_factory=dict)
    """New tags that begin as a tag of that run: `{<2nl>: <2de>}` for a related language."""
    init_embeddings: Annotated[Literal["random", "translations"], Automatic] = "random"
    """Initial embeddings: random, or with similar rows for tokens that translate each other, by a
    word alignment of the corpus."""
    init_sublayers: Annotated[Literal["random", "zero"], Automatic] = "random"
    """Initial last matrices of attention and feed-forward layers; with zeros, a layer passes its
    input on until it learns better."""
    budget: Duration | None = None
    """Time for the whole run, such as `30m` or `2h`, which decides `max_updates`; null: none."""
    max_updates: Annotated[Count | None, Automatic] = None
    """Maximum number of updates."""
    max_epochs: Count | None = None
    """Maximum number of passes over the corpus."""
    patience: Annotated[Count | None, Automatic] = 10
    """Stop after this many validations without a better `best_metric` and without a clearly better
    chrF2 or loss; null: never."""
    target_tokens_per_update: Annotated[Count, Automatic] = 4096
    """Target tokens per update on any hardware, with end marks and without padding."""
    max_tokens_per_batch: Annotated[Count, Automatic] = 4096
    """Padded tokens computed at once, rows times the longer side; limits memory only. `auto`: 4,096
    and on CUDA 32,768, halved until the heaviest batch fits."""
    learning_rate: Annotated[float, Field(gt=0.0, le=100.0), Automatic] = 5e-4
    """Peak learning rate, at the end of the warm-up; with `noam`, the factor of its formula."""
    optimizer: Literal["adam", "adafactor"] = "adam"
    """Adam, or Adafactor, which keeps hardly any state."""
    weight_decay: Annotated[float, Field(ge=0.0, le=10.0), Automatic] = 0.0
    """Share of each weight matrix that an update takes away, times the learning rate."""
    schedule: Annotated[
        Literal["inverse_sqrt", "noam", "constant", "cosine", "linear"], Automatic
    ] = "inverse_sqrt"
    """Learning rate by update."""
    warmup_updates: Annotated[int, Field(ge=0, le=10**9), Automatic] = 4000
    """Updates with a linearly rising learning rate."""
    decay_updates: Annotated[Count | None, Automatic] = None
    """Update at which `cosine` and `linear` reach a learning rate of 0."""
    freeze: Parts = ()
    """Parts of the model that keep their initial weights; a stack includes its norms."""
    lora: Count | None = None
    """Train only small matrices beside those of encoder and decoder (LoRA), of this rank, such as
    16; embeddings too with new tokens or tags."""
    recompute: Literal["on", "off"] = "off"
    """Keep only the input of each layer for the backward pass, and compute the layer again."""
    label_smoothing: Annotated[float, Field(ge=0.0, lt=1.0), Automatic] = 0.1
    """Probability mass spread evenly over the vocabulary."""
    r_drop: Annotated[float, Field(ge=0.0, le=1000.0)] = 0.0
    """Weight alpha of R-Drop (5 in the paper's translation experiments); 0: off."""
    guided_alignment: Annotated[float, Field(ge=0.0, le=1000.0), Automatic] = 0.0
    """Weight of the loss that trains attention to align words, such as 0.2; 0: off."""
    guided_alignment_updates: Annotated[Count | None, Automatic] = None
    """Update at which that weight has fallen to 0; null: it stays."""
    ema_decay: Annotated[Annotated[float, Field(gt=0.0, lt=1.0)] | None, Automatic] = None
    """Decay of a moving average of the weights, such as 0.999, to validate and keep; null: off."""
    gradient_clip: Annotated[float, Field(ge=0.0)] = 1.0
    """Maximum norm of the whole gradient; 0: no clipping."""
    device: Literal["auto", "cuda", "mps", "cpu"] = "auto"
    """Device to compute on; `auto`: the best available."""
    precision: Literal["auto", "fp32", "bf16", "fp16", "pure_bf16"] = "auto"
    """Arithmetic; weights stay fp32 except for `pure_bf16`, which takes half of the memory and
    loses small steps. `auto`: bf16 on a GPU that supports it, on a CPU with AMX if `d_model` is 256
    or more, and with AVX-512 BF16 alone if 128 or more; else fp32."""
    compile: Literal["auto", "on", "off"] = "off"
    """Compile the model with torch.compile, which takes minutes. `auto`, of older runs: `off`."""
    validate_every: Annotated[Count, Automatic] = 1000
    """Updates between two validations; each validation writes a checkpoint."""
    validation_pairs: Annotated[Count | None, Automatic] = None
    """Pairs to score and translate at each validation, evenly spread over the split; null: all. The
    final model is scored on all, or with a `budget` on three times as many."""
    checkpoint_every: Count | None = None
    """Updates between two further checkpoints; null: only at validations."""
    log_every: Count = 50
    """Updates between two lines with loss and speed in the metrics file."""
    tensorboard: Literal["on", "off"] = "off"
    """Also write the metrics to RUN/tensorboard; needs the extra `tensorboard`."""
    export: Literal["auto", "off", "ctranslate2", "int8"] = "auto"
    """Also write RUN/ctranslate2, which translates faster on a CPU, at the end of `mt train`.
    `auto`: if the device is a CPU; `int8`: and RUN/ctranslate2-int8 too, if it costs little."""
    best_metric: Annotated[Metric, Automatic] = "bleu"
    """Validation metric that ranks checkpoints. chrF2 and then the loss rank equal ones, and those
    whose BLEU has too few matching 4-grams."""
    keep_best: Count = 5
    """Number of best checkpoints to keep."""
    keep_last: Count = 2
    """Number of newest checkpoints to keep."""
    average: Annotated[Literal["best", "last", "off"], Automatic] = "best"
    """Final model: mean of the best or the last checkpoints kept, or the single best one."""

    @property
    def budget_seconds(self) -> float | None:
        """The budget in seconds."""
        return float(self.budget[:-1]) * _SECONDS[self.budget[-1]] if self.budget else None

    @property
    def final_pairs(self) -> int | None:
        """Pairs to score, export and calibrate the final model with; None for all."""
        pairs = self.validation_pairs if self.budget else None
        return pairs and FINAL_TIMES * pairs

    def _broken_rules(self) -> Iterator[str]:
        if not (self.max_updates or self.max_epochs or self.patience):
            yield (
                "training has no end: set `training.max_updates`, `training.max_epochs` "
                "or `training.patience`"
            )
        if self.init_from is None:
            if self.lora:
                yield "`training.lora` adapts a finished run: name it in `training.init_from`"
            if self.init_tags:
                yield "`training.init_tags` names tags of a finished run: set `training.init_from`"
        for key in ("init_embeddings", "init_sublayers"):
            value = getattr(self, key)
            if value != "random" and self.init_from is not None:
                yield (
                    f"`training.{key}: {value}` is for new weights, but `training.init_from` "
                    "names a run: choose one"
                )
        if self.lora and self.freeze:
            yield "`training.lora` freezes all other weights: leave out `training.freeze`"
        if self.precision == "pure_bf16":
            for key in ("ema_decay", "weight_decay"):
                if getattr(self, key):
                    yield (
                        f"`training.{key}` does not work with `training.precision: pure_bf16`, "
                        "which rounds its small steps away: choose one"
                    )
        if self.recompute == "on" and self.compile == "on":
            yield ("`training.recompute: on` does not work with `training.compile: on`: choose one")
        if set(self.freeze) == set(get_args(Part)):
            yield "`training.freeze` names every part: no weight is left to train"
        if self.schedule in {"cosine", "linear"}:
            yield from self._broken_decay()

    def _broken_decay(self) -> Iterator[str]:
        name, last = f"`training.schedule: {self.schedule}`", self.decay_updates
        if self.is_open("decay_updates"):
            return
        if last is None:
            usual = "" if self.max_updates is None else f", {self.max_updates}"
            yield (
                f"{name} needs `training.decay_updates`, the update at which it ends: "
                f"usually that of `training.max_updates`{usual}"
            )
            return
        if self.warmup_updates >= last and not self.is_open("warmup_updates"):
            yield (
                f"`training.warmup_updates` {self.warmup_updates} must be below "
                f"`training.decay_updates` {last}"
            )
        ends = self.is_open("max_updates") or 0 < (self.max_updates or 0) <= last
        if not ends:
            yield (
                f"{name} has a learning rate of 0 after `training.decay_updates` {last}: set "
                "`training.max_updates` to at most that; a new run with `training.init_from` "
                "continues the training of a finished one"
            )
