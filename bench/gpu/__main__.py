"""Check and measure `mt` on one GPU; write a report with one line for each check.

    python -m bench.gpu --seconds 540 --report build/gpu.md

The exit status is 1 if a check failed, and 2 without a CUDA device. `--device cpu` tries the
program itself with tiny models. No network is needed.
"""

import argparse
import sys
from collections.abc import Mapping
from pathlib import Path

from bench.gpu.runner import Section, Settings, python, run_worker, supervise


def sections() -> Mapping[str, Section]:
    """Return all sections in their order, by name; import what they need."""
    from bench.gpu import correctness, programs, speed

    return {
        "record": Section("Device and software", correctness.record, 30),
        "products": Section("Matrix products", speed.matrix_products, 30),
        "updates": Section("Updates", correctness.updates, 90),
        "attention": Section("Attention", correctness.attention, 40),
        "searches": Section("Searches", correctness.searches, 60),
        "memory": Section("Lack of memory", correctness.memory, 40),
        "resume": Section("Interruption", programs.resumed, 120),
        "ranks": Section("Ranks on one device", programs.ranks, 120),
        "training": Section("Training speed", speed.training, 100),
        "decoding": Section("Decoding speed", speed.decoding, 60),
        "ctranslate2": Section("CTranslate2", speed.ctranslate2, 40),
        "tests": Section("Tests", programs.tests, 120),
        "compilation": Section("Compilation", correctness.compilation, 150),
        "compiled": Section("Training speed, compiled", speed.compiled_training, 240),
    }


def main() -> int:
    """Run all sections, or those of a worker."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.gpu",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--seconds", type=float, default=540.0, help="time for everything")
    parser.add_argument("--report", type=Path, default=Path("build/gpu.md"))
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--only", metavar="NAME,NAME", help="sections to run; default: all")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    parser.add_argument("--ends-at", type=float, default=0.0, help=argparse.SUPPRESS)
    options = parser.parse_args()
    known = sections()
    if options.worker:
        settings = Settings(options.device, options.ends_at)
        run_worker(known, options.worker.split(","), settings)
        return 0
    names = options.only.split(",") if options.only else [*known]
    if unknown := set(names) - set(known):
        parser.error(f"no section {', '.join(sorted(unknown))}; there are {', '.join(known)}")
    import torch

    if options.device == "cuda" and not torch.cuda.is_available():
        print("error: no CUDA device; --device cpu tries the program alone", file=sys.stderr)
        return 2
    return supervise(
        {name: known[name] for name in names},
        python("-m", "bench.gpu", "--device", options.device),
        seconds=options.seconds,
        path=options.report,
    )


if __name__ == "__main__":
    sys.exit(main())
