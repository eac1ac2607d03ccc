import copy
import math

import pytest
import torch
from torch import Tensor

from mt.config import DecodingConfig, ModelConfig
from mt.decoding.engine import length_limit
from mt.decoding.torch_engine import TorchEngine
from mt.errors import UserError
from mt.model.transformer import Memory, Transformer
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


@pytest.mark.parametrize("search", ["greedy", "beam", "sample"])
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


def other_model(model: Transformer) -> Transformer:
    other = copy.deepcopy(model)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return other


def test_models_that_decide_together_give_the_mean_of_their_probabilities(
    model: Transformer,
) -> None:
    others = [other_model(model), other_model(model)]
    engine = TorchEngine(model, torch.device("cpu"), others)
    decoding = DecodingConfig(beam=3, max_length_extra=6, length_normalization="none")
    alone = TorchEngine(model, torch.device("cpu")).translate_ids(sources(8), decoding)
    found = engine.translate_ids(sources(8), decoding)
    assert [h.ids for h in found] != [h.ids for h in alone]
    for source, hypothesis in zip(sources(8), found, strict=True):
        ids = [*hypothesis.ids, EOS] if hypothesis.finished else list(hypothesis.ids)
        target_in = torch.tensor([[BOS, *ids[:-1]]])
        probabilities = [
            each.eval()(torch.tensor([source]), target_in).double().softmax(dim=1)
            for each in engine.models
        ]
        mean = torch.stack(probabilities).mean(dim=0).detach()
        wanted = float(mean[torch.arange(len(ids)), torch.tensor(ids)].log().sum())
        assert hypothesis.log_prob == pytest.approx(wanted, abs=1e-4)


def test_the_same_model_twice_is_the_model(model: Transformer, engine: TorchEngine) -> None:
    decoding = DecodingConfig(beam=3, max_length_extra=6)
    twice = TorchEngine(model, torch.device("cpu"), [model])
    found, wanted = (each.translate_ids(sources(8), decoding) for each in (twice, engine))
    assert [h.ids for h in found] == [h.ids for h in wanted]
    assert [h.score for h in found] == pytest.approx([h.score for h in wanted], abs=1e-4)


def test_n_best_lists_are_ranked_and_different(engine: TorchEngine) -> None:
    decoding = DecodingConfig(beam=4, max_length_extra=8)
    for count in (1, 3, 4, 9):
        lists = engine.n_best_ids(sources(9), decoding, count)
        for hypotheses in lists:
            scores = [hypothesis.score for hypothesis in hypotheses]
            assert scores == sorted(scores, reverse=True)
            assert 1 <= len({hypothesis.ids for hypothesis in hypotheses}) == len(hypotheses)
            assert len(hypotheses) <= min(count, 4)
    assert [best for best, *_ in lists] == engine.translate_ids(sources(9), decoding)


def test_samples_follow_from_the_seed(engine: TorchEngine) -> None:
    decoding = DecodingConfig(search="sample", max_length_extra=8)
    lists = engine.n_best_ids(sources(9), decoding, 3)
    assert lists == engine.n_best_ids(sources(9), decoding, 3)
    assert all(len({found.ids for found in some}) > 1 for some in lists)
    other = decoding.model_copy(update={"seed": 2})
    assert lists != engine.n_best_ids(sources(9), other, 3)
    sure = decoding.model_copy(update={"top_k": 1})
    greedy = decoding.model_copy(update={"search": "greedy"})
    found = engine.translate_ids(sources(9), sure)
    assert [h.ids for h in found] == [h.ids for h in engine.translate_ids(sources(9), greedy)]


@pytest.mark.parametrize("search", ["greedy", "beam", "sample"])
def test_the_config_sets_the_rules(engine: TorchEngine, search: str) -> None:
    settings = {"search": search, "max_length_extra": 12}
    free = engine.translate_ids(sources(12), DecodingConfig.model_validate(settings))
    assert any(len(set(found.ids)) < len(found.ids) for found in free)
    once = DecodingConfig.model_validate({**settings, "no_repeat_ngram": 1})
    for found in engine.translate_ids(sources(12), once):
        assert len(set(found.ids)) == len(found.ids)
    dear = DecodingConfig.model_validate({**settings, "repetition_penalty": 50.0})
    repeated = [
        sum(len(found.ids) - len(set(found.ids)) for found in engine.translate_ids(sources(12), d))
        for d in (DecodingConfig.model_validate(settings), dear)
    ]
    assert repeated[1] < repeated[0]
    long = DecodingConfig.model_validate({**settings, "min_length_ratio": 1.2})
    for source, found in zip(sources(12), engine.translate_ids(sources(12), long), strict=True):
        assert len(found.ids) + found.finished >= math.ceil(1.2 * len(source))


@pytest.mark.parametrize("search", ["greedy", "beam", "sample"])
def test_threads_change_nothing(engine: TorchEngine, search: str) -> None:
    decoding = DecodingConfig.model_validate(
        {"search": search, "max_length_extra": 6, "batch_size": 4}
    )
    wanted = engine.n_best_ids(sources(30), decoding, 1)
    torch.set_num_threads(3)
    try:
        assert engine.n_best_ids(sources(30), decoding, 1) == wanted
        assert torch.get_num_threads() == 3
        with torch.no_grad():
            engine.model.target_embedding.weight.fill_(math.nan)
        with pytest.raises(UserError, match="not finite"):
            engine.n_best_ids(sources(30), decoding, 1)
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(1)


@pytest.fixture
def batch_sizes(engine: TorchEngine, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many sentences the engine's model has encoded at once, each time."""
    seen: list[int] = []
    encode = engine.model.encode

    def watched(source: Tensor) -> Memory:
        seen.append(len(source))
        return encode(source)

    monkeypatch.setattr(engine.model, "encode", watched)
    return seen


@pytest.mark.parametrize(
    ("settings", "lengths", "batches"),
    [
        ({"search": "greedy"}, [3] * 600, [256, 256, 88]),
        ({"search": "greedy"}, [100] * 200 + [10] * 80, [163, 117]),
        ({"search": "greedy"}, [900] * 100, [64, 36]),
        ({"search": "greedy", "batch_size": 40}, [3] * 100, [40, 40, 20]),
        ({"search": "beam", "beam": 1}, [3] * 100, [64, 36]),
    ],
)
def test_greedy_search_takes_as_many_as_the_memory_of_a_batch_holds(
    settings: dict[str, object],
    lengths: list[int],
    batches: list[int],
    engine: TorchEngine,
    batch_sizes: list[int],
) -> None:
    decoding = DecodingConfig.model_validate(
        {**settings, "max_length_ratio": 0, "max_length_extra": 1}
    )
    engine.n_best_ids([[4] * (length - 1) + [EOS] for length in lengths], decoding, 1)
    assert batch_sizes == batches


def test_each_thread_gets_its_share_of_few_sentences(
    engine: TorchEngine, batch_sizes: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    decoding = DecodingConfig(search="greedy", max_length_ratio=0, max_length_extra=1)
    engine.n_best_ids([[4, EOS]] * 300, decoding, 1)
    assert batch_sizes == [150, 150]
