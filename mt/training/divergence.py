"""Responses to a training that has diverged: stop, or roll back to an earlier checkpoint."""

from collections.abc import Callable
from dataclasses import replace
from typing import NoReturn

from mt.errors import DivergedError
from mt.training.setup import Session
from mt.training.state import TrainState

RATE_AFTER_ROLLBACK = 0.5
MOST_ROLLBACKS = 5
"""After these the rate is 1/32 of the config's, so it cannot be the cause any more."""


def stop(session: Session, reason: str) -> NoReturn:
    """Raise DivergedError with the remedies that this run has."""
    state = session.state
    session.progress.record("diverged", update=state.update, reason=reason)
    safe = checkpoints_before(state)
    remedy = "train a new run (--run) with a lower `training.learning_rate` or more warm-up"
    if not safe:
        remedy = f"no checkpoint from before is kept; {remedy}"
    elif state.rollbacks >= MOST_ROLLBACKS:
        remedy = f"{state.rollbacks} rollbacks did not help; {remedy}"
    else:
        remedy = (
            f"continue from its checkpoint after update {safe[0]:,} at half the rate with "
            f"--set training.on_divergence=rollback, or {remedy}"
        )
    raise DivergedError(
        f"{session.folder.path}: {reason}; training was stable until update "
        f"{state.health.well_at:,}; {remedy}"
    )


def roll_back(session: Session, reason: str) -> Session:
    """Return a session at the newest checkpoint from before the divergence, with half the rate.

    The new state is saved before any later checkpoint is deleted. A run that is killed in between
    continues after the divergence, and rolls back again with the same result.

    Raises DivergedError, as `stop` does, without such a checkpoint or after MOST_ROLLBACKS.
    """
    former, checkpoints, world = session.state, session.folder.checkpoints, session.world
    safe = checkpoints_before(former)
    if not safe or former.rollbacks >= MOST_ROLLBACKS:
        stop(session, reason)
    loaded = world.rank0_first(lambda: checkpoints.resume(session.learner, safe))
    assert loaded is not None, "`resume` raises if it cannot load any of the checkpoints"
    kept = set(world.broadcast(checkpoints.updates()))
    state = replace(
        loaded,
        best=[each for each in loaded.best if each.update in kept],
        last=[update for update in loaded.last if update in kept],
        skipped_updates=former.skipped_updates,
        elapsed_seconds=former.elapsed_seconds,
        rollbacks=former.rollbacks + 1,
        rate_factor=former.rate_factor * RATE_AFTER_ROLLBACK,
    )
    if world.is_main:
        checkpoints.save(session.learner, state)
    session.progress.rewind(state.update)
    session.progress.say(
        f"{reason}: continuing from the checkpoint after update {state.update:,} at "
        f"{state.rate_factor} of the learning rate"
    )
    session.progress.record(
        "rollback",
        update=state.update,
        reason=reason,
        factor=state.rate_factor,
        **{"from": former.update, "to": state.update},
    )
    if world.is_main:
        checkpoints.prune(state)
    return replace(session, state=state, unread=[])


ON_DIVERGENCE: dict[str, Callable[[Session, str], Session]] = {"stop": stop, "rollback": roll_back}
"""Responses by value of `training.on_divergence`: return the session to continue with, or raise."""


def checkpoints_before(state: TrainState) -> list[int]:
    """Return the checkpoints, newest first, whose weights a later update has found healthy."""
    kept = [*state.last, *([] if state.refuge is None else [state.refuge])]
    return sorted({each for each in kept if each < state.health.well_at}, reverse=True)


def keep_last(state: TrainState, count: int) -> None:
    """Add the current update to the last checkpoints, of which `count` are kept.

    While the run is not healthy, the newest checkpoint from before is kept too.
    """
    if state.update not in state.last:
        state.last.append(state.update)
    safe = checkpoints_before(state)
    state.last = state.last[-count:]
    is_healthy = state.health.well_at == state.update
    state.refuge = safe[0] if safe and not is_healthy else None


def shown_rollbacks(state: TrainState) -> str:
    """Return the note on rollbacks that follows the score of a run; empty without any."""
    if not state.rollbacks:
        return ""
    return f", after {state.rollbacks} rollback{'s' if state.rollbacks > 1 else ''}"
