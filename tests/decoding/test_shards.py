"""Parts of a job: resumed after a stop at any write, joined, refused beside other work."""

import itertools
import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import pytest

from mt.decoding import shards
from mt.decoding.engine import choose_rank_device
from mt.decoding.shards import (
    Job,
    ProduceWindows,
    Record,
    Shard,
    Window,
    chosen_shard,
    read_record,
    run_shard,
)
from mt.errors import DataError, UserError

TOTAL = 60
WINDOW = 20
SETTINGS = {"model": "m", "beam": 5, "noise": (0.1, 3), "decoding.batch_size": 20}
LINES = [f"line {number}" + " long" * (number % 9) for number in range(TOTAL)]


@pytest.fixture(autouse=True)
def _no_waiting_for_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", lambda _: None)


def job(folder: Path, **changes: Any) -> Job:
    whole = Job(
        outputs=(folder / "news.de", folder / "news.en", folder / "news.json"),
        settings=SETTINGS,
        total=TOTAL,
        window=WINDOW,
    )
    return replace(whole, **changes)


def make(lines: range) -> Iterator[Window]:
    """Leave out each fifth line; the output depends on the first line of its window."""
    for first in range(lines.start, lines.stop, WINDOW):
        some = range(first, min(first + WINDOW, lines.stop))
        kept = [line for line in some if line % 5 != 3]
        left = "".join(f"Zeile\u2028{line} {first}\n" for line in kept)
        right = "".join(f"{LINES[line]} ä\n" for line in kept)
        counts = {"written": len(kept), "left out": len(some) - len(kept)}
        yield Window(len(some), (left.encode(), right.encode()), counts)


def written(job: Job, make: ProduceWindows = make) -> Record:
    result = run_shard(job, lambda: make)
    assert result is not None
    return result.record


def contents(folder: Path) -> dict[str, bytes]:
    files = {path.name: path.read_bytes() for path in folder.iterdir()}
    return {name: content for name, content in files.items() if not name.endswith(".lock")}


@pytest.fixture
def whole(tmp_path: Path) -> dict[str, bytes]:
    """Return the files that one process writes."""
    written(job(tmp_path / "whole"))
    return contents(tmp_path / "whole")


def test_windows_are_written_in_order_and_counted(tmp_path: Path) -> None:
    record = written(job(tmp_path))
    windows = list(make(range(TOTAL)))
    assert contents(tmp_path) == {
        "news.de": b"".join(window.texts[0] for window in windows),
        "news.en": b"".join(window.texts[1] for window in windows),
        "news.json": (tmp_path / "news.json").read_bytes(),
    }
    assert record.counts == {"written": 48, "left out": 12}
    assert (record.lines, record.done) == (60, 60)
    assert record == read_record(tmp_path / "news.json")


class _Stop(BaseException):
    """Stands for a kill: no code catches it."""


