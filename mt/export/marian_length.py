"""Two length penalties that rise alike: transformers has length ** exponent, not GNMT's."""

from mt.config import DecodingConfig

# A sentence of so many pieces, end mark included, is a common one. There both rise at one rate.
_COMMON_LENGTH = 20
# d log(((5 + length) / 6) ** alpha) / d log(length), for alpha 1.
_RATE = _COMMON_LENGTH / (5 + _COMMON_LENGTH)


def exponent_of(decoding: DecodingConfig) -> float:
    """Return the exponent of transformers that ranks hypotheses most as `decoding` does.

    GNMT's penalty (Wu et al. 2016, equation 14) rises more slowly, above all at short lengths. Only
    ratios of penalties decide, so the exponent is GNMT's rate of growth at a common length. The
    other two normalizations are exact.
    """
    exponents = {"gnmt": _RATE * decoding.length_penalty, "average": 1.0, "none": 0.0}
    return round(exponents[decoding.length_normalization], 6)


def alpha_of(exponent: float) -> float:
    """Return GNMT's alpha for an exponent of transformers: the inverse of `exponent_of`."""
    return round(exponent / _RATE, 6)
