"""The JSON schema that editors read."""

import json
import subprocess
import sys
from pathlib import Path

from mt.config.loading import json_schema
from mt.config.problems import ANY_NAME, all_places
from mt.config.root import Config

FILE = Path(__file__).parents[2] / "docs" / "config.schema.json"


def test_the_committed_schema_is_the_current_one() -> None:
    assert FILE.read_text(encoding="utf-8") == json_schema(), (
        "write it anew: python -m mt.config.loading > docs/config.schema.json"
    )


def test_the_module_prints_it() -> None:
    printed = subprocess.run(
        [sys.executable, "-m", "mt.config.loading"], capture_output=True, check=True, text=True
    )
    assert printed.stdout == json_schema()


def test_every_key_has_its_help_in_the_schema() -> None:
    schema = json.loads(json_schema())
    sections = {"": schema, **schema["$defs"]}
    described = {
        (key, field["description"])
        for section in sections.values()
        for key, field in section.get("properties", {}).items()
    }
    for place in all_places(Config):
        assert place.keys[-1] != ANY_NAME
        assert place.field is not None
        assert (place.keys[-1], place.field.description) in described


def test_an_editor_refuses_unknown_keys() -> None:
    schema = json.loads(json_schema())
    for section in (schema, *schema["$defs"].values()):
        assert section["additionalProperties"] is False
    assert schema["required"] == ["data"]
