"""A proof that a translation depends on its own sentence, and not on its neighbours."""

import logging
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from mt.config.loading import load_config
from mt.data.lines import existing_file
from mt.data.sources import open_source
from mt.decoding.engine import Hypothesis
from mt.decoding.files import read_lines
from mt.decoding.translator import Translator, load_translator
from mt.errors import DataError
from mt.runs import CONFIG_FILE, check_run_folder

BATCH_SIZES = (1, 7, 64)
TIE = 1e-5
"""Scores that differ by no more are equal but for rounding."""

_logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Difference:
    """A sentence that was translated in two ways."""

    line_number: int
    way: str
    """Batch size or order."""
    scores: tuple[float, float]

    @property
    def tie(self) -> bool:
        """Tell whether the two hypotheses are equally good but for rounding."""
        return abs(self.scores[0] - self.scores[1]) <= TIE


@dataclass(frozen=True)
class BatchProof:
    """What came of translating sentences in several batches and orders."""

    sentences: int
    ways: tuple[str, ...]
    differences: tuple[Difference, ...]

    @property
    def passed(self) -> bool:
        """Tell whether at most one sentence in 1,000 differs, and that by a tie."""
        lines = {each.line_number for each in self.differences}
        allowed = max(1, self.sentences // 1000)
        return len(lines) <= allowed and all(each.tie for each in self.differences)

    @property
    def text(self) -> str:
        """Return the verdict: a line, and one for each sentence that differs."""
        verdict = "ok" if self.passed else "FAILED"
        same = "the same translations" if not self.differences else "not all the same translations"
        head = f"batches: {verdict}, {self.sentences:,} sentences, {same}: {', '.join(self.ways)}"
        lines = [
            f"  line {each.line_number}, {each.way}: scores {each.scores[0]:.6f} and "
            f"{each.scores[1]:.6f}{', a tie' if each.tie else ''}"
            for each in self.differences
        ]
        return "\n".join([head, *lines])


@dataclass(frozen=True)
class _Way:
    """A batch size, and the order of the sentences."""

    name: str
    batch_size: int
    order: list[int]


def selftest_batches(
    run: Path, file: Path | None, *, most: int, overrides: Sequence[str] = (), device: str = "auto"
) -> BatchProof:
    """Translate the first sentences of a file in batches of several sizes and in another order.

    Without a file they are those of the first test split of the run's config, or of its validation
    split; sentences that the translator would split are left out. Raises what `load_translator`
    does, and DataError for a file without any text.
    """
    lines = _lines_of_a_split(run) if file is None else read_lines(existing_file(file))
    translator = load_translator(run, overrides=overrides, device=device)
    text = [(number, line) for number, line in enumerate(lines, start=1) if line.strip()][:most]
    encoded = translator.tokenizer.encode_source([line for _, line in text])
    numbered = [
        (number, ids)
        for (number, _), ids in zip(text, encoded, strict=True)
        if len(ids) <= translator.longest_source
    ]
    if not numbered:
        raise DataError(f"{file or run}: holds no sentence to translate")
    numbers, sources = zip(*numbered, strict=True)
    first, *others = _ways(len(sources))
    wanted = _translated(translator, sources, first)
    differences = [
        Difference(number, way.name, (one.score, other.score))
        for way in others
        for number, one, other in zip(
            numbers, wanted, _translated(translator, sources, way), strict=True
        )
        if one.ids != other.ids
    ]
    return BatchProof(len(sources), tuple(way.name for way in (first, *others)), tuple(differences))


def _lines_of_a_split(run: Path) -> list[str]:
    check_run_folder(run)
    data = load_config(run / CONFIG_FILE).data
    _, source = data.first_split()
    return [pair.source for pair in open_source(source, data).pairs()]


def _ways(sentences: int) -> list[_Way]:
    as_given = [*range(sentences)]
    mixed = random.Random(1).sample(as_given, k=sentences)
    ways = [_Way(f"batches of {size}", size, as_given) for size in BATCH_SIZES]
    return [*ways, _Way(f"batches of {BATCH_SIZES[-1]} in another order", BATCH_SIZES[-1], mixed)]


def _translated(
    translator: Translator, sources: Sequence[list[int]], way: _Way
) -> list[Hypothesis]:
    """Return the hypotheses, in the order of the sources."""
    _logger.info("translating %d sentences in %s", len(sources), way.name)
    decoding = translator.decoding.model_copy(update={"batch_size": way.batch_size})
    found = translator.engine.translate_ids([sources[place] for place in way.order], decoding)
    return [found[place] for place in np.argsort(way.order)]
