"""Candidates from an OpenAI-compatible chat endpoint, one request for each source.

They are collected in a file that resumes after a kill.
"""

import asyncio
import os
import random
import time
from collections import deque
from collections.abc import Generator, Iterable, Iterator
from contextlib import closing, suppress
from dataclasses import dataclass
from itertools import islice, tee
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import urlsplit

from mt.augment.candidate_filters import (
    JSON_LINES,
    SUFFIX,
    SourceCandidates,
    as_text,
    parse_json,
)
from mt.augment.distill import CUT, Sources, find_source_fault
from mt.decoding.shards import Job, Shard, Window
from mt.errors import UserError, install_hint
from mt.languages import language_name
from mt.tables import clip, make_printable

KEY_VARIABLE = "MT_TEACHER_KEY"
PROMPT = (
    "Translate the following text from {source_language} into {target_language}. Reply with the "
    "translation alone, without quotation marks, notes or explanations.\n\n{text}"
)
_TEXT = "{text}"
_PATH = "/chat/completions"
TRIES = 5
AT_ONCE = 8
"""Requests under way."""
TIMEOUT, CONNECT_TIMEOUT = 120.0, 30.0
"""Seconds for a whole answer, and for a connection, whose failure ends the work."""
FIRST_WAIT = 1.0
"""Seconds before the second try; each further wait is twice as long."""
_LONGEST_WAIT = 600.0
_MOST_BYTES = 10_000_000
_MESSAGE_WIDTH = 200
_COMPLETE = "stop"
_FAILURES = 5
"""Failed sources in a row that end the work."""
_TEST = "1 2 3"
"""Text without a translation from an endpoint that is out of order."""
_OF_THE_TEXT = {400, 413, 422, 500, 504}
"""Statuses that may be due to one source, for example by a filter of contents."""
_TEMPORARY = {408, 409, 425, 429, *range(500, 600)}
"""Statuses after which another try may succeed: timeout, conflict, too early, too many, server."""
_WINDOW_LINES = 32
_WINDOW_SECONDS = 2.0
"""Answers are written after this number of lines or seconds, so that a kill loses few of them."""


@dataclass(eq=False)
class _AttemptError(Exception):
    """Failed request."""

    cause: str
    again: bool = True
    """True if another try may succeed."""
    of_the_text: bool = False
    """True if other sources may succeed."""
    wait: float = 0.0
    """Seconds to wait, as the endpoint asks."""


