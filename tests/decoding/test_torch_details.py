import math
from pathlib import Path

import pytest
import torch
from torch.nn import functional as F

from mt.config import ModelConfig
from mt.decoding.engine import Hypothesis, TokenDetails
from mt.decoding.torch_engine import TorchEngine, explain
from mt.decoding.translator import load_translator
from mt.model.attention_hooks import record_attention
from mt.model.transformer import Transformer
from mt.special_ids import BOS, EOS

CPU = torch.device("cpu")


def build(layers: int, **settings: object) -> Transformer:
    config = ModelConfig.model_validate(
        {"d_model": 16, "d_ff": 32, "heads": 2, "encoder_layers": 1, "decoder_layers": layers}
        | settings
    )
    model = Transformer(config, source_vocabulary=30, target_vocabulary=30).eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.5)  # attention that is not almost even
    return model


def hypothesis(*ids: int) -> Hypothesis:
    return Hypothesis(ids, 0.0, 0.0, finished=True)


SOURCES = [[5, 6, 7, EOS], [8, EOS], [9, 10, 11, 12, 13, EOS], [4, EOS]]
FOUND = [hypothesis(14, 15), hypothesis(16, 17, 18, 19, 20), hypothesis(21), hypothesis()]


@pytest.mark.parametrize(("layers", "looked_at"), [(1, 0), (2, 0), (3, 1)])
def test_details_are_those_of_each_sentence_alone(layers: int, looked_at: int) -> None:
    model = build(layers)
    details = explain([model], SOURCES, FOUND, device=CPU)
    assert details[3] == TokenDetails((), ())
    for source, found, detail in zip(SOURCES[:3], FOUND, details, strict=False):
        row, target = torch.tensor([source]), torch.tensor([[BOS, *found.ids]])
        logits = model(row, target[:, :-1]).detach().double()
        wanted = [-F.cross_entropy(logits[i], target[0, i + 1]) for i in range(len(found.ids))]
        assert detail.log_probs == pytest.approx([float(each) for each in wanted], abs=1e-5)
        cross = record_attention(model, row, target[:, :-1]).cross[looked_at, 0].mean(0)
        assert detail.attention is not None
        assert detail.attention == pytest.approx(cross.numpy(), abs=1e-5)
        places = [
            max(range(len(source)), key=lambda place, token=token: float(cross[token, place]))  # type: ignore[misc]
            for token in range(len(found.ids))
        ]
        pairs = [(place, token) for token, place in enumerate(places) if place < len(source) - 1]
        assert list(detail.alignment) == pairs
    assert sum(len(each.alignment) for each in details) > 2


def test_several_models_speak_as_one() -> None:
    models = [build(1), build(2)]
    together = explain(models, SOURCES, FOUND, device=CPU)
    alone = [explain([model], SOURCES, FOUND, device=CPU) for model in models]
    for number, detail in enumerate(together):
        pairs = zip(alone[0][number].log_probs, alone[1][number].log_probs, strict=True)
        wanted = [math.log((math.exp(a) + math.exp(b)) / 2) for a, b in pairs]
        assert detail.log_probs == pytest.approx(wanted, abs=1e-5)


def test_the_batch_changes_nothing_and_nothing_stays_in_the_model() -> None:
    model = build(2)
    sources, found = SOURCES[:3] * 200, FOUND[:3] * 200
    alone = explain([model], SOURCES[:3], FOUND[:3], device=CPU)
    many = explain([model], sources, found, device=CPU)
    for number, detail in enumerate(many):
        assert detail.log_probs == pytest.approx(alone[number % 3].log_probs, abs=1e-5)
        assert detail.alignment == alone[number % 3].alignment
    assert not any(module._forward_hooks for module in model.modules())


def test_the_log_probabilities_are_those_of_the_search(finished_run: Path) -> None:
    translator = load_translator(finished_run, overrides=["decoding.beam=3"], device="cpu")
    engine = translator.engine
    assert isinstance(engine, TorchEngine)
    sources = translator.tokenizer.encode_source(["one two three", "seven", "nine zero zero two"])
    decoding = translator.decoding.model_copy(update={"max_length_ratio": 0.5})
    cut = decoding.model_copy(update={"max_length_extra": 1})
    for settings, finished in ((decoding, True), (cut, False)):
        found = engine.translate_ids(sources, settings)
        details = engine.explain(sources, found)
        for each, detail in zip(found, details, strict=True):
            assert each.finished or not finished
            if each.finished:  # the end mark is no token
                assert sum(detail.log_probs) > each.log_prob
                assert len(detail.log_probs) == len(each.ids)
            else:
                assert sum(detail.log_probs) == pytest.approx(each.log_prob, abs=1e-4)
        assert {each.finished for each in found} >= {finished}
