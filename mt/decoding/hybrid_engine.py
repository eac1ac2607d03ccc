"""Decoding engine with the fast searches of CTranslate2 and all else of PyTorch."""

import logging
from collections.abc import Sequence
from threading import Lock
from typing import TYPE_CHECKING

import torch

from mt.config import DecodingConfig
from mt.decoding.cached_export import CachedExport
from mt.decoding.engine import Hypothesis, TargetPrefixes, why_not_decoded
from mt.decoding.torch_engine import TorchEngine
from mt.model.transformer import Transformer

if TYPE_CHECKING:
    from mt.decoding.ctranslate2_engine import CTranslate2Engine

_logger = logging.getLogger(__name__)
_WORTH_AN_EXPORT = 1500
"""Sentences at once. An export takes about as long as the translation of 1,000 sentences."""


def not_in_ctranslate2(decoding: DecodingConfig) -> str | None:
    """Return the key of a search that CTranslate2 does not do as PyTorch does, or None."""
    if reason := why_not_decoded(decoding):
        return reason.split("`")[1]
    for key in ("no_repeat_ngram", "min_length_ratio"):
        if decoding.search == "beam" and getattr(decoding, key):
            return f"decoding.{key}"
    return "decoding.precision: bf16" if decoding.precision == "bf16" else None


class HybridEngine(TorchEngine):
    """PyTorch engine that leaves most searches to CTranslate2, which is faster on a CPU.

    These are greedy searches, and beam searches for the best translation without constraints and
    prefixes. The export is loaded by the first of these; if it is missing, it is made by the first
    that is worth it. If that fails, all searches are those of PyTorch.
    """

    def __init__(self, model: Transformer, device: torch.device, export: CachedExport) -> None:
        super().__init__(model, device)
        self._export = export
        self._lock = Lock()
        self._is_open = False
        self._fast: CTranslate2Engine | None = None

    def require(self) -> None:
        """Load the export, and make it if it is missing; raise UserError if that fails."""
        self._fast = self._export.open()
        self._is_open = True

    def n_best_ids(
        self,
        sources: Sequence[Sequence[int]],
        decoding: DecodingConfig,
        count: int,
        *,
        prefixes: TargetPrefixes = (),
    ) -> list[list[Hypothesis]]:
        """Return hypotheses as `TorchEngine` does."""
        found: dict[int, list[Hypothesis]] = {}
        is_free = decoding.search == "greedy" or not any(prefixes)
        if count == 1 and is_free and not_in_ctranslate2(decoding) is None:
            fast = self._opened(len(sources))
            found = fast.best_as_in_torch(sources, decoding, prefixes) if fast else {}
        rest = [number for number in range(len(sources)) if number not in found]
        again = super().n_best_ids(
            [sources[number] for number in rest],
            decoding,
            count,
            prefixes=[prefixes[number] for number in rest] if prefixes else (),
        )
        found.update(zip(rest, again, strict=True))
        return [found[number] for number in range(len(sources))]

    def _opened(self, sentences: int) -> "CTranslate2Engine | None":
        """Return the engine of the export; None if it is missing and too few sentences wait."""
        with self._lock:
            if self._is_open:
                return self._fast
            try:
                if sentences < _WORTH_AN_EXPORT and not self._export.exists():
                    return None
                self._fast = self._export.open()
            except Exception as error:  # a slower search is better than none
                _logger.info("searching with PyTorch, which is slower: %s", error)
            self._is_open = True
            return self._fast
