"""How fast a config trains on this machine: the training loop itself, timed from outside."""

import sys
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
from mt.training.data import prepare
from mt.training.interruption import Interruption
from mt.training.loader import planned_updates
from mt.training.loss import LossSums
from mt.training.optimizer import Precision
from mt.training.run_folder import RunFolder
from mt.training.setup import Session, start
from mt.training.state import TrainState
from mt.training.step import Learner
from mt.training.trainer import run_updates

Phase = Literal["data", "forward", "loss", "backward", "optimiser"]
"""See `PhaseSeconds`."""
Begin = Callable[[Phase], None]


@dataclass(frozen=True)
class PhaseSeconds:
    """Mean seconds of an update in each phase."""

    data: float
    """Until the next batches are on the device: what lies between two updates."""
    forward: float
    """Encoder and decoder."""
    loss: float
    """Output layer and loss, with what they compute of their gradients at once."""
    backward: float
    optimiser: float
    """Clipping and the step."""


@contextmanager
def marked(learner: Learner, begin: Begin) -> Iterator[Learner]:
    """Give a learner that calls `begin` whenever a phase of an update begins.

    Nothing is put inside of what may be compiled.
    """
    model = learner.model
    states = model.states

    def marked_states(*batch: Tensor) -> Tensor:
        begin("forward")
        result = states(*batch)
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
    """A precision that says when a step begins and when it has been given to the device."""

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
    """Adds up the time of each phase, from the end of the first update on.

    It waits for the device at each mark, which a training doesn't: for shares, not for speed.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.updates = 0
        self._sums: dict[Phase, float] = dict.fromkeys(PhaseSeconds.__annotations__, 0.0)  # type: ignore[arg-type]
        self._phase: Phase | None = None
        self._since = 0.0

    def begin(self, phase: Phase) -> None:
        """End the phase that is going on, and begin this one."""
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


WARMUP_UPDATES = 5
"""Updates before the clock starts: memory is mapped, kernels are chosen, caches are filled."""
PHASE_UPDATES = 6
"""Updates of a second pass, which waits for the device at each phase; the first one is left out."""
MIB = 2**20


@dataclass(frozen=True)
class Side:
    """The sources, or the targets, of some batches."""

    lengths: NDArray[np.int64]
    """[N]: tokens of each sentence."""
    positions: int
    """Of the batches' rectangles, padding included."""

    @property
    def tokens(self) -> int:
        """Tokens of all sentences."""
        return int(self.lengths.sum())

    @property
    def padding(self) -> float:
        """Share of the positions that are padding."""
        return 1 - self.tokens / self.positions


