"""The pictures of positions, of a config and of a run."""

import typing
from pathlib import Path

import pytest
import torch

from mt.config import ModelConfig
from mt.config.loading import load_config
from mt.errors import UserError
from mt.plotting.positions import plot_learned_positions, plot_positions

POSITIONAL = {*typing.get_args(ModelConfig.model_fields["positional"].annotation)}


@pytest.mark.parametrize("positional", sorted(POSITIONAL - {"none"}))
def test_a_picture_of_every_kind(positional: str, tiny_recipe: Path, tmp_path: Path) -> None:
    config = load_config(tiny_recipe, overrides=[f"model.positional={positional}"])
    contents = []
    for seed in (5, 6):
        torch.manual_seed(seed)
        before = torch.get_rng_state()
        place = plot_positions(config, tmp_path / f"{seed}.svg", name="a.yaml", positions=4)
        assert torch.equal(torch.get_rng_state(), before)
        contents.append(place.read_bytes())
    assert contents[0] == contents[1]
    assert len(contents[0]) > 10_000


def test_there_is_no_picture_of_nothing(tiny_recipe: Path, tmp_path: Path) -> None:
    config = load_config(tiny_recipe, overrides=["model.positional=none"])
    with pytest.raises(UserError, match=r"a\.yaml: `model\.positional: none` has nothing to draw"):
        plot_positions(config, tmp_path / "a.png", name="a.yaml", positions=9)


def test_a_picture_of_a_run(finished_run: Path, tmp_path: Path) -> None:
    place = plot_learned_positions(finished_run, tmp_path / "a.png", positions=9)
    assert place.read_bytes().startswith(b"\x89PNG")
