import bz2
import gzip
import hashlib
import io
import lzma
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import zstandard

from mt.data import corpus_files
from mt.data.corpus_files import FileScan, LineReader, scan
from mt.decoding.text_files import open_output, read_lines, stdin_lines
from mt.errors import DataError
from mt.files import require_file

TEXT = "one\nzwei\n三\n".encode()

COMPRESSORS: dict[str, Callable[[bytes], bytes]] = {
    ".gz": gzip.compress,
    ".bz2": bz2.compress,
    ".GZ": gzip.compress,
    ".xz": lzma.compress,
    ".zst": zstandard.ZstdCompressor().compress,
}


def write(folder: Path, content: bytes, name: str = "a.en") -> Path:
    path = folder / name
    path.write_bytes(content)
    return path


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"a\nb\n", ["a", "b"]),
        (b"a\nb", ["a", "b"]),
        (b"", []),
        (b"\n", [""]),
        (b"\n\n", ["", ""]),
        (b"a\r\nb\r\r\nc\r", ["a", "b\r", "c"]),
        (b"a\rb\n", ["a\rb"]),
        ("a\u2028\u2029b\u0085\x0bc\x0c\x1c\n".encode(), ["a\u2028\u2029b\u0085\x0bc\x0c\x1c"]),
        (b"\xef\xbb\xbfa\n\xef\xbb\xbfb\n", ["a", "\ufeffb"]),
        (b" a \t\n", [" a \t"]),
    ],
)
def test_only_newlines_end_lines(tmp_path: Path, content: bytes, expected: list[str]) -> None:
    path = write(tmp_path, content)
    assert list(LineReader(path)) == expected
    assert scan(path) == FileScan(len(expected), sha256(content))


def test_crlf_is_logged_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = write(tmp_path, b"a\r\nb\nc\r\n")
    assert [*LineReader(path)] == [*LineReader(path)] == ["a", "b", "c"]
    [message] = caplog.messages
    assert message.startswith(f"{path}: 2 lines")


def test_one_nul_among_many_lines_is_read(tmp_path: Path) -> None:
    path = write(tmp_path, TEXT * 100 + b"a\0b\n" + TEXT * 100)
    assert list(LineReader(path))[300] == [*read_lines(path)][300] == "a\0b"


@pytest.mark.parametrize("chunk_bytes", [1, 2, 3, 5, 64])
def test_lines_do_not_depend_on_the_chunks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chunk_bytes: int
) -> None:
    content = b"\xef\xbb\xbf" + "ein langer Satz\r\n\n三\u2028四\nlast\r".encode()
    path = write(tmp_path, content)
    monkeypatch.setattr(corpus_files, "CHUNK_BYTES", chunk_bytes)
    reader = LineReader(path)
    assert list(reader) == ["ein langer Satz", "", "三\u2028四", "last"]
    assert reader.seen() == scan(path) == FileScan(4, sha256(content))


@pytest.mark.parametrize("chunk_bytes", [1, 3, 8])
@pytest.mark.parametrize("last", [b"", b"\n", b"ein sehr langes Ende"])
def test_long_lines_are_left_out_and_logged(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    chunk_bytes: int,
    last: bytes,
) -> None:
    content = (
        b"12345678\n123456789\n\nkurz\n" + "schöne\nüüüüü\n".encode() + b"x" * 99 + b"\n" + last
    )
    path = write(tmp_path, content)
    monkeypatch.setattr(corpus_files, "CHUNK_BYTES", chunk_bytes)
    monkeypatch.setattr(corpus_files, "LONGEST_LINE", 8)
    expected = [line if len(line.encode()) <= 8 else "-" for line in content.decode().split("\n")]
    reader = LineReader(path, long_line="-")
    assert list(reader) == (expected if last not in (b"", b"\n") else expected[:-1])
    count = expected.count("-")
    assert caplog.messages == [
        f"{path}: {count} lines of more than 8 bytes are left out, such as 2"
    ]
    assert reader.seen() == scan(path)
    with pytest.raises(DataError, match=f"^{path}: line 2 "):
        list(LineReader(path))


