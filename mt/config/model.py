"""The Transformer's shape and its variants."""

from typing import Annotated, Literal

from pydantic import Field, model_validator

from mt.config.base import Section

Probability = Annotated[float, Field(ge=0.0, lt=1.0)]


class ModelConfig(Section):
    """A Transformer encoder-decoder; the defaults are the paper's base model."""

    d_model: Annotated[int, Field(ge=2, multiple_of=2)] = 512
    """Width of the states between the layers."""
    d_ff: Annotated[int, Field(ge=1)] = 2048
    """Inner width of the feed-forward layers."""
    heads: Annotated[int, Field(ge=1)] = 8
    """Attention heads; each is d_model / heads wide."""
    encoder_layers: Annotated[int, Field(ge=1)] = 6
    """Layers of the encoder."""
    decoder_layers: Annotated[int, Field(ge=1)] = 6
    """Layers of the decoder."""
    positional: Literal["sinusoidal"] = "sinusoidal"
    """How the model knows the order of the pieces."""
    norm: Literal["layernorm"] = "layernorm"
    """The normalisation."""
    norm_epsilon: Annotated[float, Field(gt=0.0, lt=0.1)] = 1e-5
    """Added to the variance before the square root."""
    residual: Literal["post"] = "post"
    """Where the normalisation stands: `post` is LayerNorm(x + Sublayer(x))."""
    feed_forward: Literal["relu"] = "relu"
    """The feed-forward layer."""
    dropout: Probability = 0.1
    """Dropout of each sublayer's output and of the embeddings."""
    attention_dropout: Probability = 0.0
    """Dropout of the attention weights."""
    feed_forward_dropout: Probability = 0.0
    """Dropout of the feed-forward layer's inner activation."""
    tie_embeddings: Literal["all", "decoder", "none"] = "all"
    """Which of source embedding, target embedding and output layer share one matrix."""

    @model_validator(mode="after")
    def _heads_divide_d_model(self) -> "ModelConfig":
        if self.d_model % self.heads:
            raise ValueError(
                f"`model.d_model` {self.d_model} is no multiple of `model.heads` {self.heads}"
            )
        return self
