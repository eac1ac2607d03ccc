import errno
import fcntl
import math
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import cache
from itertools import count, pairwise
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mt.config import TokenizerConfig
from mt.data import subword_sampling as sampling_module
from mt.data.store import Chunk, LeftOut, PairStore, Rows, write_store
from mt.data.subword_sampling import EpochTokens, Sampling, find_epoch_file, sample_epoch
from mt.data.tokenizer import Tokenizer, Vocabulary
from mt.data.tokenizer_training import train_model
from mt.special_ids import BOS, EOS, PAD, UNK
from tests.factories import LINES_OF_TEXT, foreign_vocabulary, run_process

LINES = [
    *(f"the {noun} sees  the cats, 你好，世界。" for noun in ("dog", "bird", "fish", "horse")),
    *(f"{word} low lower lowest new newer newest wide wider widest" for word in "abcd"),
]
SAMPLING = Sampling(source=0.3, target=0.2, max_tokens=999, seed=1)


def trained(**settings: object) -> Vocabulary:
    config = TokenizerConfig.model_validate({"vocabulary_size": 400, **settings})
    return Vocabulary.from_model(train_model(LINES, config))


BPE = trained(algorithm="bpe")
NFKC = foreign_vocabulary(LINES, 400, normalization_rule_name="nmt_nfkc", byte_fallback=True)

familiar = st.lists(
    st.sampled_from(["the", "lowest", "newer", "dogs", "你好", "世界。", "we", "st"]), max_size=8
).map(" ".join)
numbers = count()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


def stored(folder: Path, *chunks: list[list[int]]) -> PairStore:
    """Write rows as both sides of a store, chunk by chunk."""
    path = folder / "pairs" / f"{next(numbers)}.arrow"
    rows = map(Rows.of, chunks)
    write_store(path, [Chunk(each, each, LeftOut(0, 0, 0)) for each in rows])
    return PairStore(path)


def ids(store: PairStore) -> list[tuple[list[int], list[int]]]:
    examples = store.examples(range(len(store)))
    return [(each.source.tolist(), each.target.tolist()) for each in examples]


def drawn(
    folder: Path, vocabulary: Vocabulary, rows: list[list[int]], strength: float, **keys: Any
) -> list[list[int]]:
    """Return rows in the tokens of the first epoch."""
    sampling = replace(SAMPLING, source=strength, target=0.0, **keys)
    both = Tokenizer(vocabulary, vocabulary, "")
    return [source for source, _ in ids(sample_epoch(stored(folder, rows), both, sampling, 0))]


@pytest.mark.parametrize("vocabulary", [BPE, NFKC])
@settings(deadline=None, max_examples=25)
@given(
    lines=st.lists(familiar | LINES_OF_TEXT, min_size=1, max_size=4),
    strength=st.floats(0.01, 1.0),
    seed=st.integers(0, 2**32),
)
def test_drawn_tokens_are_the_same_text(
    folder: Path, vocabulary: Vocabulary, lines: list[str], strength: float, seed: int
) -> None:
    plain = vocabulary.encode(lines)
    drawn_ids = drawn(folder, vocabulary, plain, strength, seed=seed)
    assert list(map(vocabulary.decode, drawn_ids)) == list(map(vocabulary.decode, plain))
    for row in drawn_ids:
        assert row[-1] == EOS
        assert not {PAD, UNK, BOS, EOS} & set(row[:-1])


DRAWS = 20_000


def assert_drawn_as(
    expected: dict[tuple[str, ...], float], vocabulary: Vocabulary, rows: list[list[int]]
) -> None:
    counts = Counter[tuple[str, ...]]()
    for row in rows:
        tokens = vocabulary.processor.id_to_piece(row)
        second = next(at for at, token in enumerate(tokens) if at and token.startswith("▁"))
        counts[tuple(tokens[:second])] += 1
    assert counts.keys() <= expected.keys()
    assert len(expected) > 4
    assert math.isclose(sum(expected.values()), 1.0)
    for tokens, share in expected.items():
        deviation = math.sqrt(share * (1 - share) / DRAWS)
        assert abs(counts[tokens] / DRAWS - share) <= 5 * deviation, tokens


