import hashlib
import json
from pathlib import Path
from typing import Any

import datasets
import huggingface_hub
import pyarrow as pa
import pytest
from pyarrow import parquet

from mt.config.data import Direction, FolderSource, HubSource, JsonlSource, ParquetSource
from mt.data.pairs import Checksums, PairSource, SentencePair
from mt.data.sources import open_source
from mt.errors import DataError

DIRECTION = Direction("en", "de")
FLAT = {"columns": ["en", "de"]}
REVISION = "0123456789abcdef0123456789abcdef01234567"


def rows(*pairs: tuple[str, str]) -> list[dict[str, Any]]:
    return [{"translation": {"en": source, "de": target}} for source, target in pairs]


def write_jsonl(path: Path, records: list[Any]) -> Path:
    path.write_text("".join(f"{json.dumps(record)}\n" for record in records))
    return path


def jsonl(path: Path, **fields: Any) -> PairSource:
    return open_source(JsonlSource(format="jsonl", path=path, **fields), DIRECTION)


def write_parquet(path: Path, records: list[dict[str, Any]]) -> Path:
    parquet.write_table(pa.Table.from_pylist(records), path)
    return path


def parquet_pairs(path: Path, **fields: Any) -> PairSource:
    return open_source(ParquetSource(format="parquet", path=path, **fields), DIRECTION)


def read(source: PairSource) -> list[tuple[str, str]]:
    return [(pair.source, pair.target) for pair in source.pairs()]


ODD = ("a\u2028b\rc\x0b “d”", "2024-01-01")


def test_translation_field_and_checksums_are_the_default(tmp_path: Path) -> None:
    pairs = [("one", "三"), ODD, ("", "")]
    sums = Checksums(
        *(
            hashlib.sha256("".join(f"{text}\n" for text in side).encode()).hexdigest()
            for side in zip(*pairs, strict=True)
        )
    )
    for source in (
        jsonl(write_jsonl(tmp_path / "a.jsonl", rows(*pairs))),
        parquet_pairs(write_parquet(tmp_path / "a[1].parquet", rows(*pairs))),  # no pattern
    ):
        assert read(source) == pairs
        assert source.checksums() == sums
        assert source.description.startswith(str(tmp_path))


@pytest.mark.parametrize(
    ("fields", "record"),
    [
        (FLAT, {"en": "a", "de": "b", "id": 7}),
        ({"columns": ["x.y.z", "t.1"]}, {"x": {"y": {"z": "a"}}, "t": {"1": "b"}}),
        ({}, {"translation.en": "a", "translation.de": "b"}),
    ],
)
def test_fields_are_names_or_paths(
    tmp_path: Path, fields: dict[str, str], record: dict[str, Any]
) -> None:
    assert read(jsonl(write_jsonl(tmp_path / "a.jsonl", [record]), **fields)) == [("a", "b")]
    assert read(parquet_pairs(write_parquet(tmp_path / "a.parquet", [record]), **fields)) == [
        ("a", "b")
    ]


def test_missing_field_names_the_existing_ones(tmp_path: Path) -> None:
    record = {"translation": {"en": "a", "ger": "b"}, "id": 7}
    fields = "`translation.de`; .*`translation.en`, `translation.ger`, `id`"
    with pytest.raises(DataError, match=f"a.jsonl: line 1: .*{fields}"):
        read(jsonl(write_jsonl(tmp_path / "a.jsonl", [record])))
    with pytest.raises(DataError, match=f"a.parquet: .*{fields}"):
        read(parquet_pairs(write_parquet(tmp_path / "a.parquet", [record])))


@pytest.mark.parametrize("value", ["a\nb", 3])
def test_value_that_is_no_line_of_text_names_its_row(tmp_path: Path, value: str | int) -> None:
    good = [{"en": "a", "de": "b"}] * (0 if value == 3 else 4999)  # a column has one type
    records: list[dict[str, Any]] = [*good, {"en": "a", "de": value}, *good[:9]]
    with pytest.raises(DataError, match=f"line {len(good) + 1}: `de`"):
        read(jsonl(write_jsonl(tmp_path / "a.jsonl", records), **FLAT))
    with pytest.raises(DataError, match=f"row {len(good) + 1}: `de`"):
        read(parquet_pairs(write_parquet(tmp_path / "a.parquet", records), **FLAT))


def test_records_without_a_side_are_left_out_and_counted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    good: list[dict[str, Any]] = [{"en": f"a{n}", "de": f"b{n}"} for n in range(4999)]
    bad: list[dict[str, Any]] = [{"en": "x", "de": None}, {"en": None, "de": None}, {"de": "x"}]
    records = [*good[:2], *bad, *good[2:]]
    lines = jsonl(write_jsonl(tmp_path / "a.jsonl", records), **FLAT)
    table = parquet_pairs(write_parquet(tmp_path / "a.parquet", records), **FLAT)
    for source, place in ((lines, "line 3"), (table, "row 3")):
        assert read(source) == [(record["en"], record["de"]) for record in good]
        assert caplog.messages[-1] == (
            f"{source.description}: 3 of 5002 records lack one of the sides and are left out "
            f"({place}: `de` is null)"
        )
    for source, place in (
        (jsonl(write_jsonl(tmp_path / "b.jsonl", bad[:2]), **FLAT), "line 1"),
        (parquet_pairs(write_parquet(tmp_path / "b.parquet", bad[:2]), **FLAT), "row 1"),
    ):
        with pytest.raises(DataError, match=f": {place}: "):
            read(source)


