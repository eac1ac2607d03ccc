"""Calibration of the confidence of translations, and the projected score of a text.

Isotonic regression gives the expected chrF of a line by its mean log-probability, planted faults
the test for omissions, and the training pairs the negations that have one opposite.
"""

import logging
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sacrebleu.metrics.chrf import CHRF

from mt.data.filters import read_cleaned_pairs
from mt.data.pairs import SentencePair
from mt.data.splits import open_split, open_training_corpora
from mt.decoding import confidence
from mt.decoding.engine import ScoringEngine
from mt.decoding.text_files import load_for_files, read_lines
from mt.decoding.translator import Translator
from mt.errors import DataError, UserError
from mt.evaluation.evaluate import EvaluationJob, load_for_split
from mt.evaluation.scores import translate_pairs
from mt.files import require_file, write_json
from mt.languages import UNSPACED
from mt.runs import CONFIDENCE_FILE, CONFIDENCE_FORMAT
from mt.tables import align_columns, clip, make_printable

Floats = NDArray[np.float64]
_logger = logging.getLogger(__name__)
_FEWEST_PAIRS, _MOST_PAIRS, _MOST_TRAINING_PAIRS, _MOST_TOKENS = 100, 1000, 50_000, 4096
_FALSE_OMISSIONS, _FALSE_COPIES, _FALSE_NEGATIONS = 0.01, 0.002, (0.012, 0.005)
"""Shares of right translations that may have a fault; negations lost, and added."""
_FEWEST_TIMES, _FEWEST_COMMON = 5, 4
_SHOWN_LINES, _SHOWN_WIDTH = 10, 60
_WORDS = re.compile(rf"[{UNSPACED}]\s*|[^\s{UNSPACED}]+\s*")


def fit_isotonic(inputs: Floats, values: Floats) -> tuple[tuple[float, float], ...]:
    """Return the means of the blocks of an isotonic regression, as points of a rising curve.

    Pool adjacent violators (Ayer et al. 1955): a block that is not above the last is joined to it.
    """
    distinct, groups, counts = np.unique(inputs, return_inverse=True, return_counts=True)
    blocks: list[Floats] = []
    for block in np.column_stack([distinct * counts, np.bincount(groups, values), counts]):
        while blocks and blocks[-1][1] / blocks[-1][2] >= block[1] / block[2]:
            block = block + blocks.pop()
        blocks.append(block)
    return tuple((float(block[0] / block[2]), float(block[1] / block[2])) for block in blocks)


def calibrate(
    translator: Translator, pairs: Sequence[SentencePair], training: Sequence[SentencePair]
) -> confidence.Calibration:
    """Fit a calibration to translations of pairs without blank sides."""
    translations = translate_pairs(translator, pairs)
    metric, texts = CHRF(), [line.text for line in translations]
    references = [pair.target for pair in pairs]
    lines = zip(texts, references, strict=True)
    values = np.array([metric.sentence_score(text, [other]).score for text, other in lines])
    means = np.array([*map(confidence.mean_log_prob, translations)])
    curve = fit_isotonic(means, values)
    expected = np.interp(means, *np.array(curve).T)
    mean = np.average(expected, weights=[len(text) + 1 for text in texts])
    common = [len(confidence.find_common_words(pair.source, pair.target)) for pair in pairs]
    most_common = int(np.quantile(common, 1 - _FALSE_COPIES, method="higher"))
    direction, find = translator.direction, confidence.find_negations
    sources = [find(pair.source, direction.source) for pair in training]
    targets = [find(pair.target, direction.target) for pair in training]
    return confidence.Calibration(
        model=translator.identity,
        direction=direction,
        pairs=len(pairs),
        signature=str(metric.get_signature()),
        curve=curve,
        deviation=float((values - expected).std()),
        corpus_offset=float(metric.corpus_score(texts, [references]).score - mean),
        common=max(_FEWEST_COMMON, 1 + most_common),
        negations=(
            learn_negations(sources, targets, _FALSE_NEGATIONS[0]),
            learn_negations(targets, sources, _FALSE_NEGATIONS[1]),
        ),
        omission=_fit_omission(translator, pairs),
    )


