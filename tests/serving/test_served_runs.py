"""Several runs in one server: choice by languages, models in memory, replaced runs."""

import gc
import json
import shutil
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from weakref import ref

import pytest
from safetensors.torch import load_file, save_file

from mt.config.data import Direction
from mt.decoding.translator import Translator
from mt.errors import UserError
from mt.export.export import ExportOptions
from mt.files import hash_file
from mt.serving import served_runs as module
from mt.serving.requests import Access, Limits
from mt.serving.served_runs import ModelOptions, Pairs, ServedRun
from mt.serving.server import serve_runs
from tests.decoding.fakes import UpperCase, build_translator
from tests.decoding.test_confidence import calibration
from tests.factories import export_run
from tests.serving.conftest import served

Build = Callable[..., Translator]
Serve = Callable[..., Any]
CPU = ModelOptions(device="cpu")
FRENCH = "Nous irons au marché demain matin avec nos enfants."


@pytest.fixture
def three(backwards: Build) -> Pairs:
    """Return runs from French and German to English, and from English to Chinese in capitals."""
    runs = []
    for source, target in (("fr", "en"), ("de", "en"), ("en", "zh-Hans")):
        is_last = source == "en"
        translator = build_translator(UpperCase(), longest=1000) if is_last else backwards(beam=3)
        translator.direction = Direction(source, target)
        translator.calibration = calibration()
        runs.append(served(translator, source))
    return Pairs(runs)


ROUTES = "fr to en, de to en, en to zh-Hans, fr to zh-Hans via en, de to zh-Hans via en"


def test_request_chooses_by_languages_through_another_if_needed(serve: Serve, three: Pairs) -> None:
    client = serve(three)
    for source, target, text, via in (
        ("de", "en", "ba", None),
        ("eng", "zh", "AB", None),
        ("en-Latn", "zho_Hans", "AB", None),
        ("fr", "zh-Hans-CN", "BA", "en"),
        (None, "zh", None, None),
        (None, None, None, None),
        ("zh", "en", None, None),
        ("en", "fr", None, None),
        ("de", "zh-Hant", None, None),
        ("de", "yue", None, None),
    ):
        pair = {"source": source, "target": target}
        asked = {key: code for key, code in pair.items() if code}
        query = "".join(f"&{key}={code}" for key, code in asked.items())
        responses = [
            client.post({"texts": ["ab"], **pair}),
            client.post({"q": "ab", **asked}),
            client.post({"q": ["ab"], **asked}),
        ]
        document, body = client.request("POST", f"/document?name=a.txt{query}", b"ab")
        assert document.headers.get("X-Via") == via
        if text is None:
            for status, answer in [*responses, (document.status, json.loads(body))]:
                assert (status, list(answer)) == (400, ["error"])
                assert answer["error"].endswith(f"; the server translates {ROUTES}")
            continue
        assert [status for status, _ in responses] == [200] * 3
        [own, libre, several] = [answer for _, answer in responses]
        assert own["translations"][0]["text"] == libre["translatedText"] == text
        assert several["translatedText"] == [text]
        assert {answer.get("via") for answer in (own, libre, several)} == {via}
        assert (own["translations"][0]["confidence"] is None) == bool(via)
        assert body == text.encode()
    languages = json.loads(client.request("GET", "/languages")[1])
    assert {language["code"]: language["targets"] for language in languages} == {
        **{code: ["en", "zh-Hans"] for code in ("fr", "de")},
        **{"en": ["zh-Hans"], "zh-Hans": []},
    }
    health = json.loads(client.request("GET", "/health")[1])
    assert [pair["model"] for pair in health["pairs"]] == ["fr", "de", "en", "fr + en", "de + en"]


def test_two_models_join_status_and_notes_but_no_terms(serve: Serve, three: Pairs) -> None:
    client = serve(three)
    pair = {"source": "de", "target": "zh"}
    [text] = client.post({"texts": ["aba\n\nab"], **pair})[1]["translations"]
    assert text["text"] == "ABA\n\nBA"
    assert (text["status"], text["confidence"]) == ("copied", None)
    assert text["notes"][0] == "line 1: first model: the translation is the line itself"
    assert client.post({"texts": ["ab"], "glossary": {"ab": "x"}, **pair})[0] == 422
    pytest.importorskip("py3langid")
    for target, expected in (("en", FRENCH[::-1]), ("zh", FRENCH[::-1].upper())):
        answer = client.post({"q": FRENCH, "source": "auto", "target": target})[1]
        assert answer["translatedText"] == expected
        assert answer["detectedLanguage"]["language"] == "fr"


