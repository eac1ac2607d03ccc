"""Files and command lines for COMET, which runs in an environment of its own.

Rei et al. 2020, "COMET: A Neural Framework for MT Evaluation". Its package pins versions that
exclude others that are needed here.
"""

import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path

from mt.errors import UserError
from mt.files import aside, put_in_place, write_text

COMET_MODEL = "Unbabel/wmt22-comet-da"


def check_new_folder(folder: Path) -> None:
    """Raise UserError where something of that name is there: nothing is written over."""
    if folder.exists():
        raise UserError(f"{folder}: exists already; name a new folder for the files of COMET")


def write_comet(folder: Path, texts: Sequence[Sequence[str]], *, references: int) -> None:
    """Write a new folder with source.txt, hypothesis.txt, and a file for each reference set.

    `texts` are the hypotheses, the references and the sources. COMET ends a line at a carriage
    return too, so one inside a line becomes a space.
    """
    names = ["hypothesis.txt", *_reference_names(references), "source.txt"]
    with aside(folder) as temporary:
        for name, lines in zip(names, texts, strict=True):
            text = "".join(line.replace("\r", " ") + "\n" for line in lines)
            write_text(temporary / name, text)
        put_in_place(temporary, folder)


def comet_commands(folder: Path, references: int) -> str:
    """Return the lines of a shell that install COMET apart and score what `write_comet` wrote.

    COMET compares with one reference, so there is a line for each set.
    """
    lines = ["python3 -m venv comet-env", "comet-env/bin/pip install unbabel-comet"]
    for name in _reference_names(references):
        files = [str(folder / each) for each in ("source.txt", "hypothesis.txt", name)]
        source, hypothesis, reference = map(shlex.quote, files)
        lines.append(
            f"comet-env/bin/comet-score -s {source} -t {hypothesis} -r {reference} "
            f"--model {COMET_MODEL}"
        )
    return "\n".join(lines)


def _reference_names(count: int) -> Iterator[str]:
    yield "reference.txt"
    for number in range(2, count + 1):
        yield f"reference-{number}.txt"
