"""Random models of transformers, and SentencePiece models, for folders to import."""

import itertools
import json
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


def save_model(model: Any, folder: Path, described: dict[str, Any], copied: range | None) -> None:
    """Save a model and the config of its tokenizer.

    Its weights are random, except tables of positions, or it has learnt a little to copy tokens:
    random weights repeat one token.
    """
    (folder / "tokenizer_config.json").write_text(json.dumps(described), encoding="utf-8")
    if copied is None:
        for name, parameter in model.named_parameters():
            if "embed_positions" not in name:
                spread = 0.3 if parameter.dim() == 1 else 0.25
                nn.init.normal_(parameter, 0.6 if "norm.weight" in name else 0.0, spread)
    else:
        optimizer = torch.optim.Adam(model.parameters(), lr=4e-3)
        model.train()
        for _ in range(100):
            ids = torch.randint(copied.start, copied.stop, (32, 8))
            ids[:, -1] = model.config.eos_token_id
            optimizer.zero_grad()
            torch.autograd.backward(model(input_ids=ids, labels=ids).loss)
            optimizer.step()
        model.eval()
    model.save_pretrained(folder)


def pad_rows(rows: Sequence[Sequence[int]], padding: int) -> Tensor:
    """Return rows of ids as one tensor."""
    longest = max(map(len, rows))
    return torch.tensor([[*row, *[padding] * (longest - len(row))] for row in rows])
