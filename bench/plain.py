"""Baseline of `make bench`: the Transformer of a config in a plain, padded PyTorch loop.

It is a straightforward, correct implementation: batches are padded, loss and dropout are PyTorch's,
the memory allocator has its defaults. The sentences of each update are those of `mt`, whose model
and training are not used. One line of JSON goes to stdout.
"""

import argparse
import json
import math
import resource
import sys
import tempfile
import time
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pad_sequence

from mt.config import Config, ModelConfig
from mt.config.loading import load_config
from mt.data.batches import plan_updates, split_update
from mt.data.corpus_files import cache_folder
from mt.data.pairs import PairSource
from mt.data.sources import open_source
from mt.data.store import Example, PairStore, prepare_store
from mt.data.tokenizer import Tokenizer, copy_tokenizer
from mt.data.tokenizer_training import train_tokenizer
from mt.errors import UserError, listed, run_reporting_errors
from mt.special_ids import BOS, PAD

SIZES = {"d_model", "d_ff", "heads", "encoder_layers", "decoder_layers", "dropout"}
"""Config keys of the model that may be set; all others must be the paper's."""
TextPair = tuple[Tensor, Tensor]


class Attention(nn.Module):
    """Multi-head attention (Vaswani et al. 2017, section 3.2)."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.heads = config.heads
        width = config.d_model
        self.query, self.key = nn.Linear(width, width), nn.Linear(width, width)
        self.value, self.output = nn.Linear(width, width), nn.Linear(width, width)

    def forward(self, x: Tensor, memory: Tensor, mask: Tensor | None) -> Tensor:
        """Attend from x [B T D] to memory [B S D] where `mask` is True; causally if it is None."""
        projected = self.query(x), self.key(memory), self.value(memory)
        q, k, v = (y.unflatten(-1, (self.heads, -1)).transpose(1, 2) for y in projected)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=mask is None)
        return self.output(y.transpose(1, 2).flatten(2))  # type: ignore[no-any-return]


class Layer(nn.Module):
    """A Post-Norm layer, with one attention in the encoder and two in the decoder."""

    def __init__(self, config: ModelConfig, attentions: int) -> None:
        super().__init__()
        width, inner = config.d_model, config.d_ff
        self.attentions = nn.ModuleList(Attention(config) for _ in range(attentions))
        self.feed_forward = nn.Sequential(
            nn.Linear(width, inner), nn.ReLU(), nn.Linear(inner, width)
        )
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(attentions + 1))
        self.dropout = nn.Dropout(config.dropout)

    def forward(
        self,
        x: Tensor,
        mask: Tensor | None,
        memory: Tensor | None = None,
        memory_mask: Tensor | None = None,
    ) -> Tensor:
        """Map x [B T D] to [B T D], with a memory [B S D] in the decoder."""
        x = self.norms[0](x + self.dropout(self.attentions[0](x, x, mask)))
        if memory is not None:
            x = self.norms[1](x + self.dropout(self.attentions[1](x, memory, memory_mask)))
        return self.norms[-1](x + self.dropout(self.feed_forward(x)))  # type: ignore[no-any-return]


class Transformer(nn.Module):
    """The paper's Transformer, with one matrix for all embeddings and the output layer."""

    positions: Tensor

    def __init__(self, config: ModelConfig, vocabulary: int, longest: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, config.d_model, padding_idx=PAD)
        self.encoder = nn.ModuleList(Layer(config, 1) for _ in range(config.encoder_layers))
        self.decoder = nn.ModuleList(Layer(config, 2) for _ in range(config.decoder_layers))
        self.dropout = nn.Dropout(config.dropout)
        frequencies = 10000 ** (-torch.arange(0, config.d_model, 2) / config.d_model)
        angles = torch.arange(longest)[:, None] * frequencies
        self.register_buffer("positions", torch.stack((angles.sin(), angles.cos()), 2).flatten(1))
        for parameter in self.parameters():
            if parameter.dim() == 2:
                nn.init.xavier_uniform_(parameter)
        nn.init.normal_(self.embedding.weight, std=config.d_model**-0.5)

    def embed(self, ids: Tensor) -> Tensor:
        """Return the input states [B T D] of a stack."""
        x = self.embedding(ids) * math.sqrt(self.embedding.embedding_dim)
        return self.dropout(x + self.positions[: ids.shape[1]])  # type: ignore[no-any-return]

    def forward(self, source: Tensor, target_in: Tensor) -> Tensor:
        """Return logits [B T V] for source [B S] and target [B T] ids."""
        mask = (source != PAD)[:, None, None, :]
        memory, x = self.embed(source), self.embed(target_in)
        for layer in self.encoder:
            memory = layer(memory, mask)
        for layer in self.decoder:
            x = layer(x, None, memory, mask)
        return F.linear(x, self.embedding.weight)


