import errno
import logging
import re
import resource
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

import numpy as np
import pytest

from mt.config import TokenizerConfig
from mt.data import store as store_module
from mt.data.pairs import Checksums, PairSource, SentencePair
from mt.data.store import LeftOut, prepare_store
from mt.data.tokenizer import Tokenizer, train_tokenizer
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

    def pairs(self) -> Iterator[SentencePair]:
        self.readings.append("pairs")
        yield from self.listed

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
    return train_tokenizer(lambda: iter(PAIRS), folder, config=config, seed=1)


@pytest.fixture
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_module, "_CHUNK_PAIRS", 8)


def files(cache: Path) -> list[Path]:
    return sorted((cache / "pairs").iterdir())


def test_every_pair_comes_back_as_the_tokenizer_encodes_it(
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
    store = prepare_store(corpus(pairs), tokenizer, max_tokens=60, cache=tmp_path)
    assert store.left_out == LeftOut(too_long=18, empty=2, total=40)
    sources = [
        tokenizer.decode_source(example.source.tolist()) for example in store.examples(range(20))
    ]
    assert sources == [pair.source for pair in PAIRS[:20]]
    assert store.lengths.max() <= 60


def test_max_tokens_counts_the_end_mark(tokenizer: Tokenizer, tmp_path: Path) -> None:
    pairs = PAIRS[:1]
    longest = max(
        len(tokenizer.encode_source([pairs[0].source])[0]),
        len(tokenizer.encode_target([pairs[0].target])[0]),
    )
    assert len(prepare_store(corpus(pairs), tokenizer, max_tokens=longest, cache=tmp_path)) == 1
    with pytest.raises(DataError):
        prepare_store(corpus(pairs), tokenizer, max_tokens=longest - 1, cache=tmp_path)


def test_a_corpus_of_which_nothing_is_left_is_an_error(
    tokenizer: Tokenizer, tmp_path: Path
) -> None:
    pairs = [SentencePair("a", ""), SentencePair("one two three four", "x")]
    with pytest.raises(DataError) as caught:
        prepare_store(corpus(pairs), tokenizer, max_tokens=3, cache=tmp_path)
    assert str(caught.value) == (
        "the list: no pair is left to train on: of 2, 1 have an empty side and 1 have more than "
        "`data.max_tokens` 3 tokens on a side"
    )
    assert files(tmp_path) == []


def test_a_store_is_prepared_once(tokenizer: Tokenizer, tmp_path: Path) -> None:
    source = corpus(PAIRS)
    first = prepare_store(source, tokenizer, max_tokens=50, cache=tmp_path)
    second = prepare_store(source, tokenizer, max_tokens=50, cache=tmp_path)
    assert source.readings == ["pairs"]
    assert first.left_out == second.left_out
    assert np.array_equal(first.lengths, second.lengths)


def test_checksums_that_are_known_are_not_taken_again(
    tokenizer: Tokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = corpus(PAIRS)
    sums = source.checksums()
    first = prepare_store(source, tokenizer, max_tokens=50, cache=tmp_path)
    monkeypatch.setattr(ListedPairs, "checksums", None)
    second = prepare_store(source, tokenizer, max_tokens=50, cache=tmp_path, sums=sums)
    assert first.path == second.path
    other = Checksums(sums.target, sums.source)
    third = prepare_store(source, tokenizer, max_tokens=50, cache=tmp_path, sums=other)
    assert third.path != first.path


def test_whatever_changes_the_ids_gives_another_store(tokenizer: Tokenizer, tmp_path: Path) -> None:
    config = TokenizerConfig(vocabulary_size=300)
    other = train_tokenizer(lambda: iter(PAIRS), tmp_path / "other", config=config, seed=1)
    prepare_store(corpus(PAIRS), tokenizer, max_tokens=50, cache=tmp_path)
    prepare_store(corpus(PAIRS), tokenizer, max_tokens=51, cache=tmp_path)
    prepare_store(corpus(PAIRS), other, max_tokens=50, cache=tmp_path)
    changed = [SentencePair("changed", PAIRS[0].target), *PAIRS[1:]]
    store = prepare_store(corpus(changed), tokenizer, max_tokens=50, cache=tmp_path)
    assert tokenizer.decode_source(store.examples([0])[0].source.tolist()) == "changed"
    assert len(files(tmp_path)) == 4


def test_progress_goes_to_a_terminal_and_its_end_to_the_log(
    tokenizer: Tokenizer,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    caplog.set_level("INFO", logger="mt")
    prepare_store(corpus(PAIRS), tokenizer, max_tokens=50, cache=tmp_path / "log")
    assert capsys.readouterr() == ("", "")
    assert re.search(r"encoding: 100 pairs in \d+\.\d s, [\d,]+ pairs/s", caplog.text)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    prepare_store(corpus(PAIRS), tokenizer, max_tokens=50, cache=tmp_path / "terminal")
    out, err = capsys.readouterr()
    assert out == ""
    assert "encoding: 100 pairs" in err


@pytest.mark.parametrize("kept", [0.0, 0.5, 0.99])
def test_a_truncated_store_is_noticed_and_made_anew(
    tokenizer: Tokenizer, tmp_path: Path, caplog: pytest.LogCaptureFixture, kept: float
) -> None:
    prepare_store(corpus(PAIRS), tokenizer, max_tokens=50, cache=tmp_path)
    (path,) = files(tmp_path)
    whole = path.read_bytes()
    path.write_bytes(whole[: int(kept * len(whole))])
    source = corpus(PAIRS)
    with caplog.at_level(logging.WARNING):
        store = prepare_store(source, tokenizer, max_tokens=50, cache=tmp_path)
    assert source.readings == ["pairs"]
    assert len(store) == 100
    assert path.read_bytes() == whole
    warnings = [record for record in caplog.records if record.levelname == "WARNING"]
    (message,) = [record.getMessage() for record in warnings]
    assert message.startswith(f"{path}: damaged")
    assert "\n" not in message


def test_offsets_overwritten_with_zeros_are_noticed(
    tokenizer: Tokenizer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    expected = prepare_store(corpus(PAIRS), tokenizer, max_tokens=50, cache=tmp_path).lengths.copy()
    (path,) = files(tmp_path)
    offsets = np.concatenate([[0], np.cumsum(expected[:, 0])]).astype(np.int32).tobytes()
    path.write_bytes(path.read_bytes().replace(offsets[40:200], bytes(160)))
    store = prepare_store(corpus(PAIRS), tokenizer, max_tokens=50, cache=tmp_path)
    assert np.array_equal(store.lengths, expected)
    assert "damaged" in caplog.text


def test_a_corpus_that_fails_on_the_way_leaves_no_file(
    tokenizer: Tokenizer, tmp_path: Path
) -> None:
    class Failing(ListedPairs):
        def pairs(self) -> Iterator[SentencePair]:
            yield from self.listed
            raise DataError("line 101 is not UTF-8")

    with pytest.raises(DataError, match="line 101"):
        prepare_store(
            Failing(UNVERIFIED, tuple(PAIRS), []), tokenizer, max_tokens=50, cache=tmp_path
        )
    assert files(tmp_path) == []


def test_a_full_disk_leaves_no_file(tokenizer: Tokenizer, tmp_path: Path) -> None:
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, limits[1]))
    try:
        with pytest.raises(OSError) as caught:
            prepare_store(corpus(PAIRS * 10), tokenizer, max_tokens=50, cache=tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert caught.value.errno == errno.EFBIG
    assert files(tmp_path) == []


def test_a_full_disk_is_named(
    tokenizer: Tokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(store_module, "_write", full)
    with pytest.raises(OSError) as caught:
        prepare_store(corpus(PAIRS), tokenizer, max_tokens=50, cache=tmp_path)
    assert caught.value.filename == str(tmp_path / "pairs")


def test_opening_a_store_imports_nothing_slow(tokenizer: Tokenizer, tmp_path: Path) -> None:
    store = prepare_store(corpus(PAIRS), tokenizer, max_tokens=50, cache=tmp_path)
    code = f"""
import sys
from pathlib import Path
from mt.data.store import PairStore
print(len(PairStore(Path({str(store.path)!r}))))
print({{"pandas", "datasets", "torch"}} & {{*sys.modules}})
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True)
    assert done.stdout == "100\nset()\n"
