"""What keeps a host's loops running: a loop that breaks is started again, and one group's trouble stays with the group.

Most errors of single items never come here: `emq.storage.answers.of_each` turns what a store raises into an answer for
each entry, `emq.loops.troubles` lets entries that failed rest, and `emq.dispatch.retry` words any failure of a handler.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping

from emq import errors

log = logging.getLogger(__name__)

RESTARTS_S = (1.0, 2.0, 5.0)
"""How long a loop that broke rests before it runs again, by how often it broke in a row."""

IN_A_ROW_S = 30.0
"""A loop that ran for so long before it broke begins with the shortest rest again."""

SAID_AGAIN_S = 60.0
"""How long the log is silent about a trouble of a name that it has told of."""

SAID = 1_000
"""Names that are remembered as told."""

FATAL = (errors.HostConflict, errors.ForeignTree, errors.InvalidSettings)
"""What no restart mends: somebody has to act, so the host ends."""


class Guard:
    """Of one host.

    Attributes:
        broken: how often each loop broke, or an item of it did, by the loop's name. Each time is a bug of ours, or data
            damaged in a way that we do not know; a well host has none.
    """

    def __init__(self) -> None:
        self.broken: Counter[str] = Counter()
        self._said: dict[str, float] = {}

    async def keep(self, name: str, loop: Callable[[], Awaitable[None]]) -> None:
        """Run `loop` for ever: log what it raises, count it, and start it again after a rest. Ends by cancellation.

        Raises:
            HostConflict, ForeignTree, InvalidSettings: somebody has to act.
        """
        times = 0
        while True:
            began_s = time.monotonic()
            try:
                await loop()
                failure: Exception = RuntimeError("it returned, which it should not")
            except FATAL:
                raise
            except Exception as exc:
                failure = exc
            times = 0 if time.monotonic() - began_s > IN_A_ROW_S else times
            rest_s = RESTARTS_S[min(times, len(RESTARTS_S) - 1)]
            times += 1
            self.note(name, f"it starts again in {rest_s:g} s", failure)
            await asyncio.sleep(rest_s)

    def note(self, name: str, what_next: str, failure: BaseException, item: str = "") -> None:
        """Count an unexpected failure, and log it unless the log has told of the same lately.

        Args:
            name: the loop's.
            item: the message, queue, slot or topic of the loop that it happened with, if it is known.
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
        """Each loop as a task that is named for it."""
        return [asyncio.create_task(self.keep(name, loop), name=f"emq {name}") for name, loop in loops.items()]
