import fcntl
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from mt.config import TokenizerConfig
from mt.data import store as store_module
from mt.data.pairs import Checksums, SentencePair
from mt.data.sources import TextPairs
from mt.data.store import PairStore, prepare_store
from mt.data.subword_sampling import Drawing, draw
from mt.data.tokenizer import Tokenizer, train_tokenizer

PAIRS = [SentencePair(f"sentence number {n}", f"das ist der Satz Nummer {n}") for n in range(100)]
MAX_TOKENS = 30


@pytest.fixture
def drawing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Drawing:
    """Return what to draw from a small corpus in chunks of 16 pairs."""
    monkeypatch.setattr(store_module, "_CHUNK_PAIRS", 16)
    for side in ("source", "target"):
        text = "".join(f"{getattr(pair, side)}\n" for pair in PAIRS)
        (tmp_path / side).write_text(text, encoding="utf-8")
    unverified = Checksums("unverified", "unverified")
    pairs = TextPairs(unverified, tmp_path / "source", tmp_path / "target")
    folder, config = tmp_path / "tokenizer", TokenizerConfig(vocabulary_size=340)
    tokenizer = train_tokenizer(pairs.pairs, folder, config=config, seed=1)
    store = prepare_store(pairs, tokenizer, max_tokens=MAX_TOKENS, cache=tmp_path / "cache")
    return Drawing(store.path, folder, source=0.3, target=0.2, max_tokens=MAX_TOKENS, seed=1)


def drawn(drawing: Drawing, epoch: int, *, threads: int = 1) -> PairStore:
    draw(drawing, epoch, threads=threads)
    return PairStore(drawing.path(epoch))


def ids(store: PairStore) -> list[tuple[list[int], list[int]]]:
    return [(pair.source.tolist(), pair.target.tolist()) for pair in store.examples(range(100))]


def test_every_epoch_has_the_same_pairs_in_the_same_order(drawing: Drawing) -> None:
    tokenizer, plain = Tokenizer.load(drawing.tokenizer), PairStore(drawing.store)
    for epoch in (0, 7):
        store = drawn(drawing, epoch)
        found = [
            SentencePair(tokenizer.decode_source(source), tokenizer.decode_target(target))
            for source, target in ids(store)
        ]
        assert found == PAIRS
        assert store.lengths.max() <= MAX_TOKENS
        assert store.lengths.sum() > plain.lengths.sum()


def test_other_seeds_epochs_and_strengths_draw_otherwise(drawing: Drawing) -> None:
    others = [
        (drawing, 1),
        (replace(drawing, seed=2), 0),
        (replace(drawing, source=0.4), 0),
        (replace(drawing, target=0.4), 0),
    ]
    first = ids(drawn(drawing, 0))
    found = [ids(drawn(other, epoch)) for other, epoch in others]
    assert all(first != other for other in found)
    paths = {other.path(epoch) for other, epoch in [(drawing, 0), *others]}
    assert len(paths) == 5


def test_a_side_with_strength_0_stays_as_it_is(drawing: Drawing) -> None:
    plain = ids(PairStore(drawing.store))
    found = ids(drawn(replace(drawing, target=0.0), 0))
    assert [target for _, target in found] == [target for _, target in plain]
    assert [source for source, _ in found] == [source for source, _ in ids(drawn(drawing, 0))]


def test_each_side_and_chunk_has_a_generator_of_its_own(drawing: Drawing) -> None:
    same = [SentencePair("sentence number", "sentence number")] * 100
    for side in ("source", "target"):
        path = drawing.tokenizer.parent / side
        path.write_text("".join(f"{pair.source}\n" for pair in same), encoding="utf-8")
    unverified = Checksums("unverified", "unverified")
    pairs = TextPairs(unverified, *(drawing.tokenizer.parent / s for s in ("source", "target")))
    plain = prepare_store(
        pairs,
        Tokenizer.load(drawing.tokenizer),
        max_tokens=MAX_TOKENS,
        cache=drawing.store.parents[1],
    )
    store = drawn(replace(drawing, store=plain.path, target=0.3), 0)
    chunks = [(chunk.source.values, chunk.target.values) for chunk in store.chunks]
    assert len(chunks) == 7
    texts = {values.tobytes() for sides in chunks for values in sides}
    assert len(texts) == 14


@contextmanager
def drawing_process(drawing: Drawing) -> Iterator["subprocess.Popen[str]"]:
    """Start a process that draws, and end it as a training does: by closing its stdin."""
    process = subprocess.Popen(
        [sys.executable, "-m", "mt.data.subword_sampling", drawing.as_json()],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
        text=True,
    )
    with process:
        yield process
        assert process.stdin is not None
        process.stdin.close()
        process.wait(10)


def ask(process: "subprocess.Popen[str]", epoch: int) -> None:
    assert process.stdin is not None
    process.stdin.write(f"{epoch}\n")
    process.stdin.flush()


def answer(process: "subprocess.Popen[str]") -> str:
    assert process.stdout is not None
    return process.stdout.readline()


def test_threads_and_processes_draw_the_same_bytes(drawing: Drawing) -> None:
    path = drawing.path(3)
    files = []
    for threads in (1, 4):
        draw(drawing, 3, threads=threads)
        files.append(path.read_bytes())
        path.unlink()
    assert Drawing.from_json(drawing.as_json()) == drawing
    with drawing_process(drawing) as process:
        ask(process, 3)
        assert answer(process) == "3\n"
    files.append(path.read_bytes())
    assert files[0] == files[1] == files[2]


def test_what_is_there_is_not_drawn_again_unless_it_is_damaged(
    drawing: Drawing, caplog: pytest.LogCaptureFixture
) -> None:
    expected = ids(drawn(drawing, 0))
    path = drawing.path(0)
    written = path.stat().st_ino
    draw(drawing, 0, threads=1)
    assert path.stat().st_ino == written
    path.write_bytes(path.read_bytes()[:-100])
    assert ids(drawn(drawing, 0)) == expected
    assert f"{path}: damaged" in caplog.text


def test_an_unfinished_file_of_a_killed_process_is_removed(drawing: Drawing) -> None:
    path = drawing.path(0)
    path.parent.mkdir(parents=True)
    left = path.with_name(f".{path.name}.999999")
    left.write_bytes(b"half a store")
    drawn(drawing, 0)
    assert sorted(file.name for file in path.parent.iterdir()) == [".lock", "0.arrow"]


def test_of_two_that_want_the_same_one_draws(drawing: Drawing) -> None:
    path = drawing.path(0)
    path.parent.mkdir(parents=True)
    with (path.parent / ".lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with drawing_process(drawing) as process:
            ask(process, 0)
            with pytest.raises(subprocess.TimeoutExpired):
                process.wait(1.0)
            assert not path.exists()
            fcntl.flock(lock, fcntl.LOCK_UN)
            assert answer(process) == "0\n"
    assert len(PairStore(path)) == 100


def test_a_process_that_cannot_draw_says_why_and_ends(drawing: Drawing) -> None:
    (drawing.tokenizer / "joint.model").unlink()
    with drawing_process(drawing) as process:
        ask(process, 0)
        assert answer(process) == ""
        assert process.wait(10) == 2
        assert process.stderr is not None
        said = process.stderr.read()
    assert said.startswith(f"error: {drawing.tokenizer / 'joint.model'}: missing")
    assert said.count("\n") == 1
