"""Training speed of a config on this machine: the training loop itself, timed from outside."""

import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mt.config import Config
from mt.data.batches import Batch
from mt.model.device import keep_freed_memory, select_device
from mt.profiling.cost import matmul_rate, model_products, synchronize, training_flops
from mt.special_ids import PAD
from mt.training.automatic import choose_settings
from mt.training.data import prepare
from mt.training.device_settings import for_device
from mt.training.interruption import Interruption
from mt.training.loader import planned_updates
from mt.training.loss import LossSums
from mt.training.memory import try_heaviest
from mt.training.optimizer import Precision
from mt.training.run_folder import RunFolder, peak_memory_mib
from mt.training.setup import Session, start
from mt.training.state import TrainState
from mt.training.step import Learner
from mt.training.trainer import run_updates

WARMUP_UPDATES = 5
"""Updates before the clock starts: memory is mapped, kernels are chosen, caches are filled."""
PHASE_UPDATES = 6
"""Updates of a second pass that times the phases; the first one is left out."""
MIB = 2**20
Phase = Literal["data", "forward", "loss", "backward", "optimiser"]
"""See `PhaseSeconds`."""
Begin = Callable[[Phase], None]
"""Callback at the beginning of a phase."""


@dataclass(frozen=True)
class Side:
    """The sources, or the targets, of some batches."""

    lengths: NDArray[np.int64]
    """Tokens of each sentence [N]."""
    positions: int
    """Size of the batches, padding included."""

    @property
    def tokens(self) -> int:
        """Tokens of all sentences."""
        return int(self.lengths.sum())

    @property
    def padding(self) -> float:
        """Padding as a share of the positions."""
        return 1 - self.tokens / self.positions


