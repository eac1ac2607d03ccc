"""API keys and other origins."""

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mt.decoding.translator import Translator
from mt.errors import UserError
from mt.serving.requests import Access, read_access

Build = Callable[..., Translator]
Serve = Callable[..., Any]
HERE, THERE = "https://here.org", "chrome-extension://abc"
OWN = {"texts": ["ab"]}
LIBRE = {"q": "ab", "source": "en", "target": "en"}


def test_translating_needs_a_key_of_the_server(
    serve: Serve, backwards: Build, engine: Any, caplog: pytest.LogCaptureFixture
) -> None:
    client = serve(backwards(), Access(keys=(b"first", b"orange")))
    right, wrong = {"Authorization": "bearer orange"}, {"Authorization": "Bearer orang"}
    refused: list[tuple[Any, str, Any, int]] = [
        (OWN, "/translate", None, 401),
        (OWN, "/translate", {"Authorization": "Basic orange"}, 401),
        (OWN, "/translate", wrong, 403),
        (OWN, "/translate", {"Authorization": "Bearer \xe9"}, 403),
        (OWN | {"api_key": "first"}, "/translate", None, 401),
        (LIBRE, "/translate", None, 400),
        (LIBRE | {"api_key": ""}, "/translate", None, 400),
        (LIBRE | {"api_key": "orange "}, "/translate", None, 403),
        (b"ab", "/document?name=a.txt", None, 401),
        ({"q": "ab"}, "/detect", None, 400),
        ({"q": "ab", "api_key": "firs"}, "/detect", None, 403),
    ]
    with caplog.at_level(logging.DEBUG):
        for body, path, headers, status in refused:
            answered, answer = client.post(body, path, headers)
            assert (answered, list(answer)) == (status, ["error"]), (body, headers)
            assert "key" in answer["error"]
            assert not any(key in answer["error"] for key in ("first", "orang"))
        assert engine.calls == []
        assert client.post(OWN, headers=right)[1]["translations"][0]["text"] == "ba"
        assert client.post(LIBRE, headers=right)[1] == {"translatedText": "ba"}
        assert client.post(LIBRE | {"api_key": "first"})[1] == {"translatedText": "ba"}
        assert client.post(LIBRE | {"q": "bell", "api_key": "first"})[0] == 500
    assert not any(key in caplog.text for key in ("first", "orange"))
    assert json.loads(client.request("GET", "/health")[1])["api_key"] is True
    assert [client.request("GET", path)[0].status for path in ("/", "/languages")] == [200, 200]


@pytest.mark.parametrize(
    ("origins", "origin", "shown"),
    [
        ((), HERE, None),
        ((HERE, THERE), THERE, THERE),
        ((HERE,), "https://here.org.evil", None),
        ((HERE,), "http://here.org", None),
        (("*",), "null", "*"),
    ],
)
def test_other_origins_use_the_server_only_if_allowed(
    origins: Any, origin: str, shown: str | None, serve: Serve, backwards: Build, engine: Any
) -> None:
    client = serve(backwards(), Access((b"key",), origins))
    body = json.dumps(LIBRE | {"api_key": "key"}).encode()
    asked = {"Origin": origin, "Access-Control-Request-Method": "POST"}
    asked["Access-Control-Request-Headers"] = "authorization,content-type"
    preflight, _ = client.request("OPTIONS", "/translate", None, asked)
    assert preflight.headers["Access-Control-Allow-Origin"] == shown
    assert (preflight.status == 200) == bool(shown)
    response, answer = client.request("POST", "/translate", body, {"Origin": origin})
    assert response.headers["Access-Control-Allow-Origin"] == shown
    assert response.headers["Access-Control-Allow-Credentials"] is None
    assert response.status == (200 if shown else 403)
    assert list(json.loads(answer)) == ["translatedText" if shown else "error"]
    assert bool(engine.calls) == bool(shown)
    response, _ = client.request("POST", "/translate", b"{", {"Origin": origin})
    assert response.headers["Access-Control-Allow-Origin"] == shown, "errors are readable too"


def test_page_of_the_server_is_no_other_origin(serve: Serve, backwards: Build) -> None:
    client = serve(backwards())
    for headers, status in (
        ({"Origin": f"http://127.0.0.1:{client.port}"}, 200),
        ({"Origin": "https://translate.org", "Sec-Fetch-Site": "same-origin"}, 200),
        ({"Origin": "https://translate.org", "Sec-Fetch-Site": "same-site"}, 403),
        ({"Origin": f"http://127.0.0.1:{client.port + 1}"}, 403),
    ):
        assert client.post(OWN, headers=headers)[0] == status, headers


@pytest.mark.parametrize(
    ("host", "access", "status"),
    [
        ("evil.example:8433", Access(), 403),
        ("127.0.0.1.evil.example", Access(), 403),
        ("evil.example", Access(origins=("https://other.org",)), 403),
        ("Translate.org", Access(origins=("https://translate.org",)), 200),
        ("translate.org:8433", Access(host="translate.org"), 200),
        *[(host, Access(), 200) for host in ("[::1]:80", "10.0.0.7", "mt:8000", "box.local")],
    ],
)
def test_strange_name_of_this_machine_is_refused(
    host: str, access: Access, status: int, serve: Serve, backwards: Build
) -> None:
    client = serve(backwards(), access)
    for fetched in ({}, {"Sec-Fetch-Site": "same-origin"}):
        headers = {"Host": host, "Origin": f"http://{host}", **fetched}
        assert client.post(OWN, headers=headers)[0] == status
    assert client.post(OWN, headers={"Host": host})[0] == 200, "no page sent it"


def test_other_origins_and_files_without_keys_are_refused(tmp_path: Path) -> None:
    for origin in ("here.org", "https://*.here.org", ""):
        with pytest.raises(UserError):
            read_access(None, [origin])
    path = tmp_path / "keys"
    for content, line in ((b" \n", "no API key"), (b"good\nno t\n", "line 2"), (b"\xff", "line 1")):
        path.write_bytes(content)
        with pytest.raises(UserError, match=line) as error:
            read_access(path, [])
        assert "good" not in str(error.value)
