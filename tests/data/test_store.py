import errno
import logging
import subprocess
import sys
from collections import Counter
from collections.abc import Generator
from dataclasses import dataclass
from hashlib import sha256
from itertools import chain
from pathlib import Path

import numpy as np
import pyarrow
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mt.config import TokenizerConfig
from mt.config.data import CleaningConfig, Direction
from mt.data import store as store_module
from mt.data.filters import Cleaning
from mt.data.pairs import Checksums, PairSource, SentencePair
from mt.data.store import LeftOut, Mixture, PairStore, Rows, concatenate, mix, prepare_store
from mt.data.tokenizer import Tokenizer
from mt.data.tokenizer_training import train_tokenizer
from mt.errors import DataError

UNVERIFIED = Checksums("unverified", "unverified")
PAIRS = [
    SentencePair(f"this is number {number}" + " on" * (number % 7), f"das ist Nummer {number}")
    for number in range(100)
]


@dataclass(frozen=True)
class ListedPairs(PairSource):
    """A corpus in memory that counts how often it is read."""

    listed: tuple[SentencePair, ...]
    readings: list[str]

    @property
    def description(self) -> str:
        return "the list"

    def pairs(self) -> Generator[SentencePair, None, Checksums]:
        self.readings.append("pairs")
        yield from self.listed
        return UNVERIFIED

    def checksums(self) -> Checksums:
        source = "".join(f"{pair.source}\n" for pair in self.listed)
        target = "".join(f"{pair.target}\n" for pair in self.listed)
        return Checksums(sha256(source.encode()).hexdigest(), sha256(target.encode()).hexdigest())


def corpus(pairs: list[SentencePair]) -> ListedPairs:
    return ListedPairs(UNVERIFIED, tuple(pairs), [])


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    config = TokenizerConfig(vocabulary_size=320)
    folder = tmp_path_factory.mktemp("tokenizer")
    return train_tokenizer(lambda: iter(PAIRS), folder, config=config)


@pytest.fixture
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_module, "CHUNK_PAIRS", 8)


def files(cache: Path) -> list[Path]:
    return sorted((cache / "pairs").iterdir())


def test_store_returns_the_encoded_pairs(
    tokenizer: Tokenizer, tmp_path: Path, small_chunks: None
) -> None:
    store = prepare_store(corpus(PAIRS), tokenizer, max_tokens=100, cache=tmp_path)
    assert len(store) == 100
    assert store.left_out == LeftOut(too_long=0, empty=0, total=100)
    order = np.random.default_rng(0).permutation(100)
    examples = store.examples(order)
    assert [example.index for example in examples] == order.tolist()
    for example in examples:
        pair = PAIRS[example.index]
        assert example.source.tolist() == tokenizer.encode_source([pair.source])[0]
        assert example.target.tolist() == tokenizer.encode_target([pair.target])[0]
        assert example.source.dtype == example.target.dtype == np.int32
        assert store.lengths[example.index].tolist() == [len(example.source), len(example.target)]
    assert store.lengths.dtype == np.int32
    assert store.longest_source == max(len(example.source) for example in examples)
    assert store.examples([]) == []


def test_empty_and_long_pairs_are_left_out_and_counted(
    tokenizer: Tokenizer, tmp_path: Path, small_chunks: None
) -> None:
    long = " ".join(["seven"] * 50)
    pairs = [*PAIRS[:9], *[SentencePair(long, "kurz"), SentencePair("short", long)] * 9]
    pairs += [SentencePair("", "x"), SentencePair("x", " \u3000\t"), *PAIRS[9:20]]
    pairs += [SentencePair("\xad \u200b", "x")]
    store = prepare_store(corpus(pairs), tokenizer, max_tokens=60, cache=tmp_path)
    assert store.left_out == LeftOut(too_long=18, empty=3, total=41)
    sources = [
        tokenizer.decode_source(example.source.tolist()) for example in store.examples(range(20))
    ]
    assert sources == [pair.source for pair in PAIRS[:20]]
    assert store.lengths.max() <= 60


def test_corpus_without_remaining_pairs_is_an_error(tokenizer: Tokenizer, tmp_path: Path) -> None:
    pairs = [SentencePair("a", ""), SentencePair("one two three four", "x")]
    message = "^the list: .* of 2, 1 have an empty side and 1 have more .*`data.max_tokens` 3 "
    with pytest.raises(DataError, match=message):  # "a" is 2 tokens, EOS included
        prepare_store(corpus(pairs), tokenizer, max_tokens=3, cache=tmp_path)
    assert files(tmp_path) == []


