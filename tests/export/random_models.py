"""Random models of transformers, and SentencePiece models, for folders to import."""

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import sentencepiece
import torch
from torch import Tensor, nn

SHAPE = {
    "d_model": 32,
    "init_std": 0.18,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_ffn_dim": 40,
    "decoder_ffn_dim": 40,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "max_position_embeddings": 64,
    "dropout": 0.0,
    "attention_dropout": 0.0,
}
"""Settings of config.json for a small model."""


def train_spm(path: Path, words: Sequence[str], algorithm: str, size: int) -> list[str]:
    """Train a SentencePiece model on pairs of words and return its text tokens."""
    lines = [" ".join(pair) for pair in itertools.permutations(words, 2)]
    with path.open("wb") as file:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(lines),
            model_writer=file,
            vocab_size=size,
            hard_vocab_limit=False,
            model_type=algorithm,
            minloglevel=2,
        )
    processor = sentencepiece.SentencePieceProcessor(str(path))
    return [processor.id_to_piece(index) for index in range(3, len(processor))]


def scatter(model: nn.Module) -> None:
    """Move all weights off their initial values, except tables of positions."""
    for name, parameter in model.named_parameters():
        if "embed_positions" not in name:
            spread = 0.3 if parameter.dim() == 1 else 0.25
            nn.init.normal_(parameter, 0.6 if "norm.weight" in name else 0.0, spread)


def learn_to_copy(model: Any, tokens: range) -> None:
    """Train to copy a little; random weights repeat one token."""
    optimizer = torch.optim.Adam(model.parameters(), lr=4e-3)
    model.train()
    for _ in range(100):
        ids = torch.randint(tokens.start, tokens.stop, (32, 8))
        ids[:, -1] = model.config.eos_token_id
        optimizer.zero_grad()
        torch.autograd.backward(model(input_ids=ids, labels=ids).loss)
        optimizer.step()
    model.eval()


def pad_rows(rows: Sequence[Sequence[int]], padding: int) -> Tensor:
    """Return rows of ids as one tensor."""
    longest = max(map(len, rows))
    return torch.tensor([[*row, *[padding] * (longest - len(row))] for row in rows])
