"""Parity of a whole model with Marian in transformers."""

import pytest
import torch
from torch import Tensor
from transformers import MarianConfig, MarianMTModel

from mt.config import ModelConfig
from mt.model.transformer import Transformer
from mt.special_ids import BOS, EOS, PAD
from tests.factories import unsettle

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
"""Names of the parts of a layer here and in Marian."""
SOURCE = torch.tensor([[5, 6, 7, 8, 9, EOS], [9, 10, EOS, PAD, PAD, PAD], [11, EOS] + [PAD] * 4])


@pytest.mark.parametrize("feed_forward", ["relu", "swish"])
def test_logits_and_gradients_equal_marians(feed_forward: str) -> None:
    config = CONFIG.changed(feed_forward=feed_forward)
    ours = Transformer(config, source_vocabulary=VOCABULARY, target_vocabulary=VOCABULARY).eval()
    unsettle(ours)
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


def marian(ours: Transformer, config: ModelConfig) -> MarianMTModel:
    """Return a Marian model with the same weights."""
    theirs = MarianMTModel(marian_config(config))
    # Missing are the table of sinusoids, a bias of zero, and further names of the embeddings.
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

    Sines and cosines alternate here; in Marian all sines come before all cosines. So every axis of
    width d_model is permuted that is not inside an attention or feed-forward layer.
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
