"""Position encodings: sinusoids of three kinds, learned and relative ones, ALiBi and rotary."""

import math
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn

from mt.config import ModelConfig
from mt.config.model import Side
from mt.errors import UserError
from mt.model.attention import Attention, Mask

ROTARY_BASE = 10000.0
BUCKETS, MAX_DISTANCE = 32, 128
"""Number of buckets of `relative_bias`, and the distance up to which they grow, as in T5."""


class Positional(nn.Module):
    """Base of all position encodings, without any effect; each kind overrides some hooks.

    Each stack owns one and calls `embed` and `bias` once, the other hooks in every layer. An offset
    is key position - query position.
    """

    longest: int | None = None
    """Number of positions; None if unlimited."""

    def __init__(self, config: ModelConfig, side: Side) -> None:
        super().__init__()
        self.side = side
        del config

    def embed(self, x: Tensor, first: int) -> Tensor:
        """Add positions to embeddings x [B T D], whose first column is at position `first`."""
        return x

    def bias(self, queries: int, keys: int) -> Tensor | None:
        """Return a bias [1 H T S] for the scores, or None.

        The queries are at the last of the keys' positions. In the decoder, the bias of a later key
        is -inf.
        """
        return None

    def layer(self, index: int) -> "Positional":
        """Return the encoding of layer `index`: one object for all layers by default."""
        return self

    def rotate(self, heads: Tensor, first: int) -> Tensor:
        """Rotate queries or keys [B H T d_k], whose first column is at position `first`."""
        return heads

    def choose_attention(self, attention: Attention) -> Callable[..., Tensor]:
        """Return the function that attends with queries, keys and values: `attention` itself."""
        return attention


class Sinusoidal(Positional):
    """Sines and cosines of geometrically growing wavelengths (Vaswani et al. 2017, section 3.5).

    PE(position, 2i) = sin(position / 10000^(2i / d_model)); its cosine at 2i + 1.
    """

    def __init__(self, config: ModelConfig, side: Side) -> None:
        super().__init__(config, side)
        self.table = SinusoidTable(config.d_model, 10000.0)

    def embed(self, x: Tensor, first: int) -> Tensor:
        """Add the table's rows to x [B T D]."""
        return x + self.table.slice(first, first + x.shape[1])


class Marian(Sinusoidal):
    """Sinusoids of Marian's models (Junczys-Dowmunt et al. 2018).

    All sines precede all cosines. Wavelengths grow from 2 pi to 10000 * 2 pi, this one included.
    """

    first = 0  # first position

    def __init__(self, config: ModelConfig, side: Side) -> None:
        super().__init__(config, side)
        pairs = config.d_model // 2
        self.table = SinusoidTable(config.d_model, 10000.0 ** (pairs / max(1, pairs - 1)))

    def embed(self, x: Tensor, first: int) -> Tensor:
        """Add the table's rows to x [B T D]."""
        first += self.first
        rows = self.table.slice(first, first + x.shape[1])
        return x + torch.cat((rows[:, 0::2], rows[:, 1::2]), dim=1)


class Fairseq(Marian):
    """Sinusoids of fairseq's models, M2M-100 among them (Ott et al. 2019): Marian's from 2 on."""

    first = 2  # the id of its padding plus 1


class Learned(Positional):
    """A learned vector for each position (Gehring et al. 2017; Vaswani et al. 2017, table 3 E)."""

    def __init__(self, config: ModelConfig, side: Side) -> None:
        super().__init__(config, side)
        self.longest = config.max_positions
        self.table = nn.Parameter(torch.empty(config.max_positions, config.d_model))
        nn.init.normal_(self.table, std=config.d_model**-0.5)

    def embed(self, x: Tensor, first: int) -> Tensor:
        """Add the table's rows to x [B T D]; raise UserError if the table is too short."""
        last = first + x.shape[1]
        if last > len(self.table):
            raise UserError(
                f"a sentence of {last} tokens is longer than the {len(self.table)} positions of "
                "`model.positional: learned`; shorten it, or train with a higher "
                "`model.max_positions`"
            )
        return x + self.table[first:last]


