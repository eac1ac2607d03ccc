import itertools
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mt.augment.resumable import Job, Made, Shard, read_record, write_pairs
from mt.data.pairs import SentencePair
from mt.errors import DataError, UserError

TOTAL = 60
SETTINGS = {"model": "m", "beam": 5, "noise": (0.1, 3)}


def job(folder: Path, **changes: Any) -> Job:
    whole = Job(
        folder=folder,
        name="news",
        languages=("de", "en"),
        run=Path("runs/a"),
        settings=SETTINGS,
        total=TOTAL,
        window=7,
        shard=Shard(),
    )
    return replace(whole, **changes)


def made_of(line: int) -> Made:
    if line % 5 == 3:
        return "left out"
    return SentencePair(f"Zeile\u2028{line}", f"line {line} ä")


def make(lines: range) -> Iterator[Made]:
    return map(made_of, lines)


def contents(folder: Path) -> dict[str, bytes]:
    files = {path.name: path.read_bytes() for path in folder.iterdir()}
    return {name: content for name, content in files.items() if not name.endswith(".lock")}


@pytest.fixture
def whole(tmp_path: Path) -> dict[str, bytes]:
    write_pairs(job(tmp_path / "whole"), make)
    return contents(tmp_path / "whole")


def test_pairs_are_written_in_order_and_counted(tmp_path: Path) -> None:
    (tmp_path / ".news.json.part.123").touch()  # left by a killed process
    record = write_pairs(job(tmp_path), make)
    pairs = [each for each in map(made_of, range(TOTAL)) if isinstance(each, SentencePair)]
    assert contents(tmp_path) == {
        "news.de": "".join(f"{pair.source}\n" for pair in pairs).encode(),
        "news.en": "".join(f"{pair.target}\n" for pair in pairs).encode(),
        "news.json": (tmp_path / "news.json").read_bytes(),
    }
    assert record.counts == {"written": 48, "left out": 12}
    assert (record.lines, record.done) == (60, 60)
    assert replace(read_record(tmp_path / "news.json"), settings=SETTINGS) == record


def test_a_finished_job_is_not_repeated(tmp_path: Path, whole: dict[str, bytes]) -> None:
    def never(_lines: range) -> Iterator[Made]:
        raise AssertionError("read again")

    record = write_pairs(job(tmp_path / "whole"), never)
    assert record.counts == {"written": 48, "left out": 12}
    assert contents(tmp_path / "whole") == whole


class _Stop(BaseException):
    """Stands for a kill: no code catches it."""


