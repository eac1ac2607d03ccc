"""Score a run on changed sources of a split, after Belinkov and Bisk 2018 (ICLR).

    python bench/robustness.py RUN --split test

The sources and translations of each variant are kept in RUN/evaluations/SPLIT.robustness/.
"""

import argparse
import re
import sys
import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from random import Random

from tqdm import tqdm

from mt.data.augmentation import copied_text, with_typos, without_final_mark
from mt.data.splits import open_split
from mt.errors import run_reporting_errors
from mt.evaluation.checks import TextChecks
from mt.evaluation.evaluate import EvaluationJob, load_for_split, read_evaluation_set
from mt.evaluation.forms import is_tokenized
from mt.evaluation.scores import Evaluation, evaluate
from mt.languages import in_upper_case, joiner_of
from mt.runs import EVALUATIONS_FOLDER
from mt.tables import align_columns

METRICS = ("bleu", "chrf")
SEED, JOINED = 1, 4
"""Seed of each line, with its number; neighbouring lines that `long input` joins."""

_INSIDE = frozenset("'’-‐.,:/·")
"""Marks that are part of a word or number when inside it: don't, 3.14, well-known."""
_MEANS_SOMETHING = frozenset("%‰&@#*/\\_§¶")
"""Punctuation by Unicode, but with the meaning of words."""


def without_punctuation(text: str, _random: Random) -> str:
    """Return a text without punctuation; a text of punctuation alone is unchanged."""
    rest = "".join(character for at, character in enumerate(text) if not _is_punctuation(text, at))
    return re.sub(" {2,}", " ", rest).strip() or text


def _is_punctuation(text: str, at: int) -> bool:
    character = text[at]
    if not unicodedata.category(character).startswith("P") or character in _MEANS_SOMETHING:
        return False
    between = text[max(0, at - 1) : at], text[at + 1 : at + 2]
    return character not in _INSIDE or not all(map(str.isalnum, between))


Change = Callable[[str, Random], str]
Adaptation = Callable[[Sequence[str]], Sequence[str]]
_LINE_CHANGES: dict[str, tuple[Change, Adaptation | None]] = {
    "lower case": (lambda text, _: text.lower(), None),
    "no punctuation": (without_punctuation, None),
    "no final mark": (
        lambda text, _: without_final_mark(text),
        lambda lines: [without_final_mark(line) for line in lines],
    ),
    "typos": (with_typos, None),
    "no-break spaces": (lambda text, _: text.replace(" ", "\N{NO-BREAK SPACE}"), None),
    "decomposed": (lambda text, _: unicodedata.normalize("NFD", text), None),
}
"""Change of the sources, and of the references and of translations of the untouched text."""


@dataclass(frozen=True, slots=True)
class SourceVariant:
    """Test split in another form; line N of the references still answers line N."""

    name: str
    sources: Sequence[str]
    references: Sequence[Sequence[str]]
    adapt: Adaptation | None = None
    """Change of translations of the untouched text for a comparison with these references."""
    copied: Sequence[str] = ()
    """Text that was added to each line on both sides."""


def make_variants(
    sources: Sequence[str],
    references: Sequence[Sequence[str]],
    *,
    source_language: str,
    target_language: str,
) -> list[SourceVariant]:
    """Return the untouched split and its variants, except those that change no line."""
    variants = [SourceVariant("untouched", sources, references)]
    upper, upper_right = (
        partial(in_upper_case, language=language) for language in (source_language, target_language)
    )
    in_capitals: tuple[Change, Adaptation] = (
        lambda text, _: upper(text),
        lambda lines: [*map(upper_right, lines)],
    )
    for name, (change, adapt) in {"upper case": in_capitals, **_LINE_CHANGES}.items():
        noisy = [change(text, Random(f"{SEED} {n}")) for n, text in enumerate(sources, 1)]
        if noisy != list(sources):
            adapted = [adapt(lines) for lines in references] if adapt else references
            variants.append(SourceVariant(name, noisy, adapted, adapt))
    join = partial(join_lines, language=target_language)
    long = join_lines(sources, source_language)
    variants.append(SourceVariant("long input", long, [join(lines) for lines in references], join))
    added = [copied_text(Random(f"{SEED} {n}")) for n in range(1, len(sources) + 1)]

    def add(line: str, text: str) -> str:
        return f"{text} {line}" if len(text) % 2 else f"{line} {text}"

    noisy, *right = [list(map(add, lines, added)) for lines in (sources, *references)]
    return [*variants, SourceVariant("copied text", noisy, right, copied=added)]


