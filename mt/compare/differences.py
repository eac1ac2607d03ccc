"""Differences between runs: config, data, model, versions, validation curves."""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mt.compare.systems import System
from mt.evaluation.run_info import RunInfo, read_events, read_info
from mt.runs import JOURNAL_FILE


@dataclass(frozen=True, slots=True)
class Difference:
    """Property that differs between the systems."""

    group: str
    """`config`, `data`, `model` or `environment`."""
    key: str
    values: tuple[str | None, ...]
    """Value of each system; None if unknown, as for a file of translations."""


@dataclass(frozen=True, slots=True)
class Curve:
    """Validation results of one run over its updates."""

    system: int
    """Index of the system."""
    key: str
    """Key of `CURVES`."""
    points: tuple[tuple[int, float], ...]
    """Pairs of update and value."""


CURVES = {"bleu": "BLEU on validation", "loss": "loss on validation"}


def find_differences(systems: Sequence[System]) -> list[Difference]:
    """Return the differences between the runs and exports among the systems.

    A missing config key is a difference. Any other property that is missing in one folder, such as
    the number of updates of an export, is not.
    """
    facts = [dict(_facts(system)) if system.folder else {} for system in systems]
    known = [each for each in facts if each]
    keys = dict.fromkeys(key for each in known for key in each)
    return [
        Difference(*key, values=tuple(each.get(key) for each in facts))
        for key in keys
        if len({each.get(key) for each in known if key in each or key[0] == "config"}) > 1
    ]


def read_curves(systems: Sequence[System]) -> list[Curve]:
    """Read the validation curves in the journals of the runs."""
    found = []
    for place, system in enumerate(systems):
        events = list(read_events(system.folder / JOURNAL_FILE)) if system.folder else []
        for key in CURVES:
            points = tuple(
                (int(event["update"]), float(event[key]))
                for event in events
                if event.get("event") == "validation" and math.isfinite(event.get(key, math.nan))
            )
            if points:
                found.append(Curve(place, key, points))
    return found


_Key = tuple[str, str]


def _facts(system: System) -> Iterator[tuple[_Key, str]]:
    """Yield the properties of a run or export by group and key."""
    assert system.folder is not None
    info = read_info(system.folder)
    config = info.config.model_dump(mode="json", by_alias=True)
    config["decoding"] = dict(system.decoding)
    config["data"]["tests"] = ", ".join(info.config.data.tests)  # paths may differ
    for key, value in _flat("", config):
        yield ("config", key), value
    yield from _data(info)
    yield from _model(info)
    for key in ("mt", "python", "torch", "device", "precision", "processor"):
        if (value := getattr(info.environment, key)) is not None:
            yield ("environment", key), str(value)


def _flat(prefix: str, value: Any) -> Iterator[tuple[str, str]]:
    if isinstance(value, Mapping) and value:
        for key, inner in value.items():
            yield from _flat(f"{prefix}.{key}" if prefix else key, inner)
    elif value is not None:
        yield prefix, value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _data(info: RunInfo) -> Iterator[tuple[_Key, str]]:
    for corpus in info.corpora:
        if corpus.split.startswith("tests."):
            continue
        for name, value in (
            ("pairs", corpus.pairs),
            ("sha256 of the source side", corpus.sha256_source),
            ("sha256 of the target side", corpus.sha256_target),
        ):
            if value is not None:
                yield ("data", f"{corpus.split}: {name}"), str(value)


def _model(info: RunInfo) -> Iterator[tuple[_Key, str]]:
    if tokenizer := info.tokenizer:
        yield ("model", "tokenizer"), tokenizer.fingerprint
        yield ("model", "source vocabulary"), str(tokenizer.source_size)
        yield ("model", "target vocabulary"), str(tokenizer.target_size)
    if model := info.model:
        yield ("model", "parameters"), f"{model.parameters:,}"
        yield ("model", "bytes"), f"{model.bytes:,}"
        yield ("model", "updates"), str(model.updates)
        yield ("model", "averaged updates"), ", ".join(map(str, model.averaged_updates))
        yield ("model", "weights"), model.sha256
        yield ("model", "quantization"), "none"
    if exported := info.exported:
        yield ("model", "weights"), exported.weights
        yield ("model", "quantization"), exported.quantization
