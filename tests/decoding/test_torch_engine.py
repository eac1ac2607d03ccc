import math
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from mt.config import DecodingConfig
from mt.data.corpus_files import warn_once
from mt.decoding import torch_engine
from mt.decoding.engine import Hypothesis, TokenDetails, length_limit
from mt.decoding.torch_engine import TorchEngine
from mt.errors import DivergedError, UserError
from mt.model.hooks import record_attention
from mt.model.transformer import Memory, Transformer
from mt.special_ids import BOS, EOS, UNK
from tests.factories import CPU, transformer

VOCABULARY = 40
SEARCHES = pytest.mark.parametrize("search", ["greedy", "beam", "sample"])


def model(*, vocabulary: int = VOCABULARY, seed: int = 1, **keys: Any) -> Transformer:
    layers = {"encoder_layers": 2, "decoder_layers": 2}
    made = transformer(vocabulary=vocabulary, seed=seed, **layers, **keys)
    with torch.no_grad():  # far from ties, and able to end
        made.target_embedding.weight.mul_(3)
    return made.eval()


@pytest.fixture
def engine() -> TorchEngine:
    return TorchEngine(model(), CPU)


def config(**keys: Any) -> DecodingConfig:
    return DecodingConfig.model_validate({"max_length_extra": 6, **keys})


def sentences(count: int, *, seed: int = 7, shortest: int = 1) -> list[list[int]]:
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(shortest, 13, (count,), generator=generator).tolist()
    return [
        [*torch.randint(4, VOCABULARY, (length,), generator=generator).tolist(), EOS]
        for length in lengths
    ]


def complete(hypothesis: Hypothesis) -> list[int]:
    return [*hypothesis.ids, *[EOS] * hypothesis.finished]


def forced(models: Sequence[Transformer], source: Sequence[int], ids: Sequence[int]) -> list[float]:
    """The log-probability of each token of an unpadded pair, in the mean of the models."""
    target_in = torch.tensor([[BOS, *ids[:-1]]])
    with torch.no_grad():
        each = [model(torch.tensor([source]), target_in).double().softmax(-1) for model in models]
    mean = torch.stack(each).mean(dim=0)
    return [math.log(mean[place, token]) for place, token in enumerate(ids)]


@SEARCHES
def test_translation_depends_on_neither_batch_nor_prefixes_of_others(
    engine: TorchEngine, search: str
) -> None:
    sources = sentences(12)
    prefixes = [tuple(range(20, 20 + number % 4)) for number in range(12)]
    decoding = config(search=search, beam=3)
    alone = [
        engine.translate_ids([source], decoding, prefixes=[prefix])[0]
        for source, prefix in zip(sources, prefixes, strict=True)
    ]
    assert len({hypothesis.ids for hypothesis in alone}) > 8, "the model tells sentences apart"
    for batch_size in (5, 64):
        decoding = config(search=search, beam=3, batch_size=batch_size)
        found = engine.translate_ids(sources, decoding, prefixes=prefixes)
        assert [each.ids for each in found] == [each.ids for each in alone]
        assert [each.score for each in found] == pytest.approx([h.score for h in alone], abs=1e-4)
    for place in range(0, 12, 4):
        assert prefixes[place] == ()
        assert engine.translate_ids([sources[place]], decoding)[0].ids == alone[place].ids


@pytest.mark.parametrize("others", [0, 1])
@SEARCHES
def test_log_probs_are_those_of_forced_decoding_in_the_mean_of_the_models(
    search: str, others: int
) -> None:
    models = [model(seed=seed) for seed in range(1 + others)]
    engine, sources = TorchEngine(models[0], CPU, models[1:]), sentences(8)
    prefixes = [tuple(range(10, 10 + number % 3)) for number in range(8)]
    decoding = config(search=search, beam=3, length_normalization="none")
    found = engine.translate_ids(sources, decoding, prefixes=prefixes)
    scored = engine.score(sources, list(map(complete, found)))
    for source, prefix, hypothesis, log_probs in zip(sources, prefixes, found, scored, strict=True):
        assert hypothesis.ids[: len(prefix)] == prefix
        ids = complete(hypothesis)
        assert len(ids) <= length_limit(len(source), decoding)
        wanted = forced(models, source, ids)
        assert log_probs == pytest.approx(wanted, abs=1e-4)
        assert hypothesis.log_prob == pytest.approx(sum(wanted), abs=1e-4)
        assert hypothesis.score == pytest.approx(sum(wanted[len(prefix) :]), abs=1e-4)
    if others and search == "beam":
        alone = TorchEngine(models[0], CPU).translate_ids(sources, decoding, prefixes=prefixes)
        assert [each.ids for each in alone] != [each.ids for each in found]


def test_prefix_is_cut_at_the_length_limit(engine: TorchEngine) -> None:
    decoding = config(beam=3, max_length_ratio=0.0, max_length_extra=4)
    [[found]] = engine.n_best_ids([[5, EOS]], decoding, 3, prefixes=[[20, 21, 22, 23, 24]])
    assert (found.ids, found.finished) == ((20, 21, 22, 23), False)