@pytest.mark.parametrize("chunk_bytes", [2, 1 << 20])
def test_invalid_utf8_names_file_and_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chunk_bytes: int
) -> None:
    path = write(tmp_path, "gut\nschön\n".encode() + b"sch\xf6n\nlast\n")
    monkeypatch.setattr(corpus_files, "CHUNK_BYTES", chunk_bytes)
    with pytest.raises(DataError, match=f"^{path}: line 3 "):
        list(LineReader(path))


@pytest.mark.parametrize("suffix", COMPRESSORS)
def test_compressed_files_equal_plain_files(tmp_path: Path, suffix: str) -> None:
    path = write(tmp_path, COMPRESSORS[suffix](TEXT), f"a.en{suffix}")
    assert list(LineReader(path)) == ["one", "zwei", "三"]
    assert scan(path) == FileScan(3, sha256(TEXT))
    path.write_bytes(path.read_bytes() * 2)  # several members in one file
    assert scan(path) == FileScan(6, sha256(TEXT * 2))


@pytest.mark.parametrize("suffix", COMPRESSORS)
@pytest.mark.parametrize(
    "damage",
    [
        lambda whole: whole[:-5],
        lambda whole: b"this is plain text\n",
        lambda whole: (
            whole[: len(whole) // 2]
            + bytes([whole[len(whole) // 2] ^ 0xFF])
            + whole[len(whole) // 2 + 1 :]
        ),
    ],
    ids=["truncated", "garbage", "flipped"],
)
def test_damaged_compressed_file_is_named(
    tmp_path: Path, suffix: str, damage: Callable[[bytes], bytes]
) -> None:
    # The checksum that detects flipped bytes is optional in zstd.
    compressors = {**COMPRESSORS, ".zst": zstandard.ZstdCompressor(write_checksum=True).compress}
    content = damage(compressors[suffix](bytes(range(256)) * 40))
    path = write(tmp_path, content, f"a{suffix}")
    with pytest.raises(DataError, match=f"^{path}: "):
        scan(path)


BINARY = {
    "ZIP": b"PK\x03\x04\x14",
    "PDF": b"%PDF-1.7\n",
    "Rich Text": b"{\\rtf1 a}",
    "gzip; decompress": gzip.compress(TEXT),
    "xz; decompress": lzma.compress(TEXT),
    "zstd; decompress": COMPRESSORS[".zst"](TEXT),
    "bzip2; decompress": bz2.compress(TEXT),
    "3 of its first 6 bytes are NUL": "abc".encode("utf-16-le"),
    "20 of its first 5,120 bytes are NUL": bytes(range(256)) * 20,
}


@pytest.mark.parametrize("kind", BINARY)
def test_binary_content_is_never_text(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path, BINARY[kind])
    packed = write(tmp_path, gzip.compress(BINARY[kind]), "a.txt.gz")
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(BINARY[kind])))
    for name, lines in (
        (path, LineReader(path)),
        (path, read_lines(path)),
        (packed, read_lines(packed)),
        ("stdin", stdin_lines()),
    ):
        with pytest.raises(DataError, match=f"^{name}: is not text.*{kind}"):
            next(iter(lines))


@pytest.mark.parametrize("suffix", [*COMPRESSORS, ".en"])
def test_output_is_compressed_as_its_name_says(suffix: str, tmp_path: Path) -> None:
    contents = []
    for name in (f"a{suffix}", f"b{suffix}"):
        with open_output(tmp_path / name) as file:
            file.write(TEXT[:5])
            file.flush()
            file.write(TEXT[5:])
        assert scan(tmp_path / name) == FileScan(3, sha256(TEXT))
        contents.append((tmp_path / name).read_bytes())
    assert contents[0] == contents[1], "no time or name of the file"
    assert (contents[0] == TEXT) == (suffix == ".en")


def test_zstd_without_its_package_gives_an_install_hint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path, COMPRESSORS[".zst"](TEXT), "a.zst")
    monkeypatch.setitem(sys.modules, "zstandard", None)
    with pytest.raises(DataError):
        scan(path)


def test_missing_file_names_the_nearest(tmp_path: Path) -> None:
    write(tmp_path, b"", "train.en")
    with pytest.raises(DataError, match="trian.en: .*`train.en`"):
        require_file(tmp_path / "trian.en")
    for place in (tmp_path / "nowhere" / "train.en", tmp_path):
        with pytest.raises(DataError):
            require_file(place)
    assert require_file(tmp_path / "train.en") == tmp_path / "train.en"
