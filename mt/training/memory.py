"""How much memory training on a CPU takes, known before it takes it."""

import logging
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.parallel import DistributedDataParallel
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from mt.config import Config
from mt.data.batches import SOURCE, TARGET, Batch, Indices, Lengths, collate, split_update
from mt.data.filters import TrainingCorpus, open_training_corpora
from mt.data.sources import SentencePair, TextPairs, TsvPairs
from mt.data.store import PairStore
from mt.data.tokenizer import Tokenizer
from mt.errors import UserError
from mt.model.transformer import Transformer
from mt.training.data import Corpus, first_plan, plan_store
from mt.training.initial_weights import freeze
from mt.training.optimizer import choose_average, choose_precision
from mt.training.r_drop import choose_training_pass
from mt.training.setup import Session
from mt.training.step import BatchTooLarge, naming_large_batch


@dataclass(frozen=True)
class _Hierarchy:
    """Where a version of Linux's control groups tells of memory."""

    folder: str
    limit: str
    usage: str
    reclaimable: str
    """In `memory.stat`: what of the usage is files that need not be kept."""


_HIERARCHIES = {
    "": _Hierarchy("sys/fs/cgroup", "memory.max", "memory.current", "inactive_file"),
    "memory": _Hierarchy(
        "sys/fs/cgroup/memory",
        "memory.limit_in_bytes",
        "memory.usage_in_bytes",
        "total_inactive_file",
    ),
}
"""By the name that `/proc/self/cgroup` has for it: version 2, and version 1."""


def available_bytes(root: Path = Path("/")) -> int | None:
    """Return what the machine and the control groups leave; None where the system does not say.

    https://docs.kernel.org/admin-guide/cgroup-v2.html; a group has no more than those around it.
    """
    return min((*_of_the_machine(root), *_of_the_groups(root)), default=None)


def _of_the_machine(root: Path) -> Iterator[int]:
    with suppress(OSError, ValueError, KeyError):
        yield 1024 * _numbers(root / "proc/meminfo")["MemAvailable:"]


def _of_the_groups(root: Path) -> Iterator[int]:
    lines: list[str] = []
    with suppress(OSError):
        lines = (root / "proc/self/cgroup").read_text(encoding="utf-8").splitlines()
    for line in lines:
        _, names, group = [*line.split(":", 2), "", ""][:3]
        for name in {*names.split(",")} & _HIERARCHIES.keys():
            yield from _rooms(root, _HIERARCHIES[name], PurePosixPath(group.lstrip("/")))


def _rooms(root: Path, hierarchy: _Hierarchy, group: PurePosixPath) -> Iterator[int]:
    """Yield what a group and those around it may still take."""
    for each in (group, *group.parents):
        yield from _room(root / hierarchy.folder / each, hierarchy)


def _room(folder: Path, hierarchy: _Hierarchy) -> Iterator[int]:
    """Yield what a group may still take; a limit of `max` is none."""
    with suppress(OSError, ValueError):
        limit = int((folder / hierarchy.limit).read_text(encoding="utf-8"))
        usage = int((folder / hierarchy.usage).read_text(encoding="utf-8"))
        reclaimable = _numbers(folder / "memory.stat").get(hierarchy.reclaimable, 0)
        yield max(limit - usage + reclaimable, 0)


def _numbers(path: Path) -> dict[str, int]:
    """Return the first number of each line by the line's first word."""
    lines = [line.split() for line in path.read_text(encoding="utf-8").splitlines()]
    return {words[0]: int(words[1]) for words in lines if len(words) > 1}


T = TypeVar("T")
_TRIED_ON = {"cuda"}
_MOMENTS = 2
"""Tensors that Adam keeps for each parameter, from the first step on."""


def in_smaller_batches(
    session: Session, batches: Sequence[Batch], attempt: Callable[[list[Batch]], T]
) -> T:
    """Attempt something with batches on the device; where one does not fit, again with its halves.

    `attempt` must begin anew each time; it raises BatchTooLarge. What it has added to the gradients
    is dropped then. Raises UserError for a pair that does not fit by itself, and where several
    processes train together: they wait for each other batch by batch.
    """
    batches = [*batches]
    while True:
        try:
            return attempt([batch.to(session.device) for batch in batches])
        except BatchTooLarge as error:
            number = error.number
        except torch.OutOfMemoryError:
            raise UserError(
                "the device has too little memory for the model and its optimiser: make the model "
                "smaller in a new run (--run), or take a larger device"
            ) from None
        session.learner.optimizer.zero_grad(set_to_none=True)
        batches[number : number + 1] = _halves(session, batches[number])


