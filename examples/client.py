"""Translate texts with a running server, with the standard library alone.

mt serve runs/quickstart
python examples/client.py http://localhost:8000 "We go to the hotel by bus every weekend."
"""

import json
import sys
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen


def translate(server: str, texts: list[str], key: str | None = None) -> list[dict[str, Any]]:
    """Return the translation of each text, with its `text`, `status`, `score` and `notes`.

    `key` is one of the server's `--api-key-file`. Raises RuntimeError with the server's reason.
    """
    headers = {"Content-Type": "application/json"}
    if key is not None:
        headers["Authorization"] = f"Bearer {key}"
    body = json.dumps({"texts": texts}).encode()
    try:
        with urlopen(Request(f"{server}/translate", body, headers), timeout=60) as answer:
            translations: list[dict[str, Any]] = json.load(answer)["translations"]
    except HTTPError as error:
        raise RuntimeError(f"{server}: {error.read().decode()}") from error
    return translations


if __name__ == "__main__":
    for translation in translate(sys.argv[1], sys.argv[2:]):
        print(translation["text"], *translation["notes"], sep="\t")