@pytest.mark.parametrize(
    "line",
    [
        *(b'{"en": "a", ', b'["a", "b"]', b'{"en": "\xff", "de": "b"}'),
        *(b'{"en": "\\ud800", "de": "b"}', b"[" * 100_000),
    ],
)
def test_damaged_json_line_is_named(tmp_path: Path, line: bytes) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"en": "a", "de": "b"}\n' + line + b"\n")
    with pytest.raises(DataError, match=f"^{path}: line 2"):
        read(jsonl(path, **FLAT))


def test_jsonl_infers_no_types_and_ignores_other_keys(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(
        '{"en": "2020-01-01", "de": "NA", "id": 1}\n\n'
        '{"late": {}, "id": "x", "en": "1", "de": "null"}\n'
    )
    assert read(jsonl(path, **FLAT)) == [("2020-01-01", "NA"), ("1", "null")]


def test_parquet_texts_may_be_dictionaries_but_must_be_utf8(tmp_path: Path) -> None:
    binary = pa.array([b"a", b"b\xff", b"c"])
    table = pa.table({"en": binary.view(pa.string()), "de": ["x", "y", "z"]})
    parquet.write_table(table, tmp_path / "a.parquet")
    with pytest.raises(DataError, match="rows 1 to 3: `en`"):
        read(parquet_pairs(tmp_path / "a.parquet", **FLAT))
    column = pa.array(["a", "b", "a"]).dictionary_encode()
    parquet.write_table(pa.table({"en": column, "de": column}), tmp_path / "a.parquet")
    assert read(parquet_pairs(tmp_path / "a.parquet", **FLAT))[2] == ("a", "a")


def test_changed_file_gives_its_new_rows(tmp_path: Path) -> None:
    """Neither the process nor a cache on disk keeps the first reading."""
    for number in range(2):
        pair = (f"one {number}", f"eins {number}")
        lines = write_jsonl(tmp_path / "a.jsonl", rows(pair))
        assert read(jsonl(lines)) == [pair]
        table = write_parquet(tmp_path / "a.parquet", rows(pair))
        assert read(parquet_pairs(table)) == [pair]
        (tmp_path / "folder").mkdir(exist_ok=True)
        write_parquet(tmp_path / "folder" / "train.parquet", rows(pair))
        assert read(folder(tmp_path / "folder")) == [pair]


def folder(path: Path, **fields: Any) -> PairSource:
    return open_source(FolderSource(format="folder", path=path, **fields), DIRECTION)


def test_folder_reads_its_split(tmp_path: Path) -> None:
    write_parquet(tmp_path / "train.parquet", rows(("one", "eins"), ("two", "zwei")))
    write_parquet(tmp_path / "test.parquet", rows(("three", "drei")))
    assert read(folder(tmp_path)) == [("one", "eins"), ("two", "zwei")]
    assert read(folder(tmp_path, split="test")) == [("three", "drei")]
    assert folder(tmp_path).description == f"{tmp_path}, split train"
    with pytest.raises(DataError):
        read(folder(tmp_path, split="tset"))


def test_dataset_script_is_refused_and_not_run(tmp_path: Path) -> None:
    path = tmp_path / "corpus"
    path.mkdir()
    (path / "corpus.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    with pytest.raises(DataError):
        read(folder(path))
    assert not (tmp_path / "ran").exists()


def test_hub_loads_the_pinned_revision(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def load(name: str, subset: str | None, **rest: Any) -> Any:
        asked.append((name, subset, rest))
        return datasets.Dataset.from_list(rows(("one", "eins")))

    monkeypatch.setattr(datasets, "load_dataset", load)
    source = HubSource(
        format="hub", name="o/n", revision=REVISION, subset="de-en", folder="f", split="test"
    )
    opened = open_source(source, DIRECTION)
    assert asked == []
    assert list(opened.pairs()) == [SentencePair("one", "eins")]
    assert asked == [("o/n", "de-en", {"data_dir": "f", "split": "test", "revision": REVISION})]
    assert opened.description == f"o/n@{REVISION}, split test"


def test_unreadable_dataset_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    path = tmp_path / "train.parquet"
    path.write_bytes(b"PAR1, but nothing else")
    hub = HubSource(format="hub", name="o/n", revision=REVISION, corpus="iwslt/train")
    for source, hint in (
        (parquet_pairs(path), ""),
        (folder(tmp_path), ""),
        (open_source(hub, DIRECTION), "$MT_CORPORA can supply it as iwslt/train."),
    ):
        with pytest.raises(DataError) as error:
            read(source)
        assert str(error.value).startswith(source.description)
        assert "\n" not in str(error.value)
        assert hint in str(error.value)
