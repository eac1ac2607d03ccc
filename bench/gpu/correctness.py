"""Sections that pass or fail in one process: values, waits, kernels, memory, compilation."""

import copy
import importlib.metadata
import os
import platform
import re
import shutil
import statistics
import subprocess
import sysconfig
import time
import tomllib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from bench.gpu.runner import (
    Check,
    Settings,
    Unavailable,
    attempt,
    observe,
    require,
)
from bench.gpu.workload import (
    KINDS,
    ROOT,
    SMALL_VOCABULARY,
    TINY,
    capture_alone,
    device_of,
    examples,
    learner,
    lengths,
    synchronize,
    transformer,
)
from mt import __version__ as mt_version
from mt.config import DecodingConfig
from mt.data.batches import SOURCE, Batch, collate
from mt.decoding.engine import Hypothesis
from mt.decoding.torch_engine import TorchEngine
from mt.training.distributed import ALONE
from mt.training.loader import BatchFitter
from mt.training.step import Learner, StepMetrics, UpdateResult, fetch_metrics, train_step

IMPORT_NAMES = {"ruamel.yaml": "ruamel"}
"""Packages whose module has another name; a submodule cannot be looked up without its package."""


def record(settings: Settings) -> Iterator[Check]:
    """Record device and software."""
    cuda = settings.device == "cuda"
    yield observe("mt", lambda: f"version {mt_version}")
    yield observe("commit", _commit)
    yield observe("Python", lambda: f"{platform.python_version()}, {platform.platform()}")
    yield observe("torch", lambda: f"{torch.__version__}, CUDA {torch.version.cuda}")
    yield observe("Triton", _triton)
    yield observe("C++ compiler", lambda: shutil.which(os.environ.get("CXX", "g++")) or "none")
    header = Path(sysconfig.get_path("include"), "Python.h")
    yield observe("Python.h, for Triton", lambda: "found" if header.exists() else "missing")
    yield attempt("packages that mt needs", _packages)
    if not cuda:
        return
    yield observe("cuDNN", lambda: str(torch.backends.cudnn.version()))  # type: ignore[no-untyped-call]
    yield observe("NCCL", _nccl)
    yield observe("GPU", _gpu)
    fields = "driver_version,power.limit,clocks.max.sm,clocks.max.memory"
    yield observe("driver", lambda: _output("nvidia-smi", f"--query-gpu={fields}", "--format=csv"))
    yield attempt("a copy to the device and back", _copy_there_and_back)
    yield attempt("bf16 without emulation", _bf16)


def _triton() -> str:
    return importlib.metadata.version("triton") if find_spec("triton") else "not installed"


def _commit() -> str:
    commit = _output("git", "-C", ROOT, "rev-parse", "HEAD")
    changed = _output("git", "-C", ROOT, "status", "--porcelain", "-uno")
    return f"{commit}{', with changes' if changed else ''}"


def _output(*command: object) -> str:
    found = subprocess.run([*map(str, command)], capture_output=True, text=True, check=True)
    return " ".join(found.stdout.split())


def _packages() -> str:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    names = [re.split(r"[<>=!~\[; ]", each)[0] for each in project["dependencies"]]
    missing = [name for name in names if find_spec(IMPORT_NAMES.get(name, name)) is None]
    if missing:
        raise Unavailable(f"missing: {', '.join(missing)}; `mt` needs some of them")
    return f"all {len(names)} are installed"


def _gpu() -> str:
    found = torch.cuda.get_device_properties(0)
    return (
        f"{found.name}, {found.total_memory / 2**30:.1f} GiB, {found.multi_processor_count} "
        f"multiprocessors, capability {found.major}.{found.minor}, {torch.cuda.device_count()} "
        "visible"
    )


def _copy_there_and_back() -> str:
    numbers = torch.arange(1000.0)
    require(torch.equal(numbers.cuda().cpu(), numbers), "other values")
    return "1,000 numbers"


def _nccl() -> str:
    return ".".join(map(str, torch.cuda.nccl.version()))  # type: ignore[no-untyped-call]


