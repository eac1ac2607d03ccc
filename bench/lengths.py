"""Time and memory of attention and feed-forward layers by sentence length, at base width.

    python bench/lengths.py -o docs/images/attention-cost.svg

The batch is one sentence without padding, in fp32, on the encoder's side. The parts are the
feed-forward layer (ReLU); self-attention (projections, scores, softmax, values, and the work of the
positional encoding in each layer); its core, which is self-attention without the four projections;
and, for encodings with a bias on the scores, the computation of this bias, once per stack.

On the CPU one thread computes and its CPU time is measured, which other programs disturb little;
elsewhere it is wall-clock time. A time is the median over rounds through all cases; within a round,
short cases are repeated and averaged. Memory is the peak of tensors that torch allocates during a
call, beyond weights, inputs and a finished bias: from torch.profiler on the CPU, from the allocator
on CUDA.
Tables go to stdout, progress to stderr.
"""

import argparse
import json
import logging
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import accumulate, product
from pathlib import Path
from typing import Any, Literal

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile, record_function
from tqdm import tqdm

from mt.config import ModelConfig
from mt.errors import run_reporting_errors
from mt.model.attention import EVERYWHERE, Attention, Mask
from mt.model.device import select_device
from mt.model.positional import POSITIONAL, Positional
from mt.model.sublayers import FEED_FORWARD
from mt.model.transformer import SelfAttention
from mt.model.weights import Gains
from mt.plotting.figures import check_picture, line_look, write_picture

LENGTHS = (32, 64, 128, 256, 512, 1024, 2048, 4096)
KINDS = ("none", "rotary", "alibi", "relative_bias", "relative")
"""In attention, `sinusoidal` and `learned` cost the same as `none`."""
FEED_FORWARD_NAME = "feed-forward"
MARKERS = "osD^vXP"
POSITIONS_A_ROUND = 1024
"""A case is repeated until this many positions have been computed."""
MIB = 2**20

Pass = Literal["forward", "forward and backward"]
PASSES: tuple[Pass, Pass] = ("forward", "forward and backward")


@dataclass(frozen=True)
class Work:
    """Work of a part at one length."""

    run: Callable[[], Tensor]
    leaves: list[Tensor]
    """Inputs and weights that get gradients; may be empty."""


Part = Callable[[int], Work]
"""Function that prepares the work of a length."""


