import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from textwrap import dedent
from typing import NoReturn

import numpy as np
import pytest

from mt.config import TokenizerConfig
from mt.data import subword_sampling as epochs_module
from mt.data.pairs import Checksums
from mt.data.sources import TextPairs
from mt.data.store import PairStore, prepare_store
from mt.data.subword_sampling import Drawing, DrawnEpochs, draw
from mt.data.tokenizer import train_tokenizer

WORDS = ("one", "two", "three", "four", "five", "six", "seven")


@pytest.fixture(scope="module")
def big_drawing(tmp_path_factory: pytest.TempPathFactory) -> Drawing:
    """Return what to draw from so many pairs that it takes a second or two."""
    return drawing_of(60_000, tmp_path_factory.mktemp("big"))


@pytest.fixture
def drawing(tmp_path: Path) -> Drawing:
    return drawing_of(50, tmp_path)


def drawing_of(pairs: int, folder: Path) -> Drawing:
    for side in ("source", "target"):
        lines = (" ".join(WORDS[n % 7 :] + WORDS[: n % 7]) + f" {side} {n}" for n in range(pairs))
        (folder / side).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    unverified = Checksums("unverified", "unverified")
    source = TextPairs(unverified, folder / "source", folder / "target")
    config = TokenizerConfig(vocabulary_size=340, sample_lines=1000)
    tokenizer = train_tokenizer(source.pairs, folder / "tokenizer", config=config, seed=1)
    store = prepare_store(source, tokenizer, max_tokens=90, cache=folder / "cache")
    return Drawing(store.path, folder / "tokenizer", source=0.2, target=0.2, max_tokens=90, seed=1)


@pytest.fixture
def epochs(drawing: Drawing) -> Iterator[DrawnEpochs]:
    opened = DrawnEpochs(drawing, epochs=None)
    yield opened
    opened.close()


def expected(drawing: Drawing, epoch: int) -> PairStore:
    path = drawing.path(epoch)
    assert not path.exists()
    draw(drawing, epoch, threads=1)
    store = PairStore(path)
    path.unlink()
    return store


def same(left: PairStore, right: PairStore) -> bool:
    return np.array_equal(left.lengths, right.lengths) and all(
        np.array_equal(a.source.values, b.source.values)
        and np.array_equal(a.target.values, b.target.values)
        for a, b in zip(left.chunks, right.chunks, strict=True)
    )


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def refuse(*_: object, **__: object) -> NoReturn:
    raise AssertionError("the epoch was drawn in the foreground")


def process_of(epochs: DrawnEpochs) -> "subprocess.Popen[bytes]":
    assert epochs._drawer is not None
    return epochs._drawer._process


def is_alive(number: int) -> bool:
    try:
        stat = Path(f"/proc/{number}/stat").read_text(encoding="utf-8")
    except FileNotFoundError:
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"


def test_the_next_epoch_is_drawn_in_the_background(
    drawing: Drawing, epochs: DrawnEpochs, monkeypatch: pytest.MonkeyPatch
) -> None:
    stores = [expected(drawing, epoch) for epoch in range(4)]
    assert same(epochs.open(0), stores[0])
    monkeypatch.setattr(epochs_module, "draw", refuse)
    first = process_of(epochs)
    for epoch in (1, 2, 3):
        wait_until(drawing.path(epoch).exists)
        assert same(epochs.open(epoch), stores[epoch])
        assert epochs.open(epoch) is epochs.open(epoch)
        assert process_of(epochs) is first