def _bf16() -> str:
    if not torch.cuda.is_bf16_supported(including_emulation=False):
        raise Unavailable("not supported: `training.precision: auto` takes fp32")
    return "supported: `training.precision: auto` takes it"


# Updates.

UPDATES = 3
WARM_UP = 2
"""Updates before the waits count: they allocate the state of the optimizer."""
UPDATE_CASES: list[tuple[str, str, dict[str, Any]]] = [
    *((kind, precision, {}) for kind in KINDS for precision in ("fp32", "bf16")),
    ("sinusoidal", "fp16", {}),
    ("rotary", "bf16", {"r_drop": 5.0}),
    ("sinusoidal", "fp16", {"r_drop": 5.0}),
    ("sinusoidal", "bf16", {"ema_decay": 0.9}),
    ("learned", "bf16", {"freeze": ("encoder", "target_embedding")}),
]
TOLERANCES = {"fp32": 5e-3, "bf16": 3e-2, "fp16": 3e-2}
"""Largest relative difference of a loss from fp32 on the CPU; fp32 products may be TF32."""


def updates(settings: Settings) -> Iterator[Check]:
    """Take updates that may not wait for the device, and compare their losses with the CPU's."""
    device = device_of(settings.device)
    # On a GPU, embeddings have another backward pass from 3,072 ids on.
    pairs = examples(
        lengths(24 if settings.small else 160, longest=40), vocabulary=SMALL_VOCABULARY
    )
    batches = [collate(pairs[:10]), collate(pairs[10:])]
    cases = UPDATE_CASES[::9] if settings.small else UPDATE_CASES
    for kind, precision, training in cases:
        name = ", ".join([kind, precision, *(f"{key} {value}" for key, value in training.items())])
        work = partial(_updates, {**TINY, **KINDS[kind]}, device, batches, precision, training)
        yield attempt(f"updates without a wait ({name})", work)


def _updates(
    model: dict[str, Any],
    device: torch.device,
    batches: Sequence[Batch],
    precision: str,
    training: dict[str, Any],
) -> str:
    cpu = torch.device("cpu")
    if "r_drop" in training:  # It needs dropout; this one changes no number.
        model = {**model, "dropout": 1e-9}
    plain = learner(model, cpu, vocabulary=SMALL_VOCABULARY, precision="fp32", **training)
    made = learner(model, device, vocabulary=SMALL_VOCABULARY, precision=precision, **training)
    expected = fetch_metrics(_take(plain, batches, 0, WARM_UP + UPDATES))
    pinned = [batch.pinned() for batch in batches] if device.type == "cuda" else batches
    results = _take(made, pinned, 0, WARM_UP)
    with waits_are_errors(device):
        results += _take(made, pinned, WARM_UP, UPDATES)
    found = fetch_metrics(results)
    worst = max(map(_difference, found, expected))
    limit = TOLERANCES[made.precision.name]
    numbers = f"relative difference of the losses from the CPU at most {worst:.1e} of {limit:.0e}"
    require(not any(step.skipped for step in found), "an update was skipped")
    require(worst <= limit, numbers)
    return numbers


def _take(made: Learner, batches: Sequence[Batch], first: int, number: int) -> list[UpdateResult]:
    device, results = made.precision.device, []
    for update in range(first, first + number):
        torch.manual_seed(update)
        results.append(train_step(made, [batch.to(device) for batch in batches], 1e-3))
        made.average.include(update + 1, results[-1].gradient_norm)
    return results


def _difference(found: StepMetrics, expected: StepMetrics) -> float:
    return abs(found.nll - expected.nll) / abs(expected.nll)


@contextmanager
def waits_are_errors(device: torch.device) -> Iterator[None]:
    """Let each operation raise that makes the host wait for the GPU."""
    if device.type != "cuda":
        yield
        return
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


# Attention.

HEADS, HEAD_WIDTH = 8, 64
MASKS = ("none", "causal", "bool", "float")
NEW_SHAPES = 20
SLOW_FIRST_CALL = 0.02
"""Seconds of a first call above which a backend plans for each shape."""