def batch_loss(model: Transformer, batch: TextPair, label_smoothing: float) -> Tensor:
    """Return the loss of source [B S] and target [B T], summed over the real target tokens."""
    source, target = batch
    target_in = torch.cat((torch.full_like(target[:, :1], BOS), target[:, :-1]), dim=1)
    logits = model(source, target_in).flatten(0, 1)
    return F.cross_entropy(
        logits, target.flatten(), ignore_index=PAD, label_smoothing=label_smoothing, reduction="sum"
    )


def updates(store: PairStore, config: Config) -> Iterator[list[TextPair]]:
    """Yield the batches of each update, epoch after epoch, with the sentences of `mt`."""
    lengths, training = store.lengths, config.training
    for epoch in count():
        plan = plan_updates(
            lengths, training.target_tokens_per_update, seed=config.seed, epoch=epoch
        )
        for update in plan:
            batches = split_update(
                update, lengths, max_tokens_per_batch=training.max_tokens_per_batch, ranks=1
            )[0]
            yield [_padded(store.examples(batch)) for batch in batches]


def _padded(examples: list[Example]) -> TextPair:
    """Return the ids of source [B S] and target [B T], PAD after each row's end."""
    sides = [e.source for e in examples], [e.target for e in examples]
    source, target = (
        pad_sequence([torch.tensor(row, dtype=torch.int64) for row in side], batch_first=True)
        for side in sides
    )
    return source, target


def run(config: Config, warmup: int, measured: int) -> dict[str, float]:
    """Train for `warmup` updates and `measured` more; return the measurements of the latter."""
    store, vocabulary = prepare(config)
    torch.manual_seed(config.seed)
    training, longest = config.training, int(store.lengths.max())
    model = Transformer(config.model, vocabulary, longest)
    optimizer = torch.optim.Adam(model.parameters(), betas=(0.9, 0.98), eps=1e-9, fused=True)
    source_tokens, target_tokens, loss, wall, cpu = 0, 0, 0.0, 0.0, 0.0
    for index, batches in zip(range(warmup + measured), updates(store, config), strict=False):
        if index == warmup:
            source_tokens, target_tokens, loss = 0, 0, 0.0
            wall, cpu = time.perf_counter(), time.process_time()
        step = (index + 1) / max(training.warmup_updates, 1)
        optimizer.param_groups[0]["lr"] = training.learning_rate * min(step, step**-0.5)
        tokens = sum(int((target != PAD).sum()) for _, target in batches)
        for batch in batches:
            summed = batch_loss(model, batch, training.label_smoothing)
            (summed / tokens).backward()  # type: ignore[no-untyped-call]
            loss += summed.item()
        if training.gradient_clip:
            nn.utils.clip_grad_norm_(model.parameters(), training.gradient_clip)
        optimizer.step()
        optimizer.zero_grad()
        source_tokens += sum(int((source != PAD).sum()) for source, _ in batches)
        target_tokens += tokens
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    return {
        "target_tokens_per_second": target_tokens / wall,
        "source_tokens_per_second": source_tokens / wall,
        "target_tokens": target_tokens,
        "source_tokens": source_tokens,
        "loss": loss / target_tokens,
        "updates": measured,
        "wall_seconds": wall,
        "cpu_seconds": cpu,
        "threads": torch.get_num_threads(),
        "peak_memory_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }


def prepare(config: Config) -> tuple[PairStore, int]:
    """Return the encoded training pairs and the size of their vocabulary."""
    default = ModelConfig()
    odd = [k for k, v in config.model if k not in SIZES and v != getattr(default, k)]
    if odd:
        raise UserError(f"the plain loop supports only the paper's model; remove {listed(odd)}")
    pairs = open_source(config.data.train, config.direction)
    with tempfile.TemporaryDirectory() as folder:
        tokenizer = _tokenizer(config, pairs, Path(folder))
    store = prepare_store(pairs, tokenizer, max_tokens=config.data.max_tokens, cache=cache_folder())
    return store, tokenizer.target_size


def _tokenizer(config: Config, pairs: PairSource, folder: Path) -> Tokenizer:
    if config.tokenizer.from_ is not None:
        return copy_tokenizer(config.tokenizer.from_, folder)
    return train_tokenizer(pairs.pairs, folder, config=config.tokenizer)


def main() -> int:
    """Run the loop on a config and print one line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("config", type=Path)
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--warmup", type=int, default=5, help="updates before the clock starts")
    parser.add_argument("--updates", type=int, default=20, help="updates that are measured")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    config = load_config(options.config, overrides=options.set)
    print(json.dumps(run(config, options.warmup, options.updates)))
    return 0


if __name__ == "__main__":
    sys.exit(run_reporting_errors(main))
