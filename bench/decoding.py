"""Speed of `mt translate` compared to CTranslate2 alone, from text file to text file.

    mt export runs/my --to ctranslate2
    python bench/decoding.py runs/my runs/my/ctranslate2 text.en --rounds 5 --set decoding.beam=5

Four programs take turns: CTranslate2 in a bare loop over prepared tokens, and `mt translate` with
the exported folder, with the run, and with the run and `decoding.engine=torch`. The bare loop skips
detokenisation and uses CTranslate2's default ranking; the batches are the same. Loading the model
is not timed.
"""

import argparse
import statistics
import tempfile
import time
from pathlib import Path

from mt.decoding.ctranslate2_engine import CTranslate2Engine
from mt.decoding.text_files import FileJob, read_lines, translated_windows
from mt.decoding.translator import Translator
from mt.model.device import keep_freed_memory


def main() -> None:
    """Print the speeds of each round and the median ratios."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", type=Path)
    parser.add_argument("exported", type=Path)
    parser.add_argument("file", type=Path)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--set", action="append", default=[], dest="overrides")
    arguments = parser.parse_args()
    keep_freed_memory()
    translator = Translator.load(arguments.exported, overrides=arguments.overrides)
    lines = arguments.file.read_text(encoding="utf-8").splitlines()
    batches = prepared(translator, lines)
    translators = {"exported": translator}
    for name, engine in (("run", "ctranslate2"), ("run in PyTorch", "torch")):
        overrides = [*arguments.overrides, f"decoding.engine={engine}"]
        translators[name] = Translator.load(arguments.run, overrides=overrides, device="cpu")
    ratios: dict[str, list[float]] = {name: [] for name in translators}
    for _ in range(arguments.rounds):
        bare = timed_bare(translator, batches)
        cells = [f"bare {len(lines) / bare:7.1f} sentences/s"]
        for name, each in translators.items():
            seconds = timed_file(each, arguments.file)
            ratios[name].append(bare / seconds)
            cells.append(f"{name} {len(lines) / seconds:7.1f}")
        print("  ".join(cells))
    for name, of_name in ratios.items():
        print(
            f"{name}: {statistics.median(of_name):.2f} times as fast as the bare loop, median of "
            f"{len(of_name)}, {min(of_name):.2f} to {max(of_name):.2f}"
        )


def prepared(translator: Translator, lines: list[str]) -> list[list[list[str]]]:
    """Return the tokens in batches of similar length."""
    tokens = sorted(translator.tokenizer.source.processor.encode(lines, out_type=str), key=len)
    size = translator.decoding.sentences_at_once
    ended = [[*line, "</s>"] for line in tokens[::-1]]
    return [ended[start : start + size] for start in range(0, len(ended), size)]


def timed_bare(translator: Translator, batches: list[list[list[str]]]) -> float:
    """Return the time of CTranslate2 alone, in seconds."""
    engine, decoding = translator.engine, translator.decoding
    assert isinstance(engine, CTranslate2Engine)
    rows = 1 if decoding.search == "greedy" else decoding.beam
    started_at = time.perf_counter()
    pending = [
        engine.translator.translate_batch(
            batch,
            asynchronous=True,
            beam_size=rows,
            max_decoding_length=len(batch[0]) + decoding.max_length_extra,
        )
        for batch in batches
    ]
    for results in pending:
        for result in results:
            result.result()
    return time.perf_counter() - started_at


def timed_file(translator: Translator, file: Path) -> float:
    """Return the time from file to file, in seconds."""
    with tempfile.TemporaryFile() as out:
        started_at = time.perf_counter()
        for window in translated_windows(translator, read_lines(file), None, FileJob(file)):
            out.write(window.texts[0])
        return time.perf_counter() - started_at


if __name__ == "__main__":
    main()