@dataclass(frozen=True)
class Workload:
    """Sentences of some batches."""

    source: Side
    target: Side

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Tokens of source and target of each pair [N 2]."""
        return np.stack([self.source.lengths, self.target.lengths], axis=1)


@dataclass(frozen=True)
class MatmulRates:
    """Rates of matrix products before and after a measurement, in FLOP/s."""

    before: float
    after: float

    @property
    def mean(self) -> float:
        """Their mean."""
        return (self.before + self.after) / 2


@dataclass(frozen=True)
class Timing:
    """Measurements of some updates."""

    seconds: float
    cpu_seconds: float
    waited_seconds: float
    """Time that training waited for data."""
    loss: float
    """Label-smoothed, summed over all target tokens, in nats."""
    peak_device_mib: float | None
    """Peak of tensors on a CUDA device since the first update; None elsewhere."""


@dataclass(frozen=True)
class PhaseSeconds:
    """Mean time of each phase of an update."""

    data: float
    """Between two updates, until the next batches are on the device."""
    forward: float
    """Encoder and decoder."""
    loss: float
    """Output layer and loss, with the part of their gradients that is computed at once."""
    backward: float
    optimiser: float
    """Clipping and the step."""


@dataclass(frozen=True)
class TrainingBenchmark:
    """Training speed of a config; tokens and operations exclude padding."""

    device: str
    precision: str
    threads: int
    updates: int
    work: Workload
    timing: Timing
    flops: int
    """Operations of these updates, forward and backward, `training.freeze` disregarded."""
    matmul_rates: MatmulRates
    """Of this device in this precision."""
    phases: PhaseSeconds
    peak_rss_mib: float | None
    """Peak memory of the process since its start; None if unknown."""

    @property
    def source_tokens_per_second(self) -> float:
        """Source tokens per second."""
        return self.work.source.tokens / self.timing.seconds

    @property
    def target_tokens_per_second(self) -> float:
        """Target tokens per second."""
        return self.work.target.tokens / self.timing.seconds

    @property
    def flops_per_target_token(self) -> float:
        """Operations per target token."""
        return self.flops / self.work.target.tokens

    @property
    def matmul_share(self) -> float:
        """Operations per second as a share of the rate of matrix products."""
        return self.flops / self.timing.seconds / self.matmul_rates.mean


def benchmark_training(config: Config, updates: int) -> TrainingBenchmark:
    """Train a config for some updates in a temporary folder, and measure it.

    Raises the errors of training for a config that cannot be trained here.
    """
    config = choose_settings(config, select_device(config.training.device)).applied()
    with temporary_session(config, WARMUP_UPDATES + updates + PHASE_UPDATES) as session:
        before = _matmul_rate(session)
        timing = timed(session, updates)
        rates = MatmulRates(before, _matmul_rate(session))
        clock = PhaseClock(session.device)
        _run(session, clock.begin)
        # The run is planned again to count the sentences of the measured updates.
        corpus, cpu = session.corpus, torch.device("cpu")
        planned = planned_updates(session.config.training, corpus, TrainState(), cpu)
        measured = islice(planned, WARMUP_UPDATES, WARMUP_UPDATES + updates)
        work = workload(batch for update in measured for batch in update.batches)
        sizes = corpus.tokenizer.source_size, corpus.tokenizer.target_size
    passes = 2 if config.training.r_drop else 1
    return TrainingBenchmark(
        device=session.device.type,
        precision=session.learner.precision.name,
        threads=torch.get_num_threads(),
        updates=updates,
        work=work,
        timing=timing,
        flops=passes * int(training_flops(config.model, work.lengths, vocabularies=sizes).sum()),
        matmul_rates=rates,
        phases=clock.mean(),
        peak_rss_mib=peak_memory_mib(),
    )


@contextmanager
def temporary_session(config: Config, updates: int) -> Iterator[Session]:
    """Yield a new session in a temporary folder, which ends after `updates`."""
    keep_freed_memory()
    is_automatic = config.training.is_open("max_tokens_per_batch")
    device = select_device(config.training.device)
    config = with_end(for_device(config, device), updates)
    with ExitStack() as stack:
        folder = RunFolder(Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="mt-"))))
        corpus = prepare(config, folder)
        stack.callback(corpus.close)
        session = start(config, folder, corpus, device, [])
        stack.enter_context(session.progress)
        yield try_heaviest(session, is_automatic=is_automatic)


def with_end(config: Config, updates: int) -> Config:
    """Return a config that ends after `updates`, without validation or checkpoint before."""
    changes = {
        "max_updates": updates,
        "max_epochs": None,
        "patience": None,
        "validate_every": updates + 1,
        "checkpoint_every": None,
    }
    return config.model_copy(update={"training": config.training.model_copy(update=changes)})


def workload(batches: Iterable[Batch]) -> Workload:
    """Return the sentences of some batches."""
    sources, targets = zip(*((batch.source, batch.target_out) for batch in batches), strict=True)
    return Workload(_side(sources), _side(targets))


def _side(rectangles: Sequence[Tensor]) -> Side:
    lengths = [(ids != PAD).sum(dim=1) for ids in rectangles]
    return Side(torch.cat(lengths).numpy(), sum(ids.numel() for ids in rectangles))


def _matmul_rate(session: Session) -> float:
    """Return the rate of the model's matrix products in its precision, in FLOP/s."""
    training, device = session.config.training, session.device
    products = model_products(
        session.config.model,
        positions=min(training.target_tokens_per_update, training.max_tokens_per_batch),
        vocabulary=session.corpus.tokenizer.target_size,
    )
    with session.learner.precision.autocast():
        lowered = torch.is_autocast_enabled(device.type)
        dtype = torch.get_autocast_dtype(device.type) if lowered else torch.float32
    return matmul_rate(products, device, dtype)


def timed(session: Session, updates: int, *, warmup: int = WARMUP_UPDATES) -> Timing:
    """Run `warmup` >= 1 updates and then `updates` that are timed, from the session's state."""
    device, last = session.device, warmup + updates
    watch = _Stopwatch(session, warmup=warmup, last=last)
    on_cuda = device.type == "cuda"
    if on_cuda:
        torch.cuda.reset_peak_memory_stats(device)
    handle = session.learner.training_pass.register_forward_hook(watch.keep_loss)
    _run(
        replace(session, config=with_end(session.config, session.state.update + last)), watch.begin
    )
    handle.remove()
    (began, cpu_began), (ended, cpu_ended) = watch.times
    return Timing(
        seconds=ended - began,
        cpu_seconds=cpu_ended - cpu_began,
        waited_seconds=session.progress.waited_seconds - watch.waited_before,
        loss=float(torch.stack(watch.losses).sum()),
        peak_device_mib=torch.cuda.max_memory_allocated(device) / MIB if on_cuda else None,
    )


