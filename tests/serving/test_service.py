import json
import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mt.data.glossary import as_terms
from mt.decoding.translator import Translator
from mt.documents.segments import TranslatedLine
from mt.serving.requests import read_text
from tests.decoding.test_confidence import calibration

Build = Callable[..., Translator]
Serve = Callable[..., Any]


def test_texts_become_translations(serve: Serve, backwards: Build) -> None:
    client = serve(backwards())
    status, answer = client.post({"texts": ["ab", " ", "a\ud800\0b", "cd\r\n\nef"]})
    assert status == 200
    plain: dict[str, Any] = {"status": "ok", "score": -1.0, "confidence": None}
    plain |= {"notes": [], "alternatives": [], "terms": []}
    assert answer == {
        "translations": [
            {**plain, "text": "ba"},
            {**plain, "text": "", "status": "empty", "score": 0.0},
            {**plain, "text": "b\0\ufffda", "notes": ["lone surrogates are read as U+FFFD"]},
            {**plain, "text": "dc\r\n\nfe", "score": -2.0},
        ]
    }
    assert client.post({"texts": []}) == (200, {"translations": []})


def test_terms_of_a_request_or_of_the_server_are_reported(
    serve: Serve, backwards: Build, engine: Any
) -> None:
    translator = backwards()
    translator.use_terms(as_terms({"ab": "ba"}))
    client = serve(translator)
    used = {"source": "ab", "target": "ba", "fate": "used", "way": "model"}
    missed = {"source": "cd", "target": "x", "fate": "missed", "way": ""}

    def ask(**fields: Any) -> list[tuple[str, str, list[dict[str, str]]]]:
        status, answer = client.post({"texts": ["ab\ncd", "ef"], **fields})
        assert status == 200
        rows = answer["translations"]
        return [(row["text"], row["status"], row["terms"]) for row in rows]

    plain: tuple[str, str, list[dict[str, str]]] = ("fe", "ok", [])
    assert ask() == [("ba\ndc", "ok", [used]), plain]
    assert ask(glossary={"cd": "x|y"}) == [("ba\ndc", "missed-term", [missed]), plain]
    assert ask(glossary={"ab": "ba", "cd": "x"})[0][2] == [used, missed]
    assert ask(glossary={}) == [("ba\ndc", "ok", []), plain]
    engine.open.clear()
    with ThreadPoolExecutor() as pool:
        asked = [pool.submit(ask, **keys) for keys in ({}, {"glossary": {"cd": "x"}})]
        engine.open.set()
    assert [row.result()[0][2] for row in asked] == [[used], [missed]]
    response, body = client.request("POST", "/document?name=a.xlf", XLIFF.encode())
    assert (response.status, b"needs-review" in body) == (200, False)
    for rows, status in (('{"ab": "x"}', 200), ('{"ab": 1}', 422), ("[", 422), ('{"": "x"}', 422)):
        path = f"/document?name=a.xlf&glossary={quote(rows)}"
        response, body = client.request("POST", path, XLIFF.encode())
        assert (response.status, b"needs-review" in body) == (status, status == 200)


XLIFF = (
    "<xliff version='1.2'><file source-language='en' target-language='en'>"
    "<trans-unit><source>ab</source></trans-unit></file></xliff>"
)


def test_confidence_of_a_text_is_the_mean_of_its_lines(serve: Serve, backwards: Build) -> None:
    translator = backwards()
    translator.calibration = calibration()
    client = serve(translator)
    answer = client.post({"texts": ["a", "a\n\nbcd", " "]})[1]["translations"]
    # A log-probability of -2 over the characters and EOS: 100 - 50 * 2 / 2 and 100 - 50 * 2 / 4.
    assert answer[0]["confidence"] == pytest.approx(50.0)
    assert answer[1]["confidence"] == pytest.approx((50.0 + 75.0) / 2)
    assert answer[2]["confidence"] is None


@given(st.lists(st.sampled_from(["a", " ", "\r", "\n", "\r\n", "\u2028"])))
def test_line_ends_are_preserved(parts: list[str]) -> None:
    text = read_text("".join(parts))
    assert text.join([*map(TranslatedLine, text.lines)], lambda *_: None) == "".join(parts).encode()
    assert not any(end in line for line in text.lines for end in "\r\n")


def test_status_and_notes_of_a_text_come_from_its_lines(serve: Serve, backwards: Build) -> None:
    translator = backwards()
    translator.longest_source = 6
    client = serve(translator)
    for text, status, noted in (
        ("", "empty", []),
        ("ab\n", "ok", []),
        ("aba", "copied", ["the translation"]),
        (
            "ab cd ef\r\naba\n",
            "copied",
            ["line 1: translated in parts", "line 2: the translation"],
        ),
    ):
        [answer] = client.post({"texts": [text]})[1]["translations"]
        assert answer["status"] == status
        assert len(answer["notes"]) == len(noted)
        assert all(map(str.startswith, answer["notes"], noted))


