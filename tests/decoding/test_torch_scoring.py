import math

import pytest
import torch
from torch.nn import functional as F

from mt.config import DecodingConfig, ModelConfig
from mt.decoding import torch_engine as torch_scoring
from mt.decoding.torch_engine import TorchEngine, score_pairs
from mt.errors import DivergedError
from mt.model.transformer import Transformer
from mt.special_ids import BOS, EOS, UNK

VOCABULARY = 40
CPU = torch.device("cpu")


def tiny(**settings: object) -> Transformer:
    config = ModelConfig.model_validate(
        {
            "d_model": 16,
            "d_ff": 32,
            "heads": 2,
            "encoder_layers": 2,
            "decoder_layers": 2,
            **settings,
        }
    )
    model = Transformer(config, source_vocabulary=VOCABULARY, target_vocabulary=VOCABULARY)
    with torch.no_grad():  # far from uniform
        model.target_embedding.weight.mul_(3)
    return model.eval()


def sentences(count: int, seed: int) -> list[list[int]]:
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(0, 14, (count,), generator=generator).tolist()
    return [
        [*torch.randint(4, VOCABULARY, (length,), generator=generator).tolist(), EOS]
        for length in lengths
    ]


def by_hand(model: Transformer, source: list[int], target: list[int]) -> list[float]:
    """Return the same numbers from one unpadded pair and PyTorch's own cross-entropy."""
    with torch.no_grad():
        logits = model(torch.tensor([source]), torch.tensor([[BOS, *target[:-1]]]))
    return (-F.cross_entropy(logits, torch.tensor(target), reduction="none")).tolist()


def test_each_token_has_the_cross_entropy_of_its_pair_alone() -> None:
    model, sources, targets = tiny(), sentences(30, seed=1), sentences(30, seed=2)
    targets[4] = [7, UNK, 9, EOS]  # a token that no search would say
    found = score_pairs(model, sources, targets, device=CPU)
    for source, target, log_probs in zip(sources, targets, found, strict=True):
        assert log_probs == pytest.approx(by_hand(model, source, target), abs=1e-5)


@pytest.mark.parametrize("positional", ["sinusoidal", "rotary", "relative_bias"])
def test_batches_change_nothing(positional: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model, sources, targets = tiny(positional=positional), sentences(40, 3), sentences(40, 4)
    expected = score_pairs(model, sources, targets, device=CPU)
    for positions, logits in ((1, 1), (60, 5 * VOCABULARY), (333, 2**24)):
        monkeypatch.setattr(torch_scoring, "_POSITIONS_AT_ONCE", positions)
        monkeypatch.setattr(torch_scoring, "_LOGITS_AT_ONCE", logits)
        found = score_pairs(model, sources[::-1], targets[::-1], device=CPU)[::-1]
        for one, other in zip(found, expected, strict=True):
            assert one == pytest.approx(other, abs=1e-5)


def test_no_batch_is_larger_than_it_may_be(monkeypatch: pytest.MonkeyPatch) -> None:
    model, sources, targets = tiny(), sentences(50, seed=5), sentences(50, seed=6)
    monkeypatch.setattr(torch_scoring, "_POSITIONS_AT_ONCE", 60)
    sizes, states = [], model.states

    def watched(source: torch.Tensor, target: torch.Tensor, real: torch.Tensor) -> torch.Tensor:
        sizes.append(max(source.numel(), target.numel()))
        return states(source, target, real)

    monkeypatch.setattr(model, "states", watched)
    score_pairs(model, sources, targets, device=CPU)
    assert max(sizes) <= 60
    assert len(sizes) < 20, "short sentences share a batch"


@pytest.mark.parametrize("search", ["greedy", "beam"])
def test_what_a_search_has_found_has_the_score_that_it_told(search: str) -> None:
    model, sources = tiny(), sentences(20, seed=7)
    settings = {"search": search, "beam": 3, "max_length_extra": 8}
    hypotheses = TorchEngine(model, CPU).translate_ids(
        sources, DecodingConfig.model_validate(settings)
    )
    made = [[*each.ids, *([EOS] if each.finished else [])] for each in hypotheses]
    found = score_pairs(model, sources, made, device=CPU)
    told = [hypothesis.log_prob for hypothesis in hypotheses]
    assert [math.fsum(each) for each in found] == pytest.approx(told, abs=1e-4)


def test_a_model_without_numbers_is_refused() -> None:
    model = tiny()
    with torch.no_grad():
        model.target_embedding.weight[5, 0] = float("nan")
    with pytest.raises(DivergedError, match="not finite"):
        score_pairs(model, [[4, EOS]], [[6, EOS]], device=CPU)


def test_several_models_give_the_mean_of_their_probabilities() -> None:
    models = [tiny(), tiny()]
    sources, targets = sentences(5, seed=8), sentences(5, seed=9)
    engine = TorchEngine(models[0], CPU, models[1:])
    for source, target, found in zip(sources, targets, engine.score(sources, targets), strict=True):
        each = zip(*(by_hand(model, source, target) for model in models), strict=True)
        wanted = [math.log(sum(map(math.exp, pair)) / 2) for pair in each]
        assert found == pytest.approx(wanted, abs=1e-5)
