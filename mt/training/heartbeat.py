"""Ranks that watch each other: where one dies or fails, all end, and each says which it was.

Nothing else would tell: a process that waits for a dead one on another host waits for hours. Each
rank counts on in the store of torchrun and looks at the counts of all. Two threads do it, since a
store that cannot be reached any more answers nothing at all: one talks to the store, the other
looks at what has come of it and never waits for the network.
"""

import json
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from itertools import compress

from torch.distributed.distributed_c10d import Store

from mt.errors import EXIT_USER_ERROR, UserError
from mt.training.meeting import Member, meet

BEAT_SECONDS = 1.0
SILENT_BEATS = 20
"""So long a rank may say nothing. Below the 30 s after which torchrun kills the ranks beside a
dead one, and above what encoding or a sort can keep Python from its threads."""
SUSPECTED_BEATS = 6
"""The same once a connection between ranks has broken."""
_BEAT, _FAILURE = "mt/beat/", "mt/failure"
_STDERR = 2


@dataclass(frozen=True)
class Failure:
    """Why the training ends."""

    line: str
    rank: int | None
    """The rank whose user has been told already; None where each rank is to tell its own."""


class Heartbeat:
    """Ends this process with a line on stderr where another rank has died or failed."""

    def __init__(self, store: Store, members: list[Member], own: Member) -> None:
        self._store = store
        self._members = members
        self._own = own
        self._counts = [0] * len(members)
        self._patience = SILENT_BEATS
        self._verdict: Failure | None = None
        """What the looking thread has found, for the other one to post."""
        self._stopped = threading.Event()
        self._ending = threading.Lock()
        self._threads = [
            threading.Thread(target=work, daemon=True) for work in (self._exchange, self._look)
        ]

    def start(self) -> None:
        """Begin to beat and to look."""
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """End both threads; what happens to other ranks is of no concern from here on."""
        with self._ending:
            self._stopped.set()
        for thread in self._threads:
            thread.join(timeout=2 * BEAT_SECONDS)

    def await_cause(self) -> None:
        """Wait until it is known whose end has broken a connection, which ends this process.

        Returns where nobody else has died or failed: then the fault is here.
        """
        self._patience = SUSPECTED_BEATS
        self._stopped.wait((SUSPECTED_BEATS + 6) * BEAT_SECONDS)

    def fail(self, message: str) -> None:
        """Let the others know why this rank fails; SystemExit where one of them was first."""
        failure = Failure(f"{self._own}: {message}", self._own.rank)
        if self._first(failure) != failure:
            raise SystemExit(EXIT_USER_ERROR) from None

    def _first(self, failure: Failure) -> Failure:
        """Return the failure that ends the training: this one, unless there was one before."""
        with suppress(RuntimeError):  # the store may be what has failed
            known = self._store.compare_set(_FAILURE, "", json.dumps(asdict(failure)))
            return Failure(**json.loads(known))
        return failure

    def _exchange(self) -> None:
        """Count on in the store and fetch the counts of all, again and again."""
        keys = [*(f"{_BEAT}{member.rank}" for member in self._members), _FAILURE]
        count = 0
        while not self._stopped.wait(BEAT_SECONDS):
            count += 1
            try:
                self._store.set(keys[self._own.rank], str(count))
                *counts, failure = self._store.multi_get(keys)
            except RuntimeError:
                self._end(self._unreachable())
                return
            self._counts = [int(each) for each in counts]
            if failure:
                self._end(Failure(**json.loads(failure)))
            if self._verdict is not None:
                self._end(self._first(self._verdict))

    def _look(self) -> None:
        """Count the looks at which a rank's count stood still, until they are too many."""
        before, looks = self._counts, [0] * len(self._members)
        while not self._stopped.wait(BEAT_SECONDS):
            now = self._counts
            looks = [
                still + 1 if count == old else 0
                for still, count, old in zip(looks, now, before, strict=True)
            ]
            before = now
            if looks[self._own.rank] >= self._patience:
                self._end(self._unreachable())
            # Counts that are not fresh say nothing of the others.
            elif looks[self._own.rank] == 0 and max(looks) >= self._patience:
                silent = [still > self._patience // 2 for still in looks]
                names = ", ".join(map(str, compress(self._members, silent)))
                self._verdict = Failure(_ended(names), None)

    def _unreachable(self) -> Failure:
        first = self._members[0].host
        return Failure(_ended(f"host {first}, that of rank 0 and of torchrun's store"), None)

    def _end(self, failure: Failure) -> None:
        """Leave at once, whatever the main thread is waiting for."""
        with self._ending:
            if self._stopped.is_set():
                return
            if self._tells(failure):
                os.write(_STDERR, f"\nerror: {failure.line}\n".encode())
            os._exit(EXIT_USER_ERROR)

    def _tells(self, failure: Failure) -> bool:
        """Tell whether this rank prints a failure: where one has, it is one on each other host."""
        if failure.rank is None:
            return True
        here = [member.rank for member in self._members if member.host == self._own.host]
        return failure.rank not in here and self._own.rank == min(here)


def _ended(who: str) -> str:
    return (
        f"{who}: died, or cannot be reached any more; "
        "the same command goes on from the newest checkpoint"
    )


@contextmanager
def together(store: Store, rank: int, size: int) -> Iterator[list[Member]]:
    """Run a block that ends on all ranks where it ends with an error, or by death, on one.

    Gives the members. `store` is a connection for this alone. An error of one rank is told by that
    rank alone, and once on each other host.
    """
    if rank == 0:
        store.set(_FAILURE, "")
    store.set(f"{_BEAT}{rank}", "0")
    members = meet(store, rank, size)
    heartbeat = Heartbeat(store, members, members[rank])
    heartbeat.start()
    try:
        yield members
    except UserError as error:
        heartbeat.fail(str(error))
        raise
    except RuntimeError as error:  # among others, what a broken connection comes as
        heartbeat.await_cause()
        heartbeat.fail(_described(error))
        raise
    except Exception as error:
        heartbeat.fail(_described(error))
        raise
    finally:
        heartbeat.stop()


def _described(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"