def _stopping(patch: pytest.MonkeyPatch, after: int) -> None:
    """Stop at the n-th call that writes, syncs, renames or removes."""
    calls = itertools.count(1)

    def counted(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            if next(calls) == after:
                raise _Stop
            return function(*arguments, **options)

        return call

    for name in ("sync", "write_json"):
        patch.setattr(shards, name, counted(getattr(shards, name)))
    for name in ("replace", "unlink"):
        patch.setattr(Path, name, counted(getattr(Path, name)))


@pytest.mark.parametrize("of", [1, 2])
def test_stopped_at_any_write_the_same_calls_complete_the_same_files(
    of: int, tmp_path: Path, whole: dict[str, bytes]
) -> None:
    for after in itertools.count(1):
        folder = tmp_path / str(after)
        jobs = [job(folder, shard=shard) for shard in Shard(1, of).all()]
        try:
            with pytest.MonkeyPatch.context() as patch:
                _stopping(patch, after)
                for shard_job in jobs:
                    written(shard_job)
        except _Stop:
            assert not (folder / "news.json").exists() or not list(folder.glob("*.part"))
        else:
            break
        for text in folder.glob("news.*.part"):  # a torn write
            record = text.with_suffix("").with_suffix(".json.part")
            if text != record and record.exists():
                torn = text.read_bytes() + b"\xc3"
                if read_record(record).done < read_record(record).lines:
                    text.write_bytes(torn)
        for shard_job in jobs:
            written(shard_job)
        assert contents(folder) == whole
    assert after > 15 * of


def test_resuming_starts_at_the_window_where_it_stopped(tmp_path: Path) -> None:
    asked: list[range] = []

    def some(lines: range) -> Iterator[Window]:
        asked.append(lines)
        yield from itertools.islice(make(lines), 1 if len(asked) < 3 else None)
        if len(asked) < 3:
            raise _Stop

    for _ in range(2):
        with pytest.raises(_Stop):
            written(job(tmp_path), some)
    written(job(tmp_path), some)
    assert asked == [range(0, 60), range(20, 60), range(40, 60)]


def test_parts_are_joined_by_the_last_shard_in_any_order(
    tmp_path: Path, whole: dict[str, bytes], caplog: pytest.LogCaptureFixture
) -> None:
    """With more shards than windows, some parts are empty."""

    def never() -> NoReturn:
        raise AssertionError("loaded again")

    caplog.set_level("INFO")
    for of, order in ((3, (2, 0, 1)), (11, (*range(10, -1, -1),))):
        folder = tmp_path / str(of)
        jobs = [job(folder, shard=shard) for shard in Shard(1, of).all()]
        for place, number in enumerate(order, start=1):
            result = run_shard(jobs[number], lambda: make)
            assert result is not None
            left = ", ".join(f"{missing + 1}/{of}" for missing in sorted(order[place:]))
            assert result.missing == (f"missing shards: {left}" if left else "")
            assert result.files == (jobs[number].paths if left else jobs[number].outputs)[:-1]
        assert contents(folder) == whole
        for shard_job in jobs:
            assert run_shard(shard_job, never) == result
        assert caplog.messages[-1] == f"{folder}/news.json: finished already"
        assert contents(folder) == whole


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"settings": {**SETTINGS, "beam": 4}}, "`beam` 5, now it is 4"),
        ({"settings": {**SETTINGS, "new": 1}}, "`new` null, now it is 1"),
    ],
)
@pytest.mark.parametrize("shard", [Shard(), Shard(2, 2)])
@pytest.mark.parametrize("stopped", [True, False])
def test_other_settings_are_refused(
    stopped: bool, shard: Shard, changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    def stops(lines: range) -> Iterator[Window]:
        yield from itertools.islice(make(lines), 1)
        raise _Stop

    if stopped:
        with pytest.raises(_Stop):
            written(job(tmp_path, shard=shard), stops)
    else:
        written(job(tmp_path, shard=shard))
    before = contents(tmp_path)
    with pytest.raises(UserError) as error:
        written(job(tmp_path, **{"shard": shard, **changes}))
    assert message in str(error.value)
    assert contents(tmp_path) == before


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"shard": Shard(1, 3)}, "`shards` 2, now it is 3"),
        ({"shard": Shard()}, "`shards` 2, now it is 1"),
        ({"settings": {**SETTINGS, "decoding.batch_size": 3}}, "`decoding.batch_size` 20, now"),
    ],
)
def test_another_division_of_the_lines_is_refused(
    changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    written(job(tmp_path, shard=Shard(2, 2)))
    with pytest.raises(UserError) as error:
        written(job(tmp_path, **{"shard": Shard(1, 2), **changes}))
    assert message in str(error.value)


def test_one_process_may_change_the_batch_size(tmp_path: Path, whole: dict[str, bytes]) -> None:
    smaller = {**SETTINGS, "decoding.batch_size": 3}
    assert written(job(tmp_path / "whole", settings=smaller)).done == TOTAL
    assert contents(tmp_path / "whole") == whole


def test_settings_may_change_before_the_first_window(
    tmp_path: Path, whole: dict[str, bytes]
) -> None:
    def fails(lines: range) -> NoReturn:
        raise DataError("wrong")

    with pytest.raises(DataError):
        written(job(tmp_path / "a", settings={"beam": 1}), fails)
    written(job(tmp_path / "a"))
    assert contents(tmp_path / "a") == whole


@pytest.mark.parametrize(
    ("name", "shard"),
    [
        ("news.de", Shard()),
        ("news.en", Shard()),
        ("news.en.part", Shard()),
        ("news.en", Shard(1, 2)),
        ("news.1-of-2.en", Shard(1, 2)),
    ],
)
def test_existing_files_are_not_replaced(name: str, shard: Shard, tmp_path: Path) -> None:
    (tmp_path / name).write_text("mine\n")
    with pytest.raises(UserError, match=name):
        written(job(tmp_path, shard=shard))
    assert contents(tmp_path) == {name: b"mine\n"}


def test_a_second_process_is_refused(tmp_path: Path) -> None:
    def meanwhile(lines: range) -> Iterator[Window]:
        with pytest.raises(UserError):
            written(job(tmp_path))
        return make(lines)

    written(job(tmp_path), meanwhile)


def test_shortened_inputs_and_outputs_are_errors(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="40 lines"):
        written(job(tmp_path), lambda lines: make(lines[:40]))
    (tmp_path / "news.de.part").write_text("")
    with pytest.raises(DataError, match=r"news.de.part"):
        written(job(tmp_path))


@pytest.mark.parametrize("text", ["", '{"settings": {}, "lines": "many"}'])
def test_a_damaged_record_is_an_error(text: str, tmp_path: Path) -> None:
    (tmp_path / "news.2-of-3.json").write_text(text)
    with pytest.raises(DataError, match=r"2-of-3.json"):
        written(job(tmp_path))
    assert (tmp_path / "news.2-of-3.json").read_text() == text


@pytest.mark.parametrize("total", [0, 7, 100])
@pytest.mark.parametrize("of", [1, 7])
@pytest.mark.parametrize("window", [1, 3])
def test_shards_partition_the_windows(total: int, of: int, window: int) -> None:
    parts = [Job((), {}, total, window, shard).lines for shard in Shard(1, of).all()]
    assert [line for part in parts for line in part] == list(range(total))
    assert all(part.start % window == 0 or not part for part in parts)
    assert all(abs(len(part) - total / of) <= window for part in parts)


def test_shards_are_parsed_or_refused_and_their_names_are_in_order() -> None:
    names = [shard.path(Path("a/news.de")).name for shard in Shard(1, 12).all()]
    assert names[:2] == ["news.01-of-12.de", "news.02-of-12.de"]
    assert sorted(names) == names
    assert Shard(1, 1).path(Path("a/news")) == Path("a/news")
    assert Shard.parse("2/8") == Shard(2, 8)
    for text in ("0/8", "9/8", "8", "1/0", "a/b", "-1/2", "1/2/3", ""):
        with pytest.raises(UserError):
            Shard.parse(text)


def test_a_rank_is_a_shard_with_a_device_and_a_share_of_the_cores(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with chosen_shard(None) as one, chosen_shard("2/3") as given:
        assert (one, given, choose_rank_device(4)) == (None, Shard(2, 3), None)
    variables = {"RANK": "6", "WORLD_SIZE": "8", "LOCAL_RANK": "2", "LOCAL_WORLD_SIZE": "4"}
    for name, value in {**variables, "OMP_NUM_THREADS": "1"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(13)), raising=False)
    monkeypatch.setattr("platform.node", lambda: "giant")
    with chosen_shard(None) as shard:
        assert shard == Shard(7, 8, is_rank=True)
        assert os.environ["OMP_NUM_THREADS"] == "3"
    assert [choose_rank_device(count) for count in (1, 2, 4)] == [0, 0, 2]
    both = pytest.raises(UserError, match="rank 6 on host giant")
    with both, chosen_shard("1/2"):
        pass
