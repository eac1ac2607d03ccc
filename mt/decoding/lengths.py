"""How long a translation may and must be, and what its score is divided by; without torch.

All lengths count the end mark.
"""

import math
from collections.abc import Callable
from typing import Literal

from mt.config import DecodingConfig

Normalization = Literal["gnmt", "average", "none"]

LENGTH_NORMALIZATIONS: dict[Normalization, Callable[[int, float], float]] = {
    # Wu et al. 2016, equation 14.
    "gnmt": lambda length, alpha: float(((5 + length) / 6) ** alpha),
    "average": lambda length, _: float(length),
    "none": lambda _, __: 1.0,
}
"""What a log-probability is divided by to be a score, by length and alpha.

None of them falls as a hypothesis grows: the early stop of beam search rests on that.
"""


def length_limit(source_pieces: int, decoding: DecodingConfig) -> int:
    """Return the most pieces a translation may have."""
    return math.ceil(decoding.max_length_ratio * source_pieces + decoding.max_length_extra)


def fewest_pieces(source_pieces: int, decoding: DecodingConfig) -> int:
    """Return the fewest pieces a translation may have; one is the end mark alone."""
    return max(1, math.ceil(decoding.min_length_ratio * source_pieces))
