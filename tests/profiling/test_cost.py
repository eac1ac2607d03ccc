"""The counted cost of a model against formulas."""

import pytest

from mt.config import ModelConfig
from mt.errors import UserError
from mt.profiling.cost import count_parts


def test_each_part_costs_what_its_formula_gives() -> None:
    keys = {"d_model": 100, "d_ff": 200, "heads": 4, "encoder_layers": 2, "decoder_layers": 1}
    config = ModelConfig.model_validate({**keys, "positional": "alibi"})
    parts = count_parts(config, lengths=(10, 25), vocabularies=(1000, 1000))
    projection, linear = 100 * 100, 100 * 200
    biases = {"attention": 4 * 100, "feed-forward": 100 + 200}
    assert {part.name: (part.parameters, part.flops) for part in parts} == {
        "embeddings": (100_000, 0),
        "encoder self-attention": (
            2 * (4 * projection + biases["attention"]),
            2 * 2 * (4 * 10 * projection + 2 * 10 * 10 * 100),
        ),
        "encoder feed-forward": (
            2 * (2 * linear + biases["feed-forward"]),
            2 * 2 * 2 * 10 * linear,
        ),
        "decoder self-attention": (
            4 * projection + biases["attention"],
            2 * (4 * 25 * projection + 2 * 25 * 25 * 100),
        ),
        "decoder cross-attention": (
            4 * projection + biases["attention"],
            2 * (2 * (25 + 10) * projection + 2 * 25 * 10 * 100),
        ),
        "decoder feed-forward": (2 * linear + biases["feed-forward"], 2 * 2 * 25 * linear),
        "norms and positions": (7 * 2 * 100, 0),
        "output layer": (0, 2 * 25 * 100 * 1000),
    }


@pytest.mark.parametrize(
    ("preset", "millions"), [("transformer-base", (63, 65)), ("transformer-big", (210, 215))]
)
def test_the_papers_models_have_its_parameters(preset: str, millions: tuple[int, int]) -> None:
    """Vaswani et al. 2017, table 3: 65 and 213 million, with a vocabulary of about 37,000."""
    config = ModelConfig.model_validate({"preset": preset})
    parts = count_parts(config, lengths=(2, 2), vocabularies=(37_000, 37_000))
    assert millions[0] * 1e6 <= sum(part.parameters for part in parts) <= millions[1] * 1e6


def test_a_pair_beyond_the_learned_positions_is_an_error() -> None:
    config = ModelConfig(positional="learned", max_positions=9)
    count_parts(config, lengths=(9, 9), vocabularies=(37, 37))
    with pytest.raises(UserError):
        count_parts(config, lengths=(9, 10), vocabularies=(37, 37))
