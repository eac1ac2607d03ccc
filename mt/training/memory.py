"""How much memory training on a CPU takes, known before it takes it."""

import logging
import weakref
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from mt.config import Config
from mt.data.batches import (
    SOURCE,
    TARGET,
    Batch,
    Indices,
    Lengths,
    split_update,
)
from mt.errors import UserError
from mt.model.transformer import Transformer
from mt.training.corpus import Corpus, plan_store
from mt.training.ema import choose_average
from mt.training.frozen import freeze
from mt.training.machine_memory import available_bytes
from mt.training.out_of_memory import heaviest
from mt.training.pair_place import pair_place
from mt.training.precision import choose_precision
from mt.training.r_drop import choose_training_pass

# What glibc's heap takes beyond the tensors that live at once: it gives no aligned block the place
# of a freed one of the same size. Measured on seven models, 1.2 to 1.7.
_HEAP_FACTOR = 1.4
# Work space of the matrix products, code that is read in when first used, the feed's thread.
_OTHER_BYTES = 20 * 2**20
# The code of bf16 products, as much of it as is kept.
_BF16_KERNEL_BYTES = 500 * 2**20
# The plan of an epoch while it is made, beside the one before it.
_PLAN_BYTES_PER_PAIR = 50
_MOMENTS = 2

_logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class TrainingMemory:
    """Bytes that training takes at once, beyond what the program had before it."""

    tensors: int
    """The tensors alone: the least that it can do with."""
    likely: int
    """With the gaps of the heap and work space, as measured elsewhere; mostly within a tenth."""


def require_memory(config: Config, corpus: Corpus) -> None:
    """Raise UserError where this machine surely has too little memory for training on its CPU.

    Where it is likely to be too little, the same is told as a warning: the heaviest batch, its
    longest pair, and what helps. For a process that has no model yet. Where the system does not
    say what it has, nothing is required.
    """
    available = available_bytes()
    if available is None:
        return
    indices, needed = corpus_memory(config, corpus)
    if max(needed.tensors, needed.likely) <= available:
        return
    told = f"{_heaviest_batch(config, corpus, indices)}; {_remedies(config)}"
    free = f"and {_gib(available)} of memory are free: {told}"
    if needed.tensors > available:
        raise UserError(f"training needs at least {_gib(needed.tensors)}, {free}")
    _logger.warning("training will take about %s, %s", _gib(needed.likely), free)


def corpus_memory(config: Config, corpus: Corpus) -> tuple[Indices, TrainingMemory]:
    """Return the heaviest batch of an epoch, and what training on the corpus takes.

    By the pieces that its text has when it is translated, also where each epoch draws its own.
    """
    store, budget = corpus.store, config.training.max_tokens_per_batch
    plan = plan_store(corpus, store, config, epoch=0)
    indices = heaviest(plan, store.lengths, max_tokens_per_batch=budget)
    needed = training_memory(
        config,
        store.lengths[indices],
        source_vocabulary=corpus.tokenizer.source_size,
        target_vocabulary=corpus.tokenizer.target_size,
        batches_per_update=_most_batches(plan, store.lengths, budget),
    )
    planning = _PLAN_BYTES_PER_PAIR * max(len(store), sum(map(len, plan)))
    return indices, TrainingMemory(needed.tensors, needed.likely + planning)


def training_memory(
    config: Config,
    lengths: Lengths,
    *,
    source_vocabulary: int,
    target_vocabulary: int,
    batches_per_update: int,
) -> TrainingMemory:
    """Return what training takes whose heaviest batch has pairs of these lengths [B 2].

    Counted on tensors without contents, which takes some tenths of a second and no memory.
    """
    with FakeTensorMode(), LiveBytes() as counted:
        model = Transformer(
            config.model, source_vocabulary=source_vocabulary, target_vocabulary=target_vocabulary
        )
        weights = counted.live
        freeze(model, config.training.freeze)
        learning = [each for each in model.parameters() if each.requires_grad]
        lasting: list[object] = [choose_average(model, config.training.ema_decay)]
        lasting += [torch.empty_like(each) for each in learning for _ in range(_MOMENTS)]
        held = counted.live
        if batches_per_update > 1:  # then the batches before the heaviest have left gradients
            for parameter in learning:
                parameter.grad = torch.empty_like(parameter)
        training_pass = choose_training_pass(model, config.training)
        precision = choose_precision(
            config.training.precision, torch.device("cpu"), config.model.d_model
        )
        with precision.autocast():
            sums = training_pass(_batch(lengths))
        sums.objective.backward()
    computing = counted.peak - held
    # The mean of checkpoints is made at the end, in memory that the heap does not have at hand.
    likely = held + weights + int(_HEAP_FACTOR * computing) + _OTHER_BYTES
    if precision.name == "bf16":
        likely += _BF16_KERNEL_BYTES
    return TrainingMemory(tensors=counted.peak, likely=likely)


class LiveBytes(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the bytes of the tensors that are made inside and live at the same time."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.live = 0
        self.peak = 0
        self._storages: dict[int, weakref.ref[torch.UntypedStorage]] = {}

    def __torch_dispatch__(
        self,
        func: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Do an operation, and count what it makes."""
        del types
        if func is torch.ops.aten._local_scalar_dense.default:
            # Without contents nobody can say what a number is. The model asks one thing, whether
            # all positions are real, and in the heaviest batch not all are.
            return False
        made = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(made):
            if isinstance(tensor, Tensor):
                self._count(tensor.untyped_storage())
        return made

    def _count(self, storage: torch.UntypedStorage) -> None:
        key, size = id(storage), storage.nbytes()
        if key in self._storages:
            return

        def forget(_: object) -> None:
            self.live -= size
            del self._storages[key]

        self._storages[key] = weakref.ref(storage, forget)
        self.live += size
        self.peak = max(self.peak, self.live)


def _batch(lengths: Lengths) -> Batch:
    """Return a batch of pairs of these lengths, its ids being any."""
    source, target = lengths.max(axis=0).tolist()
    tokens = lengths.sum(axis=0).tolist()

    def ids(*sizes: int) -> Tensor:
        return torch.zeros(sizes, dtype=torch.int64)

    return Batch(
        source=ids(len(lengths), source),
        target_in=ids(len(lengths), target),
        target_out=ids(len(lengths), target),
        real=ids(tokens[TARGET]),
        source_tokens=tokens[SOURCE],
        target_tokens=tokens[TARGET],
        index=ids(len(lengths)),
    )


def _most_batches(plan: Iterable[Indices], lengths: Lengths, budget: int) -> int:
    """Return how many batches the update with the most has."""
    return max(
        len(split_update(update, lengths, max_tokens_per_batch=budget, ranks=1)[0])
        for update in plan
    )


def _heaviest_batch(config: Config, corpus: Corpus, indices: Indices) -> str:
    lengths = corpus.store.lengths[indices]
    source, target = lengths.max(axis=0).tolist()
    longest = int(indices[int(np.argmax(lengths.max(axis=1)))])
    return (
        f"the heaviest batch has {len(indices):,} pairs of up to {source} source and {target} "
        f"target pieces, the longest is {pair_place(config, corpus, longest)}"
    )


def _remedies(config: Config) -> str:
    return (
        "lower `training.max_tokens_per_batch`, now "
        f"{config.training.max_tokens_per_batch} (the updates stay the same), or in a new run "
        f"`data.max_pieces`, now {config.data.max_pieces}, or take a smaller model"
    )


def _gib(size: int) -> str:
    return f"{size / 2**30:,.2f} GiB"
