"""Plots of position encodings: the values against formulas, and the pictures."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch

from mt.errors import UserError
from mt.model.positional import POSITIONAL, Positional, RelativeLayer
from mt.plotting.positions import (
    Encoding,
    describe_encodings,
    plot_learned_positions,
    plot_positions,
)
from tests.factories import model_config

POSITIONS = 24


def describe(positional: str, **keys: object) -> tuple[Positional, Positional, list[Encoding]]:
    """Return the position encoding of both stacks, and what is shown of them."""
    config = model_config(heads=4, encoder_layers=2, positional=positional, **keys)
    kind = POSITIONAL[positional]
    encoder, decoder = kind(config, "encoder"), kind(config, "decoder")
    return encoder, decoder, describe_encodings(config, encoder, decoder, positions=POSITIONS)


def test_sinusoids_and_the_dot_product_that_depends_on_the_offset_alone() -> None:
    _, _, (encoding,) = describe("sinusoidal")
    assert encoding.owner == "encoder and decoder"
    values = encoding.table.values
    assert values.shape == (POSITIONS, 16)
    assert values[7, 4] == pytest.approx(math.sin(7 / 10000 ** (4 / 16)), abs=1e-6)
    assert values[7, 5] == pytest.approx(math.cos(7 / 10000 ** (4 / 16)), abs=1e-6)
    assert encoding.curves.offsets.tolist() == list(range(-12, 13))
    frequencies = 10000.0 ** -(np.arange(0, 16, 2) / 16)
    expected = [np.cos(offset * frequencies).sum() for offset in range(-12, 13)]
    np.testing.assert_allclose(encoding.curves.lines[""], expected, atol=1e-5)


def test_rotary_shows_the_angles_and_the_mean_score_of_equal_vectors() -> None:
    _, _, (encoding,) = describe("rotary", d_head=6, d_value=4)
    frequencies = 10000.0 ** -(np.arange(0, 6, 2) / 6)
    angles = np.arange(POSITIONS)[:, None] * frequencies
    np.testing.assert_allclose(encoding.table.values[:, 0::2], np.cos(angles), atol=1e-5)
    np.testing.assert_allclose(encoding.table.values[:, 1::2], np.sin(angles), atol=1e-5)
    expected = [np.cos(offset * frequencies).mean() for offset in range(-12, 13)]
    np.testing.assert_allclose(encoding.curves.lines[""], expected, atol=1e-5)


def test_alibi_falls_with_the_distance_and_the_decoder_sees_nothing_later() -> None:
    _, _, (encoder, decoder) = describe("alibi")
    assert [encoder.owner, decoder.owner] == ["encoder", "decoder"]
    slopes = [1 / 4, 1 / 16, 1 / 64, 1 / 256]
    expected = [[-slope * abs(offset) for offset in range(-12, 13)] for slope in slopes]
    np.testing.assert_allclose(encoder.table.values, expected)
    np.testing.assert_allclose(decoder.table.values[:, :13], np.array(expected)[:, :13])
    assert np.isnan(decoder.table.values[:, 13:]).all()
    assert list(encoder.curves.lines) == ["head 1", "head 2", "head 3", "head 4"]
    np.testing.assert_array_equal(encoder.curves.lines["head 2"], encoder.table.values[1])


def test_the_relative_bias_is_that_of_any_two_positions_so_far_apart() -> None:
    *stacks, rows = describe("relative_bias")
    for positional, encoding in zip(stacks, rows, strict=True):
        bias = positional.bias(30, 30)
        assert bias is not None
        for offset, query in ((-12, 29), (-3, 11), (0, 5)):
            column = encoding.table.values[:, offset + 12]
            np.testing.assert_array_equal(column, bias[0, :, query, query + offset].detach())


def test_learned_positions_end_where_the_table_ends() -> None:
    *stacks, rows = describe("learned", max_positions=10)
    assert [row.owner for row in rows] == ["encoder", "decoder"]
    for row, positional in zip(rows, stacks, strict=True):
        table = dict(positional.named_parameters())["table"].detach().numpy()
        np.testing.assert_array_equal(row.table.values, table)
        mean = np.mean([table[p] @ table[p + 3] for p in range(7)])
        np.testing.assert_allclose(row.curves.lines[""][5 + 3], mean, rtol=1e-5)


def test_relative_vectors_of_every_layer() -> None:
    encoder, decoder, rows = describe("relative", relative_clip=3)
    owners = ["encoder, layer 1", "encoder, layer 2", "decoder, layer 1"]
    assert [row.owner for row in rows] == owners
    second, last = encoder.layer(1), decoder.layer(0)
    assert isinstance(second, RelativeLayer)
    assert isinstance(last, RelativeLayer)
    np.testing.assert_array_equal(rows[1].table.values, second.keys.detach())
    assert rows[1].curves.offsets.tolist() == [-3, -2, -1, 0, 1, 2, 3]
    assert rows[2].curves.offsets.tolist() == [-3, -2, -1, 0]
    expected = torch.dot(second.keys[5], second.keys[3]).item()
    assert rows[1].curves.lines[""][5] == pytest.approx(expected)
    assert rows[2].table.first_row == -3


def test_a_picture_depends_on_the_config_only(tmp_path: Path) -> None:
    contents = []
    for seed in (5, 6):
        torch.manual_seed(seed)
        before = torch.get_rng_state()
        model = model_config(positional="relative_bias")
        path = tmp_path / f"{seed}.svg"
        plot_positions(model, path, seed=1, title="a")
        assert torch.equal(torch.get_rng_state(), before)
        contents.append(path.read_bytes())
    assert contents[0] == contents[1]
    assert len(contents[0]) > 10_000


def test_a_model_without_positions_is_an_error(tmp_path: Path) -> None:
    model = model_config(positional="none")
    with pytest.raises(UserError, match=r"a\.yaml - positional: none .*: nothing to draw"):
        plot_positions(model, tmp_path / "a.png", seed=1, title="a.yaml")


def test_a_run_is_drawn_with_its_learned_positions(finished_run: Path, tmp_path: Path) -> None:
    path = tmp_path / "a.png"
    plot_learned_positions(finished_run, path)
    assert path.read_bytes().startswith(b"\x89PNG")
