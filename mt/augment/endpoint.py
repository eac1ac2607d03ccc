"""Client of an OpenAI-compatible chat endpoint, one request for each source."""

import os
import random
import time
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from threading import Event
from typing import Any, ClassVar
from urllib.parse import urlsplit

from mt.augment.candidates import Answer, as_text, parse_json
from mt.augment.teacher import CUT
from mt.errors import UserError, install_hint
from mt.languages import language_name
from mt.tables import clip, printable

KEY_VARIABLE = "MT_TEACHER_KEY"
PROMPT = (
    "Translate the following text from {source_language} into {target_language}. Reply with the "
    "translation alone, without quotation marks, notes or explanations.\n\n{text}"
)
_TEXT = "{text}"
_PATH = "/chat/completions"
TRIES = 5
_FIRST_WAIT = 1.0
"""Seconds before the second try; each further wait is twice as long."""
_LONGEST_WAIT = 600.0
_MOST_BYTES = 10_000_000
_MESSAGE_WIDTH = 200
_COMPLETE = "stop"
"""Reason for the end of a complete translation."""
_FAILURES = 5
"""Failed sources in a row that end the work."""
_OF_THE_TEXT = {
    HTTPStatus.BAD_REQUEST,
    HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
    HTTPStatus.UNPROCESSABLE_ENTITY,
}
"""Statuses that may be due to one source, for example by a filter of contents."""
_TEMPORARY = {
    HTTPStatus.REQUEST_TIMEOUT,
    HTTPStatus.CONFLICT,
    HTTPStatus.TOO_EARLY,
    HTTPStatus.TOO_MANY_REQUESTS,
}


