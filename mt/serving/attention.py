"""The attention between the pieces of a source and of its translation."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from mt.decoding.details import ExplainingEngine
from mt.decoding.translation import Part, Translation
from mt.decoding.translator import Translator


@dataclass(frozen=True, slots=True)
class PartAttention:
    """The attention of a line, or of a part of a line that was split."""

    source: list[str]
    """The source pieces, the end mark last."""
    target: list[str]
    """The target pieces, without end mark."""
    weights: NDArray[np.float32]
    """How much each target piece looks at each source piece [T S], from 0 to 1."""


def attention_of(
    translations: Sequence[Translation], translator: Translator
) -> Iterator[tuple[PartAttention, ...] | None]:
    """Yield the attention of each part of each translation, None where the engine cannot tell.

    A part whose translation is empty is left out.
    """
    best = [
        [part for part in each.alternatives[0].parts if part.hypothesis.ids]
        for each in translations
    ]
    engine = translator.engine
    if not isinstance(engine, ExplainingEngine):
        yield from (None for _ in best)
        return
    parts = [part for of_line in best for part in of_line]
    sources, hypotheses = [part.source for part in parts], [part.hypothesis for part in parts]
    details = iter(engine.explain(sources, hypotheses))
    for of_line in best:
        pairs = zip(of_line, islice(details, len(of_line)), strict=True)
        found = [_named(part, detail.attention, translator) for part, detail in pairs]
        known = tuple(part for part in found if part is not None)
        yield known if len(known) == len(found) else None


def _named(
    part: Part, weights: NDArray[np.float32] | None, translator: Translator
) -> PartAttention | None:
    """Return the weights with the names of their pieces."""
    if weights is None:
        return None
    tokenizer = translator.tokenizer
    return PartAttention(
        tokenizer.source.processor.id_to_piece(list(part.source)),
        tokenizer.target.processor.id_to_piece(list(part.hypothesis.ids)),
        weights,
    )
