"""The model's properties."""

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from mt.config import ModelConfig
from mt.data.batches import collate
from mt.data.store import Example
from mt.model.transformer import Transformer
from mt.special_ids import BOS, EOS, PAD
from mt.training.optimizer import build_optimizer, choose_precision
from mt.training.step import Learner, TrainingPass, train_step

CONFIG = ModelConfig(d_model=32, d_ff=48, heads=4, encoder_layers=2, decoder_layers=3, dropout=0.0)
SOURCE_VOCABULARY = TARGET_VOCABULARY = 40
TIES = ["all", "decoder", "none"]


def build(tie_embeddings: str = "all", **changes: object) -> Transformer:
    torch.manual_seed(1)
    config = CONFIG.model_copy(update={"tie_embeddings": tie_embeddings, **changes})
    model = Transformer(
        config, source_vocabulary=SOURCE_VOCABULARY, target_vocabulary=TARGET_VOCABULARY
    )
    # Biases and gains off their initial values, so that forgetting one shows.
    for parameter in model.parameters():
        if parameter.dim() == 1:
            nn.init.normal_(parameter, mean=0.5, std=0.3)
    return model.eval()


def source_ids() -> Tensor:
    return torch.tensor([[5, 6, 7, 8, EOS], [9, 10, EOS, PAD, PAD], [11, EOS, PAD, PAD, PAD]])


def target_ids() -> Tensor:
    return torch.tensor([[BOS, 12, 13, 14], [BOS, 15, 16, PAD], [BOS, 17, PAD, PAD]])


def all_logits(model: Transformer, source: Tensor, target_in: Tensor) -> Tensor:
    logits: Tensor = model.output(model.decode(target_in, model.encode(source)))
    return logits


def test_forward_gives_logits_of_the_real_target_positions_in_order() -> None:
    model = build()
    logits = model(source_ids(), target_ids())
    assert logits.shape == (4 + 3 + 2, TARGET_VOCABULARY)
    everywhere = all_logits(model, source_ids(), target_ids())
    expected = torch.cat([everywhere[0, :4], everywhere[1, :3], everywhere[2, :2]])
    torch.testing.assert_close(logits, expected)