@dataclass(frozen=True)
class Endpoint:
    """Address of an endpoint and the form of its requests.

    The key is read from the environment when a request is made, and is part of no setting, message
    or file.
    """

    url: str
    model: str
    languages: tuple[str, str]
    prompt: str = PROMPT
    temperature: float = 0.0
    n_best: int = 1
    window: ClassVar[int] = 16
    """Unit of lines in which shards divide the sources."""

    def check(self) -> None:
        """Raise UserError for an unsuitable setting, or if httpx2 is not installed."""
        try:
            import httpx2  # an optional package
        except ModuleNotFoundError as error:
            raise UserError(f"--from URL needs httpx2: {install_hint('teacher')}") from error
        try:
            parts = urlsplit(self.url)
            httpx2.URL(self.url)
        except (ValueError, httpx2.InvalidURL):
            raise UserError("--from: is not a valid URL") from None
        try:
            self._open_client()
        except (ImportError, ValueError) as error:
            raise UserError(f"--from: proxy in the environment: {_mask_key(f'{error}')}") from None
        further = parts.username or parts.password or parts.query or parts.fragment
        if parts.scheme not in {"http", "https"} or not parts.hostname or further:
            raise UserError(
                f"--from {parts.scheme}://{parts.hostname}...: must be an address without user, "
                f"password and query; the key belongs in the environment variable {KEY_VARIABLE}"
            )
        if _TEXT not in self.prompt:
            raise UserError(f"--prompt: lacks {_TEXT}, the place of the source")
        if self.n_best > 1 and not self.temperature:
            raise UserError(
                f"--n-best {self.n_best}: temperature 0 gives equal translations; add for example "
                "`--temperature 0.7`"
            )
        key = os.environ.get(KEY_VARIABLE, "")
        if not (key.isascii() and key.isprintable()) or key != key.strip():
            raise UserError(f"{KEY_VARIABLE}: has a space, a line end or another invalid character")

    @property
    def settings(self) -> dict[str, Any]:
        """Settings that determine the answers."""
        return {
            "source_language": self.languages[0],
            "target_language": self.languages[1],
            "teacher": "endpoint",
            "url": self._address,
            "teacher_model": self.model,
            "prompt": self.prompt,
            "temperature": self.temperature,
            "n_best": self.n_best,
        }

    def answer(self, sources: Iterable[str]) -> Iterator[SourceCandidates]:
        """Yield the candidates of each source, in order; several requests are under way.

        A source that the endpoint declines, or does not answer in time, has a problem. Raises
        UserError, naming URL and cause, if the endpoint itself fails, or after several sources in a
        row with a problem. If the endpoint translates another text, these are yielded first, so
        that a restart does not stop at them again; else a restart asks for them again.
        """
        failed: list[SourceCandidates] = []
        with closing(self._answer_in_order(sources)) as answers:
            for answer in answers:
                if answer.problem:
                    failed.append(answer)
                    if len(failed) == _FAILURES:
                        break
                else:
                    yield from failed
                    yield answer
                    failed = []
        if not failed:
            return

        async def ask_test() -> bool:
            async with self._open_client() as client:
                with suppress(_AttemptError):
                    return not (await self._ask_once(client, _TEST)).problem
            return False

        cause = failed[-1].problem
        if not asyncio.run(ask_test()):
            raise self._build_error(f"{cause}; the test text `{_TEST}` has no translation either")
        yield from failed
        if len(failed) == _FAILURES:
            left_out = f"{_FAILURES} sources in a row have no translation and are left out"
            raise self._build_error(f"{cause}; {left_out}")

    def _open_client(self) -> Any:
        import httpx2

        key = os.environ.get(KEY_VARIABLE)
        return httpx2.AsyncClient(
            headers={"Authorization": f"Bearer {key}"} if key else {},
            timeout=httpx2.Timeout(None, connect=CONNECT_TIMEOUT),
            limits=httpx2.Limits(max_connections=AT_ONCE),
        )

    def _answer_in_order(self, sources: Iterable[str]) -> Generator[SourceCandidates, None, None]:
        client, slots = self._open_client(), asyncio.Semaphore(AT_ONCE)
        pending: deque[asyncio.Task[SourceCandidates | UserError]] = deque()

        async def ask(source: str) -> SourceCandidates | UserError:
            # An error that ends the work is returned too: requests after the first one with an
            # error are not awaited.
            wait = FIRST_WAIT
            async with slots:
                for attempt in range(1, TRIES + 1):
                    try:
                        return await self._ask_once(client, source)
                    except _AttemptError as error:
                        if attempt == TRIES or not error.again:
                            times = f", {attempt} times" if attempt > 1 else ""
                            problem = f"{error.cause}{times}"
                            if error.of_the_text:
                                return SourceCandidates(source, problem=problem)
                            return self._build_error(problem)
                        asked_wait = error.wait
                    # The spread keeps requests apart that have failed together.
                    await asyncio.sleep(max(asked_wait, wait * random.uniform(0.75, 1.25)))
                    wait *= 2
            raise AssertionError("the last try returns")

        async def await_first() -> SourceCandidates:
            answer = await pending.popleft()
            if isinstance(answer, UserError):
                raise answer
            return answer

        with asyncio.Runner() as runner:
            try:
                for source in sources:
                    pending.append(runner.get_loop().create_task(ask(source)))
                    if len(pending) >= 2 * AT_ONCE:
                        yield runner.run(await_first())
                while pending:
                    yield runner.run(await_first())
            finally:
                for task in pending:
                    task.cancel()
                runner.run(client.aclose())

    async def _ask_once(self, client: Any, source: str) -> SourceCandidates:
        import httpx2

        text = self.prompt
        names = ("{source_language}", "{target_language}")
        for name, language in zip(names, self.languages, strict=True):
            text = text.replace(name, language_name(language))
        body = {
            "model": self.model,
            "messages": [{"role": "user", "content": text.replace(_TEXT, source)}],
            "temperature": self.temperature,
            **({"n": self.n_best} if self.n_best > 1 else {}),
        }
        content = b""
        try:
            async with (
                asyncio.timeout(TIMEOUT),
                client.stream("POST", self._address, json=body) as response,
            ):
                async for chunk in response.aiter_bytes():
                    content += chunk
                    if len(content) > _MOST_BYTES:
                        cause = f"an answer of more than {_MOST_BYTES:,} bytes"
                        raise _AttemptError(cause, of_the_text=True)
        except TimeoutError:
            cause = f"no answer within {TIMEOUT:g} seconds"
            raise _AttemptError(cause, of_the_text=True) from None
        except httpx2.ConnectTimeout:
            raise _AttemptError(f"no connection within {CONNECT_TIMEOUT:g} seconds") from None
        except httpx2.RequestError as error:
            raise _AttemptError(
                _mask_key(f"{error}" or type(error).__name__),
                of_the_text=isinstance(error, httpx2.ReadError | httpx2.RemoteProtocolError),
            ) from None
        if response.status_code != 200:
            raise _explain(response.status_code, response.headers, content)
        return self._parse(source, content)

    @property
    def _address(self) -> str:
        url = self.url.rstrip("/")
        return url if url.endswith(_PATH) else url + _PATH

    def _parse(self, source: str, content: bytes) -> SourceCandidates:
        """Return the complete translations of a chat completion."""
        try:
            record = parse_json(content)
        except ValueError:
            cause = "answers invalid JSON instead of a chat completion"
            raise _AttemptError(cause, of_the_text=True) from None
        texts, ends = [], []
        try:
            for choice in record["choices"]:
                end = as_text(choice.get("finish_reason") or _COMPLETE)
                if end == _COMPLETE and choice["message"].get("refusal"):
                    end = "refusal"
                if end == _COMPLETE:
                    texts.append(as_text(choice["message"]["content"] or ""))
                ends.append(end)
        except (KeyError, TypeError, AttributeError):
            cause = "answers JSON without `choices[].message.content`"
            raise _AttemptError(cause, of_the_text=True) from None
        if len(ends) != self.n_best:
            cause = f"gives {len(ends)} translations instead of {self.n_best}"
            raise _AttemptError(cause, of_the_text=not ends)
        if texts:
            return SourceCandidates(source, tuple(texts))
        problem = CUT if ends[0] == "length" else f"translation ended by `{_mask_key(ends[0])}`"
        return SourceCandidates(source, problem=problem)

    def _build_error(self, problem: str) -> UserError:
        return UserError(
            f"{self._address}: {problem}; what was answered is kept, the same command continues"
        )