def try_heaviest(session: Session) -> None:
    """Try, on a GPU, the heaviest batch of an epoch, so that a lack of memory shows at once.

    The training is not touched: gradients are dropped, and dropout is seeded by each update.
    Raises UserError as `in_smaller_batches` does.
    """
    if session.device.type not in _TRIED_ON:
        return
    config, learner = session.config, session.learner
    store = session.corpus.epoch_store(session.state.epoch)
    plan = first_plan(session.corpus, config, epoch=session.state.epoch)
    budget = config.training.max_tokens_per_batch
    indices = heaviest(plan, store.lengths, max_tokens_per_batch=budget)
    batch = collate(store.examples(indices))
    moments = [
        torch.empty_like(parameter)
        for parameter in learner.model.parameters()
        if parameter.requires_grad and parameter not in learner.optimizer.state
        for _ in range(_MOMENTS)
    ]

    def attempt(batches: list[Batch]) -> None:
        for number, part in enumerate(batches):
            with naming_large_batch(number):
                with learner.precision.autocast():
                    sums = learner.training_pass(part)
                learner.precision.backward(sums.objective / batch.target_tokens)

    in_smaller_batches(session, [batch], attempt)
    learner.optimizer.zero_grad(set_to_none=True)
    del moments


def heaviest(plan: Sequence[Indices], lengths: Lengths, *, max_tokens_per_batch: int) -> Indices:
    """Return the batch of some updates with the most positions, those of both sides together."""
    batches = (
        batch
        for update in plan
        for batch in split_update(
            update, lengths, max_tokens_per_batch=max_tokens_per_batch, ranks=1
        )[0]
    )
    return max(batches, key=lambda batch: len(batch) * int(lengths[batch].max(axis=0).sum()))


def _halves(session: Session, batch: Batch) -> tuple[Batch, Batch]:
    """Say that a batch is halved, and do it."""
    training, rows = session.config.training, len(batch.index)
    key = f"`training.max_tokens_per_batch`, now {training.max_tokens_per_batch}"
    if isinstance(session.learner.training_pass, DistributedDataParallel):
        raise UserError(
            f"this rank's device has too little memory for a batch of {rows} pairs: lower {key}; "
            "the updates stay the same"
        )
    if rows == 1:
        raise UserError(
            f"pair {int(batch.index) + 1:,} of the corpus as encoded, of {batch.source_tokens} "
            f"source and {batch.target_tokens} target tokens, does not fit the device's memory by "
            "itself; in a new run (--run) leave such pairs out by a lower `data.max_tokens`, or "
            "make the model smaller; `training.precision` bf16 needs less, too"
        )
    session.progress.say_once(
        "the device has too little memory for a batch: such batches are taken in halves, which "
        f"costs time, and the updates stay the same; to avoid it, lower {key}"
    )
    session.progress.record(
        "out_of_memory",
        update=session.state.update,
        pairs=rows,
        source_positions=batch.source.numel(),
        target_positions=batch.target_out.numel(),
    )
    return batch.halves()


def pair_place(config: Config, corpus: Corpus, index: int) -> str:
    """Return "line N of ..." for a pair of the store; the corpus is read again where it has to be.

    Of pairs that are the same, the first that it can be.
    """
    within = index
    for origin in open_training_corpora(config.data):
        store = corpus.parts[origin.key]
        if within < len(store):
            break
        within -= len(store)
    source = origin.source
    number = _number(origin, store, within, tokenizer=corpus.tokenizer)
    if number is None:  # its text has characters that the tokenizer does not know
        return f"pair {within + 1:,} of those trained on, of {source.description}"
    word = "line" if isinstance(source, TextPairs | TsvPairs) else "pair"
    return f"{word} {number:,} of {source.description}"


def _number(
    origin: TrainingCorpus, store: PairStore, index: int, *, tokenizer: Tokenizer
) -> int | None:
    """Return the place of a pair among all pairs of its corpus, from 1."""
    if len(store) == store.left_out.total:
        return index + 1
    (example,) = store.examples([index])
    wanted = SentencePair(
        tokenizer.decode_source(example.source.tolist()),
        tokenizer.decode_target(example.target.tolist()),
    )
    # What the cleaning takes out cannot be meant: of the same pairs, it leaves the first.
    judged = enumerate(origin.cleaning.judge(origin.source.pairs()), 1)
    return next((number for number, each in judged if number > index and each.pair == wanted), None)


# What glibc's heap takes beyond the tensors that live at once: it gives no aligned block the place
# of a freed one of the same size. Measured on seven models, 1.2 to 1.7.
_HEAP_FACTOR = 1.4
# Work space of the matrix products, code that is read in when first used, the feed's thread.
_OTHER_BYTES = 20 * 2**20
# The code of bf16 products, as much of it as is kept.
_BF16_KERNEL_BYTES = 500 * 2**20
# The plan of an epoch while it is made, beside the one before it.
_PLAN_BYTES_PER_PAIR = 50
_MOMENTS_memory = 2
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

    By the tokens that its text has when it is translated, also where each epoch draws its own.
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
        lasting += [torch.empty_like(each) for each in learning for _ in range(_MOMENTS_memory)]
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
        f"target tokens, the longest is {pair_place(config, corpus, longest)}"
    )


def _remedies(config: Config) -> str:
    return (
        "lower `training.max_tokens_per_batch`, now "
        f"{config.training.max_tokens_per_batch} (the updates stay the same), or in a new run "
        f"`data.max_tokens`, now {config.data.max_tokens}, or take a smaller model"
    )


def _gib(size: int) -> str:
    return f"{size / 2**30:,.2f} GiB"
