"""LibreTranslate's API, as its clients use it."""

import json
from collections.abc import Callable
from typing import Any
from urllib.error import HTTPError
from urllib.parse import urlencode

import pytest

from mt.config.data import Direction
from mt.decoding.translator import Translator
from mt.errors import DataError
from mt.serving.requests import Access

Build = Callable[..., Translator]
Serve = Callable[..., Any]
FORM = {"Content-Type": "application/x-www-form-urlencoded"}
PARTS = {"Content-Type": "multipart/form-data; boundary=line"}
PAIR = {"source": "fr", "target": "zh"}
FRENCH = "Nous irons au marché demain matin avec nos enfants."
ENGLISH = "We are going to the market with our children tomorrow."


@pytest.fixture
def french(backwards: Build) -> Translator:
    """Return a translator from French to Chinese."""
    translator = backwards(beam=3)
    translator.direction = Direction("fr", "zh")
    return translator


@pytest.fixture
def no_langid(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(text: str) -> None:
        raise DataError("py3langid is not installed")

    monkeypatch.setattr("mt.serving.requests.identify", refuse)


def parts(fields: dict[str, str]) -> bytes:
    head = '--line\r\nContent-Disposition: form-data; name="{}"\r\n\r\n{}\r\n'
    return ("".join(head.format(*field) for field in fields.items()) + "--line--\r\n").encode()


def test_requests_and_answers(serve: Serve, french: Translator) -> None:
    client = serve(french, characters=100, sentences=3)
    ask = {"q": "ab", **PAIR}
    text = "a\r\n\nêb&=+"
    back = "a\r\n\n+=&bê"
    for body, headers, expected in (
        (ask, None, {"translatedText": "ba"}),
        (ask | {"source": "fr-CA", "target": "zh-Hans"}, None, {"translatedText": "ba"}),
        (ask | {"q": text}, None, {"translatedText": back}),
        (ask | {"q": ""}, None, {"translatedText": ""}),
        (ask | {"q": []}, None, {"translatedText": []}),
        (ask | {"q": ["ab", "", "c"]}, None, {"translatedText": ["ba", "", "c"]}),
        (
            ask | {"q": ["ab", "c\nd"], "alternatives": "9"},
            None,
            {"translatedText": ["ba", "c\nd"], "alternatives": [["ba!", "ba!!"], []]},
        ),
        (
            ask | {"q": ["<b>ab</b>", "<hr/>", "c<p>d"], "format": "html", "alternatives": 1},
            None,
            {
                "translatedText": ["<b>ba</b>", "<hr/>", "c<p>d"],
                "alternatives": [["<b>ba!</b>"], [], []],
            },
        ),
        (urlencode(ask | {"q": text}).encode(), FORM, {"translatedText": back}),
        ("source=fr&target=zh&q=\u00ea\u4e2d".encode(), FORM, {"translatedText": "\u4e2d\u00ea"}),
        (parts(ask | {"q": text}), PARTS, {"translatedText": back}),
        (b"q=ab&source=fr&q=&target=zh&q=c", FORM, {"translatedText": ["ba", "", "c"]}),
        (parts(ask)[:-10] + parts({"q": "c"}), PARTS, {"translatedText": ["ba", "c"]}),
    ):
        assert client.post(body, headers=headers) == (200, expected), body
    [own] = client.post(b'{"texts": ["ab"]}', headers=FORM)[1]["translations"]
    assert own["text"] == "ba", "curl calls JSON a form"


def test_invalid_requests_have_one_line_of_error(
    serve: Serve, french: Translator, engine: Any
) -> None:
    client = serve(french, characters=100, sentences=3)
    for change, named in (
        ({"q": None}, "Invalid request: missing q parameter"),
        ({"q": ["a", 3]}, "`q`"),
        ({"q": "a<p>b<p>c<p>d", "format": "html"}, "`q`: 4 lines"),
        ({"q": "a" * 101}, "`q`: 101 characters"),
        ({"q": ["a", "\n\r"]}, "`q`: 4 lines"),
        ({"source": ""}, "Invalid request: missing source parameter"),
        ({"source": ["fr"]}, "`source`"),
        ({"source": "zh"}, "`source`: `zh`"),
        ({"target": "x\n\ud800" + "y" * 999}, "`target`: `x \ufffdyyyyyyyyyyyyyyyyy`"),
        ({"target": "CN"}, "`target`: `CN` is a country; did you mean `zh`?"),
        ({"target": "auto"}, "`target`: `auto`"),
        ({"format": "md"}, "`format`"),
        ({"alternatives": -1}, "`alternatives`"),
        ({"alternatives": [1]}, "`alternatives`"),
    ):
        client.assert_refused({"q": "ab", **PAIR, **change}, 400, named)
    assert client.post({"q": "ab", **PAIR, "x": "a" * 99_999})[0] == 413
    for body, headers in (
        (b"q=%ff&source=fr", FORM),
        (b"&".join([b"q=a"] * 101), FORM),
        (b"q=a&source=fr&source=de&target=zh", FORM),
        (parts({"q": "ab"}), PARTS),
        (parts({"q": "ab"}), {"Content-Type": "multipart/form-data"}),
    ):
        assert client.post(body, headers=headers)[0] == 400
    assert engine.calls == []


def test_source_is_identified_if_it_is_auto(serve: Serve, french: Translator) -> None:
    pytest.importorskip("py3langid")
    client = serve(french)
    ask = {"q": FRENCH, "source": "auto", "target": "zh"}
    status, answer = client.post(ask)
    assert (status, answer["translatedText"]) == (200, FRENCH[::-1])
    assert answer["detectedLanguage"]["language"] == "fr"
    assert 90 < answer["detectedLanguage"]["confidence"] <= 100
    status, answer = client.post(ask | {"q": [FRENCH, "OK \ud800"]})
    assert [detected["language"] for detected in answer["detectedLanguage"]] == ["fr", "fr"]
    message = "`q`: the text is in English (`en`); the model translates fr to zh"
    assert client.post(ask | {"q": [FRENCH, ENGLISH]}) == (400, {"error": message})
    assert client.post(ask | {"q": ENGLISH, "source": "fr"})[0] == 200, "only auto is checked"
    page = f"<p title=''><a href='the/house/of/the/king'>{FRENCH}</a></p>"
    assert client.post(ask | {"q": page, "format": "html"})[0] == 200, "markup is no language"

    assert client.post({"q": [""]}, "/detect")[0] == 400
    for body, headers in (({"q": ENGLISH}, None), (urlencode({"q": ENGLISH}).encode(), FORM)):
        status, [detected] = client.post(body, "/detect", headers)
        assert (status, detected["language"]) == (200, "en")
        assert 90 < detected["confidence"] <= 100
    for body, status in ((b"{", 400), (b"[1]", 400), (b"", 400), (b"a" * 999_999, 413)):
        assert client.post(body, "/detect")[0] == status


def test_auto_is_the_source_language_without_langid(
    serve: Serve, french: Translator, no_langid: None
) -> None:
    client = serve(french)
    answer = {
        "translatedText": ENGLISH[::-1],
        "detectedLanguage": {"confidence": 0.0, "language": "fr"},
    }
    assert client.post({"q": ENGLISH, "source": "auto", "target": "zh"}) == (200, answer)
    error = {"error": "py3langid is not installed"}
    assert client.post({"q": ENGLISH}, "/detect") == (501, error)


def test_python_client_works_unchanged(serve: Serve, french: Translator) -> None:
    pytest.importorskip("py3langid")
    LibreTranslateAPI = pytest.importorskip("libretranslatepy").LibreTranslateAPI  # noqa: N806
    client = serve(french, Access(keys=(b"first", b"se+c=r&t")))
    url = f"http://127.0.0.1:{client.port}"
    api = LibreTranslateAPI(url, "se+c=r&t")
    assert api.translate("Ça va ?\n\nOui & non.", "fr", "zh") == "? av aÇ\n\n.non & iuO"
    assert api.translate(FRENCH, "auto", "zh") == FRENCH[::-1]
    assert [language["code"] for language in api.languages()] == ["fr", "zh"]
    [detected] = api.detect(ENGLISH)
    assert detected["language"] == "en"
    for key, status in (("wrong", 403), (None, 400)):
        with pytest.raises(HTTPError) as error:
            LibreTranslateAPI(url, key).translate("ab", "fr", "zh")
        assert error.value.code == status
        assert "API key" in json.load(error.value)["error"]