@pytest.mark.parametrize("dropout", [0.1, 0.6])
def test_bpe_drops_merges_with_the_probability_of_the_paper(folder: Path, dropout: float) -> None:
    """Algorithm 1 of Provilkov et al. 2020, followed through every outcome of its coins."""
    ranks = {text: rank for rank, text in enumerate(BPE.texts().values())}

    @cache
    def outcomes_of(tokens: tuple[str, ...]) -> dict[tuple[str, ...], float]:
        pairs = ["".join(pair) for pair in pairwise(tokens)]
        merges = sorted((ranks[pair], at) for at, pair in enumerate(pairs) if pair in ranks)
        outcomes: dict[tuple[str, ...], float] = defaultdict(float)
        outcomes[tokens] = dropout ** len(merges)
        for number, (_, at) in enumerate(merges):  # the first merge that is not dropped
            chance = dropout**number * (1 - dropout)
            for outcome, share in outcomes_of((*tokens[:at], pairs[at], *tokens[at + 2 :])).items():
                outcomes[outcome] += chance * share
        return outcomes

    rows = drawn(folder, BPE, BPE.encode(["lowest  a"]) * DRAWS, dropout)
    assert_drawn_as(outcomes_of(tuple("▁lowest")), BPE, rows)


def test_row_that_would_be_too_long_keeps_its_tokens(folder: Path) -> None:
    plain = BPE.encode(["the lowest newer"] * 200)
    longest = len(plain[0]) + 2
    free = drawn(folder, BPE, plain, 0.3)
    bound = drawn(folder, BPE, plain, 0.3, max_tokens=longest)
    assert bound == [row if len(row) <= longest else plain[0] for row in free]
    assert {len(row) > longest for row in free} == {True, False}


def test_unknown_characters_and_tags_stay(folder: Path) -> None:
    vocabulary = foreign_vocabulary(LINES, 60, control_symbols=["<bt>"])
    (plain,) = vocabulary.encode(["the ßß lowest"])
    tagged = [vocabulary.tags["<bt>"], *plain]
    (row,) = drawn(folder, vocabulary, [tagged], 0.9)
    assert row[0] == tagged[0]
    assert row.count(UNK) == plain.count(UNK) == 1
    assert vocabulary.decode(row) == vocabulary.decode(plain)
    assert len(row) > len(tagged)


def test_draws_follow_from_seed_epoch_and_text_alone(folder: Path) -> None:
    both = Tokenizer(BPE, BPE, "")
    rows = BPE.encode(LINES)

    def draw(epoch: int = 0, **keys: Any) -> list[tuple[list[int], list[int]]]:
        plain = stored(folder, rows, rows, rows[:2])
        return ids(sample_epoch(plain, both, replace(SAMPLING, **keys), epoch))

    first = draw()
    with ThreadPoolExecutor(3) as pool:
        assert list(pool.map(draw, [0] * 3)) == [first] * 3
    assert draw() == first
    others = [draw(1), draw(seed=2), draw(source=0.5), draw(target=0.5)]
    assert all(first != other for other in others)
    assert first[: len(rows)] != first[len(rows) : 2 * len(rows)]  # chunks differ
    assert [target for _, target in draw(target=0.0)] == [*rows, *rows, *rows[:2]]


@pytest.fixture
def plain(tmp_path: Path) -> PairStore:
    return stored(tmp_path, *[BPE.encode(LINES)] * 4)


@pytest.fixture
def epochs(plain: PairStore) -> Iterator[EpochTokens]:
    opened = EpochTokens([plain], Tokenizer(BPE, BPE, ""), SAMPLING, epochs=None)
    yield opened
    opened.close()


