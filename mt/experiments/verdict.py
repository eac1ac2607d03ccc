"""The last thing that `mt reproduce` says: did the recipe give what it promises, and what now."""

import shlex
import shutil
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from mt.config.evaluation import Band, Protocol, Published
from mt.errors import listed
from mt.evaluation.scores import TOKENIZERS, Evaluation, Score
from mt.tables import aligned, display_width, printable, wrap

_SAME_BLEU = frozenset({"sacrebleu", "fairseq", "multi-bleu"})
"""Scorers that give the same number for the same words, but where no n-gram of a length is right.

Each is the BLEU of a corpus (Papineni et al. 2002) up to 4-grams; sacreBLEU alone smooths a 0.
"""
_CASES = {"mixed": "kept", "lc": "folded"}


def standing(published: Published, measured: Score, *, seed_band: float) -> str:
    """Return how a measured BLEU stands to a published one, or why nobody can say.

    `above`, `within` or `below` the seed band, both numbers taken to two decimals; or `not
    comparable`, with what the two protocols differ in or the source does not state.
    """
    reasons = list(_reasons(published.protocol, measured))
    if reasons:
        return f"not comparable: {'; '.join(reasons)}"
    ahead = round(measured.value - published.score, 2)
    word = "within" if abs(ahead) <= seed_band else "above" if ahead > 0 else "below"
    return f"{word} the seed band (± {seed_band:.2f})"


def measured_protocol(score: Score) -> Protocol:
    """Return how a score was computed, from its signature."""
    fields = _fields(score)
    tokenizer = next(name for name, theirs in TOKENIZERS.items() if _is(fields["tok"], theirs))
    return Protocol.model_validate(
        {
            "scorer": "sacrebleu",
            "tokenizer": tokenizer,
            "case": _CASES[fields["case"]],
            "text": fields.get("text", "plain"),
            "references": int(fields["nrefs"]),
        }
    )


def label_of(score: Score) -> str:
    """Return what a score has to be called, "" for one of plain text."""
    return _fields(score).get("text", "")


def _reasons(published: Protocol, measured: Score) -> Iterator[str]:
    theirs, ours = published.model_dump(), measured_protocol(measured).model_dump()
    if unknown := [name for name, value in theirs.items() if value == "unknown"]:
        yield f"its source does not state {listed(unknown)}"
    for name, value in theirs.items():
        same = value == ours[name] or {value, ours[name]} <= _SAME_BLEU
        if not same and value != "unknown":
            yield f"`{name}` is `{value}` there and `{ours[name]}` here"
    if forced := _fields(measured).get("forced"):
        yield f"the score here is forced (`{forced}`)"


def _fields(score: Score) -> dict[str, str]:
    """Return the parts of a signature by their names."""
    return dict(part.split(":", 1) for part in score.signature.split("|"))


def _is(tokenizer: str, name: str) -> bool:
    """Say whether a signature's tokenizer is one of sacreBLEU's; MeCab's has its version behind."""
    return tokenizer == name or tokenizer.startswith(f"{name}-")


TERMINAL_WIDTH = 100
"""Cells; the signatures alone may be longer."""
MAX_EXAMPLES = 5


@dataclass(frozen=True, slots=True)
class VerdictRow:
    """One split: what was measured, and what was expected."""

    split: str
    evaluation: Evaluation
    band: Band | None = None
    """Where BLEU must lie; None where the recipe sets no band."""
    nearest: Score | None = None
    """BLEU of copying from the training set, see `mt.experiments.reproduce`."""
    published: tuple[Published, ...] = ()
    """What others have published on this split."""
    seed_band: float = 0.0
    """So many BLEU around a published score mean nothing."""

    @property
    def passed(self) -> bool:
        """Whether BLEU, to the two decimals that are shown, lies in the band."""
        bleu = round(self.evaluation.bleu.value, 2)
        return self.band is None or self.band.low <= bleu <= self.band.high

    @property
    def result(self) -> str:
        """`pass`, `FAIL` or `no band set`."""
        if self.band is None:
            return "no band set"
        return "pass" if self.passed else "FAIL"


@dataclass(frozen=True, slots=True)
class Example:
    """One translation to read."""

    source: str
    reference: str
    translation: str


@dataclass(frozen=True, slots=True)
class Verdict:
    """What to print, and whether every split passed; exit status 1 belongs to a failure."""

    text: str
    passed: bool


