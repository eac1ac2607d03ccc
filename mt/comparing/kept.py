"""Whether the translations that an evaluation has left are those of the model that is there."""

from collections.abc import Sequence
from pathlib import Path

from mt.decoding.exported import is_exported, read_exported
from mt.decoding.run_files import MODEL_FILE, read_description
from mt.errors import UserError
from mt.evaluation.check import check_passport
from mt.evaluation.passport import read_passport
from mt.files import file_sha256


def kept_translations(passport: Path) -> Path:
    """Return the file of the translations that the passport of a split names."""
    return passport.with_name(f"{passport.stem}.hypotheses.txt")


def why_not_kept(folder: Path, passport: Path, *, allow: Sequence[str] = ()) -> str:
    """Return why the translations of a passport are not those of this model, "" where they are.

    `allow` are the reasons of the guard that a score may have been forced against.
    """
    if not passport.is_file():
        return f"{folder}: is not scored yet"
    try:
        check = check_passport(passport)
    except UserError as error:
        return str(error)
    if not check.passed:
        return check.text.partition("\n")[0].removeprefix("FAIL: ")
    record = read_passport(passport)
    assert record is not None, "it has passed"
    if {*record["settings"]["forced"].split(",")} - {"", *allow}:
        return f"{passport}: was forced against {record['settings']['forced']}"
    if record["weights"] != _weights(folder):
        return f"{passport}: is of other weights"
    # A copied run may name the files of the first one, so that its own are looked at here.
    sums = {each["sha256"] for each in record["inputs"] if each["role"] == "hypotheses"}
    hypotheses = kept_translations(passport)
    if not hypotheses.is_file() or file_sha256(hypotheses) not in sums:
        return f"{hypotheses}: is not what the passport names"
    return ""


def _weights(folder: Path) -> str:
    if is_exported(folder):
        return read_exported(folder).weights
    return read_description(folder / MODEL_FILE).weights