class _FailedError(Exception):
    """Failed request; the text is the cause."""

    def __init__(self, cause: str, *, again: bool = True, of_the_text: bool = False) -> None:
        super().__init__(cause)
        self.again = again
        """True if another try may succeed."""
        self.of_the_text = of_the_text
        """True if other sources may succeed."""
        self.wait = 0.0
        """Seconds to wait, as the endpoint asks."""


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
    timeout: float = 60.0
    """Seconds for a whole answer."""
    at_once: int = 8
    """Requests under way."""
    window: ClassVar[int] = 16
    """Unit of lines in which shards divide the sources."""
    _stopped: Event = field(default_factory=Event, compare=False, repr=False)

    def check(self) -> None:
        """Raise UserError for an unsuitable setting, or if httpx2 is not installed."""
        try:
            import httpx2  # an optional package
        except ModuleNotFoundError as error:
            raise UserError(f"--teacher-url needs httpx2: {install_hint('teacher')}") from error
        try:
            parts = urlsplit(self.url)
            httpx2.URL(self.url)
        except (ValueError, httpx2.InvalidURL):
            raise UserError("--teacher-url: is not a valid URL") from None
        if parts.scheme not in {"http", "https"} or not parts.hostname:
            raise UserError("--teacher-url: must begin with https:// or http:// and a host")
        if parts.username or parts.password or parts.query or parts.fragment:
            shown = f"{parts.scheme}://{parts.hostname}"
            raise UserError(
                f"--teacher-url {shown}...: must be an address without user, password and query; a "
                f"key belongs into the environment variable {KEY_VARIABLE}"
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

    def answers(self, sources: Iterable[str], languages: tuple[str, str]) -> Iterator[Answer]:
        """Yield the answer for each source, in order; several requests are under way.

        A source that the endpoint declines, or does not answer in time, has a problem. Raises
        UserError, naming URL and cause, if the endpoint itself fails, or several sources in a row.
        """
        failed: list[Answer] = []
        succeeded = False
        for answer in self._in_order(sources, languages):
            if not answer.problem:
                yield from failed
                yield answer
                failed, succeeded = [], True
                continue
            failed.append(answer)
            if len(failed) == _FAILURES:
                raise self._error(answer.problem)
        if failed and not succeeded:
            raise self._error(failed[-1].problem)
        yield from failed

    def _in_order(self, sources: Iterable[str], languages: tuple[str, str]) -> Iterator[Answer]:
        import httpx2

        key = os.environ.get(KEY_VARIABLE)
        client = httpx2.Client(
            headers={"Authorization": f"Bearer {key}"} if key else {},
            timeout=self.timeout,
            limits=httpx2.Limits(max_connections=self.at_once),
        )
        self._stopped.clear()
        pending: deque[Future[Answer]] = deque()
        with client, ThreadPoolExecutor(self.at_once) as pool:
            try:
                for source in sources:
                    pending.append(pool.submit(self._ask, client, self._body(source, languages)))
                    if len(pending) >= 2 * self.at_once:
                        yield pending.popleft().result()
                while pending:
                    yield pending.popleft().result()
            finally:
                self._stopped.set()
                pool.shutdown(wait=False, cancel_futures=True)

    def _body(self, source: str, languages: tuple[str, str]) -> dict[str, Any]:
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

    def _ask(self, client: Any, body: dict[str, Any]) -> Answer:
        """Return the answer, after waits and further tries if necessary."""
        wait = _FIRST_WAIT
        for tried in range(1, TRIES + 1):
            try:
                return self._ask_once(client, body)
            except _FailedError as error:
                if tried == TRIES or not error.again:
                    times = f", {tried} times" if tried > 1 else ""
                    problem = f"{error}{times}"
                    if error.of_the_text:
                        return Answer(problem=problem)
                    raise self._error(problem) from None
                # The spread keeps requests apart that have failed together.
                if self._stopped.wait(max(error.wait, wait * random.uniform(0.75, 1.25))):
                    raise
                wait *= 2
        raise AssertionError("the last try returns or raises")

    def _ask_once(self, client: Any, body: dict[str, Any]) -> Answer:
        import httpx2

        end = time.monotonic() + self.timeout
        late = _FailedError(f"no answer within {self.timeout:g} seconds", of_the_text=True)
        content = b""
        try:
            with client.stream("POST", self._address, json=body) as response:
                for chunk in response.iter_bytes():
                    content += chunk
                    if time.monotonic() > end:
                        raise late
                    if len(content) > _MOST_BYTES:
                        raise _FailedError(f"an answer of more than {_MOST_BYTES:,} bytes")
        except httpx2.ConnectTimeout:
            raise _FailedError(f"no connection within {self.timeout:g} seconds") from None
        except httpx2.TimeoutException:
            raise late from None
        except httpx2.RequestError as error:
            raise _FailedError(self._safe(f"{error}" or type(error).__name__)) from None
        status, headers = response.status_code, response.headers
        if status != HTTPStatus.OK:
            raise self._failed(status, headers, content)
        return self._answer(content, headers)

    @property
    def _address(self) -> str:
        url = self.url.rstrip("/")
        return url if url.endswith(_PATH) else url + _PATH

    def _failed(self, status: int, headers: Any, content: bytes) -> _FailedError:
        if HTTPStatus.MULTIPLE_CHOICES <= status < HTTPStatus.BAD_REQUEST:
            place = self._safe(headers.get("location", "another address"))
            return _FailedError(f"status {status}, redirects to {place}; name that", again=False)
        cause = f"status {status}"
        if status in {HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN}:
            has_key = bool(os.environ.get(KEY_VARIABLE))
            cause += f", {'refuses the key in' if has_key else 'needs a key in'} {KEY_VARIABLE}"
        if message := self._message(content):
            cause += f" ({message})"
        error = _FailedError(
            cause,
            again=status in _TEMPORARY or status >= HTTPStatus.INTERNAL_SERVER_ERROR,
            of_the_text=status in _OF_THE_TEXT,
        )
        error.wait = _seconds(headers.get("retry-after", ""))
        if error.wait > _LONGEST_WAIT:
            wait = f"{cause}, asks for a wait of {error.wait:,.0f} seconds"
            return _FailedError(wait, again=False)
        return error

    def _message(self, content: bytes) -> str:
        """Return the error message of the endpoint, "" without one."""
        try:
            error = parse_json(content)["error"]
            return self._safe(as_text(error["message"] if isinstance(error, dict) else error))
        except (ValueError, KeyError, TypeError):
            return ""

    def _safe(self, text: str) -> str:
        """Return a text for a message: one line, without the key."""
        if key := os.environ.get(KEY_VARIABLE):
            text = text.replace(key, "***")
        return clip(printable(text), _MESSAGE_WIDTH)

    def _answer(self, content: bytes, headers: Any) -> Answer:
        try:
            record = parse_json(content)
        except ValueError:
            kind = headers.get("content-type", "").partition(";")[0].strip()
            found = "HTML" if kind == "text/html" else "invalid JSON"
            raise _FailedError(f"answers {found} instead of a chat completion") from None
        try:
            choices = [_choice(each) for each in record["choices"]]
            usage = record.get("usage") or {}
            counts = [_count(usage.get(f"{side}_tokens")) for side in ("prompt", "completion")]
        except (KeyError, TypeError, AttributeError):
            wanted = "`choices[].message.content`"
            raise _FailedError(f"answers JSON without {wanted}") from None
        if len(choices) != self.n_best:
            hint = "; ask for one with --n-best 1" if self.n_best > 1 else ""
            raise _FailedError(f"gives {len(choices)} translations instead of {self.n_best}{hint}")
        if complete := tuple(text for text, end in choices if end == _COMPLETE):
            return Answer(complete, "", *counts)
        end = choices[0][1]
        problem = CUT if end == "length" else f"translation ended by `{self._safe(end)}`"
        return Answer((), problem, *counts)

    def _error(self, problem: str) -> UserError:
        return UserError(
            f"{self._address}: {problem}; what was answered is kept, the same command continues"
        )


def _choice(choice: Any) -> tuple[str, str]:
    """Return the text of a choice and the reason for its end; an incomplete text is ""."""
    end = as_text(choice.get("finish_reason") or _COMPLETE)
    if end != _COMPLETE:
        return "", end
    message = choice["message"]
    return as_text(message["content"] or message.get("refusal") or ""), end


def _count(tokens: Any) -> int:
    """Return a number of tokens, 0 without a valid one."""
    return tokens if isinstance(tokens, int) else 0


def _seconds(retry_after: str) -> float:
    """Return the seconds of a `Retry-After` header, a number or a date; 0 without one."""
    try:
        return max(0.0, float(retry_after))
    except ValueError:
        pass
    try:
        return max(0.0, parsedate_to_datetime(retry_after).timestamp() - time.time())
    except ValueError:
        return 0.0
