"""Computing scores again from their passport: every file, and every digit."""

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from pathlib import Path
from typing import Any

from mt.data.language_id import model_version
from mt.data.lines import LineReader, existing_file
from mt.data.pairs import PairSource
from mt.errors import UserError
from mt.evaluation.evaluate import choose_split, open_split, read_config
from mt.evaluation.off_target import off_target
from mt.evaluation.passport import PASSPORT_FORMAT, Input, corpus_inputs, read_passport
from mt.evaluation.robustness import RobustnessCard, VariantTexts, variants
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
    where no passport is there or its scores need a package that is not; anything else that is
    wrong is in the text.
    """
    record = read_passport(existing_file(path))
    if record is None:
        failure = f"{path}: not every byte is as it was written, or it is no passport of mt"
        return Check(f"FAIL: {failure}", passed=False)
    if record["format"] != PASSPORT_FORMAT:
        raise UserError(
            f"{path}: of format {record['format']}, this version of mt knows {PASSPORT_FORMAT}"
        )
    if "off_target" in record:
        model_version()  # what counts them is an extra, without which nothing can be said
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
    sides: Mapping[str, Input] = {}
    try:
        if not _is_of_files(record):
            sides = _corpus_now(path, record)
    except UserError as error:  # whose cause may be another input, such as the config
        yield str(error)
        inputs = [each for each in inputs if each.role not in {"sources", "references"}]
    for each in inputs:
        place = path.parent / each.path
        if each.role in sides:
            place, sha256 = path.parent / sides[each.role].path, sides[each.role].sha256
        else:
            sha256 = file_sha256(place) if place.is_file() else ""
        if not sha256:
            yield f"{os.path.normpath(place)}: is not there"
        elif sha256 != each.sha256:
            name = os.path.normpath(place)
            yield f"{name}: has changed; its SHA-256 is {sha256}, in the passport {each.sha256}"


def _is_of_files(record: Mapping[str, Any]) -> bool:
    """Say whether the inputs name all texts; those of a split are found by the run's config."""
    return "split" not in record or record.get("given_texts", False)


def _corpus_now(path: Path, record: Mapping[str, Any]) -> dict[str, Input]:
    """Return both sides of the split by their role."""
    sides = corpus_inputs(_split(path, record), lines=record["sentences"], beside=path.parent)
    return {side.role: side for side in sides}


def _other_scores(path: Path, record: Mapping[str, Any], inputs: Sequence[Input]) -> Iterator[str]:
    """Yield a line for each score that does not come out again."""
    try:
        now = _scored_again(path, record, inputs).as_record()
    except UserError as error:
        yield str(error)
        return
    before, after = dict(_scores_in(record)), dict(_scores_in(now))
    for name in {**after, **before}:
        if name not in before or name not in after:
            yield f"{path}: {name} is {'new' if name in after else 'no score that comes out again'}"
        elif _without_version(after[name]) != _without_version(before[name]):
            shown = _shown(after[name]), _shown(before[name])
            yield f"{path}: {name} is {shown[0]} now, {shown[1]} in the passport"


def _scores_in(record: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield what is a score, or a rate, by its name."""
    for key, value in record.items():
        if isinstance(value, dict) and value.keys() & {"score", "rate"}:
            yield key, value
    for variant in record.get("variants", ()):
        for key, value in _scores_in(variant):
            yield f"{key} of `{variant['name']}`", value


def _scored_again(
    path: Path, record: Mapping[str, Any], inputs: Sequence[Input]
) -> Evaluation | RobustnessCard:
    settings, language = record["settings"], record["target_language"]
    texts = _texts(path, record, inputs)
    if "variants" in record:
        return _card_again(path, record, texts)
    evaluation = evaluate(
        texts["hypotheses"][0],
        texts["references"],
        target_language=language,
        tokenizer=settings["bleu_tokenizer"],
        metrics=settings["metrics"],
        resamples=settings["resamples"],
    )
    if "off_target" in record:
        sides = texts["hypotheses"][0], texts["references"][0]
        found = off_target(*sides, target_language=language)
        evaluation = replace(evaluation, off_target=found)
    return evaluation.marked("forced", settings["forced"])


def _card_again(
    path: Path, record: Mapping[str, Any], texts: Mapping[str, list[list[str]]]
) -> RobustnessCard:
    """Make the variants again, which have to be those that were translated, and score them."""
    settings, language = record["settings"], record["target_language"]
    forms, left_out = variants(
        texts["sources"][0],
        texts["references"],
        source_language=record["source_language"],
        target_language=language,
    )
    names = [each["name"] for each in record["variants"]]
    for form, name, lines in zip_longest(forms, names, texts["variant"]):
        if form is None or form.name != name or list(form.sources) != lines:
            other = form.name if form else name
            raise UserError(f"{path}: `{other}` comes out otherwise from the same sources")
    scoring = language, settings["bleu_tokenizer"], settings["forced"]
    return VariantTexts(record["split"], forms, left_out, *scoring).card(texts["hypotheses"])


def _texts(
    path: Path, record: Mapping[str, Any], inputs: Sequence[Input]
) -> dict[str, list[list[str]]]:
    """Return the texts of each role, no line more than were scored."""
    count, of_files = record["sentences"], _is_of_files(record)
    roles = ["hypotheses", "variant", *(("sources", "references") if of_files else ())]
    texts = {
        role: [_lines(path, each)[:count] for each in inputs if each.role == role] for role in roles
    }
    if not of_files:
        pairs = list(_split(path, record).pairs())
        texts["sources"] = [[pair.source for pair in pairs]]
        texts["references"] = [[pair.target for pair in pairs]]
    if min(len(lines) for lines in (texts["hypotheses"][0], *texts["references"])) != count:
        raise UserError(f"{path}: is of {count} sentences, and there are not so many")
    return texts


def _lines(path: Path, text: Input) -> list[str]:
    return list(LineReader(path.parent / text.path))


def _split(path: Path, record: Mapping[str, Any]) -> PairSource:
    """Open the split of the run in whose folder the passport lies."""
    data = read_config(path.parent.parent).data
    return open_split(data, choose_split(data, record["split"]))[1]


def _without_version(score: Mapping[str, Any]) -> dict[str, Any]:
    """Leave out the version of what has counted: another that gives the same digits is as good."""
    told = {key: value for key, value in score.items() if key != "identifier"}
    if "signature" in told:
        told["signature"] = re.sub(r"\|version:[^|]*", "", told["signature"])
    return told


def _shown(score: Mapping[str, Any]) -> str:
    if "signature" in score:
        interval = f" ± {score['interval']['half_width']}" if "interval" in score else ""
        drop = f", {score['drop']} lower" if "drop" in score else ""
        return f"{score['score']}{interval}{drop} ({score['signature']})"
    return f"{score['found']} of {score['judged']} ({score['identifier']})"
