"""Files in, translated files out."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import quote

import pytest

from mt.config.data import Direction
from mt.decoding.translator import Translator
from mt.documents.document import SUFFIXES

Build = Callable[..., Translator]
Serve = Callable[..., Any]
PO = 'msgid ""\nmsgstr ""\n"Language: zh\\n"\n\nmsgid "ab"\nmsgstr "{}"\n'
TMX = "<tmx><tu><tuv xml:lang='en'><seg>ab</seg></tuv>{}</tu></tmx>"
XLIFF = (
    "<xliff version='1.2'><file source-language='en' target-language='zh'>"
    "<trans-unit><source>ab</source>{}</trans-unit></file></xliff>"
)
FILES = {
    "a.txt": ("\ufeff  ab. \r\n\r\n\tcd\n \rÿ", "\ufeff  .ba \r\n\r\n\tdc\n \rÿ"),
    "a.md": ("# ab\n\n    code\n", "# ba\n\n    code\n"),
    "a.html": ("<p>ab</p>\r\n<pre>c d</pre>", "<p>ba</p>\r\n<pre>c d</pre>"),
    "a.srt": ("1\n00:00:01,000 --> 00:00:02,000\nab\n", "1\n00:00:01,000 --> 00:00:02,000\nba\n"),
    "a.vtt": ("WEBVTT\n\n00:01.000 --> 00:02.000\nab", "WEBVTT\n\n00:01.000 --> 00:02.000\nba"),
    "a.po": (PO.format(""), PO.format("ba")),
    "a.xlf": (XLIFF.format(""), XLIFF.format('<target state="translated">ba</target>')),
    "a.tmx": (TMX.format(""), TMX.format('<tuv xml:lang="zh"><seg>ba</seg></tuv>')),
    "a.JSONL": ('{"id": "x", "t": "ab"}\n', '{"id": "x", "t": "ba"}\n'),
    "a.b.tsv": ("id\tt\n1\tab\n", "id\tt\n1\tba\n"),
}


def path(name: str, **others: str) -> str:
    return f"/document?name={quote(name)}" + "".join(f"&{key}={others[key]}" for key in others)


@pytest.fixture
def chinese(backwards: Build) -> Translator:
    """Return a translator from English to Chinese with small batches."""
    translator = backwards(batch_size=2, split_sentences="on")
    translator.direction = Direction("en", "zh")
    return translator


def test_files_of_all_formats_come_back(serve: Serve, chinese: Translator) -> None:
    client = serve(chinese)
    formats = set()
    for name, (source, translated) in FILES.items():
        column = {"column": "t"} if name[-1] in "Lv" else {}
        response, body = client.request("POST", path(f"to/{name}", **column), source.encode())
        assert (response.status, body.decode()) == (200, translated), name
        stem, _, suffix = name.rpartition(".")
        disposition = f"attachment; filename*=UTF-8''{stem}.zh.{suffix}"
        assert response.headers["Content-Disposition"] == disposition
        assert response.headers["Content-Type"] == "application/octet-stream"
        assert response.headers["X-Content-Type-Options"] == "nosniff"
        formats.add(SUFFIXES[f".{suffix.lower()}"])
    assert formats == set(SUFFIXES.values())
    response, body = client.request("POST", path("ü;\r\n\u202e.txt"), "ab".encode("utf-16"))
    assert (response.status, body.decode("utf-16")) == (200, "ba")
    name = "filename*=UTF-8''%C3%BC%3B%0D%0A%E2%80%AE.zh.txt"
    assert response.headers["Content-Disposition"].endswith(name)
    assert client.metrics()['mt_requests_total{status="200"}'] == len(FILES) + 1


@pytest.mark.parametrize(
    ("query", "content", "status", "named"),
    [
        ("", b"ab", 422, "`name`"),
        ("?name=a.htlm", b"ab", 422, "did you mean `.htm`?"),
        ("?name=a%0Ab.txt.gz", b"ab", 422, "b.txt.gz"),
        ("?name=a.txt", b"\xff", 422, "a.txt: "),
        ("?name=a.tsv", b"id\tt\n", 422, "`column`; there are `id`, `t`"),
        ("?name=a.jsonl&column=t", b'{"t": "a"}\n{', 422, "a.jsonl: line 2"),
        ("?name=a.html", b"a" * 66_737, 413, "66,736 bytes"),
    ],
)
def test_unfit_file_is_refused_in_one_line(
    query: str, content: bytes, status: int, named: str, strict: Any
) -> None:
    client, engine = strict
    engine.calls.clear()
    client.assert_refused(content, status, named, f"/document{query}")
    assert engine.calls == []


def test_long_file_takes_turns_with_other_requests(
    serve: Serve, chinese: Translator, engine: Any
) -> None:
    client = serve(chinese, sentences=3, waiting=3)
    engine.open.clear()
    with ThreadPoolExecutor(2) as others:
        file = others.submit(client.request, "POST", path("a.txt"), b"ab\n" * 20)
        assert engine.begun.wait(10)
        other = others.submit(client.texts, "cd")
        client.wait_for("mt_waiting_sentences", 2)
        engine.open.set()
        assert other.result() == ["dc"]
        assert file.result()[1] == b"ba\n" * 20
    assert engine.calls[:2] == [(1, ["ab", "ab"]), (1, ["ab", "cd"])]
    assert sum(len(texts) for _, texts in engine.calls) == 21
