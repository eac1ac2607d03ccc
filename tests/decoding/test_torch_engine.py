import pytest
import torch

from mt.config import DecodingConfig, ModelConfig
from mt.decoding.torch_engine import TorchEngine, length_limit
from mt.errors import UserError
from mt.model.transformer import Transformer
from mt.special_ids import BOS, EOS

VOCABULARY = 40


@pytest.fixture
def model() -> Transformer:
    config = ModelConfig(d_model=16, d_ff=32, heads=2, encoder_layers=2, decoder_layers=2)
    model = Transformer(config, source_vocabulary=VOCABULARY, target_vocabulary=VOCABULARY)
    with torch.no_grad():  # far from ties, and able to end
        model.target_embedding.weight.mul_(3)
    return model


@pytest.fixture
def engine(model: Transformer) -> TorchEngine:
    return TorchEngine(model, torch.device("cpu"))


def sources(count: int) -> list[list[int]]:
    generator = torch.Generator().manual_seed(7)
    return [
        [*torch.randint(4, VOCABULARY, (1 + 5 * number % 13,), generator=generator).tolist(), EOS]
        for number in range(count)
    ]


@pytest.mark.parametrize("search", ["greedy", "beam"])
def test_batched_is_one_at_a_time_in_the_order_of_the_input(
    engine: TorchEngine, search: str
) -> None:
    settings = {"search": search, "beam": 3, "max_length_extra": 6}
    lines = sources(20)
    alone = [
        engine.translate_ids([line], DecodingConfig.model_validate(settings))[0] for line in lines
    ]
    assert len({hypothesis.ids for hypothesis in alone}) > 10, "the test can tell sentences apart"
    for batch_size in (1, 7, 64):
        decoding = DecodingConfig.model_validate({**settings, "batch_size": batch_size})
        found = engine.translate_ids(lines, decoding)
        assert [h.ids for h in found] == [h.ids for h in alone]
        assert [h.score for h in found] == pytest.approx([h.score for h in alone], abs=1e-4)
        assert found == engine.translate_ids(lines, decoding)


def test_greedy_is_beam_1(engine: TorchEngine) -> None:
    decoding = DecodingConfig(search="beam", beam=1, length_penalty=0.0)
    greedy = decoding.model_copy(update={"search": "greedy"})
    assert engine.translate_ids(sources(9), greedy) == engine.translate_ids(sources(9), decoding)


@pytest.mark.parametrize("search", ["greedy", "beam"])
def test_scores_are_those_of_forced_decoding(
    engine: TorchEngine, model: Transformer, search: str
) -> None:
    model.eval()
    decoding = DecodingConfig.model_validate({"search": search, "max_length_extra": 5})
    for source, hypothesis in zip(
        sources(8), engine.translate_ids(sources(8), decoding), strict=True
    ):
        ids = [*hypothesis.ids, *([EOS] if hypothesis.finished else [])]
        with torch.no_grad():
            logits = model(torch.tensor([source]), torch.tensor([[BOS, *ids[:-1]]]))
        rescored = logits.log_softmax(-1)[range(len(ids)), ids].sum()
        assert hypothesis.log_prob == pytest.approx(float(rescored), abs=1e-4)
        assert len(ids) <= length_limit(len(source), decoding)


def test_a_model_in_training_stays_in_training(engine: TorchEngine, model: Transformer) -> None:
    model.train()
    long = [[5] * 300 + [EOS]]
    first = engine.translate_ids(long, DecodingConfig(max_length_ratio=0.0))
    assert model.training
    assert first == engine.translate_ids(long, DecodingConfig(max_length_ratio=0.0)), "dropout"
    logits = model(torch.tensor(long), torch.tensor([[BOS, *long[0][:-1]]]))
    logits.sum().backward()
    assert model.target_embedding.weight.grad is not None


def test_no_sources_are_no_hypotheses(engine: TorchEngine) -> None:
    assert engine.translate_ids([], DecodingConfig()) == []


def test_a_broken_model_is_a_clear_error(engine: TorchEngine, model: Transformer) -> None:
    with torch.no_grad():
        model.target_embedding.weight[9, 3] = float("nan")
    with pytest.raises(UserError, match="not finite"):
        engine.translate_ids(sources(3), DecodingConfig())


def test_length_limit_rounds_up() -> None:
    assert length_limit(7, DecodingConfig(max_length_ratio=1.5, max_length_extra=2)) == 13
    assert length_limit(7, DecodingConfig(max_length_ratio=0.0, max_length_extra=1)) == 1
