"""The page in a real browser: Debian's Chromium, headless, through the WebDriver protocol."""

import json
import shutil
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from mt.config.data import Direction
from mt.decoding.translator import Translator
from mt.serving.requests import Access

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        shutil.which("chromedriver") is None, reason="needs Debian's chromium and chromium-driver"
    ),
]
_ELEMENT = "element-6066-11e4-a52e-4f735466cecf"
_CONTROL, _ENTER = "\ue009", "\ue007"

Build = Callable[..., Translator]
Serve = Callable[..., Any]


class Browser:
    """A window of Chromium."""

    def __init__(self, driver: str) -> None:
        options = {"args": ["--headless=new", "--no-sandbox", "--disable-gpu"]}
        self.driver = driver
        self.session = ""
        capabilities = {"alwaysMatch": {"goog:chromeOptions": options}}
        self.session = self._send("POST", "", {"capabilities": capabilities})["sessionId"]

    def _send(self, method: str, path: str, body: Any = None) -> Any:
        url = "/".join(part for part in (f"{self.driver}/session", self.session, path) if part)
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(url, data, method=method)
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return json.load(answer)["value"]
        except urllib.error.HTTPError as error:
            raise AssertionError(error.read().decode()) from None

    def open(self, port: int) -> None:
        self._send("POST", "url", {"url": f"http://127.0.0.1:{port}/"})
        self.wait_for("document.getElementById('model').textContent")

    def run(self, script: str) -> Any:
        return self._send("POST", "execute/sync", {"script": f"return {script}", "args": []})

    def wait_for(self, script: str) -> Any:
        end = time.monotonic() + 20
        while not (value := self.run(script)):
            assert time.monotonic() < end, f"{script} is {value}"
            time.sleep(0.05)
        return value

    def _element(self, selector: str) -> str:
        answer = self._send("POST", "element", {"using": "css selector", "value": selector})
        return str(answer[_ELEMENT])

    def type(self, selector: str, text: str) -> None:
        self._send("POST", f"element/{self._element(selector)}/value", {"text": text})

    def click(self, selector: str) -> None:
        self._send("POST", f"element/{self._element(selector)}/click", {})

    def size(self, width: int, height: int) -> None:
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500}
        self._devtools("Emulation.setDeviceMetricsOverride", metrics)

    def _devtools(self, command: str, parameters: Any) -> None:
        self._send("POST", "goog/cdp/execute", {"cmd": command, "params": parameters})

    def download_to(self, folder: Path) -> None:
        settings = {"behavior": "allow", "downloadPath": str(folder)}
        self._devtools("Page.setDownloadBehavior", settings)

    def errors(self) -> list[Any]:
        entries = self._send("POST", "se/log", {"type": "browser"})
        return [entry["message"] for entry in entries if entry["level"] == "SEVERE"]

    def close(self) -> None:
        self._send("DELETE", "")


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with subprocess.Popen(
        ["chromedriver", f"--port={port}"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as process:
        end = time.monotonic() + 20
        while time.monotonic() < end:
            with suppress(OSError), socket.create_connection(("127.0.0.1", port)):
                break
            time.sleep(0.05)
        try:
            window = Browser(f"http://127.0.0.1:{port}")
            yield window
            window.close()
        finally:
            process.terminate()


@pytest.fixture
def page(browser: Browser) -> Browser:
    """Return a desktop window."""
    browser.size(1200, 700)
    return browser


LINES = "[...document.querySelectorAll('#output .line')].map(line => line.textContent)"


def test_typed_text_is_translated(serve: Serve, finished_run: Path, page: Browser) -> None:
    translator = Translator.load(finished_run)
    text = ["  Two dogs play in the snow.", "", "A man is riding a bicycle down the street."]
    page.open(serve(translator).port)
    assert page.run("document.activeElement.id") == "input", "the input has the focus"
    assert (
        page.wait_for("document.querySelector('label[for=input]').textContent") == "Text (English)"
    )
    page.type("#input", "\n".join(text))
    assert page.run("document.getElementById('count').textContent") == "72 of 20,000 characters"
    page.click("button[type=submit]")
    assert page.wait_for(f"{LINES}.length == 3 && {LINES}") == translator.translate(text)
    assert page.run("document.getElementById('quality').textContent") == "Quality: test, BLEU 9"
    answer = page.run("[...document.querySelectorAll('#output summary')].map(e => e.textContent)")
    assert answer == ["Alternatives"] * 2
    page.click("details summary")
    page.size(390, 900)
    assert page.run("document.documentElement.scrollWidth") == 390, "the page fits on a phone"
    assert page.errors() == []


def test_page_asks_for_a_key_if_the_server_does(
    serve: Serve, backwards: Build, page: Browser
) -> None:
    page.open(serve(backwards(), Access(keys=(b"a%b",))).port)
    page.type("#input", f"ab{_CONTROL}{_ENTER}")
    message = page.wait_for("document.getElementById('problem').textContent")
    assert message.startswith("an API key is needed")
    page.type("#key", f"a%b{_ENTER}")
    assert page.wait_for(f"{LINES}.length && {LINES}") == ["ba"]
    assert page.run("document.getElementById('problem').textContent") == ""


PROBLEM = "document.getElementById('problem').textContent"
LINK = "document.getElementById('download').textContent"


def test_file_is_translated_and_downloaded(
    serve: Serve, backwards: Build, page: Browser, tmp_path: Path
) -> None:
    translator = backwards()
    translator.direction = Direction("en", "zh")
    page.open(serve(translator, Access(keys=(b"key",)), characters=1).port)
    page.download_to(tmp_path)
    html, table, large = (tmp_path / name for name in ("über a.html", "b.tsv", "c.txt"))
    html.write_bytes(b"<p>ab <b>c</b></p>\r\n<pre>d e</pre>")
    table.write_bytes(b"id\ttext\n1\tab\n")
    large.write_bytes(b"a" * 99_999)
    assert page.run("document.getElementById('column').hidden")
    page.type("#file", str(html))
    page.click("#document button")
    assert page.wait_for(PROBLEM).startswith("an API key is needed")
    page.type("#key", "key")
    page.click("#document button")
    assert page.wait_for(LINK) == "Download über a.zh.html"
    assert page.run(PROBLEM) == ""
    page.click("#download")
    assert _content(tmp_path / "über a.zh.html") == b"<p>c <b>ba</b></p>\r\n<pre>d e</pre>"
    page.type("#file", str(table))
    page.click("#document button")
    message = "b.tsv: name the texts to translate with `column`; there are `id`, `text`"
    assert page.wait_for(PROBLEM) == message
    page.type("#column", f"text{_ENTER}")
    page.wait_for(f"{LINK}.includes('b.zh.tsv')")
    page.click("#download")
    assert _content(tmp_path / "b.zh.tsv") == b"id\ttext\n1\tba\n"
    page.type("#file", str(large))
    page.click("#document button")
    assert page.wait_for(PROBLEM) == "The file has 99,999 bytes, the limit is 65,548."
    assert [error for error in page.errors() if "401" not in error and "422" not in error] == []


def _content(path: Path) -> bytes:
    end = time.monotonic() + 20
    while not path.is_file():
        assert time.monotonic() < end, sorted(path.parent.iterdir())
        time.sleep(0.05)
    return path.read_bytes()
