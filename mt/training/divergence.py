"""What to do with a training that has diverged: stop it, or go back to before it did."""

from collections.abc import Callable
from dataclasses import replace
from typing import NoReturn

from mt.errors import DivergedError
from mt.training.setup import Session
from mt.training.state import TrainState

RATE_AFTER_ROLLBACK = 0.5
MOST_ROLLBACKS = 5
"""Then the rate is 1/32 of the config's: what still diverges does not do so because of it."""


def stop(session: Session, trouble: str) -> NoReturn:
    """Raise DivergedError, with what can be done about it."""
    state, path = session.state, session.folder.path
    session.progress.record("diverged", update=state.update, reason=trouble)
    told = f"{path}: {trouble}; it was well until update {state.health.well_at:,}"
    other = "train a new run (--run) with a lower `training.learning_rate` or more `warmup_updates`"
    safe = known_well(state)
    if not safe:
        raise DivergedError(f"{told}, and no checkpoint from before that is kept; {other}")
    if state.rollbacks >= MOST_ROLLBACKS:
        raise DivergedError(f"{told}, and {state.rollbacks} rollbacks have not mended it; {other}")
    raise DivergedError(
        f"{told}, and its checkpoint after update {safe[0]:,} is kept: go on from there at half "
        f"the rate with --set training.on_divergence=rollback, or {other}"
    )


def roll_back(session: Session, trouble: str) -> Session:
    """Load the newest checkpoint from before the trouble, and lower the rate from there on.

    It is saved in the place of the one that was loaded before any newer one is deleted. Killed
    between, the run goes on in its trouble, and comes here again with the same outcome.

    Raises DivergedError, as `stop` does, where there is none, or after MOST_ROLLBACKS.
    """
    former, checkpoints, progress = session.state, session.folder.checkpoints, session.progress
    world = session.world
    safe = known_well(former)
    if not safe or former.rollbacks >= MOST_ROLLBACKS:
        stop(session, trouble)
    loaded = world.rank0_first(lambda: checkpoints.resume(session.learner, safe))
    assert loaded is not None, "one is loaded, or all are told to be damaged"
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
    factor = state.rate_factor
    progress.go_back(state.update)
    progress.say(
        f"{trouble}: back to the checkpoint after update {state.update:,}, and on at {factor} of "
        "the learning rate"
    )
    places = {"from": former.update, "to": state.update}
    progress.record("rollback", update=state.update, **places, reason=trouble, factor=factor)
    if world.is_main:
        checkpoints.prune(state)
    return replace(session, state=state, unread=[])


def known_well(state: TrainState) -> list[int]:
    """Return the checkpoints, newest first, whose weights a later update has found well."""
    kept = [*state.last, *([] if state.refuge is None else [state.refuge])]
    return sorted({each for each in kept if each < state.health.well_at}, reverse=True)


def keep_last(state: TrainState, count: int) -> None:
    """Name the checkpoints to keep as the last ones, now that there is one of this update.

    While the run isn't well, the newest one from before that is kept besides.
    """
    if state.update not in state.last:
        state.last.append(state.update)
    safe = known_well(state)
    state.last = state.last[-count:]
    is_well = state.health.well_at == state.update
    state.refuge = safe[0] if safe and not is_well else None


def shown_rollbacks(state: TrainState) -> str:
    """Return what stands beside the score of a run that was rolled back; otherwise nothing."""
    if not state.rollbacks:
        return ""
    return f", after {state.rollbacks} rollback{'s' if state.rollbacks > 1 else ''}"


ON_DIVERGENCE: dict[str, Callable[[Session, str], Session]] = {"stop": stop, "rollback": roll_back}
"""What `training.on_divergence` names: it returns what to go on with, or raises."""
