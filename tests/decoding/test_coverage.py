"""The coverage penalty of beam search, against all translations and against a recorded pass."""

import itertools
import math
import random
from pathlib import Path

import pytest
import torch
from torch import Tensor

from mt.config import DecodingConfig, ModelConfig
from mt.decoding.search import BeamSettings, beam, coverage_cost
from mt.decoding.torch_engine import TorchEngine
from mt.decoding.translator import load_translator
from mt.errors import UserError
from mt.export.export import export_ctranslate2
from mt.model.attention_hooks import record_attention
from mt.model.transformer import Transformer
from mt.special_ids import BOS, EOS

SOURCE_TOKENS = 3
VOCABULARY, LIMIT = 6, 4


class Attentive:
    """One sentence; what is written so far decides about logits and attention."""

    def __init__(self, seed: int, beam: int) -> None:
        self.seed, self.beam = seed, beam
        self.written: list[tuple[int, ...]] = [()]
        self.asked: list[tuple[int, ...]] = []

    def step(self, last_ids: Tensor) -> Tensor:
        read = [(*ids, last) for ids, last in zip(self.written, last_ids.tolist(), strict=True)]
        self.asked, self.written = read, read * (self.beam // len(read))
        return torch.stack([self.logits(ids) for ids in read])

    def attention(self) -> Tensor:
        return torch.stack([self.looks(ids) for ids in self.asked])

    def reorder(self, parents: Tensor) -> None:
        self.written = [self.written[row] for row in parents[0].tolist()]

    def keep(self, sentences: Tensor) -> None:
        raise AssertionError("one sentence has nothing to drop")

    def logits(self, ids: tuple[int, ...]) -> Tensor:
        return 2.0 * self.drawn("logits", ids, VOCABULARY)

    def looks(self, ids: tuple[int, ...]) -> Tensor:
        return (3.0 * self.drawn("attention", ids, SOURCE_TOKENS)).softmax(0)

    def drawn(self, what: str, ids: tuple[int, ...], count: int) -> Tensor:
        numbers = random.Random(f"{self.seed} {what} {ids}")
        return torch.tensor([numbers.gauss(0, 1) for _ in range(count)])


def scored(model: Attentive, ids: tuple[int, ...], beta: float) -> float:
    """GNMT's score of a translation that ends with EOS, token by token."""
    log_prob, looked = 0.0, [0.0] * SOURCE_TOKENS
    for length, token in enumerate(ids):
        before = (BOS, *ids[:length])
        log_prob += float(model.logits(before).double().log_softmax(0)[token])
        looked = [sum(pair) for pair in zip(looked, model.looks(before).tolist(), strict=True)]
    penalty = beta * sum(math.log(min(each, 1.0)) for each in looked)
    return log_prob / math.pow((5 + len(ids)) / 6, 0.6) + penalty


@pytest.mark.parametrize("beta", [0.2, 1.0, 5.0])
def test_a_wide_beam_finds_the_best_of_all_translations(beta: float) -> None:
    every = [
        (*ids, EOS)
        for length in range(LIMIT)
        for ids in itertools.product(range(EOS + 1, VOCABULARY), repeat=length)
    ]
    width = len(every) + 2**LIMIT
    others = 0
    for seed in range(15):
        model = Attentive(seed, width)
        wanted = max(every, key=lambda ids: scored(model, ids, beta))
        others += wanted != max(every, key=lambda ids: scored(model, ids, 0.0))
        settings = BeamSettings(width, 0.6, coverage=beta)
        best = beam(model, torch.tensor([LIMIT]), settings)[0][0]
        assert (*best.ids, EOS) == wanted
        assert best.score == pytest.approx(scored(model, wanted, beta), abs=1e-5)
    assert others > 2, "the penalty decides"


def test_a_token_that_is_looked_at_more_than_enough_gains_nothing() -> None:
    assert coverage_cost(torch.tensor([1.0, 2.5])) == 0.0
    assert coverage_cost(torch.tensor([0.5, 2.5])) == pytest.approx(math.log(2))
    assert coverage_cost(torch.tensor([0.0, 1.0])) < math.inf


@pytest.mark.parametrize("layers", [1, 3])
def test_the_scores_of_a_transformer_are_those_of_its_attention(layers: int) -> None:
    """Sentences of several lengths together; what counts is the last layer but one."""
    torch.manual_seed(3)
    sizes = {"d_model": 16, "d_ff": 32, "heads": 2, "encoder_layers": 1, "decoder_layers": layers}
    config = ModelConfig.model_validate(sizes)
    model = Transformer(config, source_vocabulary=20, target_vocabulary=20).eval()
    sources = [[5, 6, 7, EOS], [8, EOS], [9, 10, EOS]]
    decoding = DecodingConfig(beam=3, coverage_penalty=0.7, max_length_ratio=2, max_length_extra=1)
    engine = TorchEngine(model, torch.device("cpu"))
    for source, found in zip(sources, engine.n_best_ids(sources, decoding, 3), strict=True):
        for each in found:
            read = torch.tensor([[BOS, *each.ids][: len(each.ids) + each.finished]])
            maps = record_attention(model, torch.tensor([source]), read)
            looked = maps.cross[max(0, layers - 2), 0].mean(0).sum(0)
            cost = -looked.clamp(max=1).log().sum()
            length = len(each.ids) + each.finished
            wanted = each.log_prob / ((5 + length) / 6) ** 0.6 - 0.7 * float(cost)
            assert each.score == pytest.approx(wanted, abs=1e-4)


def test_an_exported_model_refuses_it(finished_run: Path, tmp_path: Path) -> None:
    assert export_ctranslate2(finished_run, tmp_path / "exported", device="cpu").failure is None
    with pytest.raises(UserError, match=r"^`decoding\.coverage_penalty`: an exported model"):
        load_translator(tmp_path / "exported", overrides=["decoding.coverage_penalty=0.2"])
