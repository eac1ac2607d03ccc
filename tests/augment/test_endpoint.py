"""Candidates of endpoints: retries, errors, resumption, the key."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from mt.augment import endpoint as client
from tests.augment.fake_endpoint import Reply, completion, serving
from tests.factories import Program, Refused, contents

ROOT = Path(__file__).parents[2]
KEY = "sk-secret-123"
LINES = [f"a dog has {index} bones and it is glad" for index in range(60)]
ALL = [*("--allow", "numbers", "--allow", "language", "--allow", "length")]


@pytest.fixture(autouse=True)
def _short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "FIRST_WAIT", 0.01)
    monkeypatch.setenv("MT_TEACHER_KEY", KEY)


@pytest.fixture
def text(tiny_recipe: Path, tmp_path: Path) -> list[str | Path]:
    """Return the config and a text of 60 lines, one of them blank and one not UTF-8."""
    path = tmp_path / "more.en"
    path.write_bytes("\n".join([*LINES, "", ""]).encode() + b"\xff\n")
    return [tiny_recipe, path]


def index_of(text: str) -> int:
    """Return the index of a line in the text, 99 for any other text."""
    return int(text.split()[3]) if text in LINES else 99


def translated(text: str) -> str:
    return text.replace("dog", "Hund").replace("and it is glad", "und ist froh")


def good(text: str, _: int) -> Reply:
    return completion(translated(text))


def build_call(text: list[Path], url: str, out: Path) -> list[str | Path]:
    return ["distill", *text, "--from", url, "--model", "m", *ALL, "--out", out]


def sources(folder: Path) -> list[str]:
    return (folder / "more.en").read_text().splitlines()


def test_endpoint_answers_become_pairs(
    text: list[Path],
    tmp_path: Path,
    program: Program,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(client, "TIMEOUT", 0.3)

    def answer(text: str, count: int) -> Reply:
        """Fail the first time in several ways, and always for one text."""
        index = index_of(text)
        if index == 7:
            return Reply(b'{"error": {"message": "filtered"}}', 400)
        first = {
            1: Reply(None),
            2: Reply(b"{", 200),
            3: Reply(b"busy", 503),
            4: Reply(b"busy", 429, {"Retry-After": "0.02"}),
            5: Reply(b"", delay=0.6),
        }
        return first.get(index % 20, good(text, 1)) if count == 1 else good(text, 1)

    with serving(answer) as endpoint:
        call = build_call(text, endpoint.url, tmp_path / "out")
        status, printed, err = program(*call)
        assert (status, err) == (0, "")
        before = sum(endpoint.asked.values())
        assert program(*call)[1] == printed
        assert sum(endpoint.asked.values()) == before  # nothing is asked twice
    out = tmp_path / "out"
    answered = [line for line in LINES if line.split()[3] != "7"]
    assert sources(out) == answered
    assert (out / "more.de").read_text().splitlines() == [translated(line) for line in answered]
    rejected = [row.split("\t") for row in (out / "more.rejected.tsv").read_text().splitlines()]
    assert [(row[0], row[4]) for row in rejected] == [
        ("8", "status 400 (filtered)"),
        ("61", "blank line"),
        ("62", "line that is not UTF-8"),
    ]
    assert endpoint.paths == {"/v1/chat/completions"}
    assert endpoint.keys == {f"Bearer {KEY}"}
    assert endpoint.requests[0]["temperature"] == 0
    asked = endpoint.requests[0]["messages"][0]["content"]
    assert asked.startswith("Translate the following text from English into German.")
    everything = printed + err + caplog.text + str(contents(out))
    assert KEY not in everything


BROKEN: dict[str, tuple[Reply, str]] = {
    "redirects": (Reply(b"", 307, {"Location": "http://x.test/"}), "status 307"),
    "html": (Reply(b"<html>", 200, {"Content-Type": "text/html"}), "answers invalid JSON"),
    "choices": (completion("one", "two"), "gives 2 translations instead of 1"),
    "key": (
        Reply(json.dumps({"error": {"message": f"no {KEY}"}}).encode(), 401),
        "status 401, needs a valid key in MT_TEACHER_KEY (no ***)",
    ),
    "limit": (Reply(b"", 429, {"Retry-After": "3600"}), "asks for a wait of 3,600 seconds"),
    "busy": (Reply(b"", 503), "status 503, 5 times"),
    "fails": (
        Reply(b"", 500),
        "status 500, 5 times; the test text `1 2 3` has no translation either",
    ),
    "declines": (Reply(b"", 400), "status 400; the test text"),
    "closes": (
        Reply(None),
        "Server disconnected without sending a response., 5 times; the test text",
    ),
    "late": (Reply(b"", delay=0.6), "no answer within 0.3 seconds, 5 times; the test text"),
}


@pytest.mark.parametrize(("name", "first"), [*((name, 20) for name in BROKEN), ("fails", 58)])
def test_broken_endpoint_is_one_line_and_loses_nothing(
    name: str,
    first: int,
    text: list[Path],
    tmp_path: Path,
    program: Program,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reply, cause = BROKEN[name]
    monkeypatch.setattr(client, "TIMEOUT", 0.3 if name == "late" else 5.0)

    def breaks(text: str, count: int) -> Reply:
        return good(text, count) if index_of(text) < first else reply

    out = tmp_path / "out"
    with serving(breaks) as endpoint:
        call = build_call(text, endpoint.url, out)
        status, printed, err = program(*call)
        assert (status, printed) == (2, "")
        assert err.count("\n") == 1
        assert err.startswith(f"error: {endpoint.url}/chat/completions: ")
        assert cause in err
        assert KEY not in err + str(contents(out))
        before, endpoint.answer = endpoint.asked.copy(), good
        status, _, err = program(*call)
        assert (status, err) == (0, "")
        again = {text for text in before if endpoint.asked[text] > before[text]}
        assert all(index_of(text) >= first for text in again)
    assert sources(out) == LINES


def test_unsuitable_proxy_is_one_line(
    text: list[Path], tmp_path: Path, refused: Refused, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ALL_PROXY", "ftp://x.test")
    call = build_call(text, "http://127.0.0.1:1/v1", tmp_path / "out")
    assert "--from: proxy in the environment: " in refused(*call)


REFUSAL = {"choices": [{"message": {"content": None, "refusal": "I can't help with that."}}]}
WITHOUT_TRANSLATION: dict[str, tuple[Reply, str]] = {
    "declines": (Reply(b"", 400), "status 400"),
    "fails": (Reply(b"", 500), "status 500, 5 times"),
    "closes": (Reply(None), "Server disconnected without sending a response., 5 times"),
    "json": (Reply(b"{"), "answers invalid JSON instead of a chat completion, 5 times"),
    "nested": (Reply(b"[" * 100_000), "answers invalid JSON instead of a chat completion, 5 times"),
    "shape": (
        Reply(b'{"choices": [{"text": "x"}]}'),
        "answers JSON without `choices[].message.content`, 5 times",
    ),
    "empty": (Reply(b'{"choices": []}'), "gives 0 translations instead of 1, 5 times"),
    "refusal": (Reply(json.dumps(REFUSAL).encode()), "ended by `refusal`"),
    "cut": (completion("Ein", finish_reason="length"), "translation cut at its length limit"),
    "filter": (completion("Ein", finish_reason="content_filter"), "ended by `content_filter`"),
    "late": (Reply(b"", delay=0.6), "no answer within 0.2 seconds, 5 times"),
    "slow header": (Reply(b"", byte_delay=0.02), "no answer within 0.2 seconds, 5 times"),
}


@pytest.mark.parametrize("name", WITHOUT_TRANSLATION)
def test_sources_without_a_translation_are_left_out_and_do_not_stop_a_restart(
    name: str,
    text: list[Path],
    tmp_path: Path,
    program: Program,
    refused: Refused,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reply, cause = WITHOUT_TRANSLATION[name]
    monkeypatch.setattr(client, "TIMEOUT", 0.2 if cause.startswith("no answer") else 5.0)
    left_out = {*range(20, 27), 59}

    def answer(text: str, count: int) -> Reply:
        return reply if index_of(text) in left_out else good(text, count)

    out = tmp_path / "out"
    with serving(answer) as endpoint:
        call = build_call(text, endpoint.url, out)
        message = refused(*call)
        assert f"{cause}; 5 sources in a row have no translation and are left out" in message
        before = endpoint.asked.copy()
        assert program(*call)[0] == 0
        again = {line for line in before if endpoint.asked[line] > before[line]}
        assert again <= {*LINES[25:], "1 2 3"}
    assert sources(out) == [line for index, line in enumerate(LINES) if index not in left_out]
    rejected = [row.split("\t") for row in (out / "more.rejected.tsv").read_text().splitlines()]
    problems = {int(row[0]) - 1: row[4] for row in rejected[:-2]}
    assert {*problems} == left_out
    assert all(problem.endswith(cause) for problem in problems.values())


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="has no SIGKILL")
@pytest.mark.timeout(300)
def test_killed_collection_writes_the_bytes_of_an_uninterrupted_one(
    tiny_recipe: Path, tmp_path: Path
) -> None:
    text = tmp_path / "more.en"
    lines = [f"{line} {copy}" for copy in range(20) for line in LINES]
    text.write_text("".join(f"{line}\n" for line in lines))

    def start(url: str, name: str) -> subprocess.Popen[bytes]:
        call = build_call([tiny_recipe, text], url, tmp_path / name)
        return subprocess.Popen(
            [sys.executable, "-m", "mt", *map(str, call)],
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdout=subprocess.DEVNULL,
        )

    def slow(text: str, _: int) -> Reply:
        return Reply(completion(translated(text)).body, delay=0.02)

    with serving(slow) as endpoint:
        assert start(endpoint.url, "whole").wait() == 0
        endpoint.asked.clear()
        kills = 0
        for aim in sorted(random.Random(3).sample(range(50, 1250), 5)):
            process = start(endpoint.url, "killed")
            while process.poll() is None and sum(endpoint.asked.values()) < aim:
                time.sleep(0.005)
            process.send_signal(signal.SIGKILL)
            kills += process.wait() == -signal.SIGKILL
        assert kills >= 4
        assert start(endpoint.url, "killed").wait() == 0
        # Of each killed process, at most the window and the requests under way.
        assert sum(endpoint.asked.values()) < len(lines) + 5 * (32 + 2 * 8)
    for path in (tmp_path / "whole").iterdir():
        assert path.read_bytes() == (tmp_path / "killed" / path.name).read_bytes()
    assert len(sources(tmp_path / "killed")) == len(lines)


def test_files_in_the_way_are_an_error_before_candidates_are_collected(
    text: list[Path], tmp_path: Path, refused: Refused
) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "more.rejected.tsv").write_text("mine\n")
    with serving(good) as endpoint:
        message = refused(*build_call(text, endpoint.url, out))
    assert f"{out / 'more.rejected.tsv'}: exists already" in message
    assert not endpoint.asked
    assert [path.name for path in out.iterdir()] == ["more.rejected.tsv"]


def test_of_several_answers_the_most_similar_one_is_taken(
    text: list[Path], tmp_path: Path, program: Program
) -> None:
    def answer(text: str, _: int) -> Reply:
        return completion(translated(text), f"{translated(text)} da", f"{translated(text)} da")

    with serving(answer) as endpoint:
        call = build_call(text, endpoint.url, tmp_path / "out")
        assert program(*call, "--n-best", "3", "--temperature", "0.7")[0] == 0
    assert endpoint.requests[0]["n"] == 3
    rows = (tmp_path / "out" / "more-candidates.jsonl").read_text().splitlines()
    first = translated(LINES[0])
    assert json.loads(rows[0]) == {
        "source": LINES[0],
        "translations": [first, f"{first} da", f"{first} da"],
    }
    assert (tmp_path / "out" / "more.de").read_text().splitlines() == [
        f"{translated(line)} da" for line in LINES
    ]


@pytest.mark.parametrize(
    ("options", "cause"),
    [
        ("--from http://me:pw@x/v1 --model m", "http://x...: must be an address without"),
        ("--from http://x/v1?key=pw --model m", "MT_TEACHER_KEY"),
        ("--from http://[x/v1 --model m", "is not a valid URL"),
        ("--from http://x/v1", "needs --model NAME"),
        ("--from http://x/v1 --model m --prompt {source}", "--prompt: lacks {text}"),  # noqa: RUF027
        ("--from http://x/v1 --model m --n-best 2", "temperature 0 gives equal"),
        ("--from http://x/v1 --model m --set decoding.beam=3", "requires a RUN as the teacher"),
        ("--from http://x/v1 --model m --allow numbrs", "did you mean `numbers`?"),
        ("--from pairs.tsv", "expected CONFIG, got: "),
    ],
)
def test_unsuitable_options_are_one_line_and_make_no_file(
    options: str, cause: str, text: list[Path], tmp_path: Path, refused: Refused
) -> None:
    message = refused("distill", *text, "--out", tmp_path / "out", *options.split())
    assert cause in message
    assert "pw" not in message
    assert not (tmp_path / "out").exists()