class Relative(Positional):
    """Learned vectors of clipped offsets, added to keys and values (Shaw et al. 2018).

    Each layer has two tables, shared by its heads (their section 3.3).
    """

    def __init__(self, config: ModelConfig, side: Side) -> None:
        super().__init__(config, side)
        layers = config.encoder_layers if side == "encoder" else config.decoder_layers
        self.layers = nn.ModuleList(RelativeLayer(config, side) for _ in range(layers))

    def layer(self, index: int) -> Positional:
        """Return the tables of layer `index`."""
        return self.layers[index]  # type: ignore[return-value]


class RelativeLayer(Positional):
    """Vectors a^k and a^v of one layer, for offsets -clip to clip (decoder: -clip to 0)."""

    def __init__(self, config: ModelConfig, side: Side) -> None:
        super().__init__(config, side)
        self.clip = config.relative_clip
        self.last = self.clip if side == "encoder" else 0
        offsets = self.clip + self.last + 1
        self.keys = nn.Parameter(torch.empty(offsets, config.key_width))
        self.values = nn.Parameter(torch.empty(offsets, config.value_width))
        nn.init.xavier_uniform_(self.keys)
        nn.init.xavier_uniform_(self.values)

    def choose_attention(self, attention: Attention) -> Callable[..., Tensor]:
        """Return `attend` with the projections of `attention`."""
        return partial(self.attend, attention)

    def attend(self, attention: Attention, q: Tensor, k: Tensor, v: Tensor, mask: Mask) -> Tensor:
        """Attend with a^k added to keys and a^v to values (equations 3 and 4).

        Products with a^k and a^v are computed once for each offset, not for each key.
        """
        k, v = attention.for_queries(k), attention.for_queries(v)
        offsets = _offsets(1 if mask.rows > 1 else q.shape[2], k.shape[2] // mask.rows, q.device)
        offsets = offsets.repeat_interleave(mask.rows, dim=1).expand(q.shape[2], -1)
        indices = offsets.clamp(-self.clip, self.last) + self.clip
        indices = indices.expand(*q.shape[:2], *indices.shape)
        weights = attention.weights(q, k, mask, (q @ self.keys.T).gather(-1, indices))
        by_offset = weights.new_zeros(*weights.shape[:3], len(self.values))
        by_offset = by_offset.scatter_add(-1, indices, weights)
        return attention.join(weights @ v + by_offset @ self.values)


class RelativeBias(Positional):
    """A learned bias for each head and bucket of offsets (Raffel et al. 2020, section 2.1).

    All layers of a stack share the table. In the encoder, half of the buckets are for later keys.
    """

    def __init__(self, config: ModelConfig, side: Side) -> None:
        super().__init__(config, side)
        self.table = nn.Parameter(torch.empty(BUCKETS, config.heads))
        nn.init.normal_(self.table, std=config.d_model**-0.5)

    def bias(self, queries: int, keys: int) -> Tensor:
        """Return the biases of the offsets' buckets [1 H T S]."""
        offsets = _offsets(queries, keys, self.table.device)
        biases = self.table[self.buckets(offsets)].permute(2, 0, 1)[None]
        return _hide_later(biases, offsets, self.side)

    def buckets(self, offsets: Tensor) -> Tensor:
        """Return the bucket of each offset: exact when near, logarithmically wider beyond."""
        count, first, distance = len(self.table), torch.zeros_like(offsets), -offsets
        if self.side == "encoder":
            count //= 2
            first, distance = count * (offsets > 0), offsets.abs()
        distance = distance.clamp(min=0)
        exact = count // 2
        growth = (distance.clamp(min=1) / exact).log() / math.log(MAX_DISTANCE / exact)
        far = (exact + growth * (count - exact)).long().clamp(max=count - 1)
        return first + torch.where(distance < exact, distance, far)


class Alibi(Positional):
    """A penalty proportional to distance, with a slope for each head (Press et al. 2022)."""

    slopes: Tensor

    def __init__(self, config: ModelConfig, side: Side) -> None:
        super().__init__(config, side)
        self.register_buffer("slopes", alibi_slopes(config.heads), persistent=False)

    def bias(self, queries: int, keys: int) -> Tensor:
        """Return -slope * distance, [1 H T S]."""
        offsets = _offsets(queries, keys, self.slopes.device)
        penalties = -self.slopes[:, None, None] * offsets.abs()
        return _hide_later(penalties[None], offsets, self.side)


class Rotary(Positional):
    """Pairs (2i, 2i + 1) of queries and keys, rotated by position * 10000^(-2i / d_k).

    Su et al. 2021, equations 15 and 34. Scores depend on the offset alone.
    """

    def __init__(self, config: ModelConfig, side: Side) -> None:
        super().__init__(config, side)
        self.table = SinusoidTable(config.key_width, ROTARY_BASE)

    def rotate(self, heads: Tensor, first: int) -> Tensor:
        """Rotate queries or keys [B H T d_k], whose first column is at position `first`."""
        rows = self.table.slice(first, first + heads.shape[2])
        sin, cos = rows[:, 0::2], rows[:, 1::2]
        even, odd = heads[..., 0::2], heads[..., 1::2]
        pairs = torch.stack((even * cos - odd * sin, odd * cos + even * sin), dim=-1)
        return pairs.flatten(-2).to(heads.dtype)


POSITIONAL: dict[str, type[Positional]] = {
    "sinusoidal": Sinusoidal,
    "learned": Learned,
    "relative": Relative,
    "relative_bias": RelativeBias,
    "alibi": Alibi,
    "rotary": Rotary,
    "none": Positional,
    "marian": Marian,
    "fairseq": Fairseq,
}


class SinusoidTable(nn.Module):
    """Rows of `sinusoids`, computed as far as the longest sequence so far needs."""

    table: Tensor

    def __init__(self, width: int, base: float) -> None:
        super().__init__()
        self.width, self.base = width, base
        self.register_buffer("table", sinusoids(256, width, base), persistent=False)

    def slice(self, first: int, last: int) -> Tensor:
        """Return rows `first` to `last` - 1, [T width]."""
        table = self.table  # two threads may grow the table at once, and the shorter one may stay
        if last > len(table):
            table = self.extend_to(2 * last)
        return table[first:last]

    def extend_to(self, positions: int) -> Tensor:
        """Compute a table [positions width], store it and return it."""
        # Validation decodes in inference mode, and training uses the same table.
        with torch.inference_mode(mode=False):
            table = sinusoids(positions, self.width, self.base).to(self.table)
        self.table = table
        return table


def sinusoids(positions: int, width: int, base: float = 10000.0) -> Tensor:
    """Return the table [positions width] of position / base^(2i / width).

    Column 2i holds its sine, column 2i + 1 its cosine.
    """
    # In double precision, which not every device has: the angles of late positions are large.
    pairs = torch.arange(0, width, 2, dtype=torch.float64, device="cpu")
    angles = torch.arange(positions, device="cpu")[:, None] * base ** (-pairs / width)
    return torch.stack((angles.sin(), angles.cos()), dim=-1).flatten(1).float()


def alibi_slopes(heads: int) -> Tensor:
    """Return the slopes of the heads [H] (Press et al. 2022, section 3).

    For H a power of two, head n, from 0, has 2^(-8 (n + 1) / H). For other H, they are those of the
    next lower power of two; every second slope of twice that power fills the rest.
    """
    power = 2 ** (heads.bit_length() - 1)
    slopes = [2 ** (-8 * (i + 1) / power) for i in range(power)]
    slopes += [2 ** (-8 * (i + 1) / (2 * power)) for i in range(0, 2 * (heads - power), 2)]
    return torch.tensor(slopes)


def _offsets(queries: int, keys: int, device: torch.device) -> Tensor:
    """Return key position - query position [T S]; the queries are at the last positions."""
    positions = torch.arange(keys, device=device)
    return positions[None, :] - positions[keys - queries :, None]


def _hide_later(bias: Tensor, offsets: Tensor, side: Side) -> Tensor:
    """Set the bias of later keys to -inf in the decoder."""
    return bias if side == "encoder" else bias.masked_fill(offsets > 0, float("-inf"))
