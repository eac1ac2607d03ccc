import gzip
import hashlib
import shutil
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from mt.config.data import DataConfig, Direction
from mt.data.corpus_files import cache_folder, download
from mt.data.pairs import Checksums, PairSource, SentencePair, TextPairs
from mt.data.sources import open_source
from mt.errors import DataError
from tests.factories import counted

EN, DE = b"one\ntwo\n", b"eins\nzwei\n"
PAIRS = [SentencePair("one", "eins"), SentencePair("two", "zwei")]


@pytest.fixture(autouse=True)
def _nothing_from_outside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MT_CORPORA", raising=False)
    monkeypatch.setenv("MT_CACHE", str(tmp_path / "cache"))


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def opened(**keys: Any) -> PairSource:
    data = DataConfig.model_validate(
        {"source_language": "en", "target_language": "de", "train": keys, "valid": keys},
        strict=False,
    )
    return open_source(data.train, Direction("en", "de"))


def text(folder: Path, source: bytes, target: bytes, **keys: Any) -> PairSource:
    (folder / "a.en").write_bytes(source)
    (folder / "a.de").write_bytes(target)
    return opened(source=str(folder / "a.en"), target=str(folder / "a.de"), **keys)


def tsv(folder: Path, content: bytes, **keys: Any) -> PairSource:
    (folder / "a.tsv").write_bytes(content)
    return opened(format="tsv", path=str(folder / "a.tsv"), **keys)


def test_text_checksums_are_those_of_the_decompressed_files(tmp_path: Path) -> None:
    (tmp_path / "a.en.gz").write_bytes(gzip.compress(b"\xef\xbb\xbfone\r\ntwo"))
    (tmp_path / "a.de").write_bytes(DE)
    source = opened(source=str(tmp_path / "a.en.gz"), target=str(tmp_path / "a.de"))
    assert source.checksums() == Checksums(sha256(b"\xef\xbb\xbfone\r\ntwo"), sha256(DE))
    assert list(source.pairs()) == PAIRS


@pytest.mark.parametrize(
    ("source", "target", "counts"),
    [(b"a\nb\nc\n", b"x\n", (3, 1)), (b"a\n", b"x\ny", (1, 2)), (b"", b"x\n", (0, 1))],
)
def test_unequal_sides_are_an_error_with_both_counts(
    tmp_path: Path, source: bytes, target: bytes, counts: tuple[int, int]
) -> None:
    corpus = text(tmp_path, source, target)
    for reading in (corpus.checksums, lambda: list(corpus.pairs())):
        with pytest.raises(DataError, match=f"a.en has {counts[0]} .*a.de has {counts[1]}"):
            reading()


@pytest.mark.parametrize(
    ("side", "name", "right"), [("source", "a.en", sha256(EN)), ("target", "a.de", sha256(DE))]
)
def test_wrong_checksum_names_file_and_both_sums(
    tmp_path: Path, side: str, name: str, right: str
) -> None:
    wrong = "0" * 64
    corpus = text(tmp_path, EN, DE, **{f"sha256_{side}": wrong})
    for reading in (corpus.checksums, lambda: list(corpus.pairs())):
        with pytest.raises(DataError, match=f"/{name}: .*{right}"):
            reading()
    assert list(text(tmp_path, EN, DE, **{f"sha256_{side}": right}).pairs()) == PAIRS


def test_empty_corpora_are_errors(tmp_path: Path) -> None:
    for corpus in (text(tmp_path, b"", b""), tsv(tmp_path, b"")):
        for reading in (corpus.checksums, lambda corpus=corpus: list(corpus.pairs())):
            with pytest.raises(DataError):
                reading()


def test_memory_does_not_grow_with_the_corpus(tmp_path: Path) -> None:
    line = b"x" * 199 + b"\n"
    corpus = text(tmp_path, line * 100_000, line * 100_000)  # 20 MB on each side
    count, peak = counted(corpus)
    assert count == 100_000
    assert peak < 10_000_000


def test_tsv_has_no_quoting_and_no_null(tmp_path: Path) -> None:
    content = '"a\tNA\tx\r\nnull\t"b"\t\n\tc "" d\ty'
    assert list(tsv(tmp_path, content.encode()).pairs()) == [
        SentencePair('"a', "NA"),
        SentencePair("null", '"b"'),
        SentencePair("", 'c "" d'),
    ]


CSV = [
    ('"He said ""no"", twice."', "Er sagte 'nein', zweimal.", 'He said "no", twice.'),
    ('"one line\nand the next"', "eine Zeile", "one line and the next"),
    ('"a tab\there"', "ein Tabulator", "a tab\there"),
]


