import json
import os
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import pytest

from mt.config import TokenizerConfig
from mt.data.pairs import SentencePair
from mt.data.store import PairStore
from mt.data.tokenizer import train_tokenizer

PAIRS = [SentencePair(f"this is number {n}", f"das ist Nummer {n}") for n in range(100)]
PREPARE = dedent(
    """
    import sys
    from itertools import chain
    from pathlib import Path
    from mt.data.pairs import Checksums, PairSource
    from mt.data.sources import TextPairs
    from mt.data.store import prepare_store
    from mt.data.tokenizer import Tokenizer

    class Repeated(PairSource):
        def __init__(self, once, times):
            self.once, self.times = once, times
        description = "repeated"
        def checksums(self):
            return self.once.checksums()
        def pairs(self):
            return chain.from_iterable(self.once.pairs() for _ in range(self.times))

    source, target, times, tokenizer, cache = sys.argv[1:]
    once = TextPairs(Checksums("unverified", "unverified"), Path(source), Path(target))
    """
)


def prepare_script(body: str) -> str:
    return PREPARE + dedent(body)


def environment() -> dict[str, str]:
    root = str(Path(__file__).parents[2])
    return {**os.environ, "PYTHONPATH": root}


def written_corpus(folder: Path) -> tuple[str, str]:
    for side in ("source", "target"):
        lines = "".join(f"{getattr(pair, side)}\n" for pair in PAIRS)
        (folder / side).write_text(lines, encoding="utf-8")
    return str(folder / "source"), str(folder / "target")


def test_processes_that_prepare_the_same_store_at_once_do_not_disturb_each_other(
    tmp_path: Path,
) -> None:
    train_tokenizer(
        lambda: iter(PAIRS),
        tmp_path / "tokenizer",
        config=TokenizerConfig(vocabulary_size=320),
        seed=1,
    )
    body = """
    model = Tokenizer.load(Path(tokenizer))
    store = prepare_store(Repeated(once, int(times)), model, max_tokens=50, cache=Path(cache))
    tokens = sum(len(example.source) for example in store.examples(range(len(store))))
    print(len(store), int(store.lengths.sum()), tokens)
    """
    command = [sys.executable, "-c", prepare_script(body), *written_corpus(tmp_path)]
    command += ["200", str(tmp_path / "tokenizer"), str(tmp_path / "cache")]
    running = [
        subprocess.Popen(command, stdout=subprocess.PIPE, env=environment(), text=True)
        for _ in range(2)
    ]
    said = [process.communicate(timeout=60)[0] for process in running]
    assert [process.returncode for process in running] == [0, 0]
    assert said[0] == said[1]
    assert said[0].startswith("20000 ")
    (path,) = (tmp_path / "cache" / "pairs").iterdir()
    assert len(PairStore(path)) == 20000


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_five_million_pairs_take_less_than_two_gibibytes(corpora: Path, tmp_path: Path) -> None:
    sides = [str(corpora / "multi30k" / f"train.{language}.gz") for language in ("en", "de")]
    body = """
    import json, resource, time
    import numpy as np
    from mt.config import TokenizerConfig
    from mt.data.batches import collate, padding_efficiency, plan_updates, split_update
    from mt.data.tokenizer import train_tokenizer

    model = train_tokenizer(
        once.pairs, Path(tokenizer), config=TokenizerConfig(vocabulary_size=8000), seed=1
    )
    began = time.monotonic()
    store = prepare_store(Repeated(once, int(times)), model, max_tokens=256, cache=Path(cache))
    prepared = time.monotonic() - began
    began = time.monotonic()
    store = prepare_store(Repeated(once, int(times)), model, max_tokens=256, cache=Path(cache))
    opened = time.monotonic() - began
    began = time.monotonic()
    plan = plan_updates(store.lengths, 4096, seed=1, epoch=0)
    planned = time.monotonic() - began
    began = time.monotonic()
    pairs = 0
    for update in plan[:300]:
        for batch in split_update(update, store.lengths, max_tokens_per_batch=4096, ranks=1)[0]:
            pairs += len(collate(store.examples(batch)).index)
    collated = time.monotonic() - began
    print(json.dumps({
        "pairs": len(store), "pairs_per_second": len(store) / prepared, "opened": opened,
        "planned": planned, "collated_per_second": pairs / collated,
        "rss": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    }))
    """
    command = [sys.executable, "-c", prepare_script(body), *sides]
    command += ["173", str(tmp_path / "tokenizer"), str(tmp_path / "cache")]
    done = subprocess.run(command, stdout=subprocess.PIPE, env=environment(), check=True, text=True)
    found = json.loads(done.stdout)
    sys.stderr.write(f"{found}\n")
    assert found["pairs"] > 5_000_000
    assert found["rss"] < 2 * 1024**3
    assert found["opened"] < 5
    assert found["planned"] < 30