def test_an_epoch_that_is_not_ready_is_waited_for(
    big_drawing: Drawing, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", logger="mt")
    monkeypatch.setattr(epochs_module, "_SILENT_SECONDS", 0.0)
    epochs = DrawnEpochs(big_drawing, epochs=2)
    epochs.open(0)
    monkeypatch.setattr(epochs_module, "draw", refuse)
    assert not big_drawing.path(1).exists()
    assert len(epochs.open(1)) == 60_000
    assert "waiting for the tokens of epoch 2" in caplog.text
    epochs.close()


def test_what_is_over_is_deleted(drawing: Drawing, epochs: DrawnEpochs) -> None:
    def files() -> set[str]:
        return {path.name for path in drawing.path(0).parent.glob("*.arrow")}

    epochs.open(0)
    wait_until(lambda: files() == {"0.arrow", "1.arrow"})
    zero = epochs.open(0)
    epochs.open(1)
    wait_until(lambda: files() == {"1.arrow", "2.arrow"})
    assert zero.examples([0])[0].source.sum() > 0  # what is open can still be read
    process = process_of(epochs)
    epochs.close()
    assert files() == set()
    assert process.returncode is not None


def test_epochs_can_be_opened_in_any_order(drawing: Drawing, epochs: DrawnEpochs) -> None:
    """A training may return to an older checkpoint."""
    stores = {epoch: expected(drawing, epoch) for epoch in (0, 2, 5)}
    for epoch in (5, 0, 2):
        assert same(epochs.open(epoch), stores[epoch])


def test_a_run_that_goes_on_finds_the_epoch_or_draws_it_anew(drawing: Drawing) -> None:
    first = DrawnEpochs(drawing, epochs=None)
    left = first.open(4)
    wait_until(drawing.path(5).exists)
    assert drawing.path(4).exists()
    drawing.path(5).unlink()
    second = DrawnEpochs(drawing, epochs=None)
    assert same(second.open(4), left)
    second.close()
    first.close()


def test_nothing_is_drawn_after_the_last_epoch(drawing: Drawing) -> None:
    epochs = DrawnEpochs(drawing, epochs=2)
    epochs.open(1)
    assert epochs._drawer is None
    epochs.close()


def test_a_process_that_dies_is_told_and_made_up_for(
    drawing: Drawing, epochs: DrawnEpochs, caplog: pytest.LogCaptureFixture
) -> None:
    one = expected(drawing, 1)
    epochs.open(0)
    wait_until(drawing.path(1).exists)
    drawing.path(1).unlink()
    process_of(epochs).kill()
    process_of(epochs).wait()
    process_of(epochs).stdout.read()  # type: ignore[union-attr] # its answer had come already
    assert same(epochs.open(1), one)
    assert (
        "the process that draws the tokens of epoch 2 ahead has ended with status -9 "
        "(it said nothing); drawing them now"
    ) in caplog.text
    wait_until(drawing.path(2).exists)  # by another process


def test_what_goes_wrong_for_good_is_an_error_of_the_training(
    drawing: Drawing, epochs: DrawnEpochs, caplog: pytest.LogCaptureFixture
) -> None:
    epochs.open(0)
    wait_until(drawing.path(1).exists)
    epochs.open(1)
    wait_until(drawing.path(2).exists)
    drawing.store.unlink()
    epochs.open(2)
    with pytest.raises(FileNotFoundError) as caught:
        epochs.open(3)
    assert caught.value.filename == str(drawing.store)
    assert f"has ended with status 2 ({drawing.store}: no such file or folder)" in caplog.text


def test_it_is_drawn_at_the_lowest_priority_and_not_stopped_by_ctrl_c(
    drawing: Drawing, epochs: DrawnEpochs
) -> None:
    epochs.open(0)
    number = process_of(epochs).pid
    wait_until(drawing.path(1).exists)
    assert os.getpriority(os.PRIO_PROCESS, number) == 19
    assert os.getsid(number) != os.getsid(0)


PARENT = dedent(
    """
    import os, signal, sys
    from mt.data.subword_sampling import Drawing
    from mt.data.subword_sampling import DrawnEpochs

    drawing = Drawing.from_json(sys.argv[1])
    epochs = DrawnEpochs(drawing, epochs=None)
    epochs.open(0)
    print(epochs._drawer._process.pid, flush=True)
    sys.stdin.read(1)
    if sys.argv[2] == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    """
)


@pytest.mark.parametrize(("when", "how"), [("idle", "ends"), ("drawing", "killed")])
def test_it_ends_with_the_training(
    when: str, how: str, drawing: Drawing, big_drawing: Drawing
) -> None:
    from_what = drawing if when == "idle" else big_drawing
    folder = from_what.path(0).parent
    draw(from_what, 0, threads=1)
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, from_what.as_json(), how],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
    )
    with parent:
        assert parent.stdout is not None
        number = int(parent.stdout.readline())
        if when == "idle":
            wait_until(from_what.path(1).exists)
        else:
            wait_until(lambda: bool(list(folder.glob(".1.arrow.*"))))
        assert is_alive(number)
        parent.communicate(b"x", timeout=20)
        assert parent.returncode == (0 if how == "ends" else -signal.SIGKILL)
    wait_until(lambda: not is_alive(number))
    assert list(folder.glob(".1.arrow.*")) == []
    assert from_what.path(1).exists() == (when == "idle")
