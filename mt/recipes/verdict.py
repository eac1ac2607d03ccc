"""Verdict of `mt reproduce`: scores against expected bands and published scores, next steps."""

import shlex
import shutil
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from mt.config.evaluation import Band, Published
from mt.evaluation.scores import TOKENIZERS, Evaluation, Score
from mt.tables import aligned, display_width, printable, wrap

TERMINAL_WIDTH = 100
"""Width of the verdict in cells; only signatures may be longer."""
MAX_EXAMPLES = 5
_LABEL = 13
_SAME_BLEU = frozenset({"sacrebleu", "fairseq", "multi-bleu"})
"""Scorers of corpus BLEU up to 4-grams; they differ only if the count of an n-gram order is 0."""


@dataclass(frozen=True, slots=True)
class VerdictRow:
    """Measured and expected scores of one split."""

    split: str
    evaluation: Evaluation
    band: Band | None = None
    """Expected BLEU; None if the recipe sets no band."""
    nearest: Score | None = None
    """BLEU of nearest copies, see `mt.recipes.reproduce`."""
    published: tuple[Published, ...] = ()
    seed_band: float = 0.0
    """Variation of BLEU between seeds."""

    @property
    def passed(self) -> bool:
        """True if BLEU, rounded to two decimals, is in the band."""
        bleu = round(self.evaluation.bleu.value, 2)
        return self.band is None or self.band.low <= bleu <= self.band.high

    @property
    def result(self) -> str:
        """Result of the split: `pass`, `FAIL` or `no band set`."""
        if self.band is None:
            return "no band set"
        return "pass" if self.passed else "FAIL"

    def cells(self) -> tuple[str, ...]:
        """Return the row of the verdict's table."""
        return (
            self.split,
            f"{self.band.low:.2f} to {self.band.high:.2f}" if self.band else "-",
            f"{self.evaluation.bleu.value:.2f}",
            self.result,
            f"{self.nearest.value:.2f}" if self.nearest else "-",
            f"{self.evaluation.chrf.value:.2f}",
            str(self.evaluation.sentences),
        )


@dataclass(frozen=True, slots=True)
class Example:
    """Translation to show, with source and reference."""

    source: str
    reference: str
    translation: str


@dataclass(frozen=True, slots=True)
class Verdict:
    """Text to print; `passed` is False if a split is outside its band."""

    text: str
    passed: bool


def verdict(rows: Sequence[VerdictRow], *, run: Path, examples: Sequence[Example] = ()) -> Verdict:
    """Return the verdict on a finished run: scores, examples, next steps, published scores.

    Published scores do not affect whether it passes.
    """
    head = ("split", "expected BLEU", "BLEU", "result", "nearest copy", "chrF2", "sentences")
    parts = [aligned([head, *(row.cells() for row in rows)], right=[2, 4, 5, 6]), _signatures(rows)]
    if any(row.nearest for row in rows):
        parts.append(
            "nearest copy: BLEU of copying the translation of the most similar training sentence; "
            "a model\nthat has learned to translate is far above."
        )
    parts += [_example(example) for example in examples[:MAX_EXAMPLES]]
    failed = [row.split for row in rows if not row.passed]
    if failed:
        conclusion = f"FAIL: BLEU outside the expected band on {', '.join(failed)}"
    elif any(row.band for row in rows):
        conclusion = "pass: BLEU is in the expected band of every split that has one"
    else:
        conclusion = "no band set: the recipe has no expected scores"
    lines = [
        f"{row.split}: {against_published(each, row.evaluation.bleu, seed_band=row.seed_band)}"
        for row in rows
        for each in row.published
    ]
    parts += [_next_steps(run, examples), conclusion, "\n".join(lines)]
    return Verdict("\n\n".join(filter(None, parts)), passed=not failed)


def against_published(published: Published, measured: Score, *, seed_band: float) -> str:
    """Return a published and a measured BLEU with their difference.

    If the protocols differ, or the source does not state a setting, the first such setting takes
    the place of the difference.
    """
    ahead = f"{round(measured.value - published.score, 2):+.2f}"
    if seed_band:
        ahead += f", seeds vary by ± {seed_band:.2f}"
    difference = next(_differences(published, measured), "")
    return (
        f"{published.system} {published.score:.2f}, here {measured.value:.2f} "
        f"({f'not comparable: {difference}' if difference else ahead}) [{published.source}]"
    )


def _differences(published: Published, measured: Score) -> Iterator[str]:
    """Yield the settings in which the protocol differs from the measured signature."""
    fields = dict(part.split(":", 1) for part in measured.signature.split("|"))
    # The signature of MeCab's tokenizers has a version at the end.
    tokenizer = next(
        name for name, own in TOKENIZERS.items() if f"{fields['tok']}-".startswith(f"{own}-")
    )
    here = {
        "scorer": "sacrebleu",
        "tokenizer": tokenizer,
        "case": {"mixed": "kept", "lc": "folded"}[fields["case"]],
        "text": fields.get("text", "plain"),
        "references": int(fields["nrefs"]),
    }
    for name, stated in published.protocol.model_dump().items():
        if stated == "unknown":
            yield f"its source does not state `{name}`"
        elif stated != here[name] and not {stated, here[name]} <= _SAME_BLEU:
            yield f"`{name}` is `{stated}` there and `{here[name]}` here"
    if forced := fields.get("forced"):
        yield f"the score here is forced (`{forced}`)"


def _signatures(rows: Sequence[VerdictRow]) -> str:
    """Return each signature once, with its splits if a metric has several."""
    splits: dict[tuple[str, str], list[str]] = {}
    for row in rows:
        for score in (row.evaluation.bleu, row.evaluation.chrf):
            splits.setdefault((score.name, score.signature), []).append(row.split)
    for row in rows:
        if row.nearest:
            splits.setdefault(("nearest copy", row.nearest.signature), []).append(row.split)
    several = len(splits) > len({name for name, _ in splits})
    return aligned([(*key, ", ".join(of) if several else "") for key, of in splits.items()])


def _example(example: Example) -> str:
    lines = []
    for name, text in asdict(example).items():
        first, *rest = wrap(printable(text), TERMINAL_WIDTH - _LABEL)
        lines += [f"{name:<{_LABEL}}{first}", *(" " * _LABEL + line for line in rest)]
    return "\n".join(line.rstrip() for line in lines)


def _next_steps(run: Path, examples: Sequence[Example]) -> str:
    folder = shlex.quote(str(run))
    commands = [
        f"mt translate {folder} input.txt -o output.txt",
        f"python -m mt translate {folder} input.txt    (the same program by its other name)",
    ]
    shortest = min((printable(each.source) for each in examples), key=display_width, default="")
    echo = f"echo {shlex.quote(shortest)} | mt translate {folder}"
    if shortest and display_width(echo) <= TERMINAL_WIDTH - 2:
        commands.insert(0, echo)
    activate = Path(sys.prefix) / "bin" / "activate"
    program = shutil.which("mt")
    if activate.is_file() and not (program and Path(program).is_relative_to(sys.prefix)):
        here = Path.cwd()
        shown = activate.relative_to(here) if activate.is_relative_to(here) else activate
        commands.insert(0, f". {shlex.quote(str(shown))}")
    return "\n  ".join([f"the model is in {folder}; to use it:", *commands])