def test_n_best_lists_are_ranked_and_distinct(engine: TorchEngine) -> None:
    for count in (1, 3, 9):
        lists = engine.n_best_ids(sentences(6), config(beam=4), count)
        for hypotheses in lists:
            scores = [hypothesis.score for hypothesis in hypotheses]
            assert scores == sorted(scores, reverse=True)
            assert 1 <= len({hypothesis.ids for hypothesis in hypotheses}) == len(hypotheses)
            assert len(hypotheses) <= min(count, 4)
    assert [best for best, *_ in lists] == engine.translate_ids(sentences(6), config(beam=4))


def test_samples_depend_on_the_seed_and_top_1_is_greedy(engine: TorchEngine) -> None:
    sources, decoding = sentences(9), config(search="sample")
    lists = engine.n_best_ids(sources, decoding, 3)
    assert lists == engine.n_best_ids(sources, decoding, 3)
    assert all(len({found.ids for found in some}) > 1 for some in lists)
    assert lists != engine.n_best_ids(sources, config(search="sample", seed=2), 3)
    top_1 = engine.translate_ids(sources, config(search="sample", top_k=1))
    greedy = engine.translate_ids(sources, config(search="greedy"))
    assert [each.ids for each in top_1] == [each.ids for each in greedy]


@SEARCHES
def test_config_sets_the_constraints(engine: TorchEngine, search: str) -> None:
    sources = sentences(12)

    def translated(**keys: Any) -> list[Hypothesis]:
        return engine.translate_ids(sources, config(search=search, max_length_extra=12, **keys))

    assert any(len(found.ids) > len({*found.ids}) for found in translated())
    assert all(len(found.ids) == len({*found.ids}) for found in translated(no_repeat_ngram=1))


def test_model_in_training_mode_stays_in_it(engine: TorchEngine) -> None:
    trained = transformer(vocabulary=VOCABULARY, dropout=0.1).train()
    engine = TorchEngine(trained, CPU)
    long = [[5] * 60 + [EOS]]
    first = engine.translate_ids(long, DecodingConfig(max_length_ratio=0.0))
    assert trained.training
    assert first == engine.translate_ids(long, DecodingConfig(max_length_ratio=0.0)), "no dropout"
    trained(torch.tensor(long), torch.tensor([[BOS, *long[0][:-1]]])).sum().backward()
    assert trained.target_embedding.weight.grad is not None


def test_output_that_is_not_finite_is_an_error(engine: TorchEngine) -> None:
    with torch.no_grad():
        engine.model.target_embedding.weight[9, 3] = float("nan")
    with pytest.raises(DivergedError):
        engine.translate_ids(sentences(3), DecodingConfig())
    with pytest.raises(DivergedError):
        engine.score([[4, EOS]], [[9, 6, EOS]])


