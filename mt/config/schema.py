"""The JSON schema of a configuration file, for editors: completion, help and typing errors."""

import json
import sys

from mt.config.root import Config


def json_schema() -> str:
    """Return the schema as JSON text (draft 2020-12); `docs/config.schema.json` holds it.

    `python -m mt.config.schema > docs/config.schema.json` writes it anew.
    """
    schema = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **Config.model_json_schema(by_alias=True),
    }
    return json.dumps(schema, ensure_ascii=False, indent=2) + "\n"


if __name__ == "__main__":
    sys.stdout.write(json_schema())