def learn_negations(
    own: Sequence[Sequence[Sequence[str]]], opposite: Sequence[Sequence[object]], share: float
) -> dict[str, bool]:
    """Return True for negations that have one opposite, and False for contexts without.

    `own` has the negations of each line of one side as `find_negations` returns them. A negation is
    certain if its share of lines with a negation opposite reaches a threshold: the lowest at which
    at most `share` of all lines have a certain negation without one opposite.
    """
    times, both = Counter[str](), Counter[str]()
    for negations, others in zip(own, opposite, strict=True):
        names = {name for negation in negations for name in negation}
        times.update(names)
        both.update(names if others else ())
    rates = {name: both[name] / times[name] for name in times if times[name] >= _FEWEST_TIMES}
    alone = [negations for negations, others in zip(own, opposite, strict=True) if not others]
    for least in np.arange(0.5, 1.0, 0.05):
        words = {name for name, rate in rates.items() if rate >= least and "|" not in name}
        doubtful = [name for name in rates if rates[name] < least and name.split("|")[0] in words]
        certain = dict.fromkeys(words, True) | dict.fromkeys(doubtful, False)
        wrong = sum(confidence.find_certain(negations, certain) != "" for negations in alone)
        if wrong <= share * len(own):
            return dict(sorted(certain.items()))
    return {}


def remove_words(text: str, random: np.random.Generator) -> str:
    """Return a text without a third of its words, in a row; characters if it has no spaces."""
    words = _WORDS.findall(text)
    count = max(1, round(len(words) / 3))
    start = random.integers(len(words) - count + 1)
    return "".join([*words[:start], *words[start + count :]])


def _fit_omission(translator: Translator, pairs: Sequence[SentencePair]) -> tuple[float, ...]:
    """Fit the test for omissions to references, with and without a third of their words.

    Least squares separate them (Fisher 1936). Texts that are too long for the engine are left out.
    """
    tokenizer, engine, random = translator.tokenizer, translator.engine, np.random.default_rng(1)
    assert isinstance(engine, ScoringEngine)
    right = [pair for pair in pairs if len(_WORDS.findall(pair.target)) > 2]
    planted = [SentencePair(pair.source, remove_words(pair.target, random)) for pair in right]
    texts, longest = [*right, *planted], min(engine.longest or _MOST_TOKENS, _MOST_TOKENS)
    sources = tokenizer.encode_source([pair.source for pair in texts])
    targets = tokenizer.encode_target([pair.target for pair in texts])
    sizes = [(len(source), len(target)) for source, target in zip(sources, targets, strict=True)]
    chosen = [place for place, size in enumerate(sizes) if max(size) <= longest]
    kept = ([side[place] for place in chosen] for side in (sources, targets))
    scored = zip(chosen, engine.score(*kept), strict=True)
    labels = np.array(chosen) >= len(right)
    if min(labels.sum(), (~labels).sum()) < _FEWEST_PAIRS:
        return (0.0,) * confidence.OMISSION_FEATURES
    features = confidence.omission_features
    rows = np.array(
        [
            features(texts[place].source, texts[place].target, sizes[place], sum(log_probs))
            for place, log_probs in scored
        ]
    )
    weights = np.linalg.lstsq(rows, labels.astype(float), rcond=None)[0]
    sums = np.sort(rows[~labels] @ weights)
    weights[-1] -= sums[-1 - int(_FALSE_OMISSIONS * len(sums))]
    return tuple(weights.tolist())


