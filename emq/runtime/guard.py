"""Keeps a host's loops running: restarts a loop that breaks, and counts and logs unexpected failures.

Most errors of single items never come here. `emq.storage.answers.of_each` turns an error of the store into an answer
for each entry, `emq.runtime.troubles` lets failed entries rest, and `emq.dispatch.retry` words failures of handlers.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping

from emq.runtime import errors

log = logging.getLogger(__name__)

REST_S = 1.0
"""Seconds that a broken loop rests before it runs again. Not longer: a host has to learn of changes of the catalog
within `emq.topics.shares.LEARN_S`."""

SAID_AGAIN_S = 60.0
"""Seconds before the log repeats a failure of the same loop, item and kind."""

SAID = 1_000
"""Most failures remembered as logged."""

FATAL = (errors.HostConflict, errors.ForeignTree, errors.InvalidSettings)
"""Errors that no restart mends: the operator has to act, so the host ends."""


class Guard:
    """Keeps the loops of one host running.

    Attributes:
        names: the loops that were started.
        resting: the loops that broke and wait to be started again, each with its last error.
        dead: the loops that ended for good, each with its error: no restart mends them, and the host ends.
        broken: number of failures of each loop or of its items, by the loop's name. Each failure is a bug of EMQ, or
            data damaged in a way that EMQ does not know; a healthy host has none.
    """

    def __init__(self) -> None:
        self.broken: Counter[str] = Counter()
        self.names: set[str] = set()
        self.resting: dict[str, str] = {}
        self.dead: dict[str, str] = {}
        self._said: dict[str, float] = {}

    async def keep(self, name: str, loop: Callable[[], Awaitable[None]]) -> None:
        """Run `loop` for ever: log and count its failures, and start it again after a rest. Ends by cancellation.

        Raises:
            HostConflict, ForeignTree, InvalidSettings: no restart mends this; see the error for the remedy.
        """
        while True:
            try:
                await loop()
                failure: Exception = RuntimeError("it returned, which it should not")
            except FATAL as exc:
                self.dead[name] = str(exc)
                raise
            except asyncio.CancelledError as exc:
                if (task := asyncio.current_task()) is None or task.cancelling():
                    raise
                failure = RuntimeError("it was cancelled from within")
                failure.__cause__ = exc
            except Exception as exc:
                failure = exc
            self.note(name, f"it starts again in {REST_S:g} s", failure)
            self.resting[name] = f"{type(failure).__name__}: {failure}"
            await asyncio.sleep(REST_S)
            self.resting.pop(name, None)

    def note(self, name: str, what_next: str, failure: BaseException, item: str = "") -> None:
        """Count an unexpected failure, and log it unless the same failure was logged in the last `SAID_AGAIN_S`.

        Args:
            name: the loop's name.
            what_next: says in the log how EMQ goes on.
            item: the message, queue, slot or topic at which the loop failed, if known.
        """
        self.broken[name] += 1
        place, now = f"{name} {item} {type(failure).__name__}", time.monotonic()
        if now - self._said.get(place, -SAID_AGAIN_S) < SAID_AGAIN_S:
            return
        if len(self._said) >= SAID:
            self._said.clear()
        self._said[place] = now
        where = f" at {item}" if item else ""
        log.error("the loop %r broke%s; %s", name, where, what_next, exc_info=failure)

    def start(self, loops: Mapping[str, Callable[[], Awaitable[None]]]) -> list[asyncio.Task[None]]:
        """Start each loop as a task named for the loop; return the tasks."""
        self.names.update(loops)
        return [asyncio.create_task(self.keep(name, loop), name=f"emq {name}") for name, loop in loops.items()]