@pytest.mark.parametrize("tie_embeddings", TIES)
def test_a_cached_step_equals_the_full_forward_pass(tie_embeddings: str) -> None:
    model = build(tie_embeddings)
    source, target_in = source_ids(), torch.randint(4, 40, (3, 6))
    target_in[:, 0] = BOS
    full = all_logits(model, source, target_in)
    state = model.start(model.encode(source), 2)
    for position in range(target_in.shape[1]):
        logits = model.step(target_in[:, position].repeat_interleave(2), state)
        torch.testing.assert_close(logits[::2], full[:, position], atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(logits[1::2], full[:, position], atol=1e-5, rtol=1e-5)


def test_the_state_follows_rows_and_sentences() -> None:
    """Rows that swap and sentences that leave decode on as if they had always stood there."""
    model = build()
    source = source_ids()
    beginnings = torch.tensor([[4, 5], [6, 7], [8, 9]])  # the second tokens of two rows each
    state = model.start(model.encode(source), 2)
    first = model.step(torch.full((3,), BOS), state)  # one row stands for both
    alone = all_logits(model, source, torch.full((3, 1), BOS))[:, -1]
    torch.testing.assert_close(first, alone, atol=1e-5, rtol=1e-5)
    model.step(beginnings.flatten(), state)
    state.reorder(torch.tensor([[1, 1], [0, 1], [1, 0]]))
    state.keep(torch.tensor([0, 2]))
    logits = model.step(torch.full((4,), 20), state)
    rows = torch.tensor([[BOS, 5, 20], [BOS, 5, 20], [BOS, 9, 20], [BOS, 8, 20]])
    expected = all_logits(model, source[[0, 0, 2, 2]], rows)[:, -1]
    torch.testing.assert_close(logits, expected, atol=1e-5, rtol=1e-5)


def test_padding_changes_nothing() -> None:
    model = build()
    alone = all_logits(model, source_ids()[1:2, :3], target_ids()[1:2, :3])
    wide = torch.nn.functional.pad(source_ids(), (0, 4), value=PAD)
    together = all_logits(model, wide, target_ids())
    torch.testing.assert_close(together[1:2, :3], alone, atol=1e-5, rtol=1e-5)


def test_a_later_target_token_never_changes_an_earlier_logit() -> None:
    model = build()
    target_in = target_ids()[:1]
    before = all_logits(model, source_ids()[:1], target_in)
    for position in range(1, target_in.shape[1]):
        changed = target_in.clone()
        changed[0, position] = 30
        after = all_logits(model, source_ids()[:1], changed)
        assert torch.equal(after[:, :position], before[:, :position])
        assert not torch.equal(after[:, position], before[:, position])


def test_every_target_position_sees_every_source_token_and_no_padding() -> None:
    model = build()
    before = all_logits(model, source_ids()[:1], target_ids()[:1])
    for position in range(source_ids().shape[1]):
        changed = source_ids()[:1].clone()
        changed[0, position] = 31
        moved = (all_logits(model, changed, target_ids()[:1]) - before).abs().amax(dim=-1)
        assert (moved > 0).all()


@pytest.mark.parametrize("tie_embeddings", TIES)
def test_every_parameter_gets_a_gradient(tie_embeddings: str) -> None:
    model = build(tie_embeddings).train()
    logits = model(source_ids(), target_ids())
    logits.log_softmax(-1)[:, 20].sum().backward()
    for name, parameter in model.named_parameters():
        # Softmax is blind to what a key bias adds to all scores alike: zero up to rounding.
        if name.endswith("key.bias"):
            continue
        assert parameter.grad is not None, name
        assert parameter.grad.abs().max() > 1e-7, name


def test_tying_shares_exactly_the_matrices_it_names() -> None:
    everything, decoder, nothing = (build(tie) for tie in TIES)
    assert everything.source_embedding.weight is everything.target_embedding.weight
    assert everything.output.weight is everything.target_embedding.weight
    assert decoder.source_embedding.weight is not decoder.target_embedding.weight
    assert decoder.output.weight is decoder.target_embedding.weight
    assert nothing.output.weight is not nothing.target_embedding.weight
    matrix = TARGET_VOCABULARY * CONFIG.d_model
    sizes = [sum(p.numel() for p in model.parameters()) for model in (everything, decoder, nothing)]
    assert [size - sizes[0] for size in sizes] == [0, matrix, 2 * matrix]


def test_separate_vocabularies_have_their_own_sizes() -> None:
    config = CONFIG.model_copy(update={"tie_embeddings": "decoder"})
    model = Transformer(config, source_vocabulary=20, target_vocabulary=33)
    assert model(source_ids(), target_ids()).shape[-1] == 33
    with pytest.raises(ValueError, match="one vocabulary"):
        Transformer(CONFIG, source_vocabulary=20, target_vocabulary=33)


def test_embeddings_enter_with_unit_variance_and_padding_is_zero() -> None:
    torch.manual_seed(1)
    config = CONFIG.model_copy(update={"d_model": 256})
    model = Transformer(config, source_vocabulary=4000, target_vocabulary=4000)
    scaled = model.target_embedding.weight[PAD + 1 :] * model.scale
    assert scaled.std().item() == pytest.approx(1.0, abs=0.01)
    assert model.target_embedding.weight[PAD].abs().max() == 0.0


@pytest.mark.parametrize("tie_embeddings", TIES)
def test_embeddings_are_multiplied_by_the_square_root_of_the_width(tie_embeddings: str) -> None:
    model = build(tie_embeddings, positional="none")
    entering: list[Tensor] = []
    for stack in (model.encoder, model.decoder):
        stack[0].register_forward_pre_hook(lambda _, inputs: entering.append(inputs[0]))
    model(source_ids(), target_ids())
    expected = [
        model.source_embedding.weight[source_ids()] * 32**0.5,
        model.target_embedding.weight[target_ids()] * 32**0.5,
    ]
    torch.testing.assert_close(entering, expected)


@pytest.mark.parametrize("tie_embeddings", TIES)
def test_a_padding_row_stays_zero_where_it_is_nothing_else(tie_embeddings: str) -> None:
    """As a row of the output layer it learns, as every other one, what never to say."""
    model = build(tie_embeddings).train()
    optimizer = build_optimizer(model, torch.device("cpu"))
    precision = choose_precision("fp32", torch.device("cpu"))
    learner = Learner(model, TrainingPass(model, 0.1), optimizer, precision, gradient_clip=0.0)
    pairs = [Example(0, np.array([5, 6, EOS]), np.array([7, 8, 9, EOS]))]
    pairs += [Example(1, np.array([5, EOS]), np.array([9, EOS]))]
    train_step(learner, [collate(pairs)], 0.01)
    for embedding in (model.source_embedding, model.target_embedding):
        stays = embedding.weight is not model.output.weight
        assert torch.equal(embedding.weight[PAD], torch.zeros(32)) == stays
