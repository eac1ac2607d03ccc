"""Train with a loop of your own, on the library's tokenizer, batches and training step.

    python examples/training_loop.py configs/quickstart.yaml 300

`mt train` adds validation, checkpoints, resumption, several devices and a final model.
"""

import sys
import tempfile
from collections.abc import Iterator
from itertools import count, islice
from pathlib import Path

import torch

from mt.config import Config
from mt.config.loading import load_config
from mt.data.batches import Batch, collate, plan_updates, split_update
from mt.data.sources import open_source
from mt.data.store import PairStore, prepare_store
from mt.data.tokenizer_training import train_tokenizer
from mt.model.transformer import Transformer
from mt.training.optimizer import build_optimizer, choose_precision, learning_rate
from mt.training.step import Learner, TrainingPass, fetch_metrics, train_step

CPU = torch.device("cpu")


def updates_of(store: PairStore, config: Config) -> Iterator[list[Batch]]:
    """Yield the batches of each update, epoch after epoch, without end."""
    tokens, limit = config.training.target_tokens_per_update, config.training.max_tokens_per_batch
    for epoch in count():
        for pairs in plan_updates(store.lengths, tokens, seed=config.seed, epoch=epoch):
            (cut,) = split_update(pairs, store.lengths, max_tokens_per_batch=limit, ranks=1)
            yield [collate(store.examples(batch)) for batch in cut]


def train(config: Config, updates: int, folder: Path) -> Iterator[float]:
    """Train a new model; yield the loss of each update in nats per target token."""
    torch.manual_seed(config.seed)
    corpus = open_source(config.data.train, config.direction)
    tokenizer = train_tokenizer(corpus.pairs, folder, config=config.tokenizer)
    store = prepare_store(corpus, tokenizer, max_tokens=config.data.max_tokens, cache=folder)
    sizes = {"source_vocabulary": tokenizer.source_size, "target_vocabulary": tokenizer.target_size}
    model = Transformer(config.model, **sizes)
    training_pass = TrainingPass(model, config.training.label_smoothing)
    optimizer, precision = build_optimizer(model, CPU), choose_precision("fp32", CPU)
    learner = Learner(model, training_pass, optimizer, precision, config.training.gradient_clip)
    for update, batches in enumerate(islice(updates_of(store, config), updates), start=1):
        rate = learning_rate(update, config.training, config.model.d_model)
        (metrics,) = fetch_metrics([train_step(learner, batches, rate)])
        yield metrics.nll / metrics.tokens.target


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        losses = train(load_config(Path(sys.argv[1])), int(sys.argv[2]), Path(folder))
        for update, loss in enumerate(losses, start=1):
            print(f"update {update}: loss {loss:.3f}")
