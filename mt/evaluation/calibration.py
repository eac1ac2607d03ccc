"""Calibration of the confidence of translations, and the projected score of a text.

Isotonic regression gives the expected chrF of a line by its mean log-probability.
"""

import logging
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sacrebleu.metrics.chrf import CHRF

from mt.config import Config
from mt.config.data import DataConfig
from mt.config.loading import load_config
from mt.data.pairs import SentencePair, spread
from mt.data.splits import open_split
from mt.decoding import confidence
from mt.decoding.text_files import read_lines
from mt.decoding.translator import Translator
from mt.errors import DataError, UserError
from mt.evaluation.evaluate import EvaluationJob, load_for_split, translate_pairs
from mt.evaluation.scores import label_scores
from mt.files import require_file, write_json
from mt.model.device import keep_freed_memory
from mt.runs import CONFIDENCE_FILE, CONFIDENCE_FORMAT, CONFIG_FILE
from mt.tables import align_columns, clip, make_printable

Floats = NDArray[np.float64]
_logger = logging.getLogger(__name__)
_FEWEST_PAIRS, _MOST_PAIRS = 100, 1000
_FALSE_COPIES, _FEWEST_COMMON = 0.002, 4
"""Share of references that may be `untranslated`, and words of a run in any case."""
_SHOWN_LINES, _SHOWN_WIDTH = 10, 60


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


def calibrate(translator: Translator, pairs: Sequence[SentencePair]) -> confidence.Calibration:
    """Fit a calibration to translations of pairs without blank sides.

    Below the least log-probability of a pair the curve falls to 0, as far from it as the greatest.
    """
    translations = translate_pairs(translator, pairs)
    metric, texts = CHRF(), [line.text for line in translations]
    references = [pair.target for pair in pairs]
    lines = zip(texts, references, strict=True)
    values = np.array([metric.sentence_score(text, [other]).score for text, other in lines])
    means = np.array(
        [confidence.mean_log_prob(line.alternatives[0].parts) for line in translations]
    )
    rising = fit_isotonic(means, values)
    least = float(means.min())
    curve = ((2 * least - float(means.max()), 0.0), (least, rising[0][1]), *rising)
    expected = np.interp(means, *np.array(curve).T)
    mean = np.average(expected, weights=[len(text) + 1 for text in texts])
    common = [len(confidence.find_common_words(pair.source, pair.target)) for pair in pairs]
    most_common = int(np.quantile(common, 1 - _FALSE_COPIES, method="higher"))
    return confidence.Calibration(
        model=translator.weights_and_search_id,
        pairs=len(pairs),
        signature=str(metric.get_signature()),
        curve=curve,
        deviation=float((values - expected).std()),
        corpus_offset=float(metric.corpus_score(texts, [references]).score - mean),
        common=max(_FEWEST_COMMON, 1 + most_common),
    )


def calibrate_run(
    run: Path,
    *,
    split: str | None = None,
    overrides: Sequence[str] = (),
    device: str = "auto",
    job: EvaluationJob | None = None,
) -> confidence.Calibration:
    """Calibrate a run or an export on a split, by default `valid`, or on the texts of a job.

    Writes confidence.json into its folder. At most 1,000 pairs are translated, evenly spread.
    Raises UserError for fewer than 100 pairs, and for sampling.
    """
    job = job or EvaluationJob()
    split = split or (None if job.texts else "valid")
    config, name, translator = load_for_split(run, split, overrides, device, job)
    return _calibrate_on(translator, config.data, name, run)


def calibrate_trained_run(run: Path, config: Config) -> None:
    """Calibrate a trained run on its valid split, unless that was done.

    `training.budget` may lower the pairs. A reason for no calibration is logged, never raised.
    """
    try:
        translator = Translator.load(run, overrides=config.tag_overrides("valid"))
        calibration = translator.calibration
        most = load_config(run / CONFIG_FILE).training.final_pairs or _MOST_PAIRS
        calibration = calibration or _calibrate_on(translator, config.data, "valid", run, most)
        _logger.info("%s", calibration.as_text())
    except (UserError, OSError) as error:
        _logger.info("no confidence: %s", error)


def _calibrate_on(
    translator: Translator, data: DataConfig, name: str, folder: Path, most: int = _MOST_PAIRS
) -> confidence.Calibration:
    """Calibrate a model on a split and write the result into its folder."""
    if translator.decoding.search == "sample":
        raise UserError("`decoding.search: sample` has no confidence; calibrate another search")
    read = open_split(data, name).pairs()
    pairs = [pair for pair in read if pair.source.strip() and pair.target.strip()]
    if len(pairs) < _FEWEST_PAIRS:
        raise UserError(f"{name} has {len(pairs)} pairs; a calibration needs {_FEWEST_PAIRS}")
    chosen = spread(pairs, min(most, _MOST_PAIRS))
    calibration = calibrate(translator, chosen)
    label = label_scores(name, len(chosen), translator.decoding.search_label, total=len(pairs))
    calibration = replace(calibration, label=label)
    write_json(folder / CONFIDENCE_FILE, {"format": CONFIDENCE_FORMAT, **asdict(calibration)})
    return calibration


@dataclass(frozen=True, slots=True)
class Projection:
    """Projected chrF of the translation of a text without references."""

    projected_chrf: float
    half_width: float
    """Half of the 95 % interval."""
    signature: str
    sentences: int
    label: str
    below: int
    """Lines that are less probable than all lines of the calibration."""
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
        head = f"projected chrF2 {self.projected_chrf:.0f} ± {self.half_width:.0f}"
        head += f" ({self.signature}), {self.label}"
        if self.below:
            head += f"\n{self.below:,} of them are less probable than all lines of the calibration"
        return f"{head}\n\n{align_columns(rows, right=[0, 1])}"


def project_run(
    run: Path, sources: Path, *, overrides: Sequence[str] = (), device: str = "auto"
) -> Projection:
    """Translate a text and project its chrF from the confidence of its lines.

    The 95 % interval is for text of the kind of the calibration. Lines with a fault come first in
    `lines`. Raises UserError for a run without a calibration, DataError for a text without words.
    """
    pairs = [SentencePair(line, "") for line in read_lines(require_file(sources))]
    keep_freed_memory()
    translator = Translator.load(run, overrides=overrides, device=device)
    calibration = translator.require_calibration("--sources")
    translations = translate_pairs(translator, pairs)
    lines = [line for line in translations if line.confidence is not None]
    if not lines:
        raise DataError(f"{sources}: has no text to translate")
    weights = np.array([len(line.text) + 1.0 for line in lines])
    weights /= weights.sum()
    expected = np.array([line.confidence for line in lines], dtype=np.float64)
    mean = float(weights @ expected)
    variance = np.square(weights) @ (np.square(expected - mean) + calibration.deviation**2)
    variance += calibration.deviation**2 / calibration.pairs
    lines.sort(key=lambda line: (line.status == "ok", line.confidence))
    names = ("line_number", "confidence", "status", "source", "text")
    return Projection(
        min(100.0, max(0.0, mean + calibration.corpus_offset)),
        1.96 * float(np.sqrt(variance)),
        calibration.signature,
        len(lines),
        label_scores(str(sources), len(lines), translator.decoding.search_label),
        sum(
            confidence.mean_log_prob(line.alternatives[0].parts) < calibration.curve[1][0]
            for line in lines
        ),
        tuple({name: getattr(line, name) for name in names} for line in lines[:_SHOWN_LINES]),
    )