@dataclass(frozen=True)
class Workload:
    """What some batches hold."""

    source: Side
    target: Side

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Tokens of source and target of each pair, [N 2]."""
        return np.stack([self.source.lengths, self.target.lengths], axis=1)


@dataclass(frozen=True)
class MatmulRates:
    """FLOP/s of matrix products around a measurement."""

    before: float
    after: float

    @property
    def mean(self) -> float:
        """Their mean."""
        return (self.before + self.after) / 2


@dataclass(frozen=True)
class Timing:
    """What the measured updates took."""

    seconds: float
    cpu_seconds: float
    waited_seconds: float
    """Time that the training waited for data."""
    loss: float
    """Label-smoothed, summed over all target tokens, in nats."""
    peak_device_mib: float | None
    """Of tensors on a CUDA device, at any time since the first update; None elsewhere."""


@dataclass(frozen=True)
class TrainingBenchmark:
    """How fast a config trains; tokens are counted without padding."""

    device: str
    precision: str
    threads: int
    updates: int
    work: Workload
    timing: Timing
    flops: int
    """Of the model's matrix products over these updates, forward and backward.

    Counted as if every part learned, whatever `training.freeze` says.
    """
    matmul_rates: MatmulRates
    """Of this device in this precision."""
    phases: PhaseSeconds
    peak_rss_mib: float | None
    """Of the whole process, from its start; None where the system does not say."""

    @property
    def source_tokens_per_second(self) -> float:
        """Source tokens a second."""
        return self.work.source.tokens / self.timing.seconds

    @property
    def target_tokens_per_second(self) -> float:
        """Target tokens a second."""
        return self.work.target.tokens / self.timing.seconds

    @property
    def flops_per_target_token(self) -> float:
        """Model FLOPs by target tokens."""
        return self.flops / self.work.target.tokens

    @property
    def matmul_share(self) -> float:
        """Model FLOPs a second as a share of the rate of matrix products."""
        return self.flops / self.timing.seconds / self.matmul_rates.mean


def benchmark_training(config: Config, updates: int) -> TrainingBenchmark:
    """Train a config for some updates in a folder that is then removed, and measure it.

    Raises what training raises where a config cannot be trained here.
    """
    keep_freed_memory()
    device = select_device(config.training.device)
    with ExitStack() as stack:
        folder = RunFolder(Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="mt-"))))
        config = with_end(config, WARMUP_UPDATES + updates + PHASE_UPDATES)
        corpus = prepare(config, folder)
        stack.callback(corpus.close)
        session = start(config, folder, corpus, device, [])
        stack.enter_context(session.progress)
        before = session_matmul_rate(session)
        timing = timed(session, updates)
        after = session_matmul_rate(session)
        clock = PhaseClock(device)
        _run(session, clock.begin)
        work = _work(session, updates)
    passes = 2 if config.training.r_drop else 1
    sizes = corpus.tokenizer.source_size, corpus.tokenizer.target_size
    return TrainingBenchmark(
        device=device.type,
        precision=session.learner.precision.name,
        threads=torch.get_num_threads(),
        updates=updates,
        work=work,
        timing=timing,
        flops=passes * int(training_flops(config.model, work.lengths, vocabularies=sizes).sum()),
        matmul_rates=MatmulRates(before, after),
        phases=clock.mean(),
        peak_rss_mib=peak_rss_mib(),
    )


def with_end(config: Config, updates: int) -> Config:
    """Return the config with an end after so many updates, and nothing between them."""
    changes = {
        "max_updates": updates,
        "max_epochs": None,
        "patience": None,
        "validate_every": updates + 1,
        "checkpoint_every": None,
    }
    return config.model_copy(update={"training": config.training.model_copy(update=changes)})


def _run(session: Session, begin: Begin) -> None:
    with marked(session.learner, begin) as learner:
        # Nobody waits for a checkpoint of it, so a signal may end it as it ends other programs.
        run_updates(replace(session, learner=learner), Interruption())


class _Stopwatch:
    """Runs from the end of the warm-up to that of the last update, the device having done it."""

    def __init__(self, session: Session, *, warmup: int, last: int) -> None:
        self.session = session
        self.warmup = warmup
        self.last = last
        self.updates = 0
        self.losses: list[Tensor] = []
        self.waited_before = 0.0
        self.times: list[tuple[float, float]] = []

    def begin(self, phase: Phase) -> None:
        """Take notice of a phase; with `data` an update is over."""
        if phase == "forward" and self.updates == self.warmup:
            self.waited_before = self.session.progress.waited_seconds
        if phase == "data":
            self.updates += 1
            if self.updates in {self.warmup, self.last}:
                synchronize(self.session.device)
                self.times.append((time.perf_counter(), time.process_time()))

    def keep_loss(self, _module: object, _arguments: object, sums: LossSums) -> None:
        """Keep the loss of a batch, unless it is one of the warm-up."""
        if self.updates >= self.warmup:
            # A copy: a compiled pass may use the same memory again.
            self.losses.append(sums.smoothed.detach().clone())


def timed(session: Session, updates: int, *, warmup: int = WARMUP_UPDATES) -> Timing:
    """Take `warmup` updates and then those that are timed, from where the session stands."""
    device, last = session.device, warmup + updates
    watch = _Stopwatch(session, warmup=warmup, last=last)
    on_cuda = device.type == "cuda"
    if on_cuda:
        torch.cuda.reset_peak_memory_stats(device)
    handle = session.learner.training_pass.register_forward_hook(watch.keep_loss)
    shorter = replace(session, config=with_end(session.config, last))
    _run(shorter, watch.begin)
    handle.remove()
    (began, cpu_began), (ended, cpu_ended) = watch.times
    return Timing(
        seconds=ended - began,
        cpu_seconds=cpu_ended - cpu_began,
        waited_seconds=session.progress.waited_seconds - watch.waited_before,
        loss=float(torch.stack(watch.losses).sum()),
        peak_device_mib=torch.cuda.max_memory_allocated(device) / MIB if on_cuda else None,
    )


def session_matmul_rate(session: Session) -> float:
    """Return the rate of this model's matrix products in its precision on its device, in FLOP/s."""
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


def _work(session: Session, updates: int) -> Workload:
    """Plan the run anew, and return what the measured updates held."""
    planned = planned_updates(session.config, session.corpus, TrainState(), torch.device("cpu"))
    taken = islice(planned, WARMUP_UPDATES, WARMUP_UPDATES + updates)
    return workload(batch for update in taken for batch in update.batches)


def workload(batches: Iterable[Batch]) -> Workload:
    """Return what some batches hold."""
    sources, targets = zip(*((batch.source, batch.target_out) for batch in batches), strict=True)
    return Workload(_side(sources), _side(targets))


def _side(rectangles: Sequence[Tensor]) -> Side:
    lengths = [(ids != PAD).sum(dim=1) for ids in rectangles]
    return Side(torch.cat(lengths).numpy(), sum(ids.numel() for ids in rectangles))


def peak_rss_mib() -> float | None:
    """Return the most memory that this process has held; None where the system does not say."""
    try:
        import resource
    except ImportError:  # not on Windows
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / MIB if sys.platform == "darwin" else peak / 1024  # kibibytes but on macOS
