"""What tasks of one pool tell of themselves while they run on its host: how far they came.

The latest word of each task is saved once a second, so a crash loses about that much. The next attempt reads it, on
whatever host. What a task told is here while it runs, and until it is saved.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import threading
from functools import partial

import msgspec

from emq.producer.rounds import Rounds
from emq.runtime import errors
from emq.runtime.clock import Clock
from emq.runtime.inputs import shown
from emq_scheduling.records.cancels import CLOCKS_US
from emq_scheduling.records.ends import us
from emq_scheduling.records.progress import Key, Progress, Told, key_of
from emq_scheduling.tasks import Task

log = logging.getLogger(__name__)

MOST_BYTES = 4096
"""Of the progress of a task, as JSON."""

AT_ONCE = 1_000
"""Most tasks whose progress one save writes, those that have waited longest; the others follow a second later."""

MOST_LEFT = 5_000
"""Tasks that do not run any more and whose progress waits to be saved, at most: beyond, while the database is away, the
oldest is forgotten."""


def encoded(progress: object) -> bytes:
    """Return progress as JSON.

    Raises:
        ValueError: JSON cannot hold it, or it is too large.
    """
    try:
        body = msgspec.json.encode(progress)
        if len(body) <= MOST_BYTES:
            msgspec.json.decode(body)  # the next attempt must be able to read it: `msgspec.Raw` may hold anything
    except Exception as exc:  # also what a method of the performer's own class raises
        raise ValueError(f"progress {shown(progress)} is no value that JSON can hold: {exc}") from None
    if len(body) > MOST_BYTES:
        raise ValueError(f"progress has {len(body):,} bytes as JSON; give at most {MOST_BYTES:,}, such as a place")
    return body


class Beats:
    """The progress of the tasks of one pool, on the host that owns it.

    Args:
        table: where it is saved.

    Attributes:
        lock: held while a task tells something; a performer may do so in a thread.
    """

    def __init__(self, table: Progress, pool: str, clock: Clock) -> None:
        self._table = table
        self._pool = pool
        self._clock = clock
        self._since_us = us(clock.now()) + CLOCKS_US
        self.lock = threading.Lock()
        self._told: dict[Key, Told] = {}
        self._unsaved: dict[Key, None] = {}
        self._left: dict[Key, None] = {}  # of these, the tasks that do not run any more
        self._saved: set[Key] = set()  # those of `_told` that may have a row
        self._gone: dict[Key, None] = {}  # tasks that have ended, and may have one
        self._is_any = False
        self._looks = Rounds(partial(table.of, pool), "reading of progress")

    async def begin(self) -> None:
        """Learn whether tasks have told their progress to former hosts: call it first."""
        self._is_any = await self._table.is_any(self._pool)

    def may_have(self, task: Task, delivery: int) -> bool:
        """Return whether a former attempt of a task may have told its progress: then `look` for it.

        Args:
            delivery: which one it is of the task's message, from 1.
        """
        return self._is_any and (delivery > 1 or task.submitted_us < self._since_us)

    async def look(self, task: Task) -> None:
        """Read what former attempts of a task have told; call `leave` once it is over.

        Raises:
            DatabaseUnavailable: nobody knows now; try again later.
        """
        key = key_of(task)
        self._left.pop(key, None)
        if key not in self._told:
            found = (await asyncio.shield(self._looks.join([task.id]))).get(key)  # tasks that come together share it
            if found is not None:
                # What this attempt tells goes before that, also if the clock was set back since.
                self._told[key] = found._replace(started_us=found.started_us + 1)
                self._saved.add(key)

    def progress(self, task: Task) -> object:
        """Return what the latest attempt of a task has told; None if it told nothing."""
        found = self._told.get(key_of(task)) if self._told else None
        return None if found is None else msgspec.json.decode(found.body)

    def tell(self, task: Task, started_us: int, body: bytes) -> None:
        """Note how far a task came that runs; see `encoded`. Hold the lock."""
        key = key_of(task)
        if (before := self._told.get(key)) is not None:
            started_us = max(started_us, before.started_us)
        self._told[key] = Told(body, started_us, us(self._clock.now()))
        self._unsaved[key] = None
        self._is_any = True

    def leave(self, task: Task, *, has_ended: bool) -> None:
        """A task has left this host, or has ended for good: then its progress is forgotten."""
        if not self._told:
            return
        key = key_of(task)
        with self.lock:
            if has_ended:
                if key in self._saved:
                    self._gone[key] = None
                self._forget(key)
            elif key in self._unsaved:
                self._left[key] = None
                if len(self._left) > MOST_LEFT:
                    self._forget(next(iter(self._left)))
            else:
                self._forget(key)

    def ended_in_store(self, task: Task, delivery: int) -> None:
        """A task has ended that was not here: forget what former attempts have told.

        If the database is away and thousands wait, its row stays until it is too old.
        """
        if self.may_have(task, delivery) and len(self._gone) < MOST_LEFT:
            self._forget(key_of(task))
            self._gone[key_of(task)] = None

    async def save(self) -> bool:
        """Save what tasks have told since the last time; return whether there is more.

        Raises:
            DatabaseUnavailable: nothing is lost; call it again.
        """
        keys = list(itertools.islice(self._unsaved, AT_ONCE))
        told, gone = {key: self._told[key] for key in keys}, list(itertools.islice(self._gone, AT_ONCE))
        if not (told or gone):
            return False
        self._saved |= told.keys()
        await self._table.save(self._pool, told, gone)
        with self.lock:
            for key, one in told.items():
                if self._told.get(key) is one:  # else it has told more, or has ended, meanwhile
                    self._unsaved.pop(key, None)
                    if key in self._left:
                        self._forget(key)
        for key in gone:
            self._gone.pop(key, None)
        return bool(self._unsaved or self._gone)

    async def end(self) -> None:
        """Save the rest. A performer that cannot be cancelled may still run, and tell more: that is not waited for."""
        try:
            for _ in range(1 + max(len(self._unsaved), len(self._gone)) // AT_ONCE):
                await self.save()
        except errors.DatabaseUnavailable as exc:
            log.warning("pool %r: how far %d tasks came was not saved: %s", self._pool, len(self._unsaved), exc)

    def _forget(self, key: Key) -> None:
        for known in (self._left, self._unsaved, self._told):
            known.pop(key, None)
        self._saved.discard(key)
