"""Properties of the whole model; those of every variant are in test_variants.py."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from mt.config import DecodingConfig
from mt.data.batches import collate
from mt.data.store import Example
from mt.decoding.torch_engine import TorchEngine
from mt.model.transformer import Transformer
from mt.special_ids import BOS, EOS, PAD
from mt.training.step import train_step
from tests.factories import learner, model_config, transformer, unsettle

VOCABULARY = 40
TIES = ["all", "decoder", "none"]
SOURCE = torch.tensor([[5, 6, 7, 8, EOS], [9, 10, EOS, PAD, PAD], [11, EOS, PAD, PAD, PAD]])
TARGET_IN = torch.tensor([[BOS, 12, 13, 14], [BOS, 15, 16, PAD], [BOS, 17, PAD, PAD]])


def build(**keys: Any) -> Transformer:
    sizes = {"d_model": 32, "d_ff": 48, "heads": 4, "encoder_layers": 2, "decoder_layers": 3}
    model = transformer(vocabulary=VOCABULARY, **{**sizes, **keys})
    return unsettle(model).eval()


def all_logits(model: Transformer, source: Tensor, target_in: Tensor) -> Tensor:
    logits: Tensor = model.output(model.decode(target_in, model.encode(source)))
    return logits


def test_forward_returns_logits_of_the_real_target_positions_in_order() -> None:
    model = build()
    logits = model(SOURCE, TARGET_IN)
    assert logits.shape == (4 + 3 + 2, VOCABULARY)
    everywhere = all_logits(model, SOURCE, TARGET_IN)
    expected = torch.cat([everywhere[0, :4], everywhere[1, :3], everywhere[2, :2]])
    torch.testing.assert_close(logits, expected)


def test_state_follows_reordered_rows_and_kept_sentences() -> None:
    model = build()
    second = torch.tensor([[4, 5], [6, 7], [8, 9]])  # the second tokens of two rows each
    state = model.start(model.encode(SOURCE), 2)
    first = model.step(torch.full((3,), BOS), state)  # one row stands for both
    alone = all_logits(model, SOURCE, torch.full((3, 1), BOS))[:, -1]
    torch.testing.assert_close(first, alone, atol=1e-5, rtol=1e-5)
    model.step(second.flatten(), state)
    state.reorder(torch.tensor([[1, 1], [0, 1], [1, 0]]))
    state.keep(torch.tensor([0, 2]))
    logits = model.step(torch.full((4,), 20), state)
    rows = torch.tensor([[BOS, 5, 20], [BOS, 5, 20], [BOS, 9, 20], [BOS, 8, 20]])
    expected = all_logits(model, SOURCE[[0, 0, 2, 2]], rows)[:, -1]
    torch.testing.assert_close(logits, expected, atol=1e-5, rtol=1e-5)


def test_tying_shares_exactly_the_named_matrices() -> None:
    everything, decoder, nothing = (build(tie_embeddings=tie) for tie in TIES)
    assert everything.source_embedding.weight is everything.target_embedding.weight
    assert everything.output.weight is everything.target_embedding.weight
    assert decoder.source_embedding.weight is not decoder.target_embedding.weight
    assert decoder.output.weight is decoder.target_embedding.weight
    assert nothing.output.weight is not nothing.target_embedding.weight
    sizes = [sum(p.numel() for p in model.parameters()) for model in (everything, decoder, nothing)]
    assert [size - sizes[0] for size in sizes] == [0, VOCABULARY * 32, 2 * VOCABULARY * 32]


def test_separate_vocabularies_have_their_own_sizes() -> None:
    sizes = {"source_vocabulary": 20, "target_vocabulary": 33}
    model = Transformer(model_config(tie_embeddings="decoder"), **sizes)
    assert model(SOURCE, TARGET_IN).shape[-1] == 33
    with pytest.raises(ValueError):
        Transformer(model_config(), **sizes)


def test_embeddings_enter_with_unit_variance_and_padding_is_zero() -> None:
    model = transformer(d_model=256, vocabulary=4000)
    scaled = model.target_embedding.weight[PAD + 1 :] * model.scale
    assert scaled.std().item() == pytest.approx(1.0, abs=0.01)
    assert model.target_embedding.weight[PAD].abs().max() == 0.0


@pytest.mark.parametrize("tie_embeddings", TIES)
def test_padding_row_is_trained_only_as_part_of_the_output_layer(tie_embeddings: str) -> None:
    model = build(tie_embeddings=tie_embeddings).train()
    pairs = [Example(0, np.array([5, 6, EOS]), np.array([7, 8, 9, EOS]))]
    pairs += [Example(1, np.array([5, EOS]), np.array([9, EOS]))]
    train_step(learner(model), [collate(pairs)], 0.01)
    for embedding in (model.source_embedding, model.target_embedding):
        stays = embedding.weight is not model.output.weight
        assert torch.equal(embedding.weight[PAD], torch.zeros(32)) == stays


@pytest.mark.parametrize("search", ["greedy", "beam"])
@pytest.mark.parametrize("positional", ["learned", "sinusoidal"])
def test_a_translation_ends_where_the_positions_do(search: str, positional: str) -> None:
    model = transformer(positional=positional, max_positions=6)
    with torch.no_grad():
        model.target_embedding.weight[EOS] *= 0  # EOS becomes improbable
    engine = TorchEngine(model, torch.device("cpu"))
    decoding = DecodingConfig.model_validate({"search": search, "max_length_extra": 9})
    found = engine.translate_ids([[5, 6, EOS], [7, 8, 9, 10, 11, EOS]], decoding)
    longest = [6, 6] if positional == "learned" else [12, 15]
    assert [len(hypothesis.ids) for hypothesis in found] == longest
    assert not any(hypothesis.finished for hypothesis in found)
