"""Where a training run stands."""

from dataclasses import asdict, dataclass, field

from mt.errors import RunError
from mt.training.health import Health

STATE_FORMAT = 2


@dataclass(frozen=True)
class Ranked:
    """A checkpoint and its validation score; a higher `score` is better."""

    update: int
    score: float


@dataclass
class TrainState:
    """Everything besides tensors that a resumed run needs to be the same run."""

    update: int = 0
    epoch: int = 0
    update_in_epoch: int = 0
    target_tokens: int = 0
    skipped_updates: int = 0
    validated_update: int = 0
    validations_without_gain: int = 0
    elapsed_seconds: float = 0.0
    best: list[Ranked] = field(default_factory=list)
    last: list[int] = field(default_factory=list)
    health: Health = field(default_factory=Health)
    refuge: int | None = None
    """The checkpoint to go back to, where none of the `last` is known to be from before trouble."""
    rollbacks: int = 0
    rate_factor: float = 1.0
    """What the schedule's learning rate is multiplied by; a rollback lowers it."""

    @property
    def epoch_number(self) -> int:
        """The epoch, counted from 1, that the newest update belongs to."""
        return self.epoch + (self.update_in_epoch > 0)

    def as_json(self) -> dict[str, object]:
        """Return plain data."""
        return {"format": STATE_FORMAT, **asdict(self)}

    @classmethod
    def from_json(cls, data: dict[str, object], name: str) -> "TrainState":
        """Return the state of plain data; `name` says in errors where they come from."""
        fields = dict(data)
        if fields.pop("format", None) != STATE_FORMAT:
            raise RunError(f"{name}: was written by another version of mt")
        try:
            best = [Ranked(**entry) for entry in fields.pop("best")]  # type: ignore[attr-defined]
            health = Health(**fields.pop("health"))  # type: ignore[arg-type]
            return cls(best=best, health=health, **fields)  # type: ignore[arg-type]
        except (TypeError, KeyError) as error:
            raise RunError(f"{name}: is damaged ({error})") from None