@dataclass
class Case:
    """A part at a length, in one of the passes, with its measurements."""

    part: str
    length: int
    pass_: Pass
    call: Callable[[], None]
    seconds: list[float] = field(default_factory=list)
    """One per round."""
    peak_mib: float | None = None
    """None where it is unknown."""

    @property
    def milliseconds(self) -> float:
        """Median of the rounds."""
        return 1000 * statistics.median(self.seconds)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print the tables and draw the picture."""
    options = _parser().parse_args(arguments)
    if options.output is not None:
        check_picture(options.output)
    device = select_device(options.device)
    if device.type == "cpu":
        torch.set_num_threads(1)
    cases = list(make_cases(options.lengths, device))
    measure_peaks(cases, device)
    for _, case in tqdm(list(product(range(options.rounds), cases)), "time", disable=None):
        case.seconds.append(_seconds(case, device))
    print(as_markdown(cases))
    if options.output is not None:
        write_picture(options.output, lambda: _draw(cases))
    return 0


def make_cases(lengths: Sequence[int], device: torch.device) -> Iterator[Case]:
    """Yield a case for each part, length and pass."""
    torch.manual_seed(1)
    with device:
        for length, (name, part) in product(sorted(lengths), _parts().items()):
            work = part(length)
            yield Case(name, length, PASSES[0], _forward(work))
            yield Case(name, length, PASSES[1], _forward_and_backward(work))


def as_markdown(cases: Sequence[Case]) -> str:
    """Return four tables with a row for each part: time and memory of each pass, by length."""
    tables = []
    for pass_ in PASSES:
        chosen = [case for case in cases if case.pass_ == pass_]
        times = {(case.part, case.length): _digits(case.milliseconds) for case in chosen}
        peaks = {(case.part, case.length): _digits(case.peak_mib) for case in chosen}
        tables += [f"Milliseconds, {pass_}, by length:", "", *_table(times), ""]
        tables += [f"MiB at the peak, {pass_}, by length:", "", *_table(peaks), ""]
    return "\n".join(tables[:-1])


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("-o", "--output", type=Path, help="picture to draw, .svg or .png")
    parser.add_argument("--lengths", nargs="+", default=LENGTHS, type=int)
    parser.add_argument("--rounds", default=7, type=int, help="times that each case is measured")
    parser.add_argument("--device", default="auto", help="auto, cuda, mps or cpu")
    return parser


def _parts() -> dict[str, Part]:
    configs = {kind: ModelConfig.model_validate({"positional": kind}) for kind in KINDS}
    biases = {
        kind: configs[kind] for kind in KINDS if _positional(configs[kind]).bias(1, 1) is not None
    }
    return {
        FEED_FORWARD_NAME: partial(_feed_forward, ModelConfig()),
        **{f"attention, {kind}": partial(_attention, config) for kind, config in configs.items()},
        **{f"core, {kind}": partial(_core, config) for kind, config in configs.items()},
        **{f"bias, {kind}": partial(_bias, config) for kind, config in biases.items()},
    }


def _feed_forward(config: ModelConfig, length: int) -> Work:
    layer = FEED_FORWARD[config.feed_forward](config, 1.0)
    x = _leaf(1, length, config.d_model)
    return Work(lambda: layer(x), [x, *layer.parameters()])


def _attention(config: ModelConfig, length: int) -> Work:
    """Map states [1 T D] to [1 T D]."""
    layer, positional = SelfAttention(config, Gains()), _positional(config)
    bias, leaves = _made_bias(positional, length)
    x, of_layer = _leaf(1, length, config.d_model), positional.layer(0)
    leaves += [x, *layer.parameters(), *of_layer.parameters()]
    return Work(lambda: layer(x, _mask(bias), of_layer), leaves)


def _core(config: ModelConfig, length: int) -> Work:
    """Attend with queries to keys and values [1 H T K]: scores, softmax, values alone."""
    attention, positional = Attention(config, Gains()), _positional(config)
    attention.output = nn.Identity()  # type: ignore[assignment]
    bias, leaves = _made_bias(positional, length)
    q, k, v = (_leaf(1, config.heads, length, config.key_width) for _ in range(3))
    of_layer = positional.layer(0)

    def run() -> Tensor:
        rotated = positional.rotate(q, 0), positional.rotate(k, 0)
        return of_layer.attend(attention, *rotated, v, _mask(bias))

    return Work(run, [*leaves, q, k, v, *of_layer.parameters()])


def _bias(config: ModelConfig, length: int) -> Work:
    """Compute the bias on the scores of all layers of a stack."""
    positional = _positional(config)

    def run() -> Tensor:
        bias = positional.bias(length, length)
        assert bias is not None
        return bias

    return Work(run, list(positional.parameters()))


def _positional(config: ModelConfig) -> Positional:
    positional = POSITIONAL[config.positional](config, "encoder")
    return positional.to(torch.get_default_device())  # tables of sinusoids start on the CPU


def _made_bias(positional: Positional, length: int) -> tuple[Tensor | None, list[Tensor]]:
    """Return a stack's finished bias, if any, and a list that holds it if it is learned."""
    bias = positional.bias(length, length)
    if bias is None:
        return None, []
    made = bias.detach().requires_grad_(bias.requires_grad)
    return made, [made] if made.requires_grad else []


def _mask(bias: Tensor | None) -> Mask:
    """Return the mask of an encoder without padding."""
    if bias is None or torch.is_grad_enabled():
        return EVERYWHERE.with_bias(bias)
    return EVERYWHERE.with_bias(bias.detach())  # some kernels reject masks with gradients


def _leaf(*shape: int) -> Tensor:
    return torch.randn(shape, requires_grad=True)


def _forward(work: Work) -> Callable[[], None]:
    def call() -> None:
        with torch.no_grad():
            work.run()

    return call


def _forward_and_backward(work: Work) -> Callable[[], None]:
    def call() -> None:
        out = work.run()
        if work.leaves:
            # Weights that only the whole layer uses have no gradient in its core.
            torch.autograd.grad(out, work.leaves, torch.ones_like(out), allow_unused=True)

    return call


