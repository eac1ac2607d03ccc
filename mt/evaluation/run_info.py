"""What a run folder tells of itself, for `mt info` and the model card."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from mt.config import Config
from mt.decoding.exported import Exported
from mt.evaluation.scores import Score

PASSPORT_SUFFIX = ".passport.json"
"""Of the passport of a file of translations that was scored by itself, wherever it lies."""
ROBUSTNESS_SUFFIX = ".robustness.json"
"""Of what `mt evaluate --robustness` writes for a split."""


@dataclass(frozen=True, slots=True)
class CorpusInfo:
    """A corpus of the run; None is what the folder does not tell."""

    split: str
    name: str | None
    """`corpus` in the config."""
    places: tuple[str, ...]
    """Paths or addresses, or name and commit on the hub, as the config has them."""
    pairs: int | None
    """Of `train` those that were learnt from."""
    sha256_source: str | None
    sha256_target: str | None


@dataclass(frozen=True, slots=True)
class TokenizerInfo:
    """The vocabularies."""

    algorithm: str
    vocabulary: str
    """`joint` or `separate`."""
    source_size: int
    target_size: int
    fingerprint: str


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """The final model of a finished run."""

    parameters: int
    bytes: int
    sha256: str
    """Of the weight file."""
    longest_source: int
    """Pieces, end mark included; longer lines are split."""
    updates: int
    averaged_updates: tuple[int, ...]
    validation: str
    """Loss and scores on the validation pairs, with signatures."""
    too_long: int | None
    """Training pairs left out for their length."""
    empty: int | None
    """Training pairs left out for an empty side."""


@dataclass(frozen=True, slots=True)
class ScoredSplit:
    """What `mt evaluate` has written for a split."""

    split: str
    sentences: int
    bleu: Score
    chrf: Score
    overrides: tuple[str, ...]
    """The decoding keys that were not those of the config, `KEY=VALUE`."""
    current: bool
    """Whether it was made with the weights that are there now."""


@dataclass(frozen=True, slots=True)
class Environment:
    """What the last training in the folder ran on."""

    started_at: str | None
    mt: str | None
    python: str | None
    torch: str | None
    system: str | None
    processor: str | None
    device: str | None
    precision: str | None


@dataclass(frozen=True, slots=True)
class RunInfo:
    """All that a run folder tells."""

    run: Path
    config: Config
    corpora: tuple[CorpusInfo, ...]
    tokenizer: TokenizerInfo | None
    """None where the training has not come to it."""
    model: ModelInfo | None
    """None where the training has not finished, and in an exported folder."""
    exported: Exported | None
    """What was exported, where it is no run but a folder of `mt export`."""
    updates: int
    """How far the training has come, as its journal has it."""
    scores: tuple[ScoredSplit, ...]
    environment: Environment

    @property
    def state(self) -> Literal["finished", "unfinished", "exported"]:
        """What kind of folder it is."""
        if self.exported:
            return "exported"
        return "finished" if self.model else "unfinished"

    def as_record(self) -> dict[str, Any]:
        """Return everything as plain data, the config whole."""
        return {
            "run": str(self.run),
            "state": self.state,
            "config": self.config.model_dump(mode="json", by_alias=True),
            "corpora": [asdict(corpus) for corpus in self.corpora],
            "tokenizer": asdict(self.tokenizer) if self.tokenizer else None,
            "model": asdict(self.model) if self.model else None,
            "exported": asdict(self.exported) if self.exported else None,
            "updates": self.updates,
            "scores": [asdict(scored) for scored in self.scores],
            "environment": asdict(self.environment),
        }