def attention(settings: Settings) -> Iterator[Check]:
    """Record the backend of each mask, and the time of the first call with a new shape."""
    device = device_of(settings.device)
    for dtype in (torch.float32,) if settings.small else (torch.bfloat16, torch.float32):
        for mask in MASKS:
            for rows, target, source in ((32, 64, 64), (29, 37, 41)):
                shape = rows, target, target if mask == "causal" else source
                name = f"{mask} mask, {str(dtype).removeprefix('torch.')}, {rows} x {shape[1:]}"
                yield attempt(f"backend of {name}", partial(_backend, mask, shape, dtype, device))
    for mask in MASKS:
        number = 2 if settings.small else NEW_SHAPES
        work = partial(_new_shapes, mask, number, device, device.type == "cuda")
        yield attempt(f"first call with a new shape ({mask} mask)", work)
    if device.type == "cuda":
        for mask in ("none", "bool"):
            with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
                work = partial(_new_shapes, mask, 4, device, False)
                yield observe(f"the same with cuDNN ({mask} mask)", work)


def _attend(
    mask: str, shape: tuple[int, int, int], dtype: torch.dtype, device: torch.device
) -> Tensor:
    """Run attention forward and backward; `shape` is [B T S]."""
    rows, target, source = shape
    query, key, value = (
        torch.randn(rows, HEADS, each, HEAD_WIDTH, device=device, dtype=dtype, requires_grad=True)
        for each in (target, source, source)
    )
    given: dict[str, Any] = {"is_causal": mask == "causal"}
    if mask == "bool":
        ends = torch.randint(1, source + 1, (rows, 1, 1, 1), device=device)
        given["attn_mask"] = torch.arange(source, device=device) < ends
    if mask == "float":
        given["attn_mask"] = torch.randn(1, HEADS, target, source, device=device, dtype=dtype)
    result = F.scaled_dot_product_attention(query, key, value, **given)
    result.sum().backward()  # type: ignore[no-untyped-call]
    return result


def _backend(
    mask: str, shape: tuple[int, int, int], dtype: torch.dtype, device: torch.device
) -> str:
    activities = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=activities) as profile:
        _attend(mask, shape, dtype, device)
    prefix = "aten::_scaled_dot_product_"
    names = {each.key for each in profile.key_averages() if each.key.startswith(prefix)}
    found = ", ".join(sorted(name.removeprefix(prefix) for name in names if "backward" not in name))
    require(bool(found), f"no operation {prefix}*")
    if device.type == "cuda":
        require("cudnn" not in found, f"{found}: cuDNN plans for each new shape")
        if "math" in found:
            raise Unavailable(f"{found}: slow, the weights of all pairs are in memory")
    return found


def _new_shapes(mask: str, number: int, device: torch.device, limited: bool) -> str:  # noqa: FBT001
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    _attend(mask, (7, 13, 13), dtype, device)
    first, second = list[float](), list[float]()
    for each in range(number):
        length = 14 + 3 * each
        shape = 8 + each, length, length if mask == "causal" else length + 5
        for times in (first, second):
            synchronize(device)
            began_at = time.perf_counter()
            _attend(mask, shape, dtype, device)
            synchronize(device)
            times.append(time.perf_counter() - began_at)
    typical = statistics.median(first)
    numbers = (
        f"median {1e3 * typical:.2f} ms, largest {1e3 * max(first):.2f} ms; second call median "
        f"{1e3 * statistics.median(second):.2f} ms; forward and backward, {number} shapes"
    )
    require(not limited or typical < SLOW_FIRST_CALL, numbers)
    return numbers


# Searches.

CONSTRAINTS = {"no_repeat_ngram": 2}
SEARCHES: dict[str, dict[str, Any]] = {
    "greedy": {"search": "greedy"},
    "beam": {"beam": 5},
    "sample": {"search": "sample", "top_k": 12, "top_p": 0.9},
    "constraints": {"beam": 4, **CONSTRAINTS},
    "constrained greedy": {"search": "greedy", **CONSTRAINTS},
    "constrained sample": {"search": "sample", **CONSTRAINTS},
}