def _run(session: Session, begin: Begin) -> None:
    with marked(session.learner, begin) as learner:
        # There is no checkpoint to finish, so a signal may end the program at once.
        run_updates(replace(session, learner=learner), Interruption())


class _Stopwatch:
    """Times the updates between the warm-up and the last one."""

    def __init__(self, session: Session, *, warmup: int, last: int) -> None:
        self.session = session
        self.warmup = warmup
        self.last = last
        self.updates = 0
        self.losses: list[Tensor] = []
        self.waited_before = 0.0
        self.times: list[tuple[float, float]] = []

    def begin(self, phase: Phase) -> None:
        """Count an update when its last phase is over, and read the clocks when due."""
        if phase == "forward" and self.updates == self.warmup:
            self.waited_before = self.session.progress.waited_seconds
        if phase == "data":
            self.updates += 1
            if self.updates in {self.warmup, self.last}:
                synchronize(self.session.device)
                self.times.append((time.perf_counter(), time.process_time()))

    def keep_loss(self, _module: object, _arguments: object, sums: LossSums) -> None:
        """Keep the loss of a batch after the warm-up."""
        if self.updates >= self.warmup:
            # A copy: a compiled pass may reuse the memory.
            self.losses.append(sums.smoothed.detach().clone())


@contextmanager
def marked(learner: Learner, begin: Begin) -> Iterator[Learner]:
    """Yield a learner that calls `begin` at the beginning of each phase of an update.

    Code that may be compiled is called from outside and left as it is.
    """
    model = learner.model
    states = model.states

    def marked_states(*batch: Tensor, source_tokens: int | None = None) -> Tensor:
        begin("forward")
        result = states(*batch, source_tokens=source_tokens)
        begin("loss")
        return result

    model.states = marked_states  # type: ignore[method-assign, assignment]
    handle = learner.training_pass.register_forward_hook(lambda *_: begin("backward"))
    try:
        yield replace(learner, precision=_MarkedPrecision(learner.precision, begin))
    finally:
        model.states = states  # type: ignore[method-assign]
        handle.remove()


class _MarkedPrecision(Precision):
    """A precision that calls `begin` before and after each optimiser step."""

    def __init__(self, precision: Precision, begin: Begin) -> None:
        super().__init__(precision.name, precision.device)
        self.scaler = precision.scaler
        self.begin = begin

    def unscale(self, optimizer: torch.optim.Optimizer) -> None:
        """Unscale the gradients, before clipping and the step."""
        self.begin("optimiser")
        super().unscale(optimizer)

    def step(self, optimizer: torch.optim.Optimizer, gradient_norm: Tensor) -> None:
        """Step, after which the update is over."""
        super().step(optimizer, gradient_norm)
        self.begin("data")


class PhaseClock:
    """Sums the time of each phase, from the end of the first update on.

    It waits for the device at each mark, which training does not: good for shares, not for speed.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.updates = 0
        self._sums: dict[Phase, float] = dict.fromkeys(PhaseSeconds.__annotations__, 0.0)  # type: ignore[arg-type]
        self._phase: Phase | None = None
        self._since = 0.0

    def begin(self, phase: Phase) -> None:
        """End the current phase and begin another one."""
        synchronize(self.device)
        now = time.perf_counter()
        if self._phase is not None:
            self._sums[self._phase] += now - self._since
            self.updates += phase == "data"
        elif phase != "data":
            return
        self._phase, self._since = phase, now

    def mean(self) -> PhaseSeconds:
        """Return the mean over the updates since the first."""
        return PhaseSeconds(**{phase: sum_ / self.updates for phase, sum_ in self._sums.items()})
