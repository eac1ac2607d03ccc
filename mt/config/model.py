"""The Transformer's shape and its variants."""

from collections.abc import Iterator
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from mt.config.base import Section

Side = Literal["encoder", "decoder"]
Preset = Literal[
    "transformer-base", "transformer-big", "transformer-tiny", "modern", "deep-encoder"
]
_BASE: dict[str, Any] = {
    "d_model": 512,
    "d_ff": 2048,
    "heads": 8,
    "encoder_layers": 6,
    "decoder_layers": 6,
    "dropout": 0.1,
}
PRESETS: dict[str, dict[str, Any]] = {
    # Vaswani et al. 2017, table 3, "base" and "big".
    "transformer-base": _BASE,
    "transformer-big": {**_BASE, "d_model": 1024, "d_ff": 4096, "heads": 16, "dropout": 0.3},
    # For some ten thousand pairs (Wu et al. 2021, arXiv 2105.14462, on Multi30k).
    "transformer-tiny": {
        **_BASE,
        "d_model": 128,
        "d_ff": 256,
        "heads": 4,
        "encoder_layers": 4,
        "decoder_layers": 4,
        "dropout": 0.3,
    },
    # What language models since 2023 are made of. Three matrices of 1,368 have the parameters of
    # the two of 2,048 (Shazeer 2020 scales by 2/3 likewise), rounded to a multiple of 8.
    "modern": {
        **_BASE,
        "d_ff": 1368,
        "positional": "rotary",
        "norm": "rmsnorm",
        "residual": "pre",
        "feed_forward": "swiglu",
        "bias": False,
    },
    # Twelve layers that run once and one that runs for each token (Kasai et al. 2021): quick to
    # decode. DeepNorm keeps so deep a Post-Norm encoder trainable.
    "deep-encoder": {
        **_BASE,
        "encoder_layers": 12,
        "decoder_layers": 1,
        "residual": "deepnorm",
    },
}
Probability = Annotated[float, Field(ge=0.0, lt=1.0)]
Width = Annotated[int, Field(ge=1)]
Rates = Annotated[tuple[Probability, ...], Field(strict=False)]