@pytest.mark.parametrize("line", CSV)
@pytest.mark.parametrize("form", ["all", "minimal", "text alone", "header"])
def test_tsv_with_the_quotation_marks_of_csv(
    form: str, line: tuple[str, str, str], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    quoted, target, source = line
    rows = {
        "all": f'"A dog."\t"Ein Hund."\n{quoted}\t"{target}"\n',
        "minimal": f"A dog.\tEin Hund.\n{quoted}\t{target}\n",
        "text alone": f'"A dog."\tEin Hund.\n{quoted}\t{target}\n',
        "header": f'en\tGerman\n"A dog."\tEin Hund.\n{quoted}\t{target}\n',
    }[form]
    pairs = [SentencePair("A dog.", "Ein Hund."), SentencePair(source, target)]
    assert list(tsv(tmp_path, rows.encode()).pairs()) == pairs
    assert f"{tmp_path}/a.tsv: the quotation marks around cells are left out" in caplog.messages


@pytest.mark.parametrize(
    "content",
    [
        '"Run!"\tLauf!\nShe ran.\tSie lief.\n',
        '"Yes," he said.\t"Ja", sagte er.\n"No."\t"Nein."\n',
        '"Yes, of course."\tJa.\nShe ran, and fell.\tSie fiel.\n',
        '"An open mark\tEins\nA closed mark"\tZwei\n',
        'One.\tEins.\nOpen\t"Offen\nclosed"\tzu\n',
        '"A ""word""."\tEins\nOpen\t"Zwei\nThree\tDrei\n',
        '5" x 7"\t5" x 7"\n',
    ],
)
def test_tsv_with_quotation_marks_as_text_is_kept(content: str, tmp_path: Path) -> None:
    rows = [tuple(line.split("\t")) for line in content.splitlines()]
    corpus = tsv(tmp_path, content.encode())
    assert [(pair.source, pair.target) for pair in corpus.pairs()] == rows


@pytest.mark.parametrize(
    ("header", "is_left_out"),
    [
        ("source\ttarget", True),
        ("Source text\treference", True),
        ("en\tde", True),
        ("English\tGerman", True),
        ("en\tfr", False),
        ("target\tTarget", False),
        ("source\tQuelle", False),
    ],
)
def test_tsv_header_is_no_pair(header: str, is_left_out: bool, tmp_path: Path) -> None:
    corpus = tsv(tmp_path, f"{header}\none\teins\ntwo\tzwei\n".encode())
    left = [] if is_left_out else [SentencePair(*header.split("\t"))]
    assert list(corpus.pairs()) == [*left, *PAIRS]


def test_tsv_columns_and_checksums(tmp_path: Path) -> None:
    corpus = tsv(tmp_path, b"0\teins\tone\n1\tzwei\ttwo", columns=[2, 1])
    assert list(corpus.pairs()) == PAIRS
    assert corpus.checksums() == Checksums(sha256(EN), sha256(DE))


def test_shifted_and_blank_rows_of_tsv_are_left_out(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "c.tsv"
    path.write_text("one\teins\n\ntwo\tpairs\tzwei Paare\ntwo\tzwei\n")
    source = opened(format="tsv", path=str(path), columns=[0, 1])
    assert [*source.pairs()] == PAIRS
    assert "1 blank lines" in caplog.text
    assert "1 of 4 rows have more than 2 cells and are left out, such as line 3" in caplog.text


@pytest.mark.parametrize("columns", [[0, 2], [2, 0]])
def test_rows_without_a_correction_are_left_out(
    columns: list[int], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    header = "source\ttranslation\tcorrection\n"
    rows = "one\tein\teins\nthree\tdrei\t \ntwo\tzwo\tzwei\nfour\tvier\t\n"
    corpus = tsv(tmp_path, (header + rows).encode(), columns=columns)
    assert {frozenset((pair.source, pair.target)) for pair in corpus.pairs()} == {
        frozenset((pair.source, pair.target)) for pair in PAIRS
    }
    assert "a.tsv: 2 of 4 rows have no correction and are left out" in caplog.text
    with pytest.raises(DataError, match="a.tsv: no row has a text in the column `correction`"):
        list(tsv(tmp_path, f"{header}one\tein\t\n".encode(), columns=columns).pairs())


@pytest.mark.parametrize("suffix", [".zip", ".tar.gz", ".dat"])
def test_archives_are_refused(suffix: str, tmp_path: Path) -> None:
    (tmp_path / "text").mkdir()
    (tmp_path / "text" / "a.en").write_bytes(EN)
    kind = "zip" if suffix == ".zip" else "gztar"
    made = shutil.make_archive(str(tmp_path / "made"), kind, tmp_path / "text")
    path = Path(made).rename(tmp_path / f"corpus{suffix}")
    with pytest.raises(DataError):
        opened(source=str(path), target=str(path))


def test_tsv_with_too_few_columns_names_the_line(tmp_path: Path) -> None:
    corpus = tsv(tmp_path, b"a\tb\tc\nd\te\n", columns=[0, 2])
    with pytest.raises(DataError, match="a.tsv: line 2"):
        list(corpus.pairs())


# $MT_CORPORA


@pytest.fixture
def supply(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "corpora"
    (folder / "c").mkdir(parents=True)
    monkeypatch.setenv("MT_CORPORA", str(folder))
    return folder


UNREACHABLE = {"source": "http://127.0.0.1:1/a.en", "target": "http://127.0.0.1:1/a.de"}


HUB = {"format": "hub", "name": "o/n", "revision": "0" * 40}


@pytest.mark.parametrize("keys", [{}, UNREACHABLE, {"format": "tsv", "path": "no.tsv"}, HUB])
def test_supplied_corpora_take_precedence(supply: Path, keys: dict[str, str]) -> None:
    (supply / "c" / "train.en").write_bytes(EN)
    (supply / "c" / "train.de.gz").write_bytes(gzip.compress(DE))
    corpus = opened(corpus="c/train", sha256_source=sha256(EN), **keys)
    assert list(corpus.pairs()) == PAIRS
    assert isinstance(corpus, TextPairs)
    with pytest.raises(DataError):
        opened(corpus="c/train", sha256_target="1" * 64, **keys).checksums()


def test_missing_corpus_names_the_place(supply: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (supply / "c" / "half.en").write_bytes(EN)
    with pytest.raises(DataError, match=r"c/half.de\[.gz\]: "):
        opened(corpus="c/half", **UNREACHABLE)
    with pytest.raises(DataError, match=rf"c/train.en\[.gz\] .* \({supply}\)"):
        opened(corpus="c/train")
    monkeypatch.setenv("MT_CORPORA", str(supply / "nowhere"))
    with pytest.raises(DataError):
        opened(corpus="c/train", **UNREACHABLE)


# Downloads


@dataclass
class Server:
    """Files and requests of a loopback server."""

    url: str = ""
    files: dict[str, bytes] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)
    short_by: int = 0


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    state = Server()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            state.asked.append(self.path)
            body = state.files.get(self.path)
            if body is None:
                self.send_error(404)
                return
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body[: len(body) - state.short_by])

        def log_message(self, format: str, *args: object) -> None:
            pass

    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as listening:
        state.url = f"http://127.0.0.1:{listening.server_address[1]}"
        threading.Thread(target=listening.serve_forever, daemon=True).start()
        yield state
        listening.shutdown()


def test_urls_are_downloaded_once(server: Server) -> None:
    server.files = {"/a.en.gz": gzip.compress(EN), "/a.de?x=1": DE}
    for _ in range(2):
        corpus = opened(source=f"{server.url}/a.en.gz", target=f"{server.url}/a.de?x=1")
        assert list(corpus.pairs()) == PAIRS
    assert server.asked == ["/a.en.gz", "/a.de?x=1"]
    names = sorted(path.name[16:] for path in (cache_folder() / "downloads").iterdir())
    assert names == ["-a.de", "-a.en.gz"]


def test_broken_download_leaves_no_file(server: Server) -> None:
    server.files, server.short_by = {"/a.en": EN}, 3
    with pytest.raises(DataError):
        download(f"{server.url}/a.en")
    assert list((cache_folder() / "downloads").iterdir()) == []
    server.short_by = 0
    assert download(f"{server.url}/a.en").read_bytes() == EN


def test_failed_download_names_url_reason_and_hint(server: Server) -> None:
    with pytest.raises(DataError, match=f"^{server.url}/a.en: .*404: .*MT_CORPORA"):
        opened(corpus="c/train", source=f"{server.url}/a.en", target=f"{server.url}/a.de")
    with pytest.raises(DataError):
        opened(**UNREACHABLE)


def test_downloads_are_verified(server: Server) -> None:
    server.files = {"/a.tsv": b"one\teins\n"}
    for side, right in (("source", sha256(b"one\n")), ("target", sha256(b"eins\n"))):
        corpus = opened(format="tsv", path=f"{server.url}/a.tsv", **{f"sha256_{side}": "0" * 64})
        with pytest.raises(DataError, match=f"-a.tsv, {side} side: .*{right}"):
            corpus.checksums()
