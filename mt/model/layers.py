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
        keys = positional.rotate(keys, 0)
        queries = positional.rotate(self.attention.queries(x), 0)
        return positional.attend(self.attention, queries, keys, values, mask)

    def step(self, x: Tensor, cache: LayerCache, mask: Mask, positional: Positional) -> Tensor:
        """Let the newest piece of each row, x [B K D], attend to what `mask` says it continues.

        Where x is [B 1 D], one row stands for all of a sentence's.
        """
        each = x.reshape(-1, 1, x.shape[-1])  # all stand at one position
        keys, values = self.attention.keys_values(each)
        keys = positional.rotate(keys, cache.pieces)
        queries = positional.rotate(self.attention.queries(each), cache.pieces)
        queries, keys, values = (
            _side_by_side(heads, x.shape[1]) for heads in (queries, keys, values)
        )
        cache.append(keys, values)
        return positional.attend(self.attention, queries, cache.keys, cache.values, mask)


def _side_by_side(heads: Tensor, rows: int) -> Tensor:
    """Turn what each row has at one position, [B*K G 1 K'], into [B G K K']."""
    return heads.view(-1, rows, heads.shape[1], heads.shape[3]).transpose(1, 2)


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
        return LayerCache(keys, values, rows_per_sentence)

    def step(
        self, x: Tensor, cache: LayerCache, mask: Mask, memory_mask: Mask, positional: Positional
    ) -> Tensor:
        """Map the newest pieces x [B K D], K rows a sentence, to [B K D]."""

        def attend_to_memory(y: Tensor) -> Tensor:
            if cache.watched:
                cache.attention = self._weights(y, cache.memory_keys, memory_mask).mean(dim=1)
            return self._cross(y, cache.memory_keys, cache.memory_values, memory_mask)

        x = self.self_residual(x, lambda y: self.self_attention.step(y, cache, mask, positional))
        x = self.cross_residual(x, attend_to_memory)
        return self.feed_forward_residual(x, self.feed_forward)  # type: ignore[no-any-return]

    def _cross(self, x: Tensor, keys: Tensor, values: Tensor, mask: Mask) -> Tensor:
        return self.cross_attention(self.cross_attention.queries(x), keys, values, mask)  # type: ignore[no-any-return]

    def _weights(self, x: Tensor, keys: Tensor, mask: Mask) -> Tensor:
        """Return the weights [B H T S] that `_cross` keeps to itself."""
        attention = self.cross_attention
        return attention.weights(attention.queries(x), attention.for_queries(keys), mask)  # type: ignore[no-any-return]
