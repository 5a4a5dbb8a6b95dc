"""The polls of exhausted queues, since a storage of PUT and GET tells nobody of a new message."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from emq_stores.memory.wakeups import Wakeups
from emq_stores.put_get.client import Options
from emq_stores.put_get.probe import Prober, QueueProbe, gather
from emq_stores.put_get.schedule import PollSchedule

_log = logging.getLogger(__name__)


class Polls:
    """Looks at armed queues, and wakes those that have news.

    Args:
        prefix: comes before a queue's name in the storage.
        state: returns what this instance knows of a queue.
        wakeups: told of queues with news.
    """

    def __init__(
        self, prober: Prober, options: Options, prefix: str, state: Callable[[str], QueueProbe], wakeups: Wakeups
    ) -> None:
        self._prober = prober
        self._options = options
        self._prefix = prefix
        self._state = state
        self._wakeups = wakeups
        self._schedule = PollSchedule()

    def arm(self, queue: str, position: int) -> None:
        """Poll a queue that was exhausted at an offset."""
        known = self._state(queue)
        if known.position != position:
            known.position, known.polls = position, 0
        self._wakeups.forget(queue)
        self._schedule.set(queue, self._next_poll(known))

    def is_armed(self, queue: str) -> bool:
        """Return whether a queue is polled."""
        return queue in self._schedule

    def stop(self, queue: str) -> bool:
        """Disarm a queue; return whether it was armed."""
        return self._schedule.remove(queue)

    def wake(self, queue: str) -> None:
        """Tell of news in a queue, if it is armed."""
        if self.stop(queue):
            self._wakeups.wake(queue)

    async def run(self) -> None:
        """Loop: look at the armed queues whose poll is due, wake those with news, and wait for the next; forever.

        A poll GETs the offset at which the queue was exhausted, and one offset of the window above, each time another
        one. So two operations a poll find a lost write at that offset sooner or later. A queue that is not armed costs
        nothing. The next poll comes after `poll_first_s`, doubled at each poll up to `poll_longest_s`, or at the end of
        a hole's grace if that is sooner.
        """
        while True:
            queues = self._schedule.due(_now(), self._options.concurrency)
            if not queues:
                await self._schedule.wait()
                continue
            await gather(self._poll(queue) for queue in queues)

    async def _poll(self, queue: str) -> None:
        name, known = self._prefix + queue, self._state(queue)
        position = known.position
        above = position + 1 + known.polls % self._options.hole_window
        known.polls += 1
        undecided = position in known.missing_since
        try:
            await self._prober.fetch(name, known, {position} if known.reach > position else {position, above})
            if position in known.missing_since and not undecided:
                # Then the graces of several lost messages in a row begin together, not one after the other.
                rest = range(position + 1, min(known.reach, position + 1 + self._options.hole_window))
                await self._prober.fetch(name, known, rest)
        except (Exception, asyncio.CancelledError) as exc:  # whatever a storage's driver raises, the polls go on
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            _log.warning("poll of queue %r failed, next try later: %s: %s", queue, type(exc).__name__, exc)
        if queue not in self._schedule or known.position != position:
            return
        if position in known.ahead or known.is_hole(position, self._options.hole_grace_s):
            self.wake(queue)
        else:
            self._schedule.set(queue, self._next_poll(known))

    def _next_poll(self, known: QueueProbe) -> float:
        now = _now()
        since = known.missing_since.get(known.position)
        if since is None and known.reach > known.position:
            return now  # a put ended after the read had looked at that offset
        # Bounded, since a float overflows some day; 2 ** 30 first polls are longer than any sensible longest poll.
        due = now + min(self._options.poll_first_s * 2.0 ** min(known.polls, 30), self._options.poll_longest_s)
        return due if since is None else min(due, max(now, since + self._options.hole_grace_s))


def _now() -> float:
    now: float = asyncio.get_running_loop().time()
    return now
