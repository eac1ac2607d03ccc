"""Comparing systems on one test set: is it better, where, and what is different about it?"""

import difflib
import re
import string
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from mt.compare.differences import Curve, Difference, find_differences, read_curves
from mt.compare.significance import SAMPLES, PairedScore, Resampling, score_systems
from mt.compare.slices import (
    AllCounts,
    RareWords,
    Slice,
    SlicedSide,
    count_all,
    count_words,
    make_slices,
    sliced_side,
)
from mt.compare.systems import NO_TEXTS, EvaluationSet, System, Texts, is_folder, read_systems
from mt.errors import UserError
from mt.evaluation.evaluate import choose_split, read_config
from mt.evaluation.scores import check_metrics, label
from mt.languages import written_without_spaces


@dataclass(frozen=True, slots=True)
class Changed:
    """A sentence, and what the baseline and another system made of it."""

    system: int
    """The other one's place among the systems; the baseline is 0."""
    line: int
    """From 1."""
    source: str
    """Empty where no sources are known."""
    references: tuple[str, ...]
    baseline: str
    translation: str
    """The other system's."""
    chrf: tuple[float, float]
    """Of the baseline and of the other system, of this sentence alone."""

    @property
    def gain(self) -> float:
        """By how much the other one is better."""
        return self.chrf[1] - self.chrf[0]


def changed_most(
    common: EvaluationSet, systems: Sequence[System], counts: AllCounts, *, most: int
) -> list[Changed]:
    """Return for each system up to `most` sentences that gain most, then those that lose most."""
    found = []
    baseline = [counts.chrf[0].score([number]) for number in range(len(common.references[0]))]
    for place in range(1, len(systems)):
        scores = [counts.chrf[place].score([number]) for number in range(len(baseline))]
        gains = [other - own for own, other in zip(baseline, scores, strict=True)]
        by_gain = sorted(range(len(gains)), key=lambda number: -gains[number])
        up = [number for number in by_gain[:most] if gains[number] > 0]
        down = [number for number in by_gain[::-1][:most] if gains[number] < 0]
        found += [
            Changed(
                place,
                number + 1,
                source=common.sources[number] if common.sources else "",
                references=tuple(lines[number] for lines in common.references),
                baseline=systems[0].translations[number],
                translation=systems[place].translations[number],
                chrf=(baseline[number], scores[number]),
            )
            for number in [*up, *down]
        ]
    return found


def differing_parts(text: str, other: str, *, language: str) -> Iterator[tuple[str, bool]]:
    """Yield `text` in parts, and whether a part is not in `other`; words, or characters of zh."""
    cut = r"\s+|\w|[^\w\s]" if written_without_spaces(language) else r"\s+|\w+|[^\w\s]"
    words, its = re.findall(cut, text), re.findall(cut, other)
    matcher = difflib.SequenceMatcher(None, words, its, autojunk=False)
    for kind, start, end, _, _ in matcher.get_opcodes():
        if start < end:
            yield "".join(words[start:end]), kind != "equal"


MAX_SYSTEMS = 8
"""More do not fit beside each other on a terminal."""


@dataclass(frozen=True, slots=True)
class CompareOptions:
    """How to compare."""

    splits: tuple[str, ...] = ()
    """Of runs: the first is compared in every way, the others by their scores."""
    texts: Texts = NO_TEXTS
    metrics: tuple[str, ...] = ()
    """Of `mt.evaluation.scores.METRICS`."""
    allow: tuple[str, ...] = ()
    """Of `mt.evaluation.checks.REASONS`."""
    test: Resampling = "bootstrap"
    samples: int | None = None
    """None takes those of `SAMPLES`."""
    examples: int = 5
    """Sentences to show for each system, gains and losses each."""
    device: str = "auto"


PLAIN_WISHES = CompareOptions()


@dataclass(frozen=True, slots=True)
class Comparison:
    """All that was found."""

    systems: tuple[str, ...]
    """The baseline first."""
    test_set: str
    sentences: int
    target_language: str
    test: Resampling
    samples: int
    scores: tuple[tuple[PairedScore, ...], ...]
    """For each metric, of each system."""
    slices: tuple[Slice, ...]
    sliced_by: str
    """What the slices go by, for a reader."""
    differences: tuple[Difference, ...]
    curves: tuple[Curve, ...]
    changed: tuple[Changed, ...]

    @property
    def letters(self) -> str:
        """A letter for each system: A is the baseline."""
        return string.ascii_uppercase[: len(self.systems)]

    def as_record(self) -> dict[str, Any]:
        """Return everything as plain data, with what may be said of each score."""
        record = asdict(self)
        record["scores"] = [
            [{**asdict(score), "outcome": score.outcome} for score in row] for row in self.scores
        ]
        record["slices"] = [{**asdict(each), "too_small": each.too_small} for each in self.slices]
        return record