@dataclass(frozen=True)
class SearchCase:
    """Row of the table of searches."""

    search: str
    kind: str = "sinusoidal"
    models: int = 1
    count: int = 1
    """Hypotheses of each source."""
    has_prefixes: bool = False

    def __str__(self) -> str:
        models = [f"{self.models} models"] * (self.models > 1)
        parts = [self.kind, *models, f"{self.count} best", *["prefixes"] * self.has_prefixes]
        return f"{self.search} ({', '.join(parts)})"


def searches(settings: Settings) -> Iterator[Check]:
    """Compare each search in fp32 with the ids and scores of the CPU."""
    torch.set_float32_matmul_precision("highest")  # an earlier section may have chosen TF32
    device = device_of(settings.device)
    pairs = examples(lengths(24, longest=24), vocabulary=SMALL_VOCABULARY)
    some = ("greedy", "beam", "sample")
    cases = [
        *(SearchCase(name) for name in SEARCHES),
        *(SearchCase(name, models=2) for name in some),
        *(SearchCase(name, count=4) for name in some[1:]),
        *(SearchCase(name, has_prefixes=True) for name in some),
        *(SearchCase("constraints", kind) for kind in KINDS if kind != "sinusoidal"),
    ]
    for case in cases[::8] if settings.small else cases:
        yield attempt(f"ids of {case}", partial(_search, case, pairs, device))
    for kind in [*KINDS][:1] if settings.small else KINDS:
        yield attempt(f"scores ({kind})", partial(_scores, kind, pairs, device))
        yield attempt(f"alignments ({kind})", partial(_alignments, kind, pairs, device))


def _engines(kind: str, models: int, device: torch.device) -> tuple[TorchEngine, TorchEngine]:
    made = [
        transformer({**TINY, **KINDS[kind]}, vocabulary=SMALL_VOCABULARY, seed=seed)
        for seed in range(models)
    ]
    moved = [copy.deepcopy(each).to(device) for each in made]
    cpu = torch.device("cpu")
    return TorchEngine(made[0], cpu, made[1:]), TorchEngine(moved[0], device, moved[1:])


def _search(case: SearchCase, pairs: Sequence[Any], device: torch.device) -> str:
    plain, made = _engines(case.kind, case.models, device)
    decoding = DecodingConfig.model_validate({"max_length_extra": 6, **SEARCHES[case.search]})
    sources = [pair.source.tolist() for pair in pairs]
    prefixes = [tuple(range(7, 7 + number % 3)) for number in range(len(sources))]
    forced = prefixes if case.has_prefixes else ()

    def translate(engine: TorchEngine) -> list[list[Hypothesis]]:
        return engine.n_best_ids(sources, decoding, case.count, prefixes=forced)

    expected, found = translate(plain), translate(made)
    equal = sum(
        [hypothesis.ids for hypothesis in some] == [hypothesis.ids for hypothesis in others]
        for some, others in zip(found, expected, strict=True)
    )
    finished = sum(best.finished for best, *_ in expected)
    tokens = sum(len(best.ids) for best, *_ in expected)
    numbers = f"{equal} of {len(sources)} equal, {tokens} tokens, {finished} finished"
    require(equal == len(sources), numbers)
    off = max(
        abs(one.score - other.score)
        for some, others in zip(found, expected, strict=True)
        for one, other in zip(some, others, strict=True)
    )
    require(off < 1e-2, f"{numbers}, but a score differs by {off:.1e}")
    return f"{numbers}, scores differ by at most {off:.1e}"


def _scores(kind: str, pairs: Sequence[Any], device: torch.device) -> str:
    plain, made = _engines(kind, 1, device)
    sides = [[each.tolist() for each in side] for side in zip(*map(_sides, pairs), strict=True)]
    both = zip(made.score(*sides), plain.score(*sides), strict=True)
    off = max(abs(one - other) for each in both for one, other in zip(*each, strict=True))
    require(off < 1e-2, f"a log-probability differs by {off:.1e}")
    return f"log-probabilities differ by at most {off:.1e}"