def _seconds(case: Case, device: torch.device) -> float:
    """Return the mean time of a call, repeated until enough positions have been computed."""
    times = max(1, POSITIONS_A_ROUND // case.length)
    clock = time.process_time if device.type == "cpu" else time.perf_counter
    _wait(device)
    started_at = clock()
    for _ in range(times):
        case.call()
    _wait(device)
    return (clock() - started_at) / times


def _wait(device: torch.device) -> None:
    if device.type != "cpu":
        torch.accelerator.synchronize(device)


def measure_peaks(cases: Sequence[Case], device: torch.device) -> None:
    """Set `peak_mib` of all cases, after a first call of each, which warms up as well."""
    if device.type == "cpu":
        _measure_on_cpu(cases)
        return
    for case in tqdm(cases, "memory", disable=None):
        case.call()
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)
            before = torch.cuda.memory_allocated(device)
            case.call()
            case.peak_mib = (torch.cuda.max_memory_allocated(device) - before) / MIB


def _measure_on_cpu(cases: Sequence[Case]) -> None:
    """Take the peaks from the profiler's records, in one session because each one logs."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        for number, case in enumerate(tqdm(cases, "memory", disable=None)):
            case.call()
            with record_function(f"case {number}"):
                case.call()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(path))
        events = json.loads(path.read_text(encoding="utf-8"))["traceEvents"]
    spans = {event["name"]: event for event in events if event.get("cat") == "user_annotation"}
    changes = [event for event in events if event.get("name") == "[memory]"]
    for number, case in enumerate(cases):
        span = spans[f"case {number}"]
        within = [c for c in changes if 0 <= c["ts"] - span["ts"] <= span["dur"]]
        case.peak_mib = _peak(sorted(within, key=lambda change: change["ts"])) / MIB


def _peak(changes: Sequence[dict[str, Any]]) -> int:
    """Return the most bytes held at once, of those allocated within these changes."""
    sizes = [int(change["args"]["Bytes"]) for change in changes]
    return max(accumulate(sizes, initial=0))


def _digits(number: float | None) -> str:
    """Return a number with two digits or more, a dash for none."""
    if number is None:
        return "-"
    decimals = 0 if number >= 10 else 1 if number >= 1 else 2
    return f"{number:,.{decimals}f}"


def _table(cells: dict[tuple[str, int], str]) -> list[str]:
    lengths = list(dict.fromkeys(length for _, length in cells))
    lines = [f"| part | {' | '.join(f'{length:,}' for length in lengths)} |"]
    lines.append("| --- |" + " ---: |" * len(lengths))
    for part in dict.fromkeys(part for part, _ in cells):
        lines.append(f"| {part} | {' | '.join(cells[part, length] for length in lengths)} |")
    return lines


def _draw(cases: Sequence[Case]) -> Figure:
    figure = Figure(figsize=(9, 6.5), layout="constrained")
    times, peaks = figure.subplots(2, 2, sharex=True, sharey="row")
    for column, pass_ in enumerate(PASSES):
        _lines(times[column], [case for case in cases if case.pass_ == pass_], "milliseconds")
        _lines(peaks[column], [case for case in cases if case.pass_ == pass_], "peak_mib")
        times[column].set_title(pass_.capitalize())
        peaks[column].set_xlabel("length (positions)")
    times[0].set_ylabel("milliseconds")
    peaks[0].set_ylabel("MiB at the peak")
    times[1].legend(frameon=False, loc="upper left", bbox_to_anchor=(1, 1))
    return figure


def _lines(axes: Axes, cases: Sequence[Case], attribute: str) -> None:
    """Draw a line for feed-forward, for each attention, and for the plainest core."""
    drawn = dict.fromkeys(case.part for case in cases if not case.part.startswith(("core", "bias")))
    for number, part in enumerate([*drawn, "core, none"]):
        points = [(case.length, getattr(case, attribute)) for case in cases if case.part == part]
        known = [(length, value) for length, value in points if value is not None]
        axes.plot(
            [length for length, _ in known],
            [value for _, value in known],
            **line_look(number),
            marker=MARKERS[number % len(MARKERS)],
            markersize=4,
            label=part,
        )
    lengths = list(dict.fromkeys(case.length for case in cases))
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xticks(lengths, [f"{length:,}" for length in lengths], rotation=45)
    axes.yaxis.set_major_formatter("{x:,g}")  # `write_picture` does not parse TeX
    axes.grid(color="#e5e5e5")
    axes.set_axisbelow(True)


if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    sys.exit(run_reporting_errors(main))