def _explain(status: int, headers: Any, content: bytes) -> _AttemptError:
    """Return the error for an answer with another status than 200."""
    cause = f"status {status}"
    if status in {401, 403}:
        cause += f", needs a valid key in {KEY_VARIABLE}"
    with suppress(ValueError, KeyError, TypeError):  # no message
        error = parse_json(content)["error"]
        message = as_text(error["message"] if isinstance(error, dict) else error)
        cause += f" ({_mask_key(message)})" if message else ""
    wait = 0.0
    with suppress(ValueError):  # a date; the usual wait serves
        wait = max(0.0, float(headers.get("retry-after", "")))
    if wait > _LONGEST_WAIT:
        return _AttemptError(f"{cause}, asks for a wait of {wait:,.0f} seconds", again=False)
    of_the_text = status in _OF_THE_TEXT
    return _AttemptError(cause, again=status in _TEMPORARY, of_the_text=of_the_text, wait=wait)


def _mask_key(text: str) -> str:
    """Return a text for a message: one line, without the key."""
    if key := os.environ.get(KEY_VARIABLE):
        text = text.replace(key, "***")
    return clip(make_printable(text), _MESSAGE_WIDTH)


@dataclass(frozen=True)
class Collection:
    """Sources, and the endpoint that translates them."""

    endpoint: Endpoint
    sources: Sources

    def plan_job(self, folder: Path, shard: Shard) -> Job:
        """Return the job; raise UserError or DataError for unsuitable settings or sources."""
        self.endpoint.check()
        settings = {"command": "collect candidates", **self.sources.read_settings()}
        name = self.sources.choose_name(self.endpoint.languages[0]) + SUFFIX
        total = sum(1 for _ in self.sources.read_pairs())
        if not total:
            raise UserError(f"{self.sources.origin}: is empty")
        outputs = folder / f"{name}{JSON_LINES}", folder / f"{name}.json"
        settings |= self.endpoint.settings
        return Job(outputs, settings, total, self.endpoint.window, shard)

    def make_windows(self, lines: range) -> Iterator[Window]:
        """Yield the candidates of some sources; those before an error are yielded first."""
        rows: list[str] = []
        since = time.monotonic()

        def take_window() -> Window:
            window = Window(len(rows), ("".join(rows).encode(),))
            rows.clear()
            return window

        try:
            for row in self.collect(lines):
                rows.append(f"{row.as_json()}\n")
                if len(rows) == _WINDOW_LINES or time.monotonic() - since > _WINDOW_SECONDS:
                    yield take_window()
                    since = time.monotonic()
        except (UserError, KeyboardInterrupt, SystemExit):
            if rows:
                yield take_window()
            raise
        if rows:
            yield take_window()

    def collect(self, lines: range) -> Iterator[SourceCandidates]:
        """Yield the candidates of some sources; unusable sources have a problem."""
        pairs = islice(self.sources.read_pairs(), lines.start, lines.stop)
        texts, ahead = tee(pair.source for pair in pairs)
        answers = self.endpoint.answer(
            text.strip() for text in ahead if not find_source_fault(text)
        )
        for text in texts:
            if reason := find_source_fault(text):
                shown = text.encode(errors="replace").decode()
                yield SourceCandidates(shown.strip(), problem=reason)
            else:
                yield next(answers)
