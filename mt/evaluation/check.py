"""Computing a score again from its passport: every file, and every digit."""

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mt.config.data import TextSource
from mt.data.lines import LineReader, existing_file
from mt.data.pairs import PairSource
from mt.data.sources import open_source
from mt.errors import UserError
from mt.evaluation.evaluate import choose_split, open_split, read_config
from mt.evaluation.passport import PASSPORT_FORMAT, Input, corpus_inputs, read_passport
from mt.evaluation.scores import Evaluation, evaluate
from mt.files import file_sha256


@dataclass(frozen=True, slots=True)
class Check:
    """What came of it; exit status 1 belongs to a failure."""

    text: str
    passed: bool


def check_passport(path: Path) -> Check:
    """Hold all that a passport names against it, and compute its scores again.

    Of a run the translations are those that were written; they are not made anew. Raises DataError
    where no passport is there; anything else that is wrong is in the text.
    """
    record = read_passport(existing_file(path))
    if record is None:
        failure = f"{path}: not every byte is as it was written, or it is no passport of mt"
        return Check(f"FAIL: {failure}", passed=False)
    if record["format"] != PASSPORT_FORMAT:
        raise UserError(
            f"{path}: of format {record['format']}, this version of mt knows {PASSPORT_FORMAT}"
        )
    inputs = [Input(**each) for each in record["inputs"]]
    failures = list(_changed(path, record, inputs)) or list(_other_scores(path, record, inputs))
    if failures:
        return Check("\n".join(f"FAIL: {failure}" for failure in failures), passed=False)
    return Check(
        f"{path}: {len(inputs)} inputs are what they were, every score comes out again",
        passed=True,
    )


def _changed(path: Path, record: Mapping[str, Any], inputs: Sequence[Input]) -> Iterator[str]:
    """Yield a line for each input that is gone or is not what it was."""
    try:
        found = _corpus_now(path, record, inputs)
    except UserError as error:
        yield str(error)
        return
    for each in inputs:
        place = path.parent / each.path
        if each.role in found:
            place, sha256 = path.parent / found[each.role].path, found[each.role].sha256
        else:
            sha256 = file_sha256(place) if place.is_file() else ""
        if not sha256:
            yield f"{os.path.normpath(place)}: is not there"
        elif sha256 != each.sha256:
            name = os.path.normpath(place)
            yield f"{name}: has changed; its SHA-256 is {sha256}, in the passport {each.sha256}"


def _corpus_now(path: Path, record: Mapping[str, Any], inputs: Sequence[Input]) -> dict[str, Input]:
    """Return both sides of the split by their role; nothing for a score of files."""
    if "split" not in record:
        return {}
    source = _split(path, record, inputs)
    sides = corpus_inputs(source, lines=record["sentences"], beside=path.parent)
    return {side.role: side for side in sides}


def _other_scores(path: Path, record: Mapping[str, Any], inputs: Sequence[Input]) -> Iterator[str]:
    """Yield a line for each score that does not come out again."""
    try:
        now = _scored_again(path, record, inputs).as_record()
    except UserError as error:
        yield str(error)
        return
    for key, score in now.items():
        if not isinstance(score, dict):
            continue
        if _without_version(score) != _without_version(record[key]):
            yield f"{path}: {key} is {_shown(score)} now, {_shown(record[key])} in the passport"


def _scored_again(path: Path, record: Mapping[str, Any], inputs: Sequence[Input]) -> Evaluation:
    settings, count = record["settings"], record["sentences"]
    texts = {"hypotheses": [_lines(path, each) for each in inputs if each.role == "hypotheses"]}
    if "split" in record:
        pairs = _split(path, record, inputs).pairs()
        texts["references"] = [[pair.target for pair in pairs]]
    else:
        texts["references"] = [_lines(path, each) for each in inputs if each.role == "references"]
    evaluation = evaluate(
        texts["hypotheses"][0][:count],
        [lines[:count] for lines in texts["references"]],
        target_language=record["target_language"],
        tokenizer=settings["bleu_tokenizer"],
        metrics=settings["metrics"],
        resamples=settings["resamples"],
    )
    return evaluation.marked(f"forced:{settings['forced']}") if settings["forced"] else evaluation


def _lines(path: Path, text: Input) -> list[str]:
    return list(LineReader(path.parent / text.path))


def _split(path: Path, record: Mapping[str, Any], inputs: Sequence[Input]) -> PairSource:
    """Open the split of the run in whose folder the passport lies, or the texts given instead."""
    data = read_config(path.parent.parent).data
    if record.get("given_texts"):
        sides = {each.role: str(path.parent / each.path) for each in inputs}
        return open_source(TextSource(source=sides["sources"], target=sides["references"]), data)
    return open_split(data, choose_split(data, record["split"]))[1]


def _without_version(score: Mapping[str, Any]) -> dict[str, Any]:
    """Leave out sacreBLEU's version: another that gives the same digits is as good."""
    return {**score, "signature": re.sub(r"\|version:[^|]*", "", score["signature"])}


def _shown(score: Mapping[str, Any]) -> str:
    return f"{score['score']} ({score['signature']})"
