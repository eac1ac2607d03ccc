"""Passport of a score: JSON with the hashes of all inputs, from which `--check` scores again.

A relative path in a passport starts at the folder of the passport. A seal, the SHA-256 of the
record, makes a change of the passport itself visible.
"""

import hashlib
import json
import logging
import os
import platform
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from importlib.metadata import version
from itertools import islice
from pathlib import Path
from typing import Any

from mt import __version__
from mt.data.corpus_files import LineReader
from mt.data.filters import model_version
from mt.data.pairs import PairSource
from mt.data.sources import TextPairs
from mt.data.splits import open_split
from mt.errors import RunError, UserError
from mt.evaluation.robustness import RobustnessCard, score_variants, variant_of
from mt.evaluation.run_info import PASSPORT_SUFFIX, choose_split, read_config, weights_sha256
from mt.evaluation.scores import Evaluation, evaluate, off_target
from mt.files import file_sha256, read_json, regular_file, write_text
from mt.runs import (
    CONFIG_FILE,
    EXPORT_FILE,
    EXPORTED_MODEL,
    MODEL_FILE,
    TOKENIZER_FOLDER,
    WEIGHTS_FILE,
    exported_details,
    is_exported,
    read_exported,
)

PASSPORT_FORMAT = 2
"""Format 1 did not include the config of a run."""

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Input:
    """File or corpus side that a score was computed from."""

    role: str
    """`sources`, `references`, `hypotheses`, `variant` (perturbed sources), `model`, `description`
    (of a model), `config` or `tokenizer`."""
    path: str
    """Path, or the description of a corpus without files."""
    lines: int | None
    """Number of lines of a text; None for other files."""
    sha256: str
    """Hash of the file, or of one side of a corpus that holds both in one file."""


@dataclass(frozen=True, slots=True)
class Check:
    """Result of `check_passport`: lines to print, and the verdict."""

    text: str
    passed: bool


def default_place(hypotheses: Path, others: Sequence[Path]) -> Path | None:
    """Return the path of the passport of a file of translations: next to it.

    Return None if a file is missing, and None with a warning if a text is a pipe or the folder is
    not writable.
    """
    texts = [hypotheses, *others]
    if not all(path.exists() for path in texts):
        return None
    if all(path.is_file() for path in texts) and os.access(hypotheses.parent, os.W_OK):
        return hypotheses.with_name(f"{hypotheses.name}{PASSPORT_SUFFIX}")
    _logger.warning("note: %s: no passport can be written next to this file", hypotheses)
    return None


def check_place(path: Path) -> None:
    """Raise UserError unless `path` is free or holds a passport, in an existing folder."""
    if not path.parent.is_dir():
        raise UserError(f"{path}: there is no folder {path.parent}")
    if not path.exists():
        return
    with suppress(RunError):
        if "seal" in read_json(path, dict[str, Any]):
            return
    raise UserError(f"{path}: exists and is not a passport of mt; choose another file name")


def file_input(role: str, path: Path, *, lines: int | None, beside: Path) -> Input:
    """Describe a file for a passport in the folder `beside`."""
    return Input(role, str(_seen_from(beside, path)), lines, file_sha256(regular_file(path)))


def corpus_inputs(source: PairSource, *, lines: int, beside: Path) -> tuple[Input, Input]:
    """Describe both sides of a corpus for a passport in the folder `beside`."""
    if isinstance(source, TextPairs):
        described = partial(file_input, lines=lines, beside=beside)
        return described("sources", source.source), described("references", source.target)
    sums = source.checksums()
    return (
        Input("sources", source.description, lines, sums.source),
        Input("references", source.target_description, lines, sums.target),
    )


def model_inputs(run: Path, ensemble: Sequence[Path], *, beside: Path) -> Iterator[Input]:
    """Describe the models, configs and tokenizer of a run or export, and of its ensemble.

    The hashes of weights are the recorded ones, which loading the model has verified.
    """
    described = partial(file_input, lines=None, beside=beside)
    for member in (run, *ensemble):
        if is_exported(member):
            name, sha256, description = EXPORTED_MODEL, read_exported(member).model, EXPORT_FILE
            yield from (described("description", path) for path in exported_details(member))
        else:
            name, sha256, description = WEIGHTS_FILE, weights_sha256(member), MODEL_FILE
        yield Input("model", str(_seen_from(beside, member / name)), None, sha256)
        yield described("description", member / description)
        yield described("config", member / CONFIG_FILE)
    for path in sorted((run / TOKENIZER_FOLDER).glob("*")):
        yield described("tokenizer", path)


def _seen_from(folder: Path, path: Path) -> Path:
    if path.is_absolute():
        return path
    seen = Path(os.path.relpath(path, folder))
    if (folder / seen).resolve() == path.resolve():
        return seen
    # `..` leads elsewhere if `folder` is reached through a symbolic link.
    return Path(os.path.relpath(path.resolve(), folder.resolve()))


def write_passport(path: Path, record: Mapping[str, Any], inputs: Sequence[Input]) -> None:
    """Write `record`, the inputs and the versions of the programs as sealed JSON."""
    versions = {"mt": __version__, "python": platform.python_version()}
    whole = {
        "format": PASSPORT_FORMAT,
        **record,
        "inputs": [asdict(each) for each in inputs],
        "versions": {**versions, "sacrebleu": version("sacrebleu")},
    }
    write_text(path, _sealed(whole))


def read_passport(path: Path) -> dict[str, Any] | None:
    """Return the record of a passport; None if it is not a passport or was edited."""
    try:
        record = read_json(path, dict[str, Any])
        del record["seal"]
    except (RunError, KeyError):
        return None
    return record if path.read_bytes() == _sealed(record).encode() else None


