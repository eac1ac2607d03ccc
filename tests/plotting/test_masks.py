"""The example's masks are those of the paper."""

from pathlib import Path

import numpy as np
import torch

from mt.plotting.attention import example_masks, plot_masks


def test_padding_is_hidden_and_nothing_sees_what_comes_later() -> None:
    encoder, decoder, cross = example_masks()
    words = ("the", "dog", "sleeps", "</s>", "<pad>", "<pad>", "<pad>")
    assert encoder.keys.tokens == encoder.queries.tokens == cross.keys.tokens == words
    assert (
        decoder.queries.tokens[:4] == cross.queries.tokens[:4] == ("der", "Hund", "schläft", "</s>")
    )
    assert decoder.keys.tokens[:5] == ("<s>", "der", "Hund", "schläft", "<pad>")
    real = np.array([word != "<pad>" for word in words])
    np.testing.assert_array_equal(encoder.allowed, np.tile(real, (7, 1)))
    np.testing.assert_array_equal(cross.allowed, np.tile(real, (7, 1)))
    np.testing.assert_array_equal(decoder.allowed, np.tri(7, dtype=bool))


def test_the_picture_leaves_the_random_numbers_alone(tmp_path: Path) -> None:
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    assert plot_masks(tmp_path / "a.svg") == tmp_path / "a.svg"
    assert torch.equal(torch.rand(3), expected)
    assert (tmp_path / "a.svg").stat().st_size > 10_000