def _sides(pair: Any) -> tuple[Any, Any]:
    return pair.source, pair.target


def _alignments(kind: str, pairs: Sequence[Any], device: torch.device) -> str:
    plain, made = _engines(kind, 1, device)
    sources = [pair.source.tolist() for pair in pairs]
    given = [Hypothesis(tuple(pair.target[:-1].tolist()), 0.0, 0.0, True) for pair in pairs]
    found, expected = made.explain(sources, given), plain.explain(sources, given)
    equal = sum(map(lambda one, other: one.alignment == other.alignment, found, expected))
    require(equal == len(pairs), f"{equal} of {len(pairs)} equal")
    return f"{equal} of {len(pairs)} equal"


# Lack of memory.

WIDE = {**TINY, "d_model": 256, "d_ff": 1024}
MARGIN = 1.3
"""Smallest ratio of the memory of whole batches to that of parts at which a cap can be set."""


def memory(settings: Settings) -> Iterator[Check]:
    """Cap the memory between the needs of whole batches and of their parts."""
    device, small = device_of(settings.device), settings.small
    yield attempt("batches split in training", partial(_split_training, device, small))
    yield attempt("batches split in decoding", partial(_split_decoding, device, small))


def _peak(work: Callable[[], object], device: torch.device) -> int:
    """Return the bytes that the allocator reserves during `work`."""
    if device.type != "cuda":
        work()
        return 0
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    work()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_reserved()


@contextmanager
def _memory_between(parts: int, whole: int, device: torch.device) -> Iterator[str]:
    """Allow this process a memory between two needs, in bytes."""
    if device.type != "cuda":
        yield "no cap on a CPU"
        return
    numbers = f"whole {whole / 2**20:,.0f} MiB, parts {parts / 2**20:,.0f} MiB"
    if whole < MARGIN * parts:
        raise AssertionError(f"{numbers}: too near for a cap")
    cap = (parts + whole) // 2
    torch.cuda.empty_cache()
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction(cap / total)
    try:
        yield f"{numbers}, cap {cap / 2**20:,.0f} MiB"
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)


def _split_training(device: torch.device, small: bool) -> str:  # noqa: FBT001
    rows, longest = (8, 12) if small else (256, 64)
    made = learner(WIDE, device, vocabulary=1000, precision="fp32", gradient_clip=1.0)
    drawn = lengths(rows, longest=longest)
    drawn[:] = longest
    batch = collate(examples(drawn, vocabulary=1000))
    quarters = [quarter for half in batch.halves() for quarter in half.halves()]

    def take(batches: Sequence[Batch]) -> float:
        """Take an update with a rate of 0, which changes no weight, and return its loss."""
        result = train_step(made, [batch.to(device) for batch in batches], 0.0)
        return fetch_metrics([result])[0].nll

    expected = take(quarters)  # allocates the state of the optimizer
    parts, whole = _peak(lambda: take(quarters), device), _peak(lambda: take([batch]), device)
    unused: Any = SimpleNamespace(warn_once=lambda *_, **__: None, record=lambda *_, **__: None)
    fitter = BatchFitter(made, unused, unused, ALONE, tokens=1, longest=1)

    def once(batches: list[Batch]) -> tuple[int, float]:
        return len(batches), fetch_metrics([train_step(made, batches, 0.0)])[0].nll

    with _memory_between(parts, whole, device) as numbers:
        count, loss = fitter.run(once, [batch], update=1)
    require(small or count > 1, f"{numbers}: not split")
    off = abs(loss - expected) / expected
    require(off < 1e-3, f"{numbers}: the loss differs by {off:.1e} of its value")
    return f"{numbers}: {count} batches, the loss differs by {off:.1e} of its value"