def test_alternatives_on_request(serve: Serve, backwards: Build) -> None:
    client = serve(backwards(beam=3))
    asked = {"texts": ["ab", "c\nd", ""], "alternatives": 2}
    answers = client.post(asked)[1]["translations"]
    assert [answer["alternatives"] for answer in answers] == [
        [{"text": "ba!", "score": -2.0}, {"text": "ba!!", "score": -3.0}],
        [],
        [],
    ]
    assert client.post({**asked, "alternatives": 3})[0] == 422
    assert json.loads(client.request("GET", "/health")[1])["alternatives"] == 2


def test_only_the_texts_of_html_change(serve: Serve, backwards: Build) -> None:
    translator = backwards(beam=2)
    translator.longest_source = 7
    client = serve(translator)
    html = "<!-- x -->\r\n<p id=a>ab &amp; c</p>\n <script>d</script> 12 <code>e</code><p>gh ij kl"
    asked = {"texts": [html, "<hr>", "<b>a&lt;b</b> "], "format": "html", "alternatives": 1}
    page, rule, part = client.post(asked)[1]["translations"]
    assert page["text"] == (
        "<!-- x -->\r\n<p id=a>c &amp; ba</p>\n <script>d</script> 12 <code>e</code><p>ji hg lk"
    )
    note = "text 2: translated in parts: 2 of 9 tokens, the model supports up to 7"
    assert (page["status"], page["notes"], page["score"]) == ("ok", [note], -3.0)
    assert page["alternatives"] == []
    assert (rule["text"], rule["status"], rule["score"]) == ("<hr>", "empty", 0.0)
    assert part["text"] == "<b>b&lt;a</b> "
    assert part["alternatives"] == [{"text": "<b>b&lt;a!</b> ", "score": -2.0}]
    asked = {"texts": ["<p>a\ud800<i title='\udc80'></i></p>"], "format": "html"}
    [text] = client.post(asked)[1]["translations"]
    assert text["text"] == "<p>\ufffda<i title='\ufffd'></i></p>"


@pytest.mark.parametrize(
    ("body", "status", "named"),
    [
        (b"", 422, "the body is not JSON"),
        (b'{"texts": ["\xff"]}', 422, "UTF-8"),
        (b"[" * 60_000, 422, "JSON"),
        ([1], 422, '{"texts": ["...", "..."]}'),
        ({}, 422, "`texts`"),
        ({"text": ["a"]}, 422, "`text`: unknown; did you mean `texts`?"),
        ({"texts": ["a", 3]}, 422, "`texts.1`"),
        ({"texts": ["a"], "x\ny": 1}, 422, "`x y`"),
        ({"texts": ["a"], "alternatives": -1}, 422, "`alternatives`"),
        ({"texts": ["ab"], "glossary": {"ab": ""}}, 422, "glossary"),
        ({"texts": ["ab"], "glossary": {"ab": ["ba"]}}, 422, "glossary"),
        ({"texts": ["ab"], "glossary": {"a\ud800": "x"}}, 422, "glossary"),
        ({"texts": ["<p>a<p>b<p>c<p>d"], "format": "html"}, 413, "`texts`: 4 lines"),
        (b"a" * 20_000_000, 413, "66,736 bytes"),
        (iter([b"a" * 10_000] * 50), 413, "66,736 bytes"),
        ({"texts": ["a" * 60, "a" * 41]}, 413, "`texts`: 101 characters"),
        ({"texts": ["a", "a\na\n"]}, 413, "`texts`: 4 lines"),
    ],
    ids=range(17),
)
def test_invalid_request_is_refused_in_one_line(
    body: Any, status: int, named: str, strict: Any
) -> None:
    client, engine = strict
    engine.calls.clear()
    client.assert_refused(body, status, named)
    assert engine.calls == []
    assert client.texts("😀" * 100) == ["😀" * 100], "escaped, within the limit"


@pytest.mark.parametrize(
    ("limits", "second", "status"),
    [({"waiting": 2, "sentences": 2}, ["cd", "ef"], 429), ({"requests": 2}, ["cd"], 503)],
)
def test_overload_is_refused_with_retry_after(
    limits: Any, second: list[str], status: int, serve: Serve, backwards: Build, engine: Any
) -> None:
    client = serve(backwards(batch_size=1), **limits)
    engine.open.clear()
    with ThreadPoolExecutor(2) as others:
        current = others.submit(client.texts, "ab")
        assert engine.begun.wait(10)
        waits = others.submit(client.texts, *second)
        client.wait_for("mt_waiting_sentences", len(second))
        response, _ = client.request("POST", "/translate", b'{"texts": ["gh"]}')
        assert (response.status, response.headers["Retry-After"]) == (status, "1")
        assert client.request("GET", "/health")[0].status == 200
        engine.open.set()
        assert (current.result(), waits.result()) == (["ba"], [line[::-1] for line in second])
    assert client.texts("gh") == ["hg"], "there is room again"