def test_runs_that_cannot_be_served_are_refused(
    backwards: Build, run: Path, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match="one and two both translate en to en"):
        Pairs([served(backwards(), "one"), served(backwards(), "two")])
    memory = tmp_path / "french.tmx"
    memory.write_text("<tmx><tu><tuv xml:lang='fr'><seg>a</seg></tuv></tu></tmx>")
    options = ModelOptions(memory=memory)
    assert ServedRun.read(run, options, with_model=False).options.memory is None
    for runs in ([run], [run, run]):
        with pytest.raises(UserError, match=memory.name):
            serve_runs(runs, ("127.0.0.1", 0), options, limits=Limits(), access=Access())


def change_weights(run: Path, target: Path) -> None:
    """Write a complete model with other weights into the folder of a run."""
    weights = {name: tensor * 0.8 for name, tensor in load_file(run / "model.safetensors").items()}
    save_file(weights, target / "model.safetensors")
    record = json.loads((run / "model.json").read_bytes())
    record["weights"] = hash_file(target / "model.safetensors")
    (target / "model.json").write_text(json.dumps(record))


def test_least_used_model_is_unloaded(
    serve: Serve, run: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    other = Path(shutil.copytree(run, tmp_path / "other"))
    config = (run / "config.yaml").read_text()
    assert "source_language: en" in config
    (other / "config.yaml").write_text(config.replace("language: en", "language: fr"))
    change_weights(run, other)
    runs = [ServedRun.read(folder, CPU, with_model=False) for folder in (run, other)]
    client = serve(Pairs(runs, keep=1))
    expected = [Translator.load(folder).translate(["one two"]) for folder in (run, other)]
    assert expected[0] != expected[1]
    for index in (0, 1, 0):
        used, idle = runs[index], runs[1 - index]
        before = ref(idle.translator) if idle.translator else lambda: None
        pair = {"source": used.direction.source, "target": "de"}
        [answer] = client.post({"texts": ["one two"], **pair})[1]["translations"]
        assert ([answer["text"]], idle.translator) == (expected[index], None)
        gc.collect()
        assert before() is None
    (other / "model.safetensors").unlink()
    assert client.post({"texts": ["one"], "source": "fr", "target": "de"})[0] == 500
    assert "model.safetensors is missing" in caplog.text
    assert client.post({"texts": ["one"], "source": "en", "target": "de"})[0] == 200


def test_replaced_run_is_taken_over_without_a_failed_request(
    serve: Serve, run: Path, tmp_path: Path, monkeypatch: Any, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "LOOK_SECONDS", 0.05)
    # Beside an export, tags and alternatives need the PyTorch engine of the same model.
    assert export_run(run, run / "ctranslate2", ExportOptions(device="cpu")).failure is None
    same, new = (Path(shutil.copytree(run, tmp_path / name)) for name in ("same", "new"))
    change_weights(run, new)
    lines = ["one two three", "nine <b>zero</b> zero", "five"]
    client = serve(Pairs([ServedRun.read(run, CPU)]))

    def translate(client: Any) -> list[str]:
        status, answer = client.post({"texts": lines, "format": "html", "alternatives": 1})
        assert status == 200, answer
        return [text["text"] for text in answer["translations"]]

    old, after = (translate(serve(Pairs([ServedRun.read(folder, CPU)]))) for folder in (same, new))
    assert old != after
    stop = threading.Event()

    def ask(_: int) -> list[bool]:
        answers = []
        while not stop.is_set():
            answers.append(translate(client))
        assert all(answer in (old, after) for answer in answers)
        return [answer == after for answer in answers]

    def wait_for(condition: Callable[[], bool]) -> None:
        end = time.monotonic() + 60
        while not condition():
            assert time.monotonic() < end
            time.sleep(0.05)

    (run / "model.safetensors").unlink()
    wait_for(lambda: "the model in memory is kept" in caplog.text)
    time.sleep(0.3)
    assert caplog.text.count("the model in memory is kept") == 1
    with ThreadPoolExecutor(20) as clients:
        results = [clients.submit(ask, number) for number in range(20)]
        try:
            wait_for(lambda: client.metrics()["mt_sentences_total"] >= 100)
            shutil.copytree(new, run, dirs_exist_ok=True)
            wait_for(lambda: translate(client) == after)
        finally:
            stop.set()
        for result in results:
            are_new = result.result()
            assert are_new == sorted(are_new), "no answer of the old model after the new one"