def verdict(rows: Sequence[VerdictRow], *, run: Path, examples: Sequence[Example] = ()) -> Verdict:
    """Return the verdict on a finished run: scores against bands, examples, what to do next.

    It ends with a line for each published score; whether it passed, the bands alone decide.
    """
    passed = all(row.passed for row in rows)
    parts = [_scores(rows), _signatures(rows), _explanation(rows)]
    parts += [_example(example) for example in examples[:MAX_EXAMPLES]]
    parts += [_next_steps(run, examples), _conclusion(rows)]
    parts.append("\n".join(line for row in rows for line in _published(row)))
    return Verdict("\n\n".join(part for part in parts if part), passed)


def _scores(rows: Sequence[VerdictRow]) -> str:
    head = ("split", "expected BLEU", "BLEU", "result", "nearest copy", "chrF2", "sentences")
    return aligned([head, *(_cells(row) for row in rows)], right=[2, 4, 5, 6])


def _cells(row: VerdictRow) -> tuple[str, ...]:
    evaluation = row.evaluation
    return (
        row.split,
        f"{row.band.low:.2f} to {row.band.high:.2f}" if row.band else "-",
        f"{evaluation.bleu.value:.2f}",
        row.result,
        f"{row.nearest.value:.2f}" if row.nearest else "-",
        f"{evaluation.chrf.value:.2f}",
        str(evaluation.sentences),
    )


def _signatures(rows: Sequence[VerdictRow]) -> str:
    """Return each signature once, under the table; where it is not of all splits, with its own."""
    splits: dict[tuple[str, str], list[str]] = {}
    for row in rows:
        for score in (row.evaluation.bleu, row.evaluation.chrf):
            splits.setdefault((score.name, score.signature), []).append(row.split)
    for row in rows:
        if row.nearest:
            splits.setdefault(("nearest copy", row.nearest.signature), []).append(row.split)
    several = len(splits) > len({name for name, _ in splits})
    return aligned([(*key, ", ".join(of) if several else "") for key, of in splits.items()])


def _explanation(rows: Sequence[VerdictRow]) -> str:
    if not any(row.nearest for row in rows):
        return ""
    return (
        "nearest copy: the BLEU of a system that answers every sentence with the translation of\n"
        "the most similar training sentence; a model that has learned to translate lies far above."
    )


def _example(example: Example) -> str:
    fields = (
        ("source", example.source),
        ("reference", example.reference),
        ("translation", example.translation),
    )
    lines = []
    for name, text in fields:
        first, *rest = wrap(printable(text), TERMINAL_WIDTH - 13)
        lines += [f"{name:<13}{first}", *(" " * 13 + line for line in rest)]
    return "\n".join(line.rstrip() for line in lines)


def _next_steps(run: Path, examples: Sequence[Example]) -> str:
    folder = shlex.quote(str(run))
    sources = sorted((printable(example.source) for example in examples), key=display_width)
    echo = f"echo {shlex.quote(sources[0])} | mt translate {folder}" if sources else ""
    commands = [
        f"mt translate {folder} input.txt -o output.txt",
        f"python -m mt translate {folder} input.txt    (the same program under its other name)",
    ]
    if echo and display_width(echo) <= TERMINAL_WIDTH - 2:
        commands.insert(0, echo)
    commands = [*_activation(), *commands]
    return "\n  ".join([f"the model lies in {folder}; to use it:", *commands])


def _activation() -> list[str]:
    """Return the command that puts this `mt` on the path, where a shell would not find it."""
    script = Path(sys.prefix) / "bin" / "activate"
    found = shutil.which("mt")
    if not script.is_file() or (found and Path(found).is_relative_to(sys.prefix)):
        return []
    here = Path.cwd()
    shown = script.relative_to(here) if script.is_relative_to(here) else script
    return [f". {shlex.quote(str(shown))}"]


def _conclusion(rows: Sequence[VerdictRow]) -> str:
    failed = [row.split for row in rows if not row.passed]
    if failed:
        return f"FAIL: BLEU outside the expected band on {', '.join(failed)}"
    if any(row.band for row in rows):
        return "pass: BLEU lies in the expected band of every split that has one"
    return "no band set: nothing was expected of this recipe"


def _published(row: VerdictRow) -> Iterator[str]:
    """Yield a line for each published score: both numbers, how ours stands to it, its source.

    Ours is labelled where the references are not plain text.
    """
    bleu = row.evaluation.bleu
    form = label_of(bleu)
    here = f"{bleu.value:.2f} ({form})" if form else f"{bleu.value:.2f}"
    for each in row.published:
        yield (
            f"{row.split}: {each.system} {each.score:.2f}, here {here}: "
            f"{standing(each, bleu, seed_band=row.seed_band)} [{each.source}]"
        )