def _split_decoding(device: torch.device, small: bool) -> str:  # noqa: FBT001
    rows, longest = (8, 12) if small else (256, 64)
    model = transformer(WIDE, vocabulary=1000).to(device)
    engine = TorchEngine(model, device)
    drawn = lengths(rows, longest=longest)
    drawn[:] = longest
    sources = [pair.source.tolist() for pair in examples(drawn, vocabulary=1000)]

    def translate(size: int) -> list[tuple[int, ...]]:
        keys = {"beam": 5, "batch_size": size, "max_length_extra": 1}
        found = engine.translate_ids(sources, DecodingConfig.model_validate(keys))
        return [hypothesis.ids for hypothesis in found]

    expected = translate(rows // 4)
    parts = _peak(lambda: translate(rows // 4), device)
    whole = _peak(lambda: translate(rows), device)
    with _memory_between(parts, whole, device) as numbers:
        found = translate(rows)
    equal = sum(map(tuple.__eq__, found, expected))
    require(equal == rows, f"{numbers}: {equal} of {rows} translations equal")
    return f"{numbers}: {equal} of {rows} translations equal"


# Compilation.

COMPILED_LENGTHS = (1, 2, 3, 7, 8, 16, 33, 64, 100, 128, 129, 255, 256, 257, 300, 512)
COMPILED_ROWS = (1, 2, 5, 32)
COMPILE_SECONDS = 20.0
"""Time of one compilation, without which no further shape begins."""
MOST_GRAPHS = 12
"""With and without padding, of one pair or several, of one token or several; and the loss."""


class Shape(NamedTuple):
    """Shape of a batch."""

    rows: int
    length: int
    is_padded: bool


def compilation(settings: Settings) -> Iterator[Check]:
    """Count the graphs that `training.compile: on` builds over many shapes."""
    from torch._dynamo.utils import counters

    device = device_of(settings.device)
    shapes = [
        Shape(rows, length, is_padded)
        for length in (COMPILED_LENGTHS[1:6:2] if settings.small else COMPILED_LENGTHS)
        for rows in COMPILED_ROWS
        for is_padded in (True, False)
    ]
    with capture_alone(settings):
        made = learner(
            {**TINY, "encoder_layers": 1, "decoder_layers": 1},
            device,
            vocabulary=SMALL_VOCABULARY,
            precision="fp32" if settings.small else "bf16",
            compile="on",
        )

        def take(of: Sequence[Shape]) -> tuple[int, float]:
            """Return the number of new graphs and the seconds of some updates.

            Raises Unavailable where the time of the section does not suffice.
            """
            before, began_at = counters["stats"]["unique_graphs"], time.perf_counter()
            for number, (rows, length, is_padded) in enumerate(of):
                if settings.seconds_left < COMPILE_SECONDS:
                    graphs = counters["stats"]["unique_graphs"] - before
                    raise Unavailable(f"{graphs} for {number} of {len(of)} shapes, time is over")
                drawn = lengths(rows, longest=max(length, 2))
                drawn[:] = length
                drawn[1:, SOURCE] -= int(is_padded and length > 2)
                batch = collate(examples(drawn, vocabulary=SMALL_VOCABULARY)).to(device)
                train_step(made, [batch], 1e-4)
            synchronize(device)
            return counters["stats"]["unique_graphs"] - before, time.perf_counter() - began_at

        def graphs() -> str:
            count, seconds = take(shapes)
            numbers = f"{count} for {len(shapes)} shapes in {seconds:.0f} s"
            require(0 < count <= MOST_GRAPHS, f"{numbers}, at most {MOST_GRAPHS} are expected")
            return numbers

        def later_graphs() -> str:
            later = [(rows + 3, length + 1, padded) for rows, length, padded in shapes]
            count, _ = take([Shape(*each) for each in later if each[1] < max(COMPILED_LENGTHS)])
            require(count == 0, f"{count}")
            return "0"

        def breaks() -> str:
            found = dict(counters["graph_break"])
            require(not found, f"{sum(found.values())}: {next(iter(found), '')[:200]}")
            return "0"

        yield attempt("graphs", graphs)
        yield attempt("graphs of other shapes thereafter", later_graphs)
        yield attempt("graph breaks", breaks)
