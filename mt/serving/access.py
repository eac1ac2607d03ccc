"""Access to the server: API keys, and web pages of other origins."""

import hmac
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fastapi import HTTPException, Request
from starlette.middleware.cors import CORSMiddleware

from mt.errors import UserError
from mt.files import existing_file

ANY_ORIGIN = "*"
_ORIGIN = re.compile(r"([a-z][a-z0-9+.-]*://[^\s/?#@*]+)(.*)", re.DOTALL)
_KEY = re.compile(rb"[!-~]+")
_LARGEST_FILE = 1 << 20
_BEARER = re.compile(r"bearer +(\S+)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Access:
    """Permissions of a server: by default no key is needed, and no other origin is allowed."""

    keys: tuple[bytes, ...] = ()
    """Accepted API keys; empty: none is needed."""
    origins: tuple[str, ...] = ()
    """Other origins whose pages may use the server; `*` stands for all."""

    def check_origin(self, request: Request) -> None:
        """Raise HTTPException (403) for a request by a page of an origin that is not allowed.

        Browsers send the origin with each POST request. They also send simple requests of other
        origins without asking, and only hide the answers.
        """
        origin = request.headers.get("origin")
        if origin is None or ANY_ORIGIN in self.origins or origin in self.origins:
            return
        of_own_page = request.headers.get("sec-fetch-site") == "same-origin"
        own_host = request.headers.get("host", "").lower()
        if not of_own_page and origin.partition("://")[2].lower() != own_host:
            message = "pages of this origin may not use the server; see `mt serve --allow-origin`"
            raise HTTPException(403, message)

    def check_key(self, request: Request, *, missing: int, field: str | None = None) -> None:
        """Raise HTTPException unless the header or the field `api_key` has a key of the server.

        The status is `missing` without a key, and 403 for a wrong one.
        """
        if not self.keys:
            return
        header = _BEARER.fullmatch(request.headers.get("authorization", ""))
        given = field or (header and header[1])
        if not given:
            message = "an API key is needed: `Authorization: Bearer KEY`, or the field `api_key`"
            headers = {"WWW-Authenticate": "Bearer"} if missing == 401 else None
            raise HTTPException(missing, message, headers)
        sent = given.encode("utf-8", "surrogatepass")
        # All keys are compared, so that the time does not depend on the key that is given.
        equal = [hmac.compare_digest(sent, key) for key in self.keys]
        if not any(equal):
            raise HTTPException(403, "the API key is wrong")

    def add_to(self, app: Any) -> None:
        """Answer preflight requests of the allowed origins, and show them the answers."""
        if self.origins:
            app.add_middleware(
                CORSMiddleware,
                allow_origins=self.origins,
                allow_methods=("GET", "POST"),
                allow_headers=("Authorization", "Content-Type"),
            )


NO_KEY_OWN_ORIGIN = Access()


def read_access(key_file: Path | None, origins: Sequence[str]) -> Access:
    """Return the permissions from a file with a key per line and from the allowed origins.

    Blank lines of the file are skipped. Raises UserError for an origin with a path or without a
    scheme, and for a file without keys or with a line that is no key; a message contains no key.
    """
    return Access(_read_keys(key_file) if key_file else (), tuple(map(_read_origin, origins)))


def _read_keys(path: Path) -> tuple[bytes, ...]:
    keys = []
    with existing_file(path).open("rb") as file:
        content = file.read(_LARGEST_FILE)
    for number, line in enumerate(content.splitlines(), start=1):
        key = line.strip()
        if key and not _KEY.fullmatch(key):
            raise UserError(
                f"{path}: line {number} is not a key: a key has ASCII characters without spaces"
            )
        keys.append(key)
    if not any(keys):
        raise UserError(f"{path}: has no API key; write one per line")
    return tuple(filter(None, keys))


def _read_origin(origin: str) -> str:
    if origin == ANY_ORIGIN:
        return origin
    found = _ORIGIN.fullmatch(origin.lower())
    if found and not found[2]:
        return found[1]
    nearest = f"; did you mean `{found[1]}`?" if found else ", as in `https://example.org`"
    raise UserError(
        f"--allow-origin {origin}: an origin is a scheme and a host, with a port if needed{nearest}"
    )
