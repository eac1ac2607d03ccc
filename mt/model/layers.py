"""The encoder's and the decoder's layer: sublayers in their residual wrapping."""

from torch import Tensor, nn

from mt.config import ModelConfig
from mt.model.attention import Attention, Mask
from mt.model.cache import LayerCache
from mt.model.feed_forward import FEED_FORWARD
from mt.model.initialization import Gains
from mt.model.positional import Positional
from mt.model.residual import RESIDUALS


class SelfAttention(nn.Module):
    """Attention of a sequence to itself, with its positions."""

    def __init__(self, config: ModelConfig, gains: Gains) -> None:
        super().__init__()
        self.attention = Attention(config, gains)

    def forward(self, x: Tensor, mask: Mask, positional: Positional) -> Tensor:
        """Let x [B T D] attend to itself where `mask` allows it."""
        keys, values = self.attention.keys_values(x)
        return self._attend(x, positional.rotate(keys, 0), values, mask, positional)

    def step(self, x: Tensor, cache: LayerCache, mask: Mask, positional: Positional) -> Tensor:
        """Let the newest piece x [R 1 D] attend to all pieces so far, itself included."""
        keys, values = self.attention.keys_values(x)
        cache.append(positional.rotate(keys, cache.pieces), values)
        return self._attend(x, cache.keys, cache.values, mask, positional)

    def _attend(
        self, x: Tensor, keys: Tensor, values: Tensor, mask: Mask, positional: Positional
    ) -> Tensor:
        first = keys.shape[2] - x.shape[1]
        queries = positional.rotate(self.attention.queries(x), first)
        return positional.attend(self.attention, queries, keys, values, mask)


class EncoderLayer(nn.Module):
    """Self-attention and feed-forward (Vaswani et al. 2017, section 3.1)."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        residual = RESIDUALS[config.residual]
        gains = residual.gains(config, "encoder")
        self.self_attention = SelfAttention(config, gains)
        self.self_residual = residual(config, "encoder")
        self.feed_forward = FEED_FORWARD[config.feed_forward](config, gains.feed_forward)
        self.feed_forward_residual = residual(config, "encoder")

    def forward(self, x: Tensor, mask: Mask, positional: Positional) -> Tensor:
        """Map x [B S D] to [B S D]."""
        x = self.self_residual(x, lambda y: self.self_attention(y, mask, positional))
        return self.feed_forward_residual(x, self.feed_forward)  # type: ignore[no-any-return]


class DecoderLayer(nn.Module):
    """Masked self-attention, attention to the memory, feed-forward (section 3.1)."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        residual = RESIDUALS[config.residual]
        gains = residual.gains(config, "decoder")
        self.self_attention = SelfAttention(config, gains)
        self.self_residual = residual(config, "decoder")
        self.cross_attention = Attention(config, gains)
        self.cross_residual = residual(config, "decoder")
        self.feed_forward = FEED_FORWARD[config.feed_forward](config, gains.feed_forward)
        self.feed_forward_residual = residual(config, "decoder")

    def forward(
        self, x: Tensor, mask: Mask, memory: Tensor, memory_mask: Mask, positional: Positional
    ) -> Tensor:
        """Map x [B T D] to [B T D], with the memory [B S D]."""
        keys, values = self.cross_attention.keys_values(memory)
        x = self.self_residual(x, lambda y: self.self_attention(y, mask, positional))
        x = self.cross_residual(x, lambda y: self._cross(y, keys, values, memory_mask))
        return self.feed_forward_residual(x, self.feed_forward)  # type: ignore[no-any-return]

    def start(self, memory: Tensor, rows_per_sentence: int) -> LayerCache:
        """Return the cache before the first step over a memory [B S D]."""
        keys, values = self.cross_attention.keys_values(memory)
        return LayerCache(keys, values, len(memory) * rows_per_sentence)

    def step(
        self, x: Tensor, cache: LayerCache, mask: Mask, memory_mask: Mask, positional: Positional
    ) -> Tensor:
        """Map the newest pieces x [B K D], K rows a sentence, to [B K D]."""

        def attend_self(y: Tensor) -> Tensor:
            rows = y.reshape(-1, 1, y.shape[-1])
            return self.self_attention.step(rows, cache, mask, positional).view_as(y)

        x = self.self_residual(x, attend_self)
        x = self.cross_residual(
            x, lambda y: self._cross(y, cache.memory_keys, cache.memory_values, memory_mask)
        )
        return self.feed_forward_residual(x, self.feed_forward)  # type: ignore[no-any-return]

    def _cross(self, x: Tensor, keys: Tensor, values: Tensor, mask: Mask) -> Tensor:
        return self.cross_attention(self.cross_attention.queries(x), keys, values, mask)  # type: ignore[no-any-return]
