import math

import pytest

from mt.config import DecodingConfig
from mt.decoding.engine import LENGTH_NORMALIZATIONS
from mt.export.marian import alpha_of, exponent_of


@pytest.mark.parametrize("alpha", [0.0, 0.6, 1.0, 2.5])
def test_gnmts_penalty_and_its_exponent_rise_alike_at_a_common_length(alpha: float) -> None:
    exponent = exponent_of(DecodingConfig(length_normalization="gnmt", length_penalty=alpha))
    gnmt = LENGTH_NORMALIZATIONS["gnmt"]
    for shorter, longer in ((17, 23), (15, 26)):
        ours = math.log(gnmt(longer, alpha) / gnmt(shorter, alpha))
        theirs = exponent * math.log(longer / shorter)
        assert theirs == pytest.approx(ours, rel=0.01, abs=1e-9)
    assert alpha_of(exponent) == pytest.approx(alpha)


def test_the_other_normalizations_are_exact() -> None:
    average = DecodingConfig(length_normalization="average", length_penalty=0.3)
    nothing = DecodingConfig(length_normalization="none", length_penalty=0.3)
    assert exponent_of(average) == 1.0
    assert exponent_of(nothing) == 0.0