def compare(places: Sequence[Path], wishes: CompareOptions = PLAIN_WISHES) -> Comparison:
    """Compare runs, exported models or files of translations with the first of them.

    What a run has no valid passport of is translated, which takes as long as `mt evaluate`.
    Raises UserError, before anything is translated, where they do not compare.
    """
    _check_places(places)
    _check_splits(places, wishes)
    check_metrics(wishes.metrics)
    common, systems = _read(places, wishes, wishes.splits[0] if wishes.splits else None)
    side = sliced_side(common)
    rare = count_words(systems, side)
    counts = count_all(common, systems)
    further = [(common, systems), *(_read(places, wishes, name) for name in wishes.splits[1:])]
    wholes = further if len(further) > 1 else []
    scores = score_systems(
        common, systems, test=wishes.test, samples=wishes.samples, metrics=wishes.metrics
    )
    return Comparison(
        tuple(system.name for system in systems),
        common.name,
        sentences=len(common.references[0]),
        target_language=common.target_language,
        test=wishes.test,
        samples=wishes.samples or SAMPLES[wishes.test],
        scores=tuple(scores),
        slices=(*make_slices(counts, side, rare), *(_whole(*each) for each in wholes)),
        sliced_by="; ".join([_sliced_by(side, rare), *(_signed(*each) for each in wholes)]),
        differences=tuple(find_differences(systems)),
        curves=tuple(read_curves(systems)),
        changed=tuple(changed_most(common, systems, counts, most=wishes.examples)),
    )


def _sliced_by(side: SlicedSide, rare: RareWords) -> str:
    unit = "character" if side.unspaced else "word"
    often = "once" if rare.most == 1 else f"{rare.most} times"
    return f"by the {side.name}; a {unit} is rare that is seen at most {often} in {rare.where}"


def _check_places(places: Sequence[Path]) -> None:
    if len(places) < 2:
        raise UserError(
            "there is nothing to compare with: name two or more runs, exported models or files"
        )
    if len(places) > MAX_SYSTEMS:
        raise UserError(f"{len(places)} systems: up to {MAX_SYSTEMS} can be compared at once")
    seen: set[Path] = set()
    for place in places:
        if place.resolve() in seen:
            raise UserError(f"{place}: is named twice; a system does not compare with itself")
        seen.add(place.resolve())


def _check_splits(places: Sequence[Path], wishes: CompareOptions) -> None:
    splits = wishes.splits
    folders = [place for place in places if is_folder(place)]
    if splits and not folders:
        raise UserError("--split is of runs, whose config has splits; files have --references")
    if len(splits) > 1 and len(folders) < len(places):
        raise UserError("a file of translations is of one split: give --split once")
    if len(set(splits)) < len(splits):
        raise UserError("--split names a split twice")
    if wishes.texts.references and folders:
        if len(splits) > 1:
            raise UserError("--references are of one test set: give --split, its name, once")
        return
    for folder in folders:  # a wrong name is told before another split is translated
        data = read_config(folder).data
        for split in splits:
            choose_split(data, split)


def _read(
    places: Sequence[Path], wishes: CompareOptions, split: str | None
) -> tuple[EvaluationSet, tuple[System, ...]]:
    return read_systems(places, wishes.texts, split=split, allow=wishes.allow, device=wishes.device)


def _whole(common: EvaluationSet, systems: Sequence[System]) -> Slice:
    """Return the scores of a whole split, its direction in its name."""
    name = f"{common.source_language}-{common.target_language} ({common.name})"
    members = range(len(common.references[0]))
    return count_all(common, systems).slice("direction", name, members)


def _signed(common: EvaluationSet, systems: Sequence[System]) -> str:
    """Return what of the signature of a whole split's scores may differ from that of another."""
    form = label(common.references, common.target_language)
    forced = ",".join(dict.fromkeys(system.forced for system in systems if system.forced))
    told = [f"tok:{common.tokenizer}"]
    told += [f"{key}:{value}" for key, value in (("text", form), ("forced", forced)) if value]
    return f"{common.name} by {'|'.join(told)}"