BEGUN = b"POST /translate HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n{"


@pytest.mark.parametrize(
    ("limit", "sent", "answer"),
    [("requests.BODY_SECONDS", BEGUN, b"HTTP/1.1 408 "), ("server.HEAD_SECONDS", b"", b"")],
)
def test_silent_connection_times_out(
    limit: str, sent: bytes, answer: bytes, serve: Serve, backwards: Build, monkeypatch: Any
) -> None:
    monkeypatch.setattr(f"mt.serving.{limit}", 0.1)
    with serve(backwards()).connect() as connection:
        connection.sendall(sent)
        connection.settimeout(10)
        assert connection.recv(1000)[:13] == answer


def test_lines_of_a_disconnected_client_are_not_translated(
    serve: Serve, backwards: Build, engine: Any
) -> None:
    client = serve(backwards(batch_size=1))
    engine.open.clear()
    body = b'{"texts": ["ab", "cd", "ef"]}'
    with client.connect() as connection:
        head = f"POST /translate HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
        connection.sendall(head.encode() + body)
        assert engine.begun.wait(10)
    client.wait_for("mt_waiting_sentences", 0)
    engine.open.set()
    assert client.texts("gh") == ["hg"]
    assert [lines for _, lines in engine.calls] == [["ab"], ["gh"]]
    assert client.metrics()['mt_requests_total{status="499"}'] == 1


def test_metrics_count_requests_lines_and_tokens(serve: Serve, backwards: Build) -> None:
    client = serve(backwards(batch_size=2))
    client.texts("ab", "cde\nf")
    client.post(b"")
    client.request("GET", "/health")
    counts = client.metrics()
    expected = {
        'mt_requests_total{status="200"}': 1,
        'mt_requests_total{status="422"}': 1,
        "mt_request_seconds_count": 2,
        "mt_sentences_total": 3,
        'mt_tokens_total{side="source"}': 6,
        'mt_tokens_total{side="target"}': 6,
        'mt_batch_sentences_bucket{le="1.0"}': 1,
        'mt_batch_sentences_bucket{le="2.0"}': 2,
        "mt_waiting_sentences": 0,
    }
    assert {name: counts[name] for name in expected} == expected
    assert 0 < counts["mt_request_seconds_sum"] < 10


def test_health_and_openapi_description(serve: Serve, backwards: Build) -> None:
    client = serve(backwards())
    limits = {"characters": 20_000, "alternatives": 4, "bytes": 305_536, "api_key": False}
    names = {"model": "my run", "quality": "test, BLEU 9"}
    about = {"status": "ok", **names, "source": "en", "target": "en", **limits}
    assert json.loads(client.request("GET", "/health")[1]) == about
    for path in ("/", "/health", "/languages", "/metrics"):
        head, body = client.request("HEAD", path)
        assert (head.status, body) == (200, b""), path
    status, body = client.request("GET", "/docs")
    assert status.status == 404
    assert "/openapi.json" in json.loads(body)["error"]
    described = json.loads(client.request("GET", "/openapi.json")[1])
    paths = {"/translate", "/document", "/detect", "/languages", "/health", "/metrics"}
    assert set(described["paths"]) == paths


def test_health_is_that_of_the_engine(
    serve: Serve, backwards: Build, engine: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = serve(backwards())
    assert client.post({"texts": ["bell"]})[0] == 500
    assert client.request("GET", "/health")[0].status == 200, "other texts are translated"
    with monkeypatch.context() as patch:
        patch.setattr(engine, "n_best_ids", lambda *_, **__: 1 // 0)
        assert client.post({"texts": ["ab"]})[0] == 500
        response, body = client.request("GET", "/health")
        assert (response.status, json.loads(body)["status"]) == (503, "failing")
    assert client.request("GET", "/health")[0].status == 200, "without another request"


def test_page_loads_nothing_from_elsewhere(serve: Serve, backwards: Build) -> None:
    response, page = serve(backwards()).request("GET", "/")
    assert response.headers["Content-Type"] == "text/html; charset=utf-8"
    assert response.headers["Content-Security-Policy"].startswith("default-src 'none'; ")
    assert not re.search(rb"https?://|@import|innerHTML", page)
