"""Judge: a finished run or an export that scores translations of another program."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import takewhile
from math import fsum, nan
from pathlib import Path
from typing import Any

from mt.augment.teacher import Teacher
from mt.decoding.scoring import Scorer

_SETTINGS = ("decoding.mbr=null",)


@dataclass(frozen=True, slots=True)
class JudgeScore:
    """Natural log-probabilities of a translation; NaN for a pair too long for the model."""

    mean: float = nan
    """Mean per token."""
    end: float = nan
    """Sum over the end mark and the punctuation before it."""


@dataclass(frozen=True)
class Judge:
    """Run with its settings; the model is loaded on first use."""

    run: Path
    device: str = "auto"

    def check(self, languages: tuple[str, str]) -> None:
        """Raise RunError or UserError unless the run is finished and has this direction."""
        of = "the config's corpora are"
        self._teacher.require_direction(*languages, of=of)

    @property
    def settings(self) -> dict[str, Any]:
        """Settings of the run by key; `model` identifies the weights."""
        return self._teacher.settings

    def scores(self, sources: Sequence[str], translations: Sequence[str]) -> list[JudgeScore]:
        """Return the score of each pair."""
        tokenizer, engine = self._scorer.tokenizer, self._scorer.engine
        encoded = tokenizer.encode_source(list(sources))
        given = tokenizer.encode_target(list(translations))
        longest = engine.longest
        fitting = [
            place
            for place, pair in enumerate(zip(encoded, given, strict=True))
            if longest is None or max(map(len, pair)) <= longest
        ]
        found = [JudgeScore()] * len(encoded)
        log_probs = engine.score(
            [encoded[each] for each in fitting], [given[each] for each in fitting]
        )
        names = tokenizer.target.processor.id_to_piece
        for place, each in zip(fitting, log_probs, strict=True):
            tokens = names(list(given[place]))[:-1]
            marks = sum(1 for _ in takewhile(_is_punctuation, reversed(tokens)))
            found[place] = JudgeScore(fsum(each) / len(each), fsum(each[len(each) - 1 - marks :]))
        return found

    @cached_property
    def _teacher(self) -> Teacher:
        return Teacher.read(self.run, overrides=_SETTINGS, device=self.device)

    @cached_property
    def _scorer(self) -> Scorer:
        return Scorer.load(self.run, _SETTINGS, self.device)


def _is_punctuation(token: str) -> bool:
    return not any(map(str.isalnum, token))