def files(plain: PairStore) -> set[str]:
    return {path.name for path in find_epoch_file(plain, SAMPLING, 0).parent.glob("*.arrow")}


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_next_epoch_is_drawn_ahead_and_former_epochs_are_deleted(
    plain: PairStore, epochs: EpochTokens
) -> None:
    zero = epochs.open(0)
    assert epochs.open(0) is zero
    wait_until(lambda: files(plain) == {"0.arrow", "1.arrow"})
    one = ids(epochs.open(1))
    wait_until(lambda: files(plain) == {"1.arrow", "2.arrow"})
    assert ids(zero) != one  # a deleted store stays readable while it is open
    assert ids(epochs.open(5)) != one
    assert ids(epochs.open(1)) == one  # as after a rollback
    epochs.close()
    assert files(plain) == set()


def test_failed_draw_is_raised_when_its_epoch_is_opened(
    plain: PairStore, epochs: EpochTokens
) -> None:
    path = find_epoch_file(plain, SAMPLING, 1)
    path.mkdir(parents=True)  # no file can replace a folder
    epochs.open(0)
    with pytest.raises(OSError, match=str(path)):
        epochs.open(1)
    path.rmdir()


def test_waiting_for_another_process_is_logged_and_its_file_used(
    plain: PairStore,
    epochs: EpochTokens,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO", logger="mt")
    monkeypatch.setattr(sampling_module, "SILENT_SECONDS", 0.05)
    path = find_epoch_file(plain, SAMPLING, 0)
    left = path.with_name(".0.arrow.a.mt-aside")  # by a killed process
    left.mkdir(parents=True)
    (left / ".lock").touch()
    with (path.parent / ".lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        opening = ThreadPoolExecutor(1).submit(epochs.open, 0)
        wait_until(lambda: "waiting for the tokens of epoch 1" in caplog.text)
        assert not path.exists()
    drawn_ids = ids(opening.result())
    written = path.stat().st_ino
    assert ids(sample_epoch(plain, Tokenizer(BPE, BPE, ""), SAMPLING, 0)) == drawn_ids
    assert path.stat().st_ino == written
    assert not left.exists()
    path.write_bytes(path.read_bytes()[:-100])
    assert ids(sample_epoch(plain, Tokenizer(BPE, BPE, ""), SAMPLING, 0)) == drawn_ids
    assert f"{path}: damaged" in caplog.text


@pytest.mark.parametrize("number", [errno.ENOSYS, errno.ENOLCK, errno.ENOTSUP, errno.EINVAL, 524])
def test_file_system_without_locks_draws_and_keeps_the_files_of_other_ranks(
    number: int, plain: PairStore, epochs: EpochTokens, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = ids(sample_epoch(plain, Tokenizer(BPE, BPE, ""), SAMPLING, 0))
    path = find_epoch_file(plain, SAMPLING, 0)
    path.unlink()
    other = path.with_name(".0.arrow.a.mt-aside") / ".lock"  # of another rank
    other.parent.mkdir()
    other.touch()

    def refuse(*_: object) -> None:
        raise OSError(number, "no locks")

    monkeypatch.setattr(fcntl, "flock", refuse)
    assert ids(epochs.open(0)) == wanted
    assert other.exists()
    other.unlink()
    other.parent.rmdir()


def test_drawing_stops_when_the_process_ends(tmp_path: Path) -> None:
    rows = BPE.encode(LINES)
    plain = stored(tmp_path, *[rows * 50] * 80)
    (tmp_path / "model").write_bytes(BPE.processor.serialized_model_proto())
    code = f"""
        from pathlib import Path
        from mt.data.store import PairStore
        from mt.data.subword_sampling import EpochTokens, Sampling, find_epoch_file
        from mt.data.tokenizer import Tokenizer
        from mt.data.tokenizer import Vocabulary

        words = Vocabulary.from_model(Path({str(tmp_path / "model")!r}).read_bytes())
        store = PairStore(Path({str(plain.path)!r}))
        sampling = Sampling(source=0.5, target=0.5, max_tokens=99, seed=1)
        epochs = EpochTokens([store], Tokenizer(words, words, ""), sampling, epochs=None)
        epochs.begin(0)
    """
    run_process(sys.executable, "-c", dedent(code))
    assert not list(tmp_path.glob("epochs/*/*.arrow"))