class ModelConfig(Section):
    """A Transformer encoder-decoder; the defaults are the paper's base model."""

    preset: Preset | None = None
    """A named shape to begin with; keys beside it win, but by `--set` it replaces the section.

    It is resolved on reading.
    """
    d_model: Width = 512
    """Width of the states between the layers."""
    d_ff: Width = 2048
    """Inner width of the feed-forward layers, as it is used."""
    heads: Width = 8
    """Attention heads, those of the queries."""
    kv_heads: Width | None = None
    """Heads of keys and values, each shared by a group of query heads; null: as many as `heads`."""
    d_head: Width | None = None
    """Width of a head's queries and keys; null: d_model / heads."""
    d_value: Width | None = None
    """Width of a head's values; null: d_model / heads."""
    encoder_layers: Width = 6
    """Layers of the encoder."""
    decoder_layers: Width = 6
    """Layers of the decoder."""
    positional: Literal[
        "sinusoidal", "learned", "relative", "relative_bias", "alibi", "rotary", "none"
    ] = "sinusoidal"
    """How the model knows the order of the tokens."""
    max_positions: Width = 512
    """Positions that `learned` has a row for; no sentence can be longer."""
    rotary_base: Annotated[float, Field(gt=1.0)] = 10000.0
    """Base b of `rotary`: pair i of a head of width d turns once in 2 pi b^(2i / d) positions."""
    relative_clip: Width = 16
    """Offsets beyond it look alike to `relative`."""
    relative_buckets: Annotated[int, Field(ge=4, multiple_of=2)] = 32
    """Buckets into which `relative_bias` sorts offsets."""
    relative_max_distance: Width = 128
    """Offsets from here on share the last bucket of `relative_bias`."""
    attention_temperature: Annotated[float, Field(gt=0.0)] = 1.0
    """Attention scores are divided by it; towards 0 each query looks at its best key alone."""
    bias: bool = True
    """Whether linear layers and LayerNorm add a learned bias."""
    norm: Literal["layernorm", "rmsnorm"] = "layernorm"
    """The normalisation."""
    norm_epsilon: Annotated[float, Field(gt=0.0, lt=0.1)] = 1e-5
    """Added to the variance (or the mean square) before the square root."""
    residual: Literal["post", "pre", "sandwich", "deepnorm"] = "post"
    """Where the normalisation stands: `post` is Norm(x + Sublayer(x))."""
    feed_forward: Literal["relu", "gelu", "swish", "glu", "swiglu", "geglu"] = "relu"
    """The feed-forward layer; those in `glu` have a gate, and half as many matrices again."""
    dropout: Probability = 0.1
    """Dropout of each sublayer's output and of the embeddings."""
    encoder_dropout: Rates | None = None
    """Dropout of the sublayers in each encoder layer, first layer first; null: `dropout` in all."""
    decoder_dropout: Rates | None = None
    """Dropout of the sublayers in each decoder layer, first layer first; null: `dropout` in all."""
    attention_dropout: Probability = 0.0
    """Dropout of the attention weights."""
    feed_forward_dropout: Probability = 0.0
    """Dropout of the feed-forward layer's inner activation."""
    tie_embeddings: Literal["all", "decoder", "none"] = "all"
    """Which of source embedding, target embedding and output layer share one matrix."""

    @property
    def key_heads(self) -> int:
        """Heads of keys and values."""
        return self.kv_heads or self.heads

    @property
    def key_width(self) -> int:
        """Width of a head's queries and keys."""
        return self.d_head or self.d_model // self.heads

    @property
    def value_width(self) -> int:
        """Width of a head's values."""
        return self.d_value or self.d_model // self.heads

    @property
    def has_dropout(self) -> bool:
        """Tell whether any kind of dropout is on."""
        rates = [self.dropout, self.attention_dropout, self.feed_forward_dropout]
        return any([*rates, *(self.encoder_dropout or ()), *(self.decoder_dropout or ())])

    @model_validator(mode="before")
    @classmethod
    def _from_preset(cls, value: Any) -> Any:
        """Put a preset's values under those that are given."""
        name = value.get("preset") if isinstance(value, dict) else None
        if not isinstance(name, str) or name not in PRESETS:
            return value  # none, or a wrong name, which the field's own check tells
        return {**PRESETS[name], **value, "preset": None}

    @model_validator(mode="after")
    def _parts_fit(self) -> "ModelConfig":
        if broken := [*self._broken_rules()]:
            raise ValueError("\n".join(broken))
        return self

    def _broken_rules(self) -> Iterator[str]:
        widths_given = self.d_head is not None and self.d_value is not None
        if self.d_model % self.heads and not widths_given:
            yield (
                f"`model.d_model` {self.d_model} is no multiple of `model.heads` {self.heads}; "
                "change one, or set both `model.d_head` and `model.d_value`"
            )
        for side, layers, rates in (
            ("encoder", self.encoder_layers, self.encoder_dropout),
            ("decoder", self.decoder_layers, self.decoder_dropout),
        ):
            if rates is not None and len(rates) != layers:
                yield (
                    f"`model.{side}_dropout` has {len(rates)} rates, "
                    f"`model.{side}_layers` is {layers}: one rate for each layer"
                )
        if self.heads % self.key_heads:
            yield (
                f"`model.kv_heads` {self.kv_heads} does not divide `model.heads` {self.heads}: "
                "every key head serves as many query heads"
            )
        if self.positional == "sinusoidal" and self.d_model % 2:
            yield (
                f"`model.positional: sinusoidal` needs an even `model.d_model`, not {self.d_model}"
            )
        if self.positional == "rotary" and self.key_width % 2:
            key = "`model.d_head`" if self.d_head else "`model.d_model` / `model.heads`"
            yield f"`model.positional: rotary` needs an even {key}, not {self.key_width}"
        too_near = self.relative_max_distance <= self.relative_buckets // 2
        if self.positional == "relative_bias" and too_near:
            yield (
                f"`model.relative_max_distance` {self.relative_max_distance} must be above half of "
                f"`model.relative_buckets` {self.relative_buckets}"
            )
