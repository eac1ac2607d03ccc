"""Parity with Marian as Hugging Face has it: a whole model, and what it translates."""

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import MarianConfig, MarianMTModel

from mt.config import ModelConfig
from mt.model.transformer import Transformer
from mt.special_ids import BOS, EOS, PAD

CONFIG = ModelConfig(d_model=32, d_ff=48, heads=4, encoder_layers=2, decoder_layers=3, dropout=0.0)
VOCABULARY = 40
NAMES = {
    "self_attention.attention.": "self_attn.",
    "cross_attention.": "encoder_attn.",
    "query.": "q_proj.",
    "key.": "k_proj.",
    "value.": "v_proj.",
    "output.": "out_proj.",
    "self_residual.norm.": "self_attn_layer_norm.",
    "cross_residual.norm.": "encoder_attn_layer_norm.",
    "feed_forward_residual.norm.": "final_layer_norm.",
    "feed_forward.inner.": "fc1.",
    "feed_forward.outer.": "fc2.",
}
"""Our name of a part of a layer, and Marian's."""
SOURCE = torch.tensor([[5, 6, 7, 8, 9, EOS], [9, 10, EOS, PAD, PAD, PAD], [11, EOS] + [PAD] * 4])


@pytest.mark.parametrize("feed_forward", ["relu", "swish", "gelu"])
def test_logits_and_gradients_equal_marians(feed_forward: str) -> None:
    config = CONFIG.model_copy(update={"feed_forward": feed_forward})
    ours = Transformer(config, source_vocabulary=VOCABULARY, target_vocabulary=VOCABULARY).eval()
    for parameter in ours.parameters():
        if parameter.dim() == 1:  # biases and gains off their initial values
            nn.init.normal_(parameter, mean=0.5, std=0.3)
    theirs = marian(ours, config)
    target_in = torch.tensor([[BOS, 12, 13, 14], [BOS, 15, 12, PAD], [BOS, 17, PAD, PAD]])
    real = target_in != PAD
    logits = ours(SOURCE, target_in)
    expected = theirs(
        input_ids=SOURCE,
        attention_mask=(SOURCE != PAD).long(),
        decoder_input_ids=target_in,
        decoder_attention_mask=real.long(),
    ).logits[real]
    torch.testing.assert_close(logits, expected, atol=1e-5, rtol=1e-5)
    probe = torch.randn_like(expected) / len(expected)
    torch.autograd.backward((logits, expected), (probe, probe))
    for name, gradient in as_marian(ours, "grad").items():
        assert gradient is not None, name
        torch.testing.assert_close(gradient, theirs.get_parameter(name).grad, atol=1e-5, rtol=1e-5)


def test_greedy_translations_equal_marians() -> None:
    ours = Transformer(CONFIG, source_vocabulary=VOCABULARY, target_vocabulary=VOCABULARY)
    # Of random weights, the likeliest token is the same one for ever.
    learn_to_copy(ours)
    theirs = marian(ours.eval(), CONFIG)
    source = random_sentences()
    expected = theirs.generate(
        source,
        attention_mask=(source != PAD).long(),
        do_sample=False,
        num_beams=1,
        max_new_tokens=10,
    )[:, 1:]
    assert torch.equal(greedy(ours, source, expected.shape[1]), expected)
    # The comparison says something only where sentences differ and end at several places.
    assert len(expected.unique(dim=0)) > 10
    assert len((expected == EOS).int().argmax(dim=1).unique()) > 3


def random_sentences() -> Tensor:
    """Return 16 sentences [16 9] of 1 to 8 tokens, their end and padding."""
    tokens = torch.randint(EOS + 1, VOCABULARY, (16, 9))
    lengths = torch.randint(1, 9, (16, 1))
    columns = torch.arange(9)
    return tokens.masked_fill(columns == lengths, EOS).masked_fill(columns > lengths, PAD)


def learn_to_copy(model: Transformer) -> None:
    """Let the model learn for a second that a sentence's translation is the sentence."""
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for _ in range(80):
        source = random_sentences()
        target_in = F.pad(source, (1, -1), value=BOS).masked_fill(source == PAD, PAD)
        loss = F.cross_entropy(model(source, target_in), source[source != PAD])
        optimizer.zero_grad()
        torch.autograd.backward(loss)
        optimizer.step()


def greedy(model: Transformer, source: Tensor, length: int) -> Tensor:
    """Return the likeliest tokens [B length] one by one; PAD after the end of a sentence."""
    last = torch.full((len(source),), BOS)
    ended = torch.zeros(len(source), dtype=torch.bool)
    columns = []
    with torch.no_grad():
        state = model.start(model.encode(source), 1)
        for _ in range(length):
            last = model.step(last, state).argmax(dim=-1)
            columns.append(last.masked_fill(ended, PAD))
            ended |= last == EOS
    return torch.stack(columns, dim=1)


def marian(ours: Transformer, config: ModelConfig) -> MarianMTModel:
    """Return a Marian of the same weights."""
    theirs = MarianMTModel(marian_config(config))
    # What is missing is the table of sinusoids, which stays Marian's own, a bias of zero, and all
    # names but one of the embedding matrix.
    report = theirs.load_state_dict(as_marian(ours, "data"), strict=False)
    assert not report.unexpected_keys
    assert set(report.missing_keys) == {
        "final_logits_bias",
        "model.encoder.embed_positions.weight",
        "model.decoder.embed_positions.weight",
        "model.encoder.embed_tokens.weight",
        "model.decoder.embed_tokens.weight",
        "lm_head.weight",
    }
    return theirs.eval()


def marian_config(config: ModelConfig) -> MarianConfig:
    return MarianConfig(
        vocab_size=VOCABULARY,
        d_model=config.d_model,
        encoder_layers=config.encoder_layers,
        decoder_layers=config.decoder_layers,
        encoder_ffn_dim=config.d_ff,
        decoder_ffn_dim=config.d_ff,
        encoder_attention_heads=config.heads,
        decoder_attention_heads=config.heads,
        activation_function=config.feed_forward,
        scale_embedding=True,
        max_position_embeddings=32,
        pad_token_id=PAD,
        bos_token_id=BOS,
        eos_token_id=EOS,
        decoder_start_token_id=BOS,
        forced_eos_token_id=None,
        dropout=0.0,
    )


def as_marian(model: Transformer, attribute: str) -> dict[str, Tensor]:
    """Return the parameters' data or gradients by Marian's names and in its order of features.

    Our sinusoids alternate sines and cosines, Marian's are all sines and then all cosines. So the
    features of the whole model are permuted: every axis of width d_model that is not inside of an
    attention or feed-forward layer.
    """
    found = {}
    for name, parameter in model.named_parameters():
        renamed = name.replace("target_embedding.", "shared.").replace("coder.", "coder.layers.")
        for ours, theirs in NAMES.items():
            renamed = renamed.replace(f".{ours}", f".{theirs}")
        found[f"model.{renamed}"] = sines_first(renamed, getattr(parameter, attribute))
    return found


def sines_first(name: str, tensor: Tensor) -> Tensor:
    order = torch.cat((torch.arange(0, CONFIG.d_model, 2), torch.arange(1, CONFIG.d_model, 2)))
    if "norm." in name or "out_proj." in name or "fc2." in name:
        return tensor[order]
    return tensor if name.endswith(".bias") else tensor[:, order]