@pytest.mark.parametrize("most", [2, 0])
def test_batches_that_do_not_fit_are_halved(
    most: int,
    engine: TorchEngine,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    warn_once.cache_clear()
    sources, decoding = sentences(9), config(batch_size=7)
    prefixes = [(5,)] * 9

    def results() -> tuple[list[list[Hypothesis]], list[TokenDetails], list[list[float]]]:
        found = engine.n_best_ids(sources, decoding, 2, prefixes=prefixes)
        best = [hypotheses[0] for hypotheses in found]
        return (
            found,
            engine.explain(sources, best),
            engine.score(sources, [complete(each) for each in best]),
        )

    wanted = results()
    encode = engine.model.encode
    sizes = []

    def limited(source: Tensor) -> Memory:
        sizes.append(len(source))
        if len(source) > most:
            raise torch.AcceleratorError("CUDA error: out of memory")
        return encode(source)

    # On the class: `explain` copies the model.
    monkeypatch.setattr(Transformer, "encode", lambda _, source, **__: limited(source))
    if not most:
        with pytest.raises(UserError):
            results()
        return
    (hypotheses, details, scores), expected = results(), wanted
    assert max(sizes) == 9
    assert [each.message.partition(";")[0] for each in caplog.records] == [
        "a batch does not fit the memory of the device and is halved"
    ]
    for some, others in zip(hypotheses, expected[0], strict=True):
        assert [each.ids for each in some] == [each.ids for each in others]
        log_probs = [each.log_prob for each in others]
        assert [each.log_prob for each in some] == pytest.approx(log_probs, abs=1e-4)
    for one, other in zip(details, expected[1], strict=True):
        assert one.alignment == other.alignment
        assert one.log_probs == pytest.approx(other.log_probs, abs=1e-4)
    for row, other_row in zip(scores, expected[2], strict=True):
        assert row == pytest.approx(other_row, abs=1e-4)


@SEARCHES
def test_threads_change_nothing(engine: TorchEngine, search: str) -> None:
    sources, decoding = sentences(16), config(search=search, batch_size=4, beam=2)
    wanted = engine.n_best_ids(sources, decoding, 1)
    torch.set_num_threads(3)
    try:
        assert engine.n_best_ids(sources, decoding, 1) == wanted
        assert torch.get_num_threads() == 3
        with torch.no_grad():
            engine.model.target_embedding.weight.fill_(math.nan)
        with pytest.raises(UserError):
            engine.n_best_ids(sources, decoding, 1)
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(1)


@pytest.mark.parametrize(
    ("keys", "lengths", "threads", "batches"),
    [
        ({"search": "greedy"}, [3] * 600, 1, [256, 256, 88]),
        ({"search": "greedy"}, [100] * 200 + [10] * 80, 1, [163, 117]),
        ({"search": "greedy"}, [900] * 70, 1, [64, 6]),
        ({"search": "greedy", "batch_size": 40}, [3] * 100, 1, [40, 40, 20]),
        ({"search": "beam", "beam": 1}, [3] * 100, 1, [64, 36]),
        ({"search": "greedy"}, [2] * 300, 2, [150, 150]),
    ],
)
def test_batches_fit_into_memory_and_share_the_threads(
    keys: dict[str, Any],
    lengths: list[int],
    threads: int,
    batches: list[int],
    engine: TorchEngine,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sizes: list[int] = []
    encode = engine.model.encode

    def watched(source: Tensor) -> Memory:
        sizes.append(len(source))
        return encode(source[:, :2])  # the size of the batch alone matters

    monkeypatch.setattr(engine.model, "encode", watched)
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    decoding = config(max_length_ratio=0, max_length_extra=1, **keys)
    engine.n_best_ids([[4] * (length - 1) + [EOS] for length in lengths], decoding, 1)
    assert sizes == batches


@pytest.mark.parametrize("positional", ["sinusoidal", "rotary", "relative_bias"])
def test_scores_are_the_cross_entropy_of_each_pair_alone(
    positional: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = model(positional=positional)
    sources, targets = sentences(30, seed=3, shortest=0), sentences(30, seed=4, shortest=0)
    targets[4] = [7, UNK, 9, EOS]  # a token that no search generates
    engine, wanted = (
        TorchEngine(made, CPU),
        [forced([made], source, target) for source, target in zip(sources, targets, strict=True)],
    )
    for positions, logits in ((4096, 2**24), (1, 1), (60, 5 * VOCABULARY)):
        monkeypatch.setattr(torch_engine, "SCORE_POSITIONS", positions)
        monkeypatch.setattr(torch_engine, "LOGITS_AT_ONCE", logits)
        for one, other in zip(engine.score(sources, targets), wanted, strict=True):
            assert one == pytest.approx(other, abs=1e-5)


SOURCES = [[5, 6, 7, EOS], [8, EOS], [9, 10, 11, 12, 13, EOS], [4, EOS]]
FOUND = [
    Hypothesis(ids, 0.0, 0.0, finished=True) for ids in ((14, 15), (16, 17, 18, 19, 20), (21,), ())
]


def uneven(layers: int, seed: int = 1) -> Transformer:
    made = transformer(vocabulary=30, seed=seed, decoder_layers=layers).eval()
    for parameter in made.parameters():
        torch.nn.init.normal_(parameter, std=0.5)  # attention that is not almost even
    return made


@pytest.mark.parametrize(("layers", "layer"), [(1, 0), (3, 2), (6, 4)])
def test_details_are_those_of_each_sentence_alone(layers: int, layer: int) -> None:
    made = uneven(layers, seed=4)
    details = TorchEngine(made, CPU).explain(SOURCES * 50, FOUND * 50)
    assert details[3] == TokenDetails((), ())
    for number, detail in enumerate(details):
        source, found = SOURCES[number % 4], FOUND[number % 4]
        if number > 3 or not found.ids:
            assert detail.log_probs == pytest.approx(details[number % 4].log_probs, abs=1e-5)
            assert detail.alignment == details[number % 4].alignment
            continue
        assert detail.log_probs == pytest.approx(forced([made], source, found.ids), abs=1e-5)
        target_in = torch.tensor([[BOS, *found.ids[:-1]]])
        cross = record_attention(made, torch.tensor([source]), target_in).cross[layer, 0].mean(0)
        assert detail.attention is not None
        assert detail.attention == pytest.approx(cross.numpy(), abs=1e-5)
        places = cross.argmax(dim=-1).tolist()
        pairs = [(place, token) for token, place in enumerate(places) if place < len(source) - 1]
        assert list(detail.alignment) == pairs
    assert sum(len(each.alignment) for each in details[:4]) > 2
    assert not any(module._forward_hooks for module in made.modules())


def test_details_of_an_ensemble_are_means_of_probabilities() -> None:
    models = [uneven(1), uneven(2, seed=2)]
    details = TorchEngine(models[0], CPU, models[1:]).explain(SOURCES, FOUND)
    for source, found, detail in zip(SOURCES[:3], FOUND, details, strict=False):
        assert detail.log_probs == pytest.approx(forced(models, source, found.ids), abs=1e-5)
