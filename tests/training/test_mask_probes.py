"""Does a probe see a broken mask at once, whatever the model is made of, and only that?"""

import numpy as np
import pytest
import torch

from mt.config import ModelConfig
from mt.data.batches import Batch, collate
from mt.data.store import Example
from mt.model import transformer
from mt.model.attention import EVERYWHERE
from mt.model.positional import POSITIONAL
from mt.model.sublayers import RESIDUALS
from mt.model.transformer import Transformer
from mt.special_ids import EOS
from mt.training import diagnosis as mask_probes
from mt.training.diagnosis import MaskProbe, probe_masks

HIDE_BY_THEMSELVES = {"alibi", "relative_bias"}
"""Their bias hides later keys, whatever the mask says."""
VARIANTS = [{"positional": each} for each in POSITIONAL] + [
    {"residual": each} for each in RESIDUALS
]


def _examples(count: int) -> list[Example]:
    draw = np.random.default_rng(1)

    def side() -> np.ndarray:
        return np.append(draw.integers(5, 60, draw.integers(3, 12)), EOS).astype(np.int32)

    return [Example(number, side(), side()) for number in range(count)]


def _probe(examples: list[Example], **changes: object) -> MaskProbe:
    config = ModelConfig.model_validate(
        {"d_model": 32, "d_ff": 64, "heads": 2, "encoder_layers": 2, "decoder_layers": 2, **changes}
    )
    model = Transformer(config, source_vocabulary=60, target_vocabulary=60).eval()
    return probe_masks(model, examples)


@pytest.mark.parametrize("changes", VARIANTS, ids=str)
def test_a_whole_model_looks_nowhere_else(changes: dict[str, str]) -> None:
    found = _probe(_examples(20), **changes)
    assert found.later_tokens < 1e-4
    assert found.padding < 1e-4
    assert found.source > 0.05


@pytest.mark.parametrize(
    "changes",
    [each for each in VARIANTS if each.get("positional") not in HIDE_BY_THEMSELVES],
    ids=str,
)
def test_a_decoder_that_looks_ahead_is_seen(
    changes: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transformer, "CAUSAL", EVERYWHERE)
    found = _probe(_examples(20), **changes)
    assert found.later_tokens > 0.02
    assert found.padding < 1e-4


@pytest.mark.parametrize("changes", VARIANTS, ids=str)
def test_padding_that_is_looked_at_is_seen(
    changes: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transformer, "_padding_mask", lambda _ids: None)
    found = _probe(_examples(20), **changes)
    assert found.padding > 0.02
    assert found.later_tokens < 1e-4


def test_a_decoder_without_memory_is_seen_and_one_pair_proves_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert _probe(_examples(1)).source == float("inf")
    encode = Transformer.encode

    def blind(self: Transformer, source: torch.Tensor) -> transformer.Memory:
        memory = encode(self, source)
        return transformer.Memory(torch.zeros_like(memory.states), None)

    monkeypatch.setattr(Transformer, "encode", blind)
    same_length = [Example(each.index, each.source[-4:], each.target) for each in _examples(20)]
    assert _probe(same_length).source == 0


def test_of_long_pairs_only_as_many_are_asked_about_as_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    draw = np.random.default_rng(2)
    side = draw.integers(5, 60, 600).astype(np.int32)
    asked = []

    def noting(examples: list[Example]) -> Batch:
        asked.append(len(examples))
        return collate(examples)

    monkeypatch.setattr(mask_probes, "collate", noting)
    found = _probe([Example(number, side[number:], side) for number in range(20)])
    assert asked == [3]
    assert found.padding < 1e-4
    assert found.source > 0


def test_a_model_with_a_last_position_is_given_no_more_padding_than_it_has_room_for() -> None:
    examples = _examples(20)
    longest = max(max(len(each.source), len(each.target)) for each in examples)
    found = _probe(examples, positional="learned", max_positions=longest)
    assert found.padding < 1e-4