def _sealed(record: Mapping[str, Any]) -> str:
    as_json = partial(json.dumps, ensure_ascii=False, indent=2)
    seal = hashlib.sha256(f"{as_json(record)}\n".encode()).hexdigest()
    return f"{as_json({**record, 'seal': seal})}\n"


def check_passport(path: Path) -> Check:
    """Verify every hash of a passport and compute its scores again.

    The kept translations are scored; nothing is translated. Raises DataError if the passport is
    missing or its scores need a package that is not installed, UserError for another format.
    """
    record = read_passport(regular_file(path))
    if record is None:
        return Check(f"FAIL: {path}: was edited, or is not a passport of mt", passed=False)
    if record["format"] != PASSPORT_FORMAT:
        raise UserError(
            f"{path}: has format {record['format']}, but this version of mt reads format "
            f"{PASSPORT_FORMAT}; evaluate again"
        )
    if "off_target" in record:
        model_version()  # raises DataError without the package that identifies languages
    failures = changed_inputs(path, record) or list(_changed_scores(path, record))
    if failures:
        return Check("\n".join(f"FAIL: {failure}" for failure in failures), passed=False)
    count = len(record["inputs"])
    return Check(f"{path}: {count} inputs are unchanged, all scores are confirmed", passed=True)


def changed_inputs(path: Path, record: Mapping[str, Any]) -> list[str]:
    """Return one line for each input of a passport that is missing or has changed."""
    failures = []
    inputs = [Input(**each) for each in record["inputs"]]
    sides: dict[str, Input] = {}
    if not _names_all_texts(record):
        try:
            source = _split_of(path, record)
            found = corpus_inputs(source, lines=record["sentences"], beside=path.parent)
            sides = {side.role: side for side in found}
        except UserError as error:
            failures.append(str(error))
            inputs = [each for each in inputs if each.role not in {"sources", "references"}]
    for each in inputs:
        side = sides.get(each.role)
        place = path.parent / (side.path if side else each.path)
        name = side.path if side and not place.is_file() else os.path.normpath(place)
        if side is None and not place.is_file():
            failures.append(f"{name}: no such file")
        elif (sha256 := side.sha256 if side else file_sha256(place)) != each.sha256:
            failures.append(
                f"{name}: has changed; its SHA-256 is {sha256}, in the passport {each.sha256}"
            )
    return failures


def _names_all_texts(record: Mapping[str, Any]) -> bool:
    """Return False for a split of a run, whose texts are found through the config."""
    return "split" not in record or record.get("given_texts", False)


def _split_of(path: Path, record: Mapping[str, Any]) -> PairSource:
    """Open the split of the run that the passport at `path` belongs to."""
    data = read_config(path.parent.parent).data
    return open_split(data, choose_split(data, record["split"]))


def _changed_scores(path: Path, record: Mapping[str, Any]) -> Iterator[str]:
    """Yield one line for each score that is not confirmed."""
    try:
        now = _score_again(path, record).as_record()
    except UserError as error:
        yield str(error)
        return
    before, after = dict(_scores_in(record)), dict(_scores_in(now))
    for name in {**after, **before}:
        if before.get(name) != after.get(name):
            yield (
                f"{path}: {name} is {after.get(name, 'missing')} now, "
                f"{before.get(name, 'missing')} in the passport"
            )


def _scores_in(record: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield names and numbers of scores, without versions: other versions may confirm a score."""
    for key, value in record.items():
        if isinstance(value, dict) and value.keys() & {"score", "rate"}:
            kept = {name: each for name, each in value.items() if name != "identifier"}
            yield key, re.sub(r"\|version:[^|\"]*", "", json.dumps(kept, ensure_ascii=False))
    for variant in record.get("variants", ()):
        for key, shown in _scores_in(variant):
            yield f"{key} of `{variant['name']}`", shown


def _score_again(path: Path, record: Mapping[str, Any]) -> Evaluation | RobustnessCard:
    settings, language, count = record["settings"], record["target_language"], record["sentences"]
    texts = _read_texts(path, record)
    scored: dict[str, Any] = {"target_language": language, "tokenizer": settings["bleu_tokenizer"]}
    if any(len(lines) < count for lines in (texts["hypotheses"][0], *texts["references"])):
        raise UserError(f"{path}: names {count} sentences, but a text has fewer lines")
    if "variants" in record:
        forms = [
            variant_of(
                each["name"], lines, references=texts["references"], target_language=language
            )
            for each, lines in zip(record["variants"], texts["variant"], strict=True)
        ]
        made = texts["hypotheses"]
        evaluations = score_variants(forms, made, forced=settings["forced"], **scored)
        return RobustnessCard(record["split"], evaluations, left_out=())
    scored |= {name: settings[name] for name in ("metrics", "resamples")}
    evaluation = evaluate(texts["hypotheses"][0], texts["references"], **scored)
    if "off_target" in record:
        sides = texts["hypotheses"][0], texts["references"][0]
        evaluation = replace(evaluation, off_target=off_target(*sides, target_language=language))
    return evaluation.marked("forced", settings["forced"])


def _read_texts(path: Path, record: Mapping[str, Any]) -> dict[str, list[list[str]]]:
    """Return the texts of each role, up to the number of lines that were scored."""
    texts: dict[str, list[list[str]]] = {"hypotheses": [], "variant": [], "references": []}
    read = set(texts)
    if not _names_all_texts(record):
        read.remove("references")
        texts["references"] = [[pair.target for pair in _split_of(path, record).pairs()]]
    for each in record["inputs"]:
        if each["role"] in read:
            lines = islice(LineReader(path.parent / each["path"]), record["sentences"])
            texts[each["role"]].append(list(lines))
    return texts