def _stopping(patch: pytest.MonkeyPatch, after: int) -> None:
    """Stop at the n-th call that writes, syncs or renames."""
    calls = itertools.count(1)

    def counted(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            if next(calls) == after:
                raise _Stop
            return function(*arguments)

        return call

    for place in ("sync", "sync_folder", "write_record"):
        function = getattr(__import__("mt.augment.resumable", fromlist=[place]), place)
        patch.setattr(f"mt.augment.resumable.{place}", counted(function))
    patch.setattr(Path, "replace", counted(Path.replace))


def test_stopped_at_any_write_the_same_call_completes_the_same_files(
    tmp_path: Path, whole: dict[str, bytes]
) -> None:
    for after in itertools.count(1):
        folder = tmp_path / str(after)
        try:
            with pytest.MonkeyPatch.context() as patch:
                _stopping(patch, after)
                write_pairs(job(folder, window=20), make)
        except _Stop:
            assert not (folder / "news.json").exists() or not list(folder.glob("*.part"))
        else:
            break
        for text in folder.glob("news.??.part"):  # a torn write
            record = folder / "news.json.part"
            if read_record(record).done < TOTAL:
                text.write_bytes(text.read_bytes() + b"\xc3")
        write_pairs(job(folder, window=20), make)
        assert contents(folder) == whole
    assert after > 20


def test_resuming_starts_at_the_window_where_it_stopped(tmp_path: Path) -> None:
    asked: list[range] = []

    def some(lines: range) -> Iterator[Made]:
        asked.append(lines)
        for line in lines:
            if len(asked) < 3 and line == 20 * len(asked):
                raise _Stop
            yield made_of(line)

    for _ in range(2):
        with pytest.raises(_Stop):
            write_pairs(job(tmp_path), some)
    write_pairs(job(tmp_path), some)
    assert asked == [range(0, 60), range(14, 60), range(35, 60)]


def test_shards_concatenate_to_the_whole(tmp_path: Path, whole: dict[str, bytes]) -> None:
    jobs = [job(tmp_path / "parts", shard=shard) for shard in Shard(1, 3).all()]
    for number in (2, 0):
        write_pairs(jobs[number], make)
    assert jobs[0].missing_shards() == [Shard(2, 3)]
    write_pairs(jobs[1], make)
    assert jobs[2].missing_shards() == []
    for language in ("de", "en"):
        parts = sorted((tmp_path / "parts").glob(f"news.*.{language}"))
        assert b"".join(part.read_bytes() for part in parts) == whole[f"news.{language}"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"settings": {**SETTINGS, "beam": 4}},
            "with `beam` 5, now it is 4; name another --out",
        ),
        ({"settings": {**SETTINGS, "new": 1}}, "was begun with `new` null, now it is 1;"),
        (
            {"settings": {**SETTINGS, "model": "n"}, "run": Path("b")},
            "with `model` m, now it is n (of runs/a and of b);",
        ),
        ({"settings": {**SETTINGS, "beam": 4}, "shard": Shard(2, 2)}, "with `beam` 5"),
        ({"settings": {**SETTINGS, "beam": 4}, "name": "other"}, "with `beam` 5"),
    ],
)
@pytest.mark.parametrize("stopped", [True, False])
def test_a_folder_with_other_settings_is_refused(
    stopped: bool, changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    def stops(lines: range) -> Iterator[Made]:
        yield from make(lines[:20])
        raise _Stop

    if stopped:
        with pytest.raises(_Stop):
            write_pairs(job(tmp_path), stops)
    else:
        write_pairs(job(tmp_path), make)
    before = contents(tmp_path)
    with pytest.raises(UserError) as error:
        write_pairs(job(tmp_path, **changes), make)
    assert message in str(error.value)
    assert contents(tmp_path) == before


def test_settings_may_change_before_the_first_window(
    tmp_path: Path, whole: dict[str, bytes]
) -> None:
    def fails(lines: range) -> Iterator[Made]:
        raise DataError("wrong")

    with pytest.raises(DataError):
        write_pairs(job(tmp_path / "a", settings={"beam": 1}), fails)
    write_pairs(job(tmp_path / "a"), make)
    assert contents(tmp_path / "a") == whole


@pytest.mark.parametrize("name", ["news.de", "news.en", "news.en.part"])
def test_existing_files_are_not_replaced(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text("mine\n")
    with pytest.raises(UserError, match=f"{name}: exists already"):
        write_pairs(job(tmp_path), make)
    assert contents(tmp_path) == {name: b"mine\n"}


def test_a_second_process_is_refused(tmp_path: Path) -> None:
    def meanwhile(lines: range) -> Iterator[Made]:
        with pytest.raises(UserError, match=r"news.json: another process is writing it"):
            write_pairs(job(tmp_path), make)
        return make(lines)

    write_pairs(job(tmp_path), meanwhile)


def test_shortened_inputs_and_outputs_are_errors(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="the input has changed: it ends after 30 lines"):
        write_pairs(job(tmp_path), lambda lines: make(lines[:30]))
    (tmp_path / "news.de.part").write_text("")
    with pytest.raises(DataError, match=r"news.de.part: has 0 bytes instead of"):
        write_pairs(job(tmp_path), make)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"format": 2}', '{"format": 1, "run": 1}'])
def test_a_damaged_record_is_an_error(text: str, tmp_path: Path) -> None:
    (tmp_path / "mine.json").write_text(text)
    with pytest.raises(DataError, match=r"mine.json: (damaged|is of another format)"):
        write_pairs(job(tmp_path), make)
    assert (tmp_path / "mine.json").read_text() == text


@pytest.mark.parametrize("total", [1, 7, 100])
@pytest.mark.parametrize("of", [1, 2, 7])
def test_shards_partition_the_lines_evenly_in_order(total: int, of: int) -> None:
    parts = [shard.lines(total) for shard in Shard(1, of).all()]
    assert [place for part in parts for place in part] == list(range(total))
    lengths = {len(part) for part in parts}
    assert max(lengths) - min(lengths) <= 1


def test_shard_names_sort_in_the_order_of_the_lines() -> None:
    names = [shard.named("news") for shard in Shard(1, 12).all()]
    assert names[:2] == ["news.01-of-12", "news.02-of-12"]
    assert sorted(names) == names
    assert Shard(1, 1).named("news") == "news"


def test_shards_are_parsed_or_refused() -> None:
    assert Shard.parse("2/8") == Shard(2, 8)
    for text in ("0/8", "9/8", "8", "1/0", "a/b", "-1/2", "1/2/3", ""):
        with pytest.raises(UserError, match=r"must be K/N with K from 1 to N, such as 2/8"):
            Shard.parse(text)
