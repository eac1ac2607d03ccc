"""Example of a client: it speaks the server's API with the standard library alone."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mt.decoding.translator import Translator
from tests.factories import load_script

CLIENT = Path(__file__).parent.parent.parent / "examples" / "client.py"


def test_client_translates_and_reports_a_refusal(
    serve: Callable[..., Any], backwards: Callable[..., Translator]
) -> None:
    client = load_script(CLIENT)
    address = f"http://127.0.0.1:{serve(backwards()).port}"
    answers = client.translate(address, ["abc", "de"])
    assert [answer["text"] for answer in answers] == ["cba", "ed"]
    with pytest.raises(RuntimeError, match="the limit is"):
        client.translate(address, ["a"] * 1000)