def calibrate_run(
    run: Path,
    *,
    split: str | None = None,
    overrides: Sequence[str] = (),
    device: str = "auto",
    job: EvaluationJob | None = None,
    again: bool = True,
) -> confidence.Calibration:
    """Calibrate a run or an export on a split, by default `valid`, or on the texts of a job.

    Writes confidence.json into its folder. At most 1,000 pairs are translated, evenly spread.
    Raises UserError for fewer than 100 pairs, and for sampling.
    """
    job = job or EvaluationJob()
    split = split or (None if job.texts else "valid")
    config, name, translator = load_for_split(run, split, overrides, device, job)
    if not again and (calibration := confidence.load_calibration(translator)):
        return calibration
    if translator.decoding.search == "sample":
        raise UserError("`decoding.search: sample` has no confidence; calibrate another search")
    read = open_split(config.data, name).pairs()
    pairs = [pair for pair in read if pair.source.strip() and pair.target.strip()]
    if len(pairs) < _FEWEST_PAIRS:
        raise UserError(f"{name} has {len(pairs)} pairs; a calibration needs {_FEWEST_PAIRS}")
    places = np.linspace(0, len(pairs) - 1, min(len(pairs), _MOST_PAIRS)).astype(int)
    pairs = training = [pairs[place] for place in places]
    try:
        corpora = open_training_corpora(config.data) if config.data.has_corpora else []
        direction = translator.direction
        chosen = [c for c in corpora if c.languages == (direction.source, direction.target)]
        training = [*islice(read_cleaned_pairs(chosen), _MOST_TRAINING_PAIRS)] or pairs
    except (UserError, OSError) as error:
        _logger.warning("%s; so negations are learned from fewer pairs", error)
    calibration = calibrate(translator, pairs, training)
    write_json(run / CONFIDENCE_FILE, {"format": CONFIDENCE_FORMAT, **asdict(calibration)})
    return calibration


def calibrate_trained_run(run: Path) -> None:
    """Calibrate a trained run unless that was done; log a reason for none, and raise no error."""
    try:
        _logger.info("%s", calibrate_run(run, again=False).as_text())
    except (UserError, OSError) as error:
        _logger.info("no confidence: %s", error)


@dataclass(frozen=True, slots=True)
class Projection:
    """Projected chrF of the translation of a text without references."""

    projected_chrf: float
    half_width: float
    """Half of the 95 % interval."""
    signature: str
    sentences: int
    lines: tuple[dict[str, Any], ...]
    """Lines that most need a human, the worst first."""

    def as_record(self) -> dict[str, Any]:
        """Return the projection as plain data."""
        return asdict(self)

    def as_text(self) -> str:
        """Return the projection, and a table of the lines."""
        rows = [["line", "confidence", "status", "source", "translation"]]
        for line in self.lines:
            number, value, *texts = line.values()
            shown = [clip(make_printable(text), _SHOWN_WIDTH) for text in texts]
            rows.append([str(number), f"{value:.0f}", *shown])
        return (
            f"projected chrF2 {self.projected_chrf:.2f} ± {self.half_width:.2f} "
            f"({self.signature}), {self.sentences:,} lines\n\n{align_columns(rows, right=[0, 1])}"
        )


def project_run(
    run: Path, sources: Path, *, overrides: Sequence[str] = (), device: str = "auto"
) -> Projection:
    """Translate a text and project its chrF from the confidence of its lines.

    The 95 % interval is for text of the kind of the calibration. Lines with a fault come first in
    `lines`. Raises UserError for a run without a calibration, DataError for a text without words.
    """
    pairs = [SentencePair(line, "") for line in read_lines(require_file(sources))]
    translator = load_for_files(run, overrides=overrides, device=device)
    calibration = confidence.load_calibration(translator, required_by="--sources")
    assert calibration is not None
    assessed = calibration.assess(translate_pairs(translator, pairs))
    lines = [line for line in assessed if line.confidence is not None]
    if not lines:
        raise DataError(f"{sources}: has no text to translate")
    weights = np.array([len(line.text) + 1.0 for line in lines])
    weights /= weights.sum()
    expected = np.array([line.confidence for line in lines], dtype=np.float64)
    mean = float(weights @ expected)
    variance = np.square(weights) @ (np.square(expected - mean) + calibration.deviation**2)
    variance += calibration.deviation**2 / calibration.pairs
    lines.sort(key=lambda line: (line.status not in confidence.FAULTS, line.confidence))
    names = ("line_number", "confidence", "status", "source", "text")
    return Projection(
        min(100.0, max(0.0, mean + calibration.corpus_offset)),
        1.96 * float(np.sqrt(variance)),
        calibration.signature,
        len(lines),
        tuple({name: getattr(line, name) for name in names} for line in lines[:_SHOWN_LINES]),
    )