def test_store_is_prepared_once_and_known_checksums_are_used(
    tokenizer: Tokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = corpus(PAIRS)
    sums = source.checksums()
    first = prepare_store(source, tokenizer, max_tokens=50, cache=tmp_path)
    monkeypatch.setattr(ListedPairs, "checksums", None)
    second = prepare_store(source, tokenizer, max_tokens=50, cache=tmp_path, sums=sums)
    assert source.readings == ["pairs"]
    assert first.path == second.path
    assert np.array_equal(first.lengths, second.lengths)
    other = Checksums(sums.target, sums.source)
    third = prepare_store(source, tokenizer, max_tokens=50, cache=tmp_path, sums=other)
    assert third.path != first.path


def test_other_inputs_give_another_store(tokenizer: Tokenizer, tmp_path: Path) -> None:
    config = TokenizerConfig(vocabulary_size=300)
    other = train_tokenizer(lambda: iter(PAIRS), tmp_path / "other", config=config)
    prepare_store(corpus(PAIRS), tokenizer, max_tokens=50, cache=tmp_path)
    prepare_store(corpus(PAIRS), tokenizer, max_tokens=51, cache=tmp_path)
    prepare_store(corpus(PAIRS), other, max_tokens=50, cache=tmp_path)
    for characters in (2, 3):
        cleaning = Cleaning(CleaningConfig(min_characters=characters), Direction("en", "de"))
        prepare_store(corpus(PAIRS), tokenizer, max_tokens=50, cache=tmp_path, cleaning=cleaning)
    changed = [SentencePair("changed", PAIRS[0].target), *PAIRS[1:]]
    store = prepare_store(corpus(changed), tokenizer, max_tokens=50, cache=tmp_path)
    assert tokenizer.decode_source(store.examples([0])[0].source.tolist()) == "changed"
    assert len(files(tmp_path)) == 6


@pytest.mark.parametrize("kept", [0.0, 0.99, 1.0])
def test_damaged_store_is_written_again(
    tokenizer: Tokenizer, tmp_path: Path, caplog: pytest.LogCaptureFixture, kept: float
) -> None:
    lengths = prepare_store(corpus(PAIRS), tokenizer, max_tokens=50, cache=tmp_path).lengths
    offsets = np.append(0, np.cumsum(lengths[:, 0])).astype(np.int32).tobytes()
    (path,) = files(tmp_path)
    whole = path.read_bytes()
    zeroed = whole.replace(offsets[40:200], bytes(160))
    assert zeroed != whole
    path.write_bytes(zeroed[: int(kept * len(whole))])
    source = corpus(PAIRS)
    with caplog.at_level(logging.WARNING, "mt"):
        store = prepare_store(source, tokenizer, max_tokens=50, cache=tmp_path)
    assert source.readings == ["pairs"]
    assert len(store) == 100
    assert path.read_bytes() == whole
    warnings = [each for each in caplog.records if each.levelno >= logging.WARNING]
    (message,) = [each.getMessage() for each in warnings]
    assert message.startswith(f"{path}: damaged")
    assert "\n" not in message


def test_failing_corpus_leaves_no_file(tokenizer: Tokenizer, tmp_path: Path) -> None:
    class Failing(ListedPairs):
        def pairs(self) -> Generator[SentencePair, None, Checksums]:
            yield from self.listed
            raise DataError("line 101 is not UTF-8")

    failing = Failing(UNVERIFIED, tuple(PAIRS), [])
    with pytest.raises(DataError, match="line 101"):
        prepare_store(failing, tokenizer, max_tokens=50, cache=tmp_path)
    assert files(tmp_path) == []


def test_error_of_a_full_disk_names_the_file(
    tokenizer: Tokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(pyarrow.ipc, "new_file", full)
    with pytest.raises(OSError) as caught:
        prepare_store(corpus(PAIRS), tokenizer, max_tokens=50, cache=tmp_path)
    assert Path(caught.value.filename).parent == tmp_path / "pairs"


def test_two_processes_prepare_the_same_store_at_once(tmp_path: Path) -> None:
    folder, config = tmp_path / "tokenizer", TokenizerConfig(vocabulary_size=320)
    train_tokenizer(lambda: iter(PAIRS), folder, config=config)
    for side in ("source", "target"):
        lines = "".join(f"{getattr(pair, side)}\n" for pair in PAIRS)
        (tmp_path / side).write_text(lines * 100, encoding="utf-8")
    code = f"""
from pathlib import Path
from mt.data.pairs import Checksums, TextPairs
from mt.data.store import prepare_store
from mt.data.tokenizer import Tokenizer
folder = Path({str(tmp_path)!r})
pairs = TextPairs(Checksums("unverified", "unverified"), folder / "source", folder / "target")
model = Tokenizer.load(folder / "tokenizer")
store = prepare_store(pairs, model, max_tokens=50, cache=folder / "cache")
print(len(store), sum(len(example.source) for example in store.examples(range(len(store)))))
"""
    running = [
        subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) for _ in range(2)
    ]
    outputs = [process.communicate(timeout=60)[0] for process in running]
    assert outputs[0] == outputs[1]
    assert outputs[0].startswith(b"10000 ")
    (path,) = files(tmp_path / "cache")
    assert len(PairStore(path)) == 10_000


def listed(rows: Rows) -> list[list[int]]:
    return [rows[number].tolist() for number in range(len(rows))]


@given(st.lists(st.lists(st.lists(st.integers(0, 99), max_size=5), max_size=8), max_size=3))
def test_rows_are_concatenated_and_taken_in_any_order(parts: list[list[list[int]]]) -> None:
    rows, lists = concatenate([Rows.of(part) for part in parts]), [*chain.from_iterable(parts)]
    assert listed(rows) == lists
    assert rows.lengths.tolist() == [len(row) for row in lists]
    wanted = [number for number in (3, 0, 3, 1, 7) if number < len(lists)]
    taken = rows.take(np.array(wanted, np.int64))
    assert listed(taken) == [lists[number] for number in wanted]
    assert rows.values.dtype == taken.values.dtype == np.int32


def taken(mixture: Mixture, epoch: int, *, seed: int = 1) -> Counter[int]:
    return Counter(mixture.pairs(seed=seed, epoch=epoch).tolist())


def test_weights_repeat_or_halve_a_corpus() -> None:
    mixture = mix([30, 40], [2, 0.5])
    epochs = [taken(mixture, epoch) for epoch in range(4)]
    for counted in epochs:
        assert {pair: counted[pair] for pair in range(30)} == dict.fromkeys(range(30), 2)
    halves = [{pair for pair in counted if pair >= 30} for counted in epochs]
    assert [len(half) for half in halves] == [20] * 4
    assert halves[0] | halves[1] == halves[2] | halves[3] == set(range(30, 70))
    assert halves[0] != halves[2]
    assert taken(mixture, 0, seed=2) != epochs[0]
    same = mix([100, 100], [0.5, 0.5]).pairs(seed=1, epoch=0).tolist()
    assert set(same[:50]) != {pair - 100 for pair in same[50:]}


@pytest.mark.parametrize("weight", [0.013, 0.3, 0.5, 1.0, 1.25, 2.0, 3.7])
@pytest.mark.parametrize("size", [1, 7, 100])
def test_pairs_are_taken_equally_often_up_to_one(size: int, weight: float) -> None:
    mixture, total = mix([size], [weight]), Counter[int]()
    for epoch in range(9):
        counted = taken(mixture, epoch)
        assert counted.total() == mixture.counts(epoch)[0]
        total += counted
        assert total.total() == round((epoch + 1) * weight * size)
        every = [total[pair] for pair in range(size)]
        assert max(every) - min(every) <= 1
    assert set(total) <= set(range(size))


def test_temperature_flattens_shares_and_keeps_the_epoch_length() -> None:
    sizes = [10_000, 900, 100]
    assert mix(sizes, [1, 1, 1], temperature=1) == Mixture(tuple(sizes), (1.0, 1.0, 1.0))
    # The square roots are 100, 30, 10: shares of 100, 30, 10 in 140.
    assert mix(sizes, [1, 1, 1], temperature=2).counts(0) == [7857, 2357, 786]
    assert mix(sizes, [1, 1, 0.5], temperature=2).counts(0)[2] == 393
    flat = mix(sizes, [1, 1, 1], temperature=1000).counts(0)
    assert max(flat) - min(flat) < 25
