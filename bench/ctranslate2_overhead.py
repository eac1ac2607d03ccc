"""What `mt translate` costs over CTranslate2 itself: text file to text file, interleaved.

    python bench/ctranslate2_overhead.py EXPORTED FILE [--rounds N] [--set decoding.beam=1 ...]

The bare loop has the pieces ready and keeps no text: it calls CTranslate2 with the engine's own
settings on the same batches. Loading the model counts for neither.
"""

import argparse
import statistics
import tempfile
import time
from pathlib import Path

from mt.decoding.ctranslate2_engine import CTranslate2Engine
from mt.decoding.run import load_translator
from mt.decoding.translate_file import FileJob, translate_file
from mt.decoding.translator import Translator


def main() -> None:
    """Print both speeds of each round, and the median of their ratios."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("file", type=Path)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--set", action="append", default=[], dest="overrides")
    arguments = parser.parse_args()
    translator = load_translator(arguments.folder, overrides=arguments.overrides)
    lines = arguments.file.read_text(encoding="utf-8").splitlines()
    batches = prepared(translator, lines)
    loading = statistics.median(timed_load(arguments.folder) for _ in range(3))
    ratios = []
    for _ in range(arguments.rounds):
        bare = timed_bare(translator, batches)
        whole = timed_file(arguments.folder, arguments.file, arguments.overrides) - loading
        ratios.append(whole / bare)
        print(f"bare {len(lines) / bare:7.1f} sentences/s  mt {len(lines) / whole:7.1f}")
    print(f"mt translate takes {statistics.median(ratios):.3f} times as long (median)")


def prepared(translator: Translator, lines: list[str]) -> list[list[list[str]]]:
    """Return the pieces in batches of about one length."""
    pieces = sorted(translator.tokenizer.source.processor.encode(lines, out_type=str), key=len)
    size = translator.decoding.batch_size
    ended = [[*each, "</s>"] for each in pieces[::-1]]
    return [ended[start : start + size] for start in range(0, len(ended), size)]


def timed_bare(translator: Translator, batches: list[list[list[str]]]) -> float:
    """Return the seconds of CTranslate2 alone."""
    engine, decoding = translator.engine, translator.decoding
    assert isinstance(engine, CTranslate2Engine)
    rows = 1 if decoding.search == "greedy" else decoding.beam
    started_at = time.perf_counter()
    pending = [
        engine.translator.translate_batch(
            batch,
            asynchronous=True,
            beam_size=rows,
            num_hypotheses=rows,
            length_penalty=0,
            max_decoding_length=len(batch[0]) + decoding.max_length_extra,
        )
        for batch in batches
    ]
    for results in pending:
        for result in results:
            result.result()
    return time.perf_counter() - started_at


def timed_file(folder: Path, file: Path, overrides: list[str]) -> float:
    """Return the seconds from a file to a file, loading included."""
    with tempfile.TemporaryDirectory() as scratch:
        started_at = time.perf_counter()
        translate_file(folder, FileJob(file, Path(scratch) / "out"), overrides=overrides)
        return time.perf_counter() - started_at


def timed_load(folder: Path) -> float:
    """Return the seconds until a translator is there."""
    started_at = time.perf_counter()
    load_translator(folder)
    return time.perf_counter() - started_at


if __name__ == "__main__":
    main()
