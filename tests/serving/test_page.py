"""The page in a real browser: Debian's Chromium, headless, by the WebDriver protocol."""

import base64
import json
import os
import shutil
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from mt.decoding.run import load_translator
from mt.decoding.translator import Translator

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        shutil.which("chromedriver") is None, reason="needs Debian's chromium and chromium-driver"
    ),
]
PICTURES = os.environ.get("MT_SCREENSHOTS")
"""A folder for pictures to look at."""
_ELEMENT = "element-6066-11e4-a52e-4f735466cecf"
_CONTROL, _ENTER, _TAB = "\ue009", "\ue007", "\ue004"

Build = Callable[..., Translator]
Serve = Callable[..., Any]


class Browser:
    """A window of Chromium."""

    def __init__(self, driver: str, language: str) -> None:
        options = {
            "args": ["--headless=new", "--no-sandbox", "--disable-gpu", f"--lang={language}"],
            "prefs": {"intl.accept_languages": language},
        }
        self.driver = driver
        self.session = ""
        wanted = {"alwaysMatch": {"goog:chromeOptions": options}}
        self.session = self._send("POST", "", {"capabilities": wanted})["sessionId"]

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
        found = self._send("POST", "element", {"using": "css selector", "value": selector})
        return str(found[_ELEMENT])

    def type(self, selector: str, text: str) -> None:
        self._send("POST", f"element/{self._element(selector)}/value", {"text": text})

    def click(self, selector: str) -> None:
        self._send("POST", f"element/{self._element(selector)}/click", {})

    def press(self, key: str) -> None:
        actions = [{"type": kind, "value": key} for kind in ("keyDown", "keyUp")]
        keyboard = {"type": "key", "id": "keyboard", "actions": actions}
        self._send("POST", "actions", {"actions": [keyboard]})

    def size(self, width: int, height: int) -> None:
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500}
        self._devtools("Emulation.setDeviceMetricsOverride", metrics)

    def colours(self, scheme: str) -> None:
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self._devtools("Emulation.setEmulatedMedia", {"features": features})

    def _devtools(self, command: str, parameters: Any) -> None:
        self._send("POST", "goog/cdp/execute", {"cmd": command, "params": parameters})

    def picture(self, name: str) -> None:
        data = base64.b64decode(self._send("GET", "screenshot"))
        assert data.startswith(b"\x89PNG")
        if PICTURES:
            Path(PICTURES, f"{name}.png").write_bytes(data)

    def mistakes(self) -> list[Any]:
        found = self._send("POST", "se/log", {"type": "browser"})
        return [each["message"] for each in found if each["level"] == "SEVERE"]

    def close(self) -> None:
        self._send("DELETE", "")


@contextmanager
def chromedriver() -> Iterator[str]:
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
            yield f"http://127.0.0.1:{port}"
        finally:
            process.terminate()


@pytest.fixture(scope="module")
def driver() -> Iterator[str]:
    with chromedriver() as address:
        yield address


@pytest.fixture
def browse(driver: str) -> Iterator[Callable[[str], Browser]]:
    """Return a function that opens a browser of a language."""
    opened: list[Browser] = []

    def browser(language: str) -> Browser:
        opened.append(Browser(driver, language))
        return opened[-1]

    yield browser
    for each in opened:
        each.close()


LINES = "[...document.querySelectorAll('#output .line')].map(line => line.textContent)"


def test_somebody_types_and_reads_the_translation(
    serve: Serve, finished_run: Path, browse: Callable[[str], Browser]
) -> None:
    # A run that was trained for longer may be looked at in its place.
    translator = load_translator(Path(os.environ.get("MT_SCREENSHOT_RUN", finished_run)))
    text = ["Two dogs play in the snow.", "", "A man is riding a bicycle down the street."]
    page = browse("en")
    page.size(1200, 700)
    page.open(serve(translator).port)
    assert page.run("document.activeElement.id") == "input", "one can type at once"
    page.type("#input", "\n".join(text))
    assert page.run("document.getElementById('count').textContent") == "70 of 20,000 characters"
    page.click("button[type=submit]")
    assert page.wait_for(f"{LINES}.length == 3 && {LINES}") == translator.translate(text)
    alternatives = page.run("document.querySelectorAll('#output details').length")
    assert alternatives == 2
    page.click("details summary")
    for scheme in ("light", "dark"):
        page.colours(scheme)
        page.picture(f"page-{scheme}")
    page.size(390, 900)
    assert page.run("document.documentElement.scrollWidth") == 390, "nothing is cut off on a phone"
    page.picture("page-phone-dark")
    page.colours("light")
    page.picture("page-phone-light")
    assert page.mistakes() == []


def test_by_keyboard_and_in_chinese(
    serve: Serve, backwards: Build, engine: Any, browse: Callable[[str], Browser]
) -> None:
    page = browse("zh-CN")
    page.size(1200, 700)
    page.open(serve(backwards(beam=2), characters=20).port)
    assert page.run("document.documentElement.lang") == "zh-CN"
    assert page.run("document.querySelector('button').textContent") == "翻译"
    page.type("#input", f"<b>ab</b>{_CONTROL}{_ENTER}")
    assert page.wait_for(f"{LINES}.length && {LINES}") == [">b/<ba>b<"], "text is never HTML"
    reached = []
    for _ in range(4):
        page.press(_TAB)
        reached.append(page.run("document.activeElement.id || document.activeElement.localName"))
    assert reached[:3] == ["button", "summary", "copy"]
    page.type("#input", f"{'x' * 20}{_CONTROL}{_ENTER}")
    assert page.wait_for("document.getElementById('problem').textContent").startswith("文本太长")
    page.picture("page-zh-problem")
    assert page.run(LINES) == [">b/<ba>b<"], "what was there stays"


def test_a_new_request_ends_the_one_before(
    serve: Serve, backwards: Build, engine: Any, browse: Callable[[str], Browser]
) -> None:
    page = browse("en")
    client = serve(backwards(batch_size=1))
    page.open(client.port)
    engine.open.clear()
    page.type("#input", f"ab{_CONTROL}{_ENTER}")
    assert engine.begun.wait(10)
    page.type("#input", f"c{_CONTROL}{_ENTER}")
    page.type("#input", f"d{_CONTROL}{_ENTER}")
    page.wait_for("document.getElementById('output').getAttribute('aria-busy')")
    time.sleep(0.3)
    engine.open.set()
    assert page.wait_for(f"{LINES}.length && {LINES}") == ["dcba"]
    assert [texts for _, texts in engine.calls] == [["ab"], ["abcd"]]
    client.stop()
    page.wait_for("fetch('health').then(() => false, () => true)")
    page.click("button[type=submit]")
    told = page.wait_for("document.getElementById('problem').textContent")
    assert told == "The server does not answer."
