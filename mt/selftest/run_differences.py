"""Whether two run folders hold the same training, bit for bit."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mt.files import file_sha256
from mt.training.checkpoint import STATE
from mt.training.run_folder import RunFolder

# What a line of the journal says about the training; the rest is about the clock and the machine.
_JOURNALLED = {
    "train": (
        "epoch",
        "loss",
        "nll",
        "learning_rate",
        "gradient_norm",
        "target_tokens",
        "skipped_updates",
    ),
    "validation": ("epoch", "target_tokens", "loss", "bleu", "chrf"),
    "final": ("averaged_updates", "loss", "bleu", "chrf"),
}


def run_differences(found: Path, expected: Path) -> list[str]:
    """Return, a line each, in what a finished run is another training than a second one.

    Compared are the journals' numbers update by update, the final weights, and in each checkpoint
    that was kept the weights, the optimiser, the random generators and where the run stands. The
    loss of each update shows the order of the data, too: other sentences have another loss.

    A run that was killed comes by the same update more than once, and must see the same there.
    """
    return [
        *_differing(_journal(found), _journal(expected)),
        *_differing(_checkpoints(found), _checkpoints(expected)),
        *_differing(_final(found), _final(expected)),
    ]


def _differing(found: dict[str, str], expected: dict[str, str]) -> Iterator[str]:
    for name in [*expected, *(name for name in found if name not in expected)]:
        here, there = found.get(name, "nothing"), expected.get(name, "nothing")
        if here != there:
            yield f"{name}: {here} instead of {there}"


def _journal(run: Path) -> dict[str, str]:
    """Return the values of each update by event; all of them where its lines disagree."""
    told: dict[str, list[str]] = {}
    for line in RunFolder(run).metrics.read_text(encoding="utf-8").splitlines():
        event = _parsed(line)
        for key in _JOURNALLED.get(event.get("event", ""), ()):
            name = f"{event['event']}, update {event['update']}, {key}"
            values = told.setdefault(name, [])
            if (value := json.dumps(event.get(key))) not in values:
                values.append(value)
    return {name: " and ".join(values) for name, values in told.items()}


def _parsed(line: str) -> dict[str, Any]:
    """Return a line's event; none for what a kill has cut short."""
    try:
        event: dict[str, Any] = json.loads(line)
    except ValueError:
        return {}
    # The last line of a run names no update, since there is but one.
    return {"update": "the last", **event}


def _checkpoints(run: Path) -> dict[str, str]:
    """Return the SHA-256 of every checkpoint's tensors, and where its run stands."""
    held = {}
    checkpoints = RunFolder(run).checkpoints
    for update in checkpoints.updates():
        path, name = checkpoints.path(update), f"checkpoint of update {update}"
        for file in sorted(path.glob("*.safetensors")):
            held[f"{name}, {file.name}"] = file_sha256(file)
        written = json.loads((path / STATE).read_text(encoding="utf-8"))
        numbers = {**written.pop("state"), **written}
        for key in sorted(numbers.keys() - {"elapsed_seconds"}):
            held[f"{name}, {key}"] = json.dumps(numbers[key])
    return held


def _final(run: Path) -> dict[str, str]:
    folder = RunFolder(run)
    described = json.loads(folder.model.read_text(encoding="utf-8"))
    return {
        folder.weights.name: file_sha256(folder.weights),
        "updates": str(described["updates"]),
        "averaged updates": str(described["averaged_updates"]),
    }
