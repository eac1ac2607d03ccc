"""What sets the runs themselves apart: config, data, size, versions, course of the training."""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mt.compare.systems import System
from mt.evaluation.run_info import RunInfo, read_info
from mt.runs import JOURNAL_FILE


@dataclass(frozen=True, slots=True)
class Difference:
    """Something that is not the same in all runs."""

    group: str
    """`config`, `data`, `model` or `environment`."""
    key: str
    values: tuple[str | None, ...]
    """Of each system; None of one that does not tell, such as a text file."""


@dataclass(frozen=True, slots=True)
class Curve:
    """A number of one run in the course of its training."""

    system: int
    """Its place among the systems."""
    key: str
    """A key of `CURVES`."""
    points: tuple[tuple[int, float], ...]
    """Updates, and the value."""


CURVES = {"bleu": "BLEU on validation", "loss": "loss on validation"}


def find_differences(systems: Sequence[System]) -> list[Difference]:
    """Return what differs between the runs and exported models among the systems.

    Only a config tells all: what else one of them does not tell, such as an exported model how
    long it was trained, is no difference.
    """
    facts = [dict(_facts(system)) if system.folder else {} for system in systems]
    known = [told for told in facts if told]
    keys = dict.fromkeys(key for told in known for key in told)
    return [
        Difference(*key, values=tuple(told.get(key) for told in facts))
        for key in keys
        if len({told.get(key) for told in known if key in told or key[0] == "config"}) > 1
    ]


def read_curves(systems: Sequence[System]) -> list[Curve]:
    """Return what the journals of the runs tell of their validations."""
    found = []
    for place, system in enumerate(systems):
        events = list(_validations(system.folder / JOURNAL_FILE)) if system.folder else []
        for key in CURVES:
            points = tuple(
                (int(event["update"]), float(event[key]))
                for event in events
                if math.isfinite(event.get(key, math.nan))  # NaN comes of a training gone wrong
            )
            if points:
                found.append(Curve(place, key, points))
    return found


_Key = tuple[str, str]


def _facts(system: System) -> Iterator[tuple[_Key, str]]:
    """Yield all that could differ, by group and key."""
    assert system.folder is not None
    info = read_info(system.folder)
    config = info.config.model_dump(mode="json", by_alias=True)
    config["decoding"] = dict(system.decoding)
    config["data"]["tests"] = ", ".join(info.config.data.tests)  # what is compared is the same
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
        for what, value in (
            ("pairs", corpus.pairs),
            ("sha256 of the source side", corpus.sha256_source),
            ("sha256 of the target side", corpus.sha256_target),
        ):
            if value is not None:
                yield ("data", f"{corpus.split}: {what}"), str(value)


def _model(info: RunInfo) -> Iterator[tuple[_Key, str]]:
    if info.tokenizer:
        yield ("model", "tokenizer"), info.tokenizer.fingerprint
        yield ("model", "source vocabulary"), str(info.tokenizer.source_size)
        yield ("model", "target vocabulary"), str(info.tokenizer.target_size)
    if info.model:
        yield ("model", "parameters"), f"{info.model.parameters:,}"
        yield ("model", "bytes"), f"{info.model.bytes:,}"
        yield ("model", "updates"), str(info.model.updates)
        yield ("model", "averaged updates"), ", ".join(map(str, info.model.averaged_updates))
        yield ("model", "weights"), info.model.sha256
        yield ("model", "quantization"), "none"
    if info.exported:
        yield ("model", "weights"), info.exported.weights
        yield ("model", "quantization"), info.exported.quantization


def _validations(journal: Path) -> Iterator[Mapping[str, Any]]:
    """Yield the validations of a journal; a line that a full disk has cut short is none."""
    if not journal.is_file():
        return
    for line in journal.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            event = json.loads(line)
        except ValueError:
            continue
        if isinstance(event, dict) and event.get("event") == "validation":
            yield event
