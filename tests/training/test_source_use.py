"""Is the right source always held against another one?"""

import math

import numpy as np
import pytest

from mt.config import ModelConfig
from mt.data.store import Example
from mt.model.transformer import Transformer
from mt.training.diagnosis import measure_source_use


@pytest.mark.parametrize("length", [5, 1100])
def test_no_source_is_its_own_opposite_however_long_the_pairs(length: int) -> None:
    config = ModelConfig(d_model=16, d_ff=32, heads=2, encoder_layers=1, decoder_layers=1)
    model = Transformer(config, source_vocabulary=60, target_vocabulary=60).eval()
    draw = np.random.default_rng(1)
    # Each pair has one token of its own: were the targets alike, no exchange would be seen.
    pairs = [
        Example(n, draw.integers(5, 60, length, np.int32), np.full(length, 5 + n, np.int32))
        for n in range(6)
    ]
    found = measure_source_use(model, pairs)
    assert abs(found.gain) > 1e-6
    assert found.pairs == 6
    assert found.unigram_entropy == pytest.approx(math.log(6))
    assert found.learnt == found.unigram_entropy - found.loss
