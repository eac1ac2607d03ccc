"""Print docs/keys.md, the reference of config keys: `python docs/keys.py > docs/keys.md`."""

import re
from collections.abc import Iterable
from typing import Any

from mt.config.problems import Place, all_places
from mt.config.root import Config

COMMON = (
    "data.source_language",
    "data.target_language",
    "data.train",
    "data.valid",
    "data.tests",
    "data.cleaning",
    "tokenizer.vocabulary_size",
    "model.preset",
    "model.d_model",
    "model.d_ff",
    "model.heads",
    "model.encoder_layers",
    "model.decoder_layers",
    "model.dropout",
    "training.budget",
    "training.max_updates",
    "training.max_epochs",
    "training.patience",
    "training.init_from",
    "training.learning_rate",
    "training.warmup_updates",
    "training.schedule",
    "training.target_tokens_per_update",
    "training.label_smoothing",
    "training.validate_every",
    "training.validation_pairs",
    "training.device",
    "training.average",
    "decoding.search",
    "decoding.beam",
    "decoding.length_penalty",
    "decoding.quantization",
    "seed",
)
"""Keys of the first table, in order."""
WORDS = {
    "integer": "whole number",
    "number": "number",
    "string": "text",
    "boolean": "`true`, `false`",
    "array": "list",
    "object": "section",
    "null": "`null`",
}
INTRODUCTION = """\
# Config keys

`make reference` writes this page. `--set model.dropout=0.3` sets a key for one command; in a config
it is `model: {dropout: 0.3}`. A key that is `auto` is chosen when training starts: `mt train`
prints the choice with its reason, and writes it into the `config.yaml` of the run.
[config.schema.json](config.schema.json) has the keys with their full descriptions for an editor."""


def describe_values(schema: dict[str, Any]) -> str:
    """Return the values that a JSON schema allows, for a cell of a table."""
    if "anyOf" in schema:
        return ", ".join(dict.fromkeys(map(describe_values, schema["anyOf"])))
    if "enum" in schema or "const" in schema:
        return ", ".join(f"`{value}`" for value in schema.get("enum", [schema.get("const")]))
    return WORDS[schema.get("type", "object")]


def table(places: Iterable[Place]) -> str:
    """Return the Markdown table of some keys."""
    lines = ["| key | values | default | meaning |", "| --- | --- | --- | --- |"]
    for place in places:
        assert place.section
        name = place.keys[-1]
        schema = place.section.model_json_schema(by_alias=True)
        entry = schema["properties"][name]
        default = entry.get("default", {})
        if name in schema.get("required", ()):
            shown = "required"
        elif isinstance(default, dict):
            shown = ""
        else:
            shown = "`null`" if default is None else f"`{str(default).lower()}`"
        meaning = re.split(r"(?<=\.) (?=[A-Z`])", " ".join(entry["description"].split()))[0]
        meaning = meaning.replace(".<language>", ".LANGUAGE")
        cells = [f"`{'.'.join(place.keys)}`", describe_values(entry), shown, meaning]
        lines.append("| " + " | ".join(cell.replace("|", r"\|") for cell in cells) + " |")
    return "\n".join(lines)


def main() -> None:
    """Print the page: the common keys, then all keys by section."""
    places = {".".join(place.keys): place for place in reversed(all_places(Config))}
    sections: dict[str, dict[tuple[str, str], Place]] = {}
    for place in all_places(Config):
        if place.field and len(place.keys) > 1:  # a key of several corpora is listed once
            shown = sections.setdefault(place.keys[0], {})
            shown.setdefault((place.keys[-1], place.field.description or ""), place)
    parts = [INTRODUCTION, "## Common keys", table(places[key] for key in COMMON)]
    for name, shown in sections.items():
        parts += [f"## `{name}`", table(shown.values())]
    print("\n\n".join(parts))


if __name__ == "__main__":
    main()
