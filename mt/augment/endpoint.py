"""Client of an OpenAI-compatible chat endpoint, one request for each source."""

import asyncio
import json
import os
import random
from collections import deque
from collections.abc import Generator, Iterable, Iterator
from contextlib import closing, suppress
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, ClassVar
from urllib.parse import urlsplit

from mt.augment.distill import CUT
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
_OF_THE_TEXT = {
    HTTPStatus.BAD_REQUEST,
    HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
    HTTPStatus.UNPROCESSABLE_ENTITY,
    HTTPStatus.INTERNAL_SERVER_ERROR,
    HTTPStatus.GATEWAY_TIMEOUT,
}
"""Statuses that may be due to one source, for example by a filter of contents."""
_TEMPORARY = {
    HTTPStatus.REQUEST_TIMEOUT,
    HTTPStatus.CONFLICT,
    HTTPStatus.TOO_EARLY,
    HTTPStatus.TOO_MANY_REQUESTS,
}


class _AttemptError(Exception):
    """Failed request; the text is the cause."""

    def __init__(self, cause: str, *, again: bool = True, of_the_text: bool = False) -> None:
        super().__init__(cause)
        self.again = again
        """True if another try may succeed."""
        self.of_the_text = of_the_text
        """True if other sources may succeed."""
        self.wait = 0.0
        """Seconds to wait, as the endpoint asks."""


@dataclass(frozen=True, slots=True)
class EndpointAnswer:
    """Answer to one source."""

    translations: tuple[str, ...] = ()
    problem: str = ""
    """Reason for having no translation."""