def join_lines(lines: Sequence[str], language: str) -> list[str]:
    """Join each `JOINED` neighbouring lines; the last line may have fewer.

    The separator is a space, or nothing for untokenised text in a language without spaces.
    """
    separator = joiner_of(language)
    if not separator and is_tokenized(lines, language):
        separator = " "
    return [separator.join(lines[i : i + JOINED]) for i in range(0, len(lines), JOINED)]


@dataclass(frozen=True, slots=True)
class ScoredVariant:
    """Scores of a variant, and of the untouched text against the same references."""

    name: str
    scores: Evaluation
    baseline: Evaluation
    """Scores of the translations of the untouched text, adapted."""
    intact: float | None = None
    """Share of the lines that have the added text unchanged."""


def score_variants(
    variants: Sequence[SourceVariant],
    translations: Sequence[Sequence[str]],
    score: Callable[[Sequence[str], Sequence[Sequence[str]]], Evaluation],
) -> list[ScoredVariant]:
    """Score the translations of each variant; the first variant is the untouched text."""
    untouched = score(translations[0], variants[0].references)
    scored = []
    for variant, lines in zip(variants, translations, strict=True):
        adapted = variant.adapt and variant.adapt(translations[0])
        baseline = score(adapted, variant.references) if adapted else untouched
        matches = [text in line for text, line in zip(variant.copied, lines, strict=False)]
        intact = sum(matches) / len(matches) if matches else None
        scores = score(lines, variant.references)
        scored.append(ScoredVariant(variant.name, scores, baseline, intact))
    return scored


def score_run(run: Path, *, split: str | None, device: str) -> str:
    """Translate and score a split of a run and its variants; return a table."""
    job = EvaluationJob()
    config, split, translator = load_for_split(run, split, (), device, job)
    test_set = read_evaluation_set(config, split, TextChecks(job.allow), None)
    language = test_set.target_language
    variants = make_variants(
        test_set.sources.lines,
        [text.lines for text in test_set.references],
        source_language=open_split(config.data, split).direction.source,
        target_language=language,
    )
    folder = run / EVALUATIONS_FOLDER / f"{split}.robustness"
    folder.mkdir(parents=True, exist_ok=True)
    stream = translator.stream(line for variant in variants for line in variant.sources)
    total = sum(len(variant.sources) for variant in variants)
    progress = iter(tqdm(stream, "translating", total, unit="line", leave=False, disable=None))
    translations = []
    for variant in variants:
        lines = [translation.text for translation in islice(progress, len(variant.sources))]
        for side, texts in (("sources", variant.sources), ("hypotheses", lines)):
            path = folder / f"{variant.name.replace(' ', '-')}.{side}.txt"
            path.write_text("".join(f"{text}\n" for text in texts), encoding="utf-8")
        translations.append(lines)

    def score(lines: Sequence[str], references: Sequence[Sequence[str]]) -> Evaluation:
        return evaluate(lines, references, target_language=language, tokenizer=test_set.tokenizer)

    scored = score_variants(variants, translations, score)
    rows: list[tuple[str, ...]] = [("source", "lines", "BLEU", "drop", "chrF2", "drop")]
    for row in scored:
        cells = [row.name, f"{row.scores.sentences:,}"]
        for key in METRICS:
            own, before = getattr(row.scores, key).value, getattr(row.baseline, key).value
            cells += [f"{own:z.2f}", f"{before - own:z.2f}"]
        rows.append(tuple(cells))
    signatures = [(score.name, score.signature) for score in scored[0].scores.scores()]
    remarks = (
        "drop: how much lower than the translations of the untouched text, joined or changed\n"
        f"as the references are. {scored[-1].intact:.2%} of the translations have the copied text "
        "unchanged."
    )
    tables = align_columns(rows, right=range(1, 6)), align_columns(signatures)
    return "\n\n".join([*tables, remarks])


def main() -> int:
    """Print the scores of a run."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("run", type=Path)
    parser.add_argument("--split")
    parser.add_argument("--device", default="auto")
    options = parser.parse_args()
    print(score_run(options.run, split=options.split, device=options.device))
    return 0


if __name__ == "__main__":
    sys.exit(run_reporting_errors(main))