@dataclass(frozen=True)
class Endpoint:
    """Address of an endpoint and the form of its requests.

    The key is read from the environment when a request is made, and is part of no setting, message
    or file.
    """

    url: str
    model: str
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
            cause = self._mask_key(f"{error}")
            raise UserError(f"--from: proxy in the environment: {cause}") from None
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
            "teacher": "endpoint",
            "url": self._address,
            "teacher_model": self.model,
            "prompt": self.prompt,
            "temperature": self.temperature,
            "n_best": self.n_best,
        }

    def answer(
        self, sources: Iterable[str], languages: tuple[str, str]
    ) -> Iterator[EndpointAnswer]:
        """Yield the answer for each source, in order; several requests are under way.

        A source that the endpoint declines, or does not answer in time, has a problem. Raises
        UserError, naming URL and cause, if the endpoint itself fails, or after several sources in a
        row with a problem. If the endpoint translates another text, these are yielded first, so
        that a restart does not stop at them again; else a restart asks for them again.
        """
        failed: list[EndpointAnswer] = []
        with closing(self._answer_in_order(sources, languages)) as answers:
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
        cause = failed[-1].problem
        if not self._is_working(languages):
            raise self._build_error(f"{cause}; the test text `{_TEST}` has no translation either")
        yield from failed
        if len(failed) == _FAILURES:
            left_out = f"{_FAILURES} sources in a row have no translation and are left out"
            raise self._build_error(f"{cause}; {left_out}")

    def _is_working(self, languages: tuple[str, str]) -> bool:
        async def ask() -> EndpointAnswer:
            async with self._open_client() as client:
                return await self._ask_once(client, self._build_body(_TEST, languages))

        try:
            return not asyncio.run(ask()).problem
        except _AttemptError:
            return False

    def _open_client(self) -> Any:
        import httpx2

        key = os.environ.get(KEY_VARIABLE)
        return httpx2.AsyncClient(
            headers={"Authorization": f"Bearer {key}"} if key else {},
            timeout=httpx2.Timeout(None, connect=CONNECT_TIMEOUT),
            limits=httpx2.Limits(max_connections=AT_ONCE),
        )

    def _answer_in_order(
        self, sources: Iterable[str], languages: tuple[str, str]
    ) -> Generator[EndpointAnswer, None, None]:
        client, slots = self._open_client(), asyncio.Semaphore(AT_ONCE)
        pending: deque[asyncio.Task[EndpointAnswer | UserError]] = deque()

        async def await_first() -> EndpointAnswer:
            answer = await pending.popleft()
            if isinstance(answer, UserError):
                raise answer
            return answer

        with asyncio.Runner() as runner:
            try:
                for source in sources:
                    request = self._ask(client, slots, self._build_body(source, languages))
                    pending.append(runner.get_loop().create_task(request))
                    if len(pending) >= 2 * AT_ONCE:
                        yield runner.run(await_first())
                while pending:
                    yield runner.run(await_first())
            finally:
                for task in pending:
                    task.cancel()
                runner.run(client.aclose())

    def _build_body(self, source: str, languages: tuple[str, str]) -> dict[str, Any]:
        text = self.prompt
        names = ("{source_language}", "{target_language}")
        for name, language in zip(names, languages, strict=True):
            text = text.replace(name, language_name(language))
        return {
            "model": self.model,
            "messages": [{"role": "user", "content": text.replace(_TEXT, source)}],
            "temperature": self.temperature,
            **({"n": self.n_best} if self.n_best > 1 else {}),
        }

    async def _ask(
        self, client: Any, slots: asyncio.Semaphore, body: dict[str, Any]
    ) -> EndpointAnswer | UserError:
        """Return the answer, after waits and further tries if necessary.

        An error that ends the work is returned too: requests after the first one with an error are
        not awaited.
        """
        wait = FIRST_WAIT
        async with slots:
            for attempt in range(1, TRIES + 1):
                try:
                    return await self._ask_once(client, body)
                except _AttemptError as error:
                    if attempt == TRIES or not error.again:
                        times = f", {attempt} times" if attempt > 1 else ""
                        answer = EndpointAnswer(problem=f"{error}{times}")
                        return answer if error.of_the_text else self._build_error(answer.problem)
                    asked_wait = error.wait
                # The spread keeps requests apart that have failed together.
                await asyncio.sleep(max(asked_wait, wait * random.uniform(0.75, 1.25)))
                wait *= 2
        raise AssertionError("the last try returns")

    async def _ask_once(self, client: Any, body: dict[str, Any]) -> EndpointAnswer:
        import httpx2

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
                self._mask_key(f"{error}" or type(error).__name__),
                of_the_text=isinstance(error, httpx2.ReadError | httpx2.RemoteProtocolError),
            ) from None
        status, headers = response.status_code, response.headers
        if status != HTTPStatus.OK:
            raise self._explain(status, headers, content)
        return self._parse(content)

    @property
    def _address(self) -> str:
        url = self.url.rstrip("/")
        return url if url.endswith(_PATH) else url + _PATH

    def _explain(self, status: int, headers: Any, content: bytes) -> _AttemptError:
        cause = f"status {status}"
        if status in {HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN}:
            cause += f", needs a valid key in {KEY_VARIABLE}"
        if message := self._read_message(content):
            cause += f" ({message})"
        again = status in _TEMPORARY or status >= HTTPStatus.INTERNAL_SERVER_ERROR
        error = _AttemptError(cause, again=again, of_the_text=status in _OF_THE_TEXT)
        with suppress(ValueError):  # a date; the usual wait serves
            error.wait = max(0.0, float(headers.get("retry-after", "")))
        if error.wait > _LONGEST_WAIT:
            wait = f"{cause}, asks for a wait of {error.wait:,.0f} seconds"
            return _AttemptError(wait, again=False)
        return error

    def _read_message(self, content: bytes) -> str:
        """Return the error message of the endpoint, "" without one."""
        try:
            error = parse_json(content)["error"]
            return self._mask_key(as_text(error["message"] if isinstance(error, dict) else error))
        except (ValueError, KeyError, TypeError):
            return ""

    def _mask_key(self, text: str) -> str:
        """Return a text for a message: one line, without the key."""
        if key := os.environ.get(KEY_VARIABLE):
            text = text.replace(key, "***")
        return clip(make_printable(text), _MESSAGE_WIDTH)

    def _parse(self, content: bytes) -> EndpointAnswer:
        try:
            record = parse_json(content)
        except ValueError:
            cause = "answers invalid JSON instead of a chat completion"
            raise _AttemptError(cause, of_the_text=True) from None
        try:
            choices = [_parse_choice(choice) for choice in record["choices"]]
        except (KeyError, TypeError, AttributeError):
            cause = "answers JSON without `choices[].message.content`"
            raise _AttemptError(cause, of_the_text=True) from None
        if len(choices) != self.n_best:
            cause = f"gives {len(choices)} translations instead of {self.n_best}"
            raise _AttemptError(cause, of_the_text=not choices)
        if complete := tuple(text for text, end in choices if end == _COMPLETE):
            return EndpointAnswer(complete)
        end = choices[0][1]
        problem = CUT if end == "length" else f"translation ended by `{self._mask_key(end)}`"
        return EndpointAnswer(problem=problem)

    def _build_error(self, problem: str) -> UserError:
        return UserError(
            f"{self._address}: {problem}; what was answered is kept, the same command continues"
        )


def _parse_choice(choice: Any) -> tuple[str, str]:
    """Return the text of a choice and the reason for its end; an incomplete text is ""."""
    end = as_text(choice.get("finish_reason") or _COMPLETE)
    if end != _COMPLETE:
        return "", end
    message = choice["message"]
    if message.get("refusal"):
        return "", "refusal"
    return as_text(message["content"] or ""), end


def parse_json(text: str | bytes) -> Any:
    """Return a JSON value; raise ValueError for invalid JSON and for deeply nested values."""
    try:
        return json.loads(text)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


def as_text(value: object) -> str:
    """Return a text of JSON without white space around it; lone surrogates become U+FFFD.

    Raises TypeError unless the value is a text.
    """
    if not isinstance(value, str):
        raise TypeError("not a text")
    return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace").strip()
